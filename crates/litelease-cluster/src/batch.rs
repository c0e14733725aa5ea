//! Renewing many grants in few requests. Each is renewed for itself: one that is lost does not keep
//! the others from being renewed.

use std::collections::BTreeSet;
use std::time::Duration;

use litelease_core::Claimant;

use crate::change::{Kind, Operation, Patience, millis};
use crate::cluster::Cluster;
use crate::engine::{Error, Loaded, LoadedRow, Result, Stored, StoredRow};
use crate::limits::in_ms;
use crate::row_cache::Known;
use crate::verbs::renews;
use crate::{Lease, RenewResult};

/// How often rows are loaded again after others have changed them.
const ROUNDS: usize = 3;

/// A grant to renew.
pub(crate) struct Renewing<'a> {
    pub(crate) name: &'a str,
    pub(crate) who: Claimant<'a>,
    pub(crate) ttl_ms: i64,
}

/// A renewal that the rule has allowed, before it is stored.
struct Allowed {
    at: usize,
    seen: LoadedRow,
    new: StoredRow,
    answer: RenewResult,
}

/// The decision about one grant that is to be renewed.
enum Decided {
    Allowed(Box<Allowed>),
    /// The rule says no, by a row that may be old.
    Rejected(RenewResult),
    /// It was renewed for itself, or rejected by the row as it is.
    Answered(Renewed),
}

/// The answer to a renewal, and how long it lasts if that is less than was asked for.
pub(crate) type Renewed = (RenewResult, Option<Duration>);

type Answers = Vec<Option<Result<Renewed>>>;

impl Cluster {
    /// Renews grants like [`renew`](Cluster::renew), many in one request. Returns an answer for
    /// each, in the same order.
    ///
    /// A thousand renewals are one request to PostgreSQL, and eight to etcd, if this handle wrote
    /// the rows last; otherwise twice as many. Nothing is tried again: if a request fails, the
    /// grants that it was about have that error, and those after it, too.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// # let ttl = Duration::from_secs(30);
    /// let a = cluster.claim("a", "me", ttl)?.acquired().expect("it is free");
    /// let b = cluster.claim("b", "me", ttl)?.acquired().expect("it is free");
    /// cluster.break_lease("b")?;
    /// let answers = cluster.renew_all(&[a, b], ttl);
    /// assert!(matches!(answers[0], Ok(RenewResult::Renewed(_))));
    /// assert!(matches!(answers[1], Ok(RenewResult::Rejected { .. })));
    /// # Ok::<(), litelease_cluster::Error>(())
    /// ```
    pub fn renew_all(&self, leases: &[Lease], ttl: Duration) -> Vec<Result<RenewResult>> {
        let asked = leases.iter().map(|lease| self.renewing(lease, ttl));
        match asked.collect::<Result<Vec<_>>>() {
            Ok(asked) => {
                let answers = self.renew_many(&asked, self.shared.options.patience).into_iter();
                answers.map(|answer| answer.map(|(answer, _)| answer)).collect()
            }
            Err(error) => vec![Err(error); leases.len()],
        }
    }

    fn renewing<'a>(&self, lease: &'a Lease, ttl: Duration) -> Result<Renewing<'a>> {
        self.check_name_to_hold(&lease.name)?;
        self.check_owner(&lease.owner)?;
        Ok(Renewing { name: &lease.name, who: Claimant::from(lease), ttl_ms: in_ms(ttl)? })
    }

    /// Renews many grants within this time.
    pub(crate) fn renew_many(
        &self,
        asked: &[Renewing<'_>],
        time: Duration,
    ) -> Vec<Result<Renewed>> {
        let mut batch = Batch {
            cluster: self,
            asked,
            started: self.shared.host.monotonic(),
            until: self.shared.host.monotonic().saturating_add(time),
            answers: asked.iter().map(|_| None).collect(),
        };
        let mut failed = Error::Locked("others were faster each time".into());
        for round in 0..ROUNDS {
            if let Err(error) = batch.go(round == 0) {
                failed = error;
                break;
            }
        }
        batch.answers.into_iter().map(|answer| answer.unwrap_or(Err(failed.clone()))).collect()
    }
}

