//! The rows of queues: five tables, and every statement on them.
//!
//! The index on (queue, visible at, id) has the items of a queue in the order of their delivery, so
//! a receive reads one row, however many are hidden, delayed or dead. Dead items have no time at
//! which they are visible. Bodies are in a table of their own, because a delivery must not rewrite
//! them; keys too, because most items have none.

use std::cell::Cell;

use litelease_core::{DEFAULT_ATTEMPTS, Delivery, Ended, Item};

use crate::schema::{Table, are_there, create, none_without_table};
use crate::sqlite::{Run, Statement, Value};
use crate::statements::{CachedStatement, execute_once};
use crate::{Error, ItemCursor, Store};

/// The newest id or token of all queues, in one row.
pub(crate) const COUNTER: Table = Table {
    name: "litelease_queue_counter",
    definition: "(
  id INTEGER PRIMARY KEY CHECK (id = 1),
  newest INTEGER NOT NULL CHECK (newest >= 0)
)",
};

/// The queues.
pub(crate) const QUEUES: Table = Table {
    name: "litelease_queue_names",
    definition: "(
  number INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  max_attempts INTEGER NOT NULL CHECK (max_attempts >= 0)
)",
};

/// Their items, without the bodies. The columns from `token` to `ended` are the newest delivery.
pub(crate) const ITEMS: Table = Table {
    name: "litelease_queue_items",
    definition: "(
  id INTEGER PRIMARY KEY CHECK (id >= 1),
  queue INTEGER NOT NULL,
  visible_at_ms INTEGER,
  attempts INTEGER NOT NULL CHECK (attempts >= 0),
  token INTEGER CHECK (token >= 1),
  receipt BLOB,
  deadline_ms INTEGER,
  ended TEXT,
  sent_at_ms INTEGER NOT NULL,
  key TEXT,
  note TEXT,
  UNIQUE (queue, visible_at_ms, id),
  CHECK ((token IS NULL) = (receipt IS NULL) AND (token IS NULL) = (deadline_ms IS NULL)),
  CHECK (visible_at_ms IS NOT NULL OR token IS NOT NULL)
)",
};

/// The bodies of items.
pub(crate) const BODIES: Table = Table {
    name: "litelease_queue_bodies",
    definition: "(
  id INTEGER PRIMARY KEY,
  body
)",
};

/// The keys that are in use. One that a dead item has is free for others.
pub(crate) const KEYS: Table = Table {
    name: "litelease_queue_keys",
    definition: "(
  queue INTEGER NOT NULL,
  key TEXT NOT NULL,
  item INTEGER NOT NULL,
  PRIMARY KEY (queue, key)
) WITHOUT ROWID",
};

const TABLES: [&Table; 5] = [&COUNTER, &QUEUES, &ITEMS, &BODIES, &KEYS];

/// The names of the table-valued functions. A table of such a name would hide one from SQL.
const FUNCTIONS: [&str; 3] = ["litelease_items", "litelease_queues", "litelease_delivery"];

/// Finds a table that hides a table-valued function.
const HIDING: &str = "SELECT 1 FROM main.sqlite_schema
WHERE name = ?1 COLLATE NOCASE AND type IN ('table', 'view')";

// As for pools, a + before a parameter keeps SQLite from compiling the statement anew for 0 and 1.

/// A queue, and the newest number of all of them.
const FIND: &str = "SELECT number, max_attempts,
(SELECT newest FROM main.litelease_queue_counter WHERE id = 1)
FROM main.litelease_queue_names WHERE name = ?1";

const NEWEST: &str = "SELECT newest FROM main.litelease_queue_counter WHERE id = 1";

const START: &str = "INSERT INTO main.litelease_queue_counter (id, newest) VALUES (1, 0)";

const COUNT: &str = "UPDATE main.litelease_queue_counter SET newest = ?1 WHERE id = 1";

const REGISTER: &str =
    "INSERT INTO main.litelease_queue_names (name, max_attempts) VALUES (?1, ?2)";

const CONFIGURE: &str = "UPDATE main.litelease_queue_names SET max_attempts = ?2 WHERE number = ?1";

const NAME: &str = "SELECT name FROM main.litelease_queue_names WHERE number = ?1";

