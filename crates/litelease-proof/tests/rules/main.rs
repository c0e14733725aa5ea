//! The rules: scenarios, every short history, random histories and the model.

mod agreement;
mod histories;
mod model;
mod reads;
mod scenarios;
mod shards;
