//! A real PostgreSQL on loopback, with standbys, that is killed, frozen, promoted and started again.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::rig::tell;

/// A server, which ends with the value.
pub struct Postgres {
    child: Option<Child>,
    port: u16,
    data: PathBuf,
    folder: TempDir,
}

/// Returns the folder of its programs, if it is installed.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let folders = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    folders.filter(|folder| folder.join("initdb").exists()).max()
}

/// Checks whether PostgreSQL is installed, and says so if not.
pub fn is_installed() -> bool {
    if programs().is_none() {
        tell("SKIPPED: PostgreSQL is not installed");
    }
    programs().is_some()
}

/// A program of PostgreSQL, which refuses to run as root.
fn program(name: &str) -> Command {
    let path = programs().expect("it is installed").join(name);
    // SAFETY: it takes no argument and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Command::new(path);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(path);
    command
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    output
}

/// A folder that the user of the server may write.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
    // SAFETY: it takes no argument and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        run(Command::new("chown").arg("postgres").arg(folder.path()));
    }
    folder
}

impl Postgres {
    /// Returns a server that tests use together, each in schemas of its own. It ends with its last user.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().expect("no panic");
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Postgres::start());
            *shared = Arc::downgrade(&server);
            server
        })
    }

    /// Starts a server, and waits until it answers.
    pub fn start() -> Self {
        let folder = folder();
        let data = folder.path().join("data");
        let mut initdb = program("initdb");
        initdb.args(["-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"]);
        run(initdb.arg("-D").arg(&data).current_dir(folder.path()));
        let mut server = Postgres { child: None, port: free_port(), data, folder };
        server.spawn();
        server
    }

    /// Adds lines to its configuration, for the next start or reload.
    pub fn configure(&self, lines: &str) {
        let file = self.data.join("postgresql.auto.conf");
        let before = fs::read_to_string(&file).unwrap_or_default();
        fs::write(&file, format!("{before}\n{lines}\n")).expect("its configuration");
    }

    /// Makes a standby of this server, and waits until it streams.
    pub fn standby(&self) -> Self {
        let folder = folder();
        let data = folder.path().join("data");
        let mut backup = program("pg_basebackup");
        backup.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres"]);
        backup.args(["-R", "-X", "stream", "--checkpoint=fast", "--no-sync", "-D"]).arg(&data);
        run(backup.current_dir(folder.path()));
        let mut standby = Postgres { child: None, port: free_port(), data, folder };
        standby.spawn();
        standby
    }

    /// Starts the server, which is not running, and waits until it answers.
    pub fn spawn(&mut self) {
        let log = fs::File::create(self.folder.path().join("log")).expect("a log");
        let mut server = program("postgres");
        server.arg("-D").arg(&self.data).arg("-k").arg(self.folder.path());
        server.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        server.args(["-c", "max_connections=100", "-c", "dynamic_shared_memory_type=mmap"]);
        server.current_dir(self.folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
        self.child = Some(server.stderr(log).spawn().expect("it starts"));
        self.wait("SELECT 1");
    }

    /// Waits until a statement succeeds.
    pub fn wait(&self, sql: &str) {
        let start = Instant::now();
        while self.query(sql).is_none() {
            let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert!(start.elapsed() < Duration::from_secs(30), "{log}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The URL of this server.
    pub fn url(&self, schema: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres?schema={schema}", self.port)
    }

    /// Its host and port.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Gives it a copy of a file that only it may read, and returns where that is.
    pub fn give(&self, file: &Path) -> PathBuf {
        let copy = self.folder.path().join(file.file_name().expect("a name"));
        fs::copy(file, &copy).expect("a copy");
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).expect("permissions");
        // SAFETY: it takes no argument and cannot fail.
        if unsafe { libc::geteuid() } == 0 {
            run(Command::new("chown").arg("postgres").arg(&copy));
        }
        copy
    }

    /// Runs SQL past all of Litelease, and returns what it printed, or nothing if it failed.
    pub fn query(&self, sql: &str) -> Option<String> {
        let mut psql = program("psql");
        psql.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres"]);
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-c", sql]).env("PGCONNECT_TIMEOUT", "1");
        let output = psql.current_dir(self.folder.path()).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    }

    /// Runs SQL that must succeed.
    #[track_caller]
    pub fn sql(&self, sql: &str) -> String {
        self.query(sql).unwrap_or_else(|| panic!("{sql} fails"))
    }

    /// Makes a standby the primary.
    pub fn promote(&self) {
        assert_eq!(self.sql("SELECT pg_promote()"), "t");
    }

    /// Stops all its processes, or lets them go on.
    pub fn freeze(&self, frozen: bool) {
        let Some(child) = &self.child else { return };
        let server = child.id();
        let children = fs::read_to_string(format!("/proc/{server}/task/{server}/children"));
        let children = children.unwrap_or_default();
        let children = children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
        let signal = if frozen { libc::SIGSTOP } else { libc::SIGCONT };
        for pid in [server as i32].into_iter().chain(children) {
            // SAFETY: these are our child, which was not waited for, and its children.
            unsafe { libc::kill(pid, signal) };
        }
    }

    /// Ends it as a crash does: at once, without writing anything.
    pub fn crash(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        self.freeze(false);
        // SAFETY: the process is a child of ours that was not waited for.
        unsafe { libc::kill(child.id() as i32, libc::SIGQUIT) };
        let _ = child.wait();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.freeze(false);
        self.crash();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its number").port()
}
