//! Guarded tables: adding and removing triggers, and the record that shows when triggers are gone.
//!
//! A migration that rebuilds a table (create, copy, drop, rename) drops its triggers silently,
//! which would leave the table unguarded. So guards are recorded, and the record is compared with
//! the schema.

use litelease_core::Guard;

use crate::definition::is_same;
use crate::present::{forget_refusals, refusals};
use crate::schema::{Table, create, is_there};
use crate::sqlite::Value;
use crate::statements::execute_once;
use crate::table_info::TableInfo;
use crate::trigger::{COLUMNS, Demand, Fence, WRITES, columns_in, columns_trigger, trigger_name};
use crate::{Error, Store};

/// A guard as it is right now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GuardInfo {
    /// The guarded table.
    pub table: String,
    /// The name whose newest token a write must present.
    pub name: String,
    /// The column that it is presented in; otherwise the connection presents it.
    pub column: Option<String>,
    /// The lease must be live, too.
    pub strict: bool,
    /// True if the triggers exist as they must. If not, the table is unguarded: guard it again.
    pub is_intact: bool,
    /// How many writes it has refused in this process, for a guard by connection.
    pub refusals: u64,
}

/// The guards, one row for each. The first one creates the table.
pub(crate) const GUARDED: Table = Table {
    name: "litelease_guarded",
    definition: "(
  number INTEGER NOT NULL,
  table_name TEXT NOT NULL,
  name TEXT NOT NULL,
  column_name TEXT,
  strict INTEGER NOT NULL CHECK (strict IN (0, 1)),
  PRIMARY KEY (number, name)
)",
};

const RECORDS: &str = "SELECT number, table_name, name, column_name, strict
FROM main.litelease_guarded ORDER BY number, name";
const FORGET: &str = "DELETE FROM main.litelease_guarded WHERE number = ?1";
const RECORD: &str = "INSERT INTO main.litelease_guarded
(number, table_name, name, column_name, strict) VALUES (?1, ?2, ?3, ?4, ?5)";
const TRIGGER: &str = "SELECT tbl_name, sql FROM main.sqlite_schema
WHERE type = 'trigger' AND name = ?1 COLLATE NOCASE";

/// A guarded table: its record, and the state of its triggers.
#[derive(Clone)]
struct Guarded {
    number: i64,
    /// Its name in the record.
    recorded: String,
    /// Its name now.
    table: String,
    demands: Vec<Demand>,
    is_intact: bool,
    /// The record has the names as they are now, and every column is kept from being dropped.
    is_current: bool,
}

/// No number: the name that a guarded table has left, which is unguarded now.
const MOVED_AWAY: i64 = 0;

impl Store {
    /// Guards a table: from now on a write to it must present the newest token of `name`.
    ///
    /// Guarding it again in the same way changes nothing, or restores triggers that were dropped.
    pub fn guard(&self, table: &str, name: &str, guard: &Guard) -> Result<(), Error> {
        let column = guard.column().map(str::to_owned);
        let demand = Demand { name: name.into(), column, strict: guard.is_strict() };
        self.with_context("guard", Some(table), || {
            self.within(self.boundary()?, || {
                self.verify()?;
                self.all_or_nothing(|| self.put_on(table, demand))
            })
        })
    }

    /// Takes the guards off a table: those by `name`, or all of them. Answers how many there were.
    pub fn unguard(&self, table: &str, name: Option<&str>) -> Result<u64, Error> {
        self.with_context("unguard", Some(table), || {
            self.within(self.boundary()?, || {
                self.verify()?;
                self.all_or_nothing(|| self.take_off(table, name))
            })
        })
    }

    /// Returns all guards, in the order in which their tables were first guarded.
    pub fn guards(&self) -> Result<Vec<GuardInfo>, Error> {
        self.with_context("list guards", None, || {
            self.verify()?;
            let file = self.connection.database_key();
            let guarded = self.guarded()?;
            Ok(guarded.iter().flat_map(|table| table.guards(&file)).collect())
        })
    }

    /// Returns the guards that are recorded but not there any more: names with their tables.
    pub(crate) fn missing_guards(&self) -> Result<Vec<(String, String)>, Error> {
        let mut missing = self.guarded()?;
        missing.retain(|table| !table.is_intact);
        let pairs = missing.into_iter().flat_map(|Guarded { table, demands, .. }| {
            demands.into_iter().map(move |demand| (demand.name, table.clone()))
        });
        Ok(pairs.collect())
    }