const NAMES: &str = "SELECT number, name, max_attempts FROM main.litelease_queue_names
ORDER BY name";

/// The columns that make an item.
macro_rules! item {
    ($from:literal) => {
        concat!("SELECT id, visible_at_ms, attempts, token, receipt, deadline_ms, ended, ", $from)
    };
}

/// The item of a queue that was visible longest, with random bits for its receipt.
pub(crate) const NEXT: &str = item!(
    "randomblob(16) FROM main.litelease_queue_items
WHERE queue = +?1 AND visible_at_ms <= ?2 ORDER BY visible_at_ms, id LIMIT 1"
);

/// The first dead item of a queue after an id; or one whose last allowed delivery is not over yet.
const NEXT_DEAD: &str = item!(
    "queue, key FROM main.litelease_queue_items
WHERE queue = +?1 AND visible_at_ms IS NULL AND id > ?2 ORDER BY id LIMIT 1"
);

/// The first item after an id whose receipt passes.
const NEXT_PASSING: &str = item!(
    "queue, key FROM main.litelease_queue_items
WHERE id > ?1 AND token IS NOT NULL AND ended IS NULL ORDER BY id LIMIT 1"
);

const BY_ID: &str = item!("queue, key FROM main.litelease_queue_items WHERE id = ?1");

/// The item that uses a key, or did so before it died.
const BY_KEY: &str = item!(
    "queue, key FROM main.litelease_queue_items
WHERE id = (SELECT item FROM main.litelease_queue_keys WHERE queue = +?1 AND key = ?2)"
);

/// The items of a queue, the dead ones first and then in the order of their delivery. Items that
/// are sent during the walk are left out; otherwise a walk that sends might never end.
pub(crate) const LIST: &str = item!(
    "sent_at_ms, key, note FROM main.litelease_queue_items
WHERE queue = +?1 AND id <= (SELECT max(id) FROM main.litelease_queue_items)
ORDER BY visible_at_ms, id"
);

/// A page of that list: items without a time at which they are visible, after an id.
const PAGE_OF_LAST: &str = item!(
    "sent_at_ms, key, note FROM main.litelease_queue_items
WHERE queue = +?1 AND visible_at_ms IS NULL AND id > ?2 ORDER BY id LIMIT ?3"
);

/// A page of that list: the others, after a time and an id.
const PAGE: &str = item!(
    "sent_at_ms, key, note FROM main.litelease_queue_items
WHERE queue = +?1 AND (visible_at_ms, id) > (?2, ?3) ORDER BY visible_at_ms, id LIMIT ?4"
);

const FIRST_VISIBLE: &str = "SELECT visible_at_ms FROM main.litelease_queue_items
WHERE queue = +?1 AND visible_at_ms IS NOT NULL ORDER BY visible_at_ms, id LIMIT 1";

const SEND: &str = "INSERT INTO main.litelease_queue_items
(id, queue, visible_at_ms, attempts, sent_at_ms, key) VALUES (?1, ?2, ?3, 0, ?4, ?5)";

const SEND_BODY: &str = "INSERT INTO main.litelease_queue_bodies (id, body) VALUES (?1, ?2)";

const BODY: &str = "SELECT body FROM main.litelease_queue_bodies WHERE id = ?1";

const SAVE: &str = "UPDATE main.litelease_queue_items
SET visible_at_ms = ?2, attempts = ?3, token = ?4, receipt = ?5, deadline_ms = ?6, ended = ?7
WHERE id = ?1";

/// Writes a note on an item.
const NOTE: &str = "UPDATE main.litelease_queue_items SET note = ?2 WHERE id = ?1";

const DELETE: &str = "DELETE FROM main.litelease_queue_items WHERE id = ?1";

const DELETE_BODY: &str = "DELETE FROM main.litelease_queue_bodies WHERE id = ?1";

const TAKE_KEY: &str = "INSERT INTO main.litelease_queue_keys (queue, key, item)
VALUES (?1, ?2, ?3) ON CONFLICT (queue, key) DO UPDATE SET item = excluded.item";

const FREE_KEY: &str =
    "DELETE FROM main.litelease_queue_keys WHERE queue = +?1 AND key = ?2 AND item = ?3";

