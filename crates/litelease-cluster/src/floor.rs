//! The floor of all tokens: epochs, raising it, purging below it, and fencing off a restored
//! engine.

use litelease_core::{self as rule, Epoch, RaiseResult, has_ended, purge_limit};

use crate::change::{Patience, context};
use crate::cluster::Cluster;
use crate::engine::{Change, Error, Loaded, LoadedRow, Result, Stored, StoredRow};

impl Cluster {
    /// Deletes the rows of names that have not been live since `before_ms` (Unix time in
    /// milliseconds), and returns how many.
    ///
    /// The floor is raised to the largest token deleted before the first row is, so that no token
    /// is ever granted again.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// cluster.at(100).claim("job 1", "a", Duration::from_millis(50))?;
    /// assert_eq!(cluster.at(200).purge(150)?, 1);
    /// let again = cluster.claim("job 1", "a", Duration::from_secs(30))?;
    /// assert!(matches!(again, ClaimResult::Acquired(lease) if lease.token == 2));
    /// # Ok::<(), litelease_cluster::Error>(())
    /// ```
    pub fn purge(&self, before_ms: i64) -> Result<u64> {
        let mut patience = self.patience();
        loop {
            let loaded = self.load_all(&mut patience)?;
            let (ended, largest) = self.ended(&loaded, before_ms)?;
            if ended.is_empty() {
                return Ok(0);
            }
            let raised = loaded.floor.epoch.raised(largest, context(&loaded))?;
            if self.store_floor(&loaded, raised, &mut patience)? {
                return self.until_sent(&mut patience, || self.shared.engine.forget(&ended));
            }
        }
    }

