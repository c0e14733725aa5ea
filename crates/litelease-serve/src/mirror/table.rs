//! A table in memory, and its rows as the engine keeps them.

use std::collections::{BTreeMap, BTreeSet};

use crate::failure::Failure;
use litelease::rusqlite::fallible_iterator::FallibleIterator;
use litelease::rusqlite::types::Value;
use litelease::rusqlite::{Batch, Connection, OptionalExtension, params_from_iter};

use super::RowChange;
use super::encoding::{self, Shift};

/// Our tables. SQLite's own are none of them.
const TABLES: &str = "SELECT name, sql FROM main.sqlite_schema
WHERE type = 'table' AND name LIKE 'litelease~_%' ESCAPE '~' ORDER BY name";

/// The columns that are stored: generated ones are not among them.
const COLUMNS: &str = "SELECT name, type, pk FROM pragma_table_info(?1) ORDER BY cid";

/// The keys of queues, which follow from their items. Of a dead item and a newer one, the newer has
/// it.
const KEYS_TABLE: &str = "litelease_queue_keys";
const FILL_KEYS: &str = "INSERT INTO main.litelease_queue_keys (queue, key, item)
SELECT queue, key, max(id) FROM main.litelease_queue_items WHERE key IS NOT NULL
GROUP BY queue, key";

/// The columns with a moment of the service's time. Moments that are only shown to people are not
/// shifted, nor are the dates at which access keys end.
pub(super) const MOMENTS: [(&str, &str); 10] = [
    ("litelease_answered", "at_ms"),
    ("litelease_limits", "not_after_ms"),
    ("litelease_limits", "progress_at_ms"),
    ("litelease_pool_slots", "expires_at_ms"),
    ("litelease_queue_items", "deadline_ms"),
    ("litelease_queue_items", "sent_at_ms"),
    ("litelease_queue_items", "visible_at_ms"),
    ("litelease_reads", "expires_at_ms"),
    ("litelease_requests", "repeated_at_ms"),
    ("litelease_requests", "until_ms"),
];

/// The tables whose rows belong to the name in their column `name`, and are stored with it.
const OF_NAMES: [&str; 9] = [
    "litelease_checkpoints",
    "litelease_finished",
    "litelease_limits",
    "litelease_newest_ticks",
    "litelease_reads",
    "litelease_requests",
    "litelease_served",
    "litelease_sessions",
    "litelease_values",
];

/// The one of them whose rows are never deleted here: there is one for every name ever granted.
const LASTING: &str = "litelease_served";

/// A row that was changed, and the name that it belongs to, if it does.
pub(super) struct ChangedRow {
    pub(super) number: i64,
    pub(super) name: Option<String>,
    /// The name that a row with this number belonged to before, if it did.
    pub(super) before: Option<String>,
    pub(super) change: RowChange,
}

/// A table in memory.
pub(super) struct Table {
    name: String,
    /// Its definition.
    pub(super) sql: String,
    /// The columns besides the row's number, each with whether it is a moment.
    columns: Vec<(String, bool)>,
    /// The name that each row belongs to: a deleted one shows it no more.
    of: BTreeMap<i64, String>,
}

/// Makes a table by the definition on the engine. Other SQL is refused, and not run: a program that
/// may write to the engine must not be able to write files here.
pub(super) fn create(connection: &Connection, name: &str, sql: &str) -> Result<(), Failure> {
    let mut statements = Batch::new(connection, sql);
    let first = statements.next()?.filter(|_| sql.starts_with(&format!("CREATE TABLE {name} ")));
    let damaged =
        || encoding::at(&[encoding::SCHEMA, name.as_bytes()].concat())(encoding::damaged());
    let mut statement = first.ok_or_else(damaged)?;
    if statements.next()?.is_some() {
        return Err(damaged());
    }
    statement.execute([])?;
    Ok(())
}

/// Reads which tables there are.
pub(super) fn read_all(connection: &Connection) -> Result<BTreeMap<String, Table>, Failure> {
    let mut tables = connection.prepare(TABLES)?;
    let tables = tables.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut found = BTreeMap::new();
    for table in tables {
        let (name, sql): (String, String) = table?;
        let columns = read_columns(connection, &name)?;
        found.insert(name.clone(), Table { name, sql, columns, of: BTreeMap::new() });
    }
    Ok(found)
}

