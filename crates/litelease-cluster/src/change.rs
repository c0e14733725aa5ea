//! The one loop behind all verbs on a name: load, ask the rule, compare and store.
//!
//! Every change carries an attempt id. After a lost answer the row shows whether it was stored.

use std::time::Duration;

use litelease_core::{CommitContext, Lease, LeaseRow, Row, State, Step, is_live};

use crate::cluster::Cluster;
use crate::engine::{
    Change, Error, Loaded, LoadedRow, Result, SideKind, SideRow, Stored, StoredRow, StoredTenure,
    TokenFloor,
};
use crate::payload::Payload;
use crate::row_cache::Known;
use crate::value::Value;

/// Conflicts that are tried again at once. After that others get some time.
const FREE_CONFLICTS: u32 = 3;
/// The first and the longest pause between tries.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// A verb on one name.
pub(crate) struct Operation<'a, A> {
    pub(crate) name: &'a str,
    /// The rows that it is for: free names, live leases or any.
    pub(crate) kind: Kind,
    /// The ttl of the call.
    pub(crate) ttl_ms: Option<i64>,
    /// The decision depends on the payload of the grant.
    pub(crate) beside: bool,
    /// Asks the rule, with the row, the time and the floor.
    pub(crate) decide: &'a Decide<'a, A>,
}

pub(crate) type Decide<'a, A> = dyn Fn(&RowAtNow, i64) -> Result<Decision<A>> + 'a;

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// Claims: the name must be free.
    Grant,
    /// Changes a live lease, and may begin with the row that this handle wrote last.
    OnLive,
    /// Changes the row, live or not.
    Always,
}

/// The rule's decision, with text of its own.
pub(crate) struct Decision<A> {
    pub(crate) write: Option<Write>,
    /// The payload to store, under the token of the row as it is then.
    pub(crate) payload: Option<Payload>,
    pub(crate) answer: A,
}

/// A state to store.
#[derive(Clone)]
pub(crate) struct Write {
    token: i64,
    tenure: Option<(String, i64)>,
}

/// An answer, and the moment from which its lease may be trusted.
pub(crate) struct Answered<A> {
    pub(crate) answer: A,
    pub(crate) since: Duration,
    /// The version of the row.
    pub(crate) version: i64,
    /// How much of the lease that is in the way is left, at most.
    pub(crate) left_ms: i64,
    /// How long the lease that was stored lasts.
    pub(crate) lasts_ms: i64,
}

/// A row at a time, as the rule is to see it.
///
/// Without a clock that all clients share, a lease has not one end but two: its holder stops
/// trusting it at the first, and no other client is granted the name before the last. In between
/// no client prolongs it, hands it on or takes it.
pub(crate) struct RowAtNow {
    name: String,
    /// The row with the last end: what claims go by.
    pub(crate) row: Option<LeaseRow>,
    /// The row with the first end, if that has come and the last one has not.
    ended: Option<LeaseRow>,
    pub(crate) now_ms: i64,
    /// How much of the present lease is left, at most.
    left_ms: i64,
    /// The row as it was loaded, with what is beside it.
    loaded: LoadedRow,
    /// How much the clocks of those who have stored times in the payload may differ from this one.
    skew_ms: i64,
}

impl RowAtNow {
    /// Returns the payload of the present grant.
    pub(crate) fn payload(&self) -> Result<Payload> {
        let found = self.loaded.side(SideKind::Payload);
        Payload::read(&self.name, found).map(|payload| self.without_skew(payload))
    }

    /// Returns the payload that is stored, whichever grant it is for.
    pub(crate) fn latest_payload(&self) -> Result<Payload> {
        let found = self.loaded.sides.iter().find(|side| side.kind == SideKind::Payload);
        Payload::read(&self.name, found).map(|payload| self.without_skew(payload))
    }

