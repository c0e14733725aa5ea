//! Fencing: guards, checkpoints, gates, and the same compare in other databases.

mod credentials;
mod fences;
mod guards;
mod targets;
mod zombies;
