//! Holding: renewal, waiting, and takeover from dead holders.

mod cached;
mod dead;
mod keeper;
mod waiting;
