//! Guarded tables: every form of write, by every kind of token, on every kind of table.
//!
//! `cargo test -p litelease-proof --test guards -- --nocapture` prints the matrix.

use std::fmt::Write;

use litelease::rusqlite::config::DbConfig;
use litelease::rusqlite::{Connection, ffi};
use litelease::{Error, Guard, Litelease, functions, is_stale};
use litelease_proof::rig::{LONG, TestFolder, acquired};

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

/// Runs a write: `Ok` if it passed, and otherwise why not. A refusal must be one, and undo everything.
fn attempt(connection: &Connection, sql: &str, tables: &[&str]) -> Result<(), String> {
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
                        assert_eq!(db.present("writer", number).unwrap(), token == Fresh);
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
            let passed = attempt(db.conn(), &sql, &tables).is_ok();
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

/// Tables of every shape: how they are made, and what they are called in a statement.
const SHAPES: &[(&str, &str, &str)] = &[
    ("no key", "orders", "CREATE TABLE orders (id, v, tok)"),
    ("AUTOINCREMENT", "orders", "CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, v, tok INT)"),
    ("text key", "orders", "CREATE TABLE orders (id TEXT PRIMARY KEY, v, tok BIGINT)"),
    ("WITHOUT ROWID", "orders", "CREATE TABLE orders (id PRIMARY KEY, v, tok) WITHOUT ROWID"),
    (
        "WITHOUT ROWID, composite key",
        "orders",
        "CREATE TABLE orders (v DEFAULT 'd', tok, id TEXT COLLATE NOCASE, PRIMARY KEY (v, id)) WITHOUT ROWID",
    ),
    ("STRICT", "orders", "CREATE TABLE orders (id INTEGER PRIMARY KEY, v TEXT, tok INTEGER) STRICT"),
    (
        "STRICT, WITHOUT ROWID",
        "orders",
        "CREATE TABLE orders (id ANY NOT NULL PRIMARY KEY, v ANY, tok ANY) STRICT, WITHOUT ROWID",
    ),
    (
        "generated columns",
        "orders",
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, v, tok, g AS (v || '!'), s AS (tok) STORED)",
    ),
    (
        "indexes on everything",
        "orders",
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, v, tok);
         CREATE INDEX by_tok ON orders (tok); CREATE UNIQUE INDEX others ON orders (v, id) WHERE v > 0;
         CREATE INDEX some ON orders (v) WHERE tok < 0; CREATE INDEX expression ON orders (abs(tok))",
    ),
    ("a column called rowid", "orders", "CREATE TABLE orders (id INTEGER, v, tok, rowid, oid)"),
    ("a quote in its name", "\"x\"\"; DROP TABLE y; --\"", "CREATE TABLE \"x\"\"; DROP TABLE y; --\" (id, v, tok)"),
    ("a bracket in its name", "\"a]b\"", "CREATE TABLE \"a]b\" (id, v, tok)"),
    ("an apostrophe in its name", "\"o'clock\"", "CREATE TABLE \"o'clock\" (id, v, tok)"),
    ("a keyword for a name", "\"select\"", "CREATE TABLE \"select\" (id, v, tok)"),
    ("no name at all", "\"\"", "CREATE TABLE \"\" (id, v, tok)"),
    ("a space in its name", "\" \"", "CREATE TABLE \" \" (id, v, tok)"),
    ("unicode in its name", "\"ордера 🚀\"", "CREATE TABLE \"ордера 🚀\" (id, v, tok)"),
    ("a newline in its name", "\"a\nb\"", "CREATE TABLE \"a\nb\" (id, v, tok)"),
    ("UTF-16", "orders", "PRAGMA encoding = 'UTF-16le'; CREATE TABLE orders (id, v, tok)"),
    ("pages of 512 bytes", "orders", "PRAGMA page_size = 512; CREATE TABLE orders (id, v, tok)"),
];

/// Takes the quotes off a name as a statement has it.
fn bare(name: &str) -> String {
    match name.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(inner) => inner.replace("\"\"", "\""),
        None => name.to_owned(),
    }
}

#[test]
fn tables_of_every_shape_can_be_guarded() {
    println!("{:<33} {:<10} {:<10} insert update delete", "table", "connection", "column");
    for (what, name, schema) in SHAPES {
        // The first statements of a file set what it is like.
        let schema = format!("{schema};\nINSERT INTO {name} (id, v, tok) VALUES ('1', 'a', -1);")
            .replace(
                "('1', 'a', -1)",
                if schema.contains("INTEGER PRIMARY KEY") {
                    "(1, 'a', -1)"
                } else {
                    "('1', 'a', -1)"
                },
            );
        for guard in [Guard::by_connection(), Guard::by_column("TOK")] {
            let connection = Connection::open_in_memory().unwrap();
            connection.execute_batch(&schema).unwrap();
            let db = Litelease::from_connection(connection);
            db.bootstrap().unwrap();
            two_grants(&db);
            let table = bare(name);
            db.guard(&table, "writer", &guard).unwrap_or_else(|error| panic!("{what}: {error}"));
            db.guard(&table, "writer", &guard).unwrap();
            let by_column = guard != Guard::by_connection();
            // The newest one last: it may delete everything.
            for token in TOKENS.into_iter().rev() {
                let t = token.sql();
                db.withdraw("writer").unwrap();
                if let (false, Some(number)) = (by_column, token.number()) {
                    db.present("writer", number).unwrap();
                }
                let may = token == Fresh;
                let check = |sql: String, expected: bool| {
                    // A STRICT table has its own opinion about text in an INTEGER column.
                    if token == NoInteger && what.contains("STRICT") {
                        return;
                    }
                    let passed = attempt(db.conn(), &sql, &[name]);
                    assert_eq!(passed.is_ok(), expected, "{what}: {sql}: {passed:?}");
                };
                let id = match what.contains("STRICT") || schema.contains("INTEGER PRIMARY KEY") {
                    true => "10",
                    false => "'10'",
                };
                check(format!("INSERT INTO {name} (id, v, tok) VALUES ({id}, 'x', {t})"), may);
                check(format!("UPDATE {name} SET v = 'z', tok = {t}"), may);
                check(format!("UPDATE {name} SET v = 'q'"), may && !by_column);
                check(format!("DELETE FROM {name}"), may && !by_column);
            }
            let guards = db.guards().unwrap();
            assert!(guards[0].is_intact && guards[0].table == table, "{what}: {guards:?}");
            assert_eq!(db.unguard(&table, Some("writer")).unwrap(), 1);
            assert_eq!(attempt(db.conn(), &format!("DELETE FROM {name}"), &[]), Ok(()), "{what}");
        }
        println!("{what:<33} {:<10} {:<10} refused unless fresh", "guarded", "guarded");
    }
}

