//! The player for the pure rule, which works on rows in memory.

use std::collections::BTreeMap;

use litelease_core::{
    CheckpointResult, Claimant, CommitContext, Conditions, Epoch, LeaseRow, Limits, MAX_COUNT,
    MAX_TEXT, PoolInfo, PoolSnapshot, Refusal, Request, Row, SlotInfo, State, Tenure, Term, Tick,
    has_ended, inspect, is_newest, limit, purge_limit, read_term, slot_term,
};

use crate::mutant::Rules;
use crate::play::{self, Played, Player, ToText, held, number, owner};
use crate::queue::{QueueAction, Queues, Receipts};
use crate::scenario::Action;
use crate::ticks;

/// The pure rule, on rows in memory. Transactions are copies.
pub struct RulePlayer<R> {
    rules: R,
    file: File,
    /// What to go back to: the file as it was at each open savepoint, the transaction's own first.
    savepoints: Vec<(Option<String>, File)>,
    abandoned: bool,
    receipts: Receipts,
}

#[derive(Clone, Default)]
struct File {
    rows: BTreeMap<String, Stored>,
    epoch: Epoch,
    pools: BTreeMap<String, Pool>,
    /// The values of names, each with the token it was attached under.
    values: BTreeMap<String, (i64, String)>,
    queues: Queues,
    /// When the readers of each name expire.
    readers: BTreeMap<String, BTreeMap<String, i64>>,
    limits: BTreeMap<String, Limits>,
    /// The latest request for each name.
    requests: BTreeMap<String, (String, Request)>,
    ticks: BTreeMap<String, Tick>,
}

/// A pool: its positions that were ever lent out, each with its newest token and who has it.
#[derive(Clone, Default)]
struct Pool {
    count: i64,
    slots: BTreeMap<i64, (i64, Option<SlotLease>)>,
}

#[derive(Clone)]
struct SlotLease {
    /// The names that the scenario has for it.
    names: Vec<String>,
    key: Option<String>,
    slot: SlotInfo,
}

/// Nothing is at risk in memory.
const CONTEXT: CommitContext = CommitContext { boot: 0, may_lose_commits: false, is_own: true };

#[derive(Clone)]
struct Stored {
    token: i64,
    tenure: Option<(String, i64)>,
    updated_at_ms: i64,
    since_ms: i64,
}

impl<R: Rules> RulePlayer<R> {
    /// A player with an empty file.
    pub fn new(rules: R) -> Self {
        let (file, receipts) = (File::default(), Receipts::default());
        RulePlayer { rules, file, savepoints: Vec::new(), abandoned: false, receipts }
    }

    fn write(&mut self, name: &str, state: Option<State<'_>>, now_ms: i64) {
        let Some(state) = state else { return };
        let tenure =
            state.tenure().map(|Tenure { owner, expires_at_ms }| (owner.into(), expires_at_ms));
        if let Ok(Some(needed)) = self.file.epoch.needed(state.token(), CONTEXT) {
            self.file.epoch = needed;
        }
        let before = self.file.rows.get(name);
        let row = Row::new(name, before.and_then(Stored::state));
        let since_ms = match before {
            Some(before) if !self.rules.begins_grant(row, state) => before.since_ms,
            _ => now_ms,
        };
        let stored = Stored { token: state.token(), tenure, updated_at_ms: now_ms, since_ms };
        self.file.rows.insert(name.to_owned(), stored);
    }

