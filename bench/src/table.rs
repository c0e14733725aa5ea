//! The table on the terminal.

use crate::figure::shown;
use crate::results::{Entry, Note};

/// Prints the head of a table.
pub(crate) fn print_head() {
    println!("{:<4} {:<58} {:>8} {:>9}  {:<15}", "", "", "reach", "measured", "range");
}

/// Prints a row.
pub(crate) fn print(entry: &Entry) {
    println!(
        "{:<4} {:<58} {:>8} {:>9}  {:<15} {}  {}",
        entry.id,
        entry.what,
        entry.reach.to_string(),
        shown(entry.measured),
        range(entry),
        if entry.is_reached() { "ok  " } else { "MISS" },
        entry.detail,
    );
}

/// Prints what has nothing to reach.
pub(crate) fn print_note(note: &Note) {
    println!("     {}: {}", note.what, note.text);
}

/// The smallest and the largest of all rounds.
pub(crate) fn range(entry: &Entry) -> String {
    entry.range.map_or(String::new(), |[low, high]| format!("{} … {}", shown(low), shown(high)))
}

/// Names like "B1, B5 (3)": each once, with how often.
pub(crate) fn names<'a>(ids: impl Iterator<Item = &'a str>) -> String {
    let mut counts: Vec<(&str, u32)> = Vec::new();
    for id in ids {
        match counts.iter_mut().find(|(known, _)| *known == id) {
            Some((_, count)) => *count += 1,
            None => counts.push((id, 1)),
        }
    }
    let name = |(id, count): &(&str, u32)| match count {
        1 => (*id).to_owned(),
        count => format!("{id} ({count})"),
    };
    counts.iter().map(name).collect::<Vec<_>>().join(", ")
}
