//! Table introspection for guards.

use crate::definition::word_by_word;
use crate::sqlite::{Connection, Value, code};
use crate::trigger::{Demand, Key, quoted};
use crate::{Error, Failure};

/// A table that can be guarded.
pub(crate) struct TableInfo {
    /// Its name, spelled as it was made.
    pub(crate) table: String,
    pub(crate) key: Key,
    columns: Vec<Column>,
}

struct Column {
    name: String,
    declared: String,
    is_key: bool,
    is_generated: bool,
    /// The expression of its default, if it has one.
    default: String,
}

const ENTRY: &str = "SELECT name, type, rootpage FROM main.sqlite_schema
WHERE name = ?1 COLLATE NOCASE AND type IN ('table', 'view')";
const COLUMNS: &str =
    "SELECT name, type, pk, hidden, dflt_value FROM pragma_table_xinfo(?1, 'main')";
const KEY: &str = "SELECT part.name, part.coll FROM pragma_index_list(?1, 'main') AS keys
JOIN pragma_index_xinfo(keys.name, 'main') AS part
WHERE keys.origin = 'pk' AND part.key = 1 ORDER BY part.seqno";
/// Unique indexes: their name, whether they have a column, and their definition, which may mention
/// it elsewhere.
const UNIQUE: &str =
    "SELECT keys.name, EXISTS (SELECT 1 FROM pragma_index_xinfo(keys.name, 'main') AS part
WHERE part.key = 1 AND part.name = ?2 COLLATE NOCASE),
(SELECT sql FROM main.sqlite_schema WHERE type = 'index' AND name = keys.name)
FROM pragma_index_list(?1, 'main') AS keys WHERE keys.\"unique\" = 1";
const TRIGGERS: &str = "SELECT name, sql FROM main.sqlite_schema
WHERE type = 'trigger' AND tbl_name = ?1 COLLATE NOCASE AND name NOT LIKE 'litelease!_guard!_%' ESCAPE '!'
UNION ALL SELECT name, sql FROM temp.sqlite_schema
WHERE type = 'trigger' AND tbl_name = ?1 COLLATE NOCASE";

/// The names by which SQL reaches a row's number, unless a column has one of them.
const ALIASES: [&str; 3] = ["rowid", "_rowid_", "oid"];

