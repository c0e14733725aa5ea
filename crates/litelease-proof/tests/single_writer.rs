//! One writer at a time: real processes, real kills, and lock files that are none.
//!
//! A test program of its own: one test forks, and one counts the threads of this process.

use std::fs::{self, File, TryLockError};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use litelease::rusqlite::{self, Connection};
use litelease::{
    LockError, LockState, SingleWriter, Synchronous, Waiting, WriteError, WriteLock, WriterOptions,
};
use litelease_proof::command::{Desk, outcome, stat};
use litelease_proof::rig::{Dice, TestFolder, eventually, report, worker};

const PROGRAM: &str = env!("CARGO_BIN_EXE_worker");

fn patient() -> WriterOptions {
    WriterOptions { timeout: Duration::from_secs(120), ..WriterOptions::default() }
}

fn with_notes(place: &TestFolder) -> SingleWriter {
    let writer = SingleWriter::open_with(&place.file, patient()).unwrap();
    writer.write(|tx| tx.execute_batch("CREATE TABLE notes (who, n)")).unwrap();
    writer
}

fn count(writer: &SingleWriter) -> i64 {
    let reader = writer.reader().unwrap();
    reader.query_row("SELECT count(*) FROM notes", [], |row| row.get(0)).unwrap()
}

fn note(writer: &SingleWriter) -> Result<usize, WriteError> {
    writer.write(|tx| tx.execute("INSERT INTO notes VALUES ('test', 0)", []))
}

fn writers(place: &TestFolder, processes: usize, writes: &str) -> Vec<Child> {
    let start = |n: usize| worker(PROGRAM, &["note", &n.to_string(), writes], &place.file);
    (0..processes).map(start).collect()
}

/// The lock of a handle that gives up at once.
fn try_write(place: &TestFolder) -> Result<usize, WriteError> {
    let options = WriterOptions { timeout: Duration::ZERO, ..WriterOptions::default() };
    note(&SingleWriter::open_with(&place.file, options)?)
}

#[test]
fn five_processes_of_ten_writes_leave_fifty_rows() {
    let place = TestFolder::new("WAL");
    let writer = with_notes(&place);
    for mut child in writers(&place, 5, "10") {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(count(&writer), 50);
}

#[test]
fn sixteen_processes_lose_no_write_though_holders_are_killed() {
    let writes = std::env::var("LITELEASE_WRITES").map_or(250, |writes| writes.parse().unwrap());
    let place = TestFolder::new("WAL");
    let writer = with_notes(&place);
    let mut dice = Dice::new("single writer");
    let mut children = writers(&place, 16, &writes.to_string());
    // Meanwhile others take the lock and are killed with it in their hands.
    let mut killed = 0;
    while children.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
        let mut holder = worker(PROGRAM, &["hold-write-lock"], &place.file);
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "locked\n");
        thread::sleep(Duration::from_millis(dice.below(20)));
        holder.kill().unwrap();
        holder.wait().unwrap();
        killed += 1;
    }
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(count(&writer), 16 * writes, "and nothing of the killed ones");
    report(&format!("16 writers of {writes} writes, {killed} holders killed in between"));
    assert!(killed > 0);
}

#[test]
fn a_holder_that_is_killed_frees_the_lock_at_once() {
    let place = TestFolder::new("WAL");
    let writer = with_notes(&place);
    let mut holder = worker(PROGRAM, &["hold-write-lock"], &place.file);
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "locked");
    let held = writer.lock_state().unwrap();
    assert!(matches!(held, LockState::Held(Some(by)) if by.pid == holder.id() && !by.is_gone()));
    let refused = try_write(&place).unwrap_err().to_string();
    let expected = format!("write lock timeout after 0ms; holder: pid:{} since 2", holder.id());
    assert!(refused.starts_with(&expected), "{refused}");
    assert!(refused.ends_with("; try again or check if holder process is stuck"), "{refused}");
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(writer.lock_state().unwrap(), LockState::Free);
    assert_eq!(try_write(&place).unwrap(), 1);
    assert_eq!(count(&writer), 1);
}

/// Taken by the test with a thousand threads and by the one that counts threads.
static MANY_THREADS: Mutex<()> = Mutex::new(());

