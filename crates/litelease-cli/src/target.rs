//! Where a command works: a file, a server, or an engine that several machines share. Each command
//! is written once, over [`Target`].

mod cluster;
mod file;
mod grants;
pub(crate) mod queues;
mod server;
pub(crate) mod ticks;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use litelease::rusqlite::types::Value;
use litelease::{
    BreakResult, ClaimResult, GrantRef, HistoryRow, HolderKind, Lease, LeaseRow, Loss, PoolInfo,
    Reason, ReleaseResult, RenewResult, SlotRow, Status, TakenOver, TickOutcome, TickRequest,
    TransferResult, pool_of_name,
};
use litelease_core::Thresholds;
use litelease_hold::{Cancel, Held, abandon};
use litelease_serve::overview::{Memory, Overview, Processes, Rows, compose};

use crate::Common;
use crate::database;
use crate::engine_url::EngineUrl;
use crate::exit::{Failure, Result};
use crate::output::printable;

pub(crate) use cluster::Engine;
pub(crate) use server::{failure, lent};

use file::{File, not_named};
use server::Server;

/// A place with leases. A verb that a place does not have is refused.
pub(crate) enum Target {
    File(File),
    Server(Server),
    Engine(Engine),
}

impl Target {
    /// Returns where the command works. Opens nothing yet.
    pub(crate) fn open(common: &Common) -> Result<Self> {
        match (common.server()?, EngineUrl::from_common(common)?) {
            (Some(url), _) => Ok(Target::Server(Server::open(url)?)),
            (None, Some(url)) => Ok(Target::Engine(Engine::new(url))),
            (None, None) => Ok(Target::File(File::new(common)?)),
        }
    }

    /// Returns the same place, where requests say who asks and why. Only a server shows or logs it.
    pub(crate) fn with_note(self, flag: &str, note: Option<&str>) -> Result<Self> {
        match (self, note) {
            (place, None) => Ok(place),
            (Target::Server(server), Some(note)) => {
                Ok(Target::Server(server.with_note(flag, note)?))
            }
            (place, Some(_)) => {
                let shown = printable(&place.shown());
                let text =
                    format!("{flag} is for a server, which shows or logs it, not for {shown}");
                Err(Failure::usage(text))
            }
        }
    }

    /// Returns the file or the URL, for messages.
    pub(crate) fn shown(&self) -> String {
        match self {
            Target::File(file) => file.shown(),
            Target::Server(server) => server.url.clone(),
            Target::Engine(engine) => engine.shown(),
        }
    }

    /// Returns what a command that runs here finds in its environment.
    pub(crate) fn variables(&self) -> Vec<Variable> {
        match self {
            Target::File(file) => file.variables(),
            Target::Server(server) => server.variables(),
            Target::Engine(engine) => engine.variables(),
        }
    }

