//! Owner texts: unique to one hold, naming its process, and sufficient to prove that the process
//! is dead.
//!
//! A process counts as dead only if nothing else can explain what the system reports. Otherwise
//! its state is unknown, and the lease expires normally.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use litelease_sys::{
    Liveness, PidScope, ProcessGroup, host_name, liveness_of, parent_id, random_bytes, start_of,
};

/// The process that holds a lease, as written in the owner text:
/// `HOST pid 4711 start 8473 boot 5f0c… pidns 4026531836 timens 4026531834 hold 0193…`.
///
/// The last word is unique to one acquisition and starts with its time.
///
/// ```
/// # use litelease_hold::{Identity, HolderKind, Liveness};
/// let me = Identity::new(HolderKind::Hold);
/// let read = Identity::parse(&me.to_string()).unwrap();
/// assert_eq!(read, me);
/// assert_eq!((read.pid, read.is_dead()), (std::process::id(), false));
/// assert!(Identity::parse("worker-a").is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The host name.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// When the process started, in kernel ticks since boot. A process that was given the same
    /// number later started at another time.
    pub start: Option<u64>,
    /// The scope of the process number, and the role of the process. `None` on systems that do not
    /// provide the scope.
    pub holder: Option<(PidScope, HolderKind)>,
    /// 32 hex digits, unique to this acquisition.
    pub unique: String,
}

/// The role of the process that a lease names.
///
/// ```
/// # use litelease_hold::{Identity, HolderKind};
/// let supervisor = Identity::new(HolderKind::Run { group: 4711 });
/// # #[cfg(target_os = "linux")]
/// assert!(supervisor.to_string().contains(" group 4711 run "));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderKind {
    /// The process holds the lease. When it has ended, the lease has no holder.
    Hold,
    /// The process holds the lease for a process group that does the work. When both have ended,
    /// the lease has no holder.
    Run {
        /// The number of the group.
        group: u32,
    },
    /// The process has called a program that claimed the lease. Who uses the lease is unknown.
    Claim,
    /// The process has taken a lock that another process may unlock.
    Lock,
}

impl Identity {
    /// Returns the identity of this process, for one acquisition.
    pub fn new(kind: HolderKind) -> Self {
        Identity::of_process(std::process::id(), kind)
    }

    /// Returns the identity of the parent process, for a program that claims on behalf of its
    /// caller.
    pub fn of_parent() -> Self {
        Identity::of_process(parent_id(), HolderKind::Claim)
    }

    fn of_process(pid: u32, kind: HolderKind) -> Self {
        let scope = PidScope::here();
        // Without a scope, number and start time may be those of another process.
        let start = scope.as_ref().and_then(|_| start_of(pid));
        let holder = start.and(scope).map(|scope| (scope, kind));
        Identity { host: host_name(), pid, start, holder, unique: unique() }
    }

    /// Parses an owner text that was written by [`Identity`], in any language.
    pub fn parse(owner: &str) -> Option<Self> {
        let words: Vec<&str> = owner.split(' ').collect();
        let (&unique, words) = words.split_last()?;
        let is_unique = unique.len() == 32 && unique.bytes().all(|byte| byte.is_ascii_hexdigit());
        let [host, "pid", pid, words @ ..] = words else { return None };
        let (start, holder) = match words {
            [] => (None, None),
            ["start", start, "boot", boot, "pidns", pids, "timens", times, kind @ ..] => {
                let scope = PidScope {
                    boot: (*boot).into(),
                    pid_namespace: pids.parse().ok()?,
                    time_namespace: times.parse().ok()?,
                };
                (Some(start.parse().ok()?), Some((scope, HolderKind::parse(kind)?)))
            }
            _ => return None,
        };
        let (host, pid, unique) = ((*host).into(), pid.parse().ok()?, unique.into());
        is_unique.then_some(Identity { host, pid, start, holder, unique })
    }

    /// Returns when the lease was acquired, in Unix milliseconds.
    pub fn since_ms(&self) -> Option<i64> {
        i64::from_str_radix(self.unique.get(..12)?, 16).ok()
    }

