//! The proofs of Litelease: what its tests share.
//!
//! Scenario files and their players, the rule with bugs planted on purpose, and helpers for real files and
//! real processes. The tests themselves are in `tests/`.

pub mod mutant;
pub mod play;
pub mod rig;
pub mod scenario;
