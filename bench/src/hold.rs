//! What holding, waiting and `litelease run` cost: times and memory, between real processes.
//!
//! Times depend on the machine and its mood, so these are figures to look at and never conditions
//! of a test.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use litelease::{ClaimResult, HoldOptions, Litelease};

use crate::Result;
use crate::figure::{Figure, Reach, Rounds};
use crate::measure::cpu_of;

const LONG: Duration = Duration::from_secs(3600);

/// B10: waiting across processes.
pub(crate) fn waiting() -> Result<Vec<Figure>> {
    let what = "wake-up of a waiter by a release: p50, ms";
    Ok(vec![wake("B10", "release", what, 1.0)?, idle()?])
}

/// The other figures of holding and waiting.
pub(crate) fn holding() -> Result<Vec<Figure>> {
    let what = "wake-up by somebody who does not ring: p50, ms";
    Ok(vec![
        wake("H", "statement", what, 5.0)?,
        takeover()?,
        succession()?,
        overhead()?,
        memory()?,
        thousand()?,
        held()?,
    ])
}

/// The other processes of a measurement.
pub(crate) fn worker(work: &str, file: &Path) -> Result<()> {
    let db = open(file)?;
    match work {
        // Waits for the name again and again, and tells when it was granted.
        "waiter" => loop {
            let claimed = db.claim_wait("x", "waiter", LONG, Duration::MAX)?;
            let at = now();
            let ClaimResult::Acquired(lease) = claimed else { return Err("busy".into()) };
            print_line(&at.as_nanos().to_string())?;
            // The next round begins when another process has it.
            std::io::stdin().lock().read_line(&mut String::new())?;
            db.release(&lease)?;
            print_line("released")?;
            std::io::stdin().lock().read_line(&mut String::new())?;
        },
        // Has the name until it is killed, under a text that does not tell which process it is.
        "claimer" => {
            let claimed = db.claim("x", "a", Duration::from_secs(1))?;
            print_line("claimed")?;
            sleep(LONG);
            claimed.acquired().map(drop).ok_or("busy".into())
        }
        // Holds the name until it is killed.
        "holder" => {
            let held = db.hold("x", HoldOptions::new(LONG))?;
            print_line("held")?;
            held.lost().wait();
            Ok(())
        }
        _ => Err(format!("no such work: {work}").into()),
    }
}

fn wake(id: &'static str, way: &str, what: &'static str, reach: f64) -> Result<Figure> {
    let place = BenchFolder::new()?;
    let db = open(&place.file)?;
    let mut times = Vec::new();
    let mut waiter = None;
    for _ in 0..200 {
        let lease = db.claim("x", "a", LONG)?.acquired().ok_or("the name is not free")?;
        let waiter = match &mut waiter {
            None => waiter.insert(Worker::start("waiter", &place.file)?),
            Some(waiter) => {
                waiter.ask()?;
                waiter
            }
        };
        sleep(Duration::from_millis(30)); // it is asleep now
        let start = now();
        if way == "release" {
            db.release(&lease)?;
        } else {
            let free = "UPDATE litelease_resources SET owner = NULL, lease_expires_at_ms = NULL";
            db.conn().execute_batch(free)?;
        }
        let woken = Duration::from_nanos(waiter.line()?.parse()?);
        times.push(ms(woken.saturating_sub(start)));
        waiter.ask()?;
        waiter.line()?;
    }
    let medians = Rounds::new(times.chunks(40).map(|times| percentile(times, 50)).collect())?;
    let detail = format!(
        "5 × 40 times, p99 {:.2}, both commits included, without syncs",
        percentile(&times, 99)
    );
    Ok(medians.figure(id, what, Reach::AtMost(reach), detail))
}