#[test]
fn a_thousand_contenders_are_all_served() {
    let _alone = MANY_THREADS.lock();
    let place = TestFolder::new("WAL");
    let writer = with_notes(&place);
    let tx = writer.begin().unwrap();
    let waiting = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..1_000 {
            let (place, waiting) = (&place, &waiting);
            let contender = move || {
                let options = WriterOptions { lock_path: Some(lock_file(place)), ..patient() };
                let own = SingleWriter::open_with(&place.file, options).unwrap();
                waiting.fetch_add(1, Ordering::SeqCst);
                note(&own).unwrap();
            };
            thread::Builder::new().stack_size(1 << 18).spawn_scoped(scope, contender).unwrap();
        }
        while waiting.load(Ordering::SeqCst) < 1_000 {
            thread::sleep(Duration::from_millis(5));
        }
        tx.commit().unwrap();
    });
    assert_eq!(count(&writer), 1_000);
}

fn lock_file(place: &TestFolder) -> PathBuf {
    let mut name = place.file.canonicalize().unwrap().into_os_string();
    name.push(".lock");
    name.into()
}

#[test]
fn threads_of_one_handle_are_served_one_after_the_other() {
    for waiting in [Waiting::Fair, Waiting::POLLED] {
        let place = TestFolder::new("WAL");
        with_notes(&place);
        let options = WriterOptions { waiting, ..patient() };
        let writer = SingleWriter::open_with(&place.file, options).unwrap();
        let inside = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let tx = writer.begin().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        tx.execute("INSERT INTO notes VALUES ('t', 1)", []).unwrap();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        tx.commit().unwrap();
                    }
                });
            }
        });
        assert_eq!(count(&writer), 160);
    }
}

#[test]
fn a_second_write_inside_the_first_is_an_error_and_no_deadlock() {
    let place = TestFolder::new("WAL");
    let writer = with_notes(&place);
    writer
        .write(|tx| {
            let nested = note(&writer);
            assert!(matches!(nested, Err(WriteError::Lock(LockError::Nested))), "{nested:?}");
            tx.execute("INSERT INTO notes VALUES ('outer', 1)", [])
        })
        .unwrap();
    assert_eq!(count(&writer), 1);
}

#[test]
fn an_error_or_a_panic_inside_rolls_back_and_unlocks() {
    let place = TestFolder::new("WAL");
    let writer = with_notes(&place);
    let failed: Result<(), WriteError> = writer.write(|tx| {
        tx.execute("INSERT INTO notes VALUES ('lost', 1)", [])?;
        Err(rusqlite::Error::QueryReturnedNoRows)
    });
    assert!(matches!(failed, Err(WriteError::Sqlite(rusqlite::Error::QueryReturnedNoRows))));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        writer.write(|tx| {
            tx.execute("INSERT INTO notes VALUES ('lost', 2)", [])?;
            panic!("on purpose");
            #[allow(unreachable_code)]
            Ok(())
        })
    }));
    assert!(panicked.is_err());
    drop(writer.begin().unwrap());
    assert_eq!(writer.lock_state().unwrap(), LockState::Free);
    assert_eq!(count(&writer), 0);
    assert_eq!(try_write(&place).unwrap(), 1);
    assert_eq!(note(&writer).unwrap(), 1);
}

/// A waiting thread that was left behind by a timeout must neither take the lock without a caller
/// nor block others.
#[test]
fn a_wait_that_timed_out_leaves_no_ghost_behind() {
    let _alone = MANY_THREADS.lock();
    let place = TestFolder::new("WAL");
    let holder = with_notes(&place);
    let options = WriterOptions { timeout: Duration::from_millis(1), ..WriterOptions::default() };
    let impatient = SingleWriter::open_with(&place.file, options).unwrap();
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    let tx = holder.begin().unwrap();
    let before = threads();
    for _ in 0..200 {
        let refused = note(&impatient);
        assert!(matches!(refused, Err(WriteError::Lock(LockError::Timeout { .. }))), "{refused:?}");
    }
    // Other tests run in this process, too: but not two hundred threads.
    assert!(threads() < before + 100, "one waiting thread per handle");
    tx.commit().unwrap();
    // Either its place in the queue serves the handle, or it was given up; and the others are not
    // kept out.
    let start = Instant::now();
    while note(&impatient).is_err() {
        assert!(start.elapsed() < Duration::from_secs(60), "kept out by a ghost");
    }
    note(&holder).unwrap();
    drop(impatient);
    note(&holder).unwrap();
    assert_eq!(count(&holder), 3);
}

