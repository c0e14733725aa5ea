//! The rows of pools: two tables, and every statement on them.
//!
//! A slot gets its row when it is first lent out, and keeps it. Its key is the number of its pool,
//! and its position in the lower 20 bits. A free slot has no lease and no expiry. So the index on
//! (pool, expiry, slot) has the lowest free slot next to those whose time is up, and no statement
//! of a borrow reads more rows than it changes.
//!
//! One that is kept has the largest integer as its expiry; `keep.rs` has the rest.
//!
//! The UUID of a lease ends with the position of its slot, so a lease is found without an index of
//! its own.

use litelease_core::{KEPT, MAX_COUNT, PoolInfo, PoolSnapshot, SlotInfo};

use crate::schema::{Table, are_there, none_without_table};
use crate::sqlite::{Statement, Value};
use crate::statements::{CachedStatement, execute_once};
use crate::{Error, Store};

/// The pools. The newest token of all slots is the largest here, unless the file's floor is larger.
pub(crate) const POOLS: Table = Table {
    name: "litelease_pools",
    definition: "(
  number INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  count INTEGER NOT NULL CHECK (count >= 0),
  used INTEGER NOT NULL CHECK (used >= 0),
  newest INTEGER UNIQUE CHECK (newest >= 1),
  created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL
)",
};

/// Their slots.
pub(crate) const SLOTS: Table = Table {
    name: "litelease_pool_slots",
    definition: "(
  slot INTEGER PRIMARY KEY,
  pool INTEGER AS (slot >> 20),
  position INTEGER AS (slot & 1048575),
  token INTEGER NOT NULL CHECK (token >= 1),
  lease TEXT,
  expires_at_ms INTEGER,
  key TEXT,
  note TEXT,
  UNIQUE (pool, expires_at_ms, slot),
  UNIQUE (pool, key),
  CHECK ((lease IS NULL) = (expires_at_ms IS NULL))
)",
};

/// The bits of a slot's key that are its position.
const POSITION: i64 = (1 << 20) - 1;
const _: () = assert!(MAX_COUNT <= POSITION);

/// Numbers of pools are smaller than this, and not negative.
const MOST_POOLS: i64 = 1 << 43;

// A bare parameter that is compared with a column and happens to be 0 or 1 makes SQLite compile a
// statement anew whenever it is bound, in the hope of a better plan: that was half of what a borrow
// cost in the first pool of a file. Hence the +.

/// A pool, with how many of its slots have a lease, and how many of those are over.
const FIND: &str = "SELECT number, count, used, ifnull(newest, 0),
(SELECT count(*) FROM main.litelease_pool_slots WHERE pool = number AND expires_at_ms <= ?2)
FROM main.litelease_pools WHERE id = ?1";

const REGISTER: &str = "INSERT INTO main.litelease_pools
(id, count, used, created_at_ms, updated_at_ms) VALUES (?1, ?2, 0, ?3, ?3)";

const RESIZE: &str =
    "UPDATE main.litelease_pools SET count = ?2, updated_at_ms = ?3 WHERE number = ?1";

const COUNT_USED: &str = "UPDATE main.litelease_pools SET used = used + ?2 WHERE number = ?1";

/// Counts a slot as lent out, and stores the newest token.
const COUNT_LENT: &str =
    "UPDATE main.litelease_pools SET used = used + ?2, newest = ?3 WHERE number = ?1";

/// Frees the slots whose time is up.
const SWEEP: &str = "UPDATE main.litelease_pool_slots
SET lease = NULL, expires_at_ms = NULL, key = NULL, note = NULL
WHERE pool = +?1 AND expires_at_ms <= ?2";

