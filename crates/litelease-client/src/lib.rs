//! A client of `litelease serve`, blocking or async: claims names over HTTP, and holds them.
//!
//! ```no_run
//! use std::time::Duration;
//! use litelease_client::{Client, HoldOptions};
//!
//! # fn main() -> Result<(), litelease_client::Error> {
//! let client = Client::open("http://127.0.0.1:7070")?;
//! let held = client.hold("backup", HoldOptions::new(Duration::from_secs(30)))?;
//! for part in 0..100 {
//!     held.check()?; // fails if another client may have been granted the name
//!     println!("part {part}, under token {}", held.token());
//! }
//! held.release()?;
//! # Ok(())
//! # }
//! ```
//!
//! A grant is trusted by the client's own clock, which counts suspend: for the ttl less a margin,
//! from the start of the request that was answered. Clocks of client and server are never compared.
//!
//! [`Client::into_async`] returns a client with the same verbs as futures.

#[cfg(test)]
extern crate self as litelease_client;

mod access;
mod builder;
mod client;
mod connection;
mod error;
mod held_item;
mod held_names;
mod history;
mod hold;
mod kind;
mod look;
mod mode;
mod payload;
mod queue;
mod queue_items;
mod retry;
mod rows;
mod slot;
#[path = "../tests/stub/mod.rs"]
#[cfg(test)]
mod stub;
mod tick;
mod transport;
mod worker;

pub use builder::ClientBuilder;
pub use client::{Client, Grant, Lease};
pub use error::Error;
pub use held_item::HeldItem;
pub use history::{Event, History};
pub use hold::{Held, HoldOptions};
pub use litelease_core::{
    NewestTick, Tick, TickChange, TickInfo, TickOutcome, TickRequest, TickResult, TickState,
};
pub use litelease_hold::{Cancel, Loss, LossSignal, Lost, WorkOptions, WorkerCounts};
pub use litelease_wire::Value;
pub use look::{KnownName, Name, News, PoolOfLabel, PoolOfName, SlotInfo, Waiter, Watch};
pub use mode::{Async, AsyncClient, Blocking, Mode};
pub use payload::{Checkpoint, Request};
pub use queue::{Item, Queue, QueueInfo, SendOptions};
pub use queue_items::{CancelResult, ItemInfo, ItemName};
pub use slot::{Pool, Slot};
pub use tick::BegunTick;
pub use worker::{WorkItem, Worker};