struct Batch<'a> {
    cluster: &'a Cluster,
    asked: &'a [Renewing<'a>],
    started: Duration,
    until: Duration,
    answers: Answers,
}

impl Batch<'_> {
    /// Renews the holds that have no answer yet. The rows that this handle wrote last need not be
    /// loaded.
    fn go(&mut self, may_know: bool) -> Result<()> {
        let open = (0..self.asked.len()).filter(|at| self.answers[*at].is_none());
        let (known, unknown) = match may_know {
            true => self.known(open.collect()),
            false => (None, open.collect()),
        };
        if let Some((seen, rows)) = known {
            self.renew(&seen, rows, true)?;
        }
        if unknown.is_empty() {
            return Ok(());
        }
        let loaded = self.load(&unknown)?;
        let seen = loaded.without_rows();
        self.renew(&seen, unknown.into_iter().zip(loaded.rows).collect(), false)
    }

    /// Returns the rows that this handle wrote last, under one token floor, and the others.
    #[allow(clippy::type_complexity)]
    fn known(&self, open: Vec<usize>) -> (Option<(Loaded, Vec<(usize, LoadedRow)>)>, Vec<usize>) {
        let mut found: Option<(Loaded, Vec<(usize, LoadedRow)>)> = None;
        let mut unknown = Vec::new();
        for at in open {
            let known = self.cluster.known(self.asked[at].name);
            let row = known.and_then(|mut known| Some((known.rows.pop()?, known)));
            match (row, &mut found) {
                (Some((row, known)), None) => found = Some((known, vec![(at, row)])),
                (Some((row, known)), Some((seen, rows)))
                    if (known.floor, known.incarnation) == (seen.floor, seen.incarnation) =>
                {
                    // Each of these is no earlier than the engine's clock.
                    seen.server_ms = seen.server_ms.max(known.server_ms);
                    rows.push((at, row));
                }
                _ => unknown.push(at),
            }
        }
        (found, unknown)
    }

    fn load(&self, open: &[usize]) -> Result<Loaded> {
        let names: Vec<&str> = open.iter().map(|at| self.asked[*at].name).collect();
        let mut patience = Patience::until(self.until);
        loop {
            let loaded = self.cluster.shared.engine.load_within(&names, self.left()?);
            let loaded = loaded.map_err(|error| match error {
                Error::CommitUnknown(reason) => Error::Unreachable(reason),
                error => error,
            })?;
            if !self.cluster.begins_epoch(&loaded, &mut patience)? {
                return Ok(loaded);
            }
        }
    }

    /// Lets the rule decide about each, and stores the results in as few requests as the engine
    /// takes.
    fn renew(
        &mut self,
        seen: &Loaded,
        rows: Vec<(usize, LoadedRow)>,
        is_known: bool,
    ) -> Result<()> {
        let asked = self.cluster.shared.host.monotonic();
        let attempt = self.cluster.shared.host.random_id();
        let mut names = BTreeSet::new();
        let mut allowed = Vec::with_capacity(rows.len());
        for (at, row) in rows {
            match self.decide(seen, row, at, attempt) {
                Ok(Decided::Allowed(write)) if names.insert(self.asked[at].name) => {
                    allowed.push(*write);
                }
                // Asked for twice: once now, and once in the next round.
                Ok(Decided::Allowed(_)) => {}
                // Others may have changed the row since.
                Ok(Decided::Rejected(_)) if is_known => {
                    self.cluster.cache().forget_known(self.asked[at].name);
                }
                Ok(Decided::Rejected(answer)) => self.answers[at] = Some(Ok((answer, None))),
                Ok(Decided::Answered(answer)) => self.answers[at] = Some(Ok(answer)),
                Err(error) => self.answers[at] = Some(Err(error)),
            }
        }
        let most = self.cluster.shared.engine.most_rows(false).max(1);
        while !allowed.is_empty() {
            let rest = allowed.split_off(allowed.len().min(most));
            self.store(seen, std::mem::replace(&mut allowed, rest), asked)?;
        }
        Ok(())
    }

    fn decide(&self, seen: &Loaded, row: LoadedRow, at: usize, attempt: i64) -> Result<Decided> {
        let Renewing { name, who, ttl_ms } = self.asked[at];
        let decide = renews(who, ttl_ms);
        let at_now = self.cluster.row_at_now(seen, &row)?;
        let decision = decide(&at_now, seen.floor.epoch.floor)?;
        if decision.write.is_none() {
            return Ok(Decided::Rejected(decision.answer));
        }
        let ttl = Some(ttl_ms);
        let verb =
            Operation { name, kind: Kind::OnLive, ttl_ms: ttl, beside: true, decide: &decide };
        let (change, answer) = self.cluster.change_to(&verb, seen, at_now, decision, attempt)?;
        let is_whole = |row: &StoredRow| row.tenure.as_ref().is_some_and(|it| it.ttl_ms >= ttl_ms);
        let stored = change.rows.into_iter().next();
        match stored.filter(|(_, row)| change.floor.is_none() && is_whole(row)) {
            Some((_, new)) => {
                Ok(Decided::Allowed(Box::new(Allowed { at, seen: row, new, answer })))
            }
            // It needs a new floor, as after a row was written by hand, or limits cut it: the
            // engine would let all leases of a batch last as long from its own clock on.
            None => {
                let answered = self.cluster.change(&verb)?;
                let granted = Some(answered.lasts_ms).filter(|lasts_ms| *lasts_ms < ttl_ms);
                let granted = granted.map(|ms| Duration::from_millis(ms.max(0).unsigned_abs()));
                Ok(Decided::Answered((answered.answer, granted)))
            }
        }
    }

    fn store(&mut self, seen: &Loaded, allowed: Vec<Allowed>, asked: Duration) -> Result<()> {
        let rows = allowed.iter().map(|allowed| allowed.seen.clone()).collect();
        let news: Vec<StoredRow> = allowed.iter().map(|allowed| allowed.new.clone()).collect();
        let loaded = Loaded { rows, ..seen.without_rows() };
        let stored = self.cluster.shared.engine.store_each(&loaded, &news, self.left()?);
        let stored = match stored {
            // Any part of it may be stored.
            Err(error) => {
                let mut cache = self.cluster.cache();
                allowed.iter().for_each(|allowed| cache.forget_known(&allowed.seen.name));
                return Err(error);
            }
            Ok(stored) => stored,
        };
        let now = self.cluster.shared.host.monotonic();
        let mut cache = self.cluster.cache();
        for (allowed, stored) in allowed.into_iter().zip(stored) {
            let Allowed { at, seen: before, mut new, mut answer } = allowed;
            let (version, server_ms) = match stored {
                Stored::Done { version } => (version, None),
                Stored::DoneAt { version, server_ms } => (version, Some(server_ms)),
                Stored::Conflict => {
                    cache.forget_known(&before.name);
                    continue;
                }
            };
            if let (Some(server_ms), Some(tenure)) = (server_ms, &new.tenure) {
                new = new.as_of(server_ms, tenure.ttl_ms);
            }
            if let (RenewResult::Renewed(lease), Some(tenure)) = (&mut answer, &new.tenure) {
                lease.expires_at_ms = tenure.until_ms;
            }
            let name = before.name;
            let row =
                LoadedRow { name: name.clone(), version, row: Some(new), sides: before.sides };
            let server_ms = server_ms.or(seen.server_ms);
            let loaded = Loaded { rows: vec![row], server_ms, ..seen.without_rows() };
            cache.begin(&name, (version, seen.incarnation), now, Some(self.started));
            cache.wrote(&name, Known { loaded, at: asked });
            let is_late = millis(now.saturating_sub(self.started)) >= self.asked[at].ttl_ms;
            self.answers[at] = Some(match answer {
                RenewResult::Renewed(lease) if is_late && self.cluster.when.is_none() => {
                    Err(Error::ExpiredOnArrival(lease))
                }
                answer => Ok((answer, None)),
            });
        }
        Ok(())
    }

    /// Returns how much time is left, or an error if none is.
    fn left(&self) -> Result<Duration> {
        match self.until.saturating_sub(self.cluster.shared.host.monotonic()) {
            Duration::ZERO => Err(Error::Unreachable("there was no time left to ask".into())),
            left => Ok(left),
        }
    }
}
