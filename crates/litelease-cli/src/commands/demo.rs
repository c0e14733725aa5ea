//! `litelease demo`: the zombie story, played with real processes.
//!
//! Worker a is stopped in the middle of its work, its lease runs out, b takes over, a goes on and
//! believes in its lease. The guarded table refuses a's writes, because its token is old.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use litelease::{
    CheckpointResult, ClaimResult, Guard, Lease, Litelease, Reason, ReleaseResult, RenewResult,
    is_stale,
};
use litelease_sys::children;
use signal_hook::consts::{SIGCONT, SIGSTOP};

use crate::Common;
use crate::exit::{Failure, Result, code};
use crate::output::{CYAN, YELLOW, say};

/// Show in 6 seconds what happens to a stopped process and its successor, with real processes
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Plays this worker of the story
    #[arg(long, hide = true, requires = "file")]
    worker: Option<String>,
    /// The file of the story
    #[arg(long, hide = true)]
    file: Option<PathBuf>,
}

const NAME: &str = "reports";
const TTL: Duration = Duration::from_secs(3);

pub(crate) fn execute(args: Args, _: &Common) -> Result<u8> {
    match (args.worker, args.file) {
        (Some(owner), Some(file)) => worker(&owner, &file)?,
        _ => story()?,
    }
    Ok(code::OK)
}

fn story() -> Result<()> {
    let begin = Instant::now();
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("demo.sqlite3");
    let db = Litelease::open_own(&file)?;
    db.conn()
        .execute_batch("CREATE TABLE reports (page INTEGER, author TEXT, token INTEGER)")
        .map_err(litelease::Error::from)?;
    db.guard(NAME, NAME, &Guard::by_connection())?;
    say(&format!(
        "Two workers, two processes, one SQLite file. Only one may write {NAME}, a table that is guarded.\n"
    ))?;
    let mut a = Worker::start("a", &file)?;
    a.says()?;
    a.says()?;
    let mut b = Worker::start("b", &file)?;
    b.says()?;
    pause();
    step(
        "",
        "worker a is stopped (SIGSTOP): a long garbage collection, a laptop lid, a slow disk.",
    )?;
    a.signal(SIGSTOP);
    step("", "Nobody renews. The lease runs out after 3 seconds, and then:")?;
    b.says()?;
    b.says()?;
    pause();
    step("", "worker a goes on (SIGCONT). It knows nothing of all that, and still has its lease:")?;
    a.signal(SIGCONT);
    a.ask("go on")?;
    for _ in 0..4 {
        a.says()?;
    }
    pause();
    step("", "worker b was never disturbed:")?;
    b.ask("go on")?;
    for _ in 0..4 {
        b.says()?;
    }
    say(&format!(
        "\n{:.0} seconds. The larger token wins; the clock only decides when to hand out a new one.",
        begin.elapsed().as_secs_f32()
    ))
}

/// Runs a worker: waits for the name and writes a page; at a line of input it writes another one,
/// and ends.
fn worker(owner: &str, file: &Path) -> Result<()> {
    let db = Litelease::open_own(file)?;
    let lease = match db.claim(NAME, owner, TTL)? {
        ClaimResult::Acquired(lease) => lease,
        ClaimResult::Busy(current) => {
            say(&format!(
                "claim    busy: worker {} has it under token {}",
                current.owner, current.token
            ))?;
            db.claim_wait(NAME, owner, Duration::from_secs(60), Duration::MAX)?
                .acquired()
                .ok_or_else(|| Failure::failed("Demo", "waited for ever and got nothing"))?
        }
    };
    say(&format!("claim    acquired, token {}", lease.token))?;
    db.present((NAME, lease.token))?;
    write(&db, &lease)?;
    std::io::stdin().lock().read_line(&mut String::new())?;
    write(&db, &lease)?;
    say(&match db.checkpoint((NAME, lease.token), "all pages")? {
        CheckpointResult::Stored => "progress stored".into(),
        CheckpointResult::Stale { newest } => {
            let newest = newest.unwrap_or_default();
            format!("progress refused: token {} is superseded by {newest}", lease.token)
        }
    })?;
    say(&match db.renew(&lease, TTL)? {
        RenewResult::Renewed(lease) => format!("renew    done, token {}", lease.token),
        RenewResult::Rejected { reason, current } => {
            format!("renew    rejected: token {} is {}", lease.token, why(reason, current))
        }
    })?;
    say(&match db.release(&lease)? {
        ReleaseResult::Released { token, .. } => format!("release  done, token {token}"),
        ReleaseResult::Rejected { reason, current } => {
            format!("release  rejected: token {} is {}", lease.token, why(reason, current))
        }
    })
}

/// Writes a page, if the table lets it.
fn write(db: &Litelease, lease: &Lease) -> Result<()> {
    let insert = "INSERT INTO reports SELECT count(*) + 1, ?1, ?2 FROM reports RETURNING page";
    let values = (&lease.owner, lease.token);
    match db.conn().query_row(insert, values, |row| row.get::<_, i64>(0)) {
        Ok(page) => say(&format!("write    page {page} stored under token {}", lease.token)),
        Err(error) if is_stale(&error) => say(&format!("write    refused: {error}")),
        Err(error) => Err(litelease::Error::from(error).into()),
    }
}

fn why(reason: Reason, current: Option<Lease>) -> String {
    match current {
        Some(lease) => format!("superseded by token {} of worker {}", lease.token, lease.owner),
        None => reason.to_string(),
    }
}

struct Worker {
    name: &'static str,
    child: Child,
}

impl Worker {
    fn start(name: &'static str, file: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["demo", "--worker", name, "--file"]).arg(file);
        Ok(Worker { name, child: command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()? })
    }

    /// Prints the next line of the worker.
    fn says(&mut self) -> Result<()> {
        let Some(out) = self.child.stdout.as_mut() else { return Ok(()) };
        let mut line = String::new();
        // One byte at a time: what a buffer would hold is the next line's.
        BufReader::with_capacity(1, out).read_line(&mut line)?;
        step(self.name, line.trim_end())
    }

    fn ask(&mut self, line: &str) -> Result<()> {
        if let Some(input) = self.child.stdin.as_mut() {
            writeln!(input, "{line}")?;
        }
        Ok(())
    }

    fn signal(&self, signal: i32) {
        // The child has not been reaped, so the number is still its own.
        children::signal(self.child.id() as children::pid_t, signal);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It has said all it had to say, or the story was cut short.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Gives the reader time.
fn pause() {
    sleep(Duration::from_millis(1500));
}

fn step(who: &str, what: &str) -> Result<()> {
    let colour = if who == "a" { YELLOW } else { CYAN };
    match who {
        "" => say(&format!("\n{what}")),
        _ => say(&format!("  {colour}worker {who}{colour:#}  {what}")),
    }
}
