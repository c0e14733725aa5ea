//! A story with real processes: a worker is stopped in the middle of its work, another one takes over, and the
//! first wakes up and goes on as if nothing had happened. The database itself stops it.
//!
//! `cargo run --example zombie`

use std::io::{BufRead, BufReader, IsTerminal};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use litelease::{
    CheckpointResult, ClaimResult, Guard, LeaseInfo, Litelease, ReleaseResult, RenewResult,
};

const NAME: &str = "reports";
const TTL: Duration = Duration::from_secs(2);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["worker", owner, file] => worker(owner, Path::new(file)),
        _ => story(),
    }
}

fn story() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("app.sqlite3");
    let db = open(&file)?;
    db.conn().execute_batch("CREATE TABLE reports (page INTEGER, author TEXT, token INTEGER)")?;
    db.guard("reports", NAME, &Guard::by_connection())?;
    println!("Two workers, two processes, one SQLite file: {}", file.display());
    println!("The table `reports` is guarded by the name {NAME:?}.\n");

    let mut a = Worker::start("worker-a", &file)?;
    a.says()?;
    a.says()?;
    let mut b = Worker::start("worker-b", &file)?;
    b.says()?;

    sleep(Duration::from_millis(200)); // it has done its writing by now, and sleeps
    a.signal("STOP")?;
    let stopped = Instant::now();
    tell("worker-a", "(stopped by SIGSTOP: a long pause, and it does not know)");
    b.says()?;
    let seconds = stopped.elapsed().as_secs_f32();
    tell("", &format!("({seconds:.1} s later, when the lease of worker-a ran out)"));
    b.says()?;

    println!("\nNow worker-a wakes up (SIGCONT) and goes on where it was:");
    a.signal("CONT")?;
    for _ in 0..4 {
        a.says()?;
    }
    a.process.wait()?;
    println!("\nAnd worker-b never noticed:");
    for _ in 0..2 {
        b.says()?;
    }
    b.process.wait()?;

    println!("\nWhat is in the table:");
    let mut pages = db.conn().prepare("SELECT page, author, token FROM reports ORDER BY rowid")?;
    let mut rows = pages.query([])?;
    while let Some(row) = rows.next()? {
        let (page, author, token): (i64, String, i64) = row.try_into()?;
        tell("", &format!("page {page} by {author} under token {token}"));
    }
    Ok(())
}

/// Waits for the name, goes on from the last checkpoint, and writes pages until all are there.
fn worker(owner: &str, file: &Path) -> Result<()> {
    let db = open(file)?;
    let lease = wait_for(&db, owner)?;
    let first = match db.last_checkpoint(NAME)? {
        Some(last) => match last.value {
            litelease::rusqlite::types::Value::Integer(page) => page + 1,
            other => return Err(format!("not a page: {other:?}").into()),
        },
        None => 1,
    };
    println!("claim      -> acquired {NAME:?} for {TTL:?}, token {}", lease.token);
    db.present(NAME, lease.token)?;
    for page in first..=3 {
        if !write(&db, &lease, page)? {
            break;
        }
        sleep(Duration::from_millis(600));
    }
    match db.release_exact(&lease)? {
        ReleaseResult::Released { .. } => println!("release    -> done"),
        ReleaseResult::Rejected { reason, .. } => println!("release    -> rejected: {reason}"),
    }
    Ok(())
}

/// Writes a page and tells how far it has come. Answers whether it may go on.
fn write(db: &Litelease, lease: &LeaseInfo, page: i64) -> Result<bool> {
    let insert = "INSERT INTO reports VALUES (?1, ?2, ?3)";
    match db.conn().execute(insert, (page, &lease.owner, lease.token)) {
        Ok(_) => println!("page {page}     -> stored under token {}", lease.token),
        Err(error) if litelease::is_stale(&error) => {
            println!("page {page}     -> refused: {error}")
        }
        Err(error) => return Err(error.into()),
    }
    if let CheckpointResult::Stale { newest } = db.checkpoint(NAME, lease.token, page)? {
        let newest = newest.unwrap_or_default();
        println!("checkpoint -> refused: token {} is superseded by {newest}", lease.token);
    }
    match db.renew_exact(lease, TTL)? {
        RenewResult::Renewed(_) => Ok(true),
        RenewResult::Rejected { reason, .. } => {
            println!("renew      -> rejected: {reason}");
            Ok(false)
        }
    }
}

fn wait_for(db: &Litelease, owner: &str) -> Result<LeaseInfo> {
    let mut told = false;
    loop {
        match db.claim(NAME, owner, TTL)? {
            ClaimResult::Acquired(lease) => return Ok(lease),
            ClaimResult::Busy(current) if !told => {
                told = true;
                println!("claim      -> busy: {} has it, token {}", current.owner, current.token);
            }
            ClaimResult::Busy(_) => sleep(Duration::from_millis(50)),
        }
    }
}

fn open(file: &Path) -> Result<Litelease> {
    let db = Litelease::open(file)?;
    db.bootstrap()?;
    Ok(db)
}

/// A worker in a process of its own, and what it says.
struct Worker {
    owner: &'static str,
    process: Child,
    lines: BufReader<ChildStdout>,
}

impl Worker {
    fn start(owner: &'static str, file: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", owner]).arg(file).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let out = process.stdout.take().ok_or("the worker has no output")?;
        Ok(Worker { owner, process, lines: BufReader::new(out) })
    }

    /// Waits for its next line, and tells it.
    fn says(&mut self) -> Result<()> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        tell(self.owner, line.trim_end());
        Ok(())
    }

    fn signal(&self, signal: &str) -> Result<()> {
        let id = self.process.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &id]).status()?;
        if sent.success() { Ok(()) } else { Err(format!("cannot send SIG{signal}").into()) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // If the story ends early, nobody stays behind.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn tell(who: &str, what: &str) {
    let colour = match who {
        _ if !std::io::stdout().is_terminal() || std::env::var_os("NO_COLOR").is_some() => "",
        "worker-a" => "\x1b[33m",
        "worker-b" => "\x1b[36m",
        _ => "",
    };
    let plain = if colour.is_empty() { "" } else { "\x1b[0m" };
    println!("  {colour}{who:<9}{plain} {what}");
}
