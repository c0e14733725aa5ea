//! Pools of numbered slots over HTTP, from one SQLite file.
//!
//! One thread writes; requests that come together share a durable commit, and a slot that comes free goes to whoever
//! has waited longest in the same commit. `docs/http.md` has the calls.

mod answer;
#[doc(hidden)]
pub mod bench_backend;
mod body;
mod calls;
mod committer;
mod error;
mod events;
mod expiry_schedule;
mod file;
mod framing;
mod high_water;
mod hosts;
mod http;
mod http1;
mod http2;
mod job;
mod metrics;
mod options;
mod page;
mod pending_borrow;
mod program;
mod queue;
mod request;
mod server;
mod server_lock;
mod timer;

pub use error::OpenError;
pub use options::Options;
pub use program::run_until_signal;
pub use server::{Service, run};
