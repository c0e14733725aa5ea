//! Leases in a SQLite file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use litelease::{
    BreakResult, ClaimResult, Error, GrantResult, HoldError, HoldOptions, HolderKind, Lease,
    LeaseRow, ListedLease, Litelease, PoolInfo, Reason, ReleaseResult, RenewResult, SlotRow,
    Status, TransferResult, Watch, pool_of_name,
};

use super::{
    Ask, Claim, GrantArgument, Looks, Rejection, Seen, Target, Tenure, Variable, Verdict, note,
    of_lease, of_slot,
};
use crate::exit::{Failure, Result, code};
use crate::output::{self, held_by, printable};
use crate::{Common, database};

/// A file, opened by each verb as it needs it.
pub(super) struct File {
    common: Common,
    path: PathBuf,
}

impl File {
    pub(super) fn new(common: &Common) -> Result<Self> {
        Ok(File { common: common.clone(), path: database::path(common)? })
    }
}

/// A command line names no grant.
pub(crate) fn not_named(name: &str) -> Failure {
    let name = printable(name);
    Failure::usage(format!(
        "the token of {name} is missing: add --token TOKEN, the number that litelease claim \
         printed (directly inside litelease run {name} it is not needed)"
    ))
}

impl Target for File {
    fn shown(&self) -> String {
        self.path.display().to_string()
    }