#[test]
fn what_cannot_be_guarded_is_refused_by_name_and_changes_nothing() {
    let db = guarded(SCHEMA, "twin", &Guard::by_connection());
    db.conn()
        .execute_batch(
            "CREATE VIRTUAL TABLE search USING fts5(text);
             CREATE TEMP TABLE passing (id, tok);
             ATTACH ':memory:' AS other; CREATE TABLE other.elsewhere (id, tok);
             CREATE TABLE typed (id INTEGER PRIMARY KEY, words TEXT, ratio REAL, doubled AS (id * 2), tok);
             CREATE TABLE hidden (rowid, _rowid_, oid, tok);
             CREATE TABLE used (id, tok INTEGER); INSERT INTO used VALUES (1, 1);
             CREATE TABLE unique1 (id, tok, UNIQUE (id, tok));
             CREATE TABLE unique2 (id, tok); CREATE UNIQUE INDEX partial ON unique2 (id) WHERE \"TOK\" < 0;
             CREATE TABLE unique3 (id, tok); CREATE UNIQUE INDEX computed ON unique3 (id, abs(tok));
             CREATE TABLE temporary (id, tok);
             CREATE TEMP TRIGGER temp_touch AFTER INSERT ON temporary BEGIN UPDATE temporary SET id = 1; END;
             CREATE TABLE history (id, tok);
             CREATE TRIGGER keep AFTER UPDATE ON history BEGIN INSERT INTO history VALUES (OLD.id, OLD.tok); END;
             CREATE TABLE busy (id, touched, tok);
             CREATE TRIGGER touch AFTER UPDATE ON busy BEGIN UPDATE busy SET touched = 1 WHERE id = NEW.id; END;",
        )
        .unwrap();
    let by_connection = Guard::by_connection;
    let by_column = |column: &str| Guard::by_column(column);
    let cases = [
        ("missing", by_connection(), "no such table"),
        ("", by_connection(), "no such table"),
        ("main.orders", by_connection(), "no such table"),
        ("shown", by_connection(), "view"),
        ("search", by_connection(), "virtual"),
        ("passing", by_connection(), "no such table"),
        ("elsewhere", by_connection(), "no such table"),
        ("sqlite_schema", by_connection(), "belongs to SQLite"),
        ("SQLITE_SEQUENCE", by_connection(), "belongs to SQLite"),
        ("litelease_resources", by_connection(), "belongs to SQLite or Litelease"),
        ("Litelease_Meta", by_connection(), "belongs to SQLite or Litelease"),
        ("typed", by_column("nope"), "does not exist"),
        ("typed", by_column("id"), "primary key"),
        ("typed", by_column("words"), "declare it INTEGER"),
        ("typed", by_column("ratio"), "declare it INTEGER"),
        ("typed", by_column("doubled"), "generated"),
        ("hidden", by_column("tok"), "hide"),
        ("used", by_column("tok"), "run UPDATE \"used\" SET \"tok\" = -\"tok\" WHERE typeof"),
        ("unique1", by_column("tok"), "unique index"),
        ("unique2", by_column("tok"), "\"partial\""),
        ("unique3", by_column("tok"), "\"computed\""),
        ("temporary", by_column("tok"), "\"temp_touch\""),
        ("history", by_column("tok"), "\"keep\""),
        ("busy", by_column("tok"), "\"touch\""),
        ("twin", by_column("tok"), "in another way"),
        ("twin", by_connection().strict(), "in another way"),
    ];
    println!("{:<22} {:<38} why not", "table", "guard");
    for (table, guard, reason) in cases {
        let schema = contents(db.conn(), "sqlite_schema");
        let refused = db.guard(table, "writer", &guard);
        let Err(Error::CannotGuard { table: named, reason: found }) = refused else {
            panic!("{table}: {refused:?}");
        };
        assert!(named.eq_ignore_ascii_case(table) && found.contains(reason), "{table}: {found}");
        assert_eq!(schema, contents(db.conn(), "sqlite_schema"), "{table}");
        println!("{table:<22} {:<38} {found}", format!("{guard:?}").replace("Guard ", ""));
    }
    // The same table by connection is fine where no column is needed, and after doing what the error says.
    db.guard("hidden", "writer", &by_connection()).unwrap();
    db.guard("busy", "writer", &by_connection()).unwrap();
    db.conn().execute_batch("UPDATE used SET tok = -tok WHERE tok > 0").unwrap();
    db.guard("used", "writer", &by_column("tok")).unwrap();
    let again = db.guard("used", "other", &by_column("TOK"));
    assert!(again.unwrap_err().to_string().contains("another name"));
}