    fn put_on(&self, table: &str, mut demand: Demand) -> Result<(), Error> {
        let table_info = TableInfo::read(self.connection, table)?;
        demand.column = demand.column.map(|column| table_info.spelled(column));
        let known = self.guarded()?;
        let mut guarded = match known.iter().find(|known| known.is_called(&table_info.table)) {
            Some(known) if known.number != MOVED_AWAY => known.clone(),
            moved => Guarded {
                number: self.free_number(&known)?,
                recorded: table_info.table.clone(),
                table: table_info.table.clone(),
                demands: moved.map(|moved| moved.demands.clone()).unwrap_or_default(),
                is_intact: false,
                is_current: false,
            },
        };
        match guarded.demands.iter().find(|known| known.name == demand.name) {
            Some(known) if *known == demand && guarded.is_intact && guarded.is_current => {
                return Ok(());
            }
            Some(known) if *known == demand => {}
            Some(_) => {
                let reason = "it is already guarded by this name, in another way: unguard it first";
                return Err(table_info.refused(reason.into()));
            }
            None => guarded.demands.push(demand),
        }
        guarded.demands.sort_by(|one, other| one.name.cmp(&other.name));
        table_info.check_columns(self.connection, &guarded.demands)?;
        // The table may have got a new name since, or come back under its old one.
        guarded.table.clone_from(&table_info.table);
        self.set_up(&guarded, &table_info)
    }

    fn take_off(&self, table: &str, name: Option<&str>) -> Result<u64, Error> {
        let known = self.guarded()?;
        let Some(mut guarded) = known.iter().find(|known| known.is_called(table)).cloned() else {
            return Ok(0);
        };
        let before = guarded.demands.len();
        guarded.demands.retain(|demand| name.is_some_and(|name| demand.name != name));
        let taken = before - guarded.demands.len();
        if taken == 0 {
            return Ok(0);
        }
        if guarded.number == MOVED_AWAY {
            // The table that it moved to stays guarded, and from now on under that name only.
            let moved = known.iter().filter(|known| known.recorded.eq_ignore_ascii_case(table));
            for moved in moved.filter(|moved| !moved.is_called(table)) {
                self.record(moved)?;
            }
            return Ok(taken as u64);
        }
        self.clear(guarded.number)?;
        match guarded.demands.is_empty() {
            true => {}
            false if TableInfo::exists(self.connection, &guarded.table)? => {
                let table_info = TableInfo::read(self.connection, &guarded.table)?;
                self.set_up(&guarded, &table_info)?;
            }
            false => self.record(&guarded)?,
        }
        Ok(taken as u64)
    }

    /// Returns a number that neither a guarded table nor a trigger has: a trigger without a record,
    /// as a dump of parts of a file may leave it, must not be taken for ours.
    fn free_number(&self, known: &[Guarded]) -> Result<i64, Error> {
        let largest = known.iter().map(|known| known.number).max().unwrap_or(0);
        let mut number = largest.saturating_add(1);
        while self.has_triggers(number)? {
            number = number.saturating_add(1);
        }
        forget_refusals(&self.connection.database_key(), number);
        Ok(number)
    }

