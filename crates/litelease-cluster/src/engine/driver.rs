//! Runs the futures of an engine: requests on the threads of their callers, and work between calls
//! on a thread of its own.
//!
//! A request that is handed to another thread costs two thread changes. Here the caller itself
//! moves the bytes. So a connection of a call rests between calls, and must not be used by the
//! background, nor the other way round. The few helpers that all engines on servers share are here,
//! too.

use std::future::Future;
use std::panic::resume_unwind;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::engine::{Error, Result};

/// After how long a rest the sockets are looked at before anything is sent: no server restarts in
/// less.
const REST: Duration = Duration::from_millis(10);
/// Shorter than any request may take.
const TICK: Duration = Duration::from_millis(500);

/// The format of what is stored. An engine that finds a larger number refuses with
/// [`Error::NewerFormat`](crate::Error::NewerFormat).
pub(crate) const FORMAT: i64 = 1;

/// Two runtimes: one that callers drive, and one with a thread, which is started by its first use.
pub(crate) struct Driver {
    name: &'static str,
    /// The process that opened the sockets.
    pid: u32,
    calls: Option<Runtime>,
    background: OnceLock<Option<Runtime>>,
    made: Instant,
    /// When the last call ended, in microseconds since it was made.
    ended: AtomicU64,
}

impl Driver {
    /// Makes the runtime of the callers. `name` is that of the background thread.
    pub(crate) fn new(name: &'static str) -> Result<Self> {
        let calls = Builder::new_current_thread().enable_all().build();
        let calls = calls.map_err(|error| Error::Refused(format!("no runtime: {error}")))?;
        // A timer that is due before all others makes a runtime interrupt its own sleep, which
        // takes two system calls. The timers of requests come after this one, and are hardly ever
        // due.
        calls.spawn(async {
            loop {
                sleep(TICK).await;
            }
        });
        Ok(Driver {
            name,
            pid: process::id(),
            calls: Some(calls),
            background: OnceLock::new(),
            made: Instant::now(),
            ended: AtomicU64::new(0),
        })
    }

    /// Runs a future to its end on this thread, or on a short-lived one if this is a thread of a
    /// runtime, where nothing may wait. Threads may call it at the same time.
    ///
    /// Fails at once in a process that was forked: it shares the sockets with its parent.
    pub(crate) fn run<T: Send>(&self, future: impl Future<Output = T> + Send) -> Result<T> {
        let calls = self.calls.as_ref().filter(|_| !self.is_forked()).ok_or_else(forked)?;
        let run = || {
            calls.block_on(async {
                if self.has_rested() {
                    poll_sockets().await;
                }
                let done = future.await;
                self.ended.store(self.now(), Ordering::Relaxed);
                done
            })
        };
        match Handle::try_current() {
            Err(error) if error.is_missing_context() => Ok(run()),
            _ => on_a_thread(run),
        }
    }

    /// Runs a future in the background. In a forked process it does nothing.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        if self.is_forked() {
            return;
        }
        let start = || {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(1).thread_name(self.name).enable_all().build().ok()
        };
        if let Some(background) = self.background.get_or_init(start) {
            background.spawn(future);
        }
    }

    fn has_rested(&self) -> bool {
        let rest = self.now().saturating_sub(self.ended.load(Ordering::Relaxed));
        Duration::from_micros(rest) >= REST
    }

    /// Returns the time since this was made, in microseconds.
    fn now(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Checks whether this process was forked from the one that made this.
    pub(crate) fn is_forked(&self) -> bool {
        process::id() != self.pid
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let runtimes = [self.calls.take(), self.background.take().flatten()];
        for runtime in runtimes.into_iter().flatten() {
            match self.is_forked() {
                // Closing its sockets would take them out of the epoll that the parent waits on.
                true => std::mem::forget(runtime),
                // Waiting for it is forbidden on a thread of another runtime.
                false => runtime.shutdown_background(),
            }
        }
    }
}

/// Lets every connection read its events since the last call. A request that is sent over a
/// connection that the server has closed would have an unknown outcome.
async fn poll_sockets() {
    // A task that yields goes on after the runtime has asked for events, and after the connections
    // that they wake. In a task, because a caller that does not drive
    // has no other task to yield to.
    let _ = tokio::spawn(yield_now()).await;
}

fn on_a_thread<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, run);
        let thread = thread
            .map_err(|error| Error::Unreachable(format!("no thread can be started: {error}")))?;
        thread.join().map_err(|panic| resume_unwind(panic))
    })
}

