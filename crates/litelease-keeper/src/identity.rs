//! Owner texts that no two holds share, that tell which process it was, and by which its death can be proved.
//!
//! A death counts as proved only where nothing else can explain what is seen. Everything else is unknown, and then a
//! lease ends when its time is up.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::process::{self, Seen};

/// Which process holds a lease, as its owner text tells:
/// `HOST pid 4711 start 8473 boot 5f0c… pidns 4026531836 timens 4026531834 hold 0193…`.
///
/// The last word is unique to one acquisition; it starts with its time.
///
/// ```
/// # use litelease_keeper::{Identity, HolderKind, Liveness};
/// let me = Identity::new(HolderKind::Hold);
/// let read = Identity::parse(&me.to_string()).unwrap();
/// assert_eq!(read, me);
/// assert_eq!((read.pid, read.is_dead()), (std::process::id(), false));
/// assert!(Identity::parse("worker-a").is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The host's name.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// When that process started, in the kernel's ticks since boot: a number that is used again later belongs
    /// to another process.
    pub start: Option<u64>,
    /// Where that process can be found, and what it is to the lease. Not in texts of systems that do not tell.
    pub holder: Option<(PidScope, HolderKind)>,
    /// 32 hex digits, unique to this acquisition.
    pub unique: String,
}

/// Where a process number and a start time mean something: numbers are given per pid namespace, start times are
/// counted from boot and shown as the time namespace of the reader has them.
///
/// ```
/// # use litelease_keeper::PidScope;
/// assert_eq!(PidScope::here(), PidScope::here());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PidScope {
    /// The kernel's id of the boot.
    pub boot: String,
    /// The inode of the pid namespace.
    pub pid_namespace: u64,
    /// The inode of the time namespace; 0 where the kernel has none.
    pub time_namespace: u64,
}

/// What a process is to a lease that names it.
///
/// ```
/// # use litelease_keeper::{Identity, HolderKind};
/// let supervisor = Identity::new(HolderKind::Run { group: 4711 });
/// # #[cfg(target_os = "linux")]
/// assert!(supervisor.to_string().contains(" group 4711 run "));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderKind {
    /// It holds the lease, and nobody does when it has ended.
    Hold,
    /// It holds the lease for a process group that does the work: nobody does when both have ended.
    Run {
        /// The number of the group.
        group: u32,
    },
    /// It has called a program that claimed the lease. What happens with the lease is not known.
    Claim,
    /// It has made a lock that may be unlocked by another process.
    Lock,
}

/// Whether the process of an identity is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It is.
    Alive,
    /// It is not: it ended, and so has its group, if it had one.
    Dead,
    /// Nobody can tell from here: it is on another host or in another container, or this system does not say.
    Unknown,
}

impl Identity {
    /// This process, for one acquisition.
    pub fn new(kind: HolderKind) -> Self {
        Identity::of(std::process::id(), kind)
    }

    /// The process that has started this one, for a program that claims on behalf of its caller.
    pub fn of_parent() -> Self {
        Identity::of(std::os::unix::process::parent_id(), HolderKind::Claim)
    }

    fn of(pid: u32, kind: HolderKind) -> Self {
        let scope = PidScope::here();
        // Without a scope, the start might be another process's, by another numbering.
        let start = scope.as_ref().and_then(|_| process::start_of(pid));
        let holder = start.and(scope).map(|scope| (scope, kind));
        Identity { host: host(), pid, start, holder, unique: unique() }
    }

    /// Reads an owner text that was written by [`Identity`], in whichever language. Texts of earlier versions tell the
    /// process, and nothing by which its death could be proved.
    pub fn parse(owner: &str) -> Option<Self> {
        let words: Vec<&str> = owner.split(' ').collect();
        let (&unique, words) = words.split_last()?;
        let is_unique = unique.len() == 32 && unique.bytes().all(|byte| byte.is_ascii_hexdigit());
        let [host, "pid", pid, words @ ..] = words else { return None };
        let (start, holder) = match words {
            [] => (None, None),
            ["start", start] => (start.parse().ok(), None),
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

    /// When it was acquired, in Unix milliseconds, if the text tells.
    pub fn since_ms(&self) -> Option<i64> {
        self.start?;
        i64::from_str_radix(self.unique.get(..12)?, 16).ok()
    }

    /// Whether that process is still there.
    ///
    /// It is dead if the system knows no such process, if the number is another process's by now, or if all of its
    /// threads have ended. A process group must have ended, too.
    pub fn liveness(&self) -> Liveness {
        let (Some((scope, kind)), Some(start)) = (&self.holder, self.start) else {
            return Liveness::Unknown;
        };
        if self.host != host() {
            return Liveness::Unknown;
        }
        if PidScope::here().as_ref() != Some(scope) {
            return Liveness::Unknown;
        }
        match (process::look_at(self.pid, start), *kind) {
            (Seen::Alive, _) => Liveness::Alive,
            (Seen::Ended, HolderKind::Run { group }) if !process::is_group_gone(group) => {
                Liveness::Unknown
            }
            (Seen::Ended, _) => Liveness::Dead,
            (Seen::Nothing, _) => Liveness::Unknown,
        }
    }

    /// Whether nobody holds a lease any more that has this owner text: the process was the holder, and it is dead.
    ///
    /// Never for a process that merely claimed it for others, such as a script's shell.
    pub fn is_dead(&self) -> bool {
        let is_holder = matches!(self.holder, Some((_, HolderKind::Hold | HolderKind::Run { .. })));
        // Most holders are alive, and that is cheaper to see than where they are.
        let has_ended = |start| process::look_at(self.pid, start) == Seen::Ended;
        is_holder && self.start.is_some_and(has_ended) && self.liveness() == Liveness::Dead
    }
}

impl PidScope {
    /// Returns the scope of this process, if the system tells and its /proc shows the processes of this scope.
    pub fn here() -> Option<Self> {
        process::scope()
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

/// 32 hex digits that are never given twice: the time in milliseconds, and 80 random bits.
///
/// ```
/// # use litelease_keeper::unique;
/// assert_eq!(unique().len(), 32);
/// assert_ne!(unique(), unique());
/// ```
pub fn unique() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // No system without entropy is known; then process and nanoseconds must do.
    let random = random().unwrap_or(u128::from(std::process::id()) << 64 | since.as_nanos());
    let low = random & ((1 << 80) - 1);
    format!("{:012x}{low:020x}", since.as_millis() & ((1 << 48) - 1))
}

/// Returns 128 random bits from the system.
fn random() -> Option<u128> {
    let mut bytes = [0u8; 16];
    // With musl, the libc crate has only the first of the two.
    #[cfg(target_os = "linux")]
    // SAFETY: the buffer is ours, and as long as is said.
    let is_filled = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) } == 16;
    #[cfg(not(target_os = "linux"))]
    // SAFETY: the buffer is ours, and as long as is said.
    let is_filled = unsafe { libc::getentropy(bytes.as_mut_ptr().cast(), bytes.len()) } == 0;
    is_filled.then(|| u128::from_le_bytes(bytes))
}

/// The host's name, as one word.
fn host() -> String {
    let mut name = [0u8; 256];
    // SAFETY: the buffer is ours, and its last byte stays 0.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
    let name = String::from_utf8_lossy(&name[..end]).replace(char::is_whitespace, "-");
    if name.is_empty() { "localhost".into() } else { name }
}
