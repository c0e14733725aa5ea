//! Runs the command `litelease` on a file of its own, sends it signals, and reports how it ended.
//! Also what tests ask about any process.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use litelease::Litelease;

use crate::rig::{eventually, litelease};

/// A temporary folder with a database file, and the command that uses it.
pub struct Desk {
    /// The folder; the command starts in it.
    pub folder: tempfile::TempDir,
    /// The database file.
    pub file: PathBuf,
}

impl Desk {
    /// Creates the folder. The file does not exist yet.
    #[allow(clippy::new_without_default)] // each one is another
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("leases.sqlite3");
        Desk { folder, file }
    }

    /// Prepares the command with these arguments, in an environment of its own.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(litelease());
        command.args(words).current_dir(self.folder.path());
        self.environment(&mut command);
        command
    }

    /// Sets the environment of a command: the file, a home, and `litelease` on the path.
    pub fn environment(&self, command: &mut Command) {
        let bin = litelease().parent().expect("a folder").display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("LITELEASE_DB", &self.file)
            .env("HOME", self.folder.path())
            .env("PATH", format!("{bin}:{path}"))
            .env_remove("XDG_STATE_HOME")
            .env_remove("LITELEASE_NAME")
            .env_remove("LITELEASE_OWNER")
            .env_remove("LITELEASE_OWNERS")
            .env_remove("LITELEASE_TOKEN");
        // A shell without job control starts `make test &` with some signals ignored, nohup(1)
        // ignores another, and children inherit that.
        let reset = || {
            // SAFETY: no pointers are involved.
            unsafe {
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                libc::signal(libc::SIGQUIT, libc::SIG_DFL);
                libc::signal(libc::SIGHUP, libc::SIG_DFL);
            }
            Ok(())
        };
        // SAFETY: between fork and exec only plain system calls are made.
        unsafe { command.pre_exec(reset) };
    }

    /// Runs the command to its end.
    pub fn run(&self, words: &[&str]) -> Output {
        self.command(words).stdin(Stdio::null()).output().expect("it runs")
    }

    /// Starts `litelease run` with these arguments, and a shell script after the `--`.
    pub fn start(&self, words: &[&str], script: &str) -> Run {
        let words: Vec<&str> = [&["run"], words, &["--", "sh", "-c", script]].concat();
        let mut command = self.command(&words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Run { child: command.spawn().expect("it starts") }
    }

    /// Waits until a script has written a whole line to a file, and returns the text.
    pub fn read(&self, name: &str) -> String {
        eventually(&format!("a line in {name}"), || {
            let text = fs::read_to_string(self.folder.path().join(name)).ok()?;
            text.ends_with('\n').then(|| text.trim_end().to_owned())
        })
    }

    /// Returns what a script has written so far.
    pub fn peek(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    /// Waits until a script has written a process id to a file, and returns it.
    pub fn pid(&self, name: &str) -> i32 {
        self.read(name).parse().expect("a number")
    }

    /// Opens the file, to inspect its leases or to block the command.
    pub fn db(&self) -> Litelease {
        Litelease::open_own(&self.file).expect("the file opens")
    }
}

/// A running `litelease run`, killed on drop.
pub struct Run {
    /// The process of `litelease run`, not of its command.
    pub child: Child,
}

impl Run {
    /// Returns the process id of `litelease run`.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Sends a signal to `litelease run`.
    pub fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }

    /// Like [`end`](Run::end), for one that cannot end before its standard error is read.
    #[track_caller]
    pub fn end_reading(mut self) -> (i32, String) {
        let mut said = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            use std::io::Read;
            let _ = errors.read_to_string(&mut said);
        }
        (self.end().0, said)
    }

    /// Waits for its end. Returns the exit code as a shell has it, and the standard error.
    #[track_caller]
    pub fn end(mut self) -> (i32, String) {
        let status =
            eventually("the end of litelease run", || self.child.try_wait().expect("a status"));
        let mut said = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            // A child that outlived it may keep the pipe open, so do not wait for its end.
            use std::io::Read;
            use std::os::fd::AsRawFd;
            // SAFETY: no pointers are involved.
            unsafe { libc::fcntl(errors.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
            let mut bytes = Vec::new();
            let _ = errors.read_to_end(&mut bytes);
            said = String::from_utf8_lossy(&bytes).into_owned();
        }
        let code = status.code().or_else(|| Some(128 + status.signal()?));
        (code.expect("a code or a signal"), said)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // A failed test leaves nothing running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command that must end by itself, and kills it after a minute. For short outputs only,
/// because they are read at the end.
pub fn ended(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().expect("a status").is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("its output")
}

/// Runs commands with limits, and expects that each is ended when its own limit says so and for
/// that reason, and that none is that keeps within it. `words` come after `run`.
pub fn limits_end_commands(command: &dyn Fn(&[&str]) -> Command, words: &[&str]) {
    let start = |limits: &str, name: &str, script: &str| {
        let limits: Vec<&str> = limits.split(' ').collect();
        let mut run =
            command(&[&["run"], words, &limits, &[name, "--", "sh", "-c", script]].concat());
        run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Run { child: run.spawn().unwrap() }
    };
    let progress = "--ttl 2s --kill-grace 200ms --progress-within 1s";
    let end = "--ttl 3s --kill-grace 500ms --max-time 4s";
    let deaf = "trap '' TERM; while :; do sleep 0.05; done";
    // Longer than its time and one ttl.
    let works = "end=$(($(date +%s) + 4)); while [ $(date +%s) -lt $end ]; do \
                 litelease lease progress || exit 99; sleep 0.1; done";
    let stuck = [
        (start(progress, "stuck", "exec sleep 600"), "stuck: no progress was made"),
        (start(progress, "deaf", deaf), "deaf: no progress was made"),
        (start(end, "long", "exec sleep 600"), "long: the time that it may be held is up"),
        (start(end, "deaf-long", deaf), "deaf-long: the time that it may be held is up"),
    ];
    let good = [
        start(progress, "works", works),
        start("--ttl 60s --kill-grace 100ms --max-time 20s", "short", "true"),
    ];
    for (run, why) in stuck {
        let (code, errors) = run.end();
        assert!(
            code == 75 && errors.contains(&format!("lost the lease on {why}")),
            "{code} {errors}"
        );
    }
    for run in good {
        assert_eq!(run.end(), (0, String::new()));
    }
    // They leave nothing behind.
    for name in ["stuck", "deaf", "long", "deaf-long", "works", "short"] {
        let mut next = command(&[&["run", "-n"], words, &[name, "--", "true"]].concat());
        assert_eq!(outcome(&ended(&mut next)).0, 0, "{name}");
    }
}

/// Sends a signal to a process, or to a group if the number is negative.
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: no pointers are involved.
    unsafe { libc::kill(pid, signal) };
}

/// Checks whether a process exists and is not a zombie.
pub fn is_running(pid: i32) -> bool {
    let stat = stat(Path::new("/proc").join(pid.to_string()));
    stat.is_some_and(|fields| !matches!(fields[0].as_str(), "Z" | "X"))
}

/// Returns the fields of a process or thread in its file `stat`, from the third one, its state, on.
/// `folder` is `/proc/PID` or a folder in `/proc/PID/task`. `None` if the process is gone.
pub fn stat(folder: impl AsRef<Path>) -> Option<Vec<String>> {
    let stat = fs::read_to_string(folder.as_ref().join("stat")).ok()?;
    // The second field is the program's name in parentheses, with anything in it.
    let fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some(fields.map(str::to_owned).collect()).filter(|fields: &Vec<_>| !fields.is_empty())
}

/// Waits until a process has ended.
#[track_caller]
pub fn is_gone(pid: i32) {
    eventually(&format!("the end of process {pid}"), || (!is_running(pid)).then_some(()));
}

/// Returns the exit code of a command that has ended, its standard output and its standard error.
pub fn outcome(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// Checks that a condition holds all the time, for this long.
pub fn stays(time: Duration, mut look: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if !look() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Returns what is said without what differs between two times of the same: times and processes.
pub fn alike(text: &str, place: &str) -> String {
    let text = text.replace(place, "PLACE");
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let before = words.last().map_or("", String::as_str);
        let unit = word.trim_start_matches(|letter: char| letter.is_ascii_digit());
        let is_time = unit.len() < word.len() && matches!(unit, "m" | "s" | "h");
        let is_unit = matches!(word.trim_end_matches(';'), "ms" | "s");
        if is_time || (is_unit && before.starts_with(|letter: char| letter.is_ascii_digit())) {
            if is_unit {
                words.pop();
            }
            words.push("TIME".into());
        } else if before == "pid" {
            words.push("PID".into());
        } else {
            words.push(long_numbers(word));
        }
        words.dedup_by(|a, b| a == "TIME" && b == "TIME");
    }
    words.join(" ")
}

/// Hides numbers of more than three digits, for tokens and exit codes are shorter, and the numbers
/// of processes, which may be short: the system begins anew at the largest.
fn long_numbers(word: &str) -> String {
    let mut shown = String::new();
    for part in word.split_inclusive(|letter: char| !letter.is_ascii_digit()) {
        let digits = part.trim_end_matches(|letter: char| !letter.is_ascii_digit());
        let is_pid = shown.ends_with("\"pid\":") && !digits.is_empty();
        match digits.len() > 3 || is_pid {
            true => shown.push_str(&part.replace(digits, "N")),
            false => shown.push_str(part),
        }
    }
    shown
}