fn read_columns(connection: &Connection, table: &str) -> Result<Vec<(String, bool)>, Failure> {
    let mut columns = connection.prepare(COLUMNS)?;
    let columns = columns.query_map([table], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let columns: Vec<(String, String, i64)> = columns.collect::<Result<_, _>>()?;
    // A single INTEGER PRIMARY KEY is the number of the row.
    let keys = columns.iter().filter(|(.., pk)| *pk > 0).count();
    let is_number = |kind: &str, pk: i64| keys == 1 && pk == 1 && kind == "INTEGER";
    let columns = columns.into_iter().filter(|(_, kind, pk)| !is_number(kind, *pk));
    let is_moment = |column: &str| MOMENTS.contains(&(table, column));
    Ok(columns.map(|(column, ..)| (column.clone(), is_moment(&column))).collect())
}

impl Table {
    /// Checks whether its rows have numbers, by which they are stored.
    fn has_numbers(&self) -> bool {
        self.name != KEYS_TABLE
    }

    fn names(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(|(name, _)| format!(", {name}")).collect();
        names.concat()
    }

    /// Reads which name each row belongs to.
    pub(super) fn read_names(&mut self, connection: &Connection) -> Result<(), Failure> {
        if self.has_names() {
            let sql = format!("SELECT rowid, name FROM main.{}", self.name);
            let mut names = connection.prepare(&sql)?;
            let names = names.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            self.of = names.collect::<Result<_, _>>()?;
        }
        Ok(())
    }

    /// Takes over what was known about a table before its definition was read again.
    pub(super) fn keep_names(&mut self, before: Option<Table>) {
        self.of = before.map(|before| before.of).unwrap_or_default();
    }

    fn has_names(&self) -> bool {
        OF_NAMES.contains(&&*self.name) && self.name != LASTING
    }

    /// Reads rows as they are now. One that is gone is deleted on the engine, too.
    pub(super) fn read(
        &mut self,
        connection: &Connection,
        numbers: &BTreeSet<i64>,
        offset_ms: i64,
        rows: &mut Vec<ChangedRow>,
    ) -> Result<(), Failure> {
        if !self.has_numbers() {
            return Ok(());
        }
        let of_name = if OF_NAMES.contains(&&*self.name) { "name" } else { "NULL" };
        let names = self.names();
        let sql = format!("SELECT {of_name}{names} FROM main.{} WHERE rowid = ?1", self.name);
        let mut select = connection.prepare(&sql)?;
        for number in numbers {
            let value = select.query_row([number], |row| {
                let mut bytes = Vec::new();
                for (at, (_, is_moment)) in self.columns.iter().enumerate() {
                    let shift = Shift::by(if *is_moment { -offset_ms } else { 0 });
                    encoding::write_value(row.get_ref(at + 1)?, shift, &mut bytes);
                }
                Ok((row.get(0)?, bytes))
            });
            let (name, value) = value.optional()?.map_or((None, None), |(name, value)| {
                let name: Option<String> = name;
                (name, Some(value))
            });
            let change = (encoding::row_key(&self.name, *number), value);
            let before = match name.clone().filter(|_| self.has_names()) {
                Some(name) => self.of.insert(*number, name),
                None => self.of.remove(number),
            };
            rows.push(ChangedRow { number: *number, name, before, change });
        }
        Ok(())
    }

    /// Writes a row as the engine has it.
    pub(super) fn put_back(
        &mut self,
        connection: &Connection,
        number: i64,
        stored: Option<&[u8]>,
        offset_ms: i64,
    ) -> Result<(), Failure> {
        connection
            .execute(&format!("DELETE FROM main.{} WHERE rowid = ?1", self.name), [number])?;
        self.of.remove(&number);
        let Some(mut bytes) = stored else { return Ok(()) };
        let mut values = vec![Value::Integer(number)];
        for (_, is_moment) in &self.columns {
            let shift = Shift::by(if *is_moment { offset_ms } else { 0 });
            values.push(encoding::read_value(&mut bytes, shift)?);
        }
        let (places, names) = (vec!["?"; values.len()].join(", "), self.names());
        let sql = format!("INSERT INTO main.{} (rowid{names}) VALUES ({places})", self.name);
        connection.execute(&sql, params_from_iter(values))?;
        if self.has_names() {
            let sql = format!("SELECT name FROM main.{} WHERE rowid = ?1", self.name);
            self.of.insert(number, connection.query_row(&sql, [number], |row| row.get(0))?);
        }
        Ok(())
    }

    /// Fills the table. Returns the deletions of rows that another one has replaced.
    pub(super) fn fill(
        &self,
        connection: &Connection,
        rows: &BTreeMap<Vec<u8>, Vec<u8>>,
        offset_ms: i64,
    ) -> Result<Vec<RowChange>, Failure> {
        if !self.has_numbers() {
            // Tables are filled in the order of their names, and items come before keys.
            connection.execute_batch(FILL_KEYS)?;
            return Ok(Vec::new());
        }
        let places = vec!["?"; self.columns.len() + 1].join(", ");
        let (name, names) = (&self.name, self.names());
        // A newer answer to the same request has replaced an older one without a word of the hook.
        let sql = format!("INSERT OR REPLACE INTO main.{name} (rowid{names}) VALUES ({places})");
        let mut insert = connection.prepare(&sql)?;
        let prefix = encoding::row_prefix(name);
        let mut count = 0_i64;
        let of_table =
            || rows.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
        for (key, bytes) in of_table() {
            let mut values = vec![Value::Integer(encoding::row_number(key, &prefix)?)];
            let mut bytes = bytes.as_slice();
            for (_, is_moment) in &self.columns {
                let shift = Shift::by(if *is_moment { offset_ms } else { 0 });
                let value = encoding::read_value(&mut bytes, shift);
                values.push(value.map_err(encoding::at(key))?);
            }
            insert.execute(params_from_iter(values))?;
            count += 1;
        }
        let sql = format!("SELECT count(*) FROM main.{name}");
        let filled: i64 = connection.query_row(&sql, [], |row| row.get(0))?;
        if filled == count {
            return Ok(Vec::new());
        }
        let mut find =
            connection.prepare(&format!("SELECT 1 FROM main.{name} WHERE rowid = ?1"))?;
        let mut replaced = Vec::new();
        for (key, _) in of_table() {
            if !find.exists([encoding::row_number(key, &prefix)?])? {
                replaced.push((key.clone(), None));
            }
        }
        Ok(replaced)
    }
}
