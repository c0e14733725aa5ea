//! Reads for requests, between two commits.

use litelease::{Error, LeaseRow, Litelease, Scope};
use litelease_store::{Store, Value, WalkedRow};
use litelease_wire::{Checkpoint, Waiter};

use super::payloads;
use super::wait_lists::WaitLists;
use crate::access::{Caller, Keys, Which};
use crate::answer::{Attachments, LeaseWithRemaining};
use crate::job::{Id, JobError};
use crate::metrics::{MOST_NAMES, OTHERS};
use crate::value;

/// How many rows one page of leases may read, because other requests wait meanwhile.
const MOST_ROWS: usize = 10_000;

/// How many of the requests that wait for a name are shown.
const MOST_WAITERS: usize = 100;

/// The longest value that a page of leases shows, in bytes.
const MOST_VALUE: usize = 1024;

/// The state between two commits, and the access keys of its readers.
pub(crate) struct Reader<'a> {
    pub(super) db: &'a Litelease,
    pub(super) keys: &'a Keys,
    pub(super) waiting: &'a WaitLists,
    /// Names are rows of an engine, of which some belong to the service and are in no list.
    pub(super) is_on_engine: bool,
    pub(crate) now_ms: i64,
}

/// A name, whether it is live or not.
pub(crate) struct NameState {
    pub(crate) token: Option<i64>,
    pub(crate) current: Option<LeaseWithRemaining>,
    pub(crate) waiters: usize,
    pub(crate) waiting: Vec<Waiter>,
}

/// A name of a page: with its lease, or the row of its last one.
pub(crate) type KnownName = Result<LeaseWithRemaining, LeaseRow>;

impl Reader<'_> {
    /// Checks whether a client may do something.
    pub(crate) fn check(
        &self,
        caller: Caller,
        scope: Scope,
        names: &Which,
    ) -> Result<(), JobError> {
        self.keys.check(caller, scope, names.names(), self.now_ms)
    }

    /// Checks whether a client may do something that one of several scopes allows.
    pub(crate) fn check_any(
        &self,
        caller: Caller,
        scopes: &[Scope],
        names: &Which,
    ) -> Result<(), JobError> {
        let mut checked = Ok(());
        for scope in scopes {
            checked = self.check(caller, *scope, names);
            if checked.is_ok() {
                break;
            }
        }
        checked
    }

    /// Checks whether a client has a valid key, whatever that allows.
    pub(crate) fn check_key(&self, caller: Caller) -> Result<(), JobError> {
        self.keys.check_key(caller, self.now_ms)
    }

    /// Returns how many seconds ago the newest tick of each name was planned that was done. Of more
    /// names than metrics may have, the oldest one stands for the others.
    pub(crate) fn ticks_done(&self) -> Result<Vec<(String, f64)>, JobError> {
        let ticks = self.read(|db, now_ms| db.at(now_ms).ticks())?;
        let age = |done_ms: i64| self.now_ms.saturating_sub(done_ms) as f64 / 1000.0;
        let ages = ticks.into_iter().map(|info| (info.name, info.tick.newest_done_ms().map(age)));
        let mut ages = ages.filter_map(|(name, age)| Some((name, age?)));
        let mut done: Vec<(String, f64)> = ages.by_ref().take(MOST_NAMES).collect();
        let others = ages.map(|(_, age)| age).reduce(f64::max);
        done.extend(others.map(|age| (OTHERS.to_owned(), age)));
        Ok(done)
    }

    /// Runs another read of the database.
    pub(crate) fn read<T>(
        &self,
        read: impl FnOnce(&Litelease, i64) -> Result<T, Error>,
    ) -> Result<T, JobError> {
        read(self.db, self.now_ms).map_err(failed)
    }

    /// Reads the latest checkpoint of a name.
    pub(crate) fn last_checkpoint(&self, name: &str) -> Result<Checkpoint, JobError> {
        let found = self.db.last_checkpoint(name).map_err(failed)?;
        Ok(Checkpoint {
            name: name.into(),
            token: found.as_ref().map(|found| found.token),
            updated_at_unix: found.as_ref().map(|found| found.updated_at_ms.div_euclid(1000)),
            value: found
                .map_or(litelease_wire::Value::Null, |found| value::from_stored(found.value)),
        })
    }

    /// Reads one name.
    pub(crate) fn name(&self, name: &str) -> Result<NameState, JobError> {
        let (waiters, waiting) = self.waiting(&Id::Name(name.into()), MOST_WAITERS);
        self.read(|db, now_ms| {
            let row = db.row(name)?;
            let current = row.as_ref().and_then(|row| row.row().live(now_ms));
            let current = current.map(|lease| lease.into_owned());
            let attachments = match &current {
                Some(current) => payloads::attachments(db, current, now_ms)?,
                None => None,
            };
            let since_ms = row.as_ref().and_then(|row| row.since_ms);
            let current = current.map(|lease| LeaseWithRemaining::since(since_ms, now_ms, lease));
            Ok(NameState {
                token: row.map(|row| row.token),
                current: current.map(|current| LeaseWithRemaining { attachments, ..current }),
                waiters,
                waiting,
            })
        })
    }

    /// Returns how many requests wait for a pool or name, and the first of them.
    pub(crate) fn waiting(&self, id: &Id, most: usize) -> (usize, Vec<Waiter>) {
        (self.waiting.len_of(id), self.waiting.first_of(id, most))
    }

    /// Reads a page of names: only leased ones, unless `all` asks for the others as well. Returns
    /// the name to go on after, too, if there may be more.
    pub(crate) fn page(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        all: bool,
    ) -> Result<(Vec<KnownName>, Option<String>), JobError> {
        self.read(|db, now_ms| {
            let is_own = |name: &str| self.is_on_engine && litelease_cluster::is_of_service(name);
            let keep = |walked: WalkedRow<'_>| match walked.row.live(now_ms) {
                _ if is_own(walked.row.name()) => None,
                Some(lease) => {
                    let lease =
                        LeaseWithRemaining::since(walked.since_ms, now_ms, lease.into_owned());
                    Some(Ok(with_value(lease, walked.value)))
                }
                None => all.then(|| Err(walked.into())),
            };
            db.with_store(|store: &Store| store.page(prefix, after, limit, MOST_ROWS, keep))
        })
    }
}

/// Returns a live lease of a page with its value, unless that is too long for a page.
fn with_value(lease: LeaseWithRemaining, value: Value<'_>) -> LeaseWithRemaining {
    let value = match value {
        Value::Text(text) if text.len() > MOST_VALUE => None,
        Value::Blob(bytes) if bytes.len() > MOST_VALUE => None,
        value => Some(value::from_row(value)),
    };
    let attachments = Attachments::new(value, None);
    LeaseWithRemaining { attachments, ..lease }
}

/// Returns the error that a client gets for a read that failed.
fn failed(error: Error) -> JobError {
    tracing::error!(kind = error.kind(), "the database failed");
    match error {
        Error::InvalidLeaseRow(_) | Error::SchemaMismatch { .. } => JobError::Damaged,
        _ => JobError::Database,
    }
}