    /// A request that was repeated a moment ago must not seem to have lapsed because two clocks
    /// differ.
    fn without_skew(&self, mut payload: Payload) -> Payload {
        if let Some((_, request)) = &mut payload.request {
            request.repeated_at_ms = request.repeated_at_ms.saturating_add(self.skew_ms);
        }
        payload
    }

    /// Returns the row for verbs that must not come too early: it is live until its last end.
    pub(crate) fn row(&self) -> Row<'_> {
        Row::new(&self.name, self.row.as_ref().and_then(LeaseRow::state))
    }

    /// Returns the row for verbs that must not come too late: it is live until its first end.
    pub(crate) fn holders_row(&self) -> Row<'_> {
        let row = self.ended.as_ref().or(self.row.as_ref());
        Row::new(&self.name, row.and_then(LeaseRow::state))
    }

    /// Returns the row as it is shown: live until its first end.
    pub(crate) fn shown(self) -> Option<LeaseRow> {
        self.ended.or(self.row)
    }

    /// Checks whether the first end has come, and the last one has not.
    pub(crate) fn is_between_ends(&self) -> bool {
        self.ended.is_some()
    }
}

/// When a verb began, and when it loaded the row that it decided on.
#[derive(Clone, Copy)]
struct Times {
    started: Duration,
    asked: Duration,
}

/// A change whose answer was lost.
struct UnconfirmedWrite<A> {
    seen: Loaded,
    change: Change,
    answer: A,
    reason: String,
    /// The same change was sent again, and met a conflict.
    met_conflict: bool,
}

impl<A> Answered<A> {
    /// Returns the answer, and the moment from which its lease may be trusted.
    pub(crate) fn since(self) -> (A, Duration) {
        (self.answer, self.since)
    }
}

impl<A> Answered<Option<A>> {
    pub(crate) fn transposed(self) -> Option<Answered<A>> {
        let Answered { answer, since, version, left_ms, lasts_ms } = self;
        answer.map(|answer| Answered { answer, since, version, left_ms, lasts_ms })
    }
}

impl<A> Decision<A> {
    /// Takes a step of the rule over, with its answer in a form that owns its text.
    pub(crate) fn new<B>(step: Step<'_, B>, form: impl FnOnce(B) -> A) -> Self {
        let write = step.write.map(Write::from_state);
        Decision { write, payload: None, answer: form(step.answer) }
    }

    /// Stores a value with a grant.
    pub(crate) fn with_value(self, value: &Value) -> Self {
        let payload = || Payload { value: value.clone(), ..Payload::default() };
        let has_value = self.write.is_some() && *value != Value::Null;
        Decision { payload: has_value.then(payload), ..self }
    }

    /// Stores this payload and nothing else, or nothing.
    pub(crate) fn of_payload(payload: Option<Payload>, answer: A) -> Self {
        Decision { write: None, payload, answer }
    }

    fn is_empty(&self) -> bool {
        self.write.is_none() && self.payload.is_none()
    }
}

impl Write {
    fn from_state(state: State<'_>) -> Self {
        let tenure = state.tenure().map(|tenure| (tenure.owner.into(), tenure.expires_at_ms));
        Write { token: state.token(), tenure }
    }
}

/// How long a verb goes on trying.
pub(crate) struct Patience {
    until: Duration,
    tries: u32,
}

impl Patience {
    pub(crate) fn until(until: Duration) -> Self {
        Patience { until, tries: 0 }
    }
}

impl Cluster {
    pub(crate) fn patience(&self) -> Patience {
        let patience = self.patience.unwrap_or(self.shared.options.patience);
        Patience::until(self.shared.host.monotonic().saturating_add(patience))
    }

    /// Returns the same verbs, which try for so long.
    pub(crate) fn within(&self, patience: Duration) -> Cluster {
        Cluster { patience: Some(patience), ..self.clone() }
    }

