//! The processes behind owner texts, as far as this host knows them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use litelease::{Identity, Liveness};
use litelease_hold::Holder;

/// How long a process that was found is not asked for again: thousands may hold leases.
const FRESH: Duration = Duration::from_secs(5);

/// The processes that were asked for.
#[derive(Default)]
pub struct Processes(HashMap<String, Known>);

struct Known {
    at: Instant,
    was_used: bool,
    process: Option<Process>,
}

/// The process of an owner text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Process {
    pub(super) host: String,
    pub(super) pid: i64,
    pub(super) liveness: Liveness,
    pub(super) user: Option<String>,
    pub(super) command: Option<String>,
}

impl Process {
    /// Returns the word for it.
    pub(super) fn word(&self) -> &'static str {
        match self.liveness {
            Liveness::Alive => "alive",
            Liveness::Dead => "gone",
            Liveness::Unknown => "unknown",
        }
    }

    fn find(owner: &str) -> Option<Self> {
        let who = Identity::parse(owner)?;
        let holder = Holder::find(owner);
        let command = holder.as_ref().map(Holder::line);
        let (liveness, pid) = (who.liveness(), i64::from(who.pid));
        let user = holder.map(|holder| holder.user);
        Some(Process { host: who.host, pid, liveness, user, command })
    }
}

impl Processes {
    /// Returns the process of an owner text, if the text names one.
    pub(super) fn find(&mut self, owner: &str) -> Option<Process> {
        if let Some(known) = self.0.get_mut(owner) {
            known.was_used = true;
            if known.at.elapsed() < FRESH {
                return known.process.clone();
            }
        }
        let (at, process) = (Instant::now(), Process::find(owner));
        self.0.insert(owner.into(), Known { at, was_used: true, process: process.clone() });
        process
    }

    /// Forgets the processes that were not asked for since the last call.
    pub(super) fn forget_others(&mut self) {
        self.0.retain(|_, known| std::mem::take(&mut known.was_used));
    }
}
