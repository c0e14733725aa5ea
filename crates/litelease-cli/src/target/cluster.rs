//! Leases on etcd or PostgreSQL, through `litelease-cluster`.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use litelease::rusqlite::types::Value;
use litelease::{ClaimResult, GrantResult, Lease, LeaseRow, Status, TakenOver};
use litelease_cluster::{self as cluster, Cluster, Error, HoldError, HoldOptions, Watch};

use super::file::busy;
use super::{
    Claim, GrantArgument, HoldRequest, Seen, Tenure, Variable, Verdict, is_live, of_lease,
};
use crate::engine_url::EngineUrl;
use crate::exit::{Failure, Result};

/// An engine, which the first verb opens: `run` forks before that, and must have no threads then.
pub(crate) struct Engine {
    url: EngineUrl,
    cluster: OnceCell<Cluster>,
    /// How far this machine's clock is ahead of the engine's, in milliseconds.
    ahead_ms: OnceCell<i64>,
}

impl Engine {
    pub(crate) fn new(url: EngineUrl) -> Self {
        Engine { url, cluster: OnceCell::new(), ahead_ms: OnceCell::new() }
    }

    pub(crate) fn cluster(&self) -> Result<&Cluster> {
        match self.cluster.get() {
            Some(cluster) => Ok(cluster),
            None => {
                let cluster = Cluster::open(self.url.whole())?;
                Ok(self.cluster.get_or_init(|| cluster))
            }
        }
    }

    /// Runs a verb that grants. The first grant makes the tables.
    fn granting<T>(
        &self,
        grant: impl Fn(&Cluster) -> std::result::Result<T, HoldError>,
    ) -> Result<T> {
        let cluster = self.cluster()?;
        let granted = match grant(cluster) {
            Err(HoldError::Lease(Error::NotBootstrapped)) => {
                cluster.bootstrap()?;
                grant(cluster)
            }
            granted => granted,
        };
        granted.map_err(|error| match error {
            HoldError::Busy(current) => {
                self.here(current).map_or_else(|failure| failure, |c| busy(&c))
            }
            HoldError::Lease(error) => error.into(),
            HoldError::TtlTooShort(_) => Failure::usage(error),
            error => Failure::failed(error.kind_or(Error::kind), error),
        })
    }

    /// Runs a read. Without tables there is nothing to read.
    fn reading<T: Default>(
        &self,
        read: impl Fn(&Cluster) -> litelease_cluster::Result<T>,
    ) -> Result<T> {
        match read(self.cluster()?) {
            Err(Error::NotBootstrapped) => Ok(T::default()),
            read => Ok(read?),
        }
    }

    /// Returns a time of the engine's clock on this machine's, for people and programs of this
    /// machine.
    fn to_local_clock(&self, time_ms: i64) -> Result<i64> {
        if !self.url.has_clock() {
            return Ok(time_ms);
        }
        let ahead_ms = match self.ahead_ms.get() {
            Some(ahead_ms) => *ahead_ms,
            None => {
                let asked_ms = litelease::now_ms();
                let theirs_ms = self.cluster()?.engine().load(&[])?.server_ms;
                let ahead_ms = theirs_ms.map_or(0, |theirs_ms| asked_ms.saturating_sub(theirs_ms));
                *self.ahead_ms.get_or_init(|| ahead_ms)
            }
        };
        Ok(time_ms.saturating_add(ahead_ms))
    }

    fn here(&self, mut lease: Lease) -> Result<Lease> {
        lease.expires_at_ms = self.to_local_clock(lease.expires_at_ms)?;
        Ok(lease)
    }

    fn here_if_any(&self, lease: Option<Lease>) -> Result<Option<Lease>> {
        lease.map(|lease| self.here(lease)).transpose()
    }

    /// Returns a verdict whose leases have the times of this machine's clock.
    pub(super) fn granted_here(&self, verdict: Verdict<Lease>) -> Result<Verdict<Lease>> {
        match verdict {
            Verdict::Done(lease) => Ok(Verdict::Done(self.here(lease)?)),
            rejected => self.rejected_here(rejected),
        }
    }

    /// Does the same for a verdict that names a lease only when it rejects.
    pub(super) fn rejected_here<T>(&self, mut verdict: Verdict<T>) -> Result<Verdict<T>> {
        if let Verdict::Rejected(rejection) = &mut verdict {
            rejection.current = self.here_if_any(rejection.current.take())?;
        }
        Ok(verdict)
    }

    fn row_here(&self, mut row: LeaseRow) -> Result<LeaseRow> {
        if let Some((_, until_ms)) = &mut row.tenure {
            *until_ms = self.to_local_clock(*until_ms)?;
        }
        if let Some(since_ms) = &mut row.since_ms {
            *since_ms = self.to_local_clock(*since_ms)?;
        }
        Ok(row)
    }

    /// Returns all rows, with the times of this machine's clock.
    pub(crate) fn rows(&self) -> Result<Vec<LeaseRow>> {
        let rows = self.reading(Cluster::list)?.into_iter();
        rows.map(|row| self.row_here(row)).collect()
    }

    pub(super) fn row(&self, name: &str) -> Result<Option<LeaseRow>> {
        let row = self.reading(|cluster| cluster.row(name))?;
        row.map(|row| self.row_here(row)).transpose()
    }

    pub(crate) fn shown(&self) -> String {
        self.url.shown().to_owned()
    }

    pub(super) fn variables(&self) -> Vec<Variable> {
        // Without the password: a command that needs it finds $LITELEASE_PASSWORD_FILE.
        vec![("LITELEASE_DB", Some(self.url.bare().into())), ("LITELEASE_SERVER", None)]
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.cluster()?.inspect("")?;
        Ok(())
    }

