//! Slots that are kept: lent out without expiry, until they are returned.
//!
//! A kept slot has the largest integer as its expiry. The time since when it is kept is in a table
//! of its own, which the first `keep` makes; so a plain borrow or return costs no more.

use litelease_core::{KEPT, MAX_COUNT, SlotInfo, keep_slot, pool_label};

use crate::history::Event;
use crate::pool_rows::{PoolRow, SlotRow, slot};
use crate::schema::{Table, create, is_there};
use crate::sqlite::Value;
use crate::statements::execute_once;
use crate::{Error, Store, When};

/// Since when slots are kept. A row whose slot is not kept any more means nothing.
pub(crate) const KEPT_SLOTS: Table = Table {
    name: "litelease_kept_slots",
    definition: "(
  slot INTEGER PRIMARY KEY,
  since_ms INTEGER NOT NULL
)",
};

const KEEP: &str = "INSERT INTO main.litelease_kept_slots (slot, since_ms) VALUES (?1, ?2)
ON CONFLICT (slot) DO UPDATE SET since_ms = excluded.since_ms";

const FORGET: &str = "DELETE FROM main.litelease_kept_slots WHERE slot = ?1";

const FORGET_POOL: &str = "DELETE FROM main.litelease_kept_slots
WHERE slot BETWEEN ?1 << 20 AND ?1 << 20 | 1048575";

/// Since when each slot of a pool is kept, by position.
const SINCE: &str = "SELECT slot & 1048575, since_ms FROM main.litelease_kept_slots
WHERE slot BETWEEN ?1 << 20 AND ?1 << 20 | 1048575";

const AT_POSITION: &str = "SELECT position, token, expires_at_ms
FROM main.litelease_pool_slots WHERE slot = ?1 AND token = ?2 AND expires_at_ms >= ?3";

/// The slots of all pools that are kept.
const ALL_KEPT: &str =
    "SELECT slot FROM main.litelease_pool_slots WHERE expires_at_ms = ?1 ORDER BY slot";

const RENUMBER: &str = "UPDATE main.litelease_pool_slots SET token = ?2 WHERE slot = ?1";

const RENUMBER_POOL: &str = "UPDATE main.litelease_pools SET newest = ?2 WHERE number = ?1";

impl Store {
    /// Turns a live lease on a slot into one without expiry. Answers whether it was live. Keeping
    /// twice is a yes.
    pub fn keep_slot(&self, id: &str, lease: &str, when: When) -> Result<bool, Error> {
        self.with_context("keep a slot", None, || {
            let boundary = self.boundary()?;
            let looked = || -> Result<(PoolRow, Option<SlotInfo>, i64), Error> {
                let now_ms = when.now_ms();
                let pool = self.find_pool(id, now_ms)?.ok_or(Error::NoSuchPool)?;
                Ok((pool, self.by_lease(&pool, lease)?.map(|lent| lent.slot), now_ms))
            };
            if boundary.may_look_first() {
                match looked()? {
                    (_, Some(slot), now_ms) if slot.is_live(now_ms) && !slot.is_kept() => {}
                    (_, slot, _) => return Ok(slot.is_some_and(|slot| slot.is_kept())),
                }
            }
            self.changing_pools(boundary, || {
                let (pool, slot, now_ms) = looked()?;
                match slot.and_then(|slot| Some((slot, keep_slot(slot, now_ms)?))) {
                    None => Ok(false),
                    Some((before, kept)) if before == kept => Ok(true),
                    Some((_, kept)) => {
                        self.prolong(&pool, kept)?;
                        self.remember_kept(&pool, kept, now_ms).map(|()| true)
                    }
                }
            })
        })
    }

    /// Frees a kept slot that a list has shown, for an operator. Answers whether it was kept under
    /// this token.
    pub fn free_kept_slot(&self, id: &str, position: i64, token: i64) -> Result<bool, Error> {
        self.free_slot_ending_from(id, position, token, || KEPT)
    }

    /// Frees any slot that a list has shown: for an operator, or because its holder is dead.
    /// Answers whether it was live under this token, which no other lease has.
    pub fn break_slot(
        &self,
        id: &str,
        position: i64,
        token: i64,
        when: When,
    ) -> Result<bool, Error> {
        // A slot's key has its position in its lower bits.
        if !(0..MAX_COUNT).contains(&position) {
            return Ok(false);
        }
        self.free_slot_ending_from(id, position, token, || when.now_ms().saturating_add(1))
    }

