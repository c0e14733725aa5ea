//! The history: what became of names, queues and pools, in one table of a bounded number of rows.
//!
//! Triggers on the leases write it, so a file without a history has none, and its claims, renewals
//! and releases run the same instructions as before. Rare changes that a row of the leases does not
//! show (a tick, a dead item, who broke a lease and why) are written by their verbs.

use litelease_core::{HISTORY_KINDS, is_live};

use crate::definition::is_same;
use crate::schema::{Table, create, is_there};
use crate::sqlite::{Run, TxnState, Value};
use crate::statements::execute_once;
use crate::transaction::Boundary;
use crate::{Error, OwnedValue, Store, When};

/// The history of a file. Its first use makes it.
pub(crate) const HISTORY: Table = Table {
    name: "litelease_history_rows",
    definition: "(
  id INTEGER PRIMARY KEY,
  at_ms INTEGER NOT NULL,
  kind TEXT NOT NULL,
  object TEXT NOT NULL CHECK (object IN ('name', 'queue', 'pool')),
  name TEXT NOT NULL,
  owner TEXT,
  token INTEGER,
  since_ms INTEGER,
  number INTEGER,
  result INTEGER,
  actor TEXT,
  note TEXT
)",
};

/// How many rows a history keeps if nothing else is asked for.
pub const DEFAULT_KEEP: u32 = 100_000;

/// A trigger that writes the history: its name, and the text after that, without the end of its
/// body.
struct Trigger {
    name: &'static str,
    text: &'static str,
}

/// The triggers on the leases. Their texts name no schema, because the file may be attached under
/// another name. An end is written before the grant that follows it.
///
/// An INSERT … SELECT, or a trigger on the history itself, would let SQLite open a temporary table
/// for each change, which costs more than all the rest.
const TRIGGERS: [Trigger; 4] = [
    Trigger {
        name: "litelease_history_first",
        text: "AFTER INSERT ON litelease_resources WHEN NEW.owner IS NOT NULL
BEGIN
  INSERT INTO litelease_history_rows (at_ms, kind, object, name, owner, token)
  VALUES (NEW.updated_at_ms, 'granted', 'name', NEW.name, NEW.owner, NEW.token);",
    },
    Trigger {
        name: "litelease_history_ended",
        text: "BEFORE UPDATE OF owner, token ON litelease_resources
WHEN OLD.owner IS NOT NULL AND (NEW.token <> OLD.token OR NEW.owner IS NOT OLD.owner)
BEGIN
  INSERT INTO litelease_history_rows (at_ms, kind, object, name, owner, token, since_ms)
  VALUES (
    min(NEW.updated_at_ms, OLD.lease_expires_at_ms),
    CASE WHEN OLD.lease_expires_at_ms <= NEW.updated_at_ms THEN 'expired'
      WHEN NEW.token = OLD.token THEN 'released'
      WHEN NEW.owner IS NULL THEN 'broken' ELSE 'transferred' END,
    'name', OLD.name, OLD.owner, OLD.token, OLD.created_at_ms
  );",
    },
    Trigger {
        name: "litelease_history_granted",
        text: "AFTER UPDATE OF token ON litelease_resources
WHEN NEW.owner IS NOT NULL AND NEW.token <> OLD.token
BEGIN
  INSERT INTO litelease_history_rows (at_ms, kind, object, name, owner, token)
  VALUES (NEW.updated_at_ms, 'granted', 'name', NEW.name, NEW.owner, NEW.token);",
    },
    Trigger {
        name: "litelease_history_late",
        text: "AFTER UPDATE OF lease_expires_at_ms ON litelease_resources
WHEN NEW.token = OLD.token AND NEW.owner = OLD.owner
  AND NEW.lease_expires_at_ms > OLD.lease_expires_at_ms
  AND (OLD.lease_expires_at_ms - NEW.updated_at_ms) * 3
    < NEW.lease_expires_at_ms - NEW.updated_at_ms
BEGIN
  INSERT INTO litelease_history_rows (at_ms, kind, object, name, owner, token)
  VALUES (NEW.updated_at_ms, 'renewed_late', 'name', NEW.name, NEW.owner, NEW.token);",
    },
];

/// The end of a trigger, up to the number of rows that are kept.
const TRIM: &str = "DELETE FROM litelease_history_rows WHERE id = last_insert_rowid() - ";

/// Deletes all rows but the newest `?1`.
const TRIM_ALL: &str = "DELETE FROM main.litelease_history_rows
WHERE id <= (SELECT max(id) FROM main.litelease_history_rows) - ?1";

