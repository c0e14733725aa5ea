//! Requests and their answers. One thread of the client sends and receives all of them.
//!
//! The verbs run on that thread and not on the caller's, which may block or await. So a request
//! that waits costs no thread, and a verb needs no runtime and survives the end of one.

use std::io;
use std::process;
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use hyper::Response;
use litelease_hold::unique;
use litelease_wire as wire;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::Error;
use crate::builder;
use crate::client::nonsense;
use crate::connection::{Connections, EventStream};

/// Runs the verbs of a client, and sends their requests.
pub struct Transport {
    /// The runtime, and the process whose thread it is. Started by its first use.
    runtime: OnceLock<(u32, io::Result<Runtime>)>,
    connections: Connections,
}

/// The most threads for blocking work: name lookups, and the first renewal and the release of
/// holds.
const MOST_THREADS: usize = 32;

/// A request to a server.
pub(crate) struct Message {
    /// Its path, with its query.
    pub(crate) path: String,
    /// An id that the answer must repeat. An answer to another request, which a proxy or a broken
    /// connection has kept, has another one.
    pub(crate) tag: String,
    /// The JSON to post, or `None` for a read.
    pub(crate) body: Option<Value>,
    /// How long it may take.
    pub(crate) timeout: Duration,
}

/// The outcome of a request.
pub(crate) enum Outcome {
    /// The server has answered 200.
    Done(Value),
    /// The server has refused it with a reason: 409.
    No(Value),
    /// The server refuses it for good.
    Refused { status: u16, text: String },
    /// The URL or the certificate is wrong, until a setting is changed.
    Misconfigured(String),
    /// Nothing is known: a later try may succeed, and this one may have been carried out.
    Unknown(String),
    /// Nothing was sent, because there is no connection.
    Unreached(String),
}

/// A task that ends when this is dropped, together with its result.
pub(crate) struct EndsWithOwner<T>(pub(crate) JoinHandle<T>);

impl<T> Drop for EndsWithOwner<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Transport {
    pub(crate) fn new(connections: Connections) -> Self {
        Transport { runtime: OnceLock::new(), connections }
    }

    /// Starts a future on the thread of this client.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<JoinHandle<T>, Error> {
        Ok(self.runtime()?.spawn(work))
    }

    /// Starts blocking work, on another thread of the runtime.
    pub(crate) fn start_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, Error> {
        Ok(self.runtime()?.spawn_blocking(work))
    }

    /// Runs a future on the thread of this client, and blocks until it is done.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, done) = sync_channel(1);
        self.start(async move { _ = sender.send(work.await) })?;
        done.recv().map_err(|_| died())
    }

    /// Sends a request once, and waits for its answer. Must run on the thread of this client.
    pub(crate) async fn send(&self, request: Message) -> Outcome {
        match timeout(request.timeout, self.connections.send(&request)).await {
            Ok(Ok(outcome) | Err(outcome)) => outcome,
            Err(_) => Outcome::Unknown("timeout".into()),
        }
    }

    /// Opens a stream of events, which ends if nothing comes for `patience`.
    pub(crate) async fn stream(
        &self,
        path: &str,
        patience: Duration,
    ) -> Result<EventStream, Outcome> {
        let opened = timeout(patience, self.connections.stream(path, patience)).await;
        opened.unwrap_or_else(|_| Err(Outcome::Unknown("timeout".into())))
    }

    fn runtime(&self) -> Result<&Runtime, Error> {
        let (pid, runtime) = self.runtime.get_or_init(|| {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(1).max_blocking_threads(MOST_THREADS).enable_all();
            (process::id(), builder.thread_name("litelease client").build())
        });
        match runtime {
            Ok(runtime) if *pid == process::id() => Ok(runtime),
            Ok(_) => Err(Error::Forked),
            Err(error) => Err(Error::NoThread(io::Error::new(error.kind(), error.to_string()))),
        }
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        if let Some((pid, Ok(runtime))) = self.runtime.take() {
            match pid == process::id() {
                // A thread of a runtime, which this may be, must not wait for it.
                true => runtime.shutdown_background(),
                // The child shares the epoll that the parent waits on: closing sockets here would
                // remove them.
                false => std::mem::forget(runtime),
            }
        }
    }
}

/// Returns the error of a call that has panicked.
pub(crate) fn died() -> Error {
    Error::NoThread(io::Error::other("the thread of the call has died"))
}

impl Message {
    /// Returns a call under a new key.
    pub(crate) fn new<R: wire::Request>(request: &R, timeout: Duration) -> Self {
        let (path, body) = (R::CALL.path.into(), Some(to_json(request)));
        Message { path, tag: unique(), body, timeout }
    }
}

/// Writes the body of a request.
pub(crate) fn to_json<R: wire::Request>(request: &R) -> Value {
    // Fails only for maps whose keys are not texts, which no request has.
    serde_json::to_value(request).unwrap_or_default()
}

/// Reads an answer.
pub(crate) fn typed<A: DeserializeOwned>(answer: Value) -> Result<A, Error> {
    serde_json::from_value(answer).map_err(|_| nonsense())
}

impl Outcome {
    /// Reads the answer to the request that was sent with this tag.
    pub(crate) fn read<B>(response: &Response<B>, text: &[u8], tag: &str) -> Self {
        let echoed = response.headers().get("idempotency-key");
        let value = serde_json::from_slice(text).unwrap_or(Value::Null);
        let text = value["error"].as_str().unwrap_or("there is no server of leases there");
        match response.status().as_u16() {
            200 | 409 if echoed.is_none_or(|echoed| echoed != tag) => {
                Outcome::Unknown("the answer belongs to another request".into())
            }
            200 => Outcome::Done(value),
            409 => Outcome::No(value),
            // Too many clients wait, a proxy answers, the database has failed, or the server shuts
            // down.
            status @ (408 | 429 | 500..=599) => Outcome::Unknown(format!("{status}: {text}")),
            status => Outcome::Refused { status, text: text.into() },
        }
    }

    /// Returns the outcome of a request that has failed and may have been carried out.
    pub(crate) fn failed(error: impl ToString) -> Self {
        let error = error.to_string();
        builder::misconfigured(&error).map_or(Outcome::Unknown(error), Outcome::Misconfigured)
    }

    /// Converts an outcome that ends a call into an error.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Outcome::Refused { status, text } => Error::Refused { status, text },
            Outcome::Misconfigured(why) | Outcome::Unknown(why) | Outcome::Unreached(why) => {
                Error::Unreachable(why)
            }
            Outcome::Done(_) | Outcome::No(_) => {
                Error::Unreachable("no answer was expected".into())
            }
        }
    }
}
