//! Runs many clients on one thread. Each sends its next request as soon as it is answered.
//!
//! On a machine with few cores, a thread per client would cost more than the servers that are
//! measured. So the same loop drives every peer. It waits for readiness and knows nothing of
//! protocols.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use crate::Result;

/// One client's side of a protocol.
pub(crate) trait Talk: 'static {
    /// Writes the next request. `answer` is the answer to the last one, and empty at first.
    fn ask(&mut self, answer: &[u8], request: &mut Vec<u8>) -> io::Result<()>;

    /// Returns the length of the answer at the start of `received`, once it is complete.
    fn whole(&self, received: &[u8]) -> Option<usize>;
}

/// Returns how many calls per second all clients together get answered.
pub(crate) fn rate<T: Talk>(address: SocketAddr, clients: Vec<T>, seconds: f64) -> Result<f64> {
    rate_of(address, clients, seconds, talk)
}

/// The same for clients that use a connection in their own way. They count their answers.
pub(crate) fn rate_of<C, F>(
    address: SocketAddr,
    clients: Vec<C>,
    seconds: f64,
    talk: impl Fn(TcpStream, C, Rc<Cell<u64>>) -> F,
) -> Result<f64>
where
    F: Future<Output = io::Result<()>> + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async move {
        let answered = Rc::new(Cell::new(0_u64));
        let mut talking = tokio::task::JoinSet::new();
        for client in clients {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            talking.spawn_local(talk(stream, client, Rc::clone(&answered)));
        }
        let count = async {
            // The warm-up does not count.
            tokio::time::sleep(Duration::from_millis(300)).await;
            let (before, started) = (answered.get(), Instant::now());
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
            (answered.get() - before) as f64 / started.elapsed().as_secs_f64()
        };
        tokio::select! {
            rate = count => Ok(rate),
            Some(ended) = talking.join_next() => Err(match ended {
                Ok(Err(error)) => error.into(),
                _ => "a client ended".into(),
            }),
        }
    })
}

async fn talk<T: Talk>(
    mut stream: TcpStream,
    mut client: T,
    answered: Rc<Cell<u64>>,
) -> io::Result<()> {
    let (mut request, mut received) = (Vec::new(), Vec::with_capacity(4096));
    client.ask(&[], &mut request)?;
    loop {
        stream.write_all(&request).await?;
        request.clear();
        let length = loop {
            if stream.read_buf(&mut received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(length) = client.whole(&received) {
                break length;
            }
        };
        answered.set(answered.get() + 1);
        client.ask(received.get(..length).unwrap_or_default(), &mut request)?;
        received.drain(..length);
    }
}
