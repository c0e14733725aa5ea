//! Many processes write notes to one file, one at a time.
//!
//! ```text
//! cargo run --example single_writer -- write TEXT [FILE]    adds a note
//! cargo run --example single_writer -- count [FILE]         prints how many there are
//! cargo run --example single_writer -- hold SECONDS [FILE]  holds the lock while others time out
//! ```

use std::process::ExitCode;
use std::time::Duration;

use litelease::{SingleWriter, WriteError};

const USAGE: &str = "usage: single_writer write TEXT [FILE] | count [FILE] | hold SECONDS [FILE]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("single_writer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    match words {
        ["write", text, file @ ..] => {
            let row = open(file)?.write(|tx| {
                tx.execute("INSERT INTO notes (text) VALUES (?1)", [text])?;
                Ok(tx.last_insert_rowid())
            })?;
            println!("note {row}");
        }
        ["count", file @ ..] => {
            let reader = open(file)?.reader()?; // readers need no lock
            let notes: i64 =
                reader.query_row("SELECT count(*) FROM notes", [], |row| row.get(0))?;
            println!("{notes}");
        }
        ["hold", seconds, file @ ..] => {
            let writer = open(file)?;
            let tx = writer.begin()?;
            println!("holding {}", writer.lock_path().display());
            std::thread::sleep(Duration::from_secs_f64(seconds.parse()?));
            tx.commit()?;
        }
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

fn open(file: &[&str]) -> Result<SingleWriter, WriteError> {
    let writer = SingleWriter::open(file.first().unwrap_or(&"notes.sqlite3"))?;
    let is_there = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'notes')";
    if !writer.reader()?.query_row(is_there, [], |row| row.get::<_, bool>(0))? {
        writer.write(|tx| {
            tx.execute_batch("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT)")
        })?;
    }
    Ok(writer)
}