/// Deletes up to `?2` items of a queue, with their bodies and keys. All three delete the same ones.
const DELETE_ITEMS: [&str; 3] = [
    "DELETE FROM main.litelease_queue_bodies WHERE id IN (SELECT id
FROM main.litelease_queue_items WHERE queue = +?1 ORDER BY visible_at_ms, id LIMIT ?2)",
    "DELETE FROM main.litelease_queue_keys WHERE queue = +?1 AND item IN (SELECT id
FROM main.litelease_queue_items WHERE queue = +?1 ORDER BY visible_at_ms, id LIMIT ?2)",
    "DELETE FROM main.litelease_queue_items WHERE id IN (SELECT id
FROM main.litelease_queue_items WHERE queue = +?1 ORDER BY visible_at_ms, id LIMIT ?2)",
];

const DELETE_QUEUE: &str = "DELETE FROM main.litelease_queue_names WHERE number = ?1";

/// The statements of queues that are kept.
pub(crate) struct QueueStatements {
    find: CachedStatement,
    name: CachedStatement,
    newest: CachedStatement,
    count: CachedStatement,
    next: CachedStatement,
    next_dead: CachedStatement,
    by_id: CachedStatement,
    by_key: CachedStatement,
    first_visible: CachedStatement,
    send: CachedStatement,
    send_body: CachedStatement,
    body: CachedStatement,
    save: CachedStatement,
    note: CachedStatement,
    delete: CachedStatement,
    delete_body: CachedStatement,
    take_key: CachedStatement,
    free_key: CachedStatement,
    /// The last receive found an item. Then the next one asks for the write lock at once.
    pub(crate) is_busy: Cell<bool>,
}

impl QueueStatements {
    /// Checks whether a statement that a verb on queues runs first was compiled.
    pub(crate) fn know_schema(&self) -> bool {
        self.find.is_compiled() || self.by_id.is_compiled()
    }

    pub(crate) const fn new() -> Self {
        QueueStatements {
            find: CachedStatement::new(FIND),
            name: CachedStatement::new(NAME),
            newest: CachedStatement::new(NEWEST),
            count: CachedStatement::new(COUNT),
            next: CachedStatement::new(NEXT),
            next_dead: CachedStatement::new(NEXT_DEAD),
            by_id: CachedStatement::new(BY_ID),
            by_key: CachedStatement::new(BY_KEY),
            first_visible: CachedStatement::new(FIRST_VISIBLE),
            send: CachedStatement::new(SEND),
            send_body: CachedStatement::new(SEND_BODY),
            body: CachedStatement::new(BODY),
            save: CachedStatement::new(SAVE),
            note: CachedStatement::new(NOTE),
            delete: CachedStatement::new(DELETE),
            delete_body: CachedStatement::new(DELETE_BODY),
            take_key: CachedStatement::new(TAKE_KEY),
            free_key: CachedStatement::new(FREE_KEY),
            is_busy: Cell::new(false),
        }
    }
}

/// A queue as it is stored.
#[derive(Clone, Copy)]
pub(crate) struct QueueRow {
    pub(crate) number: i64,
    pub(crate) max_attempts: i64,
    /// The newest id or token of any queue.
    pub(crate) newest: i64,
}

/// A stored item, with its body or key.
pub(crate) struct ItemRow {
    pub(crate) id: i64,
    pub(crate) item: Item,
    pub(crate) queue: i64,
    pub(crate) key: Option<String>,
}

/// An item that is visible, with random bits for its receipt.
pub(crate) struct NextItem {
    pub(crate) id: i64,
    pub(crate) item: Item,
    pub(crate) random: u128,
}

/// Walks along the items of a queue in one snapshot, without collecting them.
pub(crate) struct ItemWalk {
    /// None where there is no such queue.
    statement: Option<Statement>,
}

/// An item of a walk.
pub(crate) struct Walked<'w> {
    pub(crate) id: i64,
    pub(crate) item: Item,
    pub(crate) sent_at_ms: i64,
    pub(crate) key: Option<&'w str>,
    pub(crate) note: Option<&'w str>,
}