    fn lease_step(&mut self, now_ms: i64, action: &Action) -> Result<String, Refusal> {
        // The row is copied, so that it can be read while the file is written.
        let copy = action.name().and_then(|name| self.file.rows.get(name).cloned());
        let row =
            Row::new(action.name().unwrap_or_default(), copy.as_ref().and_then(Stored::state));
        let asked = self.file.requests.get(row.name()).cloned();
        let found = asked.as_ref().map(|(requester, request)| (requester.as_str(), *request));
        let conditions = Conditions {
            limits: self.file.limits.get(row.name()).copied(),
            request: asked.as_ref().map(|(_, request)| *request),
        };
        let floor = self.file.epoch.floor;
        let (write, answer) = match action {
            Action::Claim { owner, ttl_ms, above, .. } => {
                let floor = floor.max(above.unwrap_or(0));
                let step = self.rules.claim(row, owner, Term::new(*ttl_ms, now_ms)?, floor)?;
                (step.write, step.answer.to_text())
            }
            Action::ClaimFromDead { owner, ttl_ms, dead, token, .. } => {
                let term = Term::new(*ttl_ms, now_ms)?;
                let dead = Claimant { owner: dead, token: Some(*token) };
                let step = self.rules.claim_from_dead(row, owner, term, floor, dead)?;
                (step.write, step.answer.to_text())
            }
            Action::Renew { owner, ttl_ms, token, .. } => {
                let who = Claimant { owner, token: *token };
                let step = self.rules.renew(row, who, Term::new(*ttl_ms, now_ms)?, conditions);
                (step.write, step.answer.to_text())
            }
            Action::Release { owner, token, .. } => {
                let step = self.rules.release(row, Claimant { owner, token: *token }, now_ms);
                (step.write, step.answer.to_text())
            }
            Action::Transfer { owner, new_owner, ttl_ms, token, .. } => {
                let who = Claimant { owner, token: *token };
                let term = Term::new(*ttl_ms, now_ms)?;
                let step = self.rules.transfer(row, who, new_owner, term, floor)?;
                (step.write, step.answer.to_text())
            }
            Action::Break { .. } => {
                let step = self.rules.break_lease(row, now_ms, floor)?;
                (step.write, step.answer.to_text())
            }
            Action::Ensure { owner, ttl_ms, .. } => {
                let term = Term::new(*ttl_ms, now_ms)?;
                let step = self.rules.ensure(row, owner, term, floor, conditions)?;
                (step.write, step.answer.to_text())
            }
            Action::Inspect { .. } => (None, held(inspect(row, now_ms))),
            Action::Owner { .. } => (None, owner(inspect(row, now_ms).map(|lease| lease.owner))),
            Action::Token { .. } => (None, number(row.token())),
            Action::Since { .. } => {
                let since_ms = copy.as_ref().map(|stored| stored.since_ms);
                (None, play::since(Some(LeaseRow::new(row, since_ms)), now_ms))
            }
            Action::Attach { name, token, value } => {
                let answer = self.rules.attach(row, *token, now_ms);
                if answer.is_done() {
                    self.file.values.insert(name.clone(), (*token, value.clone()));
                }
                (None, answer.to_text())
            }
            Action::Value { name } => {
                let value = self.file.values.get(name);
                let value = value.filter(|(token, _)| self.rules.is_shown(row, *token, now_ms));
                (None, play::value(value.map(|(_, value)| value)))
            }
            Action::Read { name, reader, ttl_ms } => {
                let readers = self.file.readers.entry(name.clone()).or_default();
                let term = read_term(*ttl_ms, now_ms)?;
                let granted = self.rules.read(row, readers.get(reader).copied(), term, floor);
                readers.extend(granted.map(|read| (reader.clone(), read.expires_at_ms)));
                (None, play::version(granted.map(|read| read.version)))
            }
            Action::Unread { name, reader } => {
                let readers = self.file.readers.entry(name.clone()).or_default();
                (None, play::unread(readers.remove(reader).is_some()))
            }
            Action::Drained { name, token } => {
                let readers = self.file.readers.get(name);
                let last = readers.and_then(|readers| readers.values().max().copied());
                (None, play::drained(self.rules.drained(row, *token, now_ms, last)))
            }
            Action::Limit { name, token, progress_ms, until_ms } => {
                let limits = Limits::new(*token, *progress_ms, *until_ms, now_ms)?;
                let answer = limit(row, *token, now_ms);
                if answer.is_done() {
                    self.file.limits.insert(name.clone(), limits);
                }
                (None, answer.to_text())
            }
            Action::Request { name, requester, within_ms } => {
                let step = self.rules.request(row, found, requester, *within_ms, now_ms)?;
                if let Some(request) = step.write {
                    self.file.requests.insert(name.clone(), (requester.clone(), request));
                }
                (None, step.answer.to_text())
            }
            Action::Withdraw { name, requester } => {
                let is_theirs = found.is_some_and(|(found, request)| {
                    found == requester && row.token() == Some(request.token)
                });
                if is_theirs {
                    self.file.requests.remove(name);
                }
                (None, play::withdrawn(is_theirs))
            }
            Action::Requested { .. } => {
                let open = found.filter(|(_, request)| self.rules.is_open(*request, row, now_ms));
                let told = |(requester, open): (_, Request)| (requester, open.until_ms, open.token);
                (None, play::requested(open.map(told)))
            }
            Action::HandOver { owner, ttl_ms, token, .. } => {
                let who = Claimant { owner, token: *token };
                let term = Term::new(*ttl_ms, now_ms)?;
                let step = self.rules.hand_over(row, who, found, term, floor)?;
                (step.write, step.answer.to_text())
            }
            Action::TakeOver { owner, ttl_ms, .. } => {
                let step = self.rules.take_over(row, owner, Term::new(*ttl_ms, now_ms)?, floor)?;
                (step.write, step.answer.to_text())
            }
            Action::Ticks(action) => {
                let ticks = &mut self.file.ticks;
                ticks::by_rule(&self.rules, ticks, row, floor, now_ms, action)?
            }
            Action::Progress { name, token } => {
                let answer = self.rules.progress(row, *token, now_ms);
                if answer.is_done() {
                    self.note_progress(name, *token, now_ms);
                }
                (None, answer.to_text())
            }
            Action::Checkpoint { name, token, .. } => {
                let answer = match is_newest(row, *token) {
                    true => CheckpointResult::Stored,
                    false => CheckpointResult::Stale { newest: row.token() },
                };
                if answer == CheckpointResult::Stored {
                    self.note_progress(name, *token, now_ms);
                }
                (None, play::checkpoint(answer, *token))
            }
            Action::Purge { before_ms } => return Ok(self.purge(*before_ms, now_ms)),
            Action::Pool { .. }
            | Action::Borrow { .. }
            | Action::Return { .. }
            | Action::RenewSlot { .. }
            | Action::DeletePool { .. }
            | Action::Keep { .. }
            | Action::Slots { .. } => return self.pool_step(now_ms, action),
            Action::Queue(QueueAction::Fence) => return self.fence(now_ms),
            Action::Queue(action) => {
                let File { queues, epoch, .. } = &mut self.file;
                let answer =
                    queues.step(&self.rules, &mut self.receipts, *epoch, now_ms, action)?;
                if let Some(needed) = epoch.needed(queues.newest(), CONTEXT)? {
                    *epoch = needed;
                }
                return Ok(answer);
            }
            _ => return Ok(self.transaction_step(action)),
        };
        if matches!(action, Action::Transfer { .. } | Action::HandOver { .. }) {
            self.carry_tick(row, write);
        }
        self.write(row.name(), write, now_ms);
        Ok(answer)
    }

