//! Leases on a server, through `litelease-client`.

use std::collections::BTreeMap;
use std::env;
use std::time::{Duration, Instant};

use litelease::rusqlite::types::Value;
use litelease::{
    ClaimResult, HistoryRow, HolderKind, Identity, KEPT, Lease, LeaseRow, PoolInfo, Reason, SlotRow,
};
use litelease_client::{
    Client, Error, Event, Grant, Held, HoldOptions, KnownName, Lease as ServedLease, News,
    PoolOfLabel, PoolOfName, Slot, SlotInfo, Watch,
};

use litelease_hold::Holder;

use super::file::{busy, none_free, not_named};
use super::queues::stored;
use super::{
    Claim, GrantArgument, HistoryRequest, HoldRequest, ListedPool, Rejection, Seen, Tenure,
    Variable, Verdict, grants, note, of_lease, of_slot, ticks,
};
use crate::exit::{Failure, Result};
use crate::output::printable;

pub(crate) struct Server {
    pub(super) url: String,
    pub(super) client: Client,
}

/// How long the end of a hold is tried to be told to the server.
const PATIENCE: Duration = Duration::from_secs(30);

/// The longest note that a server takes, in bytes.
const LONGEST_NOTE: usize = 200;

impl Server {
    pub(super) fn open(url: &str) -> Result<Self> {
        let client = Client::open(url).map_err(failure)?;
        Ok(Server { url: url.trim_end_matches('/').into(), client })
    }

    pub(super) fn with_note(self, flag: &str, note: &str) -> Result<Self> {
        if note.len() > LONGEST_NOTE {
            let text =
                format!("{flag} has {} bytes: at most {LONGEST_NOTE} are allowed", note.len());
            return Err(Failure::usage(text));
        }
        Ok(Server { client: self.client.with_note(note), url: self.url })
    }

    /// Returns the grant that a command line means: its secret is in the environment, or was kept
    /// when it was claimed.
    fn find(&self, meant: &GrantArgument) -> Result<Grant> {
        let GrantArgument { name, token, .. } = meant;
        let is_its_name = env::var("LITELEASE_NAME").map_or(true, |other| other == *name);
        let own_token = || env::var("LITELEASE_TOKEN").ok()?.parse::<i64>().ok();
        let is_its_token = token.is_none() || own_token().is_none_or(|own| Some(own) == *token);
        let given = env::var("LITELEASE_GRANT").ok().filter(|_| is_its_name && is_its_token);
        let secret = match (given, token) {
            (Some(secret), _) => secret,
            (None, None) => return Err(not_named(name)),
            (None, Some(token)) => grants::find(&self.url, name, *token).ok_or_else(|| {
                let name = printable(name);
                Failure::usage(format!(
                    "{name} with token {token} was not claimed by this user on this machine: put the \
                     secret that litelease claim --json printed into $LITELEASE_GRANT"
                ))
            })?,
        };
        Ok(Grant::with_secret(&secret))
    }

    pub(super) fn history(&self, wanted: &HistoryRequest<'_>) -> Result<(Vec<HistoryRow>, bool)> {
        let HistoryRequest { name, kind, since_ms, limit } = *wanted;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let found = self.client.history(name, kind, since_ms, limit).map_err(failure)?;
        Ok((found.events.into_iter().map(event).collect(), found.is_on))
    }

    pub(super) fn verdict<T>(&self, done: std::result::Result<T, Error>) -> Result<Verdict<T>> {
        let (word, by, current) = match done {
            Ok(done) => return Ok(Verdict::Done(done)),
            Err(Error::Rejected { reason, by, current }) => (reason, by, current),
            Err(error) => return Err(failure(error)),
        };
        let reason = Reason::from_word(&word, by);
        Ok(Verdict::Rejected(Rejection {
            reason: reason.map_or(word.replace('_', " "), |reason| reason.to_string()),
            is_unknown: reason == Some(Reason::NeverClaimed),
            current: current.map(|current| info(*current)),
        }))
    }
}

/// Returns a lease as it is shown. Its end is counted on this machine's clock.
fn info(lease: ServedLease) -> Lease {
    Lease::from(&lease)
}

/// Returns when so much time is over, on this machine's clock.
pub(super) fn end_ms(left: Duration) -> i64 {
    let left_ms = i64::try_from(left.as_millis()).unwrap_or(i64::MAX);
    litelease::now_ms().saturating_add(left_ms)
}

/// Returns when something began, on this machine's clock.
fn since_ms(held_for: Option<Duration>) -> Option<i64> {
    let held_ms = held_for.map(|held_for| i64::try_from(held_for.as_millis()).unwrap_or(i64::MAX));
    held_ms.map(|held_ms| litelease::now_ms().saturating_sub(held_ms))
}