fn idle() -> Result<Figure> {
    let place = BenchFolder::new()?;
    let db = Litelease::open_own(&place.file)?;
    let lease = db.claim("x", "a", LONG)?;
    let waiter = Worker::start("waiter", &place.file)?;
    sleep(Duration::from_secs(1));
    let used = share_of_a_core(&waiter, 3, Duration::from_secs(5))?;
    drop(lease);
    let what = "an idle waiter: % of a core";
    Ok(used.figure("B10", what, Reach::AtMost(0.05), "3 rounds of 5 s".into()))
}

/// What a process uses of a core while nothing happens, in percent.
fn share_of_a_core(worker: &Worker, rounds: usize, time: Duration) -> Result<Rounds> {
    let mut shares = Vec::new();
    for _ in 0..rounds {
        let (begin, cpu) = (Instant::now(), cpu_of(&worker.child)?);
        sleep(time);
        let used = cpu_of(&worker.child)? - cpu;
        shares.push(100.0 * used.as_secs_f64() / begin.elapsed().as_secs_f64());
    }
    Rounds::new(shares)
}

/// A holder is killed while another process waits: how long after that does the waiter have the
/// name?
fn takeover() -> Result<Figure> {
    let place = BenchFolder::new()?;
    let db = Litelease::open_own(&place.file)?;
    let mut late = Vec::new();
    for round in 0..10 {
        let mut holder = Worker::start("holder", &place.file)?;
        holder.line()?;
        // At another moment between two looks each time.
        let killed = std::thread::spawn(move || -> std::io::Result<Duration> {
            sleep(Duration::from_millis(600 + 50 * round));
            holder.child.kill()?;
            let at = now();
            holder.child.wait()?;
            Ok(at)
        });
        let next = db.claim_wait("x", "b", LONG, LONG)?;
        let at = now();
        let killed = killed.join().map_err(|_| "the killer is gone")??;
        late.push(ms(at.saturating_sub(killed)));
        db.release(&next.acquired().ok_or("busy")?)?;
    }
    let late = Rounds::new(late)?;
    let [_, worst] = late.range();
    let what = "a holder is killed: its successor, who waits, has the name after ms";
    let detail = format!("the worst of 10; p50 {:.0}; the ttl is an hour", late.median());
    Ok(figure(what, 1000.0, worst, detail))
}

/// A holder is killed, and a waiter takes over: how long after the lease was over?
fn succession() -> Result<Figure> {
    let place = BenchFolder::new()?;
    let db = Litelease::open_own(&place.file)?;
    let mut late = Vec::new();
    for _ in 0..10 {
        let mut holder = Worker::start("claimer", &place.file)?;
        holder.line()?;
        holder.child.kill()?;
        holder.child.wait()?;
        let lease = db.inspect("x")?.ok_or("it is over already")?;
        let next = db.claim_wait("x", "b", LONG, LONG)?;
        late.push((litelease::now_ms() - lease.expires_at_ms) as f64);
        if let ClaimResult::Acquired(next) = next {
            db.release(&next)?;
        }
    }
    let late = Rounds::new(late)?;
    let [_, worst] = late.range();
    let what = "a holder is killed: its successor comes at ttl + ms";
    let detail = format!("the worst of 10; p50 {:.0}", late.median());
    Ok(figure(what, 50.0, worst, detail))
}

fn overhead() -> Result<Figure> {
    let place = BenchFolder::new()?;
    let mut alone = Vec::new();
    let mut under = Vec::new();
    for _ in 0..100 {
        alone.push(start(&mut Command::new("/bin/date"))?);
        under.push(start(&mut place.litelease(&["run", "x", "--", "/bin/date"])?)?);
    }
    let (alone, under) = (percentile(&alone, 50), percentile(&under, 50));
    let what = "litelease run adds to the start of a command: p50, ms";
    let detail = format!("{under:.1} instead of {alone:.1}, with the syncs of the claim");
    Ok(figure(what, 15.0, under - alone, detail))
}

