//! Where a command works: a file, a server, or an engine that several machines share. Each command
//! is written once, over [`Target`].

mod cluster;
mod file;
mod grants;
pub(crate) mod queues;
mod server;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use litelease::rusqlite::types::Value;
use litelease::{
    ClaimResult, GrantRef, HolderKind, Lease, LeaseRow, Loss, PoolInfo, SlotRow, Status,
};
use litelease_hold::Held;

use crate::Common;
use crate::database;
use crate::engine_url::EngineUrl;
use crate::exit::{Failure, Result};
use crate::output::printable;

pub(crate) use cluster::Engine;
pub(crate) use file::not_named;
pub(crate) use server::{failure, lent};

/// The verbs that commands use.
pub(crate) trait Target: Send {
    /// Returns the file or the URL, for messages.
    fn shown(&self) -> String;
    /// Returns what a command that runs here finds in its environment.
    fn variables(&self) -> Vec<Variable>;
    /// Makes sure that something was ever leased here.
    fn check(&self) -> Result<()> {
        Err(not_here(&self.shown()))
    }
    fn claim(&self, ask: &Claim<'_>) -> Result<ClaimResult>;
    fn renew(&self, grant: &GrantArgument, ttl: Duration) -> Result<Verdict<Lease>>;
    /// Returns the name and the token that were released.
    fn release(&self, grant: &GrantArgument) -> Result<Verdict<(String, i64)>>;
    fn transfer(&self, grant: &GrantArgument, to: &str, ttl: Duration) -> Result<Verdict<Lease>>;
    /// Returns the owner and the token that was broken.
    fn break_lease(&self, name: &str) -> Result<Verdict<(String, i64)>>;
    /// Ends any holder's lease on a slot. Returns whether the slot was held under this token.
    fn break_slot(&self, _name: &str, _position: i64, _token: i64) -> Result<bool> {
        Err(not_here(&self.shown()))
    }
    /// Ends a lease whose token could not be told to its caller.
    fn take_back(&self, lease: &Lease) -> Result<Verdict<(String, i64)>>;
    fn inspect(&self, name: &str) -> Result<Option<Lease>>;
    /// Returns the known names: with `all` also those that nobody has.
    fn list(&self, all: bool) -> Result<Vec<LeaseRow>>;
    /// Returns the names under which slots are held. An engine has no slots.
    fn pools(&self) -> Result<Vec<(String, PoolInfo)>> {
        Ok(Vec::new())
    }
    /// Returns the slots that are held under a name.
    fn slots(&self, _name: &str) -> Result<Vec<SlotRow>> {
        Ok(Vec::new())
    }
    /// Returns names that may be meant by one that is not known.
    fn known(&self) -> Vec<String>;
    /// Waits until nobody has the name. Returns the holder if the time is over before.
    fn wait_free(&self, name: &str, wait: Duration) -> Result<Option<Lease>>;
    /// Watches these names, or all if none is given.
    fn watch(&self, names: &[String]) -> Result<Box<dyn Looks>>;
    /// Claims a name, or borrows a slot, and keeps it alive.
    fn hold(&self, ask: &Ask) -> Result<Tenure>;
    /// Notes that the work under a grant goes on. Returns its name and token.
    fn progress(&self, _: &GrantArgument) -> Result<Verdict<(String, i64)>> {
        Err(not_here(&self.shown()))
    }
    /// Deletes the rows of names that have not been live since a time, and returns how many.
    fn purge(&self, _: i64) -> Result<u64> {
        Err(not_here(&self.shown()))
    }
    /// Fences off what was granted before a backup came back, and returns the new floor.
    fn restore_fence(&self, _above: Option<i64>) -> Result<i64> {
        Err(not_here(&self.shown()))
    }
    /// Returns the secret of a grant that was just claimed, where grants have one.
    fn secret(&self, _: &Lease) -> Option<String> {
        None
    }
    /// Returns who keeps others from writing, if that can be known.
    fn writer(&self) -> Option<u32> {
        None
    }
}

/// A variable of the environment, to be set or removed.
pub(crate) type Variable = (&'static str, Option<OsString>);

/// A claim for a script.
pub(crate) struct Claim<'a> {
    pub(crate) name: &'a str,
    pub(crate) owner: &'a str,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) above: Option<i64>,
}

/// The grant that a command line means.
pub(crate) struct GrantArgument {
    pub(crate) name: String,
    pub(crate) token: Option<i64>,
    /// Owner and token of the `litelease run` of this name around this process.
    pub(crate) run: Option<(String, i64)>,
}

impl GrantArgument {
    /// Returns the grant as the verbs take it.
    pub(crate) fn named(&self) -> Result<GrantRef<'_>> {
        let name = &self.name;
        match (self.token, &self.run) {
            (Some(token), _) => Ok((name, token).into()),
            (None, Some((owner, token))) => {
                Ok(GrantRef { name, token: *token, owner: Some(owner) })
            }
            (None, None) => Err(not_named(name)),
        }
    }
}

/// The answer to a verb on a grant.
pub(crate) enum Verdict<T> {
    Done(T),
    Rejected(Rejection),
}

/// Why a verb was rejected.
pub(crate) struct Rejection {
    pub(crate) reason: String,
    /// Whether nobody was ever granted the name.
    pub(crate) is_unknown: bool,
    pub(crate) current: Option<Lease>,
}

