//! Holding: renewal, waiting, and takeover from dead holders.

mod dead;
mod keeper;
mod waiting;
