//! Holding: renewal, waiting, takeover from dead holders, and workers of queues.

mod cached;
mod dead;
mod elections;
mod keeper;
mod scheduler;
mod sessions;
mod shards;
mod waiting;
mod workers;
