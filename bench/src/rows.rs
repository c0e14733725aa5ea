//! Which rows there are, and how each is measured.

use crate::counted::{self, Counted};
use crate::figure::Figure;
use crate::measure::{Counts, need};
use crate::results::{Note, Series};
use crate::scratch::Scratch;
use crate::{Result, growth, hold, peers, python, serve, writers};

/// What measuring something gave.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) figures: Vec<Figure>,
    pub(crate) series: Vec<Series>,
    pub(crate) notes: Vec<Note>,
    /// What should have been measured, and is not installed: row and figure.
    pub(crate) absent: Vec<(&'static str, &'static str)>,
}

pub(crate) type Measuring = dyn Fn(&Bench) -> Result<Outcome>;

/// Rows that are measured together.
pub(crate) struct Job {
    /// Their ids, with spaces between.
    pub(crate) rows: &'static str,
    pub(crate) what: &'static str,
    /// How long it takes, about, on two quiet cores.
    pub(crate) seconds: f64,
    pub(crate) run: Box<Measuring>,
}

impl Job {
    pub(crate) fn ids(&self) -> impl Iterator<Item = &'static str> {
        self.rows.split(' ')
    }
}

/// What all of them need.
pub(crate) struct Bench {
    counts: Counts,
    scratch: Scratch,
}

impl Bench {
    pub(crate) fn new() -> Result<Self> {
        Ok(Bench { counts: Counts::default(), scratch: Scratch::new()? })
    }
}

/// Every row, in the order of the table.
pub(crate) fn jobs() -> Vec<Job> {
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
        job("B11 B12", "the service next to others", 85.0, |bench| {
            let figures = serve::figures(bench.scratch.folder()?.path(), 5, 2.0)?;
            let notes = vec![peers::etcd(bench.scratch.folder()?.path())?];
            Ok(Outcome { figures, notes, absent: serve::absent(), ..Outcome::default() })
        }),
        job("B14", "borrowers that wait", 25.0, |bench| {
            let (figure, series) = serve::waiters(bench.scratch.folder()?.path())?;
            Ok(Outcome { figures: vec![figure], series, ..Outcome::default() })
        }),
        job("B15", "from Python", 10.0, |bench| python::outcome(bench.scratch.folder()?.path())),
        job("B18", "queues next to others", 50.0, |bench| {
            serve::queue::outcome(bench.scratch.folder()?.path())
        }),
        job("B20", "names over HTTP next to others", 50.0, |bench| {
            serve::named::outcome(bench.scratch.folder()?.path())
        }),
        job("B21", "leases on etcd and PostgreSQL", 30.0, |_| serve::engines::verbs()),
        job("B22 B23", "waiting and holding on etcd and PostgreSQL", 80.0, |_| {
            serve::engines::held::outcome()
        }),
        job("B24", "the service on etcd and PostgreSQL", 90.0, |_| {
            serve::engines::service::outcome()
        }),
        job("H", "holding, and litelease run", 75.0, |_| {
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
