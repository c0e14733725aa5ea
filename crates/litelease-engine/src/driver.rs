//! Runs the futures of an engine: requests on the threads of their callers, and what must go on between calls on a thread of
//! its own.
//!
//! A request that is handed to another thread costs two thread changes. Here the caller itself moves the bytes. So a
//! connection of a call rests while nobody calls, and must not be used by the background, nor the other way round.

use std::future::Future;
use std::panic::resume_unwind;
use std::process;
use std::sync::OnceLock;
use std::thread;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::yield_now;

use crate::{Error, Result};

/// Two runtimes: one that callers drive, and one with a thread, which is started by its first use.
pub struct Driver {
    name: &'static str,
    /// The process that opened the sockets.
    pid: u32,
    calls: Option<Runtime>,
    background: OnceLock<Option<Runtime>>,
}

impl Driver {
    /// Makes the runtime of the callers. `name` is that of the background thread.
    pub fn new(name: &'static str) -> Result<Self> {
        let calls = Builder::new_current_thread().enable_all().build();
        let calls = calls.map_err(|error| Error::Refused(format!("no runtime: {error}")))?;
        Ok(Driver { name, pid: process::id(), calls: Some(calls), background: OnceLock::new() })
    }

    /// Runs a future to its end on this thread, or on a short-lived one if this is a thread of a
    /// runtime, where nothing may wait. Threads may call it at the same time.
    ///
    /// Fails at once in a process that was forked: it shares the sockets with its parent.
    pub fn run<T: Send>(&self, future: impl Future<Output = T> + Send) -> Result<T> {
        let calls = self.calls.as_ref().filter(|_| !self.is_forked()).ok_or_else(forked)?;
        let run = || {
            calls.block_on(async {
                look_at_sockets().await;
                future.await
            })
        };
        match Handle::try_current() {
            Err(error) if error.is_missing_context() => Ok(run()),
            _ => on_a_thread(run),
        }
    }

    /// Runs a future in the background. In a forked process it does nothing.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
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

    /// Checks whether this process was forked from the one that made this.
    pub fn is_forked(&self) -> bool {
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

/// Lets every connection see what has happened since somebody called last: a server that has closed one
/// must be known before a request is sent over it, because nobody could tell what became of that.
async fn look_at_sockets() {
    // The runtime asks for events when nothing is left to do, and goes on with this future first. The connections come
    // to their turn before it asks again.
    yield_now().await;
    yield_now().await;
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