    fn carry_tick(&mut self, row: Row<'_>, write: Option<State<'_>>) {
        let stored = self.file.ticks.get(row.name()).copied();
        if let (Some(from), Some(state)) = (row.token(), write)
            && let Some(tick) = self.rules.carry_tick(stored, from, state.token())
        {
            self.file.ticks.insert(row.name().into(), tick);
        }
    }

    fn note_progress(&mut self, name: &str, token: i64, now_ms: i64) {
        let limits = self.file.limits.get_mut(name);
        if let Some(limits) = limits.filter(|limits| limits.token == token) {
            limits.progress_at_ms = now_ms;
        }
    }

    fn pool_step(&mut self, now_ms: i64, action: &Action) -> Result<String, Refusal> {
        let File { epoch, pools, .. } = &mut self.file;
        let newest = |pool: &Pool| pool.slots.values().map(|slot| slot.0).max().unwrap_or(0);
        let newest_of_all = pools.values().map(newest).max().unwrap_or(0);
        let no_such_pool = || Ok("error NoSuchPool".to_owned());
        Ok(match action {
            Action::Pool { count, .. } if !(0..=MAX_COUNT).contains(count) => {
                "error InvalidCount".into()
            }
            Action::Pool { pool, count } => {
                let pool = pools.entry(pool.clone()).or_default();
                pool.count = *count;
                play::pool(pool.info(&self.rules, now_ms))
            }
            Action::Borrow { key: Some(key), .. } if !(1..=MAX_TEXT).contains(&key.len()) => {
                "error InvalidText".into()
            }
            Action::Borrow { pool, lease, ttl_ms, key } => {
                let term = slot_term(*ttl_ms, now_ms)?;
                let Some(pool) = pools.get_mut(pool) else { return no_such_pool() };
                let is_kept =
                    |lease_of_slot: &&mut SlotLease| key.is_some() && lease_of_slot.key == *key;
                let kept = pool.live(&self.rules, now_ms).find(is_kept);
                if let Some(lease_of_slot) = kept {
                    lease_of_slot.names.push(lease.clone());
                    return Ok(play::slot(Some(lease_of_slot.slot)));
                }
                for (_, lease_of_slot) in pool.slots.values_mut() {
                    lease_of_slot.take_if(|lease_of_slot| {
                        !self.rules.is_slot_live(lease_of_slot.slot, now_ms)
                    });
                }
                let is_lent = |position: &i64| {
                    pool.slots
                        .get(position)
                        .is_some_and(|(_, lease_of_slot)| lease_of_slot.is_some())
                };
                let lowest = (0..).find(|position| !is_lent(position)).unwrap_or(i64::MAX);
                let snapshot = PoolSnapshot { info: pool.info(&self.rules, now_ms), lowest };
                let lent = self.rules.borrow_slot(snapshot, term, newest_of_all, epoch.floor)?;
                if let Some(slot) = lent {
                    if let Some(needed) = epoch.needed(slot.token, CONTEXT)? {
                        *epoch = needed;
                    }
                    let lease_of_slot =
                        SlotLease { names: vec![lease.clone()], key: key.clone(), slot };
                    pool.slots.insert(slot.position, (slot.token, Some(lease_of_slot)));
                }
                play::slot(lent)
            }
            Action::Return { pool, lease } => {
                let Some(pool) = pools.get_mut(pool) else { return no_such_pool() };
                let is_it = |lease_of_slot: &&mut SlotLease| lease_of_slot.names.contains(lease);
                let position = pool
                    .live(&self.rules, now_ms)
                    .find(is_it)
                    .map(|lease_of_slot| lease_of_slot.slot.position);
                match position.and_then(|position| pool.slots.get_mut(&position)) {
                    Some((_, lease_of_slot)) => {
                        *lease_of_slot = None;
                        "returned".into()
                    }
                    None => "none".into(),
                }
            }
            Action::RenewSlot { pool, lease, ttl_ms } => {
                let term = slot_term(*ttl_ms, now_ms)?;
                let Some(pool) = pools.get_mut(pool) else { return no_such_pool() };
                let mut loans =
                    pool.slots.values_mut().filter_map(|(_, lease_of_slot)| lease_of_slot.as_mut());
                let lease_of_slot = loans.find(|lease_of_slot| lease_of_slot.names.contains(lease));
                let renewed = lease_of_slot.and_then(|lease_of_slot| {
                    lease_of_slot.slot = self.rules.renew_slot(lease_of_slot.slot, term)?;
                    Some(lease_of_slot.slot)
                });
                play::slot(renewed)
            }
            Action::Keep { pool, lease } => {
                let Some(pool) = pools.get_mut(pool) else { return no_such_pool() };
                let mut loans =
                    pool.slots.values_mut().filter_map(|(_, lease_of_slot)| lease_of_slot.as_mut());
                let lease_of_slot = loans.find(|lease_of_slot| lease_of_slot.names.contains(lease));
                let kept = lease_of_slot.and_then(|lease_of_slot| {
                    lease_of_slot.slot = self.rules.keep_slot(lease_of_slot.slot, now_ms)?;
                    Some("kept".into())
                });
                kept.unwrap_or_else(|| "none".into())
            }
            Action::DeletePool { pool } => match pools.remove(pool) {
                Some(pool) => {
                    let newest = self.rules.floor_after_pool(newest(&pool));
                    *epoch = epoch.raised(newest, CONTEXT)?;
                    "deleted".into()
                }
                None => "none".into(),
            },
            Action::Slots { pool } => match pools.get_mut(pool) {
                Some(pool) => play::slots(
                    pool.live(&self.rules, now_ms).map(|lease_of_slot| lease_of_slot.slot),
                ),
                None => return no_such_pool(),
            },
            _ => "error not a verb on pools".into(),
        })
    }