fn row(lease: ServedLease) -> LeaseRow {
    let since_ms = since_ms(lease.held_for);
    let Lease { name, owner, token, expires_at_ms } = info(lease);
    LeaseRow { name, tenure: Some((owner, expires_at_ms)), token, since_ms }
}

/// Returns a name, held or free, with its end on this machine's clock.
fn known_row(known: KnownName) -> LeaseRow {
    let end_ms = known.left_ms.map(|left_ms| litelease::now_ms().saturating_add(left_ms));
    let (tenure, since_ms) = (known.owner.zip(end_ms), since_ms(known.held_for));
    LeaseRow { name: known.name, tenure, token: known.token, since_ms }
}

/// Returns a held slot as it is shown, with its end on this machine's clock.
fn slot_row(slot: SlotInfo) -> SlotRow {
    let (position, token) = (slot.position, slot.token);
    let expires_at_ms = slot.expires_in.map_or(KEPT, end_ms);
    let slot_info = litelease::SlotInfo { position, token, expires_at_ms };
    SlotRow { slot: slot_info, note: slot.note, kept_since_ms: None }
}

/// Returns what an error of the client means for the command.
pub(crate) fn failure(error: Error) -> Failure {
    match error {
        Error::Busy(current) => busy(&info(*current)),
        Error::InvalidUrl(_) | Error::InvalidPool | Error::TtlTooShort(_) => Failure::usage(error),
        Error::Insecure | Error::InvalidWorker(_) => Failure::usage(error),
        Error::Access(error) => {
            let text = format!(
                "cannot read the file with the access key, $LITELEASE_ACCESS_FILE: {error}"
            );
            Failure::failed("Access", text)
        }
        Error::Refused { status: status @ (401 | 403), text } => {
            let hint = if status == 401 { "; name its file in $LITELEASE_ACCESS_FILE" } else { "" };
            Failure::failed("Access", format!("{text}{hint}"))
        }
        Error::TickInFuture { .. } => Failure::failed("TickInFuture", error),
        Error::TickAhead { .. } => Failure::failed("TickAhead", error),
        error => Failure::failed("Server", error),
    }
}

impl Server {
    pub(super) fn variables(&self) -> Vec<Variable> {
        vec![("LITELEASE_SERVER", Some((&self.url).into())), ("LITELEASE_DB", None)]
    }

    pub(super) fn claim(&self, claim: &Claim<'_>) -> Result<ClaimResult> {
        let Claim { name, owner, ttl, wait, above } = *claim;
        let above = above.unwrap_or_default();
        let grant = match self.client.claim_above(name, owner, ttl, wait, above) {
            Ok(grant) => grant,
            Err(Error::Busy(current)) => return Ok(ClaimResult::Busy(info(*current))),
            Err(error) => return Err(failure(error)),
        };
        let lease = info(grant.lease.clone());
        let until_ms = lease.expires_at_ms;
        let kept = grants::keep(&self.url, name, lease.token, grant.secret(), until_ms);
        if let Err(failure) = kept {
            // Without its secret it could not be renewed or released.
            let _ = self.client.release(&grant);
            return Err(failure);
        }
        Ok(ClaimResult::Acquired(lease))
    }

    pub(super) fn renew(&self, meant: &GrantArgument, ttl: Duration) -> Result<Verdict<Lease>> {
        let grant = self.find(meant)?;
        let renewed = self.client.renew(&grant, ttl).map(|grant| info(grant.lease));
        if let Ok(lease) = &renewed {
            // The secret is needed for as long as the lease; where it was not kept, it is not now.
            let (token, until_ms) = (lease.token, lease.expires_at_ms);
            if grants::find(&self.url, &meant.name, token).is_some() {
                let _ = grants::keep(&self.url, &meant.name, token, grant.secret(), until_ms);
            }
        }
        self.verdict(renewed)
    }

    pub(super) fn release(&self, meant: &GrantArgument) -> Result<Verdict<(String, i64)>> {
        let released = self.client.end(&self.find(meant)?);
        let known = |(name, token): (String, i64)| match name.is_empty() {
            true => (meant.name.clone(), meant.token.unwrap_or_default()),
            false => (name, token),
        };
        self.verdict(released.map(known))
    }

    pub(super) fn transfer(
        &self,
        meant: &GrantArgument,
        to: &str,
        ttl: Duration,
    ) -> Result<Verdict<Lease>> {
        let handed = self.client.transfer(&self.find(meant)?, to, ttl);
        self.verdict(handed.map(info))
    }

    pub(super) fn progress(&self, meant: &GrantArgument) -> Result<Verdict<(String, i64)>> {
        let noted = self.client.progress(&self.find(meant)?);
        let token = meant.token.or(meant.run.as_ref().map(|(_, token)| *token));
        let done = noted.map(|()| (meant.name.clone(), token.unwrap_or_default()));
        self.verdict(done)
    }

