//! Leases in a SQLite file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use litelease::rusqlite::types::Value;
use litelease::{
    ClaimResult, Error, GrantResult, HistoryFilter, HistoryRow, HoldError, HoldOptions, HolderKind,
    Lease, LeaseRow, ListedLease, Litelease, PoolInfo, SlotRow, Status, Watch, pool_label,
    pool_of_name,
};

use super::ticks;
use super::{
    Claim, GrantArgument, HistoryRequest, HoldRequest, ListedPool, Seen, Tenure, Variable, Verdict,
    is_live, note, of_lease, of_slot,
};
use crate::exit::{Failure, Result, code};
use crate::output::{self, held_by, printable};
use crate::{Common, database};

/// A file, opened by each verb as it needs it.
pub(crate) struct File {
    pub(super) common: Common,
    path: PathBuf,
}

impl File {
    pub(super) fn new(common: &Common) -> Result<Self> {
        Ok(File { common: common.clone(), path: database::path(common)? })
    }

    /// Opens the file, which must exist.
    pub(crate) fn open(&self) -> Result<Litelease> {
        database::open_existing(&self.common)
    }

    /// Opens the file for a verb on a grant. A command line that names none is refused first.
    pub(super) fn open_for(&self, grant: &GrantArgument) -> Result<Litelease> {
        grant.named()?;
        self.open()
    }

    /// Opens the file, or returns `None` if nothing was ever leased in it.
    pub(crate) fn open_if_any(&self) -> Result<Option<Litelease>> {
        database::open_for_reading(&self.common)
    }

    pub(super) fn shown(&self) -> String {
        self.path.display().to_string()
    }