impl TableInfo {
    /// Reads the shape of a table, unless it cannot be guarded.
    pub(crate) fn read(connection: Connection, table: &str) -> Result<Self, Error> {
        let refused = |reason: &str| Err(cannot(table, reason.into()));
        for prefix in ["sqlite_", "litelease_"] {
            if table.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix)) {
                return refused("it belongs to SQLite or Litelease itself");
            }
        }
        let (name, kind, page) = match entry(connection, table)? {
            Some(found) => found,
            None => return refused("there is no such table in the main database"),
        };
        match (kind.as_str(), page) {
            ("view", _) => return refused("it is a view: guard the tables that it writes to"),
            (_, 0) => return refused("it is a virtual table, and those have no triggers"),
            _ => {}
        }
        let columns = columns(connection, &name)?;
        let key = key(connection, &name, &columns)?;
        Ok(TableInfo { table: name, key, columns })
    }

    /// Checks whether there is a table of this name. A view writes to tables that have guards of
    /// their own.
    pub(crate) fn exists(connection: Connection, table: &str) -> Result<bool, Error> {
        Ok(entry(connection, table)?.is_some_and(|(_, kind, _)| kind == "table"))
    }

    /// Returns what its columns are called.
    pub(crate) fn column_names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| column.name.as_str())
    }

    /// Makes sure that tokens can be presented in the columns that the demands name.
    pub(crate) fn check_columns(
        &self,
        connection: Connection,
        demands: &[Demand],
    ) -> Result<(), Error> {
        let mut seen: Vec<&str> = Vec::new();
        for column in demands.iter().filter_map(|demand| demand.column.as_deref()) {
            if let Some(reason) = self.why_not(column) {
                return Err(self.refused(format!("the column {column:?} {reason}")));
            }
            if seen.iter().any(|seen| seen.eq_ignore_ascii_case(column)) {
                let reason =
                    format!("the column {column:?} already presents the token of another name");
                return Err(self.refused(reason));
            }
            seen.push(column);
            self.check_indexes(connection, column)?;
            self.check_values(connection, column)?;
        }
        if seen.is_empty() {
            return Ok(());
        }
        if self.key == Key::None {
            let reason = "its columns rowid, _rowid_ and oid hide the number of a row";
            return Err(self.refused(reason.into()));
        }
        self.check_triggers(connection)
    }

    /// Returns a column's name as it was spelled when it was made.
    pub(crate) fn spelled(&self, name: String) -> String {
        self.column(&name).map_or_else(|| name.clone(), |column| column.name.clone())
    }

    pub(crate) fn refused(&self, reason: String) -> Error {
        cannot(&self.table, reason)
    }

    fn why_not(&self, name: &str) -> Option<&'static str> {
        let Some(column) = self.column(name) else { return Some("does not exist") };
        match column {
            Column { is_generated: true, .. } => {
                Some("is generated, so nothing can be presented in it")
            }
            Column { is_key: true, .. } => Some("is part of the primary key"),
            Column { declared, .. } if !keeps_integers(declared) => {
                Some("does not keep integers as they are: declare it INTEGER")
            }
            Column { default, .. } if !presents_nothing(default) => Some(
                "has a default, which would present a token for writers that present none: drop the default",
            ),
            _ => None,
        }
    }

    fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name.eq_ignore_ascii_case(name))
    }

    /// Rows of one grant have the same token, and its negation must not meet another row's: under
    /// REPLACE that one would be deleted.
    fn check_indexes(&self, connection: Connection, column: &str) -> Result<(), Error> {
        let mut statement = connection.prepare(UNIQUE)?;
        let mut run = statement.run(&[Value::Text(&self.table), Value::Text(column)])?;
        while run.step()? {
            let text = |index| run.column(index).and_then(Value::text).unwrap_or_default();
            let has_column = run.column(1) == Some(Value::Integer(1));
            if has_column || word_by_word(text(2)).any(|word| means(word, column)) {
                return Err(self.refused(format!(
                    "the unique index {:?} depends on the column {column:?}, so using up a token could meet \
                     another row",
                    text(0)
                )));
            }
        }
        Ok(())
    }

    /// A positive number that is there already would count as a presentation that is still good: an
    /// update of such a row that does not mention the column would pass.
    fn check_values(&self, connection: Connection, column: &str) -> Result<(), Error> {
        let (table, column) = (quoted(&self.table), quoted(column));
        let wrong = format!("typeof({column}) = 'integer' AND {column} > 0");
        let sql = format!("SELECT EXISTS (SELECT 1 FROM main.{table} WHERE {wrong})");
        if !connection.answers_one(&sql)? {
            return Ok(());
        }
        Err(self.refused(format!(
            "the column {column} has positive numbers from before, which would pass as presented tokens: run \
             UPDATE {table} SET {column} = -{column} WHERE {wrong} first"
        )))
    }

    /// A trigger of the table's own that changes the table presents no token while it does so, or
    /// presents one that no guard checks: a trigger that is running does not fire again.
    fn check_triggers(&self, connection: Connection) -> Result<(), Error> {
        let mut statement = connection.prepare(TRIGGERS)?;
        let mut run = statement.run(&[Value::Text(&self.table)])?;
        while run.step()? {
            let text = |index| run.column(index).and_then(Value::text).unwrap_or_default();
            if changes(text(1), &self.table) {
                return Err(self.refused(format!(
                    "its trigger {:?} changes the table itself, and presents no token there: drop the trigger, or \
                     guard by connection",
                    text(0)
                )));
            }
        }
        Ok(())
    }
}

fn cannot(table: &str, reason: String) -> Error {
    Error::CannotGuard { table: table.into(), reason }
}

fn entry(connection: Connection, table: &str) -> Result<Option<(String, String, i64)>, Failure> {
    let mut statement = connection.prepare(ENTRY)?;
    let mut run = statement.run(&[Value::Text(table)])?;
    if !run.step()? {
        return Ok(None);
    }
    let text = |index| run.column(index).and_then(Value::text).unwrap_or_default().to_owned();
    let page = run.column(2).and_then(Value::integer).unwrap_or(0);
    Ok(Some((text(0), text(1), page)))
}

fn columns(connection: Connection, table: &str) -> Result<Vec<Column>, Failure> {
    let mut statement = connection.prepare(COLUMNS)?;
    let mut run = statement.run(&[Value::Text(table)])?;
    let mut columns = Vec::new();
    while run.step()? {
        let text = |index| run.column(index).and_then(Value::text).unwrap_or_default().to_owned();
        let number = |index| run.column(index).and_then(Value::integer).unwrap_or(0);
        columns.push(Column {
            name: text(0),
            declared: text(1),
            is_key: number(2) > 0,
            is_generated: number(3) > 0,
            default: text(4),
        });
    }
    Ok(columns)
}

/// Returns how a row is found again.
fn key(connection: Connection, table: &str, columns: &[Column]) -> Result<Key, Failure> {
    let hides = |alias: &str| columns.iter().any(|column| column.name.eq_ignore_ascii_case(alias));
    let Some(alias) = ALIASES.into_iter().find(|alias| !hides(alias)) else {
        return Ok(Key::None);
    };
    match connection.prepare(&format!("SELECT {alias} FROM main.{}", quoted(table))) {
        Ok(_) => return Ok(Key::Rowid(alias)),
        // A table WITHOUT ROWID has no such column.
        Err(failure) if failure.code & 0xff == code::ERROR => {}
        Err(failure) => return Err(failure),
    }
    let mut statement = connection.prepare(KEY)?;
    let mut run = statement.run(&[Value::Text(table)])?;
    let mut parts = Vec::new();
    while run.step()? {
        let text = |index| run.column(index).and_then(Value::text).unwrap_or_default().to_owned();
        parts.push((text(0), text(1)));
    }
    Ok(Key::Columns(parts))
}