    pub(super) fn take_back(&self, lease: &Lease) -> Result<Verdict<(String, i64)>> {
        let (name, token, ttl) = (&lease.name, lease.token, Duration::from_secs(30));
        let grant = match grants::find(&self.url, name, token) {
            Some(secret) => Grant::with_secret(&secret),
            // It was transferred, and its new owner has not fetched it yet.
            None => {
                let fetched = self.client.claim(name, &lease.owner, ttl, Duration::ZERO);
                fetched.map_err(failure)?
            }
        };
        self.verdict(self.client.end(&grant))
    }

    pub(super) fn inspect(&self, name: &str) -> Result<Option<Lease>> {
        Ok(self.client.inspect(name).map_err(failure)?.lease.map(info))
    }

    pub(super) fn row(&self, name: &str) -> Result<Option<LeaseRow>> {
        Ok(self.client.inspect(name).map_err(failure)?.lease.map(row))
    }

    pub(super) fn value(&self, name: &str) -> Result<Option<Value>> {
        Ok(self.client.value(name).map_err(failure)?.map(stored))
    }

    pub(super) fn list(&self, all: bool) -> Result<Vec<LeaseRow>> {
        if all {
            return Ok(self
                .client
                .names("")
                .map_err(failure)?
                .into_iter()
                .map(known_row)
                .collect());
        }
        let leases = self.client.leases("").map_err(failure)?;
        Ok(leases.into_iter().map(row).collect())
    }

    pub(super) fn pools(&self) -> Result<Vec<(String, PoolInfo)>> {
        let pools = self.client.pools("").map_err(failure)?;
        let info = |pool: &PoolOfName| PoolInfo { count: pool.count, in_use: pool.in_use };
        Ok(pools.into_iter().map(|pool| (pool.name.clone(), info(&pool))).collect())
    }

    pub(super) fn all_pools(&self) -> Result<Vec<ListedPool>> {
        let pool = |pool: PoolOfLabel| {
            let PoolOfLabel { label, count, in_use, slots, waiters, waiting, .. } = pool;
            let held = slots.into_iter().map(slot_row).collect();
            let notes = waiting.into_iter().map(|waiter| waiter.note).collect();
            let waiters = Some((waiters, notes));
            ListedPool { label, info: PoolInfo { count, in_use }, held, waiters }
        };
        Ok(self.client.all_pools().map_err(failure)?.into_iter().map(pool).collect())
    }

    pub(super) fn slots(&self, name: &str) -> Result<Vec<SlotRow>> {
        Ok(self.client.slots(name).map_err(failure)?.into_iter().map(slot_row).collect())
    }

    pub(super) fn wait_free(&self, name: &str, wait: Duration) -> Result<Option<Lease>> {
        let (begin, watch) = (Instant::now(), self.client.watch_name(name));
        // Asked at once: the time to wait may be short.
        let mut current = self.inspect(name)?;
        while current.is_some() {
            let left = wait.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(current);
            }
            let Some(news) = watch.next(left.min(LONGEST)).map_err(failure)? else { continue };
            current = news.live.into_iter().map(info).next_back();
        }
        Ok(None)
    }

    pub(super) fn watch(&self, names: &[String]) -> Result<Watching> {
        let watch = match names {
            [name] => self.client.watch_name(name),
            names => self.client.watch(&common_start(names)),
        };
        // With a client that has no threads, to ask how a lease has ended.
        let server = Server::open(&self.url)?;
        // The first news is the present state.
        let (seen, news) = (BTreeMap::new(), watch.next(FIRST).map_err(failure)?);
        Ok(Watching { server, watch, names: names.to_vec(), seen, news })
    }

    pub(super) fn hold(&self, wanted: &HoldRequest) -> Result<Tenure> {
        let options = HoldOptions::new(wanted.ttl).wait(wanted.wait).cancel(wanted.cancel.clone());
        if let Some(count) = wanted.slots {
            let options = options.progress_within(wanted.progress_within).max_time(wanted.max_time);
            // As with names, no process on the server's file judges whether a client is dead.
            let note = note(HolderKind::Claim);
            let slot = self.client.hold_slot(&wanted.name, count, options, &note);
            let slot = slot.map_err(|error| match error {
                Error::NoneFree => {
                    let held = self.slots(&wanted.name).unwrap_or_default();
                    none_free(&held, &wanted.name, i64::from(count))
                }
                error => failure(error),
            })?;
            return Ok(lent(&wanted.name, slot));
        }
        // The process as its own host sees it: the server may run elsewhere.
        let me = Holder::find(&Identity::new(HolderKind::Hold).to_string());
        let options = match me {
            Some(me) => options.process(&me.user, &me.line()),
            None => options,
        };
        let options = match &wanted.tick {
            Some((tick, schedule)) => options.tick(*tick).schedule(schedule),
            None => options,
        };
        let tick = || self.client.newest_tick(&wanted.name).ok().flatten();
        let held = self.client.hold(&wanted.name, options).map_err(|error| match error {
            Error::Busy(current) => ticks::busy(tick, wanted, &info(*current)),
            Error::TickTaken(newest) => ticks::taken(tick(), wanted, newest),
            error => failure(error),
        })?;
        // If one of these fails, the lease is released again.
        if wanted.progress_within.is_some() || wanted.max_time.is_some() {
            let limited = self.client.limit(held.grant(), wanted.progress_within, wanted.max_time);
            limited.map_err(failure)?;
        }
        if let Some(value) = &wanted.value {
            self.client.attach(held.grant(), value.as_str()).map_err(failure)?;
        }
        let mut variables = of_lease(&held.lease(), Some(held.secret()));
        let begun = held.grant().tick.as_ref();
        variables.extend(ticks::variables(wanted, begun.and_then(|begun| begun.previous_ms)));
        let finish = begun.map(|_| ticks::finish_at(&self.client, held.grant()));
        Ok(Tenure { finish, ..kept(held, variables) })
    }
}