    pub(super) fn variables(&self) -> Vec<Variable> {
        // The child may have another working directory one day; the path should still be right.
        let path = std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone());
        vec![("LITELEASE_DB", Some(path.into())), ("LITELEASE_SERVER", None)]
    }

    pub(super) fn open_patiently(&self, wait: Duration) -> Result<Litelease> {
        database::open_patiently(&self.common, wait)
    }

    pub(super) fn value(&self, name: &str) -> Result<Option<Value>> {
        let Some(db) = self.open_if_any()? else { return Ok(None) };
        Ok(db.value(name)?)
    }

    pub(super) fn claim(&self, claim: &Claim<'_>) -> Result<ClaimResult> {
        let db = self.open_patiently(claim.wait)?;
        Ok(match claim.above {
            Some(above) => db.claim_above(claim.name, claim.owner, claim.ttl, above)?,
            None => db.claim_wait(claim.name, claim.owner, claim.ttl, claim.wait)?,
        })
    }

    pub(super) fn progress(&self, grant: &GrantArgument) -> Result<Verdict<(String, i64)>> {
        let (grant, db) = (grant.named()?, self.open()?);
        Ok(match db.progress(grant)? {
            GrantResult::Done => Verdict::Done((grant.name.to_owned(), grant.token)),
            GrantResult::Stale { reason } => Verdict::rejected(&reason, None),
        })
    }

    pub(super) fn inspect(&self, name: &str) -> Result<Option<Lease>> {
        let Some(db) = self.open_if_any()? else { return Ok(None) };
        let lease = db.inspect(name)?;
        check_not_retired(&db, lease.is_none())?;
        Ok(lease)
    }

    pub(super) fn row(&self, name: &str) -> Result<Option<LeaseRow>> {
        let Some(db) = self.open_if_any()? else { return Ok(None) };
        let row = db.row(name)?;
        check_not_retired(&db, !row.as_ref().is_some_and(is_live))?;
        Ok(row)
    }

    pub(super) fn list(&self, all: bool) -> Result<Vec<LeaseRow>> {
        let Some(db) = self.open_if_any()? else { return Ok(Vec::new()) };
        let rows = db.list()?;
        check_not_retired(&db, !rows.iter().any(is_live))?;
        Ok(rows.into_iter().filter(|row| all || is_live(row)).collect())
    }

    pub(super) fn history(&self, wanted: &HistoryRequest<'_>) -> Result<(Vec<HistoryRow>, bool)> {
        let Some(db) = self.open_if_any()? else { return Ok((Vec::new(), false)) };
        let HistoryRequest { name, kind, since_ms, limit } = *wanted;
        let filter = HistoryFilter { name, kind, since_ms, ..HistoryFilter::default() };
        let rows = db.history(filter, usize::try_from(limit).unwrap_or(usize::MAX))?;
        Ok((rows, db.history_keeps()?.is_some()))
    }

    pub(super) fn pools(&self) -> Result<Vec<(String, PoolInfo)>> {
        self.open_if_any()?.map_or(Ok(Vec::new()), |db| pools_in(&db))
    }

    pub(super) fn all_pools(&self) -> Result<Vec<ListedPool>> {
        let Some(db) = self.open_if_any()? else { return Ok(Vec::new()) };
        let pool = |(id, info): (String, PoolInfo)| {
            let held = db.pools().slots(&id)?;
            Ok(ListedPool { label: pool_label(&id), info, held, waiters: None })
        };
        db.pools().list()?.into_iter().map(pool).collect()
    }

    pub(super) fn slots(&self, name: &str) -> Result<Vec<SlotRow>> {
        self.open_if_any()?.map_or(Ok(Vec::new()), |db| slots_in(&db, name))
    }

    pub(super) fn wait_free(&self, name: &str, wait: Duration) -> Result<Option<Lease>> {
        // A script goes on when a name is free. With a wrong path it must not.
        database::check_existing(&self.path)?;
        let Some(db) = self.open_if_any()? else { return Ok(None) };
        let begin = Instant::now();
        let watch = db.watch();
        loop {
            let seen = watch.changes();
            database::check_moved(&db)?;
            let Some(current) = db.inspect(name)? else {
                return check_not_retired(&db, true).map(|()| None);
            };
            let left = wait.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(Some(current));
            }
            watch.wait(seen, current.expires_at_ms, left);
        }
    }

    pub(super) fn watch(&self, names: &[String]) -> Result<Watching> {
        let db = self.open()?;
        let (watch, names) = (db.watch(), names.to_vec());
        Ok(Watching { db, watch, names, seen: 0 })
    }

    pub(super) fn hold(&self, wanted: &HoldRequest) -> Result<Tenure> {
        let db = database::open_patiently(&self.common, wanted.wait)?;
        if let Some(count) = wanted.slots {
            let pool = pool_of_name(&wanted.name);
            let count = i64::from(count);
            if db.pools().info(&pool)?.is_none_or(|info| info.count != count) {
                db.pools().register(&pool, count)?;
            }
            let note = note(HolderKind::Run { group: wanted.group });
            let slot = db.hold_slot(&pool, options(wanted), &note)?;
            let slot = slot.ok_or_else(|| {
                none_free(&self.slots(&wanted.name).unwrap_or_default(), &wanted.name, count)
            })?;
            let variables = of_slot(&wanted.name, slot.position(), slot.token());
            return Ok(Tenure::new(slot, variables));
        }
        let info = || db.newest_tick(&wanted.name).ok().flatten();
        let held = db.hold(&wanted.name, options(wanted)).map_err(|error| match error {
            HoldError::Busy(current) => ticks::busy(info, wanted, &current),
            HoldError::TickTaken(newest) => ticks::taken(info(), wanted, newest),
            error => error.into(),
        })?;
        let mut variables = of_lease(&held.lease(), None);
        variables.extend(ticks::variables(wanted, held.previous_tick_ms()));
        let finish = wanted.tick.is_some().then(|| ticks::finish(&self.common));
        Ok(Tenure { file: Some(self.path.clone()), finish, ..Tenure::new(held, variables) })
    }
}

/// Returns the names under which slots are held.
fn pools_in(db: &Litelease) -> Result<Vec<(String, PoolInfo)>> {
    let start = pool_of_name("");
    let named = db.pools().in_use(&start)?.into_iter();
    Ok(named.map(|(id, info)| (id[start.len()..].to_owned(), info)).collect())
}