/// Adds a row.
const RECORD: &str = "INSERT INTO main.litelease_history_rows
(at_ms, kind, object, name, owner, token, since_ms, number, result, note)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";

/// Gives the rows after the id `?1` another kind, where they are the end of a live grant.
const RENAME: &str = "UPDATE main.litelease_history_rows SET kind = ?2
WHERE id > ?1 AND since_ms IS NOT NULL AND kind <> 'expired'";

/// Adds to the rows after the id `?1` who has made the change, and what came of it.
const SIGN: &str = "UPDATE main.litelease_history_rows SET actor = ?2, note = coalesce(note, ?3),
result = coalesce(result, ?4) WHERE id > ?1";

const NEWEST: &str = "SELECT coalesce(max(id), 0) FROM main.litelease_history_rows";

const LIST: &str = "SELECT id, at_ms, kind, object, name, owner, token, since_ms, number, result,
actor, note FROM main.litelease_history_rows";

/// A row of the history: an event of a name, a queue or a pool.
///
/// ```
/// # use litelease_store::HistoryRow;
/// let row = HistoryRow { kind: "released".into(), since_ms: Some(100), at_ms: 350, ..Default::default() };
/// assert_eq!(row.held_ms(), Some(250));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryRow {
    /// Its number. Later rows have larger ones. 0 for the end of a lease that has run out and was
    /// not granted again: it is shown, and recorded by the next grant.
    pub id: i64,
    /// When it happened. A lease that ran out did so before the row was written.
    pub at_ms: i64,
    /// The event in a word: `granted`, `released`, `expired`, `broken`…
    pub kind: String,
    /// The kind of object that it is about: a `name`, a `queue` or a `pool`.
    pub object: String,
    /// Its name.
    pub name: String,
    /// The holder.
    pub owner: Option<String>,
    /// The token of the grant.
    pub token: Option<i64>,
    /// When a grant that ended had begun.
    pub since_ms: Option<i64>,
    /// The tick, item or slot that it is about.
    pub number: Option<i64>,
    /// The exit code of a command that ended, or how many items an operator has changed.
    pub result: Option<i64>,
    /// The access key of the operator who did it.
    pub actor: Option<String>,
    /// The reason that was given.
    pub note: Option<String>,
}

impl HistoryRow {
    /// Returns how long a grant that ended was held.
    pub fn held_ms(&self) -> Option<i64> {
        self.since_ms.map(|since_ms| self.at_ms.saturating_sub(since_ms))
    }
}

/// The rows of a history to return. The default is all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct HistoryFilter<'a> {
    /// Only rows about this name.
    pub name: Option<&'a str>,
    /// Only rows about names that begin with this text.
    pub prefix: Option<&'a str>,
    /// Only rows about such an object.
    pub object: Option<&'a str>,
    /// Only rows of this kind.
    pub kind: Option<&'a str>,
    /// Only what happened at this time or later.
    pub since_ms: Option<i64>,
    /// Only rows before this id: the last one of the page before.
    pub before: Option<i64>,
    /// Only rows after this id.
    pub after: Option<i64>,
}

/// An operator or a command, for the rows that its changes add.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actor {
    /// The name of the access key.
    pub key: Option<String>,
    /// The reason.
    pub note: Option<String>,
    /// The exit code of the command that ended.
    pub result: Option<i64>,
}

/// A row that a verb adds.
#[derive(Clone, Copy, Default)]
pub(crate) struct Event<'a> {
    pub(crate) kind: &'a str,
    pub(crate) object: &'a str,
    pub(crate) name: &'a str,
    pub(crate) owner: Option<&'a str>,
    pub(crate) token: Option<i64>,
    pub(crate) since_ms: Option<i64>,
    pub(crate) number: Option<i64>,
    pub(crate) result: Option<i64>,
    pub(crate) note: Option<&'a str>,
}

impl<'a> Event<'a> {
    pub(crate) fn new(kind: &'a str, object: &'a str, name: &'a str) -> Self {
        debug_assert!(HISTORY_KINDS.contains(&kind), "no kind {kind:?}");
        Event { kind, object, name, ..Event::default() }
    }
}

impl Trigger {
    /// Returns its text as the schema has it. It deletes the row that is too many.
    fn create(&self, keep: i64) -> String {
        format!("CREATE TRIGGER {} {}\n  {TRIM}{keep};\nEND", self.name, self.text)
    }
}

/// Returns the number of rows that a trigger of this text keeps.
fn kept(sql: &str) -> Option<i64> {
    let digits = sql.rsplit_once("rowid() - ")?.1.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse::<u32>().ok().map(i64::from)
}

