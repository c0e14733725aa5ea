//! One run: measuring what is asked for, telling it, storing it, and how it ended.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::measure::open_many_files;
use crate::progress::Progress;
use crate::results::{Entry, Machine, Part, Results, commit, date, root};
use crate::rows::{Bench, Job, Outcome, jobs};
use crate::{Result, document, table};

/// Measures all rows, or those that are asked for, prints and stores them, and puts them into the
/// documents if `save`.
pub(crate) fn run(wanted: &[&str], save: bool) -> Result<ExitCode> {
    let jobs = jobs();
    let known: Vec<&str> = jobs.iter().flat_map(Job::ids).collect();
    if let Some(unknown) = wanted.iter().find(|row| !known.contains(row)) {
        return Err(format!("there is no row {unknown:?}; there are {}", known.join(" ")).into());
    }
    let is_wanted = |row: &str| wanted.is_empty() || wanted.contains(&row);
    let chosen: Vec<&Job> = jobs.iter().filter(|job| job.ids().any(is_wanted)).collect();
    let mut run = Run::new(jobs.iter().map(|job| job.rows).collect(), wanted.is_empty())?;
    run.measure(&chosen)?;
    let end = run.end();
    if save {
        run.save(&known)?;
    }
    Ok(end)
}

struct Run {
    /// All that is known of this machine.
    results: Results,
    file: PathBuf,
    order: Vec<&'static str>,
    date: String,
    commit: Option<String>,
    /// What was measured now.
    entries: Vec<Entry>,
    /// Rows that were not measured, and why.
    failures: Vec<(String, String)>,
}

impl Run {
    /// Earlier results stay, unless everything is measured anew or the machine is another one.
    fn new(order: Vec<&'static str>, is_all: bool) -> Result<Self> {
        let file = root().join("target/bench/results.json");
        let machine = Machine::this();
        let results = match Results::read(&file) {
            Ok(earlier) if !is_all && earlier.machine == machine => earlier,
            _ => Results { machine, parts: Vec::new() },
        };
        let (date, commit) = (date()?, commit());
        Ok(Run { results, file, order, date, commit, entries: Vec::new(), failures: Vec::new() })
    }

    fn measure(&mut self, jobs: &[&Job]) -> Result<()> {
        open_many_files();
        let bench = Bench::new()?;
        let mut progress = Progress::new(jobs.iter().map(|job| job.seconds).sum());
        table::print_head();
        for (number, job) in (1..).zip(jobs) {
            let what = format!("[{number}/{}] {}: {}", jobs.len(), job.rows, job.what);
            let telling = progress.part(&what, job.seconds);
            let outcome = (job.run)(&bench);
            drop(telling);
            match outcome {
                Ok(outcome) => self.take(job.rows, outcome)?,
                // The others are worth measuring all the same.
                Err(error) => self.fail(job.rows, error.to_string()),
            }
        }
        println!("\nstored in {}", self.file.display());
        Ok(())
    }

    /// Stored at once: a long run may be interrupted.
    fn take(&mut self, rows: &str, outcome: Outcome) -> Result<()> {
        let Outcome { figures, series, notes, absent } = outcome;
        let part = Part {
            rows: rows.into(),
            date: self.date.clone(),
            commit: self.commit.clone(),
            entries: figures.into_iter().map(Into::into).collect(),
            series,
            notes,
        };
        part.entries.iter().for_each(table::print);
        part.notes.iter().for_each(table::print_note);
        self.entries.extend(part.entries.clone());
        self.results.put(part, &self.order);
        for (row, what) in absent {
            self.fail(row, format!("{what}: it is not installed"));
        }
        self.results.write(&self.file)
    }

    fn fail(&mut self, rows: &str, why: String) {
        eprintln!("NOT MEASURED: {rows}: {why}");
        self.failures.push((rows.into(), why));
    }

    /// Tells how it ended, in one line.
    fn end(&self) -> ExitCode {
        let missed = self.entries.iter().filter(|entry| !entry.is_reached());
        let missed = table::names(missed.map(|entry| entry.id.as_str()));
        let absent = table::names(self.failures.iter().map(|(rows, _)| rows.as_str()));
        let end = match (missed.as_str(), absent.as_str()) {
            ("", "") => {
                println!("reached: every figure of {}", self.entries.len());
                return ExitCode::SUCCESS;
            }
            (missed, "") => format!("MISSED: {missed}"),
            ("", absent) => format!("NOT MEASURED: {absent}"),
            (missed, absent) => format!("MISSED: {missed}; NOT MEASURED: {absent}"),
        };
        println!("{end}");
        ExitCode::FAILURE
    }

    fn save(&self, known: &[&str]) -> Result<()> {
        let has = |row: &&&str| self.results.entries().any(|entry| entry.id == **row);
        match known.iter().find(|row| !has(row)) {
            Some(row) => {
                Err(format!("not saved: {row} was not yet measured on this machine").into())
            }
            None => document::save(&self.results),
        }
    }
}
