//! etcd's own lock API, over gRPC: one node, and one connection and one lease per client.
//!
//! A client gets its lease before it starts, as etcd's library does it for a session. So a claim is
//! one `Lock` and a release is one `Unlock`. The few messages are written by hand, from etcd's
//! `v3lock.proto` and `rpc.proto`.

use std::cell::Cell;
use std::io::{self, Cursor};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use h2::client::SendRequest;
use tokio::net::TcpStream;

use super::named::name;
use super::{Server, drive};
use crate::Result;
use crate::peers::start_etcd;

const TTL_SECONDS: u64 = 60;

/// Starts one node, and waits until it answers.
pub(crate) fn start(folder: &Path) -> Result<Server> {
    let (child, stream) = start_etcd(folder)?;
    let server = Server { child, address: stream.peer_addr()? };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let stream = TcpStream::connect(server.address).await?;
        Client::open(stream).await?.grant_lease().await
    })?;
    Ok(server)
}

/// Returns how many locks and unlocks per second so many clients get answered.
pub(crate) fn rate(address: SocketAddr, clients: usize, seconds: f64) -> Result<f64> {
    let run = |stream, number, answered| async move {
        let ended = lock_and_unlock(stream, number, answered).await;
        ended.map_err(|error| io::Error::other(error.to_string()))
    };
    drive::rate_of(address, (0..clients).collect(), seconds, run)
}

async fn lock_and_unlock(stream: TcpStream, number: usize, answered: Rc<Cell<u64>>) -> Result<()> {
    let mut client = Client::open(stream).await?;
    let lease = client.grant_lease().await?;
    let mut lock = bytes_field(1, name(number).as_bytes());
    lock.extend(number_field(2, lease));
    loop {
        let locked = client.call("v3lockpb.Lock/Lock", &lock).await?;
        answered.set(answered.get() + 1);
        let Some(Field::Bytes(key)) = field(&locked, 2) else {
            return Err("etcd: there is no key in the answer".into());
        };
        client.call("v3lockpb.Lock/Unlock", &bytes_field(1, key)).await?;
        answered.set(answered.get() + 1);
    }
}

/// A client that puts values, one after the other.
pub(crate) struct Puts {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Puts {
    pub(crate) fn open(address: SocketAddr) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Client::open(stream).await
        })?;
        Ok(Puts { runtime, client })
    }

    /// Puts a value, and waits until it is on the disk.
    pub(crate) fn put(&mut self, key: &str, value: &str) -> Result<()> {
        let mut put = bytes_field(1, key.as_bytes());
        put.extend(bytes_field(2, value.as_bytes()));
        self.runtime.block_on(self.client.call("etcdserverpb.KV/Put", &put)).map(drop)
    }
}

struct Client(SendRequest<Cursor<Vec<u8>>>);

impl Client {
    async fn open(stream: TcpStream) -> Result<Self> {
        let (client, connection) = h2::client::Builder::new().handshake(stream).await?;
        tokio::spawn(connection);
        Ok(Client(client))
    }

    /// Returns the id of a new lease.
    async fn grant_lease(&mut self) -> Result<u64> {
        let ttl = number_field(1, TTL_SECONDS);
        let granted = self.call("etcdserverpb.Lease/LeaseGrant", &ttl).await?;
        match field(&granted, 2) {
            Some(Field::Number(id)) => Ok(id),
            _ => Err("etcd: there is no lease in the answer".into()),
        }
    }

    /// Makes one call, and returns the message of its answer.
    async fn call(&mut self, path: &str, message: &[u8]) -> Result<Vec<u8>> {
        let request = http::Request::post(format!("http://localhost/{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        // Not compressed, and the length.
        let mut framed = vec![0];
        framed.extend(u32::try_from(message.len())?.to_be_bytes());
        framed.extend(message);
        let (response, mut body) = self.0.send_request(request, false)?;
        body.send_data(Cursor::new(framed), true)?;
        let (head, mut body) = response.await?.into_parts();
        let mut answer = Vec::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            answer.extend(chunk);
        }
        // An error without a message has its status in the head.
        let end = body.trailers().await?.unwrap_or(head.headers);
        match end.get("grpc-status").map(http::HeaderValue::as_bytes) {
            Some(b"0") => Ok(answer.split_off(answer.len().min(5))),
            _ => Err(format!("etcd: {path}: {end:?}").into()),
        }
    }
}

/// A field of a message of Protocol Buffers.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn number_field(tag: u8, number: u64) -> Vec<u8> {
    let mut field = vec![tag << 3];
    write_varint(&mut field, number);
    field
}

fn bytes_field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![tag << 3 | 2];
    write_varint(&mut field, bytes.len() as u64);
    field.extend(bytes);
    field
}

/// Finds a field by its tag.
fn field(mut message: &[u8], tag: u64) -> Option<Field<'_>> {
    loop {
        let key = read_varint(&mut message)?;
        let number = read_varint(&mut message)?;
        let field = match key & 7 {
            0 => Field::Number(number),
            2 => Field::Bytes(message.split_off(..usize::try_from(number).ok()?)?),
            _ => return None,
        };
        if key >> 3 == tag {
            return Some(field);
        }
    }
}

fn write_varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn read_varint(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *from.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_message_are_found_by_their_tags() {
        let mut message = bytes_field(1, b"header");
        message.extend(number_field(2, u64::MAX));
        message.extend(number_field(3, 300));
        message.extend(bytes_field(4, &[7; 200]));
        assert!(matches!(field(&message, 1), Some(Field::Bytes(b"header"))));
        assert!(matches!(field(&message, 2), Some(Field::Number(u64::MAX))));
        assert!(matches!(field(&message, 3), Some(Field::Number(300))));
        assert!(matches!(field(&message, 4), Some(Field::Bytes(bytes)) if bytes == [7; 200]));
        assert!(field(&message, 5).is_none());
        assert!(field(&message[..20], 4).is_none(), "it ends early");
    }
}
