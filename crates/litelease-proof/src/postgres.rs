//! A real PostgreSQL on loopback, with standbys, that is killed, frozen, promoted and started
//! again.

use std::fs;
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::believers::{clock, forget_clock};
use crate::rig::{free_port, report};

/// A server, which ends with the value.
pub struct Postgres {
    child: Option<Child>,
    port: u16,
    data: PathBuf,
    folder: TempDir,
    /// How far its clock is ahead, as faketime has it.
    clock: &'static str,
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
        report("SKIPPED: PostgreSQL is not installed");
    }
    programs().is_some()
}

/// A program of PostgreSQL.
fn program(name: &str) -> Command {
    program_with(&[], name)
}

/// The same with variables, which only the program itself sees.
fn program_with(variables: &[String], name: &str) -> Command {
    as_postgres(variables, programs().expect("it is installed").join(name))
}

/// A program that refuses to run as root.
fn as_postgres(variables: &[String], path: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("env");
    // SAFETY: it takes no argument and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "env"]);
    }
    command.args(variables).arg(path);
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
    /// Returns a server that tests use together, each in schemas of its own. It ends with its last
    /// user.
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
        let mut server = Postgres { child: None, port: free_port(), data, folder, clock: "" };
        server.spawn();
        server
    }

    /// Adds lines to its configuration, for the next start or reload.
    pub fn configure(&self, lines: &str) {
        let file = self.data.join("postgresql.auto.conf");
        let before = fs::read_to_string(&file).unwrap_or_default();
        fs::write(&file, format!("{before}\n{lines}\n")).expect("its configuration");
    }

    /// Makes a user who is asked for a password, and starts the server again.
    pub fn add_user(&mut self, name: &str, password: &str) {
        self.sql(&format!("CREATE ROLE {name} LOGIN PASSWORD {}", literal(password)));
        self.sql(&format!("GRANT CREATE ON DATABASE postgres TO {name}"));
        let file = self.data.join("pg_hba.conf");
        let before = fs::read_to_string(&file).expect("its rules");
        let rule = format!("host all {name} 127.0.0.1/32 scram-sha-256");
        fs::write(&file, format!("{rule}\n{before}")).expect("its rules");
        self.crash();
        self.spawn();
    }

    /// Makes a standby of this server, and waits until it answers.
    pub fn standby(&self) -> Self {
        self.standby_at(free_port(), "", "")
    }

    /// Makes a standby on a port, with lines of configuration, and with a clock that is ahead, as
    /// faketime has it.
    pub fn standby_at(&self, port: u16, lines: &str, clock: &'static str) -> Self {
        let folder = folder();
        let data = folder.path().join("data");
        let mut backup = program("pg_basebackup");
        backup.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres"]);
        backup.args(["-R", "-X", "stream", "--checkpoint=fast", "--no-sync", "-D"]).arg(&data);
        run(backup.current_dir(folder.path()));
        let mut standby = Postgres { child: None, port, data, folder, clock };
        standby.configure(lines);
        standby.spawn();
        standby
    }

    /// Starts the server, which is not running, and waits until it answers.
    pub fn spawn(&mut self) {
        let log = fs::File::create(self.folder.path().join("log")).expect("a log");
        let mut server = program_with(&clock(self.clock), "postgres");
        server.arg("-D").arg(&self.data).arg("-k").arg(self.folder.path());
        server.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        server.args(["-c", "max_connections=100", "-c", "dynamic_shared_memory_type=mmap"]);
        server.current_dir(self.folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
        self.child = Some(server.stderr(log).spawn().expect("it starts"));
        self.wait("SELECT 1");
    }

    /// Crashes it, and starts it again on another port.
    pub fn start_at(&mut self, port: u16) {
        self.crash();
        self.port = port;
        self.spawn();
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

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
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
        self.try_sql(sql).ok()
    }

    /// Runs SQL that must succeed.
    #[track_caller]
    pub fn sql(&self, sql: &str) -> String {
        self.try_sql(sql).unwrap_or_else(|error| panic!("{sql} fails: {error}"))
    }

    fn try_sql(&self, sql: &str) -> Result<String, String> {
        let mut psql = program("psql");
        psql.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres"]);
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-c", sql]).env("PGCONNECT_TIMEOUT", "1");
        let output = psql.current_dir(self.folder.path()).output().expect("psql runs");
        let text = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => {
                let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
                Err(format!("{}\n{log}", text(&output.stderr)))
            }
        }
    }

    /// Dumps its database, drops what has these schemas in it, and restores them.
    pub fn dump_and_restore(&self, schemas: &[&str]) {
        let file = self.folder.path().join("dump");
        let connect = |name| {
            let mut command = program(name);
            command.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres"]);
            command.current_dir(self.folder.path());
            command
        };
        let schema = schemas.iter().map(|schema| format!("--schema={schema}"));
        run(connect("pg_dump").args(schema).arg("-f").arg(&file));
        schemas.iter().for_each(|schema| drop(self.sql(&format!("DROP SCHEMA {schema} CASCADE"))));
        run(connect("psql").args(["-Xq", "-v", "ON_ERROR_STOP=1", "-f"]).arg(&file));
    }

    /// Opens a session of `psql`, as a user.
    pub fn session(&self, user: &str) -> Session {
        Session::open(self.port, user, self.folder.path())
    }

    /// Makes a standby the primary.
    pub fn promote(&self) {
        // One that waited would have a snapshot, and be in the way of what is still to be applied.
        assert_eq!(self.sql("SELECT pg_promote(false)"), "t");
        self.wait("SELECT 1 / (NOT pg_is_in_recovery())::int");
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

    /// Stops the processes that serve our connections, or lets them go on. New connections get new
    /// ones.
    pub fn freeze_sessions(&self, pids: &[i32], frozen: bool) {
        let signal = if frozen { libc::SIGSTOP } else { libc::SIGCONT };
        // SAFETY: no pointers are involved.
        pids.iter().for_each(|pid| _ = unsafe { libc::kill(*pid, signal) });
    }

    /// Returns the processes that serve our connections.
    pub fn sessions(&self) -> Vec<i32> {
        let sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'litelease'";
        let pids = self.query(sql).unwrap_or_default();
        pids.lines().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Ends it as a crash does: at once, without writing anything.
    pub fn crash(&mut self) {
        // A frozen process takes no signal but SIGKILL, and the server must also end its children.
        self.freeze(false);
        let Some(mut child) = self.child.take() else { return };
        // SAFETY: the process is a child of ours that was not waited for.
        unsafe { libc::kill(child.id() as i32, libc::SIGQUIT) };
        let _ = child.wait();
        forget_clock(child.id());
    }

    /// Crashes it, and starts it again with a clock that is ahead, as faketime has it.
    pub fn set_clock(&mut self, clock: &'static str) {
        self.crash();
        self.clock = clock;
        self.spawn();
    }
}

/// A session that stays open: a `psql` that is told what to do line by line.
pub struct Session {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<PipeReader>,
}

/// What `psql` prints after each statement.
const DONE: &str = "-- done --";

impl Session {
    /// Opens a session with a server on loopback, or with a pooler in front of one.
    pub fn open(port: u16, user: &str, folder: &Path) -> Self {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let mut psql = program("psql");
        psql.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", user, "-d", "postgres"]);
        psql.args(["-XAtq", "-v", "VERBOSITY=verbose"]).current_dir(folder).env("LC_ALL", "C");
        psql.stdin(Stdio::piped()).stdout(writer.try_clone().expect("a pipe")).stderr(writer);
        let mut child = psql.spawn().expect("it starts");
        let input = child.stdin.take();
        Session { child, input, output: BufReader::new(reader) }
    }

    /// Begins a statement, which may have to wait.
    pub fn send(&mut self, sql: &str) {
        let input = self.input.as_mut().expect("it is open");
        writeln!(input, "{sql};\n\\echo {DONE}").expect("it reads");
    }

    /// Waits for the answer to what was sent: what it printed, or its error.
    pub fn answer(&mut self) -> Result<String, String> {
        let (mut lines, mut is_error) = (Vec::new(), false);
        loop {
            let mut line = String::new();
            let bytes = self.output.read_line(&mut line).expect("text");
            if bytes == 0 || line.trim_end() == DONE {
                let text = lines.join("\n");
                return if is_error || bytes == 0 { Err(text) } else { Ok(text) };
            }
            is_error |= ["ERROR:", "FATAL:"].iter().any(|word| line.starts_with(word));
            lines.push(line.trim_end().to_owned());
        }
    }

    /// Runs a statement.
    pub fn run(&mut self, sql: &str) -> Result<String, String> {
        self.send(sql);
        self.answer()
    }

    /// Runs statements that must succeed.
    #[track_caller]
    pub fn sql(&mut self, sql: &str) -> String {
        self.run(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Returns the number of its process in the server, by which others see what it waits for.
    pub fn pid(&mut self) -> String {
        self.sql("SELECT pg_backend_pid()")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// A pooler in front of a server, which gives a connection to another client after each
/// transaction.
pub struct Pooler {
    child: Child,
    port: u16,
    folder: TempDir,
}

impl Pooler {
    /// Starts it with two connections, and waits until it answers. Says so if it is not installed.
    pub fn start(server: &Postgres) -> Option<Self> {
        let path = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"]
            .into_iter()
            .find(|path| Path::new(path).exists());
        let Some(path) = path else {
            report("SKIPPED: a transaction pooler, because pgbouncer is missing");
            return None;
        };
        let (folder, port) = (folder(), free_port());
        let config = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
             default_pool_size = 2\nserver_login_retry = 1\nignore_startup_parameters = extra_float_digits\n",
            server.port
        );
        fs::write(&config, text).expect("its configuration");
        let mut command = as_postgres(&[], path);
        command.arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.current_dir(folder.path()).spawn().expect("it starts");
        let pooler = Pooler { child, port, folder };
        let start = Instant::now();
        while pooler.session().run("SELECT 1").is_err() {
            assert!(start.elapsed() < Duration::from_secs(30), "pgbouncer does not answer");
            thread::sleep(Duration::from_millis(50));
        }
        Some(pooler)
    }

    /// The URL of leases behind it.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    /// Opens a session through it.
    pub fn session(&self) -> Session {
        Session::open(self.port, "postgres", self.folder.path())
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A text as SQL writes it.
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.freeze(false);
        self.crash();
    }
}