#[test]
fn names_of_every_kind_can_guard_a_table() {
    for name in
        ["", " ", "it's", "say \"x\"", "a\nb", "nul\0inside", "🚀", "'); DROP TABLE orders; --"]
    {
        let db = guarded(SCHEMA, "orders", &Guard::by_connection());
        db.guard("orders", name, &Guard::by_connection()).unwrap();
        let first = acquired(db.claim(name, "a", LONG));
        let lease = db.transfer(&first, "b", LONG).unwrap().transferred().unwrap();
        assert!(db.present("writer", 2).unwrap());
        for (token, passes) in
            [(None, false), (Some(first.token), false), (Some(lease.token), true)]
        {
            if let Some(token) = token {
                db.present(name, token).unwrap();
            }
            let done = attempt(db.conn(), "DELETE FROM orders WHERE id = 1", &["orders"]);
            assert_eq!(done.is_ok(), passes, "{name:?}: {done:?}");
        }
        assert!(db.guards().unwrap().iter().all(|guard| guard.is_intact), "{name:?}");
        assert_eq!(db.unguard("orders", Some(name)).unwrap(), 1);
        db.withdraw(name).unwrap();
        attempt(db.conn(), "DELETE FROM orders WHERE id = 2", &["orders"]).unwrap();
    }
}

#[test]
fn several_names_must_all_pass_in_either_form() {
    let db = guarded(SCHEMA, "orders", &Guard::by_connection());
    db.conn().execute_batch("ALTER TABLE orders ADD COLUMN tok2 INTEGER").unwrap();
    acquired(db.claim("second", "a", LONG));
    acquired(db.claim("third", "a", LONG));
    db.guard("orders", "second", &Guard::by_column("tok")).unwrap();
    db.guard("orders", "third", &Guard::by_column("tok2")).unwrap();
    for recursive in [false, true] {
        db.conn().pragma_update(None, "recursive_triggers", recursive).unwrap();
        let mut id = if recursive { 100 } else { 200 };
        for (presented, tok, tok2, passes) in [
            (2, 1, 1, true),
            (1, 1, 1, false),
            (2, 2, 1, false),
            (2, 1, 2, false),
            (2, 0, 0, false),
        ] {
            id += 1;
            db.present("writer", presented).unwrap();
            for sql in [
                format!("INSERT INTO orders (id, tok, tok2) VALUES ({id}, {tok}, {tok2})"),
                format!("UPDATE orders SET v = 1, tok = {tok}, tok2 = {tok2} WHERE id < 3"),
            ] {
                let done = attempt(db.conn(), &sql, &["orders"]);
                assert_eq!(done.is_ok(), passes, "{sql} presented {presented}: {done:?}");
            }
        }
        db.present("writer", 2).unwrap();
        for sql in [
            "UPDATE orders SET v = 1, tok = 1",
            "UPDATE orders SET v = 1, tok2 = 1",
            "DELETE FROM orders",
        ] {
            attempt(db.conn(), sql, &["orders"]).unwrap_err();
        }
    }
    assert_eq!(db.guards().unwrap().len(), 3);
    assert_eq!(db.unguard("orders", None).unwrap(), 3);
    assert_eq!(db.unguard("orders", None).unwrap(), 0);
    attempt(db.conn(), "DELETE FROM orders", &[]).unwrap();
}

#[test]
fn a_name_that_was_never_claimed_closes_the_table_until_its_first_grant() {
    for guard in [Guard::by_connection(), Guard::by_column("tok")] {
        let db = guarded(SCHEMA, "twin", &Guard::by_connection());
        db.guard("orders", "later", &guard).unwrap();
        let insert = |token: &str| {
            let sql = format!("INSERT INTO orders (id, tok) VALUES (10, {token})");
            attempt(db.conn(), &sql, &["orders"])
        };
        assert!(!db.present("later", 1).unwrap());
        for token in ["NULL", "0", "1"] {
            insert(token).unwrap_err();
        }
        let lease = acquired(db.claim("later", "a", LONG));
        assert!(db.present("later", lease.token).unwrap());
        insert("1").unwrap();
    }
}

#[test]
fn a_lease_that_merely_ended_still_passes_unless_the_guard_is_strict() {
    for (guard, strict) in [
        (Guard::by_connection(), false),
        (Guard::by_connection().strict(), true),
        (Guard::by_column("tok"), false),
        (Guard::by_column("tok").strict(), true),
    ] {
        let db = guarded(SCHEMA, "twin", &Guard::by_connection());
        db.guard("orders", "w", &guard).unwrap();
        let write = |token: i64| {
            db.present("w", token).unwrap();
            let sql = format!("UPDATE orders SET v = 1, tok = {token}");
            attempt(db.conn(), &sql, &["orders"])
        };
        let lease = acquired(db.claim("w", "a", LONG));
        write(lease.token).unwrap();
        db.release(&lease).map(drop).unwrap();
        assert_eq!(write(1).is_err(), strict, "released, {guard:?}");
        // A clock that is far behind made this grant, so by now it has expired.
        let lease = acquired(db.at(1_000).claim("w", "a", LONG));
        assert_eq!(write(lease.token).is_err(), strict, "expired, {guard:?}");
        assert!(write(1).is_err(), "superseded, {guard:?}");
        let lease = acquired(db.claim("w", "a", LONG));
        write(lease.token).unwrap();
        let broken = db.break_lease("w").unwrap();
        assert!(write(lease.token).is_err(), "broken: {broken:?}, {guard:?}");
    }
}

