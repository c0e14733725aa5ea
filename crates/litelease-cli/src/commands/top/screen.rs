//! The text of one look: a verdict, figures, what needs attention, and names.

use std::cmp::Reverse;

use litelease_core::spoken;
use litelease_serve::overview::{Overview, OverviewName};

use super::is_shown;
use crate::output::{CYAN, GREEN, RED, YELLOW, printable};

/// The column that names are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// The worst state first, then what has been held longest.
    #[default]
    State,
    Name,
    Held,
    Left,
    Waiting,
}

impl Sort {
    pub(super) fn next(self) -> Self {
        match self {
            Sort::State => Sort::Name,
            Sort::Name => Sort::Held,
            Sort::Held => Sort::Left,
            Sort::Left => Sort::Waiting,
            Sort::Waiting => Sort::State,
        }
    }

    pub(super) fn sort(self, names: &mut [&OverviewName]) {
        let since = |name: &OverviewName| name.since_ms.unwrap_or(i64::MAX);
        match self {
            Sort::State => names.sort_by_key(|name| (rank(&name.health), since(name))),
            Sort::Name => names.sort_by(|a, b| a.name.cmp(&b.name)),
            Sort::Held => names.sort_by_key(|name| since(name)),
            Sort::Left => names.sort_by_key(|name| name.expires_at_ms),
            Sort::Waiting => names.sort_by_key(|name| Reverse(name.waiters)),
        }
    }
}

fn rank(health: &str) -> usize {
    ["stuck", "late", "paused", "waiting"].iter().position(|word| *word == health).unwrap_or(9)
}

/// The view, and the size of the terminal.
#[derive(Default)]
pub(super) struct Table<'a> {
    pub(super) columns: usize,
    pub(super) rows: usize,
    pub(super) chosen: Option<usize>,
    pub(super) sort: Sort,
    pub(super) filter: &'a str,
    /// The last line.
    pub(super) foot: String,
}

impl Table<'_> {
    pub(super) fn text(&self, overview: &Overview, place: &str) -> String {
        let mut lines = vec![self.verdict(overview, place), self.figures(overview), String::new()];
        self.attention(overview, &mut lines);
        let taken = lines.len() + 3;
        lines.extend(self.names(overview, self.rows.saturating_sub(taken)));
        if !self.foot.is_empty() {
            lines.push(String::new());
            lines.push(cut(&self.foot, self.columns));
        }
        lines.truncate(self.rows);
        lines.join("\n") + "\n"
    }

    fn verdict(&self, overview: &Overview, place: &str) -> String {
        let style = if overview.health == "ok" { GREEN } else { tone(&overview.health) };
        let verdict = cut(&overview.verdict, self.columns);
        let left = self.columns.saturating_sub(verdict.chars().count() + 3);
        format!("{style}{verdict}{style:#}   {}", cut(&printable(place), left))
    }

    fn figures(&self, overview: &Overview) -> String {
        let figures = overview.figures.iter();
        let said = figures.map(|figure| format!("{} {}", figure.title, figure.value));
        cut(&said.collect::<Vec<_>>().join(" · "), self.columns)
    }

    fn attention(&self, overview: &Overview, lines: &mut Vec<String>) {
        for row in overview.attention.iter().take(self.rows / 3) {
            let since = row.since_ms.map(|since_ms| spoken(overview.at_ms - since_ms));
            let (since, name) = (since.unwrap_or_default(), printable(&row.name));
            let style = tone(&row.health);
            let text = format!("{} {name}, {since}: {} ", row.kind, printable(&row.why));
            let text = match row.waits.as_str() {
                "nobody" | "–" => text,
                waits => format!("{text}Waiting: {}", printable(waits)),
            };
            let left = self.columns.saturating_sub(8);
            lines.push(format!("{style}{:<7}{style:#} {}", row.health, cut(&text, left)));
        }
        if overview.attention.is_empty() {
            lines.push("Nothing needs you.".into());
        }
        lines.push(String::new());
    }

    fn names(&self, overview: &Overview, most: usize) -> Vec<String> {
        let mut names: Vec<&OverviewName> =
            overview.names.iter().filter(|name| is_shown(name, self.filter)).collect();
        self.sort.sort(&mut names);
        let name_width = (self.columns / 4).clamp(14, 24);
        let wide = self.columns.saturating_sub(8 + name_width + 7 + 9 + 9 + 8).clamp(12, 120);
        let (owner_width, command_width) = (wide / 2, wide - wide / 2);
        let head = format!(
            "{:<8}{:<name_width$}{:<owner_width$}{:<command_width$}{:>7}{:>9}{:>9}{:>8}",
            "STATE", "NAME", "OWNER", "COMMAND", "TOKEN", "HELD", "LEFT", "WAITING"
        );
        let mut lines = vec![format!("{CYAN}{}{CYAN:#}", cut(&head, self.columns))];
        // The row that is chosen stays in sight.
        let first = self.chosen.map_or(0, |chosen| (chosen + 1).saturating_sub(most));
        for (at, name) in names.iter().enumerate().skip(first).take(most) {
            let since = name.since_ms.map_or("-".into(), |at_ms| spoken(overview.at_ms - at_ms));
            let left = spoken(name.expires_at_ms - overview.at_ms);
            let place = name.host.as_ref().zip(name.pid);
            let place = place.map(|(host, pid)| format!(" {host} {pid}")).unwrap_or_default();
            let owner = printable(&format!("{}{place}", name.owner));
            let command = printable(name.command.as_deref().unwrap_or("-"));
            let (owner, command) = (cut(&owner, owner_width - 1), cut(&command, command_width - 1));
            let (shown, token) = (cut(&printable(&name.name), name_width - 1), name.token);
            let line = format!(
                "{shown:<name_width$}{owner:<owner_width$}{command:<command_width$}{token:>7}{since:>9}{left:>9}{:>8}",
                name.waiters
            );
            let (style, mark) =
                (tone(&name.health), if self.chosen == Some(at) { "\x1b[7m" } else { "" });
            let end = if mark.is_empty() { "" } else { "\x1b[27m" };
            let line = cut(&line, self.columns.saturating_sub(8));
            lines.push(format!("{style}{:<8}{style:#}{mark}{line}{end}", name.health));
        }
        lines
    }
}

fn tone(health: &str) -> anstyle::Style {
    match health {
        "stuck" => RED,
        "late" => YELLOW,
        "paused" | "waiting" => CYAN,
        _ => anstyle::Style::new(),
    }
}

/// Shortens a text to so many characters.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        None => text.to_owned(),
    }
}