#[test]
fn what_is_no_lock_file_is_refused_and_left_alone() {
    let place = TestFolder::new("WAL");
    with_notes(&place);
    let folder = place.folder.path();
    let victim = folder.join("victim");
    fs::write(&victim, "precious").unwrap();
    let at = |name: &str| folder.join(name);
    symlink(&victim, at("link")).unwrap();
    symlink(folder.join("nowhere"), at("dangling")).unwrap();
    fs::create_dir(at("dir")).unwrap();
    assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    for (path, what) in [
        (at("link"), "a symbolic link"),
        (at("dangling"), "a symbolic link"),
        (at("dir"), "a folder"),
        (at("fifo"), "a FIFO"),
        (at("socket"), "a socket"),
        ("/dev/null".into(), "a device"),
    ] {
        let options = WriterOptions { lock_path: Some(path.clone()), ..WriterOptions::default() };
        let writer = SingleWriter::open_with(&place.file, options).unwrap();
        let refused = note(&writer).unwrap_err();
        let WriteError::Lock(LockError::NotALockFile { path: named, what: found }) = refused else {
            panic!("{refused}");
        };
        assert_eq!((named, found), (path, what));
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert!(!folder.join("nowhere").exists());
    assert!(fs::metadata(at("fifo")).unwrap().file_type().is_fifo());
}

#[test]
fn garbage_in_the_lock_file_breaks_nothing_and_is_reported_as_unknown() {
    let place = TestFolder::new("WAL");
    let writer = with_notes(&place);
    let path = writer.lock_path().to_owned();
    for garbage in [
        &b""[..],
        b"\0\xff",
        b"pid:1",
        b"pid:99999999999999999999 time:x",
        &[b'x'; 1 << 20],
        b"pid:4194304 time:2025-01-15T10:30:45Z",
    ] {
        let tx = writer.begin().unwrap();
        // The holder's line, half-written or overwritten by another program.
        fs::write(&path, garbage).unwrap();
        let refused = try_write(&place).unwrap_err().to_string();
        let told = format!(
            "holder: unknown, for it has not signed the lock file; the system names pid {}",
            std::process::id()
        );
        assert!(refused.contains(&told), "{refused}");
        tx.commit().unwrap();
    }
    note(&writer).unwrap();
    let line = fs::read_to_string(&path).unwrap();
    let pid = std::process::id();
    assert!(line.starts_with(&format!("pid:{pid} time:2")) && line.ends_with("Z\n"), "{line:?}");
}

#[test]
fn a_lock_file_that_was_removed_while_it_was_waited_for_is_noticed() {
    let place = TestFolder::new("WAL");
    let writer = with_notes(&place);
    for (waiting, is_replaced) in [
        (Waiting::Fair, false),
        (Waiting::POLLED, false),
        (Waiting::Fair, true),
        (Waiting::POLLED, true),
    ] {
        let tx = writer.begin().unwrap();
        let options = WriterOptions { waiting, ..patient() };
        let other = SingleWriter::open_with(&place.file, options).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let tx = other.begin().unwrap();
                // What it holds is the file that is there now, so a third one is kept out.
                // By this lock, and not only by SQLite's.
                let refused = try_write(&place);
                assert!(
                    matches!(refused, Err(WriteError::Lock(LockError::Timeout { .. }))),
                    "{refused:?}"
                );
                tx.commit().unwrap();
            });
            thread::sleep(Duration::from_millis(100));
            fs::remove_file(writer.lock_path()).unwrap();
            if is_replaced {
                fs::write(writer.lock_path(), "").unwrap();
            }
            tx.commit().unwrap();
            waiter.join().unwrap();
        });
        assert!(writer.lock_path().exists());
    }
}