#[test]
fn the_clock_may_go_where_it_likes_and_the_fence_holds() {
    let db = guarded(SCHEMA, "orders", &Guard::by_connection());
    let day = 24 * 3_600_000;
    let mut now_ms = 1_000 * day;
    let mut grants = Vec::new();
    for step in [day, -3_600_000, 2 * day, -5 * day, 0, 9 * day] {
        now_ms += step;
        // Take it over, whatever that clock thinks of the one before.
        let _ = db.at(now_ms).break_lease("writer").unwrap();
        grants.push(acquired(db.at(now_ms).claim("writer", "x", LONG)).token);
    }
    assert!(grants.is_sorted(), "{grants:?}");
    let (newest, old) = grants.split_last().unwrap();
    for token in old {
        assert!(!db.present("writer", *token).unwrap());
        attempt(db.conn(), "DELETE FROM orders WHERE id = 1", &["orders"]).unwrap_err();
    }
    assert!(db.present("writer", *newest).unwrap());
    attempt(db.conn(), "DELETE FROM orders WHERE id = 1", &["orders"]).unwrap();
}

#[test]
fn a_zombie_is_refused_where_the_guarded_file_is_attached_to_another_one() {
    let (ours, other) = (TestFolder::new("WAL"), TestFolder::new("DELETE"));
    let db = ours.open(LONG);
    db.conn()
        .execute_batch("CREATE TABLE orders (id, tok); CREATE TABLE orders2 (id, tok)")
        .unwrap();
    db.guard("orders", "writer", &Guard::by_connection()).unwrap();
    db.guard("orders2", "writer", &Guard::by_column("tok")).unwrap();
    two_grants(&db);
    // The other file has a lease of the same name, and there the old token is the newest.
    let main = other.open(LONG);
    acquired(main.claim("writer", "a", LONG));
    main.conn().execute("ATTACH ?1 AS ours", [ours.file.to_str().unwrap()]).unwrap();
    assert!(main.present("writer", 1).unwrap(), "the newest one of the main file");
    attempt(main.conn(), "INSERT INTO ours.orders VALUES (1, 1)", &["ours.orders"]).unwrap_err();
    attempt(main.conn(), "INSERT INTO ours.orders2 VALUES (1, 1)", &["ours.orders2"]).unwrap_err();
    // And the holder of the newest one passes there.
    assert!(!main.present("writer", 2).unwrap(), "no such token in the main file");
    attempt(main.conn(), "INSERT INTO ours.orders VALUES (1, 2)", &["ours.orders"]).unwrap();
    attempt(main.conn(), "INSERT INTO ours.orders2 VALUES (1, 2)", &["ours.orders2"]).unwrap();
}

#[test]
fn a_connection_without_the_functions_is_refused_by_one_form_and_free_to_use_the_other() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    db.conn()
        .execute_batch("CREATE TABLE orders (id, tok); CREATE TABLE orders2 (id, tok)")
        .unwrap();
    db.guard("orders", "writer", &Guard::by_connection()).unwrap();
    db.guard("orders2", "writer", &Guard::by_column("tok")).unwrap();
    two_grants(&db);
    let plain = place.connect(LONG);
    let refused = plain.execute("INSERT INTO orders VALUES (1, 2)", []).unwrap_err().to_string();
    assert!(refused.contains("no such function: litelease_presented"), "{refused}");
    attempt(&plain, "INSERT INTO orders2 VALUES (1, 2)", &["orders2"]).unwrap();
    attempt(&plain, "INSERT INTO orders2 VALUES (1, 1)", &["orders2"]).unwrap_err();
    // What it does to the schema does not open the fence.
    plain.execute("ALTER TABLE orders RENAME TO renamed", []).unwrap();
    assert!(db.guards().unwrap().iter().all(|guard| guard.is_intact));
}

#[test]
fn a_presentation_belongs_to_one_connection_and_can_be_withdrawn() {
    let place = TestFolder::new("WAL");
    let (db, other) = (place.open(LONG), place.open(LONG));
    db.conn().execute_batch("CREATE TABLE orders (id)").unwrap();
    db.guard("orders", "writer", &Guard::by_connection()).unwrap();
    two_grants(&db);
    assert!(db.present("writer", 2).unwrap());
    assert!(!other.present("another", 2).unwrap());
    attempt(other.conn(), "INSERT INTO orders VALUES (1)", &["orders"]).unwrap_err();
    // Another handle on the same connection, and the SQL functions, know of it.
    let borrowed = litelease::LiteleaseRef::new(db.conn());
    attempt(borrowed.conn(), "INSERT INTO orders VALUES (1)", &["orders"]).unwrap();
    functions::register(db.conn()).unwrap();
    let presented = "SELECT litelease_presented('writer')";
    let known = |db: &Litelease| -> Option<i64> {
        db.conn().query_row(presented, [], |row| row.get(0)).unwrap()
    };
    assert_eq!(known(&db), Some(2));
    borrowed.withdraw("writer").unwrap();
    assert_eq!(known(&db), None);
    attempt(db.conn(), "INSERT INTO orders VALUES (2)", &["orders"]).unwrap_err();
}

