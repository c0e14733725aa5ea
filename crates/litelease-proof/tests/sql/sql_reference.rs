//! Every statement and program of docs/sql.md is run, and answers what the document says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use litelease::rusqlite::{Connection, types::Value};
use litelease_proof::rig::{extension, report};

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

/// A statement with every integer that it hands to a function of ours written as a REAL, as
/// JavaScript binds it.
fn with_reals(sql: &str) -> String {
    let mut changed = String::new();
    let (mut depth, mut is_ours, mut in_text) = (0, false, false);
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let end = match is_word(first) && !in_text {
            true => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            false => first.len_utf8(),
        };
        let (word, after) = rest.split_at(end);
        rest = after;
        changed.push_str(word);
        match word {
            "'" => in_text = !in_text,
            _ if in_text => {}
            "(" if is_ours => depth += 1,
            ")" if depth > 0 => depth -= 1,
            _ if depth > 0 && word.bytes().all(|byte| byte.is_ascii_digit()) => {
                changed.push_str(".0");
            }
            _ => {}
        }
        is_ours = word.starts_with("litelease_") || (is_ours && depth > 0);
    }
    changed
}

#[test]
fn every_statement_answers_what_the_document_says() {
    answers_what_the_document_says(str::to_owned);
}

#[test]
fn whole_reals_are_as_good_as_integers() {
    assert_eq!(
        with_reals("SELECT litelease_claim('9', 'a', 50, 100), 7 FROM t WHERE a = (8)"),
        "SELECT litelease_claim('9', 'a', 50.0, 100.0), 7 FROM t WHERE a = (8)"
    );
    answers_what_the_document_says(with_reals);
}

fn answers_what_the_document_says(written: impl Fn(&str) -> String) {
    // Holds need a file.
    let folder = tempfile::tempdir().unwrap();
    let conn = Connection::open(folder.path().join("app.sqlite3")).unwrap();
    litelease::functions::register(&conn).unwrap();
    let shown = document();
    assert!(shown.len() > 30, "only {} statements", shown.len());
    for Shown { line, sql, answer } in shown {
        let sql = written(&sql);
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

/// The programs of the document in a language, each with what it prints.
fn programs(language: &str) -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sql.md");
    let text = fs::read_to_string(path).unwrap();
    let opening = format!("```{language}\n");
    let blocks = text.split(&opening).skip(1);
    let programs = blocks.filter_map(|rest| rest.split("```").next()).map(|program| {
        let printed = program.lines().filter_map(|line| line.strip_prefix("// prints: "));
        (program.to_owned(), printed.map(|line| format!("{line}\n")).collect())
    });
    programs.collect()
}

/// A folder with the extension where the programs look for it.
fn project() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let built = folder.path().join("target/release");
    fs::create_dir_all(&built).unwrap();
    fs::copy(extension(), built.join("liblitelease_ext.so")).unwrap();
    folder
}

/// Runs a command in a folder, and gives what it prints. Warnings that it prints elsewhere are its
/// own affair.
fn printed(command: &mut Command, folder: &Path) -> String {
    let output = command.current_dir(folder).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn node() -> Command {
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/node/node_modules");
    let mut node = Command::new("node");
    node.env("NODE_PATH", modules);
    node
}

/// The two SQLites of Node, and a program that ends well where they are there and were compiled for
/// this Node.
const MODULES: [(&str, &str); 2] = [
    ("better-sqlite3", "new (require('better-sqlite3'))(':memory:')"),
    ("node:sqlite", "require('node:sqlite')"),
];

fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

#[test]
fn the_programs_in_javascript_run_as_written() {
    let programs = programs("js");
    assert_eq!(programs.len(), 2);
    for ((module, probe), (program, wanted)) in MODULES.into_iter().zip(programs) {
        assert!(program.contains(module) && !wanted.is_empty());
        if !succeeds(node().args(["-e", probe])) {
            report(&format!(
                "SKIPPED: the program of docs/sql.md for {module}, which Node does not have"
            ));
            continue;
        }
        let folder = project();
        let mut node = node();
        assert_eq!(printed(node.args(["-e", &program]), folder.path()), wanted, "{module}");
    }
}

#[test]
fn the_program_in_python_holds_a_name() {
    let programs: Vec<String> =
        programs("python").into_iter().map(|(program, _)| program).collect();
    let program = programs.iter().find(|program| program.contains("litelease_hold")).unwrap();
    let folder = project();
    let mut python = Command::new("/usr/bin/python3");
    let wanted = "part 0 under token 1\npart 1 under token 1\npart 2 under token 1\n";
    assert_eq!(printed(python.args(["-c", program]), folder.path()), wanted);
    let db = litelease::Litelease::open(folder.path().join("app.sqlite3")).unwrap();
    assert_eq!(db.owner("nightly").unwrap(), None, "released");
}

/// PHP, if it is there with SQLite and can load extensions.
fn php(extensions: PathBuf) -> Option<impl Fn(&str) -> Command> {
    let php = move |program: &str| {
        let mut php = Command::new("php");
        php.arg("-d").arg(format!("sqlite3.extension_dir={}", extensions.display()));
        php.args(["-r", program.trim_start_matches("<?php")]);
        php
    };
    succeeds(&mut php("exit(method_exists('SQLite3', 'loadExtension') ? 0 : 1);")).then_some(php)
}

#[test]
fn the_program_in_php_runs_as_written() {
    let programs = programs("php");
    assert_eq!(programs.len(), 1);
    let folder = project();
    let Some(php) = php(folder.path().join("target/release")) else {
        return report(
            "SKIPPED: the program of docs/sql.md in PHP, because php or its sqlite3 is missing",
        );
    };
    for (program, wanted) in programs {
        assert!(!wanted.is_empty());
        // The first line has a comment behind the opening tag.
        let (first, rest) = program.split_once('\n').unwrap();
        assert_eq!(first, "<?php // php -d sqlite3.extension_dir=target/release program.php");
        assert_eq!(printed(&mut php(rest), folder.path()), wanted);
    }
    // And what the document warns of is so: fetching runs a SELECT again.
    let warned = "
        $db = new SQLite3('app.sqlite3');
        $db->enableExceptions(true);
        $db->loadExtension('liblitelease_ext.so');
        $ran = fn($result) => var_export($result->fetchArray(SQLITE3_NUM)[0], true);
        echo $ran($db->query(\"SELECT litelease_claim('twice', 'a', 30000)\")), ' ';
        $claim = $db->prepare(\"SELECT litelease_claim('again', 'a', ?)\");
        $claim->bindValue(1, 30000);
        echo $ran($claim->execute()), ' ';
        echo $db->querySingle(\"SELECT litelease_claim('once', 'a', 30000)\"), ' ';
        $db->querySingle(\"SELECT litelease_pool('p', 9)\");
        $db->query(\"SELECT litelease_borrow('p', 30000)\")->fetchArray();
        echo $db->querySingle(\"SELECT count(*) FROM litelease_slots('p')\"), ' ';
        $calls = 0;
        $count = function() use (&$calls) { return ++$calls; };
        $pdo = new PDO('sqlite::memory:');
        $pdo->sqliteCreateFunction('calls', $count);
        $pdo->query('SELECT calls()')->fetchAll();
        $statement = $pdo->prepare('SELECT calls() WHERE ? > 0');
        $statement->execute([1]);
        echo $statement->fetchColumn();";
    assert_eq!(printed(&mut php(warned), folder.path()), "NULL NULL 1 2 2");
}
