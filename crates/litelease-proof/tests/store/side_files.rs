//! The files that are made beside a database: who may use them, and what happens where something
//! else is in their place.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use litelease::{Gate, Litelease, SingleWriter, Tracker, WriterOptions};
use litelease_proof::command::{ended, kill, outcome};
use litelease_proof::rig::{eventually, litelease, report};
use litelease_proof::server::{Client, POOL};
use serde_json::{Value, json};

/// A user to run a command as: the number of the user, of their group, and of one more group.
#[derive(Clone, Copy, PartialEq)]
struct User(u32, u32, Option<u32>);

/// The user who runs the tests, which is root if other users can be become.
const ROOT: User = User(0, 0, None);
const ALICE: User = User(64_001, 64_001, None);
const BOB: User = User(64_002, 64_002, None);
/// A group that both may be in.
const STAFF: u32 = 64_100;

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0)
}

/// Says that a test needs root, where we are not.
fn may_not_become_others(what: &str) -> bool {
    let mut command = Command::new("setpriv");
    let is_able = command.args(["--reuid=64001", "--regid=64001", "--clear-groups", "true"]);
    let is_able = is_able.output().is_ok_and(|output| output.status.success());
    if !(is_root() && is_able) {
        report(&format!("SKIPPED: {what}, because nobody else can be become here"));
    }
    !(is_root() && is_able)
}

/// A folder with a file for leases in it, for commands of several users.
struct Shared {
    folder: tempfile::TempDir,
    file: PathBuf,
}

impl Shared {
    /// A folder of this mode. The file is not there yet.
    fn new(mode: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
        let file = folder.path().join("x.sqlite3");
        Shared { folder, file }
    }

    /// The same with an empty file of this mode in it.
    fn with_file(folder: u32, mode: u32) -> Self {
        let shared = Shared::new(folder);
        fs::write(&shared.file, "").unwrap();
        shared.set_mode(mode);
        shared
    }

    fn set_mode(&self, mode: u32) {
        fs::set_permissions(&self.file, Permissions::from_mode(mode)).unwrap();
    }

    /// Gives the folder and the file to a group.
    fn give_to_group(&self, group: u32, folder_mode: u32) {
        for path in [self.folder.path(), &self.file] {
            std::os::unix::fs::chown(path, None, Some(group)).unwrap();
        }
        // After the group: changing that takes the mode's bit for new files away.
        fs::set_permissions(self.folder.path(), Permissions::from_mode(folder_mode)).unwrap();
    }

    fn beside(&self, ending: &str) -> PathBuf {
        format!("{}{ending}", self.file.display()).into()
    }

    /// Runs a line of shell as a user, under an umask. `litelease` is on the path, and has the
    /// file.
    fn shell(&self, user: User, umask: &str, line: &str) -> Command {
        let User(uid, gid, group) = user;
        let mut command = match user {
            ROOT => Command::new("sh"),
            _ => {
                let mut command = Command::new("setpriv");
                command.args([format!("--reuid={uid}"), format!("--regid={gid}")]);
                match group {
                    Some(group) => command.arg(format!("--groups={group}")),
                    None => command.arg("--clear-groups"),
                };
                command.arg("sh");
                command
            }
        };
        let bin = litelease().parent().unwrap().display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        command.arg("-c").arg(format!("umask {umask}; {line}"));
        command.current_dir(self.folder.path()).env("PATH", format!("{bin}:{path}"));
        command.env("LITELEASE_DB", &self.file).env("HOME", self.folder.path());
        command.env_remove("XDG_STATE_HOME");
        command
    }

    fn run(&self, user: User, umask: &str, line: &str) -> (i32, String, String) {
        outcome(&ended(&mut self.shell(user, umask, line)))
    }

    /// One that is not waited for yet.
    fn start(&self, user: User, umask: &str, line: &str) -> Started {
        let mut command = self.shell(user, umask, line);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Started(Some(command.spawn().unwrap()))
    }

