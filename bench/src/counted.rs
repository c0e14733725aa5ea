//! The rows that are counts: the same on a busy machine and on an idle one.

use std::fs;
use std::path::Path;

use crate::figure::{Figure, Reach};
use crate::measure::Counts;
use crate::queue::{self, Around};
use crate::{Result, growth, workload};

/// A figure with what it was made of.
pub(crate) struct Counted {
    pub(crate) figure: Figure,
    pub(crate) count: f64,
    /// What the bare statement takes, where there is one to compare with.
    pub(crate) raw: Option<f64>,
}

/// One row of counts, measured.
pub(crate) type Row = fn(&Counts, &Path) -> Result<Vec<Counted>>;

/// Every row of counts: its id, and how it is measured.
pub(crate) const ROWS: [(&str, Row); 12] = [
    ("B1", |counts, _| {
        let what = "claim + renew + release, in memory: instructions ÷ raw";
        cycle(counts, "B1", what, 1.42, "cycle@memory")
    }),
    ("B2", |counts, _| {
        let what = "the same through the SQL extension: instructions ÷ raw";
        cycle(counts, "B2", what, 1.58, "sql-cycle@memory")
    }),
    ("B3", |counts, _| {
        let what = "the Rust verbs in WAL NORMAL: instructions ÷ raw";
        cycle(counts, "B3", what, 1.3, "cycle@wal-normal")
    }),
    ("B4", |counts, _| busy(counts)),
    ("B5", |counts, _| reading(counts)),
    ("B6", |counts, _| calls(counts)),
    ("B7", |_, folder| wal(folder)),
    ("B13", |_, _| lowest_free()),
    ("B16", |counts, _| queues(counts)),
    ("B17", |_, _| receiving()),
    ("B19", |counts, _| handles(counts)),
    ("G", |counts, _| guards(counts)),
];

fn cycle(
    counts: &Counts,
    id: &'static str,
    what: &'static str,
    reach: f64,
    workload: &str,
) -> Result<Vec<Counted>> {
    let place = workload.split('@').next_back().unwrap_or_default();
    let raw = counts.instructions(&format!("raw-update@{place}"))? / 3.0;
    let ours = counts.instructions(workload)? / 3.0;
    // The raw UPDATE has no counterpart to the SELECT of a claim.
    let detail = format!("{ours:.0} / {raw:.0} per commit; a claim also reads before it writes");
    Ok(vec![ratio(id, what, reach, ours, raw, detail)])
}

fn busy(counts: &Counts) -> Result<Vec<Counted>> {
    let raw = counts.instructions("raw-inspect@memory")?;
    let count = counts.instructions("busy@memory")?;
    let detail = format!("a raw SELECT {raw:.0}; that it takes no write lock is tested");
    let figure = figure_of("B4", "busy claim, in memory: instructions", 5_000.0, count, detail);
    Ok(vec![Counted { figure, count, raw: Some(raw) }])
}

fn reading(counts: &Counts) -> Result<Vec<Counted>> {
    let verbs = [
        ("inspect", "inspect, in memory: instructions ÷ raw SELECT"),
        ("owner", "owner, in memory: instructions ÷ raw SELECT"),
        ("token", "token, in memory: instructions ÷ raw SELECT"),
    ];
    let row = |(verb, what)| {
        let ours = counts.instructions(&format!("{verb}@memory"))?;
        let raw = counts.instructions(&format!("raw-{verb}@memory"))?;
        Ok(ratio("B5", what, 1.15, ours, raw, format!("{ours:.0} / {raw:.0}")))
    };
    verbs.into_iter().map(row).collect()
}

fn calls(counts: &Counts) -> Result<Vec<Counted>> {
    let syncs = ["fsync", "fdatasync"];
    let row = |what, reach, place: &str, which: &[&str]| -> Result<Counted> {
        let count = counts.system_calls(&format!("cycle@{place}"), which)? / 3.0;
        let raw = counts.system_calls(&format!("raw-update@{place}"), which)? / 3.0;
        let figure = figure_of("B6", what, reach, count, format!("raw {raw:.2}"));
        Ok(Counted { figure, count, raw: Some(raw) })
    };
    Ok(vec![
        row("syncs per operation, WAL FULL", 1.1, "wal-full", &syncs)?,
        row("system calls per operation, WAL NORMAL", 9.0, "wal-normal", &[])?,
    ])
}

