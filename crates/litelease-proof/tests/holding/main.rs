//! Holding: renewal, waiting, takeover from dead holders, and workers of queues.

mod dead;
mod keeper;
mod waiting;
mod workers;