/// The longest time between two reads of the clock.
const LONGEST: Duration = Duration::from_secs(3600);

/// Returns how all of these names begin.
fn common_start(names: &[String]) -> String {
    let Some((first, others)) = names.split_first() else { return String::new() };
    let is_start = |end: &usize| others.iter().all(|name| name.starts_with(&first[..*end]));
    let ends = (0..=first.len()).rev().filter(|end| first.is_char_boundary(*end));
    ends.into_iter().find(is_start).map_or_else(String::new, |end| first[..end].to_owned())
}

/// Returns the tenure of a slot.
pub(crate) fn lent(name: &str, slot: Slot) -> Tenure {
    let variables = of_slot(name, slot.position, slot.held.token());
    kept(slot.held, variables)
}

/// Returns the tenure of a lease or a slot.
fn kept(held: Held, variables: Vec<Variable>) -> Tenure {
    Tenure { patience: PATIENCE, ..Tenure::new(held, variables) }
}

/// Receives the changes that the server reports.
pub(crate) struct Watching {
    pub(super) server: Server,
    watch: Watch,
    names: Vec<String>,
    seen: BTreeMap<String, Seen>,
    news: Option<News>,
}

impl Watching {
    pub(super) fn read(&mut self) -> Result<BTreeMap<String, Seen>> {
        if let Some(news) = self.news.take() {
            let over: Vec<String> = match news.is_whole {
                // A name that a whole report lacks has ended meanwhile.
                true => self.seen.keys().cloned().collect(),
                false => news.ended,
            };
            let values = news.values;
            let live: Vec<LeaseRow> = news.live.into_iter().map(row).collect();
            for name in over.into_iter().filter(|name| live.iter().all(|row| row.name != *name)) {
                self.ended(&name);
            }
            for row in live {
                if self.names.is_empty() || self.names.contains(&row.name) {
                    let name = row.name.clone();
                    let value = values.iter().find(|(of, _)| *of == name);
                    let value = value.map(|(_, value)| stored(value.clone()));
                    self.seen.insert(name, Seen { row, value, was_live: true });
                }
            }
        }
        Ok(self.seen.clone())
    }

    pub(super) fn wait_for_change(&mut self, left: Duration) -> Result<()> {
        // The server reports expiries, too.
        self.news = self.watch.next(left.min(LONGEST)).map_err(failure)?;
        Ok(())
    }

    /// Records that a lease has ended: the server has its newest token, and its end was known.
    fn ended(&mut self, name: &str) {
        let Some(seen) = self.seen.get_mut(name).filter(|seen| seen.was_live) else { return };
        let newest = self.server.client.inspect(name).ok().and_then(|name| name.token);
        let is_expired = seen.tenure().is_some_and(|end_ms| end_ms <= litelease::now_ms());
        seen.was_live = false;
        match newest {
            Some(token) if token > seen.row.token => {
                (seen.row.token, seen.row.tenure) = (token, None);
            }
            _ if !is_expired => seen.row.tenure = None,
            _ => {}
        }
    }
}

/// How long to wait for the first news.
const FIRST: Duration = Duration::from_secs(30);

fn event(event: Event) -> HistoryRow {
    let held_ms = event.held_for.map(|held| i64::try_from(held.as_millis()).unwrap_or(i64::MAX));
    HistoryRow {
        id: event.id,
        at_ms: event.at_ms,
        since_ms: held_ms.map(|held_ms| event.at_ms.saturating_sub(held_ms)),
        kind: event.kind,
        object: event.object,
        name: event.name,
        owner: event.owner,
        token: event.token,
        number: event.number,
        result: event.result,
        actor: event.actor,
        note: event.note,
    }
}