/// The lowest position that was lent out before and is free, or else the one after all that were
/// lent out.
pub const LOWEST_FREE: &str = "SELECT coalesce(
(SELECT position FROM main.litelease_pool_slots WHERE pool = +?1 AND expires_at_ms IS NULL ORDER BY slot LIMIT 1),
(SELECT position + 1 FROM main.litelease_pool_slots
WHERE slot BETWEEN ?1 << 20 AND ?1 << 20 | 1048575 ORDER BY slot DESC LIMIT 1), 0)";

/// The newest token of any slot.
pub(crate) const NEWEST_SLOT: &str = "SELECT max(newest) FROM main.litelease_pools";

const NUMBER_OF_POOLS: &str = "SELECT count(*) FROM main.litelease_pools";

/// Lends a slot that was lent out before, if it is free. One that is free has no key, and so the
/// index of keys is left alone.
const LEND: &str = "UPDATE main.litelease_pool_slots
SET token = ?2, lease = ?3, expires_at_ms = ?4, note = ?5
WHERE slot = ?1 AND lease IS NULL";

/// Lends a slot like `LEND`, with a key.
const LEND_BY_KEY: &str = "UPDATE main.litelease_pool_slots
SET token = ?2, lease = ?3, expires_at_ms = ?4, note = ?5, key = ?6
WHERE slot = ?1 AND lease IS NULL";

/// Lends a slot for the first time.
const LEND_FIRST: &str = "INSERT INTO main.litelease_pool_slots
(slot, token, lease, expires_at_ms, note, key) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

/// SQLite's own random numbers, which it gets from the system.
const RANDOM: &str = "SELECT hex(randomblob(16 * ?1))";

const BY_LEASE: &str = "SELECT position, token, expires_at_ms, lease
FROM main.litelease_pool_slots WHERE slot = ?1 AND lease = ?2";

const BY_KEY: &str = "SELECT position, token, expires_at_ms, lease
FROM main.litelease_pool_slots WHERE pool = +?1 AND key = ?2";

/// Frees a slot that was borrowed without a key, as most are: the index of keys is left alone.
const GIVE_BACK: &str = "UPDATE main.litelease_pool_slots
SET lease = NULL, expires_at_ms = NULL, note = NULL WHERE slot = ?1 AND key IS NULL";

/// Frees a slot.
const GIVE_BACK_BY_KEY: &str = "UPDATE main.litelease_pool_slots
SET lease = NULL, expires_at_ms = NULL, note = NULL, key = NULL WHERE slot = ?1";

const PROLONG: &str = "UPDATE main.litelease_pool_slots SET expires_at_ms = ?2 WHERE slot = ?1";

const LIST: &str = "SELECT position, token, expires_at_ms, note FROM main.litelease_pool_slots
WHERE pool = +?1 AND expires_at_ms > ?2 AND +slot >= ?3 ORDER BY slot LIMIT ?4";

/// The pools of which slots are lent out, from an id on, in the order of ids.
const HELD_POOLS: &str = "SELECT id, count, used - (SELECT count(*)
FROM main.litelease_pool_slots WHERE pool = number AND expires_at_ms <= ?2) AS held
FROM main.litelease_pools WHERE id >= ?1 AND held > 0 ORDER BY id";

const NEXT_EXPIRY: &str =
    "SELECT min(expires_at_ms) FROM main.litelease_pool_slots WHERE pool = +?1";

const DELETE_SLOTS: &str = "DELETE FROM main.litelease_pool_slots WHERE pool = +?1";

const DELETE_POOL: &str = "DELETE FROM main.litelease_pools WHERE number = ?1";

/// Ends every lease on a slot that is not kept.
pub(crate) const FREE_SLOTS: &str = "UPDATE main.litelease_pool_slots
SET lease = NULL, expires_at_ms = NULL, key = NULL, note = NULL
WHERE lease IS NOT NULL AND expires_at_ms < 9223372036854775807";

/// Counts the slots that are kept, after all others were freed.
pub(crate) const FREE_POOLS: &str = "UPDATE main.litelease_pools SET used =
(SELECT count(*) FROM main.litelease_pool_slots
WHERE pool = number AND expires_at_ms = 9223372036854775807)";

