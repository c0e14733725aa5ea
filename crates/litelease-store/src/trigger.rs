//! The triggers of a guarded table, as text.
//!
//! They are plain SQL and are in the file, so they hold for every program that writes to it. They
//! never name a database: in a trigger, a table is one of the file that the trigger is in. They
//! name no table or column in a message either, because ALTER TABLE RENAME does not change
//! messages.

use std::fmt::Write;

use crate::definition::{is_same, word_by_word};
use crate::error::Short;

/// The demand of a guard on a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// The name whose newest token must be presented.
    pub(crate) name: String,
    /// The column that it is presented in; otherwise the connection presents it.
    pub(crate) column: Option<String>,
    /// The lease must be live, too.
    pub(crate) strict: bool,
}

/// The way to find the row again that a write has touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// By its rowid, under the alias that no column hides.
    Rowid(&'static str),
    /// By its primary key: columns, with the collation that makes two of them equal there.
    Columns(Vec<(String, String)>),
    /// Not at all: columns hide every alias of the rowid. No token can be presented in a column
    /// then.
    None,
}

/// A table with the demands on its writes. The number is what its triggers are called by.
pub(crate) struct Fence<'a> {
    pub(crate) number: i64,
    pub(crate) table: &'a str,
    pub(crate) key: &'a Key,
    pub(crate) demands: &'a [Demand],
}

/// The three kinds of writes.
pub(crate) const WRITES: [&str; 3] = ["insert", "update", "delete"];

/// Returns the name of a trigger.
pub(crate) fn trigger_name(number: i64, write: &str) -> String {
    format!("litelease_guard_{number}_{write}")
}

/// The last part of the name of the trigger that names every column.
pub(crate) const COLUMNS: &str = "columns";

/// Returns a trigger that never runs and names every column, as it follows CREATE TRIGGER. ALTER
/// TABLE … DROP COLUMN rewrites the rows and fires no trigger, but SQLite refuses it for a column
/// that a trigger names.
pub(crate) fn columns_trigger<'a>(
    number: i64,
    table: &str,
    columns: impl Iterator<Item = &'a str>,
) -> String {
    let columns: Vec<String> = columns.map(|column| format!("OLD.{}", quoted(column))).collect();
    format!(
        "{} BEFORE DELETE ON {} WHEN FALSE\nBEGIN\nSELECT {};\nEND",
        quoted(&trigger_name(number, COLUMNS)),
        quoted(table),
        columns.join(", ")
    )
}

impl Fence<'_> {
    /// Returns the trigger of one kind of write, as it follows CREATE TRIGGER: first its name.
    pub(crate) fn trigger(&self, write: &str) -> String {
        let (name, table) = (trigger_name(self.number, write), quoted(self.table));
        let verb = write.to_uppercase();
        let rest = match (write, self.by_column()) {
            ("delete", true) => format!("BEFORE DELETE ON {table} BEGIN\n{}", self.refuse_delete()),
            (_, false) => format!(
                "BEFORE {verb} ON {table} WHEN NOT ({})\nBEGIN\n{}",
                self.each(" AND ", holds),
                self.refuse()
            ),
            // A presentation is used up by the write: the negated token stays, which passes no
            // check. That is an update, too, and the only one that needs no token.
            ("update", true) => format!(
                "AFTER UPDATE ON {table} WHEN ({}) IS NOT TRUE\nBEGIN\n{}",
                self.columns(" AND ", |column| format!(
                    "typeof(OLD.{column}) = 'integer' AND OLD.{column} > 0 AND NEW.{column} = -OLD.{column}"
                )),
                self.check_and_use_up(|demand| self.check_update(demand))
            ),
            (_, true) => format!(
                "AFTER {verb} ON {table}\nBEGIN\n{}",
                self.check_and_use_up(|demand| self.check(demand))
            ),
        };
        format!("{} {rest}END", quoted(&name))
    }

    /// Checks whether a trigger in the schema is that one. ALTER TABLE … RENAME of the lease table
    /// quotes its name here, too.
    pub(crate) fn is_trigger(&self, write: &str, sql: &str) -> bool {
        let wanted = format!("CREATE TRIGGER {}", self.trigger(write));
        is_same(sql, &wanted)
    }

    fn by_column(&self) -> bool {
        self.demands.iter().any(|demand| demand.column.is_some())
    }

    /// A demand is not met. The last trigger needs no condition: then no write can slip through
    /// between two reads of the clock.
    fn refuse(&self) -> String {
        let last = self.demands.len().saturating_sub(1);
        let mut at = 0;
        self.each("", |demand| {
            at += 1;
            match at > last {
                true => format!("{};\n", self.refusal(demand)),
                false => self.check(demand),
            }
        })
    }

    /// The statement that fires a trigger decides how conflicts in it are handled, so using up a
    /// token may be ignored silently; other triggers can do that too. Hence the check of its
    /// changes.
    fn check_and_use_up(&self, check: impl FnMut(&Demand) -> String) -> String {
        format!(
            "{}UPDATE {} SET {} WHERE {};\nSELECT RAISE(ABORT, {}) WHERE changes() IS NOT 1;\n",
            self.each("", check),
            quoted(self.table),
            self.columns(", ", |column| format!("{column} = -NEW.{column}")),
            self.row(),
            literal(NOT_USED_UP),
        )
    }

    /// Returns the condition that finds the row again.
    fn row(&self) -> String {
        match self.key {
            Key::Rowid(alias) => format!("{alias} = NEW.{alias}"),
            Key::None => "FALSE".into(),
            Key::Columns(columns) => joined(columns, " AND ", |(column, collation)| {
                let (column, collation) = (quoted(column), quoted(collation));
                format!("{column} = NEW.{column} COLLATE {collation}")
            }),
        }
    }

    fn check(&self, demand: &Demand) -> String {
        format!("{} WHERE NOT {};\n", self.refusal(demand), holds(demand))
    }

    /// A token that was in the row before counts for nothing, should one ever be left there: else
    /// an update that does not mention the column would pass.
    fn check_update(&self, demand: &Demand) -> String {
        let Some(column) = demand.column.as_deref().map(quoted) else { return self.check(demand) };
        let refusal = self.refusal(demand);
        format!("{refusal} WHERE NEW.{column} IS OLD.{column} OR NOT {};\n", holds(demand))
    }

    fn refusal(&self, demand: &Demand) -> String {
        let Demand { name, column, strict } = demand;
        let what = if *strict { ", or its lease is over" } else { "" };
        let message = format!(
            "stale fencing token: not the newest one of {} was presented{what}",
            Short(name)
        );
        let counted = match column {
            Some(_) => String::new(),
            None => format!("litelease_refused({}, {}), ", self.number, literal(name)),
        };
        format!("SELECT {counted}RAISE(ABORT, {})", literal(&message))
    }

    fn refuse_delete(&self) -> String {
        let message = "stale fencing token: a DELETE has nowhere to present one on a table that is guarded by \
                       column; mark rows as deleted, or guard it by connection";
        format!("SELECT RAISE(ABORT, {});\n", literal(message))
    }

    fn each(&self, between: &str, part: impl FnMut(&Demand) -> String) -> String {
        joined(self.demands, between, part)
    }

    /// Returns the columns that tokens are presented in, quoted.
    fn columns(&self, between: &str, part: impl FnMut(String) -> String) -> String {
        let columns = self.demands.iter().filter_map(|demand| demand.column.as_deref());
        let columns: Vec<_> = columns.map(quoted).map(part).collect();
        columns.join(between)
    }
}