    /// Checks that a lease was ever granted here.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Target::File(file) => file.open().map(drop),
            Target::Server(_) => Err(self.not_here()),
            Target::Engine(engine) => engine.check(),
        }
    }

    pub(crate) fn claim(&self, claim: &Claim<'_>) -> Result<ClaimResult> {
        match self {
            Target::File(file) => file.claim(claim),
            Target::Server(server) => server.claim(claim),
            Target::Engine(engine) => engine.claim(claim),
        }
    }

    pub(crate) fn renew(&self, grant: &GrantArgument, ttl: Duration) -> Result<Verdict<Lease>> {
        match self {
            Target::File(file) => Ok(file.open_for(grant)?.renew(grant.named()?, ttl)?.into()),
            Target::Server(server) => server.renew(grant, ttl),
            Target::Engine(engine) => {
                let grant = grant.named()?;
                engine.granted_here(engine.cluster()?.renew(grant, ttl)?.into())
            }
        }
    }

    /// Returns the name and the token that were released.
    pub(crate) fn release(&self, grant: &GrantArgument) -> Result<Verdict<(String, i64)>> {
        match self {
            Target::File(file) => Ok(file.open_for(grant)?.release(grant.named()?)?.into()),
            Target::Server(server) => server.release(grant),
            Target::Engine(engine) => {
                let grant = grant.named()?;
                engine.rejected_here(engine.cluster()?.release(grant)?.into())
            }
        }
    }

    pub(crate) fn transfer(
        &self,
        grant: &GrantArgument,
        to: &str,
        ttl: Duration,
    ) -> Result<Verdict<Lease>> {
        match self {
            Target::File(file) => {
                Ok(file.open_for(grant)?.transfer(grant.named()?, to, ttl)?.into())
            }
            Target::Server(server) => server.transfer(grant, to, ttl),
            Target::Engine(engine) => {
                let grant = grant.named()?;
                engine.granted_here(engine.cluster()?.transfer(grant, to, ttl)?.into())
            }
        }
    }

    /// Records that the work under a grant goes on. Returns its name and token.
    pub(crate) fn progress(&self, grant: &GrantArgument) -> Result<Verdict<(String, i64)>> {
        match self {
            Target::File(file) => file.progress(grant),
            Target::Server(server) => server.progress(grant),
            Target::Engine(engine) => engine.progress(grant),
        }
    }

    /// Claims a name, or renews the lease that the owner already has.
    pub(crate) fn ensure(&self, name: &str, owner: &str, ttl: Duration) -> Result<ClaimResult> {
        match self {
            Target::File(file) => {
                Ok(file.open_patiently(Duration::ZERO)?.ensure(name, owner, ttl)?)
            }
            Target::Server(_) => Err(self.not_served()),
            Target::Engine(engine) => engine.claimed(|db| Ok(db.ensure(name, owner, ttl)?)),
        }
    }

    /// Asks the holder of a name to give it up, and claims it then.
    pub(crate) fn request_wait(&self, claim: &Claim<'_>, within: Duration) -> Result<ClaimResult> {
        let Claim { name, owner, ttl, wait, .. } = *claim;
        match self {
            Target::File(file) => {
                Ok(file.open_patiently(wait)?.request_wait(name, owner, ttl, within, wait)?)
            }
            Target::Server(_) => Err(self.not_served()),
            Target::Engine(engine) => {
                engine.claimed(|db| db.request_wait(name, owner, ttl, within, wait))
            }
        }
    }

    /// Ends any holder's lease, and grants the name in the same step.
    pub(crate) fn take_over(&self, name: &str, owner: &str, ttl: Duration) -> Result<TakenOver> {
        match self {
            Target::File(file) => {
                Ok(file.open_patiently(Duration::ZERO)?.take_over(name, owner, ttl)?)
            }
            Target::Server(_) => Err(self.not_served()),
            Target::Engine(engine) => engine.take_over(name, owner, ttl),
        }
    }

    /// Returns the value that the holder of a name has attached.
    pub(crate) fn value(&self, name: &str) -> Result<Option<Value>> {
        match self {
            Target::File(file) => file.value(name),
            Target::Server(server) => server.value(name),
            Target::Engine(engine) => engine.value(name),
        }
    }

    /// Returns the owner and the token that was broken.
    pub(crate) fn break_lease(&self, name: &str) -> Result<Verdict<(String, i64)>> {
        match self {
            Target::File(file) => Ok(file.open()?.break_lease(name)?.into()),
            Target::Server(server) => server.verdict(server.client.break_lease(name)),
            Target::Engine(engine) => {
                engine.rejected_here(engine.cluster()?.break_lease(name)?.into())
            }
        }
    }

    /// Ends any holder's lease on a name, if it has this token. Only a server keeps the reason.
    pub(crate) fn break_token_because(
        &self,
        name: &str,
        token: i64,
        reason: Option<&str>,
    ) -> Result<Verdict<(String, i64)>> {
        if let Target::Server(server) = self {
            let client = server.client.clone();
            let client = reason.map_or(client.clone(), |reason| client.with_note(reason));
            return server.verdict(client.break_token(name, token));
        }
        match self.inspect(name)? {
            Some(current) if current.token != token => Ok(Verdict::Rejected(Rejection {
                reason: Reason::Superseded { by: current.token }.to_string(),
                is_unknown: false,
                current: Some(current),
            })),
            _ => self.break_lease(name),
        }
    }

    /// Returns everything that is held, with what is stuck or late, and why.
    pub(crate) fn overview(&self, processes: &mut Processes) -> Result<Overview> {
        let now_ms = litelease::now_ms();
        let rows = match self {
            Target::Server(server) => return server.client.overview("").map_err(failure),
            Target::File(file) => match file.open_if_any()? {
                Some(db) => Rows::read(&db, "", now_ms)?,
                None => Rows::default(),
            },
            Target::Engine(engine) => Rows::from_leases(engine.list(true)?, now_ms),
        };
        let (memory, most) = (Memory::default(), Thresholds::default());
        Ok(compose(rows, &memory, processes, &most, now_ms))
    }

    /// Ends any holder's lease on a slot. Returns whether the slot was held under this token.
    pub(crate) fn break_slot(&self, name: &str, position: i64, token: i64) -> Result<bool> {
        match self {
            Target::File(file) => {
                Ok(file.open()?.pools().break_slot(&pool_of_name(name), position, token)?)
            }
            Target::Server(server) => {
                server.client.break_slot(name, position, token).map_err(failure)
            }
            Target::Engine(_) => Err(self.not_here()),
        }
    }

    /// Ends a lease whose token could not be printed for its caller.
    pub(crate) fn take_back(&self, lease: &Lease) -> Result<Verdict<(String, i64)>> {
        match self {
            Target::File(file) => Ok(file.open()?.release(lease)?.into()),
            Target::Server(server) => server.take_back(lease),
            Target::Engine(engine) => {
                engine.rejected_here(engine.cluster()?.release(lease)?.into())
            }
        }
    }

    pub(crate) fn inspect(&self, name: &str) -> Result<Option<Lease>> {
        match self {
            Target::File(file) => file.inspect(name),
            Target::Server(server) => server.inspect(name),
            Target::Engine(engine) => engine.inspect(name),
        }
    }

    /// Returns the row of a name that is leased.
    pub(crate) fn live_row(&self, name: &str) -> Result<Option<LeaseRow>> {
        let row = match self {
            Target::File(file) => file.row(name),
            Target::Server(server) => server.row(name),
            Target::Engine(engine) => engine.row(name),
        };
        Ok(row?.filter(is_live))
    }

    /// Returns the known names: with `all` also free ones.
    pub(crate) fn list(&self, all: bool) -> Result<Vec<LeaseRow>> {
        match self {
            Target::File(file) => file.list(all),
            Target::Server(server) => server.list(all),
            Target::Engine(engine) => engine.list(all),
        }
    }

    /// Returns known names that are similar to an unknown one. Only a hint: the command itself
    /// reports its errors.
    pub(crate) fn known(&self) -> Vec<String> {
        let is_server = matches!(self, Target::Server(_));
        self.list(!is_server).unwrap_or_default().into_iter().map(|row| row.name).collect()
    }

    /// Returns the names under which slots are held. An engine has no slots.
    pub(crate) fn pools(&self) -> Result<Vec<(String, PoolInfo)>> {
        match self {
            Target::File(file) => file.pools(),
            Target::Server(server) => server.pools(),
            Target::Engine(_) => Ok(Vec::new()),
        }
    }

    /// Returns all pools, sorted by label. An engine has none.
    pub(crate) fn all_pools(&self) -> Result<Vec<ListedPool>> {
        let mut pools = match self {
            Target::File(file) => file.all_pools()?,
            Target::Server(server) => server.all_pools()?,
            Target::Engine(_) => Vec::new(),
        };
        pools.sort_by(|one, other| one.label.cmp(&other.label));
        Ok(pools)
    }

    /// Returns the slots that are held under a name.
    pub(crate) fn slots(&self, name: &str) -> Result<Vec<SlotRow>> {
        match self {
            Target::File(file) => file.slots(name),
            Target::Server(server) => server.slots(name),
            Target::Engine(_) => Ok(Vec::new()),
        }
    }

    /// Waits until the name is free. Returns the holder if the time is over before.
    pub(crate) fn wait_free(&self, name: &str, wait: Duration) -> Result<Option<Lease>> {
        match self {
            Target::File(file) => file.wait_free(name, wait),
            Target::Server(server) => server.wait_free(name, wait),
            Target::Engine(engine) => engine.wait_free(name, wait),
        }
    }

    /// Watches these names, or all if none is given.
    pub(crate) fn watch(&self, names: &[String]) -> Result<Watching> {
        match self {
            Target::File(file) => Ok(Watching::File(file.watch(names)?)),
            Target::Server(server) => Ok(Watching::Server(server.watch(names)?)),
            Target::Engine(engine) => Ok(Watching::Engine(engine.watch(names)?)),
        }
    }

    /// Checks whether the place stores the limits of a hold. Otherwise the hold keeps them.
    pub(crate) fn stores_limits(&self, wanted: &HoldRequest) -> bool {
        wanted.slots.is_none() && !matches!(self, Target::Engine(_))
    }

    /// Claims a name, or borrows a slot, and keeps it alive.
    pub(crate) fn hold(&self, wanted: &HoldRequest) -> Result<Tenure> {
        match self {
            Target::File(file) => file.hold(wanted),
            Target::Server(server) => server.hold(wanted),
            Target::Engine(_) if wanted.tick.is_some() => Err(self.no_ticks()),
            Target::Engine(engine) => engine.hold(wanted),
        }
    }

    /// Deletes the rows of names that have not been live since a time, and returns how many.
    pub(crate) fn purge(&self, before_ms: i64) -> Result<u64> {
        match self {
            Target::File(file) => Ok(file.open()?.purge(before_ms)?),
            Target::Server(_) => Err(self.not_here()),
            Target::Engine(engine) => Ok(engine.cluster()?.purge(before_ms)?),
        }
    }

    /// Fences off the grants from before a backup was restored, and returns the new floor.
    pub(crate) fn restore_fence(&self, above: Option<i64>) -> Result<i64> {
        match (self, above) {
            (Target::File(file), None) => Ok(file.open()?.restore_fence()?),
            (Target::File(file), Some(token)) => Ok(file.open()?.restore_fence_above(token)?),
            (Target::Server(_), _) => Err(self.not_here()),
            (Target::Engine(engine), above) => {
                Ok(engine.cluster()?.restore_fence_above(above.unwrap_or(0))?)
            }
        }
    }

    /// Returns the secret of a grant that was just claimed, where grants have one.
    pub(crate) fn secret(&self, lease: &Lease) -> Option<String> {
        match self {
            Target::Server(server) => grants::find(&server.url, &lease.name, lease.token),
            Target::File(_) | Target::Engine(_) => None,
        }
    }

    /// Returns the process that keeps others from writing, if that can be known.
    pub(crate) fn writer(&self) -> Option<u32> {
        match self {
            Target::File(file) => file.open_if_any().ok().flatten()?.write_lock_pid(),
            Target::Server(_) | Target::Engine(_) => None,
        }
    }

    /// Keeps a history of so many rows from now on, or none.
    pub(crate) fn keep_history(&self, rows: u32) -> Result<()> {
        match self {
            Target::File(file) => {
                let db = database::open_patiently(&file.common, Duration::ZERO)?;
                Ok(db.keep_history(rows)?)
            }
            Target::Server(server) => Err(Failure::usage(format!(
                "{} decides itself what it keeps: start it with --history {rows}",
                printable(&server.url)
            ))),
            Target::Engine(_) => Err(self.not_here()),
        }
    }

    /// Returns rows of the history, the newest first, and whether one is kept.
    pub(crate) fn history(&self, wanted: &HistoryRequest<'_>) -> Result<(Vec<HistoryRow>, bool)> {
        match self {
            Target::File(file) => file.history(wanted),
            Target::Server(server) => server.history(wanted),
            Target::Engine(_) => Err(self.not_here()),
        }
    }

    /// Refuses a verb that servers do not have.
    fn not_served(&self) -> Failure {
        Failure::usage(format!(
            "this works on a file or an engine, not at the server {}: name one with --db",
            printable(&self.shown())
        ))
    }

    /// Refuses a verb that this place does not have.
    fn not_here(&self) -> Failure {
        Failure::usage(format!(
            "this works on a file only, not at {}: name the file with --db",
            printable(&self.shown())
        ))
    }
}

