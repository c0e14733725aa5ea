//! Every statement of docs/sql.md is run, and answers what the document says.

use std::fs;
use std::path::Path;

use litelease::rusqlite::{Connection, types::Value};

/// A statement of the document, with its line and the answer under it.
struct Shown {
    line: usize,
    sql: String,
    answer: Vec<String>,
}

fn document() -> Vec<Shown> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sql.md");
    let text = fs::read_to_string(path).unwrap();
    let mut shown: Vec<Shown> = Vec::new();
    let mut in_sql = false;
    for (line, text) in (1..).zip(text.lines()) {
        match text {
            "```sql" => in_sql = true,
            "```" => in_sql = false,
            _ if !in_sql => {}
            text => match text.strip_prefix("-- ") {
                Some(answer) => shown.last_mut().unwrap().answer.push(answer.to_owned()),
                None => shown.push(Shown { line, sql: text.to_owned(), answer: Vec::new() }),
            },
        }
    }
    shown
}

fn run(conn: &Connection, sql: &str) -> Result<Vec<String>, litelease::rusqlite::Error> {
    let mut statement = conn.prepare(sql)?;
    let columns = statement.column_count();
    let mut rows = statement.query([])?;
    let mut answer = Vec::new();
    while let Some(row) = rows.next()? {
        let values = (0..columns).map(|index| {
            Ok(match row.get(index)? {
                Value::Null => "NULL".into(),
                Value::Integer(number) => number.to_string(),
                Value::Text(text) => text,
                other => format!("{other:?}"),
            })
        });
        let values: Result<Vec<String>, litelease::rusqlite::Error> = values.collect();
        answer.push(values?.join("|"));
    }
    Ok(answer)
}

#[test]
fn every_statement_answers_what_the_document_says() {
    let conn = Connection::open_in_memory().unwrap();
    litelease::functions::register(&conn).unwrap();
    let shown = document();
    assert!(shown.len() > 30, "only {} statements", shown.len());
    for Shown { line, sql, answer } in shown {
        let given = run(&conn, &sql).unwrap_or_else(|error| {
            let text = error.to_string();
            vec![format!("error: {}", text.split(" in SELECT").next().unwrap_or(&text))]
        });
        assert_eq!(given, answer, "docs/sql.md:{line}: {sql}");
    }
}

#[test]
fn every_function_is_in_the_document() {
    let conn = Connection::open_in_memory().unwrap();
    litelease::functions::register(&conn).unwrap();
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sql.md"))
        .unwrap();
    let sql = "SELECT DISTINCT name FROM pragma_function_list WHERE name LIKE 'litelease_%'
               UNION SELECT name FROM pragma_module_list WHERE name LIKE 'litelease_%'";
    for name in run(&conn, sql).unwrap() {
        assert!(
            text.contains(&format!("`{name}")) || name.starts_with("litelease_rule_"),
            "{name}"
        );
    }
}
