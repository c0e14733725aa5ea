//! Real files and real processes for tests, and the one way to wait for something.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use litelease::rusqlite::{Connection, Error as SqliteError};
use litelease::{ClaimResult, Lease, Litelease};
use tempfile::TempDir;

/// A ttl that no test outlives.
pub const LONG: Duration = Duration::from_secs(3600);

/// A temporary folder with a database file in it, removed on drop.
pub struct TestFolder {
    /// The folder.
    pub folder: TempDir,
    /// The database file.
    pub file: PathBuf,
    journal: &'static str,
}

impl TestFolder {
    /// Creates the folder. The file does not exist yet; connections set this journal mode.
    pub fn new(journal: &'static str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("test.sqlite3");
        TestFolder { folder, file, journal }
    }

    /// Opens a connection and checks its journal mode: SQLite may silently keep another one.
    pub fn connect(&self, busy_timeout: Duration) -> Connection {
        let connection = Connection::open(&self.file).expect("the file opens");
        connection.busy_timeout(busy_timeout).expect("a busy timeout");
        let set = format!("PRAGMA journal_mode = {}", self.journal);
        let mode: String =
            connection.query_row(&set, [], |row| row.get(0)).expect("a journal mode");
        assert_eq!(mode, self.journal.to_lowercase(), "the journal mode did not take");
        connection
    }

    /// Opens a handle on a connection of its own, and creates the tables.
    pub fn open(&self, busy_timeout: Duration) -> Litelease {
        let db = Litelease::from_connection(self.connect(busy_timeout));
        db.bootstrap().expect("bootstrap");
        db
    }
}

/// Opens a database in memory, and creates the tables.
pub fn memory() -> Litelease {
    let db = Litelease::from_connection(Connection::open_in_memory().expect("a database"));
    db.bootstrap().expect("bootstrap");
    db
}

/// Returns the lease of a claim that must have been granted.
#[track_caller]
pub fn acquired(claimed: litelease::Result<ClaimResult>) -> Lease {
    match claimed {
        Ok(ClaimResult::Acquired(lease)) => lease,
        other => panic!("not acquired: {other:?}"),
    }
}

/// Returns the extended code of an error that must be SQLite's own.
#[track_caller]
pub fn sqlite_code<T: std::fmt::Debug>(result: litelease::Result<T>) -> i32 {
    match result {
        Err(litelease::Error::Sqlite(SqliteError::SqliteFailure(error, _))) => error.extended_code,
        other => panic!("not an error of SQLite: {other:?}"),
    }
}

/// Returns the system clock in milliseconds, for comparing with stored times.
pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// Starts the worker program with these arguments; its input and output are pipes.
pub fn worker(program: &str, words: &[&str], file: &Path) -> Child {
    let mut command = Command::new(program);
    command.arg(words[0]).arg(file).args(&words[1..]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the worker starts")
}

/// Returns the path of the loadable extension, and builds it if needed.
pub fn extension() -> PathBuf {
    built("litelease-extension").join(format!(
        "{}litelease_ext{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    ))
}

/// Returns the path of the command `litelease`, and builds it if needed.
pub fn litelease() -> PathBuf {
    static PATH: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    PATH.get_or_init(|| built("litelease-cli").join("litelease")).clone()
}

/// The options of cargo that this crate was built with: with others everything is built anew.
pub const PLANTED: &[&str] = match cfg!(planted) {
    true => &["--config", "build.rustc-workspace-wrapper='scripts/planted'"],
    false => &[],
};

/// Builds a package, and returns the folder with the result.
fn built(package: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(target, PathBuf::from);
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "-q", "-p", package, "--target-dir"]).arg(&target).args(PLANTED);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = cargo.current_dir(root).status().expect("cargo runs");
    assert!(built.success(), "{package} does not build");
    target.join("debug").canonicalize().expect("the target folder")
}

/// What a condition returns to [`eventually`]: `true` or `Some` ends the waiting.
pub trait Condition {
    /// What `Some` contains.
    type Found;

    /// Returns what was found, or `None` to go on waiting.
    fn found(self) -> Option<Self::Found>;
}

impl Condition for bool {
    type Found = ();

    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Condition for Option<T> {
    type Found = T;

    fn found(self) -> Option<T> {
        self
    }
}

/// Calls `look` until it returns `true` or `Some`. Fails after a minute, enough for a slow machine.
#[track_caller]
pub fn eventually<C: Condition>(what: &str, mut look: impl FnMut() -> C) -> C::Found {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look().found() {
            return found;
        }
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Loads the extension into a connection.
pub fn load_extension(connection: &Connection, path: &Path) {
    // SAFETY: this is our own extension, and nothing else is loaded while loading is allowed.
    let loaded = unsafe {
        connection.load_extension_enable().expect("extensions can be allowed");
        connection.load_extension(path, None::<&str>)
    };
    connection.load_extension_disable().expect("extensions can be forbidden");
    loaded.expect("the extension loads");
}

/// Returns a port on loopback that no program listens at, for one that cannot be told to choose.
///
/// It is below those that the system gives to connections and to listeners at port 0: one of them
/// could take it before the program does.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let tries = NEXT.fetch_add(1, Ordering::Relaxed);
        // Each process begins elsewhere.
        let start = std::process::id().wrapping_mul(97);
        let port = 10_000 + (start.wrapping_add(tries) % 20_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Random numbers from a printed seed, so that a failure can be repeated.
pub struct Dice(u64);

impl Dice {
    /// Takes the seed from `LITELEASE_SEED`, or from the clock.
    pub fn new(what: &str) -> Self {
        let given = std::env::var("LITELEASE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| now_ms().unsigned_abs());
        report(&format!("{what}: LITELEASE_SEED={seed}"));
        Dice(seed | 1)
    }

    /// Takes a number as the seed.
    pub fn from(seed: u64) -> Self {
        // Without mixing, small seeds would begin with small numbers.
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        (0..4).for_each(|_| _ = dice.below(2));
        dice
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        // xorshift64*: good enough for choosing moments.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit
    }
}

/// Prints a line even if the test passes.
pub fn report(line: &str) {
    use std::io::Write;
    // A closed standard error is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{line}");
}
