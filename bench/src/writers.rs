//! Eight processes that write to one file as fast as they can, on a disk whose every sync takes a
//! millisecond: who gets how much, and how long the unluckiest call took.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use litelease::rusqlite::{self, Connection, ErrorCode, TransactionBehavior};
use litelease::{SingleWriter, Synchronous, Waiting, WriteError, WriterOptions};

use crate::Result;
use crate::figure::{Figure, Reach, Rounds};
use crate::results::{Note, Point, Series};
use crate::rows::Outcome;

const PROCESSES: usize = 8;

const SECONDS: u64 = 8;
const ROUNDS: usize = 3;

/// How writers keep out of each other's way, and in how many rounds they are let.
const METHODS: [(&str, &str, usize); 3] = [
    ("fair", "SingleWriter", ROUNDS),
    ("busy", "SQLite's own busy handler", ROUNDS),
    ("polled", "SingleWriter, polled", 1),
];

/// What one writer did.
struct Score {
    writes: f64,
    worst: Duration,
    refused: u64,
}

/// What all writers of a method did, by rounds.
#[derive(Default)]
struct Tally {
    rate: Vec<f64>,
    jain: Vec<f64>,
    worst: Vec<f64>,
    refused: Vec<f64>,
    /// Of the last round, the largest first, in percent.
    shares: Vec<f64>,
}

/// B9: lets each method have its turn in every round.
pub(crate) fn outcome(folder: &Path) -> Result<Outcome> {
    let shim = build_shim()?;
    let mut tallies = METHODS.map(|_| Tally::default());
    for round in 0..ROUNDS {
        for ((method, _, rounds), tally) in METHODS.iter().zip(&mut tallies) {
            if round < *rounds {
                tally.add(&race(method, folder, &shim)?);
            }
        }
    }
    let [fair, others @ ..] = tallies;
    let mut notes = vec![fair.note(METHODS[0].1)?];
    let mut series = vec![fair.series(METHODS[0].1)];
    for (tally, (method, what, _)) in others.iter().zip(&METHODS[1..]) {
        notes.push(tally.note(what)?);
        if *method == "busy" {
            series.push(tally.series(what));
        }
    }
    Ok(Outcome { figures: fair.figures()?, series, notes, ..Outcome::default() })
}

impl Tally {
    fn add(&mut self, scores: &[Score]) {
        let writes: f64 = scores.iter().map(|score| score.writes).sum();
        let worst = scores.iter().map(|score| score.worst).max().unwrap_or_default();
        self.rate.push(writes / SECONDS as f64);
        self.jain.push(jain(scores));
        self.worst.push(worst.as_secs_f64() * 1e3);
        self.refused.push(scores.iter().map(|score| score.refused as f64).sum());
        self.shares = scores.iter().map(|score| 100.0 * score.writes / writes).collect();
        self.shares.sort_by(|a, b| b.total_cmp(a));
    }

    fn figures(&self) -> Result<Vec<Figure>> {
        let detail = || format!("{ROUNDS} rounds of {SECONDS} s, FULL, each sync 1 ms");
        let what = "8 processes, one file: Jain's fairness";
        let jain = Rounds::new(self.jain.clone())?;
        let jain = jain.figure("B9", what, Reach::AtLeast(0.95), detail());
        let what = "8 processes, one file: the worst call, ms";
        let worst = Rounds::new(self.worst.clone())?;
        let worst = worst.figure("B9", what, Reach::AtMost(100.0), detail());
        let refused: f64 = self.refused.iter().sum();
        let what = "8 processes, one file: refused as busy";
        let reach = Reach::AtMost(0.0);
        let detail = "of all rounds".to_owned();
        let refused = Figure { id: "B9", what, reach, measured: refused, range: None, detail };
        Ok(vec![jain, worst, refused])
    }

    fn note(&self, what: &str) -> Result<Note> {
        let [rate, jain, worst] =
            [&self.rate, &self.jain, &self.worst].map(|values| Rounds::new(values.clone()));
        let text = format!(
            "{:.0} writes per second, Jain {:.2}, worst call {:.0} ms, {:.0} refused",
            rate?.median(),
            jain?.median(),
            worst?.median(),
            self.refused.iter().sum::<f64>(),
        );
        Ok(Note { what: format!("eight processes, {what}"), text })
    }