fn wal(folder: &Path) -> Result<Vec<Counted>> {
    let wal = folder.join("bench.sqlite3-wal");
    // The file goes away when the connection closes, so it is read while the workload still has it
    // open.
    let count = workload::then("cycle@wal-normal", 33_334, folder, || {
        Ok(fs::metadata(&wal)?.len() as f64 / f64::from(1 << 20))
    })?;
    let what = "MiB of -wal after 100,000 commits, default auto-checkpoint";
    Ok(vec![Counted { figure: figure_of("B7", what, 8.0, count, String::new()), count, raw: None }])
}

fn lowest_free() -> Result<Vec<Counted>> {
    let [small, large] = [growth::vm_steps(1_000)?, growth::vm_steps(100_000)?];
    let what = "lowest free of 100,000 slots: VM steps";
    let steps = figure_of("B13", what, 60.0, large, format!("{small} of 1,000 slots"));
    let what = "the same ÷ of 1,000 slots";
    let equal = figure_of("B13", what, 1.0, large / small, format!("{large} / {small}"));
    Ok(vec![
        Counted { figure: steps, count: large, raw: None },
        Counted { figure: equal, count: large, raw: Some(small) },
    ])
}

fn queues(counts: &Counts) -> Result<Vec<Counted>> {
    let places = [
        ("memory", 1.5, "send + receive + ack, in memory: instructions ÷ bare statements"),
        ("wal-normal", 1.3, "the same in WAL NORMAL: instructions ÷ bare statements"),
    ];
    let row = |(place, reach, what)| {
        let ours = counts.instructions(&format!("queue-cycle@{place}"))? / 3.0;
        let raw = counts.instructions(&format!("raw-queue-cycle@{place}"))? / 3.0;
        Ok(ratio("B16", what, reach, ours, raw, format!("{ours:.0} / {raw:.0} per commit")))
    };
    places.into_iter().map(row).collect()
}

fn receiving() -> Result<Vec<Counted>> {
    let row = |what, around: fn(u32) -> Around| -> Result<Counted> {
        let [few, many] = [queue::vm_steps(around(1_000))?, queue::vm_steps(around(1_000_000))?];
        let detail = format!("{many} / {few}, all statements of a receive");
        Ok(ratio("B17", what, 1.0, many, few, detail))
    };
    Ok(vec![
        row("receive among 1,000,000 items: VM steps ÷ among 1,000", Around::Visible)?,
        row("behind 1,000,000 hidden, delayed and dead ones each ÷ behind 1,000", Around::Hidden)?,
    ])
}

fn handles(counts: &Counts) -> Result<Vec<Counted>> {
    let forms = [
        ("ref", "a LiteleaseRef for each call, in memory ÷ one that is kept"),
        ("joining", "the same with joining, in a transaction ÷ one that is kept"),
    ];
    let row = |(form, what)| {
        let kept = counts.instructions(&format!("{form}-cycle@memory"))? / 3.0;
        let made = counts.instructions(&format!("new-{form}-cycle@memory"))? / 3.0;
        Ok(ratio("B19", what, 1.1, made, kept, format!("{made:.0} / {kept:.0} per call")))
    };
    forms.into_iter().map(row).collect()
}

fn guards(counts: &Counts) -> Result<Vec<Counted>> {
    let forms = [
        ("by-connection", "memory", 1.6, "INSERT guarded by connection, in memory ÷ not guarded"),
        ("by-connection", "wal-normal", 1.6, "INSERT guarded by connection, WAL ÷ not guarded"),
        ("by-column", "memory", 3.0, "INSERT guarded by column, in memory ÷ not guarded"),
        ("by-column", "wal-normal", 3.0, "INSERT guarded by column, WAL ÷ not guarded"),
    ];
    let row = |(form, place, reach, what)| {
        let raw = counts.instructions(&format!("insert@{place}"))?;
        let ours = counts.instructions(&format!("insert-{form}@{place}"))?;
        Ok(ratio("G", what, reach, ours, raw, format!("{ours:.0} / {raw:.0}")))
    };
    forms.into_iter().map(row).collect()
}

fn ratio(
    id: &'static str,
    what: &'static str,
    reach: f64,
    ours: f64,
    raw: f64,
    detail: String,
) -> Counted {
    Counted { figure: figure_of(id, what, reach, ours / raw, detail), count: ours, raw: Some(raw) }
}

fn figure_of(
    id: &'static str,
    what: &'static str,
    most: f64,
    measured: f64,
    detail: String,
) -> Figure {
    Figure { id, what, reach: Reach::AtMost(most), measured, range: None, detail }
}
