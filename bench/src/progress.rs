//! The progress of a long run: a line that is overwritten on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a run takes, as far as is known.
pub(crate) struct Progress {
    begin: Instant,
    /// What was expected of the parts that are done, in seconds.
    done: f64,
    left: f64,
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn new(expected: f64) -> Self {
        let is_terminal = stderr().is_terminal();
        Progress { begin: Instant::now(), done: 0.0, left: expected, is_terminal }
    }

    /// Tells that a part begins, until what this returns is dropped.
    pub(crate) fn part(&mut self, what: &str, expected: f64) -> ProgressLine {
        let left = self.left * self.pace();
        self.done += expected;
        self.left -= expected;
        if !self.is_terminal {
            eprintln!("{what}, about {} left", time(left));
            return ProgressLine { stop: None, thread: None };
        }
        let (stop, stopped) = channel();
        let what = what.to_owned();
        let thread = thread::spawn(move || tick(&what, left, &stopped));
        ProgressLine { stop: Some(stop), thread: Some(thread) }
    }

    /// How this machine compares with the one that the expectations are from.
    fn pace(&self) -> f64 {
        match self.done {
            done if done < 10.0 => 1.0,
            done => self.begin.elapsed().as_secs_f64() / done,
        }
    }
}

/// The line on the terminal, which is gone when this is dropped.
pub(crate) struct ProgressLine {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn tick(what: &str, left: f64, stopped: &Receiver<()>) {
    let begin = Instant::now();
    loop {
        let since = begin.elapsed().as_secs_f64();
        let line =
            format!("{what}, for {since:.0} s, about {} left", time((left - since).max(1.0)));
        // What does not fit would stay behind on a line of its own.
        let line: String = line.chars().take(79).collect();
        let _ = write!(stderr(), "\r\x1b[K{line}");
        if stopped.recv_timeout(Duration::from_secs(1)) != Err(RecvTimeoutError::Timeout) {
            let _ = write!(stderr(), "\r\x1b[K");
            return;
        }
    }
}

fn time(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}