#[test]
fn a_child_process_does_not_inherit_the_lock() {
    let place = TestFolder::new("WAL");
    let writer = with_notes(&place);
    let tx = writer.begin().unwrap();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    tx.commit().unwrap();
    assert_eq!(try_write(&place).unwrap(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// `litelease write` becomes the command; what that leaves running shares the lock, as with
/// flock(1).
#[test]
fn a_command_under_the_write_lock_shares_it_with_what_it_started() {
    let desk = Desk::new();
    let writer = SingleWriter::open(&desk.file).unwrap();
    let script = "sleep 60 >/dev/null 2>&1 & echo $!";
    let words = ["write", "--", "sh", "-c", script];
    let output = desk.run(&words);
    assert!(output.status.success(), "{output:?}");
    let child = String::from_utf8(output.stdout).unwrap();
    let held = writer.lock_state().unwrap();
    assert!(matches!(&held, LockState::Held(Some(by)) if by.is_gone()), "{held:?}");
    let told = desk.run(&["write", "--status"]);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(
        told.contains("the process is gone, one that it forked still holds the lock"),
        "{told}"
    );
    assert!(Command::new("kill").args(["-9", child.trim()]).status().unwrap().success());
    let is_free = || writer.lock_state().unwrap() == LockState::Free;
    eventually("the lock is free", || is_free().then_some(()));
    // A signal reaches the command itself, for that is what the process has become.
    let mut running = desk.command(&["write", "--", "sleep", "60"]).spawn().unwrap();
    eventually("it holds the lock", || (!is_free()).then_some(()));
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(writer.lock_state().unwrap(), LockState::Free);
}

/// flock(1) does not sign the lock file. It was once taken for a child of the holder before it.
#[test]
fn a_holder_that_has_not_signed_the_lock_file_is_unknown_and_the_system_names_its_process() {
    let desk = Desk::new();
    let writer = SingleWriter::open(&desk.file).unwrap();
    assert_eq!(
        outcome(&desk.run(&["write", "--", "true"])).0,
        0,
        "signed by a process that is gone"
    );
    let mut flock = Command::new("flock")
        .arg("--no-fork")
        .arg(writer.lock_path())
        .args(["sleep", "60"])
        .spawn()
        .unwrap();
    let held = eventually("it is held", || {
        Some(writer.lock_state().unwrap()).filter(|state| *state != LockState::Free)
    });
    let pid = flock.id();
    assert_eq!(held, LockState::Unsigned(pid));
    let options = WriterOptions { timeout: Duration::ZERO, ..WriterOptions::default() };
    let refused = SingleWriter::open_with(&desk.file, options).unwrap().begin().unwrap_err();
    let expected = format!(
        "holder: unknown, for it has not signed the lock file; the system names pid {pid};"
    );
    assert!(refused.to_string().contains(&expected), "{refused}");
    let (code, said, _) = outcome(&desk.run(&["write", "--status"]));
    assert!(code == 0 && said.starts_with(&format!("pid {pid}, since an unknown time")), "{said}");
    let (code, _, errors) = outcome(&desk.run(&["write", "-w", "0", "--", "true"]));
    assert!(code == 1 && errors.contains(&expected), "{errors}");
    flock.kill().unwrap();
    flock.wait().unwrap();
    assert_eq!(writer.lock_state().unwrap(), LockState::Free);
}

#[test]
fn the_same_file_has_one_lock_whatever_it_is_called() {
    let place = TestFolder::new("WAL");
    let writer = with_notes(&place);
    let alias = place.folder.path().join("alias.db");
    symlink(&place.file, &alias).unwrap();
    let other = SingleWriter::open(&alias).unwrap();
    assert_eq!(other.lock_path(), writer.lock_path());
}

#[test]
fn settings_are_verified_and_not_only_asked_for() {
    let place = TestFolder::new("WAL");
    let pragma = |writer: &SingleWriter, what: &str| -> String {
        let tx = writer.begin().unwrap();
        tx.query_row(&format!("PRAGMA {what}"), [], |row| row.get::<_, rusqlite::types::Value>(0))
            .map(|value| format!("{value:?}"))
            .unwrap()
    };
    let writer = SingleWriter::open(&place.file).unwrap();
    assert_eq!(pragma(&writer, "journal_mode"), "Text(\"wal\")");
    assert_eq!(pragma(&writer, "synchronous"), "Integer(1)");
    assert_eq!(pragma(&writer, "busy_timeout"), "Integer(500)");
    let full = WriterOptions { synchronous: Synchronous::Full, ..WriterOptions::default() };
    let writer = SingleWriter::open_with(&place.file, full).unwrap();
    assert_eq!(pragma(&writer, "synchronous"), "Integer(2)");
    drop(writer);

    // A file whose journal mode cannot be changed: SQLite keeps the old one, and says nothing.
    let stuck = TestFolder::new("DELETE");
    let reader = stuck.connect(Duration::ZERO);
    reader
        .execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1); BEGIN; SELECT * FROM t")
        .unwrap();
    let refused = SingleWriter::open(&stuck.file).unwrap_err();
    assert!(
        matches!(&refused, WriteError::Setting { pragma: "journal_mode", found, .. } if found == "delete")
            || matches!(&refused, WriteError::Sqlite(error)
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)),
        "{refused}"
    );
    let refused = SingleWriter::open(":memory:").unwrap_err();
    assert!(matches!(refused, WriteError::NoFile), "{refused}");
}

#[test]
fn a_folder_that_cannot_be_written_to_is_told_by_name() {
    let place = TestFolder::new("WAL");
    with_notes(&place);
    let nowhere = Path::new("/proc/nowhere/data.lock");
    let options = WriterOptions { lock_path: Some(nowhere.into()), ..WriterOptions::default() };
    let refused = note(&SingleWriter::open_with(&place.file, options).unwrap()).unwrap_err();
    assert!(refused.to_string().contains("/proc/nowhere/data.lock"), "{refused}");
    // Root may write anywhere, so this one is for others.
    let folder = place.folder.path().join("readonly");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    let options =
        WriterOptions { lock_path: Some(folder.join("data.lock")), ..WriterOptions::default() };
    match note(&SingleWriter::open_with(&place.file, options).unwrap()) {
        Err(refused) => assert!(refused.to_string().contains("readonly"), "{refused}"),
        Ok(_) => report("SKIPPED: root may write to a read-only folder"),
    }
}

#[test]
fn a_program_that_writes_without_the_lock_is_waited_for_and_then_told() {
    let place = TestFolder::new("WAL");
    let options = WriterOptions { busy_timeout: Duration::ZERO, ..WriterOptions::default() };
    with_notes(&place);
    let writer = SingleWriter::open_with(&place.file, options).unwrap();
    let rude = Connection::open(&place.file).unwrap();
    rude.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = note(&writer).unwrap_err();
    assert!(matches!(&refused, WriteError::Sqlite(error)
        if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)));
    assert_eq!(writer.lock_state().unwrap(), LockState::Free);
    rude.execute_batch("COMMIT").unwrap();
    note(&writer).unwrap();
}