/// The statements of pools that are kept.
pub(crate) struct PoolStatements {
    find: CachedStatement,
    count_used: CachedStatement,
    count_lent: CachedStatement,
    sweep: CachedStatement,
    lowest_free: CachedStatement,
    newest: CachedStatement,
    lend: CachedStatement,
    lend_by_key: CachedStatement,
    random: CachedStatement,
    by_lease: CachedStatement,
    by_key: CachedStatement,
    give_back: CachedStatement,
    give_back_by_key: CachedStatement,
    prolong: CachedStatement,
    next_expiry: CachedStatement,
}

impl PoolStatements {
    /// Checks whether the statement that every verb on pools runs first was compiled.
    pub(crate) fn know_schema(&self) -> bool {
        self.find.is_compiled()
    }

    pub(crate) const fn new() -> Self {
        PoolStatements {
            find: CachedStatement::new(FIND),
            count_used: CachedStatement::new(COUNT_USED),
            count_lent: CachedStatement::new(COUNT_LENT),
            sweep: CachedStatement::new(SWEEP),
            lowest_free: CachedStatement::new(LOWEST_FREE),
            newest: CachedStatement::new(NEWEST_SLOT),
            lend: CachedStatement::new(LEND),
            lend_by_key: CachedStatement::new(LEND_BY_KEY),
            random: CachedStatement::new(RANDOM),
            by_lease: CachedStatement::new(BY_LEASE),
            by_key: CachedStatement::new(BY_KEY),
            give_back: CachedStatement::new(GIVE_BACK),
            give_back_by_key: CachedStatement::new(GIVE_BACK_BY_KEY),
            prolong: CachedStatement::new(PROLONG),
            next_expiry: CachedStatement::new(NEXT_EXPIRY),
        }
    }
}

/// A pool as it is stored.
#[derive(Clone, Copy)]
pub(crate) struct PoolRow {
    pub(crate) number: i64,
    pub(crate) count: i64,
    /// Slots that have a lease.
    pub(crate) used: i64,
    /// The newest token of its slots; 0 if none was ever lent out.
    pub(crate) newest: i64,
    /// Those among them whose time is up.
    pub(crate) over: i64,
}

impl PoolRow {
    pub(crate) fn info(&self) -> PoolInfo {
        PoolInfo { count: self.count, in_use: self.used - self.over }
    }

    /// Returns the key of a slot.
    pub(crate) fn slot(&self, position: i64) -> i64 {
        self.number << 20 | position & POSITION
    }
}

/// A slot that was borrowed just now.
///
/// ```
/// # use litelease_store::Borrowed;
/// # use litelease_core::SlotInfo;
/// let slot = SlotInfo { position: 0, token: 1, expires_at_ms: 150 };
/// let borrowed = Borrowed { lease_id: "d7a4…".into(), slot };
/// assert_eq!(borrowed.slot.position, 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Borrowed {
    /// The UUID of this lease, by which it is returned and renewed.
    pub lease_id: String,
    /// The slot.
    pub slot: SlotInfo,
}

/// A slot that is lent out, without its secret.
///
/// ```
/// # use litelease_store::SlotRow;
/// # use litelease_core::SlotInfo;
/// let slot = SlotInfo { position: 0, token: 1, expires_at_ms: 150 };
/// let row = SlotRow { slot, note: Some("nightly import".into()), kept_since_ms: None };
/// assert_eq!(row.slot.token, 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRow {
    /// The slot.
    pub slot: SlotInfo,
    /// The note of the borrower: usually who it is, and why.
    pub note: Option<String>,
    /// When it was kept, if it is and that is known.
    pub kept_since_ms: Option<i64>,
}

