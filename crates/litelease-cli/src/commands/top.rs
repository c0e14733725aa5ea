//! `litelease top`: what is stuck, late and held, live in the terminal.

mod screen;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use litelease_core::Health;
use litelease_serve::overview::{Overview, OverviewName, Processes};
use litelease_sys::children::RawTerminal;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::flag;

use self::screen::{Sort, Table};
use crate::Common;
use crate::duration::parse_positive;
use crate::exit::{Failure, Result, code};
use crate::output::{printable, say};
use crate::stream::write_out;
use crate::target::{Target, Verdict};

/// Show what is stuck or late, and who has what, live
///
/// The same words as on the page of the server: first what needs attention and why, then the names,
/// the worst first. Keys: arrows or j k choose a name, s sorts by the next column, / filters by
/// name or owner, b breaks the lease that is chosen after a question, p holds still, q leaves.
///
/// On a file and on an engine no waiting is stored, so a name is stuck there only if its holder has
/// passed a limit, or another has requested it for too long.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  litelease top
  litelease top --server https://lease.example --filter importer
  litelease top --once --json | jq -r '.attention[] | .why'

Exit codes: 0 nothing is stuck; 1 something is, with --once.")]
pub(crate) struct Args {
    /// Print it once and leave: also where the output is no terminal
    #[arg(long)]
    once: bool,
    /// Show only names whose name or owner contains this
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// How often to look
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_positive)]
    every: Duration,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let place = Target::open(common)?;
    let mut processes = Processes::default();
    let is_live = !args.once && !common.json && std::io::stdout().is_terminal();
    match is_live.then(RawTerminal::take).flatten() {
        Some(terminal) => Top::new(args, place, terminal).work(&mut processes),
        None => once(&args, &place, common, &mut processes),
    }
}

fn once(args: &Args, place: &Target, common: &Common, processes: &mut Processes) -> Result<u8> {
    let mut overview = place.overview(processes)?;
    overview.names.retain(|name| is_shown(name, &args.filter));
    let code = if overview.health == Health::Stuck.word() { code::NO } else { code::OK };
    match common.json {
        true => say(&json!(overview).to_string())?,
        false => {
            let table = Table { columns: 120, rows: usize::MAX, ..Table::default() };
            say(table.text(&overview, &place.shown()).trim_end())?;
        }
    }
    Ok(code)
}

fn is_shown(name: &OverviewName, filter: &str) -> bool {
    name.name.contains(filter) || name.owner.contains(filter)
}

/// The meaning of the keys at present.
enum Mode {
    Rows,
    /// A filter is typed.
    Filter,
    /// The lease on this name under this token is to be broken, for this reason.
    Break {
        name: String,
        token: i64,
        reason: String,
    },
}

/// The live view.
struct Top {
    place: Target,
    terminal: RawTerminal,
    every: Duration,
    filter: String,
    sort: Sort,
    chosen: usize,
    is_held: bool,
    /// The last look has failed.
    is_lost: bool,
    mode: Mode,
    /// The outcome of the last action.
    said: String,
    overview: Option<Overview>,
}

impl Top {
    fn new(args: Args, place: Target, terminal: RawTerminal) -> Self {
        let Args { filter, every, .. } = args;
        let (sort, mode, said) = (Sort::default(), Mode::Rows, String::new());
        let (chosen, is_held, is_lost, overview) = (0, false, false, None);
        Top { place, terminal, every, filter, sort, chosen, is_held, is_lost, mode, said, overview }
    }

