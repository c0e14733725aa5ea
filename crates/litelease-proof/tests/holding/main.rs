//! Holding: renewal, waiting, takeover from dead holders, and workers of queues.

mod cached;
mod dead;
mod keeper;
mod waiting;
mod workers;