    /// What is beside the file, with mode and group.
    fn modes(&self) -> Vec<(String, u32, u32)> {
        let entries = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap());
        let mut modes: Vec<(String, u32, u32)> = entries
            .filter(|entry| entry.file_name().to_str().unwrap().starts_with("x.sqlite3"))
            .map(|entry| {
                let found = entry.metadata().unwrap();
                let name = entry.file_name().into_string().unwrap()["x.sqlite3".len()..].to_owned();
                (name, found.mode() & 0o777, found.gid())
            })
            .collect();
        modes.sort();
        modes
    }

    /// Waits until the files with these endings are all there, and answers what is there then.
    #[track_caller]
    fn once_there(&self, endings: &[&str]) -> Vec<(String, u32, u32)> {
        eventually(&format!("{endings:?}"), || {
            let modes = self.modes();
            let is_there = |ending: &&str| modes.iter().any(|(name, ..)| name == ending);
            endings.iter().all(is_there).then_some(modes)
        })
    }
}

/// A command that was started, and is ended with this.
struct Started(Option<Child>);

impl Started {
    #[track_caller]
    fn end(mut self) -> (i32, String, String) {
        outcome(&self.0.take().unwrap().wait_with_output().unwrap())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A server, asked to end when this is dropped, and its address.
struct Serving {
    _started: Started,
    client: Client,
}

fn serve(shared: &Shared, user: User, umask: &str) -> Serving {
    let log = format!("log-{}", user.0);
    let line = format!("exec litelease serve --listen 127.0.0.1:0 --log warn 2>>{log}");
    let mut started = shared.start(user, umask, &line);
    let mut said = String::new();
    let stdout = started.0.as_mut().unwrap().stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut said).unwrap();
    let address = said.trim().strip_prefix("listening at http://");
    let log = || fs::read_to_string(shared.folder.path().join(&log));
    let address = address.unwrap_or_else(|| panic!("{said:?} {:?}", log()));
    Serving { _started: started, client: Client::new(address.parse().unwrap()) }
}

/// Starts a server and stops it again, if it starts within half a minute: how it ended, and what it
/// said.
fn try_to_serve(shared: &Shared, user: User, words: &str) -> (i32, String, String) {
    let line = format!("exec timeout 30 litelease serve --listen 127.0.0.1:0 --log warn {words}");
    let mut started = shared.start(user, "022", &line);
    let child = started.0.as_mut().unwrap();
    let (pid, stdout) = (child.id() as i32, child.stdout.take().unwrap());
    let mut said = String::new();
    BufReader::new(stdout).read_line(&mut said).unwrap();
    let has_started = said.starts_with("listening");
    if has_started {
        kill(pid, libc::SIGTERM);
    }
    let (code, _, errors) = started.end();
    (if has_started { 0 } else { code }, said, errors)
}

/// Makes every side file that there is: two who want one name, three who want the write lock, and a
/// server.
fn use_everything(
    shared: &Shared,
    first: User,
    second: User,
    umask: &str,
) -> Vec<(String, u32, u32)> {
    let mut serving = serve(shared, first, umask);
    serving.client.register(9);
    // For as long as the files are looked at.
    let until = "until test -e done; do sleep 0.02; done";
    let holder = shared.start(first, umask, &format!("litelease run job -- sh -c '{until}'"));
    let writer = shared.start(first, umask, &format!("litelease write -- sh -c '{until}'"));
    shared.once_there(&[".lock"]);
    eventually("the name is held", || {
        (shared.run(first, umask, "litelease who job").0 == 0).then_some(())
    });
    let waits = [
        shared.start(second, umask, "litelease run -w 50s job -- true"),
        shared.start(second, umask, "litelease write -w 50s -- true"),
        shared.start(first, umask, "litelease write -w 50s -- true"),
    ];
    let endings =
        ["-wakeup", "-shm", "-wal", ".lock", ".lock.queue", ".high-water", ".serve.lock", ""];
    shared.once_there(&endings);
    // The process that makes one sets its mode a moment later, and so does its owner who finds that
    // the database is shared now.
    let deadline = Instant::now() + Duration::from_secs(20);
    let modes = loop {
        let modes = shared.modes();
        let wanted =
            |name: &str| if is_sqlites(name) { modes[0].1 } else { for_writers(modes[0].1) };
        if modes.iter().all(|(name, mode, _)| *mode == wanted(name)) || Instant::now() > deadline {
            break modes;
        }
        thread::sleep(Duration::from_millis(20));
    };
    fs::write(shared.folder.path().join("done"), "").unwrap();
    for started in [holder, writer].into_iter().chain(waits) {
        let (code, said, errors) = started.end();
        assert_eq!(code, 0, "{said} {errors}");
    }
    // The other user serves it next, and the high-water mark goes on.
    let token = serving.client.call("POST", "/borrow", &json!({"ttl": 60})).json()["token"].clone();
    drop(serving);
    let mut serving = serve(shared, second, umask);
    serving.client.register(9);
    let next = serving.client.call("POST", "/borrow", &json!({"ttl": 60})).json();
    assert!(next["token"].as_i64() > token.as_i64(), "{next}");
    fs::remove_file(shared.folder.path().join("done")).unwrap();
    modes
}

/// The database itself, and the files that SQLite gives its mode.
fn is_sqlites(ending: &str) -> bool {
    ["", "-wal", "-shm"].contains(&ending)
}

/// The mode of our side files beside a database of this mode: no class can only read.
fn for_writers(mode: u32) -> u32 {
    mode & 0o222 | (mode & 0o222) << 1
}

#[test]
fn what_litelease_creates_is_its_users_alone() {
    for umask in ["000", "022"] {
        let shared = Shared::new(0o755);
        for (name, mode, _) in use_everything(&shared, ROOT, ROOT, umask) {
            assert_eq!(mode, 0o600, "x.sqlite3{name} under umask {umask}");
        }
        // The file of the user's own, and the folders on the way to it.
        let line = "unset LITELEASE_DB; mkdir -m 755 .local; litelease run job -- true";
        assert_eq!(shared.run(ROOT, umask, line).0, 0);
        let own = shared.folder.path().join(".local/state");
        for (path, mode) in [("", 0o700), ("litelease", 0o700), ("litelease/leases.sqlite3", 0o600)]
        {
            let found = fs::metadata(own.join(path)).unwrap().mode() & 0o777;
            assert_eq!(found, mode, "{path} under umask {umask}");
        }
    }
    // What the crate makes of its own; a file of the app's is the app's affair.
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mode = |name: &str| fs::metadata(path(name)).unwrap().mode() & 0o777;
    let _ = Gate::open(path("gate")).unwrap().admit("printer", 1).unwrap();
    drop(Tracker::new(path("tracker")).unwrap().lock("books", Tracker::EXPIRE).unwrap());
    Litelease::open_own(path("own")).unwrap();
    symlink(path("target"), path("link")).unwrap();
    Litelease::open_own(path("link")).unwrap();
    Litelease::open(path("plain")).unwrap().bootstrap().unwrap();
    for name in ["gate", "tracker", "own", "target"] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
    assert_eq!(mode("plain"), 0o644 & !umask());
}

fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(line.trim(), 8).unwrap()
}

