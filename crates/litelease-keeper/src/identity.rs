//! Owner texts that no two holds share, and that tell which process it was.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Which process holds a lease, as its owner text tells: `HOST pid 4711 start 8473 0193…`.
///
/// The last word is unique to one acquisition; it starts with its time.
///
/// ```
/// # use litelease_keeper::{Identity, Liveness};
/// let me = Identity::new();
/// let read = Identity::parse(&me.to_string()).unwrap();
/// assert_eq!((read.pid, read.liveness()), (std::process::id(), Liveness::Alive));
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
    /// 32 hex digits, unique to this acquisition.
    pub unique: String,
}

/// Whether the process of an identity is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It is.
    Alive,
    /// It is not: it ended, and its lease will run out.
    Dead,
    /// It is on another host, or this system does not tell.
    Unknown,
}

impl Identity {
    /// This process, for one acquisition.
    #[allow(clippy::new_without_default)] // each one is another
    pub fn new() -> Self {
        Identity::of(std::process::id())
    }

    /// The process that has started this one, for a program that claims on behalf of its caller.
    pub fn of_parent() -> Self {
        Identity::of(std::os::unix::process::parent_id())
    }

    fn of(pid: u32) -> Self {
        Identity { host: host(), pid, start: start_of(pid), unique: unique() }
    }

    /// Reads an owner text that was written by [`Identity`], or by the Python package.
    pub fn parse(owner: &str) -> Option<Self> {
        let words: Vec<&str> = owner.split(' ').collect();
        let (host, pid, start, unique) = match words.as_slice() {
            [host, "pid", pid, "start", start, unique] => (host, pid, start.parse().ok(), unique),
            [host, "pid", pid, unique] => (host, pid, None, unique),
            _ => return None,
        };
        let is_unique = unique.len() == 32 && unique.bytes().all(|byte| byte.is_ascii_hexdigit());
        let pid = pid.parse().ok()?;
        is_unique.then(|| Identity { host: (*host).into(), pid, start, unique: (*unique).into() })
    }

    /// When it was acquired, in Unix milliseconds, if the text tells.
    pub fn since_ms(&self) -> Option<i64> {
        self.start?;
        i64::from_str_radix(self.unique.get(..12)?, 16).ok()
    }

    /// Whether that process is still there.
    pub fn liveness(&self) -> Liveness {
        if self.host != host() || !cfg!(target_os = "linux") {
            return Liveness::Unknown;
        }
        match (start_of(self.pid), self.start) {
            (None, _) => Liveness::Dead,
            (Some(now), Some(then)) if now != then => Liveness::Dead,
            (Some(_), _) => Liveness::Alive,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pid {} ", self.host, self.pid)?;
        if let Some(start) = self.start {
            write!(f, "start {start} ")?;
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

/// When a process started, in ticks since boot: the 22nd field of its `stat`. A zombie has ended.
fn start_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, with anything in it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}
