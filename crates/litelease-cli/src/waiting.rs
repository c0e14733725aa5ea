//! Shows at a terminal the holder of the name while the command waits for it.

use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use litelease::Lease;
use litelease_hold::Holder;

use crate::Common;
use crate::output::{complain, held_by};
use crate::target::Target;

/// Shorter waits are not reported.
const FIRST_POLL: Duration = Duration::from_millis(300);

/// The time between later polls. Holders that change faster are not all shown.
const PAUSE: Duration = Duration::from_secs(3);

/// Runs `wait`, and meanwhile prints the holder of the name, if standard error is a terminal and
/// `--quiet` was not given.
pub(crate) fn while_waiting<T>(common: &Common, name: &str, wait: impl FnOnce() -> T) -> T {
    if common.quiet || common.json || !std::io::stderr().is_terminal() {
        return wait();
    }
    let (waiting, is_over) = channel();
    let (common, name) = (common.clone(), name.to_owned());
    // Without a thread it is only less talkative. It is not joined: the terminal may be stopped.
    let print = move || print_holders(&common, &name, &is_over);
    let _ = thread::Builder::new().name("progress".into()).spawn(print);
    let answer = wait();
    drop::<std::sync::mpsc::Sender<()>>(waiting);
    answer
}

fn print_holders(common: &Common, name: &str, is_over: &Receiver<()>) -> Option<()> {
    let mut pause = FIRST_POLL;
    let mut last = String::new();
    let mut last_writer = None;
    loop {
        if is_over.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return None;
        }
        pause = if last.is_empty() { FIRST_POLL } else { PAUSE };
        // A connection of its own: the one that waits is in use. What cannot be seen now may be
        // seen later.
        let place = Target::open(common).ok()?;
        let writer = place.writer();
        let (key, line) = match place.inspect(name).ok().flatten() {
            Some(current) => (format!("token {}", current.token), for_holder(&current)),
            // Seen twice, it is more than a commit.
            None if writer.is_some() && writer == last_writer => {
                (format!("writer {writer:?}"), for_writer(&place)?)
            }
            None => {
                last_writer = writer;
                continue;
            }
        };
        if key != last && is_over.recv_timeout(Duration::ZERO) == Err(RecvTimeoutError::Timeout) {
            complain(&format!("litelease: waiting: {line}"));
            (last, pause) = (key, PAUSE);
        }
    }
}

fn for_holder(current: &Lease) -> String {
    let what = Holder::find(&current.owner).map_or_else(String::new, |holder| {
        format!("; it is {}, by {}", holder.line(), holder.user)
    });
    format!("{} unless renewed{what}", held_by(current))
}

fn for_writer(place: &Target) -> Option<String> {
    Some(format!("pid {} is writing {}", place.writer()?, place.shown()))
}
