//! Reads the rows of an overview, on a connection that only reads.

use std::collections::HashMap;

use litelease::{Error, Lease, LeaseRow, Litelease, QueueInfo, TickInfo};
use litelease_core::{Limits, Request};
use litelease_store::{Store, Value, When};
use litelease_wire::PoolOfLabel;

use crate::listings;

/// The most names, and the most pools, that an overview has.
pub(super) const MOST: usize = 20_000;

/// The rows of a file, at one time.
#[derive(Default)]
pub struct Rows {
    pub(super) names: Vec<LiveName>,
    /// How many names are free.
    pub(super) free: i64,
    pub(super) queues: Vec<QueueInfo>,
    /// Each with its id, which is not to be shown.
    pub(super) pools: Vec<(String, PoolOfLabel)>,
    pub(super) ticks: Vec<TickInfo>,
    /// How many rows of history are kept, if there is one.
    pub(super) history: Option<i64>,
    /// The identity of each session, its token, and how many names it has.
    pub(super) sessions: Vec<(String, i64, i64)>,
    pub(super) limits: HashMap<String, Limits>,
    /// The requester and the request for each name.
    pub(super) requests: HashMap<String, (String, Request)>,
}

/// A live lease.
pub(super) struct LiveName {
    pub(super) lease: Lease,
    pub(super) since_ms: Option<i64>,
    pub(super) renewed_at_ms: Option<i64>,
    /// The number of shards that a member of a group counts with.
    pub(super) shards: Option<i64>,
}

impl Rows {
    /// Reads all rows under a prefix.
    pub fn read(db: &Litelease, prefix: &str, now_ms: i64) -> Result<Self, Error> {
        let is_under = |name: &str| name.starts_with(prefix);
        let when = When::At(now_ms);
        let mut rows = Rows::default();
        db.with_store(|store| rows.read_names(store, prefix, now_ms))?;
        rows.queues = db.with_store(|store| store.queues_under(prefix, None, MOST, when))?;
        let (mut after, mut next) = (-1, Some(String::new()));
        while next.is_some() && rows.pools.len() < MOST {
            let (page, more) = listings::all_pools(db, after, 1000, now_ms)?;
            rows.pools.extend(page);
            next = more;
            after = next.as_ref().and_then(|next| next.parse().ok()).unwrap_or(i64::MAX);
        }
        // Pools without a name are for keys that may see every name.
        let is_named = |id: &str, label: &str| litelease::pool_of_name(label) == id;
        let is_shown = |id: &str, label: &str| is_named(id, label) && is_under(label);
        rows.pools.retain(|(id, pool)| prefix.is_empty() || is_shown(id, &pool.label));
        rows.ticks = db.ticks()?;
        rows.ticks.retain(|tick| is_under(&tick.name));
        rows.history = db.history_keeps()?;
        rows.sessions = db.with_store(|store| store.all_sessions())?;
        rows.sessions.retain(|(identity, ..)| is_under(identity));
        let limits = db.with_store(|store| store.all_limits())?;
        rows.limits = limits.into_iter().collect();
        let requests = db.with_store(|store| store.all_requests())?.into_iter();
        rows.requests = requests.map(|(name, who, request)| (name, (who, request))).collect();
        Ok(rows)
    }

    /// Returns the rows of a place that lists only leases.
    pub fn from_leases(listed: Vec<LeaseRow>, now_ms: i64) -> Self {
        let mut rows = Rows::default();
        for row in listed {
            match row.row().live(now_ms) {
                Some(lease) => rows.names.push(LiveName {
                    lease: lease.into_owned(),
                    since_ms: row.since_ms,
                    renewed_at_ms: None,
                    shards: None,
                }),
                None => rows.free += 1,
            }
        }
        rows
    }

    /// Returns the live grants.
    pub(crate) fn grants(&self) -> impl Iterator<Item = (String, i64)> {
        self.names.iter().map(|live| (live.lease.name.clone(), live.lease.token))
    }

    fn read_names(
        &mut self,
        store: &Store,
        prefix: &str,
        now_ms: i64,
    ) -> Result<(), litelease_store::Error> {
        let mut walk = store.walk(Some(prefix), None)?;
        while let Some(walked) = walk.next()? {
            let row = walked.row;
            if !row.name().starts_with(prefix) || self.names.len() >= MOST {
                break;
            }
            let Some(lease) = row.live(now_ms) else {
                self.free += 1;
                continue;
            };
            let shards = match walked.value {
                Value::Integer(count) if row.name().contains("/member/") => Some(count),
                _ => None,
            };
            self.names.push(LiveName {
                lease: lease.into_owned(),
                since_ms: walked.since_ms,
                renewed_at_ms: walked.updated_at_ms,
                shards,
            });
        }
        Ok(())
    }
}