#[test]
fn only_classes_that_may_write_a_database_can_open_its_side_files_whatever_the_umask_is() {
    let cases = [
        (0o600, 0o600, "000"),
        (0o640, 0o600, "077"),
        (0o664, 0o660, "022"),
        (0o666, 0o666, "077"),
    ];
    for (mode, ours, umask) in cases {
        let shared = Shared::with_file(0o755, mode);
        for (name, found, _) in use_everything(&shared, ROOT, ROOT, umask) {
            let expected = if is_sqlites(&name) { mode } else { ours };
            assert_eq!(found, expected, "x.sqlite3{name} under umask {umask}");
        }
    }
}

#[test]
fn a_reader_of_the_database_cannot_hold_its_locks() {
    // Side files took the mode of the database, and flock needs only a file that can be read.
    if may_not_become_others("a reader who wants to hold the locks") {
        return;
    }
    let shared = Shared::with_file(0o755, 0o644);
    let files = use_everything(&shared, ROOT, ROOT, "022");
    for (name, ..) in files.iter().filter(|(name, ..)| !is_sqlites(name)) {
        let (code, _, said) = shared.run(BOB, "022", &format!("flock -n x.sqlite3{name} true"));
        assert!(code != 0 && said.contains("Permission denied"), "x.sqlite3{name}: {said}");
    }
    assert_eq!(shared.run(BOB, "022", "litelease status").0, 0, "reading goes on");
}

