//! The command `litelease` in tests: started on a file of its own, signalled, and asked how it ended.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use litelease::Litelease;

use crate::rig::{eventually, litelease};

/// A folder with a file for leases, and the command on it.
pub struct Desk {
    /// The folder, in which the command is started.
    pub folder: tempfile::TempDir,
    /// The database file.
    pub file: PathBuf,
}

impl Desk {
    /// A new one. The file is not there yet.
    #[allow(clippy::new_without_default)] // each one is another
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("leases.sqlite3");
        Desk { folder, file }
    }

    /// The command with these words, in an environment of its own.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(litelease());
        command.args(words).current_dir(self.folder.path());
        self.environment(&mut command);
        command
    }

    /// What every command finds: the file, a home, and `litelease` on its path.
    pub fn environment(&self, command: &mut Command) {
        let bin = litelease().parent().expect("a folder").display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("LITELEASE_DB", &self.file)
            .env("HOME", self.folder.path())
            .env("PATH", format!("{bin}:{path}"))
            .env_remove("XDG_STATE_HOME")
            .env_remove("LITELEASE_OWNER")
            .env_remove("LITELEASE_OWNERS")
            .env_remove("LITELEASE_TOKEN");
    }

    /// Runs it to its end.
    pub fn run(&self, words: &[&str]) -> Output {
        self.command(words).stdin(Stdio::null()).output().expect("it runs")
    }

    /// Starts `litelease run` with these words before, and a shell script after the `--`.
    pub fn start(&self, words: &[&str], script: &str) -> Run {
        let words: Vec<&str> = [&["run"], words, &["--", "sh", "-c", script]].concat();
        let mut command = self.command(&words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Run { child: command.spawn().expect("it starts") }
    }

    /// What a script has written to a file, once it is there and has a whole line in it.
    pub fn read(&self, name: &str) -> String {
        eventually(&format!("a line in {name}"), || {
            let text = fs::read_to_string(self.folder.path().join(name)).ok()?;
            text.ends_with('\n').then(|| text.trim_end().to_owned())
        })
    }

    /// What a script has written so far.
    pub fn peek(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    /// A process that a script has written the number of.
    pub fn pid(&self, name: &str) -> i32 {
        self.read(name).parse().expect("a number")
    }

    /// The leases, for looking at and for being in the way.
    pub fn db(&self) -> Litelease {
        Litelease::open_own(&self.file).expect("the file opens")
    }
}

/// A `litelease run` that was started.
pub struct Run {
    /// The wrapper.
    pub child: Child,
}

impl Run {
    /// The wrapper's number.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Sends the wrapper a signal.
    pub fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }

    /// [`end`](Run::end) of one that cannot end before what it says is read.
    #[track_caller]
    pub fn end_reading(mut self) -> (i32, String) {
        let mut said = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            use std::io::Read;
            let _ = errors.read_to_string(&mut said);
        }
        (self.end().0, said)
    }

    /// Waits for its end: the exit code as a shell has it, and what it said on standard error.
    #[track_caller]
    pub fn end(mut self) -> (i32, String) {
        let status =
            eventually("the end of litelease run", || self.child.try_wait().expect("a status"));
        let mut said = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            // What outlived it may still have this open, so it is not read to its end.
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
        // A test that failed leaves nothing running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command that must end by itself, and soon: one that says little and does not is killed after a minute.
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

/// Sends a signal to a process, or to a group if the number is negative.
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: no pointers are involved.
    unsafe { libc::kill(pid, signal) };
}

/// Whether a process is there and not just waiting to be reaped.
pub fn is_running(pid: i32) -> bool {
    let stat = stat(Path::new("/proc").join(pid.to_string()));
    stat.is_some_and(|fields| !matches!(fields[0].as_str(), "Z" | "X"))
}

/// Returns the fields in the file `stat` of a process or thread, from the third one on: its state is the first
/// here. `folder` is `/proc/PID` or a folder below `/proc/PID/task`. `None` if it is gone.
pub fn stat(folder: impl AsRef<Path>) -> Option<Vec<String>> {
    let stat = fs::read_to_string(folder.as_ref().join("stat")).ok()?;
    // The second field is the program's name in parentheses, with anything in it.
    let fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some(fields.map(str::to_owned).collect()).filter(|fields: &Vec<_>| !fields.is_empty())
}

/// Waits until a process is gone.
#[track_caller]
pub fn is_gone(pid: i32) {
    eventually(&format!("the end of process {pid}"), || (!is_running(pid)).then_some(()));
}

/// The exit code of a command that has ended, and what it printed.
pub fn told(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// Whether something stays so for a while. It can only be disproved.
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
