//! The quick table: counts only, next to those that are committed, so that a change that costs
//! something is seen at once.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::counted::{Counted, ROWS};
use crate::figure::{Reach, shown};
use crate::measure::{Counts, need};
use crate::progress::Progress;
use crate::results::{Entry, Machine, root};
use crate::scratch::Scratch;
use crate::{Result, document, table};

/// A change is reported from this fraction on.
const NOTABLE: f64 = 0.05;

/// The committed counts, and what made them.
#[derive(Serialize, Deserialize)]
pub(crate) struct Kept {
    made_by: Makers,
    /// By what is counted, as the table says it.
    counts: BTreeMap<String, Count>,
}

/// What decides how many instructions there are, apart from our code.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Makers {
    compiler: String,
    c_compiler: String,
    sqlite: String,
    arch: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Count {
    reach: Reach,
    count: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw: Option<f64>,
}

/// Counts, prints, and compares with the committed counts or, if `save`, writes them.
pub(crate) fn run(save: bool) -> Result<ExitCode> {
    need("valgrind")?;
    need("strace")?;
    let (counts, scratch) = (Counts::default(), Scratch::new()?);
    let mut progress = Progress::new(4.0 * ROWS.len() as f64);
    let mut counted = Vec::new();
    table::print_head();
    for (number, (id, row)) in (1..).zip(ROWS) {
        let telling = progress.part(&format!("[{number}/{}] counting {id}", ROWS.len()), 4.0);
        let rows = row(&counts, scratch.folder()?.path())?;
        drop(telling);
        for Counted { figure, count, raw } in rows {
            let entry = Entry::from(figure);
            table::print(&entry);
            let reach = entry.reach;
            counted.push((entry, Count { reach, count, raw }));
        }
    }
    println!();
    let key = |entry: &Entry| format!("{} {}", entry.id, entry.what);
    let now: BTreeMap<String, Count> =
        counted.iter().map(|(entry, count)| (key(entry), *count)).collect();
    if save {
        let kept = Kept { made_by: Makers::here(), counts: now.clone() };
        kept.write()?;
        document::redraw()?;
    }
    let is_worse = compare(&Kept::read()?, &Kept { made_by: Makers::here(), counts: now });
    let missed = counted.iter().filter(|(entry, _)| !entry.is_reached());
    let missed = table::names(missed.map(|(entry, _)| entry.id.as_str()));
    let end = match (is_worse, missed.as_str()) {
        (false, "") => {
            println!(
                "reached: every figure of {}, and none is worse than committed",
                counted.len()
            );
            return Ok(ExitCode::SUCCESS);
        }
        (false, missed) => format!("MISSED: {missed}; none is worse than committed"),
        (true, "") => "WORSE than committed".to_owned(),
        (true, missed) => format!("WORSE than committed; MISSED: {missed}"),
    };
    println!("{end}");
    Ok(ExitCode::FAILURE)
}

/// Tells what has changed. Answers whether something is worse.
fn compare(kept: &Kept, now: &Kept) -> bool {
    let is_same = kept.made_by == now.made_by;
    if !is_same {
        println!(
            "the committed counts were made by {}, these by {}: only ratios and what no compiler changes are compared",
            kept.made_by.shown(),
            now.made_by.shown()
        );
    }
    let mut is_worse = false;
    let mut is_better = false;
    for (what, new) in &now.counts {
        let Some(old) = kept.counts.get(what) else {
            println!("new: {what}");
            is_better = true;
            continue;
        };
        match verdict(*old, *new, is_same) {
            Verdict::Same => {}
            Verdict::Better(change) => {
                println!("better: {what}: {change}");
                is_better = true;
            }
            Verdict::Worse(change) => {
                println!("WORSE: {what}: {change}");
                is_worse = true;
            }
        }
    }
    for what in kept.counts.keys().filter(|what| !now.counts.contains_key(*what)) {
        println!("gone: {what}");
        is_better = true;
    }
    if is_better && !is_worse {
        println!(
            "`make bench-quick SAVE=1` writes these counts into bench/counts.json and the page"
        );
    }
    is_worse
}

#[derive(Debug, PartialEq)]
enum Verdict {
    Same,
    Better(String),
    Worse(String),
}

/// Whether a count has changed by more than a little.
///
/// Two things are looked at, and it is worse if one of them is. The count itself, because what
/// makes the bare statement dearer too (an index, a trigger, a wider row) leaves the ratio as it
/// was. And the ratio to the bare statement, because that is what the table promises: if the bare
/// statement became cheaper and we did not, we have lost. After another compiler or SQLite the
/// counts of before mean nothing, but the ratios still do.
fn verdict(old: Count, new: Count, is_same: bool) -> Verdict {
    let mut changes = Vec::new();
    if is_same || new.raw.is_none() {
        changes.push(Change { unit: "", old: old.count, new: new.count });
    }
    if let (Some(old_raw), Some(new_raw)) = (old.raw, new.raw) {
        let (old, new) = (old.count / old_raw, new.count / new_raw);
        changes.push(Change { unit: " of raw", old, new });
    }
    let text = || changes.iter().map(Change::text).collect::<Vec<_>>().join(", ");
    if changes.iter().any(|change| change.growth() >= NOTABLE) {
        Verdict::Worse(text())
    } else if changes.iter().any(|change| change.growth() <= -NOTABLE) {
        Verdict::Better(text())
    } else {
        Verdict::Same
    }
}

