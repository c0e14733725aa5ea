//! The command of one item: started in a group of its own, fed with the body, and waited for.

use std::io::{self, Write};
use std::process::{ChildStdin, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use litelease::{LossSignal, ProcessGroup};
use litelease_sys::children::{self, Change, Sentinel, pid_t, signal_group};
use signal_hook::consts::SIGKILL;

use super::super::queue::bytes;
use super::super::run::child::start_in_group;
use super::super::run::killer::Killer;
use super::Args;
use crate::target::Variable;
use crate::target::queues::WorkItem;

/// A command that runs for an item.
pub(super) struct ItemCommand {
    /// Its process, whose number is the group's.
    pub(super) group: pid_t,
    processes: ProcessGroup,
    /// Signals the loss of the item.
    pub(super) lease: LossSignal,
    killer: Mutex<Killer>,
}

/// The most that a new pipe takes without a reader, on every system.
const PIPE: usize = 4096;

impl ItemCommand {
    /// Starts it. The thread that calls this must wait for its end: the kernel kills the command
    /// when that thread ends.
    pub(super) fn start(
        args: &Args,
        variables: &[Variable],
        sentinel: &'static Sentinel,
        item: &WorkItem<'_>,
    ) -> io::Result<Self> {
        let mut command = args.command.command();
        command
            .stdin(Stdio::piped())
            .env("LITELEASE_QUEUE", &args.queue)
            .env("LITELEASE_ITEM_ID", item.id.to_string())
            .env("LITELEASE_ITEM_ATTEMPT", item.attempt.to_string())
            .env("LITELEASE_ITEM_TOKEN", item.token.to_string())
            .env("LITELEASE_ITEM_RECEIPT", item.receipt);
        for (name, value) in variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut child = start_in_group(&mut command, sentinel)?;
        let group = pid_t::try_from(child.id()).map_err(io::Error::other)?;
        let fed = child.stdin.take().map_or(Ok(()), |input| feed(input, bytes(item.body)));
        if let Err(error) = fed {
            // It must not take half a body for a whole one.
            signal_group(group, SIGKILL);
            let _ = child.wait();
            sentinel.forget(group);
            return Err(error);
        }
        let killer = Mutex::new(Killer::new(group, args.kill_grace()));
        let processes = ProcessGroup::new(group.unsigned_abs());
        Ok(ItemCommand { group, processes, lease: item.lost.clone(), killer })
    }

    /// Waits until the command and everything in its group have ended. Returns how the command did.
    pub(super) fn wait(&self) -> Change {
        // If another thread has reaped it, its end is unknown.
        let ended = children::wait(self.group).unwrap_or(Change::Killed(0));
        let mut nap = Duration::from_millis(1);
        while !self.have_all_ended() {
            thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(50));
        }
        ended
    }

    /// Checks whether all processes of the group have ended. Those whose parent has ended are ours
    /// to reap.
    fn have_all_ended(&self) -> bool {
        children::reap_group(self.group);
        self.processes.has_ended()
    }

    pub(super) fn killer(&self) -> MutexGuard<'_, Killer> {
        self.killer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the body to the command, which need not read it all.
fn feed(mut input: ChildStdin, body: Vec<u8>) -> io::Result<()> {
    let fits = body.len() <= PIPE;
    let mut write = move || drop(input.write_all(&body));
    if fits {
        write();
        return Ok(());
    }
    // A long body is written on a thread: another process may keep the pipe open after the command.
    thread::Builder::new().name("feeder".into()).spawn(write).map(drop)
}