/// Checks whether a default can be no token: there is none, or it is NULL, 0 or a negative number.
fn presents_nothing(default: &str) -> bool {
    let bare = default.trim_matches(|c: char| c.is_whitespace() || "()'\"".contains(c));
    bare.is_empty()
        || bare.eq_ignore_ascii_case("null")
        || bare.parse::<i64>().is_ok_and(|number| number <= 0)
}

/// Checks whether a column of a declared type stores an integer as an integer. The rules are
/// SQLite's.
fn keeps_integers(declared: &str) -> bool {
    let declared = declared.to_uppercase();
    let has = |words: &[&str]| words.iter().any(|word| declared.contains(word));
    match declared.as_str() {
        _ if has(&["INT"]) => true,
        _ if has(&["CHAR", "CLOB", "TEXT"]) => false,
        "" => true,
        _ if has(&["BLOB"]) => true,
        _ => !has(&["REAL", "FLOA", "DOUB"]),
    }
}

/// Checks whether a trigger writes to the table. One that hides it behind a comment is not seen
/// here; its updates and deletions are refused by the guard when it runs.
fn changes(trigger: &str, table: &str) -> bool {
    let words: Vec<&str> = word_by_word(trigger).collect();
    let is = |at: usize, word: &str| words.get(at).is_some_and(|it| it.eq_ignore_ascii_case(word));
    (0..words.len()).any(|at| {
        let target = match at {
            _ if is(at, "DELETE") && is(at + 1, "FROM") => at + 2,
            // INSERT INTO, INSERT OR … INTO, REPLACE INTO
            _ if is(at, "INTO") => at + 1,
            _ if is(at, "UPDATE") && is(at + 1, "OR") => at + 3,
            _ if is(at, "UPDATE") => at + 1,
            _ => return false,
        };
        words.get(target).is_some_and(|word| means(word, table))
    })
}

/// Checks whether a word of SQL names a table or column. One with a quote inside is taken for it by
/// its first half.
fn means(word: &str, name: &str) -> bool {
    let inner = word.trim_matches(['"', '\'', '`', '[', ']']);
    if inner.len() == word.len() && ["OF", "ON"].iter().any(|key| word.eq_ignore_ascii_case(key)) {
        return false;
    }
    let first = name.split(['"', '\'', '`', ']']).next().unwrap_or(name);
    inner.eq_ignore_ascii_case(name) || (first != name && inner.eq_ignore_ascii_case(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declared_types_mean_what_they_mean_to_sqlite() {
        for keeps in ["", "INTEGER", "bigint", "BLOB", "NUMERIC", "ANY", "CHARINT", "whatever"] {
            assert!(keeps_integers(keeps), "{keeps}");
        }
        for changes in ["TEXT", "varchar(20)", "REAL", "double precision", "CLOB", "FLOAT"] {
            assert!(!keeps_integers(changes), "{changes}");
        }
    }

    #[test]
    fn a_trigger_that_changes_the_table_is_told_from_one_that_does_not() {
        let yes = [
            "CREATE TRIGGER t AFTER UPDATE ON orders BEGIN UPDATE orders SET a = 1; END",
            "create trigger t after update on orders begin update or ignore \"Orders\" set a = 1; end",
            "CREATE TRIGGER t AFTER INSERT ON orders BEGIN SELECT 1; DELETE FROM [orders]; END",
            "CREATE TRIGGER t AFTER UPDATE ON orders BEGIN INSERT OR FAIL INTO orders VALUES (1); END",
            "CREATE TRIGGER t AFTER UPDATE ON orders BEGIN REPLACE INTO orders VALUES (1); END",
        ];
        let no = [
            "CREATE TRIGGER t AFTER UPDATE ON orders BEGIN INSERT INTO log VALUES ('UPDATE orders'); END",
            "CREATE TRIGGER t AFTER UPDATE OF a ON orders BEGIN UPDATE log SET a = 1; END",
            "",
        ];
        for sql in yes {
            assert!(changes(sql, "orders"), "{sql}");
        }
        for sql in no {
            assert!(!changes(sql, "orders"), "{sql}");
        }
        assert!(changes(
            "CREATE TRIGGER t AFTER UPDATE ON a BEGIN UPDATE \"a\"\"b\" SET c = 1; END",
            "a\"b"
        ));
    }
}