impl ItemWalk {
    /// Returns the walk along no items.
    pub(crate) fn empty() -> Self {
        ItemWalk { statement: None }
    }

    /// Returns the next item, if there is one.
    pub(crate) fn next(&mut self) -> Result<Option<Walked<'_>>, Error> {
        let Some(statement) = &self.statement else { return Ok(None) };
        if !statement.advance()? {
            return Ok(None);
        }
        let integer = |index| statement.column(index).and_then(Value::integer);
        let (Some(id), Some(sent_at_ms)) = (integer(0), integer(7)) else {
            return Err(damaged_item());
        };
        let columns = [1, 2, 3, 4, 5, 6].map(|index| statement.column(index));
        let item = stored_item(columns).ok_or_else(damaged_item)?;
        let text = |index| statement.column(index).and_then(Value::text);
        Ok(Some(Walked { id, item, sent_at_ms, key: text(8), note: text(9) }))
    }
}

/// The tables, read and written.
impl Store {
    /// Makes sure that the tables of queues are ours, and answers whether they are there.
    pub(crate) fn verify_queues(&self) -> Result<bool, Error> {
        self.verify()?;
        for name in FUNCTIONS {
            let mut statement = self.connection.prepare(HIDING)?;
            if statement.run(&[Value::Text(name)])?.step()? {
                let reason = "it hides the function of its name: rename it".into();
                return Err(Error::SchemaMismatch { table: name, reason });
            }
        }
        are_there(self.connection, &TABLES)
    }

    /// Creates the tables if they are missing.
    pub(crate) fn create_queues(&self) -> Result<(), Error> {
        if self.verify_queues()? {
            return Ok(());
        }
        TABLES.iter().try_for_each(|table| create(self.connection, table))?;
        self.inserting(|| execute_once(self.connection, START, &[]))?;
        self.changed(1, "the counter of queues")
    }

    /// Returns the queue called `name`, if there is one.
    pub(crate) fn find_queue(&self, name: &str) -> Result<Option<QueueRow>, Error> {
        self.first_query(&self.statements.queues.find, &[Value::Text(name)], |run| {
            let number = |index| run.column(index).and_then(Value::integer);
            match [0, 1, 2].map(number) {
                [Some(number), Some(max_attempts @ 0..), Some(newest @ 0..)] => {
                    Ok(QueueRow { number, max_attempts, newest })
                }
                [_, _, None] => Err(COUNTER.mismatch("its row is missing or damaged".into())),
                _ => Err(QUEUES.mismatch("a row is damaged".into())),
            }
        })
    }

    /// Returns the name of the queue with this number.
    pub(crate) fn queue_name(&self, number: i64) -> Result<Option<String>, Error> {
        self.one_row(&self.statements.queues.name, &[Value::Integer(number)], |run| {
            let name = run.column(0).and_then(Value::text);
            name.map(str::to_owned).ok_or_else(|| QUEUES.mismatch("a row is damaged".into()))
        })
    }

    /// Returns the queue called `name`, which is made if it is missing. The write lock is held.
    pub(crate) fn make_queue(
        &self,
        name: &str,
        max_attempts: Option<i64>,
    ) -> Result<QueueRow, Error> {
        match (self.find_queue(name)?, max_attempts) {
            (Some(row), Some(max_attempts)) if row.max_attempts != max_attempts => {
                let values = [row.number, max_attempts].map(Value::Integer);
                execute_once(self.connection, CONFIGURE, &values)?;
                self.changed(1, "a queue")?;
                Ok(QueueRow { max_attempts, ..row })
            }
            (Some(row), _) => Ok(row),
            (None, max_attempts) => {
                self.create_queues()?;
                let limit = Value::Integer(max_attempts.unwrap_or(DEFAULT_ATTEMPTS));
                let values = [Value::Text(name), limit];
                self.inserting(|| execute_once(self.connection, REGISTER, &values))?;
                self.changed(1, "a queue")?;
                self.find_queue(name)?.ok_or_else(|| QUEUES.mismatch("a row is missing".into()))
            }
        }
    }