/// Returns the slots that are held under a name.
fn slots_in(db: &Litelease, name: &str) -> Result<Vec<SlotRow>> {
    match db.pools().slots(&pool_of_name(name)) {
        Err(Error::NoSuchPool) => Ok(Vec::new()),
        slots => Ok(slots?),
    }
}

/// Returns the failure of a command line without a token.
pub(super) fn not_named(name: &str) -> Failure {
    let name = printable(name);
    Failure::usage(format!(
        "the token of {name} is missing: add --token TOKEN, the number that litelease claim \
         printed (directly inside litelease run {name} it is not needed)"
    ))
}

/// Refuses to answer that a name is free in a file whose leases were moved.
fn check_not_retired(db: &Litelease, is_free: bool) -> Result<()> {
    match db.retirement()? {
        Some(retirement) if is_free => {
            let to = printable(&retirement.moved_to);
            let text = format!("the leases of this file were moved to {to}: ask there, with --db");
            Err(Failure::failed("Moved", text))
        }
        _ => Ok(()),
    }
}

/// Returns the failure of a command whose name is held by another owner.
pub(super) fn busy(current: &Lease) -> Failure {
    Failure::new(code::NO, "Busy", held_by(current)).because_of(output::lease(current))
}

/// How many holders of slots are named in one line.
const MOST_HOLDERS: usize = 5;

/// Returns the failure of a command that found no free slot, with the holders that can be read.
pub(super) fn none_free(held: &[SlotRow], name: &str, count: i64) -> Failure {
    let by = |slot: Lease| format!("{} by {}", slot.name, output::owner(&slot.owner));
    let mut holders: Vec<String> =
        held.iter().take(MOST_HOLDERS).map(output::slot_lease).map(by).collect();
    if held.len() > MOST_HOLDERS {
        holders.push(format!("{} more", held.len() - MOST_HOLDERS));
    }
    let mut text = format!("all {count} slots of {} are taken", printable(name));
    if !holders.is_empty() {
        text += &format!(": {}", holders.join(", "));
    }
    Failure::new(code::NO, "Busy", text).because_of(output::slots(held))
}

fn options(wanted: &HoldRequest) -> HoldOptions {
    let options = HoldOptions::new(wanted.ttl).wait(wanted.wait).group(wanted.group);
    let options = options.progress_within(wanted.progress_within).max_time(wanted.max_time);
    let options = options.cancel(wanted.cancel.clone());
    let options = match &wanted.tick {
        Some((tick, schedule)) => options.tick(*tick).schedule(schedule),
        None => options,
    };
    match &wanted.value {
        Some(value) => options.value(value.clone()),
        None => options,
    }
}

/// Reads a file whenever it has changed.
pub(crate) struct Watching {
    db: Litelease,
    pub(super) watch: Watch,
    names: Vec<String>,
    pub(super) seen: u32,
}

impl Watching {
    pub(super) fn pools(&self) -> Result<Vec<(String, PoolInfo)>> {
        pools_in(&self.db)
    }

    pub(super) fn slots(&self, name: &str) -> Result<Vec<SlotRow>> {
        slots_in(&self.db, name)
    }

    pub(super) fn read(&mut self) -> Result<BTreeMap<String, Seen>> {
        self.seen = self.watch.changes();
        database::check_moved(&self.db)?;
        let now_ms = litelease::now_ms();
        let mut found = BTreeMap::new();
        let mut keep = |listed: ListedLease| {
            let ListedLease { lease: row, value, .. } = listed;
            let was_live = row.status(now_ms) == Some(Status::Live);
            found.insert(row.name.clone(), Seen { row, value, was_live });
        };
        if self.names.is_empty() {
            for listed in self.db.at(now_ms).leases_under("") {
                keep(listed?);
            }
        }
        for name in &self.names {
            // The first name that begins like this is the name itself, if it is there.
            if let Some(listed) = self.db.at(now_ms).leases_under(name).next().transpose()?
                && listed.lease.name == *name
            {
                keep(listed);
            }
        }
        Ok(found)
    }
}