/// Options of a borrow.
///
/// ```
/// # use litelease_store::BorrowOptions;
/// let options = BorrowOptions::new().note("nightly import").key("attempt-17");
/// # assert_eq!(options.key, Some("attempt-17"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BorrowOptions<'a> {
    /// An idempotency key; see [`key`](BorrowOptions::key).
    pub key: Option<&'a str>,
    /// A text for operators; see [`note`](BorrowOptions::note).
    pub note: Option<&'a str>,
}

impl<'a> BorrowOptions<'a> {
    /// Returns options that ask for nothing special.
    ///
    /// ```
    /// # use litelease_store::BorrowOptions;
    /// assert_eq!(BorrowOptions::new(), BorrowOptions::default());
    /// ```
    pub fn new() -> Self {
        BorrowOptions::default()
    }

    /// Adds a text for operators, of at most 200 bytes: usually who borrows, and why.
    ///
    /// ```
    /// # use litelease_store::BorrowOptions;
    /// let options = BorrowOptions::new().note("nightly import");
    /// ```
    pub fn note(mut self, note: &'a str) -> Self {
        self.note = Some(note);
        self
    }

    /// Sets an idempotency key of 1 to 200 bytes: while the lease of an earlier borrow with this
    /// key lives, a borrow returns that lease again.
    ///
    /// ```
    /// # use litelease_store::BorrowOptions;
    /// let options = BorrowOptions::new().key("attempt-17");
    /// ```
    pub fn key(mut self, key: &'a str) -> Self {
        self.key = Some(key);
        self
    }
}

/// The tables, read and written.
impl Store {
    /// Makes sure that the tables of pools are ours, and answers whether they are there.
    pub(crate) fn verify_pools(&self) -> Result<bool, Error> {
        self.verify()?;
        are_there(self.connection, &[&POOLS, &SLOTS])
    }

    /// Returns the pool called `id`, if there is one.
    pub(crate) fn find_pool(&self, id: &str, now_ms: i64) -> Result<Option<PoolRow>, Error> {
        if let Some(known) = self.known_pool(id, now_ms) {
            return Ok(Some(known));
        }
        // It may be the same pool at another time.
        self.store_counts()?;
        let found = self.stored_pool(id, now_ms)?;
        if let Some(row) = found {
            self.know_pool(id, now_ms, row);
        }
        Ok(found)
    }

    fn stored_pool(&self, id: &str, now_ms: i64) -> Result<Option<PoolRow>, Error> {
        let found = self.statements.pools.find.with(self.connection, |statement| {
            // At the end of time, too, a slot that is kept is not over.
            let now_ms = now_ms.min(KEPT - 1);
            let mut run = statement.run(&[Value::Text(id), Value::Integer(now_ms)])?;
            let there = run.step()?;
            if run.is_unverified() {
                self.verify_pools()?;
                run.mark_verified();
            }
            let number = |index| run.column(index).and_then(Value::integer);
            match (there, [0, 1, 2, 3, 4].map(number)) {
                (false, _) => Ok(None),
                (_, [Some(number), Some(count), Some(used), Some(newest), Some(over)])
                    if used >= over && (0..MOST_POOLS).contains(&number) =>
                {
                    Ok(Some(PoolRow { number, count, used, newest, over }))
                }
                _ => Err(POOLS.mismatch("a row is damaged".into())),
            }
        });
        none_without_table(found, || self.verify_pools())
    }

    pub(crate) fn register(&self, id: &str, count: i64, now_ms: i64) -> Result<(), Error> {
        let values = [Value::Text(id), Value::Integer(count), Value::Integer(now_ms)];
        let insert = || execute_once(self.connection, REGISTER, &values);
        self.connection.keeping_last_insert_rowid(insert)?;
        self.changed(1, "a pool")
    }

    pub(crate) fn resize(&self, pool: PoolRow, count: i64, now_ms: i64) -> Result<(), Error> {
        self.store_counts()?;
        let values = [pool.number, count, now_ms].map(Value::Integer);
        execute_once(self.connection, RESIZE, &values)?;
        self.changed(1, "a pool")
    }

