//! The quick table: counts only, a minute or two, the bare statement in the same run.

use std::fs;
use std::process::Command;

use crate::measure::{check_tools, instructions, system_calls};
use crate::{Result, workload};

/// One row of the table.
pub(crate) struct Figure {
    pub(crate) id: &'static str,
    pub(crate) what: &'static str,
    /// The most that counts as reached.
    pub(crate) reach: f64,
    pub(crate) measured: f64,
    /// How the figure came about.
    pub(crate) detail: String,
}

impl Figure {
    /// Prints the head of a table.
    pub(crate) fn print_head() {
        println!("{:<4} {:<58} {:>9} {:>9}", "", "", "at most", "measured");
    }

    /// Prints the row, and answers whether the figure was reached.
    pub(crate) fn print(&self) -> bool {
        let reached = self.measured <= self.reach;
        println!(
            "{:<4} {:<58} {:>9} {:>9} {}  {}",
            self.id,
            self.what,
            shown(self.reach),
            shown(self.measured),
            if reached { "ok  " } else { "MISS" },
            self.detail,
        );
        reached
    }
}

/// Measures all rows and prints them. Answers whether every figure was reached.
pub(crate) fn run() -> Result<bool> {
    check_tools()?;
    Figure::print_head();
    let rows: [fn() -> Result<Figure>; 15] = [
        b1,
        b2,
        b3,
        b4,
        || b5("inspect"),
        || b5("owner"),
        || b5("token"),
        b6_syncs,
        b6_calls,
        b7,
        b15,
        || guard("by-connection", "memory"),
        || guard("by-connection", "wal-normal"),
        || guard("by-column", "memory"),
        || guard("by-column", "wal-normal"),
    ];
    let mut all_reached = true;
    for row in rows {
        all_reached &= row()?.print();
    }
    Ok(all_reached)
}

fn b1() -> Result<Figure> {
    cycle("B1", "claim + renew + release, in memory: instructions / raw", 1.8, "cycle@memory")
}

fn b2() -> Result<Figure> {
    cycle("B2", "the same through the SQL functions: instructions / raw", 1.8, "sql-cycle@memory")
}

fn b3() -> Result<Figure> {
    cycle("B3", "the Rust verbs in WAL NORMAL: instructions / raw", 1.4, "cycle@wal-normal")
}

fn cycle(id: &'static str, what: &'static str, reach: f64, workload: &str) -> Result<Figure> {
    let place = workload.split('@').next_back().unwrap_or_default();
    let raw = instructions(&format!("raw-update@{place}"))?;
    let ours = instructions(workload)?;
    let detail = format!("{:.0} / {:.0} per commit", ours / 3.0, raw / 3.0);
    Ok(Figure { id, what, reach, measured: ours / raw, detail })
}

fn b4() -> Result<Figure> {
    let measured = instructions("busy@memory")?;
    let detail = "instructions; that it takes no write lock is tested".into();
    Ok(Figure {
        id: "B4",
        what: "busy claim, in memory: instructions",
        reach: 6_000.0,
        measured,
        detail,
    })
}

fn b5(verb: &'static str) -> Result<Figure> {
    let what = match verb {
        "inspect" => "inspect, in memory: instructions / raw SELECT",
        "owner" => "owner, in memory: instructions / raw SELECT",
        _ => "token, in memory: instructions / raw SELECT",
    };
    let raw = instructions(&format!("raw-{verb}@memory"))?;
    let ours = instructions(&format!("{verb}@memory"))?;
    let detail = format!("{ours:.0} / {raw:.0}");
    Ok(Figure { id: "B5", what, reach: 1.6, measured: ours / raw, detail })
}

fn b6_syncs() -> Result<Figure> {
    let measured = system_calls("cycle@wal-full", &["fsync", "fdatasync"])? / 3.0;
    let what = "syncs per operation, WAL FULL";
    Ok(Figure { id: "B6", what, reach: 1.1, measured, detail: String::new() })
}

fn b6_calls() -> Result<Figure> {
    let measured = system_calls("cycle@wal-normal", &[])? / 3.0;
    let raw = system_calls("raw-update@wal-normal", &[])? / 3.0;
    let what = "system calls per operation, WAL NORMAL";
    Ok(Figure { id: "B6", what, reach: 9.0, measured, detail: format!("raw {raw:.1}") })
}

fn b7() -> Result<Figure> {
    let folder = tempfile::tempdir()?;
    let wal = folder.path().join("bench.sqlite3-wal");
    // The file goes away when the connection closes, so it is read while the workload still has it open.
    let measured = workload::then("cycle@wal-normal", 33_334, folder.path(), || {
        Ok(fs::metadata(&wal)?.len() as f64 / f64::from(1 << 20))
    })?;
    let what = "MiB of -wal after 100,000 commits, default auto-checkpoint";
    Ok(Figure { id: "B7", what, reach: 8.0, measured, detail: String::new() })
}

fn b15() -> Result<Figure> {
    // The system's python3 can load extensions; others may not.
    let mut python = Command::new("/usr/bin/python3");
    let output =
        python.args(["bench/python_cost.py", "target/release/liblitelease_ext"]).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let measured = String::from_utf8(output.stdout)?.trim().parse()?;
    let what = "from Python through the extension: CPU time / plain UPDATE";
    let detail = "a ratio of times, so not as steady as the counts".into();
    Ok(Figure { id: "B15", what, reach: 2.0, measured, detail })
}

fn guard(form: &'static str, place: &'static str) -> Result<Figure> {
    let (what, reach) = match (form, place) {
        ("by-connection", "memory") => {
            ("INSERT guarded by connection, in memory / not guarded", 1.6)
        }
        ("by-connection", _) => ("INSERT guarded by connection, WAL NORMAL / not guarded", 1.6),
        (_, "memory") => ("INSERT guarded by column, in memory / not guarded", 3.0),
        _ => ("INSERT guarded by column, WAL NORMAL / not guarded", 3.0),
    };
    let raw = instructions(&format!("insert@{place}"))?;
    let ours = instructions(&format!("insert-{form}@{place}"))?;
    let detail = format!("{ours:.0} / {raw:.0}");
    Ok(Figure { id: "G", what, reach, measured: ours / raw, detail })
}

fn shown(figure: f64) -> String {
    if figure < 100.0 { format!("{figure:.2}") } else { format!("{figure:.0}") }
}
