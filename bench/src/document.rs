//! The results as docs/performance.md shows them: its table, and its plots.

use std::fs;
use std::path::PathBuf;

use crate::Result;
use crate::figure::{Reach, shown};
use crate::plot::{Bar, Bars, Columns, Lines, Scale};
use crate::quick::Kept;
use crate::results::{Entry, Machine, Results, Series, root};
use crate::table::range;

const RESULTS: [&str; 2] =
    ["<!-- results: made by `make bench SAVE=1` -->\n", "<!-- end of results -->\n"];
const COUNTS: [&str; 2] =
    ["<!-- counts: made by `make bench-quick SAVE=1` -->\n", "<!-- end of counts -->\n"];

/// Puts results into the documents. Counts are not taken from them, but from bench/counts.json.
pub(crate) fn save(results: &Results) -> Result<()> {
    let (results, counts) = (results.without(Kept::has), Kept::read()?);
    let plots = plots(&results, &counts)?;
    results.write(&folder().join("results.json"))?;
    for (name, svg) in plots {
        fs::write(folder().join(name), svg)?;
    }
    fs::write(page(), with_tables(&fs::read_to_string(page())?, &results, &counts)?)?;
    println!("saved in {} and {}", page().display(), folder().display());
    Ok(())
}

/// Draws and writes again what is made of the committed results.
pub(crate) fn redraw() -> Result<()> {
    save(&Results::read(&folder().join("results.json"))?)
}

fn folder() -> PathBuf {
    root().join("docs/performance")
}

fn page() -> PathBuf {
    root().join("docs/performance.md")
}

/// The document with these tables in the places of those before.
fn with_tables(text: &str, results: &Results, counts: &Kept) -> Result<String> {
    let text = with_table(text, COUNTS, &count_table(counts))?;
    with_table(&text, RESULTS, &table(results))
}

fn with_table(text: &str, [begin, end]: [&str; 2], table: &str) -> Result<String> {
    let missing = || format!("docs/performance.md has no {begin}or no {end}");
    let (before, rest) = text.split_once(begin).ok_or_else(missing)?;
    let (_, after) = rest.split_once(end).ok_or_else(missing)?;
    Ok(format!("{before}{begin}{table}{end}{after}"))
}

fn count_table(counts: &Kept) -> String {
    format!("Counted with {}.\n\n{}", counts.whence(), rows_of(&counts.entries()))
}

fn rows_of<'e>(entries: impl IntoIterator<Item = &'e Entry>) -> String {
    let mut text =
        "| | what | reach | measured | range | | how |\n|---|---|---|---|---|---|---|\n".to_owned();
    for entry in entries {
        let Entry { id, what, reach, measured, detail, .. } = entry;
        let verdict = if entry.is_reached() { "ok" } else { "**MISS**" };
        let (measured, range) = (shown(*measured), range(entry));
        text +=
            &format!("| {id} | {what} | {reach} | {measured} | {range} | {verdict} | {detail} |\n");
    }
    text
}

fn table(results: &Results) -> String {
    let mut text = format!("{}\n\n{}", whence(results), rows_of(results.entries()));
    text += "\nNext to others, with nothing to reach:\n";
    for note in results.parts.iter().flat_map(|part| &part.notes) {
        text += &format!("- {}: {}\n", note.what, note.text);
    }
    text
}

/// When and where they were measured.
fn whence(results: &Results) -> String {
    let mut dates: Vec<&str> = results.parts.iter().map(|part| part.date.as_str()).collect();
    dates.sort_unstable();
    dates.dedup();
    let when = match dates.as_slice() {
        [] => "Never measured".to_owned(),
        [date] => format!("Measured in one run, {date}"),
        [first, .., last] => format!("Measured in {} runs, {first} to {last}", dates.len()),
    };
    let mut commits: Vec<&str> =
        results.parts.iter().filter_map(|part| part.commit.as_deref()).collect();
    commits.dedup();
    let commit = match commits.as_slice() {
        [commit] => format!(" of commit {commit}"),
        _ => String::new(),
    };
    let Machine { cpu, cores, kernel, compiler, sqlite, .. } = &results.machine;
    format!("{when}{commit}, on {cores} cores of {cpu}, {kernel}, SQLite {sqlite}, {compiler}.")
}