/// The message if a presented token cannot be negated: a constraint or a trigger forbids or ignores
/// it.
const NOT_USED_UP: &str = "stale fencing token: the presented one could not be negated, because a constraint or \
trigger of the table forbids it";

/// Returns the condition that a demand is met. It is never NULL.
fn holds(demand: &Demand) -> String {
    let name = literal(&demand.name);
    let presented = match &demand.column {
        None => format!("token = litelease_presented({name})"),
        Some(column) => {
            let column = quoted(column);
            format!("typeof(NEW.{column}) = 'integer' AND token = NEW.{column}")
        }
    };
    let live = if demand.strict { LIVE } else { "" };
    format!("EXISTS (SELECT 1 FROM litelease_resources WHERE name = {name} AND {presented}{live})")
}

/// Unix time in milliseconds, exactly, as every version of SQLite can compute it: a Julian day is
/// precise enough.
const LIVE: &str = " AND lease_expires_at_ms > \
CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)";

/// Returns the columns in which a trigger finds tokens, under their present names, because RENAME
/// COLUMN has changed them there too.
pub(crate) fn columns_in(trigger: &str) -> Vec<String> {
    let words: Vec<&str> = word_by_word(trigger).collect();
    let mut columns = Vec::new();
    for (at, four) in words.windows(4).enumerate() {
        if four == ["typeof", "(", "NEW", "."] {
            columns.push(unquoted(&words[at + 4..]));
        }
    }
    columns
}

/// Returns the identifier at the front of some words: a quote inside it splits it into more than
/// one of them.
fn unquoted(words: &[&str]) -> String {
    let parts = words.iter().take_while(|word| word.starts_with('"'));
    let whole: String = parts.copied().collect();
    let inner = whole.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inner.unwrap_or_default().replace("\"\"", "\"")
}

/// Returns an identifier, whatever is in it.
pub(crate) fn quoted(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

/// Returns a text, whatever is in it. SQL ends at a NUL, so those are written as calls.
fn literal(text: &str) -> String {
    let mut sql = String::new();
    for (at, part) in text.split('\0').enumerate() {
        let before = if at == 0 { "" } else { " || char(0) || " };
        // Writing to a String cannot fail.
        let _ = write!(sql, "{before}'{}'", part.replace('\'', "''"));
    }
    if text.contains('\0') { format!("({sql})") } else { sql }
}

fn joined<T>(parts: &[T], between: &str, part: impl FnMut(&T) -> String) -> String {
    parts.iter().map(part).collect::<Vec<_>>().join(between)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_again_whatever_they_are_called() {
        let columns = ["lease_token", "a\"b", "typeof(NEW.\"x\")", "é", "'"];
        let demands = columns.map(|column| Demand {
            name: "typeof(NEW.\"y\")".into(),
            column: Some(column.into()),
            strict: false,
        });
        let key = Key::Rowid("rowid");
        let fence = Fence { number: 1, table: "t", key: &key, demands: &demands };
        assert_eq!(columns_in(&fence.trigger("insert")), columns);
    }

    #[test]
    fn odd_text_has_no_columns_and_does_not_panic() {
        for text in ["", "typeof(NEW.", "typeof(NEW.\"", "typeof(NEW.x)", "\""] {
            assert!(columns_in(text).iter().all(String::is_empty), "{text}");
        }
    }

    #[test]
    fn a_text_with_a_nul_is_put_together() {
        assert_eq!(literal("a'b"), "'a''b'");
        assert_eq!(literal("a\0b"), "('a' || char(0) || 'b')");
    }
}