/// Checks whether a trigger on the leases is one that writes the history.
pub(crate) fn is_our_trigger(name: &str, sql: &str) -> bool {
    let found = TRIGGERS.iter().find(|trigger| trigger.name == name);
    found.is_some_and(|trigger| is_same(sql, &trigger.create(kept(sql).unwrap_or(0))))
}

impl Store {
    /// Keeps a history of this many rows from now on. 0 stops it: what was recorded stays, and can
    /// be read.
    pub fn keep_history(&self, keep: u32) -> Result<(), Error> {
        self.with_context("keep a history", None, || {
            self.within(self.boundary()?, || {
                self.verify()?;
                let keep = i64::from(keep);
                match self.history_keeps()?.unwrap_or(0) == keep {
                    true => Ok(()),
                    false if keep == 0 => self.all_or_nothing(|| self.drop_triggers()),
                    false => self.all_or_nothing(|| self.make_history(keep)),
                }
            })
        })
    }

    fn make_history(&self, keep: i64) -> Result<(), Error> {
        if !is_there(self.connection, &HISTORY)? {
            create(self.connection, &HISTORY)?;
        }
        self.drop_triggers()?;
        for trigger in &TRIGGERS {
            let sql = trigger.create(keep).replacen("TRIGGER ", "TRIGGER main.", 1);
            execute_once(self.connection, &sql, &[])?;
        }
        execute_once(self.connection, TRIM_ALL, &[Value::Integer(keep)])
    }

    fn drop_triggers(&self) -> Result<(), Error> {
        TRIGGERS.iter().try_for_each(|trigger| {
            let sql = format!("DROP TRIGGER IF EXISTS main.{}", trigger.name);
            execute_once(self.connection, &sql, &[])
        })
    }

    /// Returns how many rows the history keeps; `None` if it is off.
    pub fn history_keeps(&self) -> Result<Option<i64>, Error> {
        let sql = "SELECT sql FROM main.sqlite_schema WHERE type = 'trigger' AND name = ?1";
        let mut statement = self.connection.prepare(sql)?;
        let mut run = statement.run(&[Value::Text(TRIGGERS[0].name)])?;
        Ok(if run.step()? { run.column(0).and_then(Value::text).and_then(kept) } else { None })
    }

    /// Returns the newest rows first, `limit` of them at most; or the oldest first, if they are to
    /// come after an id. Needs no write lock.
    pub fn history(
        &self,
        filter: HistoryFilter<'_>,
        limit: usize,
    ) -> Result<Vec<HistoryRow>, Error> {
        self.with_context("read the history", None, || {
            self.settle()?;
            self.verify()?;
            if !is_there(self.connection, &HISTORY)? {
                return Ok(Vec::new());
            }
            let HistoryFilter { name, prefix, object, kind, since_ms, before, after } = filter;
            let conditions = [
                ("name = ?", name.map(Value::Text)),
                ("substr(name, 1, length(?)) = ?", prefix.map(Value::Text)),
                ("object = ?", object.map(Value::Text)),
                ("kind = ?", kind.map(Value::Text)),
                ("at_ms >= ?", since_ms.map(Value::Integer)),
                ("id < ?", before.map(Value::Integer)),
                ("id > ?", after.map(Value::Integer)),
            ];
            let mut sql = format!("{LIST} WHERE TRUE");
            let mut values = Vec::new();
            for (condition, value) in conditions {
                if let Some(value) = value {
                    values.push(value);
                    let place = format!("?{}", values.len());
                    sql.push_str(&format!(" AND {}", condition.replace('?', &place)));
                }
            }
            let order = if after.is_some() { "ASC" } else { "DESC" };
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            sql.push_str(&format!(" ORDER BY id {order} LIMIT {limit}"));
            let mut statement = self.connection.prepare(&sql)?;
            let mut run = statement.run(&values)?;
            let mut rows: Vec<HistoryRow> = self.unrecorded_end(filter)?.into_iter().collect();
            while run.step()? {
                let damaged = || HISTORY.mismatch("one of its rows is damaged".into());
                rows.push(history_row(&run).ok_or_else(damaged)?);
            }
            Ok(rows)
        })
    }