fn forked() -> Error {
    Error::Refused(
        "this process was forked from the one that opened these leases, and must not use its \
         connections: open them again in this process"
            .into(),
    )
}

/// Returns the first key behind all keys that begin with `prefix`, or `None` if there is none.
pub(crate) fn first_behind(prefix: &[u8]) -> Option<Vec<u8>> {
    let at = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut end = prefix.get(..=at)?.to_vec();
    end.last_mut().map(|last| *last += 1)?;
    Some(end)
}

/// Returns how much longer a request may take for the bytes that it moves: a line of 512 KiB a
/// second is fast enough.
pub(crate) fn time_to_move(bytes: usize) -> Duration {
    Duration::from_micros((bytes as u64).saturating_mul(1_000_000) >> 19)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::net::TcpStream;
    use tokio::task::{LocalSet, spawn_blocking};
    use tokio::time::sleep;

    use super::*;

    fn driver() -> Arc<Driver> {
        Arc::new(Driver::new("test").unwrap())
    }

    /// Needs the runtime's clock, and a thread that drives it.
    fn answer(driver: &Driver) -> i32 {
        let answer = driver.run(async {
            sleep(Duration::from_millis(1)).await;
            7
        });
        answer.unwrap()
    }

    #[test]
    fn futures_run_on_any_thread() {
        let driver = driver();
        assert_eq!(answer(&driver), 7);
        let one = Builder::new_current_thread().build().unwrap();
        assert_eq!(one.block_on(async { answer(&driver) }), 7);
        assert_eq!(LocalSet::new().block_on(&one, async { answer(&driver) }), 7);
        let _entered = one.enter();
        assert_eq!(answer(&driver), 7);
        drop(_entered);
        let many = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (a, b) = (Arc::clone(&driver), Arc::clone(&driver));
        many.block_on(async move {
            assert_eq!(tokio::spawn(async move { answer(&a) }).await.unwrap(), 7);
            // The last owner ends it on a thread of a runtime.
            assert_eq!(spawn_blocking(move || answer(&b)).await.unwrap(), 7);
            drop(driver);
        });
    }

    #[test]
    fn threads_share_one_and_none_waits_for_another() {
        let driver = driver();
        let done = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    (0..200).for_each(|_| assert_eq!(answer(&driver), 7));
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
            // The future of the thread that drives may take long.
            let others = async {
                while done.load(Ordering::Relaxed) < 8 {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            driver.run(others).unwrap();
        });
    }

    /// A task that reads gets the events between calls before the next future goes on.
    #[test]
    fn what_happened_between_calls_is_seen_first() {
        let (driver, seen) = (driver(), Arc::new(AtomicUsize::new(0)));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let counter = Arc::clone(&seen);
        let connected = driver.run(async move {
            let stream = TcpStream::connect(address).await.unwrap();
            tokio::spawn(async move {
                loop {
                    stream.readable().await.unwrap();
                    match stream.try_read(&mut [0; 16]) {
                        Ok(0) => break,
                        Ok(_) => drop(counter.fetch_add(1, Ordering::Relaxed)),
                        Err(_) => {}
                    }
                }
                counter.fetch_add(100, Ordering::Relaxed);
            });
        });
        connected.unwrap();
        let (mut server, _) = listener.accept().unwrap();
        for round in 1..=20 {
            server.write_all(b"x").unwrap();
            thread::sleep(REST);
            assert_eq!(driver.run(async { seen.load(Ordering::Relaxed) }), Ok(round));
        }
        drop(server);
        thread::sleep(REST);
        assert_eq!(driver.run(async { seen.load(Ordering::Relaxed) }), Ok(120));
    }

    #[test]
    fn the_background_goes_on_between_calls() {
        let driver = driver();
        let (send, receive) = std::sync::mpsc::channel();
        driver.spawn(async move {
            sleep(Duration::from_millis(1)).await;
            send.send(7).unwrap();
        });
        assert_eq!(receive.recv_timeout(Duration::from_secs(30)), Ok(7));
    }

    #[test]
    fn the_keys_of_a_prefix_end_before_the_next_one() {
        assert_eq!(first_behind(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(first_behind(b"a\xff"), Some(b"b".to_vec()));
        assert_eq!(first_behind(b""), None);
    }

    #[test]
    fn a_slow_line_has_time() {
        assert_eq!(time_to_move(1 << 20), Duration::from_secs(2));
    }
}