    /// Returns every queue: its number, its name and its limit of attempts.
    pub(crate) fn queue_names(&self) -> Result<Vec<(i64, String, i64)>, Error> {
        if !self.verify_queues()? {
            return Ok(Vec::new());
        }
        let mut statement = self.connection.prepare(NAMES)?;
        let mut run = statement.run(&[])?;
        let mut names = Vec::new();
        while run.step()? {
            let number = |index| run.column(index).and_then(Value::integer);
            let name = run.column(1).and_then(Value::text);
            let (Some(number), Some(name), Some(limit)) = (number(0), name, number(2)) else {
                return Err(QUEUES.mismatch("a row is damaged".into()));
            };
            names.push((number, name.to_owned(), limit));
        }
        Ok(names)
    }

    /// Returns the newest id or token of any queue; 0 if there is none.
    pub(crate) fn newest_in_queues(&self) -> Result<i64, Error> {
        let newest = &self.statements.queues.newest;
        let found = self.one_row(newest, &[], |run| {
            let newest = run.column(0).and_then(Value::integer);
            newest.ok_or_else(|| COUNTER.mismatch("its row is damaged".into()))
        })?;
        Ok(found.unwrap_or(0))
    }

    /// Stores the newest number.
    pub(crate) fn count_queues(&self, newest: i64) -> Result<(), Error> {
        let values = [Value::Integer(newest)];
        self.statements.queues.count.execute_with(self.connection, &values)?;
        self.changed(1, "the counter of queues")
    }

    /// Returns the item that is to be delivered next.
    pub(crate) fn next_item(
        &self,
        queue: QueueRow,
        now_ms: i64,
    ) -> Result<Option<NextItem>, Error> {
        let values = [queue.number, now_ms].map(Value::Integer);
        self.one_row(&self.statements.queues.next, &values, |run| {
            let random = run.column(7).and_then(bits).ok_or_else(damaged_item)?;
            Ok(NextItem { id: id(run)?, item: item(run)?, random })
        })
    }

    /// Returns the first item out of the visible order after an id. Most of them are dead.
    pub(crate) fn next_dead(&self, queue: i64, after: i64) -> Result<Option<ItemRow>, Error> {
        let values = [queue, after].map(Value::Integer);
        self.one_row(&self.statements.queues.next_dead, &values, item_row)
    }

    pub(crate) fn item_by_id(&self, id: i64) -> Result<Option<ItemRow>, Error> {
        let values = [Value::Integer(id)];
        self.first_query(&self.statements.queues.by_id, &values, item_row)
    }

    pub(crate) fn item_by_key(&self, queue: i64, key: &str) -> Result<Option<ItemRow>, Error> {
        let values = [Value::Integer(queue), Value::Text(key)];
        self.one_row(&self.statements.queues.by_key, &values, item_row)
    }

    /// Returns when the first item of a queue is visible, or was.
    pub(crate) fn first_visible(&self, queue: i64) -> Result<Option<i64>, Error> {
        let values = [Value::Integer(queue)];
        self.one_row(&self.statements.queues.first_visible, &values, |run| {
            run.column(0).and_then(Value::integer).ok_or_else(damaged_item)
        })
    }

    /// Walks along the items of a queue.
    pub(crate) fn walk_items(&self, queue: i64) -> Result<ItemWalk, Error> {
        let statement = self.connection.prepare(LIST)?;
        statement.start(&[Value::Integer(queue)])?;
        Ok(ItemWalk { statement: Some(statement) })
    }

    /// Walks along `limit` items of a queue after a cursor in that order.
    pub(crate) fn walk_page(
        &self,
        queue: i64,
        after: ItemCursor,
        limit: i64,
    ) -> Result<ItemWalk, Error> {
        let ItemCursor { visible_at_ms, id } = after;
        let statement = match visible_at_ms {
            None => {
                let statement = self.connection.prepare(PAGE_OF_LAST)?;
                statement.start(&[queue, id, limit].map(Value::Integer))?;
                statement
            }
            Some(at_ms) => {
                let statement = self.connection.prepare(PAGE)?;
                statement.start(&[queue, at_ms, id, limit].map(Value::Integer))?;
                statement
            }
        };
        Ok(ItemWalk { statement: Some(statement) })
    }