    /// Sleeps a little before another try, or returns the error if there is no time for one.
    pub(crate) fn wait(&self, patience: &mut Patience, error: Error) -> Result<()> {
        let host = &self.shared.host;
        let left = patience.until.saturating_sub(host.monotonic());
        if left.is_zero() {
            return Err(error);
        }
        let pause = PAUSES.0.saturating_mul(1 << patience.tries.min(10)).min(PAUSES.1);
        patience.tries += 1;
        // Half of the pause is random, so that clients that met do not meet again.
        let chance = u32::try_from(host.random_id() & 0xff).unwrap_or(0);
        host.pause((pause / 2 + pause * chance / 512).min(left));
        Ok(())
    }

    /// Does a verb on one name.
    pub(crate) fn change<A: Clone>(&self, verb: &Operation<'_, A>) -> Result<Answered<A>> {
        self.change_as(verb, self.shared.host.random_id())
    }

    /// Does a verb on one name under this attempt.
    pub(crate) fn change_as<A: Clone>(
        &self,
        verb: &Operation<'_, A>,
        attempt: i64,
    ) -> Result<Answered<A>> {
        let started = self.shared.host.monotonic();
        let mut patience = self.patience();
        let mut known = match verb.kind {
            Kind::OnLive => self.known(verb.name),
            _ => None,
        };
        let mut conflicts = 0;
        let mut sent: Option<UnconfirmedWrite<A>> = None;
        loop {
            let is_known = known.is_some();
            let asked = self.shared.host.monotonic();
            let loaded = match known.take() {
                Some(loaded) => loaded,
                None => self.load_again(verb.name, &mut patience, sent.as_ref())?,
            };
            // Done first, even before an attempt is found again, because all that follows depends
            // on the floor.
            if !is_known {
                let begins = self.begins_epoch(&loaded, &mut patience);
                if begins.map_err(|error| unknown_after(&sent, error))? {
                    continue;
                }
            }
            let row = loaded.rows.first().ok_or_else(|| missing_row(verb.name))?;
            if let Some(sent) = &sent {
                if let Some(found) = row.row.as_ref().filter(|_| is_of(row, attempt, &sent.change))
                {
                    let times = Times { started, asked };
                    let answer = self.answer_at(verb, &sent.seen, &sent.change, found.at_ms);
                    let answer = answer.unwrap_or_else(|| sent.answer.clone());
                    return self.stored(verb, times, &loaded, &sent.change, answer);
                }
                // It was stored, and another client has changed the row since.
                if verb.kind == Kind::OnLive && has_ended_by(row, attempt) {
                    self.cache().forget(verb.name);
                    let (answer, version) = (sent.answer.clone(), row.version);
                    return Ok(Answered {
                        answer,
                        since: started,
                        version,
                        left_ms: 0,
                        lasts_ms: 0,
                    });
                }
                // The row may have been created and deleted since. A purge that deletes one changes
                // the floor, and a release that does so leaves its token.
                let token = |row: &LoadedRow| row.row.as_ref().map(|row| row.token);
                let is_same = |a: Option<&LoadedRow>| {
                    a.is_some_and(|a| a.version == row.version && token(a) == token(row))
                        && a.is_some_and(|a| a.payload_version() == row.payload_version())
                };
                let may_be_deleted = row.version == 0 && sent.seen.floor != loaded.floor;
                if !is_same(sent.seen.rows.first()) || may_be_deleted {
                    return Err(Error::CommitUnknown(sent.reason.clone()));
                }
            }
            // A change whose answer was lost can no longer be stored if the floor has changed, or
            // if it no longer fits the row.
            sent = sent.filter(|sent| !sent.met_conflict && sent.seen.floor == loaded.floor);
            let (change, answer) = match &sent {
                Some(sent) => (sent.change.clone(), sent.answer.clone()),
                None => {
                    let at_now = self.row_at_now(&loaded, row)?;
                    let decision = (verb.decide)(&at_now, loaded.floor.epoch.floor)?;
                    match decision.is_empty() {
                        // Another client may have changed the row since.
                        true if is_known => continue,
                        true => {
                            let (answer, version) = (decision.answer, row.version);
                            let left_ms = at_now.left_ms;
                            return Ok(Answered {
                                answer,
                                since: started,
                                version,
                                left_ms,
                                lasts_ms: 0,
                            });
                        }
                        false => self.change_to(verb, &loaded, at_now, decision, attempt)?,
                    }
                }
            };
            match self.shared.engine.store(&loaded, &change) {
                Ok(Stored::Done { version }) => {
                    let loaded = after(loaded, &change, version);
                    return self.stored(verb, Times { started, asked }, &loaded, &change, answer);
                }
                Ok(Stored::DoneAt { version, server_ms }) => {
                    let later = self.answer_at(verb, &loaded, &change, server_ms);
                    let change = as_of(change, server_ms);
                    let mut loaded = after(loaded, &change, version);
                    loaded.server_ms = Some(server_ms);
                    let times = Times { started, asked };
                    return self.stored(verb, times, &loaded, &change, later.unwrap_or(answer));
                }
                Ok(Stored::Conflict) => {
                    self.cache().forget_known(verb.name);
                    if let Some(sent) = &mut sent {
                        sent.met_conflict = true;
                    }
                    conflicts += 1;
                    if conflicts > FREE_CONFLICTS {
                        let others = Error::Locked(format!("{conflicts} others were faster"));
                        self.wait(&mut patience, unknown_after(&sent, others))?;
                    }
                }
                Err(Error::CommitUnknown(reason)) => {
                    self.cache().forget_known(verb.name);
                    self.wait(&mut patience, Error::CommitUnknown(reason.clone()))?;
                    let (seen, met_conflict) = (loaded, false);
                    sent = Some(UnconfirmedWrite { seen, change, answer, reason, met_conflict });
                }
                Err(error) if error.is_transient() => {
                    let error = unknown_after(&sent, error);
                    self.wait(&mut patience, error)?;
                }
                Err(error) => return Err(unknown_after(&sent, error)),
            }
        }
    }

