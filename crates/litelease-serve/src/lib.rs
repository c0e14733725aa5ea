//! Serves named leases, queues and pools of numbered slots over HTTP, from one SQLite file.
//!
//! One thread writes. Requests that arrive together share a durable commit, and a name or slot that
//! is freed goes to the client that has waited longest, in the same commit. `docs/http.md` lists
//! the calls.

mod access;
mod answer;
mod answered_rows;
mod cluster_access;
mod committer;
mod error;
mod events;
mod failure;
mod file;
mod file_access;
mod finished_rows;
mod forwarding;
mod framing;
mod high_water;
mod hosts;
mod http;
mod http1;
mod job;
mod listings;
mod local_key;
mod local_socket;
mod metrics;
mod mirror;
mod options;
mod page;
mod pending_grant;
mod planted;
mod program;
mod replica;
mod request;
mod response;
mod secret;
mod served_rows;
mod server;
mod server_lock;
mod shares;
mod stream;
mod timer;
mod tls;
mod value;

pub use access::AccessKey;
pub use cluster_access::ClusterAccess;
pub use error::OpenError;
pub use file_access::FileAccess;
pub use litelease_store::AccessRow;
pub use local_socket::LocalSocket;
pub use options::Options;
pub use program::{run_replica_until_signal, run_until_signal};
#[doc(hidden)]
pub use replica::WRITER_LEASE;
pub use replica::{Replica, run_replica};
pub use server::{Service, run};
pub use tls::Tls;