/// A pool, by its label.
pub(crate) struct ListedPool {
    pub(crate) label: String,
    pub(crate) info: PoolInfo,
    /// The first slots that are held.
    pub(crate) held: Vec<SlotRow>,
    /// How many requests wait, and the notes of the first ones. In a file nothing says so.
    pub(crate) waiters: Option<(usize, Vec<Option<String>>)>,
}

/// The rows of a history that are to be shown.
pub(crate) struct HistoryRequest<'a> {
    pub(crate) name: Option<&'a str>,
    pub(crate) kind: Option<&'a str>,
    pub(crate) since_ms: Option<i64>,
    pub(crate) limit: u32,
}

/// Checks whether the lease of a row is live now.
fn is_live(row: &LeaseRow) -> bool {
    row.status(litelease::now_ms()) == Some(Status::Live)
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

impl<T> Verdict<T> {
    fn rejected(reason: &Reason, current: Option<Lease>) -> Self {
        let is_unknown = *reason == Reason::NeverClaimed;
        Verdict::Rejected(Rejection { reason: reason.to_string(), is_unknown, current })
    }
}

impl From<RenewResult> for Verdict<Lease> {
    fn from(result: RenewResult) -> Self {
        match result {
            RenewResult::Renewed(renewed) => Verdict::Done(renewed),
            RenewResult::Rejected { reason, current } => Verdict::rejected(&reason, current),
        }
    }
}

impl From<TransferResult> for Verdict<Lease> {
    fn from(result: TransferResult) -> Self {
        match result {
            TransferResult::Transferred(handed) => Verdict::Done(handed),
            TransferResult::Rejected { reason, current } => Verdict::rejected(&reason, current),
        }
    }
}

impl From<ReleaseResult> for Verdict<(String, i64)> {
    fn from(result: ReleaseResult) -> Self {
        match result {
            ReleaseResult::Released { name, token } => Verdict::Done((name, token)),
            ReleaseResult::Rejected { reason, current } => Verdict::rejected(&reason, current),
        }
    }
}

impl From<BreakResult> for Verdict<(String, i64)> {
    fn from(result: BreakResult) -> Self {
        match result {
            BreakResult::Broken { owner, token } => Verdict::Done((owner, token)),
            BreakResult::Rejected { reason, current } => Verdict::rejected(&reason, current),
        }
    }
}

/// The reason why a verb was rejected.
pub(crate) struct Rejection {
    pub(crate) reason: String,
    /// The name was never granted.
    pub(crate) is_unknown: bool,
    pub(crate) current: Option<Lease>,
}

/// A lease or a slot that `run` or `hold` asks for.
#[derive(Clone)]
pub(crate) struct HoldRequest {
    pub(crate) name: String,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) group: u32,
    pub(crate) value: Option<String>,
    pub(crate) progress_within: Option<Duration>,
    pub(crate) max_time: Option<Duration>,
    pub(crate) slots: Option<u32>,
    /// The tick to run, and the schedule that has planned it.
    pub(crate) tick: Option<(TickRequest, String)>,
    /// Ends the wait early.
    pub(crate) cancel: Cancel,
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
    /// Finishes the tick of the lease, if it has one, in the place of a release.
    pub(crate) finish: Option<Finish>,
}