#[test]
fn users_who_may_all_write_a_database_share_it_whoever_comes_first() {
    if may_not_become_others("users who share a database that everybody may write") {
        return;
    }
    for (first, second) in [(ALICE, BOB), (ROOT, BOB), (BOB, ROOT)] {
        let shared = Shared::with_file(0o777, 0o666);
        std::os::unix::fs::chown(&shared.file, Some(ALICE.0), Some(ALICE.1)).unwrap();
        for (name, mode, _) in use_everything(&shared, first, second, "077") {
            assert_eq!(mode, 0o666, "x.sqlite3{name}");
        }
    }
}

#[test]
fn what_root_makes_beside_the_database_of_a_user_is_that_users() {
    if may_not_become_others("root and a user on the user's database") {
        return;
    }
    let shared = Shared::with_file(0o777, 0o600);
    std::os::unix::fs::chown(&shared.file, Some(ALICE.0), Some(ALICE.1)).unwrap();
    for (name, mode, group) in use_everything(&shared, ROOT, ALICE, "022") {
        assert_eq!((mode, group), (0o600, ALICE.1), "x.sqlite3{name}");
    }
}

#[test]
fn a_group_shares_a_database_and_nobody_else_gets_in() {
    if may_not_become_others("a group that shares a database") {
        return;
    }
    let (alice, bob) = (User(ALICE.0, ALICE.1, Some(STAFF)), User(BOB.0, BOB.1, Some(STAFF)));
    for umask in ["077", "022"] {
        let shared = Shared::with_file(0o755, 0o660);
        shared.give_to_group(STAFF, 0o2770);
        for (name, mode, group) in use_everything(&shared, alice, bob, umask) {
            assert_eq!((mode, group), (0o660, STAFF), "x.sqlite3{name} under umask {umask}");
        }
        // Of a stranger in the same folder.
        fs::set_permissions(shared.folder.path(), Permissions::from_mode(0o2777)).unwrap();
        for line in
            ["litelease run job -- true", "litelease write -- true", "litelease write --status"]
        {
            let (code, _, said) = shared.run(User(64_003, 64_003, None), umask, line);
            assert_eq!(code, 69, "{line}: {said}");
        }
    }
    // Where the folder gives new files another group, ours have the right one nevertheless, and
    // doctor tells.
    let shared = Shared::with_file(0o755, 0o660);
    shared.give_to_group(STAFF, 0o770);
    let holder = shared.start(alice, "077", "litelease write -- sleep 1");
    shared.once_there(&[".lock"]);
    let next = shared.start(bob, "077", "litelease write -w 50s -- true");
    let modes = shared.once_there(&[".lock", ".lock.queue"]);
    assert!(modes.iter().all(|(_, mode, group)| (*mode, *group) == (0o660, STAFF)), "{modes:?}");
    assert_eq!((holder.end().0, next.end().0), (0, 0));
    assert_eq!(shared.run(alice, "077", "litelease run job -- true").0, 0);
    let (_, said, _) = shared.run(alice, "077", "litelease doctor");
    assert!(said.contains("chmod g+s"), "{said}");
}

#[test]
fn a_database_that_is_shared_later_takes_its_side_files_along() {
    if may_not_become_others("a database that is shared later") {
        return;
    }
    let shared = Shared::new(0o777);
    for (name, mode, _) in use_everything(&shared, ALICE, ALICE, "022") {
        assert_eq!(mode, 0o600, "x.sqlite3{name}");
    }
    let (code, _, said) = shared.run(BOB, "022", "litelease write -- true");
    assert!(code == 69 && said.contains("Permission denied"), "{said}");
    shared.set_mode(0o666);
    // Its owner's next use does it.
    assert_eq!(shared.run(ALICE, "022", "litelease run job -- true").0, 0);
    for (name, mode, _) in use_everything(&shared, ALICE, BOB, "022") {
        assert_eq!(mode, 0o666, "x.sqlite3{name}");
    }
}

#[test]
fn who_may_not_write_the_database_leaves_nothing_beside_it() {
    if may_not_become_others("a reader of a database") {
        return;
    }
    let shared = Shared::new(0o777);
    assert_eq!(shared.run(ALICE, "022", "litelease run job -- true").0, 0);
    shared.set_mode(0o644);
    for line in [
        "litelease run -w 100ms job -- true",
        "litelease write -- true",
        "litelease wait -w 100ms job",
        "litelease serve --listen 127.0.0.1:0",
    ] {
        let (code, _, said) = shared.run(BOB, "000", line);
        assert!(code != 0 || line.contains("wait"), "{line}: {said}");
    }
    let theirs: Vec<_> = shared.modes().into_iter().filter(|(name, ..)| !name.is_empty()).collect();
    assert!(theirs.iter().all(|(name, ..)| ["-wal", "-shm"].contains(&&**name)), "{theirs:?}");
    assert_eq!(shared.run(ALICE, "022", "litelease write -- true").0, 0);
}