    fn work(mut self, processes: &mut Processes) -> Result<u8> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGHUP] {
            flag::register(signal, Arc::clone(&stop))?;
        }
        // The other screen, without a cursor.
        print("\x1b[?1049h\x1b[?25l")?;
        let done = self.turns(processes, &stop);
        print("\x1b[?25h\x1b[?1049l")?;
        done.map(|()| code::OK)
    }

    fn turns(&mut self, processes: &mut Processes, stop: &AtomicBool) -> Result<()> {
        let mut due = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            if Instant::now() >= due && !self.is_held {
                match self.place.overview(processes) {
                    Ok(overview) => {
                        self.overview = Some(overview);
                        if std::mem::take(&mut self.is_lost) {
                            self.said = "connected again".into();
                        }
                    }
                    Err(failure) if self.overview.is_none() => return Err(failure),
                    Err(failure) => {
                        self.is_lost = true;
                        self.said = format!("NO CONNECTION: {}", failure.text());
                    }
                }
                due = Instant::now() + self.every;
            }
            self.draw()?;
            let wait = due.saturating_duration_since(Instant::now()).min(self.every);
            let Some(keys) = self.terminal.keys(wait.max(Duration::from_millis(20))) else {
                return Ok(());
            };
            let text = String::from_utf8_lossy(&keys).into_owned();
            for key in split(&text) {
                if !self.press(key) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Returns the names that are shown, in their order.
    fn names(&self) -> Vec<&OverviewName> {
        let all = self.overview.iter().flat_map(|overview| &overview.names);
        let mut names: Vec<_> = all.filter(|name| is_shown(name, &self.filter)).collect();
        self.sort.sort(&mut names);
        names
    }

    fn draw(&self) -> Result<()> {
        let Some(overview) = &self.overview else { return Ok(()) };
        let (columns, rows) = self.terminal.size();
        let foot = match &self.mode {
            Mode::Filter => format!("filter: {}_   Enter keeps it, Esc clears it", self.filter),
            Mode::Break { name, token, reason } => format!(
                "Break the lease on {}? 1 lease, token {token}. The old command may run on. Why: {reason}_   \
                 Enter breaks it, Esc leaves it",
                printable(name)
            ),
            Mode::Rows if !self.said.is_empty() => self.said.clone(),
            Mode::Rows => {
                let held = if self.is_held { "HELD STILL  " } else { "" };
                let filter = match self.filter.as_str() {
                    "" => String::new(),
                    filter => format!("filter {}  ", printable(filter)),
                };
                format!("{held}{filter}j k choose  s sort  / filter  b break  p hold still  q quit")
            }
        };
        let chosen = Some(self.chosen.min(self.names().len().saturating_sub(1)));
        let table = Table { columns, rows, chosen, sort: self.sort, filter: &self.filter, foot };
        let text = table.text(overview, &self.place.shown());
        // Each line ends the one that was there, and the last one clears what is below.
        print(&format!("\x1b[H{}\x1b[J", text.trim_end().replace('\n', "\x1b[K\r\n")))
    }

    /// Does what a key says. Returns false to leave.
    fn press(&mut self, key: &str) -> bool {
        let is_enter = matches!(key, "\r" | "\n");
        match &mut self.mode {
            _ if key == "\x03" => return false,
            Mode::Filter if key == "\x1b" => {
                self.filter.clear();
                self.mode = Mode::Rows;
            }
            Mode::Filter if is_enter => self.mode = Mode::Rows,
            Mode::Filter => edit(&mut self.filter, key),
            Mode::Break { .. } if key == "\x1b" => {
                self.said = "nothing was done".into();
                self.mode = Mode::Rows;
            }
            Mode::Break { .. } if is_enter => self.break_chosen(),
            Mode::Break { reason, .. } => edit(reason, key),
            Mode::Rows => {
                self.said.clear();
                return self.press_in_rows(key);
            }
        }
        true
    }

    fn press_in_rows(&mut self, text: &str) -> bool {
        let last = self.names().len().saturating_sub(1);
        match text {
            "q" => return false,
            "j" | "\x1b[B" => self.chosen = (self.chosen + 1).min(last),
            "k" | "\x1b[A" => self.chosen = self.chosen.min(last).saturating_sub(1),
            "s" => self.sort = self.sort.next(),
            "p" => self.is_held = !self.is_held,
            "/" => self.mode = Mode::Filter,
            "b" => {
                let chosen = self
                    .names()
                    .get(self.chosen.min(last))
                    .map(|row| (row.name.clone(), row.token));
                if let Some((name, token)) = chosen {
                    self.mode = Mode::Break { name, token, reason: String::new() };
                }
            }
            _ => {}
        }
        true
    }

    fn break_chosen(&mut self) {
        let Mode::Break { name, token, reason } = std::mem::replace(&mut self.mode, Mode::Rows)
        else {
            return;
        };
        let reason = Some(reason.trim()).filter(|reason| !reason.is_empty());
        let done = self.place.break_token_because(&name, token, reason);
        let name = printable(&name);
        self.said = match done {
            Ok(Verdict::Done((_, token))) => {
                format!("the lease on {name} is broken; token {token} is refused from now on")
            }
            Ok(Verdict::Rejected(rejection)) => {
                format!("nothing was broken: {}", rejection.reason)
            }
            Err(failure) => failure.text(),
        };
    }
}

/// Splits what was typed into keys. An arrow is three characters.
fn split(mut text: &str) -> Vec<&str> {
    let mut keys = Vec::new();
    while let Some(first) = text.chars().next() {
        let length = if text.starts_with("\x1b[") { 3.min(text.len()) } else { first.len_utf8() };
        let (key, rest) = text.split_at_checked(length).unwrap_or((text, ""));
        keys.push(key);
        text = rest;
    }
    keys
}

/// Adds typed characters to a text; backspace takes one away.
fn edit(text: &mut String, typed: &str) {
    for letter in typed.chars() {
        match letter {
            '\x08' | '\x7f' => _ = text.pop(),
            letter if !letter.is_control() && text.len() < 200 => text.push(letter),
            _ => {}
        }
    }
}

fn print(text: &str) -> Result<()> {
    write_out(text).map_err(|error| Failure::not_told(&error))
}