    fn load_again<A>(
        &self,
        name: &str,
        patience: &mut Patience,
        sent: Option<&UnconfirmedWrite<A>>,
    ) -> Result<Loaded> {
        let loaded = self.load(&[name], patience);
        loaded.map_err(|error| match sent {
            Some(sent) => Error::CommitUnknown(sent.reason.clone()),
            None => error,
        })
    }

    /// Loads, and tries again while there is time.
    pub(crate) fn load(&self, names: &[&str], patience: &mut Patience) -> Result<Loaded> {
        self.until_answered(patience, || self.shared.engine.load(names))
    }

    /// Reads, and tries again while there is time.
    pub(crate) fn until_answered<T>(
        &self,
        patience: &mut Patience,
        read: impl Fn() -> Result<T>,
    ) -> Result<T> {
        loop {
            match read() {
                // Nothing can be unknown about a read.
                Err(Error::CommitUnknown(reason)) => {
                    self.wait(patience, Error::Unreachable(reason))?;
                }
                Err(error) if error.is_transient() => self.wait(patience, error)?,
                read => return read,
            }
        }
    }

    /// Returns the row that this handle wrote last, as if it were loaded now.
    pub(crate) fn known(&self, name: &str) -> Option<Loaded> {
        let cache = self.cache();
        let Known { loaded, at } = cache.known(name)?;
        let mut loaded = loaded.clone();
        // The engine's clock is at most this far. A renewal that is counted from now must not end
        // before it is over.
        let since = self.shared.host.monotonic().saturating_sub(*at);
        loaded.server_ms = loaded.server_ms.map(|ms| ms.saturating_add(millis(since)));
        Some(loaded)
    }