    fn purge(&mut self, before_ms: i64, now_ms: i64) -> String {
        let limit = purge_limit(before_ms, now_ms);
        for readers in self.file.readers.values_mut() {
            readers.retain(|_, expires_at_ms| *expires_at_ms > limit);
        }
        let (rows, epoch) = (&mut self.file.rows, &mut self.file.epoch);
        let before = rows.len();
        rows.retain(|name, row| {
            let ended = row.state().is_some_and(|state| has_ended(state, row.updated_at_ms, limit));
            if ended {
                *epoch = epoch.raised(row.token, CONTEXT).unwrap_or(*epoch);
                let tick = self.file.ticks.remove(name);
                let kept = self.rules.tick_after_purge(tick);
                self.file.ticks.extend(kept.map(|tick| (name.clone(), tick)));
            }
            !ended
        });
        (before - self.file.rows.len()).to_string()
    }

    /// Ends every lease and delivery, and raises every token.
    fn fence(&mut self, now_ms: i64) -> Result<String, Refusal> {
        let File { rows, epoch, pools, queues, .. } = &mut self.file;
        let names = rows.values().map(|row| row.token);
        let slots = pools.values().flat_map(|pool| pool.slots.values().map(|slot| slot.0));
        let newest = names.chain(slots).max().unwrap_or(0).max(queues.newest());
        let floor = epoch.floor_after_restore(newest)?;
        *epoch = epoch.raised(floor, CONTEXT)?;
        for row in rows.values_mut() {
            *row = Stored { token: floor, tenure: None, updated_at_ms: now_ms, ..*row };
        }
        for slot in pools.values_mut().flat_map(|pool| pool.slots.values_mut()) {
            slot.1 = None;
        }
        queues.fence(now_ms);
        Ok("ok".into())
    }

