//! Every form of write, by every kind of token.

use std::fmt::Write;

use litelease::Guard;

use super::Token::*;
use super::{SCHEMA, TOKENS, Token, contents, guarded, try_write};

/// What a form of write does on a table that is guarded by column.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ByColumn {
    /// Only the newest token passes.
    Fresh,
    /// Nothing passes: there is nowhere to present a token.
    Nothing,
    /// REPLACE deletes a row, which SQLite tells the triggers only when they are recursive.
    FreshUnlessRecursive,
    /// No row is written, so there is nothing to refuse.
    WritesNothing,
}

/// A form of write: what it is called, the statement with `{t}` where a token goes, and by column.
type Form = (&'static str, &'static str, ByColumn);

const FORMS: &[Form] = &[
    ("INSERT", "INSERT INTO orders (id, v, tok) VALUES (10, 'x', {t})", ByColumn::Fresh),
    (
        "INSERT OR IGNORE",
        "INSERT OR IGNORE INTO orders (id, v, tok) VALUES (10, 'x', {t})",
        ByColumn::Fresh,
    ),
    (
        "INSERT OR REPLACE",
        "INSERT OR REPLACE INTO orders (id, v, tok) VALUES (10, 'x', {t})",
        ByColumn::Fresh,
    ),
    (
        "INSERT OR FAIL",
        "INSERT OR FAIL INTO orders (id, v, tok) VALUES (10, 'x', {t})",
        ByColumn::Fresh,
    ),
    (
        "INSERT OR ABORT",
        "INSERT OR ABORT INTO orders (id, v, tok) VALUES (10, 'x', {t})",
        ByColumn::Fresh,
    ),
    (
        "INSERT OR ROLLBACK",
        "INSERT OR ROLLBACK INTO orders (id, v, tok) VALUES (10, 'x', {t})",
        ByColumn::Fresh,
    ),
    ("INSERT DEFAULT VALUES", "INSERT INTO orders DEFAULT VALUES", ByColumn::Nothing),
    (
        "INSERT OR IGNORE, conflict",
        "INSERT OR IGNORE INTO orders (id, v, tok) VALUES (1, 'x', {t})",
        ByColumn::WritesNothing,
    ),
    (
        "INSERT OR REPLACE, conflict",
        "INSERT OR REPLACE INTO orders (id, v, tok) VALUES (1, 'x', {t})",
        ByColumn::FreshUnlessRecursive,
    ),
    (
        "REPLACE, conflict",
        "REPLACE INTO orders (id, v, tok) VALUES (1, 'x', {t})",
        ByColumn::FreshUnlessRecursive,
    ),
    (
        "INSERT … SELECT",
        "INSERT INTO orders (id, v, tok) SELECT id + 20, v, {t} FROM orders",
        ByColumn::Fresh,
    ),
    (
        "INSERT … SELECT *",
        "INSERT INTO orders SELECT id + 20, v, parent, {t}, NULL FROM twin",
        ByColumn::Fresh,
    ),
    (
        "WITH … INSERT",
        "WITH new(id) AS (VALUES (30), (31)) INSERT INTO orders (id, tok) SELECT id, {t} FROM new",
        ByColumn::Fresh,
    ),
    (
        "INSERT … RETURNING",
        "INSERT INTO orders (id, v, tok) VALUES (10, 'x', {t}) RETURNING id",
        ByColumn::Fresh,
    ),
    (
        "UPSERT, no conflict",
        "INSERT INTO orders (id, v, tok) VALUES (10, 'x', {t}) ON CONFLICT (id) DO UPDATE SET v = 'y'",
        ByColumn::Fresh,
    ),
    (
        "UPSERT that sets the column",
        "INSERT INTO orders (id, v, tok) VALUES (1, 'x', {t})
         ON CONFLICT (id) DO UPDATE SET v = excluded.v, tok = excluded.tok",
        ByColumn::Fresh,
    ),
    (
        "UPSERT that does not",
        "INSERT INTO orders (id, v, tok) VALUES (1, 'x', {t}) ON CONFLICT (id) DO UPDATE SET v = 'y'",
        ByColumn::Nothing,
    ),
    (
        "UPSERT, DO NOTHING",
        "INSERT INTO orders (id, v, tok) VALUES (1, 'x', {t}) ON CONFLICT DO NOTHING",
        ByColumn::WritesNothing,
    ),
    ("UPDATE", "UPDATE orders SET v = 'z', tok = {t} WHERE id = 1", ByColumn::Fresh),
    ("UPDATE all rows", "UPDATE orders SET v = 'z', tok = {t}", ByColumn::Fresh),
    ("UPDATE the key", "UPDATE orders SET id = id + 50, tok = {t}", ByColumn::Fresh),
    ("UPDATE the column alone", "UPDATE orders SET tok = {t}", ByColumn::Fresh),
    ("UPDATE without the column", "UPDATE orders SET v = 'z'", ByColumn::Nothing),
    ("UPDATE OR IGNORE", "UPDATE OR IGNORE orders SET v = 'z', tok = {t}", ByColumn::Fresh),
    ("UPDATE OR FAIL", "UPDATE OR FAIL orders SET v = 'z', tok = {t}", ByColumn::Fresh),
    ("UPDATE OR ABORT", "UPDATE OR ABORT orders SET v = 'z', tok = {t}", ByColumn::Fresh),
    ("UPDATE OR ROLLBACK", "UPDATE OR ROLLBACK orders SET v = 'z', tok = {t}", ByColumn::Fresh),
    (
        "UPDATE OR REPLACE, conflict",
        "UPDATE OR REPLACE orders SET id = 2, tok = {t} WHERE id = 1",
        ByColumn::FreshUnlessRecursive,
    ),
    (
        "UPDATE … FROM",
        "UPDATE orders SET v = twin.v, tok = {t} FROM twin WHERE twin.id = orders.id",
        ByColumn::Fresh,
    ),
    ("UPDATE … RETURNING", "UPDATE orders SET v = 'z', tok = {t} RETURNING id", ByColumn::Fresh),
    ("DELETE", "DELETE FROM orders WHERE id = 1", ByColumn::Nothing),
    ("DELETE all rows", "DELETE FROM orders", ByColumn::Nothing),
    ("DELETE … RETURNING", "DELETE FROM orders WHERE id = 1 RETURNING v", ByColumn::Nothing),
    ("foreign key, ON DELETE CASCADE", "DELETE FROM parents WHERE id = 1", ByColumn::Nothing),
    ("foreign key, ON UPDATE CASCADE", "UPDATE parents SET id = 7 WHERE id = 1", ByColumn::Nothing),
    ("foreign key, ON DELETE SET NULL", "DELETE FROM patrons WHERE id = 1", ByColumn::Nothing),
    (
        "view, INSTEAD OF INSERT",
        "INSERT INTO shown (id, v, tok) VALUES (10, 'x', {t})",
        ByColumn::Fresh,
    ),
    (
        "view, INSTEAD OF UPDATE",
        "UPDATE shown SET v = 'z', tok = {t} WHERE id = 1",
        ByColumn::Fresh,
    ),
    ("view, INSTEAD OF DELETE", "DELETE FROM shown WHERE id = 1", ByColumn::Nothing),
    ("trigger of another table", "INSERT INTO inbox VALUES (10, {t})", ByColumn::Fresh),
];

