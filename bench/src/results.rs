//! What was measured, where and when, as it is stored.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::figure::{Figure, Reach};

/// Everything that is known of one machine.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    /// In the order of the table.
    pub(crate) parts: Vec<Part>,
}

/// Where it was measured.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    pub(crate) compiler: String,
    pub(crate) c_compiler: String,
    pub(crate) sqlite: String,
}

/// What is measured together.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Its rows: "B11 B12".
    pub(crate) rows: String,
    /// When its run began.
    pub(crate) date: String,
    /// What was measured, if that is known.
    pub(crate) commit: Option<String>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) series: Vec<Series>,
    pub(crate) notes: Vec<Note>,
}

/// A figure as it is stored.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) what: String,
    pub(crate) reach: Reach,
    pub(crate) measured: f64,
    pub(crate) range: Option<[f64; 2]>,
    pub(crate) detail: String,
}

impl From<Figure> for Entry {
    fn from(figure: Figure) -> Self {
        let Figure { id, what, reach, measured, range, detail } = figure;
        Entry { id: id.into(), what: what.into(), reach, measured, range, detail }
    }
}

impl Entry {
    pub(crate) fn is_reached(&self) -> bool {
        self.reach.is_reached(self.measured)
    }
}

/// A line of a plot.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) plot: String,
    pub(crate) name: String,
    pub(crate) points: Vec<Point>,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) range: Option<[f64; 2]>,
}

/// Something to know that has nothing to reach: what others take.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) what: String,
    pub(crate) text: String,
}

impl Results {
    /// Those in a file.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()).into())
    }

    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        Ok(fs::write(file, serde_json::to_string_pretty(self)? + "\n")?)
    }

    /// Puts a part in the place of an older one of the same rows.
    pub(crate) fn put(&mut self, part: Part, order: &[&str]) {
        self.parts.retain(|old| old.rows != part.rows && order.contains(&old.rows.as_str()));
        self.parts.push(part);
        self.parts.sort_by_key(|part| order.iter().position(|rows| *rows == part.rows));
    }

    /// The same without some rows. What else was measured with them stays.
    pub(crate) fn without(&self, is_left_out: impl Fn(&str) -> bool) -> Self {
        let mut parts = self.parts.clone();
        for part in &mut parts {
            part.entries.retain(|entry| !is_left_out(&entry.id));
        }
        parts.retain(|part| {
            !(part.entries.is_empty() && part.series.is_empty() && part.notes.is_empty())
        });
        Results { machine: self.machine.clone(), parts }
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.parts.iter().flat_map(|part| &part.entries)
    }

    pub(crate) fn series(&self, plot: &str) -> Vec<&Series> {
        let all = self.parts.iter().flat_map(|part| &part.series);
        all.filter(|series| series.plot == plot).collect()
    }
}

impl Machine {
    pub(crate) fn this() -> Self {
        let first_line = |command: &mut Command| {
            let output = command.output().map(|output| output.stdout).unwrap_or_default();
            String::from_utf8_lossy(&output).lines().next().unwrap_or("unknown").to_owned()
        };
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Machine {
            cpu: cpu.map_or(std::env::consts::ARCH, |(_, name)| name).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: first_line(Command::new("uname").arg("-sr")),
            compiler: first_line(Command::new("rustc").arg("--version")),
            c_compiler: first_line(Command::new("cc").arg("--version")),
            sqlite: litelease::rusqlite::version().into(),
        }
    }
}

/// What is measured, if git knows it: with a plus if it is not as it was committed.
pub(crate) fn commit() -> Option<String> {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty=+", "--exclude=*"]).current_dir(root());
    let output = git.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// The time, as the system tells it.
pub(crate) fn date() -> Result<String> {
    let output = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// The root of the project.
pub(crate) fn root() -> PathBuf {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
    bench.parent().unwrap_or(bench).to_owned()
}