#[test]
fn an_old_snapshot_that_wants_to_write_is_told_so_and_never_passes() {
    let place = TestFolder::new("WAL");
    let (old, db) = (place.open(LONG), place.open(LONG));
    db.conn().execute_batch("CREATE TABLE orders (id, tok)").unwrap();
    db.guard("orders", "writer", &Guard::by_connection()).unwrap();
    let lease = acquired(db.claim("writer", "a", LONG));
    old.conn().execute_batch("BEGIN").unwrap();
    assert!(old.present("writer", lease.token).unwrap());
    // Meanwhile somebody else is granted the name; the old snapshot does not know.
    let _ = db.transfer(&lease, "b", LONG).unwrap();
    assert!(old.present("writer", lease.token).unwrap());
    let refused = old.conn().execute("INSERT INTO orders VALUES (1, 1)", []).unwrap_err();
    let code = refused.sqlite_error().unwrap().extended_code;
    assert_eq!(code, ffi::SQLITE_BUSY_SNAPSHOT, "{refused}");
    old.conn().execute_batch("ROLLBACK").unwrap();
    attempt(old.conn(), "INSERT INTO orders VALUES (1, 1)", &["orders"]).unwrap_err();
}

#[test]
fn a_rebuild_of_the_table_is_noticed_and_guarding_again_restores_the_fence() {
    let rebuilds = [
        "CREATE TABLE new (id INTEGER PRIMARY KEY, v, extra, tok INTEGER); INSERT INTO new (id, v, tok)
         SELECT id, v, tok FROM orders; DROP TABLE orders; ALTER TABLE new RENAME TO orders",
        "ALTER TABLE orders RENAME TO old; CREATE TABLE orders (id INTEGER PRIMARY KEY, v, tok INTEGER);
         INSERT INTO orders SELECT id, v, tok FROM old; DROP TABLE old",
        "ALTER TABLE orders RENAME TO old; CREATE TABLE orders (id INTEGER PRIMARY KEY, v, tok INTEGER)",
        "DROP TABLE orders",
        "DROP TRIGGER litelease_guard_1_update",
        "DROP TRIGGER litelease_guard_1_delete; CREATE TRIGGER litelease_guard_1_delete
         AFTER DELETE ON orders BEGIN SELECT 1; END",
        "PRAGMA legacy_alter_table = ON; ALTER TABLE orders RENAME TO elsewhere; ALTER TABLE twin RENAME TO orders",
    ];
    for guard in [Guard::by_connection(), Guard::by_column("tok")] {
        for rebuild in rebuilds {
            let db = guarded(SCHEMA, "orders", &guard);
            db.conn()
                .execute_batch(
                    "DROP VIEW shown; DROP TRIGGER inbox_insert; PRAGMA foreign_keys = OFF",
                )
                .unwrap();
            assert!(db.present("writer", 2).unwrap());
            db.conn().execute_batch(rebuild).unwrap();
            for _ in 0..2 {
                let missing = db.present("writer", 2);
                assert!(
                    matches!(&missing, Err(Error::GuardMissing { table }) if table == "orders"),
                    "{rebuild}: {missing:?}"
                );
            }
            let missing = db.guards().unwrap();
            assert!(
                missing.iter().any(|guard| guard.table == "orders" && !guard.is_intact),
                "{rebuild}"
            );
            // Another name's guards are not in question, and a failed presentation leaves none behind.
            db.present("another", 2).unwrap();
            let presented: Option<i64> = db
                .conn()
                .query_row("SELECT litelease_presented('writer')", [], |row| row.get(0))
                .unwrap();
            assert_eq!(presented, None);
            if rebuild.starts_with("DROP TABLE") {
                assert_eq!(db.unguard("orders", None).unwrap(), 1);
                assert!(db.present("writer", 2).unwrap());
                continue;
            }
            db.guard("orders", "writer", &guard)
                .unwrap_or_else(|error| panic!("{rebuild}: {error}"));
            assert!(db.guards().unwrap().iter().all(|guard| guard.is_intact), "{rebuild}");
            assert!(db.present("writer", 2).unwrap());
            attempt(db.conn(), "INSERT INTO orders (id, v, tok) VALUES (90, 'x', 2)", &["orders"])
                .unwrap();
            db.present("writer", 1).unwrap();
            attempt(db.conn(), "INSERT INTO orders (id, v, tok) VALUES (91, 'x', 1)", &["orders"])
                .unwrap_err();
        }
    }
}