#[test]
fn every_form_of_write_is_refused_unless_it_presents_the_newest_token() {
    let mut matrix = format!("{:<33} {:<10}", "form of write", "guarded by");
    for token in TOKENS {
        write!(matrix, " {:<9}", format!("{token:?}").to_lowercase()).unwrap();
    }
    matrix.push('\n');
    for (what, sql, by_column) in FORMS {
        for (how, guard) in
            [("connection", Guard::by_connection()), ("column", Guard::by_column("tok"))]
        {
            write!(matrix, "{what:<33} {how:<10}").unwrap();
            for token in TOKENS {
                let cell = cell(sql, token, &guard, (how == "column").then_some(*by_column));
                write!(matrix, " {cell:<9}").unwrap();
            }
            matrix.push('\n');
        }
    }
    println!("{matrix}");
}

/// One cell of the matrix, tried under every setting that could make a difference.
fn cell(sql: &str, token: Token, guard: &Guard, by_column: Option<ByColumn>) -> String {
    let mut seen = Vec::new();
    for recursive in [false, true] {
        for trusted in [false, true] {
            let db = guarded(SCHEMA, "orders", guard);
            let settings = format!(
                "PRAGMA recursive_triggers = {recursive}; PRAGMA trusted_schema = {trusted}"
            );
            db.conn().execute_batch(&settings).unwrap();
            let expected = match by_column {
                None => {
                    if let Some(number) = token.number() {
                        assert_eq!(db.present(("writer", number)).unwrap(), token == Fresh);
                    }
                    token == Fresh
                }
                Some(ByColumn::Fresh) => token == Fresh,
                Some(ByColumn::Nothing) => false,
                Some(ByColumn::FreshUnlessRecursive) => token == Fresh && !recursive,
                Some(ByColumn::WritesNothing) => true,
            };
            let sql = sql.replace("{t}", token.sql());
            let tables = ["orders", "parents", "patrons", "inbox"];
            let before = contents(db.conn(), "orders");
            let passed = try_write(db.conn(), &sql, &tables).is_ok();
            assert_eq!(
                passed, expected,
                "{sql}, {token:?}, {guard:?}, recursive {recursive}, trusted {trusted}"
            );
            if by_column == Some(ByColumn::WritesNothing) {
                assert_eq!(before, contents(db.conn(), "orders"), "{sql}");
            }
            // What was presented in a column is used up, whatever wrote it.
            let left: i64 = db
                .conn()
                .query_row("SELECT count(*) FROM orders WHERE tok > 0", [], |row| row.get(0))
                .unwrap();
            assert!(by_column.is_none() || left == 0, "{sql} left a token that passes");
            seen.push((recursive, passed));
        }
    }
    match (seen.iter().all(|(_, passed)| *passed), seen.iter().any(|(_, passed)| *passed)) {
        (true, _) => "passes".into(),
        (_, false) => "refused".into(),
        _ => "passes*".into(),
    }
}