/// A handle that has timed out once still waits for the file that was there then.
#[test]
fn a_lock_file_that_was_replaced_after_a_timeout_is_noticed() {
    let place = TestFolder::new("WAL");
    let writer = with_notes(&place);
    let options = WriterOptions { timeout: Duration::from_millis(20), ..WriterOptions::default() };
    let waited = SingleWriter::open_with(&place.file, options).unwrap();
    let tx = writer.begin().unwrap();
    tx.execute_batch("ROLLBACK").unwrap();
    note(&waited).unwrap_err();
    fs::remove_file(writer.lock_path()).unwrap();
    fs::write(writer.lock_path(), "").unwrap();
    note(&waited).unwrap();
    drop(tx);
}

/// Reading who holds the lock takes nothing from any process.
#[test]
fn asking_who_holds_the_lock_is_in_nobodys_way() {
    let place = TestFolder::new("WAL");
    with_notes(&place);
    let asked = AtomicU32::new(0);
    let is_over = AtomicU32::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let curious = SingleWriter::open(&place.file).unwrap();
            while is_over.load(Ordering::SeqCst) == 0 {
                curious.lock_state().unwrap();
                asked.fetch_add(1, Ordering::SeqCst);
            }
        });
        let options = WriterOptions { timeout: Duration::ZERO, ..WriterOptions::default() };
        let writer = SingleWriter::open_with(&place.file, options).unwrap();
        while asked.load(Ordering::SeqCst) < 300 {
            drop(writer.begin().unwrap());
        }
        is_over.store(1, Ordering::SeqCst);
    });
}

