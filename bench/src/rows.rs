//! The whole table: which rows there are, how each is measured, and how it ended.

use std::path::Path;
use std::process::ExitCode;

use crate::counted::{self, Counted};
use crate::figure::Figure;
use crate::measure::{Counts, need, open_many_files};
use crate::progress::Progress;
use crate::results::{Machine, Note, Part, Results, Series, commit, date, root};
use crate::scratch::Scratch;
use crate::{Result, document, growth, hold, peers, python, serve, table, writers};

/// What measuring something gave.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) figures: Vec<Figure>,
    pub(crate) series: Vec<Series>,
    pub(crate) notes: Vec<Note>,
}

type Measuring = dyn Fn(&Bench) -> Result<Outcome>;

/// Rows that are measured together.
struct Job {
    rows: &'static str,
    what: &'static str,
    /// How long it takes, about, on two quiet cores.
    seconds: f64,
    run: Box<Measuring>,
}

/// What all of them need.
struct Bench {
    counts: Counts,
    scratch: Scratch,
}

/// Measures all rows, or those that are asked for, prints and stores them, and puts them into the documents if `save`.
pub(crate) fn run(wanted: &[&str], save: bool) -> Result<ExitCode> {
    let jobs = jobs();
    let known: Vec<&str> = jobs.iter().flat_map(|job| job.rows.split(' ')).collect();
    if let Some(unknown) = wanted.iter().find(|row| !known.contains(row)) {
        return Err(format!("there is no row {unknown}; there are {}", known.join(" ")).into());
    }
    let is_wanted = |row: &str| wanted.is_empty() || wanted.contains(&row);
    let order: Vec<&str> = jobs.iter().map(|job| job.rows).collect();
    let chosen: Vec<&Job> = jobs.iter().filter(|job| job.rows.split(' ').any(is_wanted)).collect();

    open_many_files();
    let bench = Bench { counts: Counts::default(), scratch: Scratch::new()? };
    let (machine, date, commit) = (Machine::this(), date()?, commit());
    let file = root().join("target/bench/results.json");
    let mut results = earlier(&file, &machine, wanted.is_empty());
    let mut failures = Vec::new();
    let mut progress = Progress::new(chosen.iter().map(|job| job.seconds).sum());
    table::print_head();
    let mut entries = Vec::new();
    for (number, job) in (1..).zip(&chosen) {
        let what = format!("[{number}/{}] {}: {}", chosen.len(), job.rows, job.what);
        let telling = progress.part(&what, job.seconds);
        let outcome = (job.run)(&bench);
        drop(telling);
        match outcome {
            // The others are worth measuring all the same.
            Err(error) => failures.push(format!("{}: {error}", job.rows)),
            Ok(outcome) => {
                let Outcome { figures, series, notes } = outcome;
                let part = Part {
                    rows: job.rows.into(),
                    date: date.clone(),
                    commit: commit.clone(),
                    entries: figures.into_iter().map(Into::into).collect(),
                    series,
                    notes,
                };
                part.entries.iter().for_each(table::print);
                part.notes.iter().for_each(table::print_note);
                entries.extend(part.entries.clone());
                results.put(part, &order);
                results.write(&file)?;
            }
        }
    }
    println!("\nstored in {}", file.display());
    for failure in &failures {
        eprintln!("NOT MEASURED: {failure}");
    }
    if save {
        let has = |row: &&str| results.entries().any(|entry| entry.id == *row);
        match known.iter().find(|row| !has(row)) {
            Some(row) => eprintln!("not saved: {row} has never been measured on this machine"),
            None => document::save(&results)?,
        }
    }
    let is_absent = |row: &&str| is_wanted(row) && entries.iter().all(|entry| entry.id != *row);
    let absent = table::names(known.iter().copied().filter(is_absent));
    let missed = entries.iter().filter(|entry| !entry.is_reached());
    let missed = table::names(missed.map(|entry| entry.id.as_str()));
    let end = match (missed.as_str(), absent.as_str()) {
        ("", "") => {
            println!("reached: every figure of {}", entries.len());
            return Ok(ExitCode::SUCCESS);
        }
        (missed, "") => format!("MISSED: {missed}"),
        ("", absent) => format!("NOT MEASURED: {absent}"),
        (missed, absent) => format!("MISSED: {missed}; NOT MEASURED: {absent}"),
    };
    println!("{end}");
    Ok(ExitCode::FAILURE)
}

/// What is known of this machine from earlier runs, unless everything is measured anew.
fn earlier(file: &Path, machine: &Machine, is_all: bool) -> Results {
    let fresh = || Results { machine: machine.clone(), parts: Vec::new() };
    match Results::read(file) {
        Ok(results) if !is_all && results.machine == *machine => results,
        _ => fresh(),
    }
}

/// Every row, in the order of the table.
fn jobs() -> Vec<Job> {
    let mut jobs: Vec<Job> =
        counted::ROWS.into_iter().map(|(row, count)| of_counts(row, count)).collect();
    jobs.extend([
        job("B8", "a claim among 1 to 10,000,000 rows", 30.0, |bench| {
            let (figure, series) = growth::claims(bench.scratch.folder()?.path())?;
            Ok(Outcome { figures: vec![figure], series: vec![series], ..Outcome::default() })
        }),
        job("B9", "eight processes write to one file", 57.0, |bench| {
            writers::outcome(bench.scratch.folder()?.path())
        }),
        job("B10", "waiting across processes", 28.0, |_| {
            Ok(Outcome { figures: hold::waiting()?, ..Outcome::default() })
        }),
        job("B11 B12", "the service next to others", 70.0, |bench| {
            let figures = serve::figures(5, 2.0)?;
            let notes = vec![peers::etcd(bench.scratch.folder()?.path())?];
            Ok(Outcome { figures, notes, ..Outcome::default() })
        }),
        job("B14", "borrowers that wait", 20.0, |_| {
            let (figure, series) = serve::waiters()?;
            Ok(Outcome { figures: vec![figure], series, ..Outcome::default() })
        }),
        job("B15", "from Python", 10.0, |bench| python::outcome(bench.scratch.folder()?.path())),
        job("H", "holding, and litelease run", 85.0, |_| {
            Ok(Outcome { figures: hold::holding()?, ..Outcome::default() })
        }),
    ]);
    jobs.sort_by_key(|job| place(job.rows));
    jobs
}

fn job(
    rows: &'static str,
    what: &'static str,
    seconds: f64,
    run: impl Fn(&Bench) -> Result<Outcome> + 'static,
) -> Job {
    Job { rows, what, seconds, run: Box::new(run) }
}

fn of_counts(row: &'static str, count: counted::Row) -> Job {
    job(row, "counting", 5.0, move |bench| {
        need("valgrind")?;
        need("strace")?;
        let rows = count(&bench.counts, bench.scratch.folder()?.path())?;
        let figures = rows.into_iter().map(|Counted { figure, .. }| figure).collect();
        // What does not grow in steps does not grow in time either.
        let series = if row == "B13" { vec![growth::borrows()?] } else { Vec::new() };
        Ok(Outcome { figures, series, ..Outcome::default() })
    })
}

/// B2 comes before B11, and those without a number come last.
fn place(rows: &str) -> (u32, &str) {
    let first = rows.split(' ').next().unwrap_or_default();
    (first.strip_prefix('B').and_then(|number| number.parse().ok()).unwrap_or(u32::MAX), first)
}