    /// Stores a new item with its body.
    pub(crate) fn insert_item(
        &self,
        id: i64,
        queue: QueueRow,
        visible_at_ms: i64,
        sent_at_ms: i64,
        key: Option<&str>,
        body: Value<'_>,
    ) -> Result<(), Error> {
        let values = [
            Value::Integer(id),
            Value::Integer(queue.number),
            Value::Integer(visible_at_ms),
            Value::Integer(sent_at_ms),
            key.map_or(Value::Null, Value::Text),
        ];
        let statements = &self.statements.queues;
        self.inserting(|| {
            statements.send.execute_with(self.connection, &values)?;
            self.changed(1, "an item")?;
            statements.send_body.execute_with(self.connection, &[Value::Integer(id), body])?;
            self.changed(1, "the body of an item")?;
            key.map_or(Ok(()), |key| self.take_key(queue.number, key, id))
        })
    }

    /// Hands the body of an item to `keep`.
    pub(crate) fn body_of<B>(
        &self,
        id: i64,
        mut keep: impl FnMut(Value<'_>) -> B,
    ) -> Result<B, Error> {
        let values = [Value::Integer(id)];
        let found = self.one_row(&self.statements.queues.body, &values, |run| {
            run.column(0).map(&mut keep).ok_or_else(damaged_body)
        });
        found?.ok_or_else(damaged_body)
    }

    /// Stores the new state of an item.
    pub(crate) fn save_item(&self, id: i64, item: Item) -> Result<(), Error> {
        let receipt = item.delivery().map(|delivery| delivery.uuid.to_be_bytes());
        let number = |number: Option<i64>| number.map_or(Value::Null, Value::Integer);
        let delivery = item.delivery();
        let ended = delivery.and_then(|delivery| delivery.ended);
        let values = [
            Value::Integer(id),
            number(item.visible_at_ms()),
            Value::Integer(item.attempts()),
            number(delivery.map(|delivery| delivery.token)),
            receipt.as_ref().map_or(Value::Null, |bytes| Value::Blob(bytes)),
            number(delivery.map(|delivery| delivery.deadline_ms)),
            ended.map_or(Value::Null, |ended| Value::Text(ended.reason().word())),
        ];
        self.statements.queues.save.execute_with(self.connection, &values)?;
        self.changed(1, "an item")
    }

    pub(crate) fn note_on_item(&self, id: i64, note: Option<&str>) -> Result<(), Error> {
        let Some(note) = note else { return Ok(()) };
        let values = [Value::Integer(id), Value::Text(note)];
        self.statements.queues.note.execute_with(self.connection, &values)?;
        self.changed(1, "the note of an item")
    }

    /// Deletes an item with its body and its key.
    pub(crate) fn delete_item(&self, row: &ItemRow) -> Result<(), Error> {
        let statements = &self.statements.queues;
        let values = [Value::Integer(row.id)];
        statements.delete.execute_with(self.connection, &values)?;
        self.changed(1, "an item")?;
        statements.delete_body.execute_with(self.connection, &values)?;
        self.changed(1, "the body of an item")?;
        let Some(key) = &row.key else { return Ok(()) };
        // Another item may use it by now.
        let values = [Value::Integer(row.queue), Value::Text(key), Value::Integer(row.id)];
        statements.free_key.execute_with(self.connection, &values)
    }

    /// Lets an item use a key.
    pub(crate) fn take_key(&self, queue: i64, key: &str, item: i64) -> Result<(), Error> {
        let values = [Value::Integer(queue), Value::Text(key), Value::Integer(item)];
        self.statements.queues.take_key.execute_with(self.connection, &values)?;
        self.changed(1, "the key of an item")
    }

    /// Deletes up to `most` items of a queue, and answers how many.
    pub(crate) fn delete_items(&self, queue: QueueRow, most: i64) -> Result<i64, Error> {
        let values = [queue.number, most].map(Value::Integer);
        DELETE_ITEMS.iter().try_for_each(|sql| execute_once(self.connection, sql, &values))?;
        Ok(self.connection.changes())
    }

    /// Deletes a queue that has no items.
    pub(crate) fn delete_queue_row(&self, queue: QueueRow) -> Result<(), Error> {
        execute_once(self.connection, DELETE_QUEUE, &[Value::Integer(queue.number)])?;
        self.changed(1, "a queue")
    }

    /// Makes every receipt stale: its worker may have gone on after the backup was made.
    pub(crate) fn fence_queues(&self, fence: impl Fn(Item) -> Option<Item>) -> Result<(), Error> {
        let mut after = 0;
        let next = CachedStatement::new(NEXT_PASSING);
        while let Some(row) = self.one_row(&next, &[Value::Integer(after)], item_row)? {
            if let Some(item) = fence(row.item) {
                self.save_item(row.id, item)?;
            }
            after = row.id;
        }
        Ok(())
    }

    /// Runs the first query of a verb, which has one row at most. SQLite compiles a statement anew
    /// when the schema has changed; then this checks the schema again, in the same snapshot, which
    /// the run holds.
    fn first_query<T>(
        &self,
        cached: &CachedStatement,
        values: &[Value<'_>],
        read: impl FnOnce(&Run<'_, '_>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        self.queue_query(cached, values, |run, there| {
            if run.is_unverified() {
                self.verify_queues()?;
                run.mark_verified();
            }
            there.then(|| read(run)).transpose()
        })
    }

    /// Runs a query of one row at most, after the first one of a verb.
    fn one_row<T>(
        &self,
        cached: &CachedStatement,
        values: &[Value<'_>],
        read: impl FnOnce(&Run<'_, '_>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        self.queue_query(cached, values, |run, there| there.then(|| read(run)).transpose())
    }

    /// Runs a query. Where there are no tables of queues, there is no row.
    fn queue_query<T>(
        &self,
        cached: &CachedStatement,
        values: &[Value<'_>],
        read: impl FnOnce(&Run<'_, '_>, bool) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let found = cached.with(self.connection, |statement| {
            let mut run = statement.run(values)?;
            let there = run.step()?;
            read(&run, there)
        });
        none_without_table(found, || self.verify_queues())
    }

    /// Inserts rows, and leaves the caller's `last_insert_rowid()` as it was.
    fn inserting(&self, insert: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        self.connection.keeping_last_insert_rowid(insert)
    }
}

fn item_row(run: &Run<'_, '_>) -> Result<ItemRow, Error> {
    let queue = run.column(7).and_then(Value::integer).ok_or_else(damaged_item)?;
    let key = run.column(8).and_then(Value::text).map(str::to_owned);
    Ok(ItemRow { id: id(run)?, item: item(run)?, queue, key })
}

fn id(run: &Run<'_, '_>) -> Result<i64, Error> {
    run.column(0).and_then(Value::integer).ok_or_else(damaged_item)
}

/// Returns the item that the first columns mean.
fn item(run: &Run<'_, '_>) -> Result<Item, Error> {
    stored_item([1, 2, 3, 4, 5, 6].map(|index| run.column(index))).ok_or_else(damaged_item)
}

fn stored_item(columns: [Option<Value<'_>>; 6]) -> Option<Item> {
    let [visible_at_ms, attempts, token, receipt, deadline_ms, ended] = columns;
    let visible_at_ms = match visible_at_ms? {
        Value::Null => None,
        time => Some(time.integer()?),
    };
    let ended = match ended? {
        Value::Null => None,
        word => Some(Ended::parse(word.text()?)?),
    };
    let delivery = match (token?, receipt?, deadline_ms?) {
        (Value::Null, Value::Null, Value::Null) => None,
        (token, receipt, deadline_ms) => Some(Delivery {
            token: token.integer()?,
            uuid: bits(receipt)?,
            deadline_ms: deadline_ms.integer()?,
            ended,
        }),
    };
    Item::stored(visible_at_ms, attempts?.integer()?, delivery)
}

/// Returns the bits of a blob of 16 bytes.
fn bits(value: Value<'_>) -> Option<u128> {
    match value {
        Value::Blob(bytes) => Some(u128::from_be_bytes(bytes.try_into().ok()?)),
        _ => None,
    }
}

fn damaged_item() -> Error {
    ITEMS.mismatch("a row is damaged".into())
}

fn damaged_body() -> Error {
    BODIES.mismatch("the body of an item is missing or is text that is not UTF-8".into())
}
