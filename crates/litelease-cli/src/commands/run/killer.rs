//! Ends a process group before another holder can be granted its lease: SIGTERM when that is near,
//! SIGKILL at the end.

use std::time::{Duration, Instant};

use litelease::{Loss, LossSignal};
use litelease_sys::children::{pid_t, signal_group};
use signal_hook::consts::{SIGCONT, SIGKILL, SIGTERM};

/// The main loop reads the clock this often, because its alarm is late after a suspend.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Watches over the group of a command whose lease may be lost.
pub(crate) struct Killer {
    group: pid_t,
    grace: Duration,
    ending: Option<Ending>,
}

/// The end of a group whose lease is lost.
struct Ending {
    kill_at: Instant,
    /// It must be over when the trust window is: no other holder of the name is known yet.
    is_own_clock: bool,
    is_killed: bool,
}

impl Ending {
    /// Checks whether it is time for SIGKILL, with so much trust left. The first clock does not
    /// count a suspend, the second does.
    fn is_due(&self, left: Duration) -> bool {
        Instant::now() >= self.kill_at || (self.is_own_clock && left.is_zero())
    }
}

impl Killer {
    pub(crate) fn new(group: pid_t, grace: Duration) -> Self {
        Killer { group, grace, ending: None }
    }

    /// Checks whether the group was told to end.
    pub(crate) fn has_begun(&self) -> bool {
        self.ending.is_some()
    }

    /// Does the work that is due. Returns why the lease is lost when it begins to end the group.
    pub(crate) fn poll(&mut self, lease: &LossSignal) -> Option<Loss> {
        let left = lease.trusted_for();
        match &mut self.ending {
            None if left <= self.grace => return Some(self.lost(lease)),
            Some(ending) if !ending.is_killed && ending.is_due(left) => {
                ending.is_killed = true;
                signal_group(self.group, SIGKILL);
            }
            _ => {}
        }
        None
    }

    /// Ends a command whose lease is lost or about to be: SIGTERM now, SIGKILL after the grace.
    /// Where only our own window is running out, SIGKILL comes at its end.
    fn lost(&mut self, lease: &LossSignal) -> Loss {
        let reason = lease.reason().unwrap_or(Loss::Expired);
        let is_own_clock = matches!(reason, Loss::Expired) || reason.may_pass();
        let left = lease.trusted_for().min(self.grace);
        self.begin(if is_own_clock { left } else { self.grace }, is_own_clock);
        reason
    }

    /// Ends the group because an operator wants it: SIGTERM now, SIGKILL after the grace.
    pub(crate) fn end(&mut self) {
        if !self.has_begun() {
            self.begin(self.grace, false);
        }
    }

    fn begin(&mut self, time: Duration, is_own_clock: bool) {
        signal_group(self.group, SIGTERM);
        // One that is stopped would not notice.
        signal_group(self.group, SIGCONT);
        let kill_at = Instant::now() + time;
        self.ending = Some(Ending { kill_at, is_own_clock, is_killed: false });
    }

    /// Returns how long the loop may sleep if no event comes.
    pub(crate) fn idle_time(&self, lease: &LossSignal) -> Duration {
        let next = match &self.ending {
            None => lease.trusted_for().saturating_sub(self.grace),
            Some(ending) if !ending.is_killed => {
                ending.kill_at.saturating_duration_since(Instant::now())
            }
            Some(_) => LONGEST_WAIT,
        };
        next.min(LONGEST_WAIT)
    }
}

/// Returns the grace between SIGTERM and SIGKILL for a lease of this length, if none is given.
pub(crate) fn default_grace(ttl: Duration) -> Duration {
    (ttl / 4).min(Duration::from_secs(5))
}
