//! Handles that must not reach another thread, each on a line that names the error; `misuse.rs`
//! compiles this file. Without these lines it must compile.

use litelease::rusqlite::Connection;
use litelease::{
    Gate, Held, LeasesAt, LeasesUnder, Litelease, LiteleaseRef, LossSignal, Pools, RawLitelease,
    Savepoint, SingleWriter, Tracker, Transaction, WriteGuard,
};

fn sent<T: Send>() {}
fn shared<T: Sync>() {}

fn main() {
    // An owner moves with its connection, and only one thread at a time has it.
    sent::<Litelease>();
    shared::<Litelease>(); //~ E0277
    sent::<Gate>();
    shared::<Gate>(); //~ E0277

    // What is borrowed from a connection stays in its thread.
    sent::<LiteleaseRef<'_>>(); //~ E0277
    shared::<LiteleaseRef<'_>>(); //~ E0277
    sent::<RawLitelease<'_>>(); //~ E0277
    shared::<RawLitelease<'_>>(); //~ E0277
    sent::<LeasesAt<'_>>(); //~ E0277
    shared::<LeasesAt<'_>>(); //~ E0277
    sent::<LeasesUnder<'_>>(); //~ E0277
    shared::<LeasesUnder<'_>>(); //~ E0277
    sent::<Transaction<'_>>(); //~ E0277
    shared::<Transaction<'_>>(); //~ E0277
    sent::<Savepoint<'_>>(); //~ E0277
    shared::<Savepoint<'_>>(); //~ E0277
    sent::<Pools<'_>>(); //~ E0277
    shared::<Pools<'_>>(); //~ E0277
    sent::<WriteGuard<'_>>(); //~ E0277
    shared::<&Connection>(); //~ E0277

    // A hold has no connection of the caller's.
    sent::<Held>();
    shared::<Held>();
    sent::<LossSignal>();
    shared::<LossSignal>();
    sent::<Tracker>();
    shared::<SingleWriter>();
}
