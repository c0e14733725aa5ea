//! The single writer in Rust, Go, Node and Python, and `litelease write`: one lock file for all.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use litelease_proof::command::Desk;
use litelease_proof::rig::{PLANTED, litelease, report};

/// A Python program with the words of the examples.
const PYTHON: &str = "
import sys, time
import litelease
verb, word, path = sys.argv[1:]
try:
    with litelease.SingleWriter(path).write() as conn:
        if verb == 'hold':
            print('holding', flush=True)
            time.sleep(float(word))
        conn.execute('INSERT INTO notes (text) VALUES (?)', (word,))
except litelease.WriteLockTimeout as error:
    sys.exit(str(error))
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns a way to begin each writer: with `write TEXT FILE` or `hold SECONDS FILE` behind it.
fn writers(desk: &Desk) -> Vec<(&'static str, Vec<String>)> {
    let folder = desk.folder.path();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "-q", "--locked"]).args(PLANTED).current_dir(root());
    let built = cargo.args(["-p", "litelease", "--example", "single_writer"]).status().unwrap();
    assert!(built.success());
    let mut go = Command::new("go");
    go.args(["build", "-tags", "libsqlite3", "-o"]).arg(folder.join("writer"));
    go.arg(root().join("examples/single_writer.go")).env("GO111MODULE", "off");
    go.env("GOPATH", "/usr/share/gocode");
    go.env("GOCACHE", std::env::temp_dir().join("litelease-go-cache"));
    assert!(go.status().unwrap().success());
    fs::write(folder.join("writer.py"), PYTHON).unwrap();
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    let command = r#"case $0 in
        write) exec litelease write --db "$2" -- sqlite3 "$2" "INSERT INTO notes (text) VALUES ('$1')" ;;
        hold) exec litelease write --db "$2" -- sh -c "echo holding; exec sleep $1" ;;
    esac"#;
    vec![
        ("Rust", vec![text(litelease().with_file_name("examples/single_writer"))]),
        ("Go", vec![text(folder.join("writer"))]),
        ("Node", vec!["node".into(), text(root().join("examples/single_writer.js"))]),
        (
            "Python",
            vec![
                text(root().join("target/python/system/bin/python")),
                text(folder.join("writer.py")),
            ],
        ),
        ("the command", vec!["sh".into(), "-c".into(), command.into()]),
    ]
}

fn start(desk: &Desk, writer: &[String], verb: &str, word: &str) -> Child {
    let mut command = Command::new(&writer[0]);
    command.args(&writer[1..]).args([verb, word]).arg(&desk.file);
    desk.environment(&mut command);
    command.env("NODE_PATH", root().join("target/node/node_modules")).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Writes with all of them at once, and returns what each says if it fails.
fn write(desk: &Desk, writers: &[(&'static str, Vec<String>)]) -> Vec<Result<(), String>> {
    let started: Vec<Child> =
        writers.iter().map(|(_, writer)| start(desk, writer, "write", "a note")).collect();
    let end = |child: Child| {
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(errors) }
    };
    started.into_iter().map(end).collect()
}

/// `make test-hosts` installs what it needs.
#[test]
fn writers_in_five_languages_share_one_lock_and_name_its_holder() {
    if std::env::var_os("LITELEASE_HOSTS").is_none() {
        return report("SKIPPED: single writers in Go and Node: make test-hosts runs them");
    }
    let desk = Desk::new();
    let writers = writers(&desk);
    let connection = litelease::rusqlite::Connection::open(&desk.file).unwrap();
    let table = "PRAGMA journal_mode = WAL; CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)";
    connection.execute_batch(table).unwrap();
    let mut written = 0;

    for (holding, writer) in &writers {
        let mut holder = start(&desk, writer, "hold", "600");
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("holding"), "{holding}: {line}");
        let named = format!("holder: pid:{} since ", holder.id());
        for ((waiting, _), said) in writers.iter().zip(write(&desk, &writers)) {
            let said = said.unwrap_err();
            let is_named = said.contains("write lock timeout after 500ms") && said.contains(&named);
            assert!(is_named, "{waiting} waits for {holding}: {said}");
        }
        // By SIGKILL, and the lock is free at once, for each of the others.
        holder.kill().unwrap();
        holder.wait().unwrap();
        for each in writers.chunks(1) {
            assert_eq!(write(&desk, each), [Ok(())], "{} after {holding}", each[0].0);
            written += 1;
        }
    }
    // All at once. A slow machine may let one of them time out, which then has written nothing.
    for _ in 0..5 {
        for said in write(&desk, &writers) {
            match said {
                Ok(()) => written += 1,
                Err(said) => assert!(said.contains("timeout after 500ms; holder: "), "{said}"),
            }
        }
    }
    let notes: i64 =
        connection.query_row("SELECT count(*) FROM notes", [], |row| row.get(0)).unwrap();
    assert_eq!(notes, written);
}