    /// Decides whether a lease is live now: by its expiry where a clock decides. Otherwise it ends
    /// for its holder when the holder's own count or, where that is not known, the wall clock says
    /// so. For others it ends when it was seen unchanged for a whole ttl, or when every clock that
    /// is no more than [`max_skew`](crate::Options::max_skew) wrong agrees that it has ended.
    pub(crate) fn row_at_now(&self, loaded: &Loaded, seen: &LoadedRow) -> Result<RowAtNow> {
        let clock_ms = self.when.or(loaded.server_ms);
        let now_ms = clock_ms.unwrap_or_else(|| self.shared.host.wall_ms());
        let name = seen.name.clone();
        // The times of a payload are compared with this machine's clock, as far as two are right.
        let skew_ms = clock_ms.map_or(millis(self.shared.options.max_skew), |_| 0);
        let loaded_row = seen.clone();
        let (row, ended, left_ms) = (None, None, 0);
        let mut at_now =
            RowAtNow { name, row, ended, now_ms, left_ms, loaded: loaded_row, skew_ms };
        let Some(stored) = &seen.row else { return Ok(at_now) };
        stored.state(&seen.name)?;
        let until = |until_ms: Option<i64>| {
            let tenure = stored.tenure.as_ref().zip(until_ms);
            let tenure = tenure.map(|(tenure, until_ms)| (tenure.owner.clone(), until_ms));
            let since_ms = tenure.is_some().then_some(stored.since_ms);
            Some(LeaseRow { name: seen.name.clone(), tenure, token: stored.token, since_ms })
        };
        let Some(tenure) = &stored.tenure else {
            at_now.row = until(None);
            return Ok(at_now);
        };
        if clock_ms.is_some() {
            at_now.row = until(Some(tenure.until_ms));
            at_now.left_ms = tenure.until_ms.saturating_sub(now_ms);
            return Ok(at_now);
        }
        let now = self.shared.host.monotonic();
        let first = self.cache().first_seen(&seen.name, (seen.version, loaded.incarnation), now);
        let age_ms = millis(now.saturating_sub(first.since));
        at_now.left_ms = tenure.ttl_ms.saturating_sub(age_ms);
        // Two clocks, each of which may be wrong: that of the writer, and this one.
        let skew_ms = millis(self.shared.options.max_skew).saturating_mul(2);
        let ended_long_ago = tenure.until_ms.saturating_add(skew_ms) <= now_ms;
        let (is_over, has_ended) = match first.written {
            Some(written) => {
                let age_ms = millis(now.saturating_sub(written));
                (at_now.left_ms <= 0, age_ms >= tenure.ttl_ms)
            }
            None => (at_now.left_ms <= 0 || ended_long_ago, !is_live(tenure.until_ms, now_ms)),
        };
        let ended_ms = tenure.until_ms.min(now_ms);
        at_now.row = until(Some(match is_over {
            true => ended_ms,
            false if is_live(tenure.until_ms, now_ms) => tenure.until_ms,
            false => now_ms.saturating_add(at_now.left_ms),
        }));
        at_now.ended = until(Some(ended_ms)).filter(|_| has_ended && !is_over);
        Ok(at_now)
    }

    /// Returns the change that stores a decision, and its answer.
    pub(crate) fn change_to<A>(
        &self,
        verb: &Operation<'_, A>,
        loaded: &Loaded,
        at_now: RowAtNow,
        decision: Decision<A>,
        attempt: i64,
    ) -> Result<(Change, A)> {
        let Decision { write, payload, answer } = decision;
        let name = verb.name.to_owned();
        let present = at_now.loaded.row.as_ref().map_or(0, |row| row.token);
        let is_renewal = write.as_ref().is_some_and(|write| write.token == present);
        let is_on_live = verb.kind == Kind::OnLive || is_renewal;
        let mut change = Change {
            // A time that the caller passes needs no clock.
            while_live: is_on_live && self.when.is_none(),
            beside: verb.beside,
            ..Change::default()
        };
        if let Some(payload) = payload {
            let token = write.as_ref().map_or(present, |write| write.token);
            let requester =
                |payload: &Payload| payload.request.as_ref().map(|(who, _)| who.clone());
            let before = at_now.payload()?;
            // Progress, and a request that is repeated, concern no other client.
            change.tells =
                (&before.value, requester(&before)) != (&payload.value, requester(&payload));
            change.sides.push((name.clone(), payload.to_side(token, attempt)));
        }
        if let Some(write) = write {
            change.floor = loaded.floor.epoch.needed(write.token, context(loaded))?;
            let row = self.row_to_store(verb, loaded, &at_now, write, attempt);
            // If the row was not loaded for this verb, the engine's clock is a guess: it may have
            // been set since. A lease that its limits have cut ends when they say.
            let lasts_ms = row.tenure.as_ref().map(|tenure| tenure.ttl_ms);
            let is_whole = |ttl_ms: &i64| lasts_ms.is_some_and(|lasts_ms| *ttl_ms <= lasts_ms);
            let is_guess = change.while_live && !self.counts(loaded);
            change.tells |= verb.kind == Kind::Always;
            change.lasts_ms = verb.ttl_ms.filter(|_| is_guess).filter(is_whole);
            change.rows.push((name, row));
        }
        Ok((change, answer))
    }

