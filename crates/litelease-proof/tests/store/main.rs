//! The store: leases and pools in real files, through faults, kills and power cuts.

mod durability;
mod endings;
mod faults;
mod handles;
mod hosted;
mod interrupts;
mod journeys;
mod keep;
mod locking;
mod neutrality;
mod pools;
mod power_cut;
mod processes;
mod queue_cuts;
mod queues;
mod read;
mod retire;
mod schema;
mod side_files;
mod system_calls;
mod values;