/// What is in the place of a side file.
const TRAPS: [&str; 9] = [
    "a link to a victim",
    "a link to nothing",
    "a hard link to a victim",
    "a FIFO",
    "a socket",
    "a folder",
    "NULs",
    "garbage",
    "another's file",
];

/// A trap, and the victim that must stay as it is.
struct Trap {
    victim: PathBuf,
    before: (Vec<u8>, u32),
    nowhere: PathBuf,
    _socket: Option<UnixListener>,
}

impl Trap {
    fn set(kind: &str, path: &Path) -> Self {
        let folder = path.parent().unwrap();
        let (victim, nowhere) = (folder.join("victim"), folder.join("nowhere"));
        let _ = fs::remove_file(&victim);
        fs::write(&victim, "0000000000000000000x precious").unwrap();
        fs::set_permissions(&victim, Permissions::from_mode(0o640)).unwrap();
        let mut socket = None;
        match kind {
            "a link to a victim" => symlink(&victim, path).unwrap(),
            "a link to nothing" => symlink(&nowhere, path).unwrap(),
            "a hard link to a victim" => fs::hard_link(&victim, path).unwrap(),
            "a FIFO" => {
                assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
            }
            "a socket" => socket = Some(UnixListener::bind(path).unwrap()),
            "a folder" => fs::create_dir(path).unwrap(),
            "NULs" => fs::write(path, [0; 21]).unwrap(),
            "garbage" => {
                fs::write(path, b"\xff\xfe garbage, and more of it than fits".repeat(9)).unwrap()
            }
            _ => {
                fs::write(path, "").unwrap();
                fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
            }
        }
        let before = (fs::read(&victim).unwrap(), fs::metadata(&victim).unwrap().mode());
        Trap { victim, before, nowhere, _socket: socket }
    }

    #[track_caller]
    fn harmed_nobody(&self, what: &str) {
        let now = (fs::read(&self.victim).unwrap(), fs::metadata(&self.victim).unwrap().mode());
        assert_eq!(now, self.before, "{what}: the victim was changed");
        assert!(!self.nowhere.exists(), "{what}: something was made where the link leads");
    }
}

/// Uses the file with this ending, and answers how that went.
fn use_one(shared: &Shared, ending: &str, user: User) -> (i32, String) {
    let wait = |words: &str| format!("timeout 20 litelease {words}");
    let outcome = match ending {
        // A waiter, and the process that lets it in. They do without a wakeup that cannot be used.
        "-wakeup" => {
            let holder =
                shared.start(user, "022", &wait("run job -- sh -c 'touch held; sleep 0.3'"));
            eventually("it is held", || shared.folder.path().join("held").exists().then_some(()));
            let waiter = shared.run(user, "022", &wait("run -w 15s job -- true"));
            assert_eq!(holder.end().0, 0);
            waiter
        }
        ".lock" => shared.run(user, "022", &wait("write -- true")),
        // The queue is advisory.
        ".lock.queue" => {
            let holder = shared.start(user, "022", &wait("write -- sh -c 'touch held; sleep 0.3'"));
            eventually("it is held", || shared.folder.path().join("held").exists().then_some(()));
            let waiter = shared.run(user, "022", &wait("write -w 15s -- true"));
            assert_eq!(holder.end().0, 0);
            waiter
        }
        _ => try_to_serve(shared, user, ""),
    };
    let _ = fs::remove_file(shared.folder.path().join("held"));
    (outcome.0, outcome.2)
}

#[test]
fn whatever_is_in_the_place_of_a_side_file_is_left_alone_and_told() {
    let can_become = !may_not_become_others("side files of another user");
    let endings =
        ["-wakeup", ".lock", ".lock.queue", ".high-water", ".high-water.new", ".serve.lock"];
    let tables: Vec<String> = thread::scope(|scope| {
        let rows = endings.map(|ending| scope.spawn(move || try_traps(ending, can_become)));
        rows.into_iter().map(|row| row.join().unwrap()).collect()
    });
    report(&format!("in the place of side files:{}", tables.concat()));
}