    fn row_to_store<A>(
        &self,
        verb: &Operation<'_, A>,
        loaded: &Loaded,
        at_now: &RowAtNow,
        write: Write,
        attempt: i64,
    ) -> StoredRow {
        let is_renewal = at_now.row.as_ref().is_some_and(|row| row.token == write.token);
        let tenure = write.tenure.map(|(owner, until_ms)| {
            let lasts_ms = until_ms.saturating_sub(at_now.now_ms);
            let ttl_ms = match verb.ttl_ms {
                // A renewal never shortens: the holder keeps the time that is left of the lease.
                // It prolongs less than it was asked to if limits say so.
                Some(ttl_ms) if self.counts(loaded) && is_renewal => {
                    ttl_ms.min(lasts_ms).max(at_now.left_ms)
                }
                Some(ttl_ms) if self.counts(loaded) => ttl_ms,
                _ => lasts_ms,
            };
            StoredTenure { owner, until_ms, ttl_ms }
        });
        let before = at_now.loaded.row.as_ref();
        let ends_tenure = before.is_some_and(|before| {
            let is_handed_over = verb.kind == Kind::OnLive && before.token != write.token;
            before.tenure.is_some() && (tenure.is_none() || is_handed_over)
        });
        let ended = if ends_tenure { attempt } else { before.map_or(0, |before| before.ended) };
        let (token, at_ms) = (write.token, at_now.now_ms);
        let since_ms = match before {
            Some(before) if is_renewal || tenure.is_none() => before.since_ms,
            _ => at_ms,
        };
        StoredRow { token, tenure, since_ms, at_ms, attempt, ended }
    }

    /// Returns what the rule answers for a change that was stored as of the engine's own clock, if
    /// that was later than the change has it.
    ///
    /// A clock that a failover has set forward can be past the end of the lease that was renewed.
    /// The rule would then grant a new lease, which is not what was stored.
    fn answer_at<A>(
        &self,
        verb: &Operation<'_, A>,
        seen: &Loaded,
        change: &Change,
        server_ms: i64,
    ) -> Option<A> {
        let (_, row) = change.rows.first().filter(|_| change.lasts_ms.is_some())?;
        if server_ms <= row.at_ms {
            return None;
        }
        let at_now = self.row_at_now(seen, seen.rows.first()?).ok()?;
        let at_now = RowAtNow { now_ms: server_ms, ..at_now };
        let decision = (verb.decide)(&at_now, seen.floor.epoch.floor).ok()?;
        decision.write.filter(|write| write.token == row.token).map(|_| decision.answer)
    }

    /// Checks whether leases are counted instead of compared with a clock.
    fn counts(&self, loaded: &Loaded) -> bool {
        self.when.is_none() && loaded.server_ms.is_none()
    }