    /// Frees the slots of a pool whose time is up.
    pub(crate) fn sweep(&self, pool: &mut PoolRow, now_ms: i64) -> Result<(), Error> {
        if pool.over == 0 {
            return Ok(());
        }
        let values = [pool.number, now_ms].map(Value::Integer);
        self.statements.pools.sweep.execute_with(self.connection, &values)?;
        self.changed(pool.over, "the slots whose time is up")?;
        self.count(pool, PoolRow { used: pool.used - pool.over, over: 0, ..*pool })
    }

    /// Returns the snapshot of a pool that the rule needs, after expired slots were freed.
    pub(crate) fn pool_snapshot(&self, pool: &PoolRow) -> Result<PoolSnapshot, Error> {
        let lowest = self.statements.pools.lowest_free.with(self.connection, |statement| {
            first_number(statement, &[Value::Integer(pool.number)])
        })?;
        Ok(PoolSnapshot { info: pool.info(), lowest })
    }

    /// Returns the newest token of any slot; 0 if there is none.
    pub(crate) fn newest_slot_token(&self) -> Result<i64, Error> {
        self.newest_in_batch(|| {
            let newest = &self.statements.pools.newest;
            newest.with(self.connection, |statement| first_number(statement, &[]))
        })
    }

    pub(crate) fn number_of_pools(&self) -> Result<i64, Error> {
        let mut statement = self.connection.prepare(NUMBER_OF_POOLS)?;
        first_number(&mut statement, &[])
    }

    /// Stores a lease on a slot, and answers its UUID.
    pub(crate) fn lend(
        &self,
        pool: &mut PoolRow,
        slot: SlotInfo,
        options: BorrowOptions<'_>,
    ) -> Result<Borrowed, Error> {
        let lease = self.new_lease(slot.position)?;
        let text = |text: Option<_>| text.map_or(Value::Null, Value::Text);
        let values = [
            Value::Integer(pool.slot(slot.position)),
            Value::Integer(slot.token),
            Value::Text(&lease),
            Value::Integer(slot.expires_at_ms),
            text(options.note),
            text(options.key),
        ];
        let statements = &self.statements.pools;
        match (options.key, &values) {
            (Some(_), values) => statements.lend_by_key.execute_with(self.connection, values)?,
            (None, [values @ .., _]) => statements.lend.execute_with(self.connection, values)?,
        }
        if self.connection.changes() == 0 {
            let insert = || execute_once(self.connection, LEND_FIRST, &values);
            self.connection.keeping_last_insert_rowid(insert)?;
        }
        self.changed(1, "a slot")?;
        self.know_newest(Some(slot.token));
        self.count(pool, PoolRow { used: pool.used + 1, newest: slot.token, ..*pool })?;
        Ok(Borrowed { lease_id: lease, slot })
    }

    pub(crate) fn by_lease(&self, pool: &PoolRow, lease: &str) -> Result<Option<Borrowed>, Error> {
        let Some(position) = position_of(lease) else { return Ok(None) };
        self.lent(&self.statements.pools.by_lease, pool.slot(position), lease)
    }

    pub(crate) fn by_key(&self, pool: &PoolRow, key: &str) -> Result<Option<Borrowed>, Error> {
        self.lent(&self.statements.pools.by_key, pool.number, key)
    }

    pub(crate) fn free_slot(&self, pool: &mut PoolRow, slot: SlotInfo) -> Result<(), Error> {
        let values = [Value::Integer(pool.slot(slot.position))];
        let statements = &self.statements.pools;
        statements.give_back.execute_with(self.connection, &values)?;
        if self.connection.changes() == 0 {
            statements.give_back_by_key.execute_with(self.connection, &values)?;
        }
        self.changed(1, "a slot")?;
        self.count(pool, PoolRow { used: pool.used - 1, ..*pool })
    }