/// Whatever keeps a presented token from being negated (a policy for conflicts, a constraint, a
/// trigger of the user's) must not leave one behind that lets an update pass which does not mention
/// the column.
#[test]
fn a_token_that_cannot_be_used_up_opens_nothing() {
    for (schema, write) in [
        (
            "CREATE TABLE t (id INTEGER PRIMARY KEY, v, tok CHECK (tok > 0))",
            "INSERT OR IGNORE INTO t VALUES (2, 'x', 2)",
        ),
        (
            "CREATE TABLE t (id INTEGER PRIMARY KEY, v, tok CHECK (tok > 0))",
            "INSERT OR FAIL INTO t VALUES (2, 'x', 2)",
        ),
        (
            "CREATE TABLE t (id INTEGER PRIMARY KEY, v, tok CHECK (tok > 0))",
            "INSERT INTO t VALUES (2, 'x', 2)",
        ),
        (
            "CREATE TABLE t (id INTEGER PRIMARY KEY, v, tok);
             CREATE TRIGGER ignore BEFORE UPDATE OF tok ON t BEGIN SELECT RAISE(IGNORE); END",
            "INSERT INTO t VALUES (2, 'x', 2)",
        ),
        (
            "CREATE TABLE t (id INTEGER PRIMARY KEY, v, tok);
             CREATE TRIGGER fails BEFORE UPDATE OF tok ON t BEGIN SELECT RAISE(FAIL, 'no'); END",
            "INSERT INTO t VALUES (2, 'x', 2)",
        ),
    ] {
        let db = guarded(schema, "t", &Guard::by_column("tok"));
        for write in [
            write,
            "UPDATE OR IGNORE t SET v = 'x', tok = 2",
            "UPDATE OR FAIL t SET v = 'x', tok = 2",
        ] {
            let _ = db.conn().execute_batch(write);
            for zombie in [
                "UPDATE t SET v = 'zombie'",
                "UPDATE OR IGNORE t SET v = 'zombie'",
                "UPDATE OR FAIL t SET v = 'zombie'",
            ] {
                let _ = db.conn().execute_batch(zombie);
                let passed: i64 = db
                    .conn()
                    .query_row("SELECT count(*) FROM t WHERE v = 'zombie'", [], |row| row.get(0))
                    .unwrap();
                assert_eq!(passed, 0, "{schema}; {write}; {zombie}");
            }
        }
    }
    // Indexes that came after the guard.
    let db =
        guarded("CREATE TABLE t (id INTEGER PRIMARY KEY, v, tok)", "t", &Guard::by_column("tok"));
    db.conn()
        .execute_batch("CREATE UNIQUE INDEX late ON t (v, tok); INSERT INTO t VALUES (1, 'x', 2)")
        .unwrap();
    try_write(db.conn(), "INSERT OR IGNORE INTO t VALUES (2, 'x', 2)", &["t"]).unwrap_err();
    // A column that hides the number of the row.
    let db =
        guarded("CREATE TABLE t (id INTEGER PRIMARY KEY, v, tok)", "t", &Guard::by_column("tok"));
    match db.conn().execute_batch("ALTER TABLE t ADD COLUMN rowid") {
        Ok(()) => {
            try_write(db.conn(), "INSERT INTO t (v, tok) VALUES ('x', 2)", &["t"]).unwrap_err();
            assert!(!db.guards().unwrap()[0].is_intact);
        }
        // Since 3.54 SQLite does not allow it.
        Err(error) => assert!(error.to_string().contains("rowid alias"), "{error}"),
    }
    // What is no token from before is none.
    let text = "CREATE TABLE t (id INTEGER PRIMARY KEY, v, tok); INSERT INTO t VALUES (1, 'x', 'abc'), (2, 'y', 5.5)";
    let db = guarded(text, "t", &Guard::by_column("tok"));
    for zombie in ["UPDATE t SET v = 'zombie', tok = 0", "UPDATE t SET v = 'zombie', tok = -tok"] {
        try_write(db.conn(), zombie, &["t"]).unwrap_err();
    }
}