    /// Returns the end of a lease that has run out, which the next grant of the name will record.
    fn unrecorded_end(&self, filter: HistoryFilter<'_>) -> Result<Option<HistoryRow>, Error> {
        let HistoryFilter { name, prefix, object, kind, since_ms, before, after } = filter;
        let Some(name) = name.filter(|_| prefix.is_none() && before.is_none() && after.is_none())
        else {
            return Ok(None);
        };
        if object.is_some_and(|object| object != "name") || kind.is_some_and(|it| it != "expired") {
            return Ok(None);
        }
        let Some(row) = self.row(name)? else { return Ok(None) };
        let now_ms = When::Now.now_ms();
        Ok(row
            .tenure
            .filter(|(_, end_ms)| !is_live(*end_ms, now_ms))
            .map(|(owner, end_ms)| HistoryRow {
                at_ms: end_ms,
                kind: "expired".into(),
                object: "name".into(),
                name: name.into(),
                owner: Some(owner),
                token: Some(row.token),
                since_ms: row.since_ms,
                ..HistoryRow::default()
            })
            .filter(|row| since_ms.is_none_or(|since_ms| row.at_ms >= since_ms)))
    }

    /// Does `work` in one transaction, and records who has done it, why, and with which result.
    pub fn acting<T>(
        &self,
        actor: &Actor,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let boundary = self.boundary()?;
        if *actor == Actor::default() || self.history_keeps()?.is_none() {
            return work();
        }
        let text = |text: &Option<String>| text.clone().map_or(OwnedValue::Null, OwnedValue::Text);
        let result = actor.result.map_or(OwnedValue::Null, OwnedValue::Integer);
        let values = [text(&actor.key), text(&actor.note), result];
        self.completing(boundary, SIGN, &values, work)
    }

    /// Makes a change by which a live grant ends, and records the end as one of this kind.
    pub(crate) fn ending<T>(
        &self,
        kind: &str,
        boundary: Boundary,
        work: impl FnOnce(Boundary) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.history_keeps()?.is_none() {
            return work(boundary);
        }
        let values = [OwnedValue::Text(kind.into())];
        self.completing(boundary, RENAME, &values, || work(Boundary::Joined(TxnState::Write)))
    }

    /// Does `work`, and then changes the rows that it has added.
    fn completing<T>(
        &self,
        boundary: Boundary,
        sql: &str,
        values: &[OwnedValue],
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        // Inside the transaction there is no way to make the record durable.
        self.record_boot_before_transaction()?;
        self.within(boundary, || {
            let newest = [Value::Integer(self.newest_recorded()?)];
            let done = work()?;
            let values: Vec<_> =
                newest.into_iter().chain(values.iter().map(OwnedValue::value)).collect();
            execute_once(self.connection, sql, &values)?;
            Ok(done)
        })
    }

    fn newest_recorded(&self) -> Result<i64, Error> {
        let mut statement = self.connection.prepare(NEWEST)?;
        let mut run = statement.run(&[])?;
        run.step()?;
        Ok(run.column(0).and_then(Value::integer).unwrap_or(0))
    }

    /// Makes a change and adds a row about it, if the file keeps a history: both, or neither.
    pub(crate) fn recording(
        &self,
        now_ms: i64,
        event: Event<'_>,
        change: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.history_keeps()?.is_none() {
            return change();
        }
        self.all_or_nothing(|| {
            change()?;
            self.record_event(now_ms, event)
        })
    }

    /// Adds a row in the open transaction, if the file keeps a history.
    pub(crate) fn record_event<'a>(&self, now_ms: i64, event: Event<'a>) -> Result<(), Error> {
        let Some(keep) = self.history_keeps()? else { return Ok(()) };
        let text = |text: Option<&'a str>| text.map_or(Value::Null, Value::Text);
        let number = |number: Option<i64>| number.map_or(Value::Null, Value::Integer);
        let values = [
            Value::Integer(now_ms),
            Value::Text(event.kind),
            Value::Text(event.object),
            Value::Text(event.name),
            text(event.owner),
            number(event.token),
            number(event.since_ms),
            number(event.number),
            number(event.result),
            text(event.note),
        ];
        self.connection.keeping_last_insert_rowid(|| {
            execute_once(self.connection, RECORD, &values)?;
            execute_once(self.connection, TRIM_ALL, &[Value::Integer(keep)])
        })
    }
}

fn history_row(run: &Run<'_, '_>) -> Option<HistoryRow> {
    let number = |index| match run.column(index) {
        Some(Value::Null) => Some(None),
        value => value.and_then(Value::integer).map(Some),
    };
    let text = |index| match run.column(index) {
        Some(Value::Null) => Some(None),
        value => value.and_then(Value::text).map(|text| Some(text.to_owned())),
    };
    Some(HistoryRow {
        id: number(0)??,
        at_ms: number(1)??,
        kind: text(2)??,
        object: text(3)??,
        name: text(4)??,
        owner: text(5)?,
        token: number(6)?,
        since_ms: number(7)?,
        number: number(8)?,
        result: number(9)?,
        actor: text(10)?,
        note: text(11)?,
    })
}
