//! The etcd engine: rows as keys, and transactions that compare revisions.
//!
//! | key | value | written by |
//! |---|---|---|
//! | `PREFIX/r/NAME` | the row as JSON: token, owner, until, at, ttl, attempt | every change |
//! | `PREFIX/t/NAME` | the token alone, for transactions of others that compare it | grants and breaks |
//! | `PREFIX/m` | the floor as JSON: format, floor, boot | epochs, purges, raises |
//! | `PREFIX/s/KEY` | rows of the service | the service |
//!
//! etcd's own leases are not used: a leader that was stopped revokes renewed ones when it wakes.

mod client;
mod engine;
mod facts;
mod failure;
mod grpc;
mod listen;
mod messages;
mod tls;
mod values;

pub(crate) use engine::EtcdEngine;