    fn variables(&self) -> Vec<Variable> {
        // The child may have another working directory one day; the path should still be right.
        let path = std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone());
        vec![("LITELEASE_DB", Some(path.into())), ("LITELEASE_SERVER", None)]
    }

    fn check(&self) -> Result<()> {
        database::open_existing(&self.common).map(drop)
    }

    fn claim(&self, ask: &Claim<'_>) -> Result<ClaimResult> {
        let db = database::open_patiently(&self.common, ask.wait)?;
        Ok(match ask.above {
            Some(above) => db.claim_above(ask.name, ask.owner, ask.ttl, above)?,
            None => db.claim_wait(ask.name, ask.owner, ask.ttl, ask.wait)?,
        })
    }

    fn renew(&self, grant: &GrantArgument, ttl: Duration) -> Result<Verdict<Lease>> {
        let (grant, db) = (grant.named()?, database::open_existing(&self.common)?);
        Ok(match db.renew(grant, ttl)? {
            RenewResult::Renewed(renewed) => Verdict::Done(renewed),
            RenewResult::Rejected { reason, current } => rejected(&reason, current),
        })
    }

    fn release(&self, grant: &GrantArgument) -> Result<Verdict<(String, i64)>> {
        let (grant, db) = (grant.named()?, database::open_existing(&self.common)?);
        Ok(released(db.release(grant)?))
    }

    fn transfer(&self, grant: &GrantArgument, to: &str, ttl: Duration) -> Result<Verdict<Lease>> {
        let (grant, db) = (grant.named()?, database::open_existing(&self.common)?);
        Ok(match db.transfer(grant, to, ttl)? {
            TransferResult::Transferred(handed) => Verdict::Done(handed),
            TransferResult::Rejected { reason, current } => rejected(&reason, current),
        })
    }

    fn progress(&self, grant: &GrantArgument) -> Result<Verdict<(String, i64)>> {
        let (grant, db) = (grant.named()?, database::open_existing(&self.common)?);
        Ok(match db.progress(grant)? {
            GrantResult::Done => Verdict::Done((grant.name.to_owned(), grant.token)),
            GrantResult::Stale { reason } => rejected(&reason, None),
        })
    }

    fn break_lease(&self, name: &str) -> Result<Verdict<(String, i64)>> {
        Ok(match database::open_existing(&self.common)?.break_lease(name)? {
            BreakResult::Broken { owner, killed } => Verdict::Done((owner, killed)),
            BreakResult::Rejected { reason, current } => rejected(&reason, current),
        })
    }

    fn break_slot(&self, name: &str, position: i64, token: i64) -> Result<bool> {
        let db = database::open_existing(&self.common)?;
        Ok(db.pools().break_slot(&pool_of_name(name), position, token)?)
    }

    fn take_back(&self, lease: &Lease) -> Result<Verdict<(String, i64)>> {
        Ok(released(database::open_existing(&self.common)?.release(lease)?))
    }

    fn inspect(&self, name: &str) -> Result<Option<Lease>> {
        let Some(db) = database::look(&self.common)? else { return Ok(None) };
        let lease = db.inspect(name)?;
        check_not_retired(&db, lease.is_none())?;
        Ok(lease)
    }

    fn list(&self, all: bool) -> Result<Vec<LeaseRow>> {
        let now_ms = litelease::now_ms();
        let Some(db) = database::look(&self.common)? else { return Ok(Vec::new()) };
        let rows = db.list()?;
        let is_live = |row: &LeaseRow| row.status(now_ms) == Some(Status::Live);
        check_not_retired(&db, !rows.iter().any(is_live))?;
        Ok(rows.into_iter().filter(|row| all || is_live(row)).collect())
    }

    fn pools(&self) -> Result<Vec<(String, PoolInfo)>> {
        let Some(db) = database::look(&self.common)? else { return Ok(Vec::new()) };
        let start = pool_of_name("");
        let named = db.pools().in_use(&start)?.into_iter();
        Ok(named.map(|(id, info)| (id[start.len()..].to_owned(), info)).collect())
    }

    fn slots(&self, name: &str) -> Result<Vec<SlotRow>> {
        let Some(db) = database::look(&self.common)? else { return Ok(Vec::new()) };
        match db.pools().slots(&pool_of_name(name)) {
            Err(Error::NoSuchPool) => Ok(Vec::new()),
            slots => Ok(slots?),
        }
    }

    fn known(&self) -> Vec<String> {
        // A hint only: whatever goes wrong here is told by what was asked for.
        self.list(true).unwrap_or_default().into_iter().map(|row| row.name).collect()
    }

    fn wait_free(&self, name: &str, wait: Duration) -> Result<Option<Lease>> {
        // A script goes on when a name is free. With a wrong path it must not.
        database::check_existing(&self.path)?;
        let Some(db) = database::look(&self.common)? else { return Ok(None) };
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

    fn watch(&self, names: &[String]) -> Result<Box<dyn Looks>> {
        let db = database::open_existing(&self.common)?;
        let (watch, names) = (db.watch(), names.to_vec());
        Ok(Box::new(Looking { db, watch, names, seen: 0 }))
    }

    fn hold(&self, ask: &Ask) -> Result<Tenure> {
        let db = database::open_patiently(&self.common, ask.wait)?;
        if let Some(count) = ask.slots {
            let pool = pool_of_name(&ask.name);
            let count = i64::from(count);
            if db.pools().info(&pool)?.is_none_or(|info| info.count != count) {
                db.pools().register(&pool, count)?;
            }
            let note = note(HolderKind::Run { group: ask.group });
            let slot = db.hold_slot(&pool, ask.ttl, ask.wait, &note)?;
            let slot = slot.ok_or_else(|| none_free(self, &ask.name, count))?;
            let variables = of_slot(&ask.name, slot.position(), slot.token());
            return Ok(Tenure::new(slot, variables));
        }
        let held = db.hold(&ask.name, options(ask)).map_err(|error| match error {
            HoldError::Busy(current) => busy(&current),
            error => error.into(),
        })?;
        let variables = of_lease(&held.lease(), None);
        Ok(Tenure { file: Some(self.path.clone()), ..Tenure::new(held, variables) })
    }

    fn purge(&self, before_ms: i64) -> Result<u64> {
        Ok(database::open_existing(&self.common)?.purge(before_ms)?)
    }

    fn restore_fence(&self, above: Option<i64>) -> Result<i64> {
        let db = database::open_existing(&self.common)?;
        Ok(match above {
            Some(token) => db.restore_fence_above(token)?,
            None => db.restore_fence()?,
        })
    }

    fn writer(&self) -> Option<u32> {
        database::look(&self.common).ok().flatten()?.write_lock_pid()
    }
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

/// Another owner has the name.
pub(super) fn busy(current: &Lease) -> Failure {
    Failure::new(code::NO, "Busy", held_by(current)).because_of(output::lease(current))
}

/// How many holders of slots are named in one line.
const MOST_HOLDERS: usize = 5;

/// All slots are taken. Says by whom, as far as that can be read.
pub(super) fn none_free(place: &dyn Target, name: &str, count: i64) -> Failure {
    let held = place.slots(name).unwrap_or_default();
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
    Failure::new(code::NO, "Busy", text).because_of(output::slots(&held))
}

fn options(ask: &Ask) -> HoldOptions {
    let mut options = HoldOptions::new(ask.ttl).wait(ask.wait).group(ask.group);
    if let Some(value) = &ask.value {
        options = options.value(value.clone());
    }
    if let Some(time) = ask.progress_within {
        options = options.progress_within(time);
    }
    match ask.max_time {
        Some(time) => options.max_time(time),
        None => options,
    }
}

pub(super) fn rejected<T>(reason: &Reason, current: Option<Lease>) -> Verdict<T> {
    let is_unknown = *reason == Reason::NeverClaimed;
    Verdict::Rejected(Rejection { reason: reason.to_string(), is_unknown, current })
}

pub(super) fn released(result: ReleaseResult) -> Verdict<(String, i64)> {
    match result {
        ReleaseResult::Released { name, token } => Verdict::Done((name, token)),
        ReleaseResult::Rejected { reason, current } => rejected(&reason, current),
    }
}

/// Looks at a file whenever it has changed.
struct Looking {
    db: Litelease,
    watch: Watch,
    names: Vec<String>,
    seen: u32,
}

impl Looks for Looking {
    fn look(&mut self) -> Result<BTreeMap<String, Seen>> {
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

    fn rest(&mut self, until_ms: i64, left: Duration) -> Result<()> {
        self.watch.wait(self.seen, until_ms, left);
        Ok(())
    }
}