/// The file that those lock who wait, next to the lock file.
fn queue_file(place: &TestFolder) -> PathBuf {
    let mut name = lock_file(place).into_os_string();
    name.push(".queue");
    name.into()
}

/// Returns whether the queue has a head.
fn has_head(place: &TestFolder) -> bool {
    let Ok(file) = File::open(queue_file(place)) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// Eight handles ask again and again. For each wait: how often another one got the lock meanwhile,
/// the luckiest one.
fn overtakings(lock: &Path, rounds: usize) -> Vec<u32> {
    const HANDLES: usize = 8;
    let inside = AtomicU32::new(0);
    let grants: [AtomicU32; HANDLES] = Default::default();
    let all = || grants.each_ref().map(|grants| grants.load(Ordering::SeqCst));
    let contend = |me: usize| {
        let handle = WriteLock::new(lock);
        let mut waits = Vec::new();
        for _ in 0..rounds {
            let before = all();
            let held = handle.acquire(Duration::from_secs(120), Waiting::Fair).unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
            waits.push(all().iter().zip(before).map(|(now, before)| now - before).max().unwrap());
            grants[me].fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(2)); // the disk
            inside.fetch_sub(1, Ordering::SeqCst);
            drop(held);
        }
        waits
    };
    let mut waits: Vec<u32> = thread::scope(|scope| {
        let contend = &contend;
        let contenders: Vec<_> = (0..HANDLES).map(|me| scope.spawn(move || contend(me))).collect();
        contenders.into_iter().flat_map(|contender| contender.join().unwrap()).collect()
    });
    waits.sort_unstable();
    waits
}

/// A process that had just unlocked used to take the lock again before the one that had been woken
/// for it ran, a dozen times in a row.
#[test]
fn nobody_who_waits_is_overtaken_again_and_again() {
    let place = TestFolder::new("WAL");
    with_notes(&place);
    let waits = overtakings(&lock_file(&place), 100);
    let [median, p95, most] = [waits[400], waits[760], waits[799]];
    report(&format!("overtaken by the same one: median {median}, p95 {p95}, at most {most}"));
    // None on an idle machine. A busy one may be late to run the one who was woken.
    assert!(median <= 4, "{waits:?}");
}

#[test]
fn a_queue_that_cannot_be_used_or_goes_away_costs_manners_and_not_the_lock() {
    let place = TestFolder::new("WAL");
    with_notes(&place);
    let queue = queue_file(&place);
    assert!(!queue.exists(), "nobody has waited");
    let victim = place.folder.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    // Each contends with an `assert` that no other is inside.
    fs::create_dir(&queue).unwrap();
    overtakings(&lock_file(&place), 25);
    fs::remove_dir(&queue).unwrap();
    symlink(&victim, &queue).unwrap();
    overtakings(&lock_file(&place), 25);
    fs::remove_file(&queue).unwrap();
    assert!(Command::new("mkfifo").arg(&queue).status().unwrap().success());
    overtakings(&lock_file(&place), 25);
    fs::remove_file(&queue).unwrap();
    thread::scope(|scope| {
        let contention = scope.spawn(|| overtakings(&lock_file(&place), 25));
        while !contention.is_finished() {
            let _ = fs::remove_file(&queue);
            thread::sleep(Duration::from_millis(3));
        }
    });
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

/// Whether none of its threads runs or waits any more.
fn is_stopped_or_dead(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let Some(fields) = stat(thread.path()) else { return true };
        matches!(fields[0].as_str(), "T" | "Z")
    })
}