#[test]
fn guards_survive_renames_vacuum_and_dump() {
    for guard in [Guard::by_connection(), Guard::by_column("tok")] {
        let by_column = guard != Guard::by_connection();
        let place = TestFolder::new("DELETE");
        let db = place.open(LONG);
        db.conn()
            .execute_batch(
                "CREATE TABLE orders (k1, k2, v, tok INTEGER, PRIMARY KEY (k1, k2)) WITHOUT ROWID",
            )
            .unwrap();
        two_grants(&db);
        db.guard("orders", "writer", &guard).unwrap();
        assert!(db.present("writer", 2).unwrap());
        db.conn()
            .execute_batch(
                "ALTER TABLE orders RENAME TO \"new \"\"orders\"\"\";
                 ALTER TABLE \"new \"\"orders\"\"\" RENAME COLUMN tok TO \"my \"\"token\"\"\";
                 ALTER TABLE \"new \"\"orders\"\"\" RENAME COLUMN k2 TO second;
                 ALTER TABLE \"new \"\"orders\"\"\" ADD COLUMN more;
                 VACUUM",
            )
            .unwrap();
        let check = |db: &Litelease| {
            let guards = db.guards().unwrap();
            assert!(guards[0].is_intact, "{guards:?}");
            assert_eq!(guards[0].table, "new \"orders\"");
            assert_eq!(guards[0].column.as_deref(), by_column.then_some("my \"token\""));
            for (key, token, passes) in [("x", 1, false), ("y", 2, true)] {
                db.present("writer", token).unwrap();
                let sql = format!(
                    "INSERT INTO \"new \"\"orders\"\"\" VALUES ('{key}', 1, 1, {token}, 1)"
                );
                assert_eq!(attempt(db.conn(), &sql, &[]).is_ok(), passes, "{sql}");
            }
            if by_column {
                attempt(db.conn(), "UPDATE \"new \"\"orders\"\"\" SET more = 1", &[]).unwrap_err();
            }
        };
        check(&db);
        // Guarding it under its new names changes nothing; a table of the old name is another table.
        let renamed = if by_column { Guard::by_column("my \"token\"") } else { guard.clone() };
        db.guard("new \"orders\"", "writer", &renamed).unwrap();
        db.conn().execute_batch("CREATE TABLE orders (k1, tok)").unwrap();
        db.present("writer", 2).unwrap();

        let dump = std::process::Command::new("sqlite3").arg(&place.file).arg(".dump").output();
        match dump {
            Ok(dump) if dump.status.success() => {
                let restored = Litelease::from_connection(Connection::open_in_memory().unwrap());
                let sql = String::from_utf8(dump.stdout).unwrap();
                restored.conn().execute_batch(&sql).unwrap();
                restored.conn().execute_batch("DELETE FROM orders").unwrap();
                restored.present("writer", 2).unwrap();
                if !by_column {
                    restored.conn().execute_batch("DELETE FROM \"new \"\"orders\"\"\"").unwrap();
                    check(&restored);
                }
            }
            _ => println!("SKIPPED: there is no sqlite3 to dump with"),
        }
    }
}

#[test]
fn a_table_that_got_the_old_name_of_a_renamed_one_does_not_inherit_its_guard() {
    let db = guarded(SCHEMA, "twin", &Guard::by_connection());
    db.conn().execute_batch("ALTER TABLE twin RENAME TO moved; CREATE TABLE twin (id, v)").unwrap();
    let missing = db.present("writer", 2);
    assert!(matches!(missing, Err(Error::GuardMissing { table }) if table == "twin"));
}

/// What a trigger cannot see. Whoever does one of these goes around the fence on purpose, or by a tool that
/// works below SQL; the docs name each.
#[test]
fn known_ways_around_the_fence_are_as_the_docs_tell() {
    for guard in [Guard::by_connection(), Guard::by_column("tok")] {
        let stale = || {
            let db = guarded(SCHEMA, "orders", &guard);
            db.present("writer", 1).unwrap();
            attempt(db.conn(), "UPDATE orders SET v = 'stale', tok = 1", &["orders"]).unwrap_err();
            db
        };
        let is_written = |db: &Litelease| {
            let first = "SELECT v FROM orders WHERE id = 1";
            db.conn().query_row(first, [], |row| row.get::<_, String>(0)).unwrap()
        };
        // Incremental blob I/O writes into a row below SQL.
        let db = stale();
        let mut blob = db.conn().blob_open("main", "orders", "v", 1, false).unwrap();
        std::io::Write::write_all(&mut blob, b"B").unwrap();
        drop(blob);
        assert_eq!(is_written(&db), "B");
        // The schema is the caller's: dropping triggers, or the table, or editing it.
        let db = stale();
        db.conn()
            .execute_batch("DROP TRIGGER litelease_guard_1_update; UPDATE orders SET v = 'dropped'")
            .unwrap();
        assert_eq!(is_written(&db), "dropped");
        assert!(matches!(db.present("writer", 2), Err(Error::GuardMissing { .. })), "and noticed");
        let db = stale();
        db.conn().execute_batch("DROP VIEW shown; DROP TRIGGER inbox_insert; ALTER TABLE orders DROP COLUMN v; ALTER TABLE orders ADD COLUMN v DEFAULT 'altered'").unwrap();
        assert_eq!(is_written(&db), "altered");
        let db = stale();
        db.conn()
            .execute_batch(
                "PRAGMA writable_schema = ON; DELETE FROM sqlite_schema WHERE type = 'trigger';
                 PRAGMA writable_schema = RESET; UPDATE orders SET v = 'schema'",
            )
            .unwrap();
        assert_eq!(is_written(&db), "schema");
        assert!(matches!(db.present("writer", 2), Err(Error::GuardMissing { .. })), "and noticed");
        // Triggers can be switched off for a connection.
        let db = stale();
        db.conn().set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false).unwrap();
        db.conn().execute_batch("UPDATE orders SET v = 'off'").unwrap();
        assert_eq!(is_written(&db), "off");
    }
}