    fn transaction_step(&mut self, action: &Action) -> String {
        let at = |name: &str, savepoints: &[(Option<String>, File)]| {
            savepoints.iter().rposition(|(savepoint, _)| savepoint.as_deref() == Some(name))
        };
        match action {
            Action::Begin { .. } => self.savepoints.push((None, self.file.clone())),
            Action::Savepoint { name } => {
                self.savepoints.push((Some(name.clone()), self.file.clone()))
            }
            Action::Commit => self.savepoints.clear(),
            Action::Rollback => {
                if let Some((_, file)) = self.savepoints.drain(..).next() {
                    self.file = file;
                }
            }
            Action::RollbackTo { name } => match at(name, &self.savepoints) {
                Some(at) => {
                    self.savepoints.truncate(at + 1);
                    self.file = self.savepoints[at].1.clone();
                }
                None => return format!("error no savepoint {name}"),
            },
            Action::ReleaseSavepoint { name } => match at(name, &self.savepoints) {
                Some(at) => self.savepoints.truncate(at),
                None => return format!("error no savepoint {name}"),
            },
            _ => return "error not a step of the rule".into(),
        }
        "ok".into()
    }
}

impl<R: Rules> Player for RulePlayer<R> {
    fn has_ticks(&self) -> bool {
        true
    }

    fn step(&mut self, now_ms: i64, action: &Action) -> Played {
        // Without other connections, what follows in this file has no meaning here.
        self.abandoned |= matches!(action, Action::Conn { .. });
        if self.abandoned {
            return Played::Skipped("the pure rule has no connections");
        }
        Played::Answer(self.lease_step(now_ms, action).unwrap_or_else(|refusal| match refusal {
            Refusal::InvalidTtl { .. } => "error InvalidTtl".into(),
            Refusal::TimeOverflow { .. } => "error TimeOverflow".into(),
            Refusal::TokenExhausted => "error TokenExhausted".into(),
            Refusal::InvalidDelay { .. } => "error InvalidDelay".into(),
            Refusal::TtlTooLong { .. } => "error TtlTooLong".into(),
            Refusal::InvalidTime { .. } => "error InvalidTime".into(),
            Refusal::InvalidAttempts { .. } => "error InvalidAttempts".into(),
            Refusal::TickAhead { .. } => "error TickAhead".into(),
            Refusal::TickHeld { .. } => "error TickHeld".into(),
        }))
    }
}

impl Pool {
    fn live(&mut self, rules: &impl Rules, now_ms: i64) -> impl Iterator<Item = &mut SlotLease> {
        let loans = self.slots.values_mut().filter_map(|(_, lease_of_slot)| lease_of_slot.as_mut());
        loans.filter(move |lease_of_slot| rules.is_slot_live(lease_of_slot.slot, now_ms))
    }

    fn info(&mut self, rules: &impl Rules, now_ms: i64) -> PoolInfo {
        let in_use = self.live(rules, now_ms).count() as i64;
        PoolInfo { count: self.count, in_use }
    }
}

impl Stored {
    fn state(&self) -> Option<State<'_>> {
        let (owner, expires) = match &self.tenure {
            Some((owner, expires)) => (Some(owner.as_str()), Some(*expires)),
            None => (None, None),
        };
        State::stored(self.token, owner, expires)
    }
}