/// Sets every trap in the place of one side file.
fn try_traps(ending: &str, can_become: bool) -> String {
    let mut table = String::new();
    for kind in TRAPS {
        let is_others = kind == "another's file";
        if is_others && !can_become {
            continue;
        }
        let user = if is_others { ALICE } else { ROOT };
        let shared = Shared::with_file(0o777, 0o666);
        let path = shared.beside(ending);
        let trap = Trap::set(kind, &path);
        let (code, said) = use_one(&shared, ending, user);
        let what = format!("{kind} as {ending}: {code} {said}");
        trap.harmed_nobody(&what);
        // What is only a word for others, or is replaced anyway, is no reason to give up.
        let is_fine = match (ending, kind) {
            (".high-water.new", "a folder") => false,
            ("-wakeup" | ".lock.queue" | ".high-water.new", _) => true,
            (".lock" | ".serve.lock", "NULs" | "garbage") => true,
            (".high-water", "NULs") => true,
            _ => false,
        };
        assert_eq!(code, if is_fine { 0 } else { 69 }, "{what}");
        if !is_fine {
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(said.lines().count() == 1 && said.contains(name), "{what}");
        }
        let outcome = if is_fine { "works" } else { "refused" };
        table.push_str(&format!("\n  {ending:<12} {kind:<24} {outcome}"));
    }
    table
}

#[test]
fn whatever_is_in_the_place_of_a_database_of_ours_is_left_alone_and_told() {
    for kind in ["a FIFO", "a socket", "a folder", "NULs", "garbage"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gate");
        let trap = Trap::set(kind, &path);
        let content = || path.is_file().then(|| fs::read(&path).unwrap());
        let before = content();
        let options = litelease_serve::Options::default();
        let told = [
            Gate::open(&path)
                .and_then(|gate| gate.admit("x", 1))
                .map(drop)
                .unwrap_err()
                .to_string(),
            Litelease::open_own(&path).map(drop).unwrap_err().to_string(),
            Tracker::new(&path)
                .unwrap()
                .lock("x", Tracker::EXPIRE)
                .map(drop)
                .unwrap_err()
                .to_string(),
            litelease_serve::Service::open(&path, options).map(drop).unwrap_err().to_string(),
        ];
        trap.harmed_nobody(kind);
        assert_eq!(content(), before, "{kind}: {told:?}");
    }
}

#[test]
fn a_lock_at_a_path_of_its_own_is_for_whoever_may_write_the_database() {
    let shared = Shared::with_file(0o755, 0o660);
    let lock = shared.folder.path().join("elsewhere.lock");
    let options = WriterOptions { lock_path: Some(lock.clone()), ..WriterOptions::default() };
    let writer = SingleWriter::open_with(&shared.file, options).unwrap();
    writer.write(|tx| tx.execute_batch("CREATE TABLE notes (text)")).unwrap();
    assert_eq!(fs::metadata(lock).unwrap().mode() & 0o777, 0o660);
}

/// A file that was served, and lent out token 1.
fn served_once() -> Shared {
    let shared = Shared::new(0o755);
    let mut serving = serve(&shared, ROOT, "022");
    serving.client.register(2);
    let lent = serving.client.call("POST", "/borrow", &json!({"ttl": 60})).json();
    assert_eq!(lent["token"], json!(1));
    shared
}

/// The largest token of a slot in the high-water mark.
fn high_water(shared: &Shared) -> Option<i64> {
    slot_token(&fs::read_to_string(shared.beside(".high-water")).unwrap())
}

fn slot_token(content: &str) -> Option<i64> {
    content.split(' ').next()?.parse().ok()
}

#[test]
fn a_high_water_mark_that_a_power_cut_has_emptied_is_reported_and_kept_again() {
    for content in [&b""[..], &[0; 21], &[0; 4096]] {
        let shared = served_once();
        fs::write(shared.beside(".high-water"), content).unwrap();
        let mut serving = serve(&shared, ROOT, "022");
        let log = fs::read_to_string(shared.folder.path().join("log-0")).unwrap();
        assert!(log.contains("the high-water mark is empty"), "{log}");
        assert_eq!(high_water(&shared), Some(1));
        serving.client.call("POST", "/borrow", &json!({"ttl": 60}));
        assert_eq!(high_water(&shared), Some(2));
    }
}