#[test]
fn refusals_are_counted_for_guards_by_connection() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    db.conn().execute_batch("CREATE TABLE orders (id); CREATE TABLE other (id)").unwrap();
    db.guard("orders", "writer", &Guard::by_connection()).unwrap();
    db.guard("other", "writer", &Guard::by_connection()).unwrap();
    two_grants(&db);
    db.present("writer", 1).unwrap();
    for _ in 0..3 {
        attempt(db.conn(), "INSERT INTO orders VALUES (1), (2)", &["orders"]).unwrap_err();
    }
    db.present("writer", 2).unwrap();
    attempt(db.conn(), "INSERT INTO orders VALUES (1), (2)", &["orders"]).unwrap();
    // Another connection of the process sees the same count.
    let counts: Vec<u64> =
        place.open(LONG).guards().unwrap().iter().map(|guard| guard.refusals).collect();
    assert_eq!(counts, [3, 0]);
}

#[test]
fn a_guard_joins_the_transaction_of_its_caller() {
    let mut db = guarded(SCHEMA, "twin", &Guard::by_connection());
    let before = contents(db.conn(), "sqlite_schema");
    let rowid = db.conn().last_insert_rowid();
    let tx = db.transaction().unwrap();
    tx.guard("orders", "writer", &Guard::by_connection()).unwrap();
    tx.rollback().unwrap();
    assert_eq!(before, contents(db.conn(), "sqlite_schema"));
    attempt(db.conn(), "DELETE FROM orders", &[]).unwrap();
    assert_eq!(db.conn().last_insert_rowid(), rowid);
}

#[test]
fn a_foreign_table_of_our_name_is_refused() {
    let db = guarded(SCHEMA, "twin", &Guard::by_connection());
    db.conn()
        .execute_batch("DROP TABLE litelease_guarded; CREATE TABLE litelease_guarded (x)")
        .unwrap();
    for refused in [
        db.guard("orders", "writer", &Guard::by_connection()).unwrap_err(),
        db.present("writer", 2).map(drop).unwrap_err(),
        db.unguard("twin", None).map(drop).unwrap_err(),
        db.guards().map(drop).unwrap_err(),
    ] {
        assert!(
            matches!(refused, Error::SchemaMismatch { table: "litelease_guarded", .. }),
            "{refused}"
        );
    }
}

/// Whatever keeps a presented token from being negated (a policy for conflicts, a constraint, a trigger of the user's)
/// must not leave one behind that lets an update pass which does not mention the column.
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
    attempt(db.conn(), "INSERT OR IGNORE INTO t VALUES (2, 'x', 2)", &["t"]).unwrap_err();
    // A column that hides the number of the row.
    let db =
        guarded("CREATE TABLE t (id INTEGER PRIMARY KEY, v, tok)", "t", &Guard::by_column("tok"));
    match db.conn().execute_batch("ALTER TABLE t ADD COLUMN rowid") {
        Ok(()) => {
            attempt(db.conn(), "INSERT INTO t (v, tok) VALUES ('x', 2)", &["t"]).unwrap_err();
            assert!(!db.guards().unwrap()[0].is_intact);
        }
        // Since 3.54 SQLite does not allow it.
        Err(error) => assert!(error.to_string().contains("rowid alias"), "{error}"),
    }
    // What is no token from before is none.
    let text = "CREATE TABLE t (id INTEGER PRIMARY KEY, v, tok); INSERT INTO t VALUES (1, 'x', 'abc'), (2, 'y', 5.5)";
    let db = guarded(text, "t", &Guard::by_column("tok"));
    for zombie in ["UPDATE t SET v = 'zombie', tok = 0", "UPDATE t SET v = 'zombie', tok = -tok"] {
        attempt(db.conn(), zombie, &["t"]).unwrap_err();
    }
}

#[test]
fn a_table_that_was_renamed_keeps_its_guard_whatever_takes_its_place() {
    for guard in [Guard::by_connection(), Guard::by_column("tok")] {
        let moved = || {
            let db = guarded("CREATE TABLE t (id, tok)", "t", &guard);
            db.conn().execute_batch("ALTER TABLE t RENAME TO u; CREATE TABLE t (id, tok)").unwrap();
            assert!(
                matches!(db.present("writer", 2), Err(Error::GuardMissing { table }) if table == "t")
            );
            attempt(db.conn(), "INSERT INTO u VALUES (1, 1)", &["u"]).unwrap_err();
            db
        };
        let check = |db: &Litelease, t_is_open: bool| {
            assert!(db.guards().unwrap().iter().all(|guard| guard.is_intact));
            db.present("writer", 1).unwrap();
            attempt(db.conn(), "INSERT INTO u VALUES (1, 1)", &["u"]).unwrap_err();
            assert_eq!(
                attempt(db.conn(), "INSERT INTO t VALUES (1, 1)", &["t"]).is_ok(),
                t_is_open
            );
            assert!(db.present("writer", 2).unwrap());
            attempt(db.conn(), "INSERT INTO u VALUES (1, 2)", &["u"]).unwrap();
        };
        let db = moved();
        db.guard("t", "writer", &guard).unwrap();
        check(&db, false);
        let db = moved();
        assert_eq!(db.unguard("T", Some("writer")).unwrap(), 1);
        check(&db, true);
        // A view in the old place writes to the guarded table.
        let db = guarded("CREATE TABLE t (id, tok)", "t", &guard);
        db.conn()
            .execute_batch("ALTER TABLE t RENAME TO u; CREATE VIEW t AS SELECT * FROM u")
            .unwrap();
        assert!(db.present("writer", 2).unwrap());
        // Two that change places are both guarded.
        let db = guarded("CREATE TABLE t (id, tok); CREATE TABLE u (id, tok)", "t", &guard);
        db.guard("u", "writer", &guard).unwrap();
        db.conn()
            .execute_batch(
                "ALTER TABLE t RENAME TO x; ALTER TABLE u RENAME TO t; ALTER TABLE x RENAME TO u",
            )
            .unwrap();
        check(&db, false);
    }
}