/// One number before and after.
struct Change {
    unit: &'static str,
    old: f64,
    new: f64,
}

impl Change {
    fn growth(&self) -> f64 {
        match (self.old == 0.0, self.new == 0.0) {
            (true, true) => 0.0,
            (true, false) => f64::INFINITY,
            _ => self.new / self.old - 1.0,
        }
    }

    fn text(&self) -> String {
        let Change { unit, old, new } = self;
        format!("{} → {}{unit} ({:+.1} %)", shown(*old), shown(*new), 100.0 * self.growth())
    }
}

impl Kept {
    fn file() -> PathBuf {
        root().join("bench/counts.json")
    }

    pub(crate) fn read() -> Result<Self> {
        let text = fs::read_to_string(Self::file()).map_err(|error| {
            format!("bench/counts.json: {error}; `make bench-quick SAVE=1` makes it")
        })?;
        serde_json::from_str(&text).map_err(|error| format!("bench/counts.json: {error}").into())
    }

    /// Rounded to what the table tells, so that saving again changes little.
    fn write(&self) -> Result<()> {
        let round = |number: f64| (number * 100.0).round() / 100.0;
        let counts = self.counts.iter().map(|(what, Count { reach, count, raw })| {
            (what.clone(), Count { reach: *reach, count: round(*count), raw: raw.map(round) })
        });
        let rounded = Kept { made_by: self.made_by.clone(), counts: counts.collect() };
        Ok(fs::write(Self::file(), serde_json::to_string_pretty(&rounded)? + "\n")?)
    }
}

impl Kept {
    /// The rows as the table shows them, in its order.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let entry = |(what, count): (&String, &Count)| {
            let Count { reach, count, raw } = *count;
            let (id, what) = what.split_once(' ').unwrap_or((what, ""));
            let (measured, detail) = match raw {
                Some(raw) if what.contains('÷') => (count / raw, format!("{count:.0} / {raw:.0}")),
                Some(raw) => (count, format!("raw {}", shown(raw))),
                None => (count, String::new()),
            };
            let (id, what) = (id.into(), what.into());
            Entry { id, what, reach, measured, range: None, detail }
        };
        let mut entries: Vec<Entry> = self.counts.iter().map(entry).collect();
        let order = |entry: &Entry| ROWS.iter().position(|(id, _)| *id == entry.id);
        entries.sort_by_key(order);
        entries
    }

    /// Checks whether a row is one of counts.
    pub(crate) fn has(id: &str) -> bool {
        ROWS.iter().any(|(row, _)| *row == id)
    }

    /// What made the counts.
    pub(crate) fn whence(&self) -> String {
        self.made_by.shown()
    }
}

impl Makers {
    fn here() -> Self {
        let Machine { compiler, c_compiler, sqlite, .. } = Machine::this();
        Makers { compiler, c_compiler, sqlite, arch: std::env::consts::ARCH.into() }
    }

    fn shown(&self) -> String {
        let Makers { compiler, c_compiler, sqlite, arch } = self;
        format!("{compiler}, {c_compiler}, SQLite {sqlite} on {arch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REACH: Reach = Reach::AtMost(1.4);
    const BEFORE: Count = Count { reach: REACH, count: 10_000.0, raw: Some(8_000.0) };

    fn check(count: f64, raw: f64, is_same: bool, begins: &str) {
        let text = match verdict(BEFORE, Count { reach: REACH, count, raw: Some(raw) }, is_same) {
            Verdict::Same => "same".into(),
            Verdict::Better(change) => format!("better: {change}"),
            Verdict::Worse(change) => format!("worse: {change}"),
        };
        assert!(text.starts_with(begins), "{text}");
    }

    #[test]
    fn five_percent_are_reported_and_less_is_not() {
        check(10_499.0, 8_000.0, true, "same");
        check(
            10_500.0,
            8_000.0,
            true,
            "worse: 10,000 → 10,500 (+5.0 %), 1.25 → 1.31 of raw (+5.0 %)",
        );
        check(9_501.0, 8_000.0, true, "same");
        check(9_500.0, 8_000.0, true, "better: 10,000 → 9,500 (-5.0 %)");
    }

    #[test]
    fn what_makes_the_bare_statement_dearer_too_is_worse() {
        check(11_000.0, 8_800.0, true, "worse: 10,000 → 11,000 (+10.0 %)");
    }

    #[test]
    fn staying_behind_a_bare_statement_that_became_cheaper_is_worse() {
        check(
            10_000.0,
            7_000.0,
            true,
            "worse: 10,000 → 10,000 (+0.0 %), 1.25 → 1.43 of raw (+14.3 %)",
        );
    }

    #[test]
    fn after_another_compiler_only_the_ratio_counts() {
        check(11_000.0, 8_800.0, false, "same");
        check(11_000.0, 8_000.0, false, "worse: 1.25 → 1.38 of raw");
    }

    #[test]
    fn what_has_no_bare_statement_is_compared_by_itself() {
        let alone = |count| Count { reach: REACH, count, raw: None };
        assert_eq!(verdict(alone(17.0), alone(17.0), false), Verdict::Same);
        assert!(matches!(verdict(alone(17.0), alone(18.0), false), Verdict::Worse(_)));
        assert!(matches!(verdict(alone(0.0), alone(1.0), true), Verdict::Worse(_)));
    }
}