/// A stopped process keeps its place at the head of the queue, and a killed one does not.
#[test]
fn a_head_of_the_queue_that_is_stopped_or_killed_shuts_nobody_out() {
    for signal in ["STOP", "KILL"] {
        let place = TestFolder::new("WAL");
        let writer = with_notes(&place);
        let tx = writer.begin().unwrap();
        let mut head = worker(PROGRAM, &["hold-write-lock"], &place.file);
        eventually("it waits", || has_head(&place).then_some(()));
        let id = head.id().to_string();
        assert!(
            Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap().success()
        );
        // Until then it may still be given the lock, and keep it.
        eventually("the signal has arrived", || is_stopped_or_dead(head.id()).then_some(()));
        tx.commit().unwrap();
        // Far sooner than at the deadline, which is two minutes for each.
        let start = Instant::now();
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(2)); // a new turn each time
            note(&writer).unwrap();
        }
        assert!(start.elapsed() < Duration::from_secs(100), "{:?}", start.elapsed());
        assert_eq!(has_head(&place), signal == "STOP");
        let impatient = WriterOptions { timeout: Duration::from_millis(1), ..patient() };
        let impatient = SingleWriter::open_with(&place.file, impatient).unwrap();
        note(&impatient).unwrap();
        assert_eq!(try_write(&place).unwrap(), 1, "a single try is past the queue");
        if signal == "STOP" {
            assert!(Command::new("kill").args(["-CONT", &id]).status().unwrap().success());
            let mut line = String::new();
            BufReader::new(head.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "locked\n");
            head.kill().unwrap();
        }
        head.wait().unwrap();
        assert_eq!(count(&writer), 22);
    }
}

#[test]
fn a_process_that_was_forked_while_its_parent_waited_stays_neither_in_the_queue_nor_in_the_lock() {
    let place = TestFolder::new("WAL");
    let writer = with_notes(&place);
    let tx = writer.begin().unwrap();
    let impatient = WriterOptions { timeout: Duration::from_millis(100), ..patient() };
    let other = SingleWriter::open_with(&place.file, impatient).unwrap();
    eventually("its thread is the head", || {
        note(&other).unwrap_err();
        has_head(&place).then_some(())
    });
    // SAFETY: the copy does nothing but sleep.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: it ends without unwinding into the test.
        unsafe {
            libc::sleep(120);
            libc::_exit(0)
        };
    }
    tx.commit().unwrap();
    eventually("nobody is in the queue", || (!has_head(&place)).then_some(()));
    eventually("nobody has the lock", || {
        (writer.lock_state().unwrap() == LockState::Free).then_some(())
    });
    // SAFETY: it is our child.
    unsafe {
        assert_eq!(libc::kill(child, libc::SIGKILL), 0);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    note(&writer).unwrap();
}

#[test]
fn a_lock_that_is_waited_for_in_slices_keeps_its_place_in_between() {
    let place = TestFolder::new("WAL");
    with_notes(&place);
    let path = lock_file(&place);
    let (patient, slice) = (Duration::from_secs(60), Duration::from_millis(10));
    let first = WriteLock::new(&path);
    let held = first.acquire(patient, Waiting::Fair).unwrap();
    let mut second = WriteLock::new(&path).into_sliced(Waiting::Fair);
    assert!(!second.wait(patient, slice).unwrap());
    eventually("it is the head", || has_head(&place).then_some(()));
    drop(held);
    // It is served although no caller waits at this moment; and others after it.
    let third = WriteLock::new(&path);
    let hurried = third.acquire(Duration::from_millis(300), Waiting::Fair);
    assert!(matches!(hurried, Err(LockError::Timeout { .. })), "{hurried:?}");
    assert!(second.wait(patient, slice).unwrap());
    second.end();
    // A request that is given up blocks no other: in the queue, when it is served, or when it was.
    let held = first.acquire(patient, Waiting::Fair).unwrap();
    assert!(!second.wait(patient, slice).unwrap());
    second.end();
    drop(held);
    let held = first.acquire(patient, Waiting::Fair).unwrap();
    assert!(!second.wait(patient, slice).unwrap());
    eventually("it is the head", || has_head(&place).then_some(()));
    drop(held);
    eventually("it is served", || (!has_head(&place)).then_some(()));
    second.end();
    eventually("the lock is free", || matches!(first.state(), Ok(LockState::Free)).then_some(()));
    // The timeout is that of the first slice.
    let held = first.acquire(patient, Waiting::Fair).unwrap();
    assert!(!second.wait(3 * slice, slice).unwrap());
    thread::sleep(3 * slice);
    assert!(matches!(second.wait(patient, slice), Err(LockError::Timeout { .. })));
    drop(held);
    assert!(second.wait(patient, patient).unwrap());
}