/// Finishes the tick of a lease.
pub(crate) type Finish = Box<dyn FnOnce(&Held, TickOutcome) -> Result<()> + Send>;

impl Tenure {
    /// Returns the tenure of a lease or a slot whose release tries for some seconds.
    fn new(held: impl Into<Held>, variables: Vec<Variable>) -> Self {
        Tenure { held: held.into(), variables, patience: RELEASE, file: None, finish: None }
    }

    /// Releases it, and tries for a while. The error may pass if the lease ends by itself.
    ///
    /// The history of a file gets the exit code of the command.
    pub(crate) fn release(self, code: Option<u8>) -> std::result::Result<(), Loss> {
        let lease = self.held.lease();
        if let (Some(file), Some(code)) = (&self.file, code)
            && !self.held.trusted_for().is_zero()
            && database::release_recorded(file, &lease, code)
        {
            abandon(&self.held);
            return Ok(());
        }
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

/// Reads leases again and again.
pub(crate) enum Watching {
    File(file::Watching),
    Server(server::Watching),
    Engine(cluster::Watching),
}

impl Watching {
    /// Returns the present state.
    pub(crate) fn read(&mut self) -> Result<BTreeMap<String, Seen>> {
        match self {
            Watching::File(file) => file.read(),
            Watching::Server(server) => server.read(),
            Watching::Engine(engine) => engine.read(),
        }
    }

    /// Checks whether there can be slots. An engine has none.
    pub(crate) fn has_slots(&self) -> bool {
        !matches!(self, Watching::Engine(_))
    }

    /// Returns the names under which slots are held. A file is not opened again: another one may
    /// have come in its place.
    pub(crate) fn pools(&self) -> Result<Vec<(String, PoolInfo)>> {
        match self {
            Watching::File(file) => file.pools(),
            Watching::Server(server) => server.server.pools(),
            Watching::Engine(_) => Ok(Vec::new()),
        }
    }

    /// Returns the slots that are held under a name.
    pub(crate) fn slots(&self, name: &str) -> Result<Vec<SlotRow>> {
        match self {
            Watching::File(file) => file.slots(name),
            Watching::Server(server) => server.server.slots(name),
            Watching::Engine(_) => Ok(Vec::new()),
        }
    }

    /// Waits until a change may have happened, until a time, or for this long.
    pub(crate) fn wait_for_change(&mut self, until_ms: i64, left: Duration) -> Result<()> {
        match self {
            Watching::File(file) => file.watch.wait(file.seen, until_ms, left),
            Watching::Server(server) => server.wait_for_change(left)?,
            Watching::Engine(engine) => engine.watch.wait(engine.seen, until_ms, left),
        }
        Ok(())
    }
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

/// Returns the engine that several machines share, if the command works on one.
pub(crate) fn engine(common: &Common) -> Result<Option<Engine>> {
    match common.server()? {
        Some(_) => Ok(None),
        None => Ok(EngineUrl::from_common(common)?.map(Engine::new)),
    }
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