    /// Frees the slot that has this token, if its lease ends at that time or later.
    fn free_slot_ending_from(
        &self,
        id: &str,
        position: i64,
        token: i64,
        end_ms: impl Fn() -> i64,
    ) -> Result<bool, Error> {
        self.with_context("free a slot", None, || {
            let boundary = self.boundary()?;
            let looked = || -> Result<(PoolRow, Option<SlotInfo>), Error> {
                let pool = self.find_pool(id, i64::MIN)?.ok_or(Error::NoSuchPool)?;
                Ok((pool, self.slot_at(&pool, position, token, end_ms())?))
            };
            if boundary.may_look_first() && looked()?.1.is_none() {
                return Ok(false);
            }
            self.changing_pools(boundary, || match looked()? {
                (mut pool, Some(slot)) => {
                    self.give_back_any(&mut pool, slot)?;
                    let name = &pool_label(id);
                    let (token, number) = (Some(token), Some(position));
                    let event = Event { token, number, ..Event::new("broken", "pool", name) };
                    self.record_event(When::Now.now_ms(), event).map(|()| true)
                }
                (_, None) => Ok(false),
            })
        })
    }

    /// Gives a slot back that may be kept.
    pub(crate) fn give_back_any(&self, pool: &mut PoolRow, slot: SlotInfo) -> Result<(), Error> {
        self.free_slot(pool, slot)?;
        if slot.is_kept() && is_there(self.connection, &KEPT_SLOTS)? {
            let values = [Value::Integer(pool.slot(slot.position))];
            execute_once(self.connection, FORGET, &values)?;
        }
        Ok(())
    }

    /// Adds since when the slots of a list are kept.
    pub(crate) fn with_kept_times(
        &self,
        pool: &PoolRow,
        mut slots: Vec<SlotRow>,
    ) -> Result<Vec<SlotRow>, Error> {
        let has_kept = slots.iter().any(|row| row.slot.is_kept());
        if !has_kept || !is_there(self.connection, &KEPT_SLOTS)? {
            return Ok(slots);
        }
        let mut statement = self.connection.prepare(SINCE)?;
        let mut run = statement.run(&[Value::Integer(pool.number)])?;
        while run.step()? {
            let number = |index| run.column(index).and_then(Value::integer);
            let (Some(position), Some(since_ms)) = (number(0), number(1)) else {
                return Err(KEPT_SLOTS.mismatch("a row is damaged".into()));
            };
            if let Ok(at) = slots.binary_search_by_key(&position, |row| row.slot.position)
                && slots[at].slot.is_kept()
            {
                slots[at].kept_since_ms = Some(since_ms);
            }
        }
        Ok(slots)
    }

    /// Forgets since when the slots of a pool are kept: it is about to be deleted.
    pub(crate) fn forget_kept_of(&self, pool: &PoolRow) -> Result<(), Error> {
        if !is_there(self.connection, &KEPT_SLOTS)? {
            return Ok(());
        }
        execute_once(self.connection, FORGET_POOL, &[Value::Integer(pool.number)])
    }

    /// Gives every kept slot a new token above `floor`, for a file that was restored.
    pub(crate) fn renumber_kept(&self, floor: i64) -> Result<(), Error> {
        let mut token = floor;
        for slot in self.all_kept()? {
            token += 1;
            execute_once(self.connection, RENUMBER, &[slot, token].map(Value::Integer))?;
            self.changed(1, "a slot")?;
            execute_once(self.connection, RENUMBER_POOL, &[slot >> 20, token].map(Value::Integer))?;
            self.changed(1, "a pool")?;
        }
        Ok(())
    }

    fn all_kept(&self) -> Result<Vec<i64>, Error> {
        let mut statement = self.connection.prepare(ALL_KEPT)?;
        let mut run = statement.run(&[Value::Integer(KEPT)])?;
        let mut slots = Vec::new();
        while run.step()? {
            slots.extend(run.column(0).and_then(Value::integer));
        }
        Ok(slots)
    }

    fn slot_at(
        &self,
        pool: &PoolRow,
        position: i64,
        token: i64,
        end_ms: i64,
    ) -> Result<Option<SlotInfo>, Error> {
        let mut statement = self.connection.prepare(AT_POSITION)?;
        let values = [pool.slot(position), token, end_ms].map(Value::Integer);
        let mut run = statement.run(&values)?;
        if !run.step()? {
            return Ok(None);
        }
        let found = slot([run.column(0), run.column(1), run.column(2)])?;
        // A position beyond what a key can hold must not be taken for another one.
        Ok((found.position == position).then_some(found))
    }

    fn remember_kept(&self, pool: &PoolRow, kept: SlotInfo, now_ms: i64) -> Result<(), Error> {
        if !is_there(self.connection, &KEPT_SLOTS)? {
            create(self.connection, &KEPT_SLOTS)?;
        }
        let values = [pool.slot(kept.position), now_ms].map(Value::Integer);
        let insert = || execute_once(self.connection, KEEP, &values);
        self.connection.keeping_last_insert_rowid(insert)
    }
}
