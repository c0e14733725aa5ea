//! The lines between a hold and the program that started it: each direction has a thread, so that
//! a program that does not read cannot keep the hold from releasing.

use std::io::{self, BufRead, Read, StdinLock};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::session::Event;
use crate::exit::{Failure, Result, code};
use crate::stream::write_bytes;

/// The longest line that is read. The rest of a longer one is skipped, and its beginning is no
/// command.
const LONGEST_LINE: u64 = 1024;

/// How many lines may wait for a program that does not read them.
const MOST_UNREAD: usize = 1024;

/// How long the last lines may take at the end.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Passes on the lines of standard input, and that it has ended.
pub(super) fn read(events: Sender<Event>) -> Result<()> {
    let events = Input(events);
    let body = move || {
        let mut input = io::stdin().lock();
        while let Some(line) = next_line(&mut input) {
            if events.0.send(Event::Line(line)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("input".into()).spawn(body)?;
    Ok(())
}

/// Passes on that the input has ended when its thread does, also by a panic.
struct Input(Sender<Event>);

impl Drop for Input {
    fn drop(&mut self) {
        let _ = self.0.send(Event::InputEnded);
    }
}

/// Returns the next line, or `None` at the end of the input. A last line without its end is a line
/// that was cut off: its program may have died while writing it.
fn next_line(input: &mut StdinLock<'_>) -> Option<String> {
    let mut line = Vec::new();
    input.take(LONGEST_LINE).read_until(b'\n', &mut line).ok()?;
    if line.last() != Some(&b'\n') {
        // Too long, or at the end of the input.
        input.skip_until(b'\n').ok().filter(|skipped| *skipped > 0)?;
        line.extend("…".as_bytes());
    }
    Some(String::from_utf8_lossy(&line).trim().to_owned())
}

/// Writes lines to standard output, each at once and whole.
pub(super) struct Output {
    lines: SyncSender<String>,
    writer: JoinHandle<()>,
}

impl Output {
    /// Starts the thread that writes. It passes on that standard output cannot be written.
    pub(super) fn start(events: Sender<Event>) -> Result<Self> {
        let (lines, receiver) = sync_channel(MOST_UNREAD);
        let body = move || {
            if let Err(error) = write_all(&receiver) {
                let _ = events.send(Event::OutputFailed(Failure::not_told(&error)));
            }
        };
        let writer = thread::Builder::new().name("output".into()).spawn(body)?;
        Ok(Output { lines, writer })
    }

    /// Queues a line. Fails if its reader has left too many unread.
    pub(super) fn print(&self, line: &str) -> Result<()> {
        match self.lines.try_send(format!("{line}\n")) {
            Err(TrySendError::Full(_)) => {
                let text = "the reader of standard output takes no more lines";
                Err(Failure::new(code::NOT_TOLD, "Output", text))
            }
            // If the thread has ended, its event is on the way.
            Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
        }
    }

    /// Waits a moment until all lines are written.
    pub(super) fn close(self) {
        drop(self.lines);
        let begin = Instant::now();
        while !self.writer.is_finished() && begin.elapsed() < LAST_LINES {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn write_all(lines: &Receiver<String>) -> io::Result<()> {
    lines.iter().try_for_each(|line| write_bytes(line.as_bytes()))
}