    pub(crate) fn prolong(&self, pool: &PoolRow, slot: SlotInfo) -> Result<(), Error> {
        let values = [pool.slot(slot.position), slot.expires_at_ms].map(Value::Integer);
        self.statements.pools.prolong.execute_with(self.connection, &values)?;
        self.changed(1, "a slot")
    }

    /// Lists pools of which slots are lent out, whose id begins with `prefix` and comes after
    /// `after`.
    pub(crate) fn held_pools(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
        now_ms: i64,
    ) -> Result<Vec<(String, PoolInfo)>, Error> {
        let mut statement = self.connection.prepare(HELD_POOLS)?;
        let values = [Value::Text(after.max(prefix)), Value::Integer(now_ms.min(KEPT - 1))];
        let (mut run, mut pools) = (statement.run(&values)?, Vec::new());
        while pools.len() < limit && run.step()? {
            let id = run.column(0).and_then(Value::text).unwrap_or_default();
            if !id.starts_with(prefix) {
                break;
            }
            let [count, in_use] = [1, 2].map(|index| run.column(index).and_then(Value::integer));
            if let (Some(count), Some(in_use), true) = (count, in_use, id > after) {
                pools.push((id.to_owned(), PoolInfo { count, in_use }));
            }
        }
        Ok(pools)
    }

    /// Lists the live slots of a pool from a position on.
    pub(crate) fn live_slots(
        &self,
        pool: &PoolRow,
        from: i64,
        limit: usize,
        now_ms: i64,
    ) -> Result<Vec<SlotRow>, Error> {
        let (first, limit) = (pool.slot(0) + from, i64::try_from(limit).unwrap_or(i64::MAX));
        let mut statement = self.connection.prepare(LIST)?;
        let values = [pool.number, now_ms.min(KEPT - 1), first, limit].map(Value::Integer);
        let mut run = statement.run(&values)?;
        let mut slots = Vec::new();
        while run.step()? {
            let slot = slot([run.column(0), run.column(1), run.column(2)])?;
            let note = run.column(3).and_then(Value::text).map(str::to_owned);
            slots.push(SlotRow { slot, note, kept_since_ms: None });
        }
        Ok(slots)
    }

    /// Returns when the next lease of a pool is over, if it has one.
    pub(crate) fn first_expiry(&self, pool: &PoolRow) -> Result<Option<i64>, Error> {
        self.statements.pools.next_expiry.with(self.connection, |statement| {
            let mut run = statement.run(&[Value::Integer(pool.number)])?;
            run.step()?;
            // The smallest one: if that is kept, all others are too.
            Ok(run
                .column(0)
                .and_then(Value::integer)
                .filter(|expires_at_ms| *expires_at_ms != KEPT))
        })
    }

    pub(crate) fn delete_rows(&self, pool: &PoolRow) -> Result<(), Error> {
        self.store_counts()?;
        self.know_newest(None);
        let number = [Value::Integer(pool.number)];
        execute_once(self.connection, DELETE_SLOTS, &number)?;
        execute_once(self.connection, DELETE_POOL, &number)?;
        self.changed(1, "a pool")
    }

    fn lent(
        &self,
        cached: &CachedStatement,
        number: i64,
        by: &str,
    ) -> Result<Option<Borrowed>, Error> {
        cached.with(self.connection, |statement| {
            let mut run = statement.run(&[Value::Integer(number), Value::Text(by)])?;
            if !run.step()? {
                return Ok(None);
            }
            let slot = slot([run.column(0), run.column(1), run.column(2)])?;
            let lease = run.column(3).and_then(Value::text).ok_or_else(damaged_slot)?;
            Ok(Some(Borrowed { lease_id: lease.into(), slot }))
        })
    }

    /// Counts slots that were lent out or given back.
    fn count(&self, pool: &mut PoolRow, counted: PoolRow) -> Result<(), Error> {
        let before = std::mem::replace(pool, counted);
        if self.count_in_batch(counted) { Ok(()) } else { self.store_count(before, counted) }
    }

