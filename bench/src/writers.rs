//! Eight processes that write to one file as fast as they can, on a disk whose every sync takes a millisecond: who gets
//! how much, and how long the unluckiest call took.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use litelease::rusqlite::{self, Connection, ErrorCode, TransactionBehavior};
use litelease::{SingleWriter, Synchronous, Waiting, WriteError, WriterOptions};

use crate::Result;

const PROCESSES: usize = 8;

/// How writers keep out of each other's way.
const METHODS: [(&str, &str); 3] = [
    ("fair", "SingleWriter, as it comes"),
    ("polled", "SingleWriter, polled"),
    ("busy", "SQLite's own busy handler"),
];

/// What one writer did.
struct Score {
    writes: f64,
    worst: Duration,
    refused: u64,
}

/// Lets each method run for as long, and prints what came of it. Answers whether the figures were reached.
pub(crate) fn run(seconds: u64) -> Result<bool> {
    let shim = build_shim()?;
    println!(
        "{PROCESSES} processes, one file, WAL, synchronous=FULL, every sync 1 ms, {seconds} s each\n\n{:<28} {:>9} {:>6} {:>12} {:>8}",
        "", "writes/s", "Jain", "worst call", "refused"
    );
    let mut throughput = [0.0; METHODS.len()];
    let mut reached = true;
    for ((method, what), throughput) in METHODS.iter().zip(&mut throughput) {
        let scores = race(method, seconds, &shim)?;
        let worst = scores.iter().map(|score| score.worst).max().unwrap_or_default();
        let refused: u64 = scores.iter().map(|score| score.refused).sum();
        let jain = jain(&scores);
        *throughput = scores.iter().map(|score| score.writes).sum::<f64>() / seconds as f64;
        println!(
            "{what:<28} {throughput:>9.0} {jain:>6.2} {:>9.0} ms {refused:>8}",
            worst.as_secs_f64() * 1e3
        );
        if *method == "fair" {
            reached = jain >= 0.95 && worst <= Duration::from_millis(100) && refused == 0;
        }
    }
    println!(
        "\nreach: Jain >= 0.95, worst call <= 100 ms, none refused, as many writes as the busy handler"
    );
    Ok(reached && throughput[0] >= throughput[2])
}

/// One of the writers: `litelease-bench write METHOD SECONDS FILE`.
pub(crate) fn write(method: &str, seconds: u64, file: &Path) -> Result<()> {
    let mut step = stepper(method, file)?;
    let end = Instant::now() + Duration::from_secs(seconds);
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
        "polled" => Waiting::Polled,
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

fn race(method: &str, seconds: u64, shim: &Path) -> Result<Vec<Score>> {
    let memory = Path::new("/dev/shm");
    let folder = match memory.is_dir() {
        true => tempfile::tempdir_in(memory)?,
        false => tempfile::tempdir()?,
    };
    let file = folder.path().join("data.db");
    SingleWriter::open(&file)?.write(|tx| tx.execute_batch("CREATE TABLE notes (text)"))?;
    let mut children = Vec::new();
    for _ in 0..PROCESSES {
        let mut child = Command::new(std::env::current_exe()?);
        child.args(["write", method, &seconds.to_string()]).arg(&file);
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