    fn series(&self, what: &str) -> Series {
        let point =
            |(number, share): (u32, &f64)| Point { x: f64::from(number), y: *share, range: None };
        let points = (1..).zip(&self.shares).map(point).collect();
        Series { plot: "writers".into(), name: what.into(), points }
    }
}

/// One of the writers: `litelease-bench write METHOD FILE`.
pub(crate) fn write(method: &str, file: &Path) -> Result<()> {
    let mut step = stepper(method, file)?;
    let end = Instant::now() + Duration::from_secs(SECONDS);
    let mut score = Score { writes: 0.0, worst: Duration::ZERO, refused: 0 };
    while Instant::now() < end {
        let start = Instant::now();
        match step()? {
            true => score.writes += 1.0,
            false => score.refused += 1,
        }
        score.worst = score.worst.max(start.elapsed());
    }
    println!("{} {} {}", score.writes, score.worst.as_micros(), score.refused);
    Ok(())
}

/// One write after the other. `false` means that it was not let in.
fn stepper(method: &str, file: &Path) -> Result<Box<dyn FnMut() -> Result<bool>>> {
    const INSERT: &str = "INSERT INTO notes VALUES ('x')";
    let waiting = match method {
        "fair" => Waiting::Fair,
        "polled" => Waiting::POLLED,
        _ => {
            let mut connection = Connection::open(file)?;
            connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")?;
            connection.busy_timeout(Duration::from_secs(5))?;
            return Ok(Box::new(move || {
                let done = connection
                    .transaction_with_behavior(TransactionBehavior::Immediate)
                    .and_then(|tx| tx.execute(INSERT, []).and_then(|_| tx.commit()));
                admitted(done)
            }));
        }
    };
    let options = WriterOptions {
        timeout: Duration::from_secs(5),
        waiting,
        synchronous: Synchronous::Full,
        ..WriterOptions::default()
    };
    let writer = SingleWriter::open_with(file, options)?;
    Ok(Box::new(move || match writer.write(|tx| tx.execute(INSERT, [])) {
        Err(WriteError::Sqlite(error)) => admitted(Err(error)),
        Err(WriteError::Lock(litelease::LockError::Timeout { .. })) => Ok(false),
        Err(error) => Err(error.into()),
        Ok(_) => Ok(true),
    }))
}

fn admitted(done: rusqlite::Result<()>) -> Result<bool> {
    match done {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(false),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(true),
    }
}

fn race(method: &str, folder: &Path, shim: &Path) -> Result<Vec<Score>> {
    let folder = tempfile::tempdir_in(folder)?;
    let file = folder.path().join("data.db");
    SingleWriter::open(&file)?.write(|tx| tx.execute_batch("CREATE TABLE notes (text)"))?;
    let mut children = Vec::new();
    for _ in 0..PROCESSES {
        let mut child = Command::new(std::env::current_exe()?);
        child.args(["write", method]).arg(&file);
        children.push(child.env("LD_PRELOAD", shim).stdout(Stdio::piped()).spawn()?);
    }
    let mut scores = Vec::new();
    for child in children {
        let output = child.wait_with_output()?;
        let text = String::from_utf8(output.stdout)?;
        let numbers: Vec<u64> =
            text.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>()?;
        let [writes, worst, refused] = numbers[..] else {
            return Err(format!("a writer said {text:?}").into());
        };
        scores.push(Score { writes: writes as f64, worst: Duration::from_micros(worst), refused });
    }
    Ok(scores)
}

/// Jain's index of fairness: 1 if all got the same, 1/n if one got everything.
fn jain(scores: &[Score]) -> f64 {
    let sum: f64 = scores.iter().map(|score| score.writes).sum();
    let squares: f64 = scores.iter().map(|score| score.writes * score.writes).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (scores.len() as f64 * squares) }
}

pub(crate) fn build_shim() -> Result<PathBuf> {
    let folder = std::env::current_exe()?.parent().ok_or("no folder")?.to_owned();
    let shim = folder.join("slow_disk.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("slow_disk.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-o"])
        .arg(&shim)
        .arg(source)
        .status()?;
    if built.success() { Ok(shim) } else { Err("slow_disk.c does not compile".into()) }
}