/// The Pythons that `scripts/setup-python` has prepared.
fn pythons() -> Vec<PathBuf> {
    let environments = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python");
    let pythons = ["system", "other"].map(|name| environments.join(name).join("bin/python"));
    let has_package = |python: &PathBuf| {
        let probe = Command::new(python).args(["-c", "import litelease"]).output();
        let is_there = probe.is_ok_and(|probe| probe.status.success());
        if !is_there {
            report(&format!("SKIPPED: no package in {}", python.display()));
        }
        is_there
    };
    pythons.into_iter().filter(has_package).collect()
}

fn in_python(python: &Path, program: &str, file: &Path) -> Child {
    let mut command = Command::new(python);
    command.args(["-c", &format!("import sys, litelease\n{program}")]).arg(file);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// How many threads wait for a lock on one of these files.
fn waiters(files: &[PathBuf]) -> usize {
    let inodes = files.iter().filter_map(|file| Some(fs::metadata(file).ok()?.ino().to_string()));
    let inodes: Vec<String> = inodes.collect();
    let waits = |line: &&str| {
        let mut words = line.split_whitespace();
        words.any(|word| word == "->")
            && words.any(|word| inodes.iter().any(|inode| word.rsplit(':').next() == Some(inode)))
    };
    fs::read_to_string("/proc/locks").unwrap().lines().filter(waits).count()
}

/// The order in which six writers are served that begin to wait one after the other, every second
/// one in Python.
fn order_of_service(python: &Path) -> String {
    let place = TestFolder::new("WAL");
    let writer = with_notes(&place);
    let tx = writer.begin().unwrap();
    let files = [lock_file(&place), queue_file(&place)];
    let mut children: Vec<Child> = Vec::new();
    for n in 0..6 {
        children.push(match n % 2 {
            0 => worker(PROGRAM, &["note", &n.to_string(), "1"], &place.file),
            _ => {
                let program = format!(
                    "with litelease.SingleWriter(sys.argv[1], timeout=120).write() as conn:
    conn.execute('INSERT INTO notes VALUES (?, 0)', ('{n}',))"
                );
                in_python(python, &program, &place.file)
            }
        });
        eventually("it waits", || (waiters(&files) == n + 1).then_some(()));
    }
    tx.commit().unwrap();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let reader = writer.reader().unwrap();
    let sql = "SELECT group_concat(who, '') FROM (SELECT who FROM notes ORDER BY rowid)";
    reader.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn writers_in_rust_and_in_python_wait_in_one_queue_and_are_served_in_order() {
    for python in pythons() {
        // A waiter now and then tries the lock past the queue, whose head may be stopped. In some
        // rounds it is lucky.
        let mut rounds = (0..5).map(|_| order_of_service(&python));
        assert!(rounds.any(|order| order == "012345"), "{}: never in order", python.display());
    }
}

#[test]
fn writers_in_rust_and_in_python_name_each_other_as_the_holder() {
    for python in pythons() {
        let place = TestFolder::new("WAL");
        let writer = with_notes(&place);
        let program = "writer = litelease.SingleWriter(sys.argv[1], timeout=0.05)
try:
    writer.write().__enter__()
except litelease.WriteLockTimeout as error:
    assert error.holder == writer.holder()
    print(error, flush=True)
writer.timeout = 60
sys.stdin.readline()
with writer.write():
    print('locked', flush=True)
    sys.stdin.readline()";
        let tx = writer.begin().unwrap();
        let mut child = in_python(&python, program, &place.file);
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let told = output.next().unwrap().unwrap();
        let me = format!("holder: pid:{} since 2", std::process::id());
        assert!(told.contains(&me), "{told}");
        tx.commit().unwrap();
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert_eq!(output.next().unwrap().unwrap(), "locked");
        match writer.lock_state().unwrap() {
            LockState::Held(Some(holder)) => assert_eq!(holder.pid, child.id()),
            state => panic!("{state:?}"),
        }
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        assert_eq!(writer.lock_state().unwrap(), LockState::Free);
    }
}
