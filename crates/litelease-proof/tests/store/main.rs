//! The store: leases and pools in real files, through faults, kills and power cuts.

#[cfg(planted)]
mod durability;
mod endings;
mod faults;
mod handles;
mod history;
mod hosted;
#[cfg(planted)]
mod interrupts;
mod journeys;
mod keep;
mod locking;
mod neutrality;
mod pools;
#[cfg(planted)]
mod power_cut;
mod processes;
#[cfg(planted)]
mod queue_cuts;
mod queues;
mod read;
#[cfg(planted)]
mod retire;
mod schema;
mod side_files;
mod system_calls;
mod ticks;
mod values;

#[cfg(not(planted))]
#[test]
#[ignore = "durability, interrupts, power_cut, queue_cuts and retire run with `cargo proof`"]
fn proofs_that_need_another_boot() {}
