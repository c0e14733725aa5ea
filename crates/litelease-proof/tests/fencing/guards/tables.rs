//! Tables of every shape and name, and what cannot be guarded.

use litelease::rusqlite::Connection;
use litelease::{Error, Guard, Litelease};

use super::Token::*;
use super::{SCHEMA, TOKENS, contents, guarded, try_write, two_grants};

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
                    db.present(("writer", number)).unwrap();
                }
                let may = token == Fresh;
                let check = |sql: String, expected: bool| {
                    // A STRICT table has its own opinion about text in an INTEGER column.
                    if token == NoInteger && what.contains("STRICT") {
                        return;
                    }
                    let passed = try_write(db.conn(), &sql, &[name]);
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
            assert_eq!(try_write(db.conn(), &format!("DELETE FROM {name}"), &[]), Ok(()), "{what}");
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
    // The same table by connection is fine where no column is needed, and after doing what the
    // error says.
    db.guard("hidden", "writer", &by_connection()).unwrap();
    db.guard("busy", "writer", &by_connection()).unwrap();
    db.conn().execute_batch("UPDATE used SET tok = -tok WHERE tok > 0").unwrap();
    db.guard("used", "writer", &by_column("tok")).unwrap();
    let again = db.guard("used", "other", &by_column("TOK"));
    assert!(again.unwrap_err().to_string().contains("another name"));
}

/// A writer that presents nothing must not pass because SQLite fills a token in.
#[test]
fn a_column_whose_default_could_be_a_token_cannot_be_guarded() {
    for (default, is_harmless) in [
        ("DEFAULT 1", false),
        ("DEFAULT '1'", false),
        ("DEFAULT +1", false),
        ("DEFAULT (-(-1))", false),
        ("DEFAULT (abs(-1))", false),
        ("DEFAULT CURRENT_TIMESTAMP", false),
        ("", true),
        ("DEFAULT NULL", true),
        ("NOT NULL DEFAULT 0", true),
        ("DEFAULT -1", true),
        ("DEFAULT (-1)", true),
        ("DEFAULT '-7'", true),
    ] {
        let schema = format!("CREATE TABLE orders (id INTEGER PRIMARY KEY, tok INTEGER {default})");
        let db = guarded(&schema, "orders", &Guard::by_connection());
        db.unguard("orders", None).unwrap();
        match db.guard("orders", "writer", &Guard::by_column("tok")) {
            Ok(()) => {
                assert!(is_harmless, "{default}");
                let written = db.conn().execute("INSERT INTO orders (id) VALUES (1)", []);
                assert!(written.unwrap_err().to_string().contains("stale fencing token"));
            }
            Err(error) => {
                assert!(!is_harmless && error.to_string().contains("has a default"), "{error}");
            }
        }
    }
}

#[test]
fn a_foreign_table_of_our_name_is_refused() {
    let db = guarded(SCHEMA, "twin", &Guard::by_connection());
    db.conn()
        .execute_batch("DROP TABLE litelease_guarded; CREATE TABLE litelease_guarded (x)")
        .unwrap();
    for refused in [
        db.guard("orders", "writer", &Guard::by_connection()).unwrap_err(),
        db.present(("writer", 2)).map(drop).unwrap_err(),
        db.unguard("twin", None).map(drop).unwrap_err(),
        db.guards().map(drop).unwrap_err(),
    ] {
        assert!(
            matches!(refused, Error::SchemaMismatch { table: "litelease_guarded", .. }),
            "{refused}"
        );
    }
}

#[test]
fn rows_are_found_again_by_their_whole_key_and_its_collation() {
    let db = guarded(
        "CREATE TABLE t (a, b TEXT COLLATE NOCASE, tok, v, PRIMARY KEY (a, b COLLATE BINARY)) WITHOUT ROWID;
         INSERT INTO t VALUES (1, 'x', -1, 0), (1, 'y', -1, 0), (1, 'X', -1, 0)",
        "t",
        &Guard::by_column("tok"),
    );
    try_write(
        db.conn(),
        "UPDATE t SET v = 1, tok = 2 WHERE a = 1 AND b = 'x' COLLATE BINARY",
        &["t"],
    )
    .unwrap();
    try_write(db.conn(), "INSERT INTO t VALUES (1, 'Y', 2, 1)", &["t"]).unwrap();
    let tokens =
        "SELECT group_concat(b || tok, ' ') FROM (SELECT * FROM t ORDER BY b COLLATE BINARY)";
    let tokens: String = db.conn().query_row(tokens, [], |row| row.get(0)).unwrap();
    assert_eq!(tokens, "X-1 Y-2 x-2 y-1");
}