    /// Checks whether the process is still running.
    ///
    /// It is dead if there is no such process, if the number belongs to another process by now, or
    /// if all of its threads have ended. Its process group, if any, must have ended, too.
    pub fn liveness(&self) -> Liveness {
        let (Some((scope, kind)), Some(start)) = (&self.holder, self.start) else {
            return Liveness::Unknown;
        };
        if self.host != host_name() || PidScope::here().as_ref() != Some(scope) {
            return Liveness::Unknown;
        }
        let liveness = liveness_of(self.pid, start);
        let is_left = |group| liveness == Liveness::Dead && !ProcessGroup::new(group).has_ended();
        match *kind {
            HolderKind::Run { group } if is_left(group) => Liveness::Unknown,
            _ => liveness,
        }
    }

    /// Checks whether the process holds the lease itself, as `hold` and `litelease run` write it.
    /// Only such owner texts are ever judged dead.
    pub fn is_holder(&self) -> bool {
        matches!(self.holder, Some((_, HolderKind::Hold | HolderKind::Run { .. })))
    }

    /// Checks whether a lease with this owner text has lost its holder: the process was the
    /// holder, and it is dead.
    ///
    /// Always false for a process that only claimed the lease for others, such as a script's
    /// shell.
    pub fn is_dead(&self) -> bool {
        // Most holders are alive, and that is cheaper to check than the scope.
        let has_ended = |start| liveness_of(self.pid, start) == Liveness::Dead;
        self.is_holder() && self.start.is_some_and(has_ended) && self.liveness() == Liveness::Dead
    }
}

impl HolderKind {
    fn parse(words: &[&str]) -> Option<Self> {
        Some(match words {
            ["hold"] => HolderKind::Hold,
            ["group", group, "run"] => HolderKind::Run { group: group.parse().ok()? },
            ["claim"] => HolderKind::Claim,
            ["lock"] => HolderKind::Lock,
            _ => return None,
        })
    }
}

impl fmt::Display for HolderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HolderKind::Hold => f.write_str("hold"),
            HolderKind::Run { group } => write!(f, "group {group} run"),
            HolderKind::Claim => f.write_str("claim"),
            HolderKind::Lock => f.write_str("lock"),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pid {} ", self.host, self.pid)?;
        if let Some(start) = self.start {
            write!(f, "start {start} ")?;
        }
        if let Some((scope, kind)) = &self.holder {
            let PidScope { boot, pid_namespace, time_namespace } = scope;
            write!(f, "boot {boot} pidns {pid_namespace} timens {time_namespace} {kind} ")?;
        }
        f.write_str(&self.unique)
    }
}

/// Shortens an owner text for people: host and process, without the parts that only programs
/// compare. Any other text stays as it is.
///
/// ```
/// # use litelease_hold::{HolderKind, Identity, short_owner};
/// let me = Identity::new(HolderKind::Hold);
/// assert_eq!(short_owner(&me.to_string()), format!("{} pid {}", me.host, me.pid));
/// assert_eq!(short_owner("worker-a"), "worker-a");
/// ```
pub fn short_owner(owner: &str) -> String {
    match Identity::parse(owner) {
        Some(Identity { host, pid, .. }) => format!("{host} pid {pid}"),
        None => owner.to_owned(),
    }
}

/// Returns 32 hex digits that are unique: the time in milliseconds, and 80 random bits.
///
/// ```
/// # use litelease_hold::unique;
/// assert_eq!(unique().len(), 32);
/// assert_ne!(unique(), unique());
/// ```
pub fn unique() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Without entropy (we know of no such system) the process number and the nanoseconds must do.
    let random = random_bytes().map(u128::from_le_bytes);
    let random = random.unwrap_or(u128::from(std::process::id()) << 64 | since.as_nanos());
    let low = random & ((1 << 80) - 1);
    format!("{:012x}{low:020x}", since.as_millis() & ((1 << 48) - 1))
}