    pub(super) fn claim(&self, claim: &Claim<'_>) -> Result<ClaimResult> {
        let Claim { name, owner, ttl, wait, above } = *claim;
        self.claimed(|cluster| match above {
            Some(above) => Ok(cluster.claim_above(name, owner, ttl, above)?),
            None if wait.is_zero() => Ok(cluster.claim(name, owner, ttl)?),
            None => cluster.claim_wait(name, owner, ttl, wait),
        })
    }

    pub(super) fn progress(&self, grant: &GrantArgument) -> Result<Verdict<(String, i64)>> {
        let grant = grant.named()?;
        Ok(match self.cluster()?.progress(grant)? {
            GrantResult::Done => Verdict::Done((grant.name.to_owned(), grant.token)),
            GrantResult::Stale { reason } => Verdict::rejected(&reason, None),
        })
    }

    pub(super) fn take_over(&self, name: &str, owner: &str, ttl: Duration) -> Result<TakenOver> {
        let taken = self.granting(|cluster| Ok(cluster.take_over(name, owner, ttl)?))?;
        let from = self.here_if_any(taken.from)?;
        Ok(TakenOver { lease: self.here(taken.lease)?, from })
    }

    pub(super) fn value(&self, name: &str) -> Result<Option<Value>> {
        Ok(self.reading(|cluster| cluster.value(name))?.map(stored))
    }

    /// Runs a verb that claims. Its leases have the times of this machine's clock.
    pub(super) fn claimed(
        &self,
        claim: impl Fn(&Cluster) -> std::result::Result<ClaimResult, HoldError>,
    ) -> Result<ClaimResult> {
        Ok(match self.granting(claim)? {
            ClaimResult::Acquired(lease) => ClaimResult::Acquired(self.here(lease)?),
            ClaimResult::Busy(current) => ClaimResult::Busy(self.here(current)?),
        })
    }

    pub(super) fn inspect(&self, name: &str) -> Result<Option<Lease>> {
        self.here_if_any(self.reading(|cluster| cluster.inspect(name))?)
    }

    pub(super) fn list(&self, all: bool) -> Result<Vec<LeaseRow>> {
        let mut rows = self.rows()?;
        rows.retain(|row| all || is_live(row));
        Ok(rows)
    }

    pub(super) fn wait_free(&self, name: &str, wait: Duration) -> Result<Option<Lease>> {
        // A script goes on when a name is free. With the URL of another database it must not.
        self.check()?;
        let (begin, watch) = (Instant::now(), self.cluster()?.watch());
        loop {
            let seen = watch.changes();
            let current = self.reading(|cluster| cluster.in_the_way(name))?;
            let Some(current) = self.here_if_any(current)? else { return Ok(None) };
            let left = wait.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(Some(current));
            }
            watch.wait(seen, current.expires_at_ms, left);
        }
    }

    pub(super) fn watch(&self, names: &[String]) -> Result<Watching> {
        // Missing tables are reported at once, and so is an engine that cannot be reached.
        self.cluster()?.list()?;
        let cluster = self.cluster()?.clone();
        let watch = cluster.watch();
        let engine = Engine { cluster: cluster.into(), ..Engine::new(self.url.clone()) };
        Ok(Watching { engine, watch, names: names.to_vec(), seen: 0 })
    }

    pub(super) fn hold(&self, wanted: &HoldRequest) -> Result<Tenure> {
        if wanted.slots.is_some() {
            return Err(self.url.needs_service("slots"));
        }
        // Fails at once if the engine cannot be reached. A wait that has begun waits for it, too.
        self.inspect(&wanted.name)?;
        let options = HoldOptions::new(wanted.ttl).wait(wanted.wait).group(wanted.group);
        let options = options.progress_within(wanted.progress_within).max_time(wanted.max_time);
        let options = options.cancel(wanted.cancel.clone());
        let options = match &wanted.value {
            Some(value) => options.value(value.as_str()),
            None => options,
        };
        let held = self.granting(|cluster| cluster.hold(&wanted.name, options.clone()))?;
        // When it was to end, on this machine's clock.
        let expires_at_ms = self.to_local_clock(held.lease().expires_at_ms)?;
        let variables = of_lease(&Lease { expires_at_ms, ..held.lease() }, None);
        Ok(Tenure::new(held, variables))
    }
}

/// Reads all rows after every change.
pub(crate) struct Watching {
    engine: Engine,
    pub(super) watch: Watch,
    names: Vec<String>,
    pub(super) seen: u32,
}

impl Watching {
    pub(super) fn read(&mut self) -> Result<BTreeMap<String, Seen>> {
        self.seen = self.watch.changes();
        let mut rows = self.engine.rows()?;
        rows.retain(|row| self.names.is_empty() || self.names.contains(&row.name));
        let now_ms = litelease::now_ms();
        let values = self.engine.reading(Cluster::values)?.into_iter();
        let mut values: BTreeMap<(String, i64), _> =
            values.map(|(name, token, value)| ((name, token), stored(value))).collect();
        let seen = rows.into_iter().map(|row| {
            let was_live = row.status(now_ms) == Some(Status::Live);
            let value = values.remove(&(row.name.clone(), row.token)).filter(|_| was_live);
            (row.name.clone(), Seen { row, value, was_live })
        });
        Ok(seen.collect())
    }
}

/// Returns a value as the other places have it.
fn stored(value: cluster::Value) -> Value {
    match value {
        cluster::Value::Null => Value::Null,
        cluster::Value::Integer(number) => Value::Integer(number),
        cluster::Value::Real(number) => Value::Real(number),
        cluster::Value::Text(text) => Value::Text(text),
        cluster::Value::Blob(bytes) => Value::Blob(bytes),
    }
}
