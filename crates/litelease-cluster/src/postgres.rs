//! The PostgreSQL engine: rows in a schema of their own, and statements that compare every column.
//!
//! The server's `clock_timestamp()` is the one clock. The incarnation is the system identifier and
//! the timeline, so that a failover is noticed, also one that has lost commits. No cancel request
//! is ever sent: one that hits the wait for a synchronous standby is answered as success, and a
//! failover takes the commit.

mod client;
mod engine;
mod failure;
mod functions;
mod guard;
mod listen;
mod schema;
mod statements;
mod tls;

pub(crate) use engine::PostgresEngine;