/// What `run` asks for.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) name: String,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) group: u32,
    pub(crate) value: Option<String>,
    pub(crate) progress_within: Option<Duration>,
    pub(crate) max_time: Option<Duration>,
    pub(crate) slots: Option<u32>,
}

/// A lease or a slot that is kept alive.
pub(crate) struct Tenure {
    pub(crate) held: Held,
    /// The variables of the lease, for the environment of the command.
    pub(crate) variables: Vec<Variable>,
    /// How long a release tries, at most.
    patience: Duration,
    /// The file of the lease, where a release that finds it locked is tried again.
    file: Option<PathBuf>,
}

impl Tenure {
    /// Returns the tenure of a lease or a slot whose release tries for some seconds.
    fn new(held: impl Into<Held>, variables: Vec<Variable>) -> Self {
        Tenure { held: held.into(), variables, patience: RELEASE, file: None }
    }

    /// Releases it, and tries for a while. The error may pass if the lease ends by itself.
    pub(crate) fn release(self) -> std::result::Result<(), Loss> {
        let lease = self.held.lease();
        // A lease that is no longer trusted ends by itself: it is tried once.
        let time = self.patience.min(self.held.trusted_for());
        let reason = match self.held.release_within(time) {
            Err(lost) => lost.reason,
            Ok(()) => return Ok(()),
        };
        match &self.file {
            Some(file) if reason.may_pass() && database::release_patiently(file, &lease) => Ok(()),
            _ => Err(reason),
        }
    }
}

/// How long a release tries.
const RELEASE: Duration = Duration::from_secs(5);

/// Looks at leases again and again.
pub(crate) trait Looks {
    /// Returns what is so now.
    fn look(&mut self) -> Result<BTreeMap<String, Seen>>;
    /// Waits until something may have changed, until a time, or for so long.
    fn rest(&mut self, until_ms: i64, left: Duration) -> Result<()>;
}

/// A row with its value, and whether it was live when we looked.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) row: LeaseRow,
    pub(crate) value: Option<Value>,
    pub(crate) was_live: bool,
}

impl Seen {
    pub(crate) fn is_live(&self, now_ms: i64) -> bool {
        self.row.status(now_ms) == Some(Status::Live)
    }

    /// Returns when its tenure ends.
    pub(crate) fn tenure(&self) -> Option<i64> {
        self.row.tenure.as_ref().map(|(_, expiry)| *expiry)
    }
}

/// Returns where the command works. Opens nothing yet.
pub(crate) fn open(common: &Common) -> Result<Box<dyn Target>> {
    match (common.server()?, EngineUrl::of(common)?) {
        (Some(url), _) => Ok(Box::new(server::Server::open(url)?)),
        (None, Some(url)) => Ok(Box::new(Engine::new(url))),
        (None, None) => Ok(Box::new(file::File::new(common)?)),
    }
}

/// Returns the engine that several machines share, if the command works on one.
pub(crate) fn engine(common: &Common) -> Result<Option<Engine>> {
    match common.server()? {
        Some(_) => Ok(None),
        None => Ok(EngineUrl::of(common)?.map(Engine::new)),
    }
}

/// Returns what a command finds in its environment that runs at a server.
fn of_server(url: &str) -> Vec<Variable> {
    vec![("LITELEASE_SERVER", Some(url.into())), ("LITELEASE_DB", None)]
}

/// A server has no such verb.
fn not_here(shown: &str) -> Failure {
    Failure::usage(format!(
        "this works on a file only, not at {}: name the file with --db",
        printable(shown)
    ))
}

/// Returns the variables that a lease on a name has.
fn of_lease(lease: &Lease, grant: Option<&str>) -> Vec<Variable> {
    let text = |text: &str| Some(OsString::from(text));
    vec![
        ("LITELEASE_NAME", text(&lease.name)),
        ("LITELEASE_OWNER", text(&lease.owner)),
        ("LITELEASE_TOKEN", text(&lease.token.to_string())),
        ("LITELEASE_EXPIRES_AT_MS", text(&lease.expires_at_ms.to_string())),
        ("LITELEASE_GRANT", grant.map(OsString::from)),
        ("LITELEASE_SLOT", None),
    ]
}

/// Returns the variables that a slot has. It has no owner, so no verb on names takes it for a
/// lease.
fn of_slot(name: &str, position: i64, token: i64) -> Vec<Variable> {
    let text = |text: &str| Some(OsString::from(text));
    vec![
        ("LITELEASE_NAME", Some(name).filter(|name| !name.is_empty()).and_then(text)),
        ("LITELEASE_OWNER", None),
        ("LITELEASE_TOKEN", text(&token.to_string())),
        ("LITELEASE_EXPIRES_AT_MS", None),
        ("LITELEASE_GRANT", None),
        ("LITELEASE_SLOT", text(&position.to_string())),
    ]
}

/// Returns what operators see of a borrowed slot: the text that names its process, or a shorter one
/// where the name of the host is so long that it does not fit.
fn note(kind: HolderKind) -> String {
    let who = litelease::Identity::new(kind);
    match who.to_string() {
        text if text.len() <= 200 => text,
        _ => format!("litelease run, pid {}, host {:.40}", who.pid, who.host),
    }
}