    fn has_triggers(&self, number: i64) -> Result<bool, Error> {
        for kind in WRITES.into_iter().chain([COLUMNS]) {
            if self.trigger(&trigger_name(number, kind))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes triggers and record of a table anew.
    fn set_up(&self, guarded: &Guarded, table_info: &TableInfo) -> Result<(), Error> {
        if !is_there(self.connection, &GUARDED)? {
            create(self.connection, &GUARDED)?;
        }
        self.clear(guarded.number)?;
        let fence = guarded.fence(table_info);
        for write in WRITES {
            let trigger = format!("CREATE TRIGGER main.{}", fence.trigger(write));
            execute_once(self.connection, &trigger, &[])?;
        }
        let trigger = format!("CREATE TRIGGER main.{}", guarded.columns_trigger(table_info));
        execute_once(self.connection, &trigger, &[])?;
        self.record(guarded)
    }

    /// Writes the record of a table anew.
    fn record(&self, guarded: &Guarded) -> Result<(), Error> {
        execute_once(self.connection, FORGET, &[Value::Integer(guarded.number)])?;
        self.connection.keeping_last_insert_rowid(|| {
            guarded.demands.iter().try_for_each(|demand| {
                let column = demand.column.as_deref().map_or(Value::Null, Value::Text);
                let values = [
                    Value::Integer(guarded.number),
                    Value::Text(&guarded.table),
                    Value::Text(&demand.name),
                    column,
                    Value::Integer(i64::from(demand.strict)),
                ];
                execute_once(self.connection, RECORD, &values)
            })
        })
    }

    fn clear(&self, number: i64) -> Result<(), Error> {
        for kind in WRITES.into_iter().chain([COLUMNS]) {
            let drop = format!("DROP TRIGGER IF EXISTS main.{}", trigger_name(number, kind));
            execute_once(self.connection, &drop, &[])?;
        }
        execute_once(self.connection, FORGET, &[Value::Integer(number)])
    }

    /// Returns every guarded table, compared with the schema.
    fn guarded(&self) -> Result<Vec<Guarded>, Error> {
        if !is_there(self.connection, &GUARDED)? {
            return Ok(Vec::new());
        }
        let mut tables = self.records()?;
        for table in &mut tables {
            self.find(table)?;
        }
        self.add_places_left_open(&mut tables)?;
        Ok(tables)
    }

    /// A table that RENAME has moved with its triggers is guarded under its new name. But if
    /// another table has taken its old name, that one is unguarded.
    fn add_places_left_open(&self, tables: &mut Vec<Guarded>) -> Result<(), Error> {
        let moved = tables.iter().filter(|moved| !moved.is_called(&moved.recorded));
        let mut open = Vec::new();
        for moved in moved {
            let is_guarded = tables.iter().any(|known| known.is_called(&moved.recorded));
            if !is_guarded && TableInfo::exists(self.connection, &moved.recorded)? {
                let table = moved.recorded.clone();
                open.push(Guarded { number: MOVED_AWAY, table, is_intact: false, ..moved.clone() });
            }
        }
        tables.append(&mut open);
        Ok(())
    }

    fn records(&self) -> Result<Vec<Guarded>, Error> {
        let mut tables: Vec<Guarded> = Vec::new();
        let mut statement = self.connection.prepare(RECORDS)?;
        let mut run = statement.run(&[])?;
        while run.step()? {
            let number = run.column(0).and_then(Value::integer);
            let text = |index| run.column(index).and_then(Value::text).map(str::to_owned);
            let strict = run.column(4).and_then(Value::integer);
            let (Some(number), Some(table), Some(name), Some(strict)) =
                (number, text(1), text(2), strict)
            else {
                return Err(GUARDED.mismatch("a row of it is damaged".into()));
            };
            let demand = Demand { name, column: text(3), strict: strict == 1 };
            match tables.last_mut().filter(|last| last.number == number) {
                Some(last) => last.demands.push(demand),
                None => tables.push(Guarded {
                    recorded: table.clone(),
                    number,
                    table,
                    demands: vec![demand],
                    is_intact: false,
                    is_current: true,
                }),
            }
        }
        Ok(tables)
    }

    /// Finds the triggers of a guarded table. RENAME changes the names of the table and its columns
    /// in them, but not in the record.
    fn find(&self, guarded: &mut Guarded) -> Result<(), Error> {
        let mut texts = Vec::new();
        let mut called: Option<String> = None;
        for write in WRITES {
            let Some((table, text)) = self.trigger(&trigger_name(guarded.number, write))? else {
                return Ok(());
            };
            if called.as_ref().is_some_and(|called| *called != table) {
                return Ok(());
            }
            called = Some(table);
            texts.push(text);
        }
        let Some(table) = called else { return Ok(()) };
        let of_columns = self.trigger(&trigger_name(guarded.number, COLUMNS))?;
        let Some((_, of_columns)) = of_columns.filter(|(of, _)| *of == table) else {
            return Ok(());
        };
        let table_info = match TableInfo::read(self.connection, &table) {
            Err(Error::CannotGuard { .. }) => return Ok(()),
            table_info => table_info?,
        };
        let mut renamed = Guarded { table, ..guarded.clone() };
        let columns = columns_in(&texts[0]);
        let presented = renamed.demands.iter_mut().filter_map(|demand| demand.column.as_mut());
        for (column, found) in presented.zip(columns) {
            *column = found;
        }
        let fence = renamed.fence(&table_info);
        renamed.is_intact =
            WRITES.iter().zip(&texts).all(|(write, text)| fence.is_trigger(write, text));
        if renamed.is_intact {
            let wanted = format!("CREATE TRIGGER {}", renamed.columns_trigger(&table_info));
            renamed.is_current = renamed.table == guarded.table
                && renamed.demands == guarded.demands
                && is_same(&of_columns, &wanted);
            *guarded = renamed;
        }
        Ok(())
    }

    fn trigger(&self, name: &str) -> Result<Option<(String, String)>, Error> {
        let mut statement = self.connection.prepare(TRIGGER)?;
        let mut run = statement.run(&[Value::Text(name)])?;
        if !run.step()? {
            return Ok(None);
        }
        let text = |index| run.column(index).and_then(Value::text).map(str::to_owned);
        Ok(text(0).zip(text(1)))
    }
}

impl Guarded {
    /// Compares the name of a table as SQLite does, which ignores the case of the letters A to Z.
    fn is_called(&self, table: &str) -> bool {
        self.table.eq_ignore_ascii_case(table)
    }

    fn fence<'a>(&'a self, table_info: &'a TableInfo) -> Fence<'a> {
        Fence {
            number: self.number,
            table: &self.table,
            key: &table_info.key,
            demands: &self.demands,
        }
    }

    fn columns_trigger(&self, table_info: &TableInfo) -> String {
        columns_trigger(self.number, &self.table, table_info.column_names())
    }

    fn guards(&self, file: &str) -> impl Iterator<Item = GuardInfo> {
        self.demands.iter().map(move |demand| GuardInfo {
            table: self.table.clone(),
            name: demand.name.clone(),
            column: demand.column.clone(),
            strict: demand.strict,
            is_intact: self.is_intact,
            refusals: refusals(file.to_owned(), self.number, &demand.name),
        })
    }
}
