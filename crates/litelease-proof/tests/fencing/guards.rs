//! Guarded tables: every form of write, by every kind of token, on every kind of table.
//! What the tests share is here.
//!
//! `cargo test -p litelease-proof --test fencing guards:: -- --nocapture` prints the matrix.

mod forms;
mod life;
mod tables;
mod tokens;
mod ways_around;

use std::fmt::Write;

use litelease::rusqlite::Connection;
use litelease::{Guard, Litelease, functions, is_stale};
use litelease_proof::rig::{LONG, acquired};

/// How a write stands to the newest token, which is 2.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token {
    Fresh,
    Stale,
    Missing,
    TooLarge,
    NoInteger,
}

use Token::*;

const TOKENS: [Token; 5] = [Fresh, Stale, Missing, TooLarge, NoInteger];

impl Token {
    /// As an expression in a statement.
    fn sql(self) -> &'static str {
        match self {
            Fresh => "2",
            Stale => "1",
            Missing => "NULL",
            TooLarge => "3",
            NoInteger => "'x'",
        }
    }

    /// As a connection presents it; text cannot be presented at all.
    fn number(self) -> Option<i64> {
        match self {
            Fresh => Some(2),
            Stale => Some(1),
            TooLarge => Some(3),
            Missing | NoInteger => None,
        }
    }
}

/// Tables that every form writes to, under any name that the guarded one has.
const SCHEMA: &str = "
CREATE TABLE parents (id INTEGER PRIMARY KEY);
CREATE TABLE patrons (id INTEGER PRIMARY KEY);
CREATE TABLE orders (id INTEGER PRIMARY KEY, v DEFAULT 'd',
  parent INTEGER DEFAULT NULL REFERENCES parents ON DELETE CASCADE ON UPDATE CASCADE,
  tok INTEGER, patron INTEGER DEFAULT NULL REFERENCES patrons ON DELETE SET NULL);
CREATE TABLE twin (id INTEGER PRIMARY KEY, v, parent, tok);
CREATE TABLE inbox (id, tok);
CREATE VIEW shown AS SELECT * FROM orders;
CREATE TRIGGER shown_insert INSTEAD OF INSERT ON shown
BEGIN INSERT INTO orders (id, v, tok) VALUES (NEW.id, NEW.v, NEW.tok); END;
CREATE TRIGGER shown_update INSTEAD OF UPDATE ON shown
BEGIN UPDATE orders SET v = NEW.v, tok = NEW.tok WHERE id = NEW.id; END;
CREATE TRIGGER shown_delete INSTEAD OF DELETE ON shown
BEGIN DELETE FROM orders WHERE id = OLD.id; END;
CREATE TRIGGER inbox_insert AFTER INSERT ON inbox
BEGIN INSERT INTO orders (id, v, tok) VALUES (NEW.id, 'inbox', NEW.tok); END;
INSERT INTO parents VALUES (1), (2);
INSERT INTO patrons VALUES (1), (2);
INSERT INTO orders VALUES (1, 'a', 1, -1, 1), (2, 'b', 2, -1, 2);
INSERT INTO twin VALUES (1, 'ta', NULL, NULL), (2, 'tb', NULL, NULL);
";

/// A database whose newest token of `writer` is 2, with the table guarded.
fn guarded(schema: &str, table: &str, guard: &Guard) -> Litelease {
    let db = Litelease::from_connection(Connection::open_in_memory().unwrap());
    db.bootstrap().unwrap();
    db.conn().execute_batch(schema).unwrap();
    two_grants(&db);
    db.guard(table, "writer", guard).unwrap();
    functions::register(db.conn()).unwrap();
    db.conn().execute_batch("PRAGMA foreign_keys = ON").unwrap();
    db
}

fn two_grants(db: &Litelease) {
    let first = acquired(db.claim("writer", "a", LONG));
    let second = db.transfer(&first, "b", LONG).unwrap().transferred().unwrap();
    assert_eq!((first.token, second.token), (1, 2));
}

/// What is in the tables, to see that a refused write left nothing behind.
fn contents(connection: &Connection, table: &str) -> String {
    let mut out = String::new();
    let mut statement = connection.prepare(&format!("SELECT * FROM {table}")).unwrap();
    let columns = statement.column_count();
    let mut rows = statement.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        for column in 0..columns {
            write!(out, "{:?} ", row.get_ref(column).unwrap()).unwrap();
        }
        out.push('\n');
    }
    out
}

/// Runs a write: `Ok` if it passed, and otherwise why not. A refusal must be one, and undo
/// everything.
fn try_write(connection: &Connection, sql: &str, tables: &[&str]) -> Result<(), String> {
    let before: Vec<String> = tables.iter().map(|table| contents(connection, table)).collect();
    let mut statement = connection.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let done = statement.query([]).and_then(|mut rows| {
        while rows.next()?.is_some() {}
        Ok(())
    });
    drop(statement);
    done.map_err(|error| {
        assert!(is_stale(&error), "{sql}: {error}");
        let after: Vec<String> = tables.iter().map(|table| contents(connection, table)).collect();
        assert_eq!(before, after, "{sql} was refused and left something behind");
        error.to_string()
    })
}
