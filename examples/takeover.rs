//! A story with real processes: two workers share a file, one dies, the other takes over, and what the dead
//! one's lease still asks for is refused.
//!
//! `cargo run --example takeover`

use std::io::{BufRead, BufReader, IsTerminal};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use litelease::{ClaimResult, LeaseInfo, Litelease, Reason, ReleaseResult, RenewResult};

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
    println!("Two workers, two processes, one SQLite file: {}\n", file.display());

    let (mut a, mut says_a) = start("worker-a", &file)?;
    tell("worker-a", &next_line(&mut says_a)?);
    let (mut b, mut says_b) = start("worker-b", &file)?;
    tell("worker-b", &next_line(&mut says_b)?);

    sleep(Duration::from_millis(700));
    a.kill()?;
    a.wait()?;
    let died = Instant::now();
    tell("worker-a", "killed with kill -9 in the middle of its work; nobody cleans up after it");
    tell("worker-b", &next_line(&mut says_b)?);
    tell(
        "",
        &format!("({:.1} s after the death, when the lease ran out)", died.elapsed().as_secs_f32()),
    );

    println!(
        "\nNow suppose worker-a had not died but only slept, and wakes up with its old lease:"
    );
    let db = open(&file)?;
    let old =
        LeaseInfo { name: NAME.into(), owner: "worker-a".into(), token: 1, lease_expires_at_ms: 0 };
    if let RenewResult::Rejected { reason, current } = db.renew_exact(&old, TTL)? {
        tell("worker-a", &format!("renew   -> rejected: {}", why(reason, current)));
    }
    if let ReleaseResult::Rejected { reason, current } = db.release_exact(&old)? {
        tell("worker-a", &format!("release -> rejected: {}", why(reason, current)));
    }
    tell("worker-a", &write_report(&file, &old)?);
    tell("worker-b", &next_line(&mut says_b)?);
    b.wait()?;
    Ok(())
}

fn why(reason: Reason, current: Option<LeaseInfo>) -> String {
    match current {
        Some(lease) => format!("{reason}, {} (token {})", lease.owner, lease.token),
        None => reason.to_string(),
    }
}

/// Waits for the name, then works under it: renews, and writes one report.
fn worker(owner: &str, file: &Path) -> Result<()> {
    let db = open(file)?;
    let mut told = false;
    let lease = loop {
        match db.claim(NAME, owner, TTL)? {
            ClaimResult::Acquired(lease) => break lease,
            ClaimResult::Busy(current) if !told => {
                told = true;
                println!("claim   -> busy: {} has it, token {}", current.owner, current.token);
            }
            ClaimResult::Busy(_) => sleep(Duration::from_millis(50)),
        }
    };
    println!("claim   -> acquired {NAME:?} for {TTL:?}, token {}", lease.token);
    for _ in 0..4 {
        sleep(Duration::from_millis(400));
        if let RenewResult::Rejected { reason, .. } = db.renew_exact(&lease, TTL)? {
            println!("renew   -> rejected: {reason}");
            return Ok(());
        }
    }
    println!("{}", write_report(file, &lease)?);
    Ok(())
}

/// Writes only if no newer token exists. The check and the write are one transaction, so nobody can be
/// granted the name in between.
fn write_report(file: &Path, lease: &LeaseInfo) -> Result<String> {
    let mut db = open(file)?;
    let tx = db.transaction()?;
    match tx.token(&lease.name)? {
        Some(newest) if newest == lease.token => {}
        Some(newest) => {
            let old = lease.token;
            return Ok(format!("write   -> refused: token {old} is superseded by {newest}"));
        }
        None => return Ok(format!("write   -> refused: nobody was granted {NAME:?}")),
    }
    tx.conn().execute("INSERT INTO reports VALUES (?1, ?2)", (&lease.owner, lease.token))?;
    tx.commit()?;
    Ok(format!("write   -> stored under token {}", lease.token))
}

fn open(file: &Path) -> Result<Litelease> {
    let db = Litelease::open(file)?;
    db.bootstrap()?;
    db.conn().execute_batch("CREATE TABLE IF NOT EXISTS reports (author TEXT, token INTEGER)")?;
    Ok(db)
}

fn start(owner: &str, file: &Path) -> Result<(Child, BufReader<ChildStdout>)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["worker", owner]).arg(file).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let out = child.stdout.take().ok_or("the worker has no output")?;
    Ok((child, BufReader::new(out)))
}

fn next_line(lines: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    lines.read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
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