    /// Stores the written row in the cache and answers, unless the lease is over by now.
    fn stored<A>(
        &self,
        verb: &Operation<'_, A>,
        times: Times,
        loaded: &Loaded,
        change: &Change,
        answer: A,
    ) -> Result<Answered<A>> {
        let now = self.shared.host.monotonic();
        let since = times.started;
        let seen = loaded.rows.first().ok_or_else(|| missing_row(verb.name))?;
        let tenure = seen.row.as_ref().and_then(|row| Some((row.token, row.tenure.as_ref()?)));
        let version = seen.version;
        let has_written = !change.rows.is_empty();
        let Some((token, tenure)) = tenure else {
            self.cache().forget(&seen.name);
            return Ok(Answered { answer, since, version, left_ms: 0, lasts_ms: 0 });
        };
        {
            let mut cache = self.cache();
            if has_written {
                let of = (version, loaded.incarnation);
                cache.begin(&seen.name, of, now, Some(since));
            }
            if has_written || cache.known(&seen.name).is_some() {
                cache.wrote(&seen.name, Known { loaded: loaded.clone(), at: times.asked });
            }
        }
        let ttl_ms = verb.ttl_ms.map(|ttl_ms| ttl_ms.min(tenure.ttl_ms));
        if let (true, Some(ttl_ms), None) = (has_written, ttl_ms, self.when)
            && millis(now.saturating_sub(since)) >= ttl_ms
        {
            return Err(Error::ExpiredOnArrival(Lease {
                name: seen.name.clone(),
                owner: tenure.owner.clone(),
                token,
                expires_at_ms: tenure.until_ms,
            }));
        }
        let lasts_ms = tenure.ttl_ms;
        Ok(Answered { answer, since, version, left_ms: 0, lasts_ms })
    }
}

/// Where a commit is made: in this incarnation of the engine, on its own, and a failover may lose
/// it.
pub(crate) fn context(loaded: &Loaded) -> CommitContext {
    CommitContext { boot: loaded.incarnation, may_lose_commits: true, is_own: true }
}

/// Returns the row of a change, at a time of the engine's own clock.
fn as_of(mut change: Change, server_ms: i64) -> Change {
    if let Some(lasts_ms) = change.lasts_ms {
        change.rows.iter_mut().for_each(|(_, row)| *row = row.as_of(server_ms, lasts_ms));
    }
    change
}

/// Returns the rows that a load would return after a change to the one row of `loaded`.
fn after(mut loaded: Loaded, change: &Change, version: i64) -> Loaded {
    if let Some(epoch) = change.floor {
        loaded.floor = TokenFloor { epoch, version };
    }
    for (seen, (_, row)) in loaded.rows.iter_mut().zip(&change.rows) {
        (seen.version, seen.row) = (version, Some(row.clone()));
    }
    for (seen, (_, side)) in loaded.rows.iter_mut().zip(&change.sides) {
        seen.sides.retain(|found| found.kind != side.kind);
        seen.sides.push(SideRow { version, ..side.clone() });
    }
    loaded
}

/// Checks whether this attempt has stored the change, and the row is still as it left it. What is
/// beside a row stays there when another client is granted the name, so it shows nothing about a
/// change of the row itself.
fn is_of(row: &LoadedRow, attempt: i64, change: &Change) -> bool {
    let Some(found) = &row.row else { return false };
    if !change.rows.is_empty() {
        return found.attempt == attempt;
    }
    row.sides.iter().any(|side| side.attempt == attempt && side.token == found.token)
}

/// Checks whether this attempt has ended a tenure, and at most the next grant came after it.
pub(crate) fn has_ended_by(row: &LoadedRow, attempt: i64) -> bool {
    row.row.as_ref().is_some_and(|row| row.ended == attempt)
}

fn unknown_after<A>(sent: &Option<UnconfirmedWrite<A>>, error: Error) -> Error {
    match sent {
        Some(sent) => Error::CommitUnknown(sent.reason.clone()),
        None => error,
    }
}

pub(crate) fn missing_row(name: &str) -> Error {
    Error::InvalidLeaseRow { name: name.into(), reason: "the engine did not return it".into() }
}

pub(crate) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