/// Every plot and the name of its file.
fn plots(results: &Results, counts: &Kept) -> Result<Vec<(&'static str, String)>> {
    let grown = |plot: &str| -> Result<Vec<&Series>> {
        let series = results.series(plot);
        match series.is_empty() {
            true => {
                Err(format!("there is nothing to draw for {plot:?}: measure all rows first").into())
            }
            false => Ok(series),
        }
    };
    let linear = |series: &[&Series]| {
        let points = series.iter().flat_map(|series| &series.points);
        Scale::above(points.map(|point| point.range.map_or(point.y, |[_, high]| high)))
    };
    let (claims, borrows, waiters) = (grown("claim")?, grown("borrow")?, grown("waiter")?);
    let claims = Lines {
        title: "A claim among ever more rows",
        upwards: "CPU time of a claim, µs (median and range)",
        across: "rows in the file",
        scale: linear(&claims),
        series: &claims,
    };
    let borrows = Lines {
        title: "A borrow from ever larger pools",
        upwards: "CPU time of borrow + return, µs (median and range)",
        across: "slots of the pool, half of them lent",
        scale: linear(&borrows),
        series: &borrows,
    };
    let waiters = Lines {
        title: "Ever more borrowers that wait",
        upwards: "memory of the server for each, KiB",
        across: "borrowers that wait at once",
        scale: linear(&waiters),
        series: &waiters,
    };
    let shares = grown("writers")?;
    let shares = Columns {
        title: "Eight processes write to one file: who gets how much",
        upwards: "share of all writes, %",
        across: "processes, the luckiest first",
        series: &shares,
    };
    Ok(vec![
        ("rows.svg", rows(results, counts)),
        ("claim.svg", claims.draw()),
        ("borrow.svg", borrows.draw()),
        ("waiter.svg", waiters.draw()),
        ("writers.svg", shares.draw()),
        ("peers.svg", peers(results)),
    ])
}

/// All figures, as what they use of what is allowed.
fn rows(results: &Results, counts: &Kept) -> String {
    let bar = |entry: &Entry| Bar {
        id: entry.id.clone(),
        label: entry.what.clone(),
        value: entry.reach.used(entry.measured),
        bound: 1.0,
        ..bar(entry)
    };
    let counts = counts.entries();
    let bars: Vec<Bar> = counts.iter().chain(results.entries()).map(bar).collect();
    let plot = Bars {
        title: "Every figure next to what it has to reach",
        across: "used of what is allowed, whichever way the figure counts: up to 1 it is reached",
        scale: Scale::Linear { most: 1.5 },
        from: 0.0,
        left: 420.0,
        bars: &bars,
    };
    plot.draw()
}

/// The service, as a multiple of what others do.
fn peers(results: &Results) -> String {
    let bars: Vec<Bar> = results.entries().filter(|entry| entry.id == "B11").map(bar).collect();
    let values = bars.iter().flat_map(|bar| [bar.value, bar.bound]);
    let plot = Bars {
        title: "The service next to others: calls per second, all durable",
        across: "ours ÷ theirs, and what has to be reached; 64 clients, every sync 1 ms; right of 1 ours are more",
        scale: Scale::up_to(values.chain([0.5, 30.0])),
        from: 1.0,
        left: 270.0,
        bars: &bars,
    };
    plot.draw()
}

fn bar(entry: &Entry) -> Bar {
    let (Reach::AtMost(bound) | Reach::AtLeast(bound)) = entry.reach;
    Bar {
        id: String::new(),
        label: entry.what.split('÷').next_back().unwrap_or_default().trim().to_owned(),
        value: entry.measured,
        text: format!("{} ({})", shown(entry.measured), entry.reach),
        is_reached: entry.is_reached(),
        bound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed() -> Results {
        match Results::read(&folder().join("results.json")) {
            Ok(results) => results,
            Err(error) => unreachable!("{error}"),
        }
    }

    #[test]
    fn the_document_shows_the_committed_results_and_counts() -> Result<()> {
        let text = fs::read_to_string(page())?;
        let counts = Kept::read()?;
        assert!(
            with_table(&text, COUNTS, &count_table(&counts))? == text,
            "run `make bench-quick SAVE=1`, or `make bench-plots` if bench/counts.json is right"
        );
        assert!(
            with_table(&text, RESULTS, &table(&committed()))? == text,
            "run `make bench-plots`"
        );
        assert!(
            committed().entries().all(|entry| !Kept::has(&entry.id)),
            "counts are stored twice"
        );
        for number in 1..=24 {
            assert!(text.contains(&format!("| B{number} |")), "B{number} is not there");
        }
        Ok(())
    }

    #[test]
    fn the_plots_are_drawn_from_the_committed_results_and_shown() -> Result<()> {
        let text = fs::read_to_string(page())?;
        for (name, svg) in plots(&committed(), &Kept::read()?)? {
            assert!(
                svg == fs::read_to_string(folder().join(name))?,
                "{name}: run `make bench-plots`"
            );
            assert!(text.contains(&format!("](performance/{name})")), "{name} is not shown");
        }
        Ok(())
    }

    #[test]
    fn a_document_without_a_place_for_results_is_left_alone() {
        assert!(with_table("text", RESULTS, "table").is_err());
        assert!(with_table(RESULTS[0], RESULTS, "table").is_err());
    }
}
