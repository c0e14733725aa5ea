//! A worker is stopped in the middle of its work, for longer than its delivery lasts. Another
//! worker gets the item and finishes it. When the first one goes on, its effect is refused.
//!
//! `cargo run -p litelease --example paused_worker -- app.sqlite3` runs both workers as processes.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use litelease::{Litelease, WorkerOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let file = words.next().ok_or("name a database file")?;
    match words.next() {
        Some(name) => work(&file, &name),
        None => stop_the_first_worker(&file),
    }
}

/// One worker process: it takes one item, works for a while, and writes down that it has paid.
fn work(file: &str, name: &str) -> Result<(), Box<dyn Error>> {
    let db = Litelease::open(file)?;
    let options = WorkerOptions::new(Duration::from_millis(500)).once();
    let counts = db.queue("payments").worker(options)?.run(|item| {
        println!("{name}: attempt {}, token {}", item.attempt, item.token);
        // The work: the first worker is stopped here, and goes on when its input is closed.
        let _ = std::io::stdin().lines().count();
        if let Err(lost) = item.check() {
            println!("{name}: told that it lost the item: {}", lost.reason);
        }
        let finished = item.finish(|tx| {
            tx.conn().execute("INSERT INTO paid VALUES (?1, ?2)", (&item.body, name))?;
            Ok(())
        });
        match &finished {
            Ok(()) => println!("{name}: paid"),
            Err(error) => println!("{name}: refused, nothing written: {error}"),
        }
        finished
    })?;
    println!("{name}: {} done, {} lost", counts.done, counts.lost);
    Ok(())
}

fn stop_the_first_worker(file: &str) -> Result<(), Box<dyn Error>> {
    let db = Litelease::open_own(file)?;
    db.conn().execute_batch("CREATE TABLE IF NOT EXISTS paid (invoice, by_whom)")?;
    db.queue("payments").send("invoice 17")?;

    let worker = |name: &str, input: Stdio| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([file, name]).stdin(input).stdout(Stdio::piped()).spawn()
    };
    let send =
        |signal: &str, pid: u32| Command::new("kill").args([signal, &pid.to_string()]).status();
    let mut first = worker("first", Stdio::piped())?;
    let mut lines = BufReader::new(first.stdout.take().ok_or("no output")?).lines();
    println!("{}", lines.next().ok_or("no line")??); // it has the item
    send("-STOP", first.id())?;
    println!("the first worker is stopped");

    // It waits until the delivery of the first one is over.
    print!("{}", String::from_utf8(worker("second", Stdio::null())?.wait_with_output()?.stdout)?);

    println!("the first worker goes on");
    send("-CONT", first.id())?;
    drop(first.stdin.take());
    for line in lines {
        println!("{}", line?);
    }
    first.wait()?;

    let by = "SELECT group_concat(by_whom) FROM paid";
    let paid: String = db.conn().query_row(by, [], |row| row.get(0))?;
    println!("invoice 17 was paid by: {paid}");
    Ok(())
}