    /// Raises the floor: every token granted from now on, of any name, is larger than `floor`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// cluster.raise(1000)?;
    /// let lease = cluster.claim("scheduler", "a", Duration::from_secs(30))?;
    /// assert!(matches!(lease, ClaimResult::Acquired(lease) if lease.token == 1001));
    /// assert!(matches!(cluster.raise(999), Err(Error::FloorTooLow { present: 1000, .. })));
    /// # Ok::<(), litelease_cluster::Error>(())
    /// ```
    pub fn raise(&self, floor: i64) -> Result<()> {
        let mut patience = self.patience();
        let mut was_sent = false;
        loop {
            let loaded = self.load(&[], &mut patience)?;
            if self.begins_epoch(&loaded, &mut patience)? {
                continue;
            }
            match rule::raise(loaded.floor.epoch.floor, floor)? {
                RaiseResult::Unchanged => return Ok(()),
                // Another client has raised it further since.
                RaiseResult::TooLow { .. } if was_sent => return Ok(()),
                RaiseResult::TooLow { present } => {
                    return Err(Error::FloorTooLow { floor, present });
                }
                RaiseResult::Raised => {
                    let raised = loaded.floor.epoch.raised(floor, context(&loaded))?;
                    was_sent = true;
                    if self.store_floor(&loaded, raised, &mut patience)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Fences off everything that was granted before this engine was restored from a backup, and
    /// returns the new floor. It ends every lease, and raises every token and the floor by 2⁴⁶.
    ///
    /// Call it once, after putting the backup in place and before any program uses it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// # let ttl = Duration::from_secs(30);
    /// let old = cluster.claim("scheduler", "a", ttl)?.acquired().expect("it is free");
    /// let floor = cluster.restore_fence()?;
    /// assert!(matches!(cluster.renew(&old, ttl)?, RenewResult::Rejected { .. }));
    /// let lease = cluster.claim("scheduler", "b", ttl)?;
    /// assert!(matches!(lease, ClaimResult::Acquired(lease) if lease.token == floor + 1));
    /// # Ok::<(), litelease_cluster::Error>(())
    /// ```
    pub fn restore_fence(&self) -> Result<i64> {
        self.restore_fence_above(0)
    }

    /// Fences off like [`restore_fence`](Cluster::restore_fence), and raises tokens far above
    /// `token` as well: the largest one that was seen anywhere, in a log or in a gate.
    pub fn restore_fence_above(&self, token: i64) -> Result<i64> {
        let mut patience = self.patience();
        let mut raised = None;
        loop {
            let loaded = self.load_all(&mut patience)?;
            let floor = match raised {
                // The floor is above everything. Rows follow.
                Some(floor) if loaded.floor.epoch.floor >= floor => floor,
                _ => {
                    let tokens = loaded.rows.iter().filter_map(|row| row.row.as_ref());
                    let newest = tokens.map(|row| row.token).fold(token, i64::max);
                    let floor = loaded.floor.epoch.floor_after_restore(newest)?;
                    raised = Some(floor);
                    let epoch = loaded.floor.epoch.raised(floor, context(&loaded))?;
                    let _ = self.store_floor(&loaded, epoch, &mut patience)?;
                    continue;
                }
            };
            let now_ms = self.now_ms(&loaded);
            let fenced = |seen: &LoadedRow| {
                let row = seen.row.as_ref().filter(|row| row.token < floor)?;
                // Without its attempt: a client whose answer was lost must not find its grant here.
                let row = StoredRow { tenure: None, attempt: 0, ..row.clone() };
                Some(StoredRow { token: floor, at_ms: now_ms, ..row })
            };
            if self.store_rows(&loaded, fenced, &mut patience)? {
                return Ok(floor);
            }
        }
    }

    /// Begins an epoch if the floor was recorded in another incarnation of the engine: commits may
    /// have been lost. Returns whether it did; then the caller loads again.
    ///
    /// Every lease gets its whole ttl again first, because its end may have been moved by a renewal
    /// that was lost, or set by another clock. Nothing is decided before the floor is stored.
    pub(crate) fn begins_epoch(&self, loaded: &Loaded, patience: &mut Patience) -> Result<bool> {
        if is_recorded(loaded) {
            return Ok(false);
        }
        loop {
            let all = self.until_answered(patience, || self.shared.engine.list())?;
            if is_recorded(&all) {
                return Ok(true);
            }
            let now_ms = self.now_ms(&all);
            let anew = |seen: &LoadedRow| {
                let mut row = seen.row.clone()?;
                let tenure = row.tenure.as_mut()?;
                tenure.until_ms = now_ms.saturating_add(tenure.ttl_ms);
                row.at_ms = now_ms;
                Some(row)
            };
            let epoch = all.floor.epoch.recording(context(&all))?.unwrap_or(all.floor.epoch);
            if self.store_rows(&all, anew, patience)? && self.store_floor(&all, epoch, patience)? {
                return Ok(true);
            }
        }
    }

    /// Loads all rows, in an epoch that is recorded.
    pub(crate) fn load_all(&self, patience: &mut Patience) -> Result<Loaded> {
        loop {
            let loaded = self.until_answered(patience, || self.shared.engine.list())?;
            if !self.begins_epoch(&loaded, patience)? {
                return Ok(loaded);
            }
        }
    }

    /// Stores the floor. Returns whether it is known to be stored; if not, the caller loads again.
    fn store_floor(&self, seen: &Loaded, epoch: Epoch, patience: &mut Patience) -> Result<bool> {
        if seen.floor.epoch == epoch {
            return Ok(true);
        }
        let seen = Loaded { rows: Vec::new(), ..seen.clone() };
        self.store_once(&seen, &Change { floor: Some(epoch), ..Change::default() }, patience)
    }

    /// Stores a new form of every row that has one, in as many steps as the engine needs. Returns
    /// whether all are stored.
    fn store_rows(
        &self,
        all: &Loaded,
        form: impl Fn(&LoadedRow) -> Option<StoredRow>,
        patience: &mut Patience,
    ) -> Result<bool> {
        let changed: Vec<(&LoadedRow, StoredRow)> =
            all.rows.iter().filter_map(|seen| Some((seen, form(seen)?))).collect();
        let is_new = |(seen, row): &(&LoadedRow, StoredRow)| {
            seen.row.as_ref().is_none_or(|seen| seen.token != row.token)
        };
        let most = self.shared.engine.most_rows(changed.iter().any(is_new)).max(1);
        for some in changed.chunks(most) {
            let rows = some.iter().map(|(seen, _)| (*seen).clone()).collect();
            let seen = Loaded { rows, ..all.clone() };
            let rows = some.iter().map(|(seen, row)| (seen.name.clone(), row.clone())).collect();
            let change = Change { rows, ..Change::default() };
            if !self.store_once(&seen, &change, patience)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Stores a change that may be stored twice without harm.
    fn store_once(&self, seen: &Loaded, change: &Change, patience: &mut Patience) -> Result<bool> {
        match self.shared.engine.store(seen, change) {
            Ok(stored) => Ok(stored != Stored::Conflict),
            Err(error @ Error::CommitUnknown(_)) => self.wait(patience, error).map(|()| false),
            Err(error) if error.is_transient() => self.wait(patience, error).map(|()| false),
            Err(error) => Err(error),
        }
    }

    /// Sends until it is certain that it was sent.
    pub(crate) fn until_sent<T>(
        &self,
        patience: &mut Patience,
        send: impl Fn() -> Result<T>,
    ) -> Result<T> {
        loop {
            match send() {
                Err(error) if error.is_transient() => self.wait(patience, error)?,
                sent => return sent,
            }
        }
    }

    /// Returns the rows that a purge deletes, and the largest token of them.
    fn ended(&self, loaded: &Loaded, before_ms: i64) -> Result<(Vec<LoadedRow>, i64)> {
        let (mut ended, mut largest) = (Vec::new(), 0);
        for seen in &loaded.rows {
            let at_now = self.row_at_now(loaded, seen)?;
            let (Some(row), Some(stored)) = (&at_now.row, &seen.row) else { continue };
            let Some(state) = row.state() else { continue };
            let limit_ms = purge_limit(before_ms, at_now.now_ms);
            // Decided by the stored time and by observation: a wrong clock ends nothing.
            let is_ended = has_ended(stored.state(&seen.name)?, stored.at_ms, limit_ms)
                && has_ended(state, stored.at_ms, at_now.now_ms);
            if is_ended {
                ended.push(seen.clone());
                largest = largest.max(row.token);
            }
        }
        Ok((ended, largest))
    }

    fn now_ms(&self, loaded: &Loaded) -> i64 {
        self.when.or(loaded.server_ms).unwrap_or_else(|| self.shared.host.wall_ms())
    }
}

/// Checks whether the floor was recorded in this incarnation, or never.
fn is_recorded(loaded: &Loaded) -> bool {
    [0, loaded.incarnation].contains(&loaded.floor.epoch.boot)
}
