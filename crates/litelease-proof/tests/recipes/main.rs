//! The signature failures of the recipes in docs/recipes: a test each, named after the failure.
//!
//! Each story is told twice. With its protection off, the failure happens: otherwise the test would
//! prove nothing. With it on, the story ends as its first word says: refused, told, listed, capped
//! or chosen. docs/recipes/README.md has the table from each failure to its test.

mod cache;
mod credential;
mod delivery;
mod fencing_token;
mod handoff;
mod leader;
mod lock;
mod renewal;
mod reservation;
mod session;
mod shard;

use std::time::Duration;

use litelease::{Guard, Litelease, is_stale, rusqlite};
use litelease_proof::rig::{LONG, TestFolder};

use End::*;
use Protection::*;

/// Whether the protection that a story is about is there. It is the only difference between the
/// halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protection {
    Off,
    On,
}

/// How a story ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The failure happened.
    Failed,
    /// The stale owner was refused, and nothing was written.
    Refused,
    /// The holder learned of it in time.
    Told,
    /// What is stuck is on a list, with its owner and age.
    Listed,
    /// The damage has a limit that was set beforehand.
    Capped,
    /// What happens was chosen beforehand, and chance does not decide.
    Chosen,
}

/// Tells a story in two halves: it must fail without its protection, and end so with it.
#[track_caller]
fn both_halves(with_protection: End, story: impl Fn(Protection) -> End) {
    assert_eq!(story(Off), Failed, "without the protection there is nothing to protect from");
    assert_eq!(story(On), with_protection, "with the protection");
}

/// Two programs on one file: `a`, which is paused, and `b`, which succeeds it.
struct Two {
    a: Litelease,
    b: Litelease,
    place: TestFolder,
}

impl Two {
    fn new() -> Self {
        let place = TestFolder::new("WAL");
        Two { a: place.open(LONG), b: place.open(LONG), place }
    }

    /// Makes a table of texts. With the protection on, it refuses writes without the newest token
    /// of `name`.
    fn table(&self, table: &str, name: &str, protection: Protection) {
        self.a.conn().execute_batch(&format!("CREATE TABLE {table} (text)")).unwrap();
        if protection == On {
            self.a.guard(table, name, &Guard::by_connection()).unwrap();
        }
    }
}

/// Writes into a table of `Two` as the owner with this token, without checking that it still is.
fn write(db: &Litelease, table: &str, name: &str, token: i64) -> rusqlite::Result<usize> {
    db.present((name, token)).unwrap();
    db.conn().execute(&format!("INSERT INTO {table} VALUES (?1)"), [token])
}

/// Returns how a story ends with this late write.
#[track_caller]
fn late(write: rusqlite::Result<usize>) -> End {
    match write {
        Ok(_) => Failed,
        Err(error) if is_stale(&error) => Refused,
        Err(error) => panic!("{error}"),
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns the number that a query finds.
fn number(db: &Litelease, sql: &str) -> i64 {
    db.conn().query_row(sql, [], |row| row.get(0)).unwrap()
}