#[test]
fn a_high_water_mark_that_cannot_be_read_is_refused_until_the_file_is_fenced() {
    let shared = served_once();
    let whole = fs::read(shared.beside(".high-water")).unwrap();
    // A mark cut to its first digits once passed for one with token 0.
    let cut = [&whole[..5], &whole[..20], &whole[..whole.len() - 2]];
    let garbage = [&b"seven\n"[..], b"000000000\0\0\0\0\0\0\0\0\0\0\0\n", b"-1\n"];
    for content in cut.into_iter().chain(garbage) {
        fs::write(shared.beside(".high-water"), content).unwrap();
        let (code, _, said) = try_to_serve(&shared, ROOT, "");
        assert!(
            code == 69 && said.contains("remove it") && said.contains("--restore-fence"),
            "{said}"
        );
        assert_eq!(fs::read(shared.beside(".high-water")).unwrap(), content, "it is left alone");
    }
    assert_eq!(try_to_serve(&shared, ROOT, "--restore-fence").0, 0);
    assert!(high_water(&shared) > Some(1), "{:?}", high_water(&shared));
    serve(&shared, ROOT, "022");
}

#[test]
fn a_high_water_mark_that_is_removed_or_replaced_while_it_is_served_comes_back() {
    let shared = served_once();
    let mut serving = serve(&shared, ROOT, "022");
    let high_water = shared.beside(".high-water");
    for (round, kind) in ["", "a link to a victim", "a FIFO"].into_iter().enumerate() {
        // In one step: the server may put it back at any time.
        let aside = shared.folder.path().join("aside");
        let trap = (!kind.is_empty()).then(|| Trap::set(kind, &aside));
        match trap {
            Some(_) => fs::rename(&aside, &high_water).unwrap(),
            None => fs::remove_file(&high_water).unwrap(),
        }
        let lent = serving.client.call("POST", "/borrow", &json!({"ttl": 60})).json();
        let body = json!({"lease": lent["lease"]});
        serving.client.call("POST", "/return", &body);
        eventually("the mark is back", || {
            let is_file = fs::symlink_metadata(&high_water).is_ok_and(|found| found.is_file());
            let content = is_file.then(|| fs::read_to_string(&high_water).unwrap_or_default())?;
            (slot_token(&content) == Some(round as i64 + 2)).then_some(())
        });
        trap.iter().for_each(|trap| trap.harmed_nobody(kind));
    }
}

#[test]
fn the_high_water_mark_is_synced_within_a_second_and_no_more_often() {
    let shared = Shared::new(0o755);
    let line = "exec strace -f -y -qq -e trace=fsync,fdatasync -o trace \
                litelease serve --listen 127.0.0.1:0 --log off";
    let mut started = shared.start(ROOT, "022", line);
    let mut said = String::new();
    let stdout = started.0.as_mut().unwrap().stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut said).unwrap();
    let Some(address) = said.trim().strip_prefix("listening at http://") else {
        return report("SKIPPED: syncs of the mark, because strace may not trace here");
    };
    let mut client = Client::new(address.parse().unwrap());
    client.register(100);
    let syncs = || {
        let trace = fs::read_to_string(shared.folder.path().join("trace")).unwrap();
        trace.lines().filter(|line| line.contains(".high-water")).count()
    };
    let before = syncs();
    assert!(before >= 1, "when it was made");
    let began = Instant::now();
    for _ in 0..50 {
        assert_eq!(client.call("POST", "/borrow", &json!({"ttl": 60})).status, 200);
    }
    let most = before + 2 + began.elapsed().as_secs() as usize;
    eventually("it is synced", || (syncs() > before).then_some(()));
    thread::sleep(Duration::from_millis(1500));
    assert!(syncs() <= most, "{} syncs", syncs());
    assert_eq!(client.call("GET", "", &Value::Null).status, 200, "{POOL}");
    // The server, and strace with it.
    let line = fs::read_to_string(shared.beside(".serve.lock")).unwrap();
    let pid = line.strip_prefix("pid:").and_then(|rest| rest.split(' ').next()).unwrap();
    kill(pid.parse().unwrap(), libc::SIGTERM);
    started.end();
}