/// How long it takes until a command that ends with `date` tells the time.
fn start(command: &mut Command) -> Result<f64> {
    let begin = now();
    let output = command.arg("+%s%N").stdin(Stdio::null()).output()?;
    let told = Duration::from_nanos(String::from_utf8(output.stdout)?.trim().parse()?);
    Ok(ms(told.saturating_sub(begin)))
}

fn memory() -> Result<Figure> {
    let place = BenchFolder::new()?;
    let mut child = place.litelease(&["run", "x", "--", "sleep", "5"])?.spawn()?;
    sleep(Duration::from_millis(500));
    let status = fs::read_to_string(format!("/proc/{}/status", child.id()))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    let measured = peak.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0;
    child.kill()?;
    child.wait()?;
    let what = "litelease run: peak memory, MB";
    Ok(figure(what, 12.0, measured, "VmHWM, shared pages included".into()))
}

/// How often the file is committed to while a thousand leases of it are held.
fn thousand() -> Result<Figure> {
    let place = BenchFolder::new()?;
    let db = Litelease::open_own(&place.file)?;
    let ttl = Duration::from_secs(15);
    let holds: std::result::Result<Vec<_>, _> =
        (0..1000).map(|number| db.hold(&number.to_string(), HoldOptions::new(ttl))).collect();
    let holds = holds?;
    // The first renewals bring them together.
    sleep(ttl / 2);
    let version = || db.conn().pragma_query_value(None, "data_version", |row| row.get::<_, i64>(0));
    let (begin, mut last, mut commits) = (Instant::now(), version()?, 0.0);
    while begin.elapsed() < ttl * 2 {
        sleep(Duration::from_millis(1));
        let now = version()?;
        if now != last {
            (last, commits) = (now, commits + 1.0);
        }
    }
    for held in &holds {
        held.check()?;
    }
    let intervals = 2.0 * 3.0;
    let what = "1,000 holds of a file: transactions per interval";
    let detail = format!("{commits} in {intervals} intervals, which are up to a tenth shorter");
    Ok(figure(what, 1.2, commits / intervals, detail))
}

/// What a hold costs while it is held.
fn held() -> Result<Figure> {
    let place = BenchFolder::new()?;
    let holder = {
        let mut holder = Worker::start("holder", &place.file)?;
        holder.line()?;
        holder
    };
    let used = share_of_a_core(&holder, 3, Duration::from_secs(2))?;
    let what = "a hold with a ttl of 1 s: % of a core";
    Ok(used.figure("H", what, Reach::AtMost(0.5), "3 rounds of 2 s".into()))
}

fn figure(what: &'static str, most: f64, measured: f64, detail: String) -> Figure {
    Figure { id: "H", what, reach: Reach::AtMost(most), measured, range: None, detail }
}

/// A folder with a database in it.
struct BenchFolder {
    _folder: tempfile::TempDir,
    file: PathBuf,
}

impl BenchFolder {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("bench.sqlite3");
        Ok(BenchFolder { _folder: folder, file })
    }

    /// The command, which lies next to this program.
    fn litelease(&self, words: &[&str]) -> Result<Command> {
        let program = std::env::current_exe()?.with_file_name("litelease");
        let mut command = Command::new(program);
        command.args(words).env("LITELEASE_DB", &self.file);
        Ok(command)
    }
}

struct Worker {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Worker {
    fn start(work: &str, file: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["wait", work]).arg(file).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let out = child.stdout.take().ok_or("the worker has no output")?;
        Ok(Worker { child, out: BufReader::new(out) })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn ask(&mut self) -> Result<()> {
        Ok(self.child.stdin.as_mut().ok_or("the worker has no input")?.write_all(b"\n")?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In WAL mode and without syncs, which would be most of what is measured.
fn open(file: &Path) -> Result<Litelease> {
    let db = Litelease::open_own(file)?;
    db.conn().pragma_update(None, "synchronous", "NORMAL")?;
    Ok(db)
}

/// A clock that processes share.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn print_line(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[(values.len() * percent / 100).min(values.len() - 1)]
}
