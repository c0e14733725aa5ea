//! The rules: scenarios, every short history, random histories and the model.

mod agreement;
mod handoff_model;
mod histories;
mod model;
mod reads;
mod riders;
mod scenarios;
mod shards;
mod ticks;