#[test]
fn triggers_without_a_record_are_left_alone() {
    let db = guarded(
        "CREATE TABLE t (id, tok); CREATE TABLE u (id, tok)",
        "t",
        &Guard::by_column("tok"),
    );
    db.conn().execute_batch("DELETE FROM litelease_guarded").unwrap();
    db.guard("u", "writer", &Guard::by_column("tok")).unwrap();
    attempt(db.conn(), "INSERT INTO t VALUES (1, 1)", &["t"]).unwrap_err();
    attempt(db.conn(), "INSERT INTO u VALUES (1, 1)", &["u"]).unwrap_err();
}

#[test]
fn what_is_left_of_a_dropped_table_can_be_forgotten_name_by_name() {
    let db = guarded("CREATE TABLE t (id, tok)", "t", &Guard::by_connection());
    db.guard("t", "second", &Guard::by_connection()).unwrap();
    db.conn().execute_batch("DROP TABLE t").unwrap();
    assert!(matches!(db.present("second", 1), Err(Error::GuardMissing { .. })));
    assert_eq!(db.unguard("T", Some("second")).unwrap(), 1);
    // What was found missing for one name says nothing about another.
    assert!(!db.present("second", 1).unwrap());
    assert!(matches!(db.present("writer", 2), Err(Error::GuardMissing { .. })));
    assert_eq!(db.unguard("t", None).unwrap(), 1);
    assert!(db.present("writer", 2).unwrap());
}

#[test]
fn rows_are_found_again_by_their_whole_key_and_its_collation() {
    let db = guarded(
        "CREATE TABLE t (a, b TEXT COLLATE NOCASE, tok, v, PRIMARY KEY (a, b COLLATE BINARY)) WITHOUT ROWID;
         INSERT INTO t VALUES (1, 'x', -1, 0), (1, 'y', -1, 0), (1, 'X', -1, 0)",
        "t",
        &Guard::by_column("tok"),
    );
    attempt(
        db.conn(),
        "UPDATE t SET v = 1, tok = 2 WHERE a = 1 AND b = 'x' COLLATE BINARY",
        &["t"],
    )
    .unwrap();
    attempt(db.conn(), "INSERT INTO t VALUES (1, 'Y', 2, 1)", &["t"]).unwrap();
    let tokens =
        "SELECT group_concat(b || tok, ' ') FROM (SELECT * FROM t ORDER BY b COLLATE BINARY)";
    let tokens: String = db.conn().query_row(tokens, [], |row| row.get(0)).unwrap();
    assert_eq!(tokens, "X-1 Y-2 x-2 y-1");
}

#[test]
fn names_are_compared_to_the_letter() {
    let db = guarded("CREATE TABLE t (id)", "t", &Guard::by_connection());
    acquired(db.claim("WRITER", "a", LONG));
    db.present("WRITER", 2).unwrap();
    attempt(db.conn(), "INSERT INTO t VALUES (1)", &["t"]).unwrap_err();
}

/// A guard is put on whole or not at all, also inside the caller's transaction.
#[test]
fn a_guard_that_fails_half_way_leaves_nothing() {
    use litelease::rusqlite::hooks::{AuthAction, AuthContext, Authorization};
    let mut connection = guarded(SCHEMA, "twin", &Guard::by_connection()).into_connection();
    let forbid = |context: AuthContext<'_>| match context.action {
        AuthAction::CreateTrigger { trigger_name, .. } if trigger_name.ends_with("delete") => {
            Authorization::Deny
        }
        _ => Authorization::Allow,
    };
    connection.authorizer(Some(forbid)).unwrap();
    let db = Litelease::from_connection(connection);
    let before = contents(db.conn(), "sqlite_schema");
    db.conn().execute_batch("BEGIN IMMEDIATE").unwrap();
    db.guard("orders", "writer", &Guard::by_connection()).unwrap_err();
    db.conn().execute_batch("COMMIT").unwrap();
    assert_eq!(before, contents(db.conn(), "sqlite_schema"));
    assert_eq!(db.guards().unwrap().len(), 1);
}

/// An interrupt is an error of its own, and never means that a guard is missing.
#[test]
fn an_interrupted_look_at_the_guards_is_told_as_such() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    let mut connection = guarded(SCHEMA, "orders", &Guard::by_column("tok")).into_connection();
    let countdown = Arc::new(AtomicU32::new(u32::MAX));
    let mut interrupted = 0;
    let left = Arc::clone(&countdown);
    let is_over = move || left.fetch_sub(1, Ordering::SeqCst) == 0;
    connection.progress_handler(1, Some(is_over)).unwrap();
    let db = Litelease::from_connection(connection);
    for step in 0..2_000 {
        countdown.store(step, Ordering::SeqCst);
        let listed = db.guards();
        let done = countdown.swap(u32::MAX, Ordering::SeqCst) < u32::MAX / 2;
        match listed {
            Ok(guards) => assert!(guards[0].is_intact, "after {step} steps"),
            Err(Error::Sqlite(error)) => {
                assert_eq!(
                    error.sqlite_error_code(),
                    Some(litelease::rusqlite::ErrorCode::OperationInterrupted)
                );
                interrupted += 1;
            }
            Err(error) => panic!("after {step} steps: {error}"),
        }
        if done {
            break;
        }
    }
    assert!(interrupted > 100, "{interrupted}");
}