    /// Stores the changes of a pool that were counted since its row was stored.
    pub(crate) fn store_count(&self, stored: PoolRow, counted: PoolRow) -> Result<(), Error> {
        let values =
            [counted.number, counted.used - stored.used, counted.newest].map(Value::Integer);
        let statements = &self.statements.pools;
        match (counted.newest == stored.newest, &values) {
            (true, _) if counted.used == stored.used => return Ok(()),
            (true, [values @ .., _]) => {
                statements.count_used.execute_with(self.connection, values)?
            }
            (false, values) => statements.count_lent.execute_with(self.connection, values)?,
        }
        self.changed(1, "a pool")
    }

    pub(crate) fn changed(&self, expected: i64, what: &str) -> Result<(), Error> {
        match self.connection.changes() {
            changed if changed == expected => Ok(()),
            changed => Err(Error::UnexpectedChange { what: what.into(), expected, changed }),
        }
    }

    /// Returns the UUID of a new lease on the slot at this position.
    fn new_lease(&self, position: i64) -> Result<String, Error> {
        let digits = self.digits_in_batch(|leases| {
            self.statements.pools.random.with(self.connection, |statement| {
                let mut run = statement.run(&[Value::Integer(leases)])?;
                run.step()?;
                Ok(run.column(0).and_then(Value::text).unwrap_or_default().to_owned())
            })
        })?;
        uuid(&digits, position).ok_or_else(damaged_slot)
    }
}

/// Returns 32 random hexadecimal digits as a UUID that ends with a position: one of version 8, the
/// one that leaves its digits to the program that makes it. 90 bits of it are random.
fn uuid(random: &str, position: i64) -> Option<String> {
    let mut digits: [u8; 32] = random.as_bytes().try_into().ok()?;
    digits.make_ascii_lowercase();
    digits[12] = b'8';
    digits[16] = b"89ab"[char::from(digits[16]).to_digit(16)? as usize % 4];
    for (digit, bits) in digits[24..].iter_mut().rev().zip((0..).step_by(4)) {
        *digit = b"0123456789abcdef"[(position >> bits & 15) as usize];
    }
    let digits = std::str::from_utf8(&digits).ok()?;
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    Some(parts.join("-"))
}

/// Returns the position that the UUID of a lease ends with.
fn position_of(lease: &str) -> Option<i64> {
    i64::from_str_radix(lease.get(28..)?, 16).ok()
}

pub(crate) fn slot(columns: [Option<Value<'_>>; 3]) -> Result<SlotInfo, Error> {
    match columns.map(|column| column.and_then(Value::integer)) {
        [Some(position), Some(token), Some(expires_at_ms)] => {
            Ok(SlotInfo { position, token, expires_at_ms })
        }
        _ => Err(damaged_slot()),
    }
}

fn damaged_slot() -> Error {
    SLOTS.mismatch("a row is damaged".into())
}

fn first_number(statement: &mut Statement, values: &[Value<'_>]) -> Result<i64, Error> {
    let mut run = statement.run(values)?;
    run.step()?;
    Ok(run.column(0).and_then(Value::integer).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::{position_of, uuid};

    #[test]
    fn a_lease_is_random_and_ends_with_the_position_of_its_slot() {
        let made = uuid("00112233445566778899AABBCCDDEEFF", 0x1234_abcd);
        assert_eq!(made.as_deref(), Some("00112233-4455-8677-8899-aabb1234abcd"));
        assert_eq!(made.as_deref().and_then(position_of), Some(0x1234_abcd));
        assert_eq!(uuid("0011", 0), None);
        for strange in ["", "x", "00112233-4455-8677-8899-aabb1234abcx", "äöüäöüäöüäöüäöüäöü"]
        {
            assert_eq!(position_of(strange), None);
        }
    }
}
