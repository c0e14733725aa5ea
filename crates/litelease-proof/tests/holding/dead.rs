//! Holders that are dead, and holders that only look dead: the first are taken over at once, the
//! others never.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use libc::{SIGCONT, SIGKILL, SIGSTOP};
use litelease::{
    BorrowOptions, ClaimResult, HoldError, HoldOptions, Identity, Litelease, Liveness, Loss,
};
use litelease_hold::{HolderKind, PidScope};
use litelease_proof::command::{Desk, Run, is_gone, is_running, kill, outcome, stays};
use litelease_proof::rig::{Dice, LONG, TestFolder, acquired, eventually, report, worker};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");

/// Long enough for a few looks at a holder, and far from any ttl.
const FEW_LOOKS: Duration = Duration::from_millis(1_200);

/// Sooner than a ttl ends, on a busy machine too.
const SOON: Duration = Duration::from_secs(20);

/// A worker that holds a name, and what it has told.
struct Holder {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Holder {
    fn start(words: &[&str], file: &Path) -> Self {
        Holder::from_child(worker(WORKER, words, file))
    }

    fn from_child(mut child: Child) -> Self {
        let lines = BufReader::new(child.stdout.take().unwrap());
        Holder { child, lines }
    }

    /// Starts one that holds `x` for a minute.
    fn holding(place: &TestFolder) -> Self {
        let mut holder = Holder::start(&["hold", "x", "60000", "0"], &place.file);
        assert!(holder.line().starts_with("held 1 "));
        holder
    }

    /// The next line that it tells.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // A test that failed leaves nothing running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for `x`, and answers the token.
fn succeed(db: &Litelease, wait: Duration) -> Option<i64> {
    let claimed = db.claim_wait("x", "successor", LONG, wait).unwrap();
    claimed.acquired().map(|lease| lease.token)
}

#[test]
fn a_killed_holder_is_succeeded_at_once_although_its_lease_is_live() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let holder = Holder::holding(&place);
    assert!(matches!(db.claim_wait("x", "b", LONG, FEW_LOOKS).unwrap(), ClaimResult::Busy(_)));
    holder.kill();
    assert!(matches!(db.claim("x", "b", LONG).unwrap(), ClaimResult::Busy(_)), "plain claims wait");
    let begin = Instant::now();
    let held = db.hold("x", HoldOptions::new(LONG)).unwrap(); // does not wait
    report(&format!("dead: succeeded at the first look, in {:?}", begin.elapsed()));
    assert_eq!(held.token(), 2);
    held.check().unwrap();
}

#[test]
fn a_holder_that_is_killed_while_others_wait_is_succeeded_within_a_second() {
    for is_reaped in [true, false] {
        let place = TestFolder::new("WAL");
        let db = place.open(LONG);
        let mut holder = Holder::holding(&place);
        let waiter = std::thread::spawn(move || (succeed(&db, SOON), Instant::now()));
        std::thread::sleep(Duration::from_millis(300));
        holder.child.kill().unwrap();
        let begin = Instant::now();
        if is_reaped {
            holder.child.wait().unwrap();
        }
        let (token, end) = waiter.join().unwrap();
        assert_eq!(token, Some(2), "reaped: {is_reaped}");
        report(&format!("dead: a waiter succeeded after {:?}, reaped: {is_reaped}", end - begin));
    }
}

#[test]
fn a_stopped_holder_is_alive() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let mut holder = Holder::holding(&place);
    kill(holder.pid(), SIGSTOP);
    assert_eq!(succeed(&db, FEW_LOOKS), None);
    kill(holder.pid(), SIGCONT);
    drop(holder.child.stdin.take());
    assert!(holder.child.wait().unwrap().success(), "it was still the holder");
    assert_eq!(db.owner("x").unwrap(), None, "and has released the name");
}

/// A main thread that has called pthread_exit is a zombie while the others work.
#[test]
fn a_holder_whose_main_thread_has_ended_is_alive() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let mut holder = Holder::start(&["hold-threaded", "x"], &place.file);
    assert!(holder.line().starts_with("held 1 "));
    eventually("the main thread ends", || (!is_running(holder.pid())).then_some(()));
    assert_eq!(succeed(&db, FEW_LOOKS), None, "threads of it are at work");
    holder.kill();
    assert_eq!(succeed(&db, SOON), Some(2));
}

#[test]
fn only_a_text_that_names_a_holder_of_this_very_place_lets_it_be_found_dead() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let mut gone = Command::new("true").spawn().unwrap();
    let dead = Identity { pid: gone.id(), ..Identity::new(HolderKind::Hold) };
    gone.wait().unwrap();
    let (context, _) = dead.holder.clone().unwrap();
    let at = |scope: PidScope| Identity { holder: Some((scope, HolderKind::Hold)), ..dead.clone() };
    let as_kind = |kind| Identity { holder: Some((context.clone(), kind)), ..dead.clone() };
    let living = Identity { pid: std::process::id(), ..dead.clone() };
    let unknown = [
        ("another host", Identity { host: "elsewhere".into(), ..dead.clone() }),
        ("another boot", at(PidScope { boot: "another".into(), ..context.clone() })),
        ("another container", at(PidScope { pid_namespace: 1, ..context.clone() })),
        ("another clock", at(PidScope { time_namespace: 1, ..context.clone() })),
        ("who called claim", as_kind(HolderKind::Claim)),
        ("who made a lock", as_kind(HolderKind::Lock)),
        ("a group that is there", as_kind(HolderKind::Run { group: own_group() })),
        ("every group", as_kind(HolderKind::Run { group: 1 })),
        ("the group of whoever asks", as_kind(HolderKind::Run { group: 0 })),
        ("a system that tells nothing", Identity { holder: None, start: None, ..dead.clone() }),
        ("no process", Identity { pid: 0, ..dead.clone() }),
        ("no number of a process", Identity { pid: u32::MAX, ..dead.clone() }),
        ("somebody alive", living.clone()),
    ];
    for (what, who) in unknown {
        acquired(db.claim(what, &who.to_string(), LONG));
        assert_eq!(Identity::parse(&who.to_string()).as_ref(), Some(&who), "{what}");
        let answer = db.claim_wait(what, "b", LONG, Duration::ZERO).unwrap();
        assert!(matches!(answer, ClaimResult::Busy(_)), "{what}: {answer:?}");
    }
    for text in ["worker-a", &format!("{dead} too"), &dead.to_string().replace(" hold ", " ")] {
        acquired(db.claim(text, text, LONG));
        let answer = db.claim_wait(text, "b", LONG, Duration::ZERO).unwrap();
        assert!(matches!(answer, ClaimResult::Busy(_)), "{text}: {answer:?}");
    }
    let group = dead.pid;
    let reused = Identity { start: Some(1), ..living };
    for (what, who) in [
        ("a process that is gone", dead.clone()),
        ("a number that is used again", reused),
        ("a group that is gone", as_kind(HolderKind::Run { group })),
    ] {
        acquired(db.claim(what, &who.to_string(), LONG));
        assert_eq!(who.liveness(), Liveness::Dead, "{what}");
        let next = db.claim_wait(what, "b", LONG, Duration::ZERO).unwrap();
        assert!(matches!(next, ClaimResult::Acquired(lease) if lease.token == 2), "{what}");
    }
}

fn own_group() -> u32 {
    // SAFETY: no pointers are involved.
    unsafe { libc::getpgrp() as u32 }
}

/// A worker in namespaces of its own, if that is allowed.
fn unshared(how: &[&str], words: &[&str], file: &Path) -> Option<Holder> {
    if !is_allowed(how) {
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(how).arg(WORKER).arg(words[0]).arg(file).args(&words[1..]);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    Some(Holder::from_child(child))
}

fn is_allowed(how: &[&str]) -> bool {
    let tried = Command::new("unshare").args(how).arg("true").output();
    let is_allowed = tried.is_ok_and(|output| output.status.success());
    if !is_allowed {
        report(&format!("SKIPPED: a holder under unshare {how:?} (not allowed)"));
    }
    is_allowed
}

const OWN_PIDS: [&str; 4] = ["--pid", "--fork", "--kill-child", "--mount-proc"];

#[test]
fn a_holder_in_another_container_is_not_judged_by_numbers_that_are_not_its_own() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    // Inside, this is process 1. Outside there is one of that number, too, and it started at
    // another time.
    let Some(mut holder) = unshared(&OWN_PIDS, &["hold", "x", "60000", "0"], &place.file) else {
        return;
    };
    let told = holder.line();
    let (_, owner) = told.strip_prefix("held ").unwrap().split_once(' ').unwrap();
    let who = Identity::parse(owner).unwrap();
    assert_eq!((who.pid, who.liveness()), (1, Liveness::Unknown), "{owner}");
    assert_eq!(succeed(&db, FEW_LOOKS), None);
    // Nor is one outside judged from inside, alive or dead.
    let outside = Holder::start(&["hold", "y", "60000", "0"], &place.file);
    eventually("it is held", || db.owner("y").unwrap());
    for is_dead in [false, true] {
        if is_dead {
            kill(outside.pid(), SIGKILL);
        }
        let inside = unshared(&OWN_PIDS, &["hold", "y", "60000", "600"], &place.file);
        assert!(inside.unwrap().line().starts_with("busy "), "dead: {is_dead}");
    }
    // A /proc that shows another namespace's processes tells nothing.
    let outer_proc = ["--pid", "--fork", "--kill-child"];
    let mut blind = unshared(&outer_proc, &["hold", "z", "60000", "0"], &place.file).unwrap();
    let told = blind.line();
    assert!(!told.contains(" start ") && told.starts_with("held 1 "), "{told}");
    let mut blind = unshared(&outer_proc, &["hold", "x", "60000", "600"], &place.file).unwrap();
    assert!(blind.line().starts_with("busy "));
}

/// Start times are shown as the reader's time namespace has them: a living process seems to be
/// another one.
#[test]
fn a_living_holder_is_not_dead_to_whoever_counts_time_from_another_moment() {
    let place = TestFolder::new("WAL");
    place.open(LONG);
    let holder = Holder::holding(&place);
    let shifted = ["--time", "--boottime", "1000", "--fork", "--kill-child"];
    let words = ["hold", "x", "60000", "600"];
    let Some(mut other) = unshared(&shifted, &words, &place.file) else { return };
    assert!(other.line().starts_with("busy "));
    drop(holder);
}

/// With `hidepid=2`, other users' processes are not in /proc at all.
#[test]
fn a_holder_that_is_hidden_is_alive() {
    let place = TestFolder::new("WAL");
    place.open(LONG);
    for path in [place.folder.path(), &place.file] {
        Command::new("chmod").arg("a+rwx").arg(path).status().unwrap();
    }
    let holder = Holder::holding(&place);
    for suffix in ["-wal", "-shm"] {
        let path = format!("{}{suffix}", place.file.display());
        Command::new("chmod").args(["a+rw", &path]).status().unwrap();
    }
    // The program must be where everybody may run it.
    let program = place.folder.path().join("worker");
    fs::copy(WORKER, &program).unwrap();
    let look = || {
        let hide = "mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid=65534 --regid=65534 \
                    --clear-groups \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", hide, "sh"]).arg(&program).arg("hold");
        command.arg(&place.file).args(["x", "60000", "600"]).stdin(Stdio::null()).output()
    };
    let (_, said, errors) = outcome(&look().unwrap());
    if said.is_empty() && (errors.contains("mount") || errors.contains("unshare")) {
        return report(&format!("SKIPPED: a hidden holder ({})", errors.trim()));
    }
    assert!(said.starts_with("busy "), "{said}{errors}");
    holder.kill();
    let (_, said, errors) = outcome(&look().unwrap());
    assert!(said.starts_with("held 2 "), "{said}{errors}");
}

#[test]
fn of_twenty_that_wait_for_a_dead_holder_exactly_one_gets_the_name() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let mut holder = Holder::holding(&place);
    let hold = |_| Holder::start(&["hold", "x", "60000", "60000"], &place.file);
    let mut waiters: Vec<Holder> = (0..20).map(hold).collect();
    std::thread::sleep(Duration::from_millis(500));
    let begin = Instant::now();
    for token in 2..=9 {
        let dead = holder.pid();
        holder.kill();
        // Only the holder prints lines.
        let lease = eventually("a successor", || {
            db.inspect("x").unwrap().filter(|lease| lease.token == token)
        });
        let pid = Identity::parse(&lease.owner).unwrap().pid as i32;
        assert_ne!(pid, dead);
        let at = waiters.iter().position(|waiter| waiter.pid() == pid).unwrap();
        holder = waiters.swap_remove(at);
        assert_eq!(holder.line(), format!("held {token} {}", lease.owner));
        assert_eq!(db.token("x").unwrap(), Some(token), "one only");
    }
    report(&format!("dead: eight holders killed and succeeded in {:?}", begin.elapsed()));
}

#[test]
fn a_holder_that_dies_in_the_middle_of_a_renewal_is_succeeded() {
    let mut dice = Dice::new("dead");
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    for round in 0..20 {
        let mut holder = Holder::start(&["hold-renewing", "x"], &place.file);
        let told = holder.line();
        assert!(told.starts_with(&format!("held {} ", 2 * round + 1)), "{told}");
        std::thread::sleep(Duration::from_micros(dice.below(5_000)));
        holder.kill();
        assert_eq!(succeed(&db, SOON), Some(2 * round + 2));
        let _ = db.release_by_owner("x", "successor").unwrap();
    }
    let whole: String =
        db.conn().pragma_query_value(None, "integrity_check", |row| row.get(0)).unwrap();
    assert_eq!(whole, "ok");
}

#[test]
fn a_child_that_a_dead_holder_has_forked_is_not_the_holder() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let mut holder = Holder::start(&["hold-forked", "x"], &place.file);
    let told = holder.line();
    let (child, found) = told.split_once(' ').unwrap();
    assert!(found.contains("forked process"), "the copy knows: {told}");
    let child: i32 = child.parse().unwrap();
    assert_eq!(succeed(&db, FEW_LOOKS), None, "the parent holds it");
    kill(holder.pid(), SIGKILL);
    assert_eq!(succeed(&db, SOON), Some(2));
    assert!(is_running(child), "it lives on without the lease");
    kill(child, SIGKILL);
}

// `litelease run`: what is killed is the wrapper, and the work is done by others.

/// Tells every few milliseconds that it is at work, deaf to all that can be ignored.
const LOOP: &str = "trap '' TERM INT HUP QUIT; while :; do date +%s%N >> work; sleep 0.01; done";

/// Starts a run that works with a child of its own, until both have told so.
fn working(desk: &Desk, ttl: &str) -> (Run, [i32; 2]) {
    let script = format!("sh -c \"echo \\$\\$ > grandchild; {LOOP}\" & echo $$ > child; {LOOP}");
    let run = desk.start(&["--ttl", ttl, "x"], &script);
    let pids = ["child", "grandchild"].map(|name| desk.pid(name));
    desk.read("work");
    (run, pids)
}

/// The last moment at which the first run was at work, and the first of the next one, both as told
/// by themselves.
fn moments(desk: &Desk) -> (u64, u64) {
    let begin = desk.read("next").parse().unwrap();
    (desk.peek("work").lines().filter_map(|line| line.parse().ok()).max().unwrap(), begin)
}

#[test]
fn a_killed_wrapper_is_succeeded_at_once_and_never_while_its_group_is_at_work() {
    for is_stopped in [false, true] {
        let desk = Desk::new();
        let (run, pids) = working(&desk, "60s");
        let next = desk.start(&["x"], "date +%s%N > next; echo $LITELEASE_TOKEN > token");
        std::thread::sleep(Duration::from_millis(300));
        if is_stopped {
            pids.into_iter().for_each(|pid| kill(pid, SIGSTOP));
        }
        let begin = Instant::now();
        run.signal(SIGKILL);
        assert_eq!(desk.read("token"), "2");
        report(&format!(
            "dead: the next run began after {:?}, stopped: {is_stopped}",
            begin.elapsed()
        ));
        assert!(begin.elapsed() < SOON);
        let (last, first) = moments(&desk);
        assert!(last < first, "{} ns of overlap", last - first);
        pids.into_iter().for_each(is_gone);
        assert_eq!(next.end().0, 0);
        drop(run.end());
    }
}

/// A user who kills the wrapper and its sentinel leaves the children of the command behind: the
/// kernel ends the command only.
#[test]
fn a_wrapper_that_is_killed_with_its_sentinel_is_not_succeeded_before_its_group_has_ended() {
    let desk = Desk::new();
    let (run, [child, grandchild]) = working(&desk, "60s");
    kill_with_sentinel(&run, child);
    let next = desk.start(&["x"], "date +%s%N > next; echo $LITELEASE_TOKEN > token");
    assert!(stays(2 * FEW_LOOKS, || desk.peek("next").is_empty()), "it was taken over");
    assert!(is_running(grandchild), "or this is no test");
    let (_, status, _) = outcome(&desk.run(&["who", "x", "--json"]));
    assert!(status.contains("\"process\":\"unknown\""), "{status}");
    kill(grandchild, SIGKILL);
    let begin = Instant::now();
    assert_eq!(desk.read("token"), "2");
    assert!(begin.elapsed() < SOON);
    let (last, first) = moments(&desk);
    assert!(last < first, "{} ns of overlap", last - first);
    assert_eq!(next.end().0, 0);
    drop(run.end());
}

/// Kills a wrapper and its sentinel, so that only the command itself is killed with them.
fn kill_with_sentinel(run: &Run, command: i32) {
    let mut sentinels = children_of(run.pid());
    sentinels.retain(|pid| *pid != command);
    assert_eq!(sentinels.len(), 1);
    kill(sentinels[0], SIGSTOP); // so that it cannot see what comes
    run.signal(SIGKILL);
    kill(sentinels[0], SIGKILL);
    is_gone(command);
}

/// As the end of a service or of a container does it.
#[test]
fn a_run_that_is_killed_with_everything_in_it_is_succeeded_at_once() {
    let desk = Desk::new();
    let (run, [child, _]) = working(&desk, "60s");
    kill(-child, SIGKILL);
    run.signal(SIGKILL);
    let begin = Instant::now();
    let (code, said, _) =
        outcome(&desk.run(&["run", "-w", "20s", "x", "--", "sh", "-c", "echo $LITELEASE_TOKEN"]));
    // The wrapper may have been quick enough to release it.
    assert_eq!((code, said.as_str()), (0, "2\n"));
    assert!(begin.elapsed() < SOON);
    drop(run.end());
}

#[test]
fn a_slot_of_a_run_that_is_killed_with_everything_in_it_is_lent_again_at_once() {
    let desk = Desk::new();
    let run = desk.start(&["--ttl", "10m", "--slots", "1", "x"], "echo $$ > child; sleep 600; :");
    let child = desk.pid("child");
    let next = |wait: &str| {
        let script = "echo $LITELEASE_SLOT $LITELEASE_TOKEN";
        let words = ["run", "--slots", "1", "-w", wait, "x", "--", "sh", "-c", script];
        let (code, said, _) = outcome(&desk.run(&words));
        (code, said)
    };
    assert_eq!(next("0s"), (1, String::new()), "its holder lives");
    kill(-child, SIGKILL);
    run.signal(SIGKILL);
    // The wrapper may have been quick enough to return it.
    assert_eq!(next("60s"), (0, "0 2\n".into()));
    drop(run.end());
}

#[test]
fn a_slot_of_a_killed_run_is_not_lent_again_before_its_group_has_ended() {
    let desk = Desk::new();
    let script = "sh -c 'echo $$ > grandchild; exec sleep 600' & echo $$ > child; wait";
    let run = desk.start(&["--ttl", "10m", "--slots", "1", "x"], script);
    let (child, grandchild) = (desk.pid("child"), desk.pid("grandchild"));
    kill_with_sentinel(&run, child);
    let next = |wait: &str| desk.run(&["run", "--slots", "1", "-w", wait, "x", "--", "true"]);
    assert_eq!(outcome(&next("1s")).0, 1, "its group is at work");
    kill(grandchild, SIGKILL);
    assert_eq!(outcome(&next("60s")).0, 0);
    drop(run.end());
}

#[test]
fn only_a_slot_whose_note_names_a_dead_holder_is_lent_again_early() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let mut child = Command::new("true").spawn().unwrap();
    let me = Identity::new(HolderKind::Hold);
    // Started before this process, by the number of one that has ended: such a process is gone.
    let dead = Identity { pid: child.id(), ..me.clone() };
    child.wait().unwrap();
    let caller = Identity {
        holder: me.holder.clone().map(|(at, _)| (at, HolderKind::Claim)),
        ..dead.clone()
    };
    let elsewhere = Identity { host: "elsewhere".into(), ..dead.clone() };
    db.pools().register("x", 1).unwrap();
    for (note, is_dead) in
        [(me, false), (caller, false), (elsewhere, false), (dead.clone(), true), (dead, false)]
    {
        let options = BorrowOptions { note: Some(&note.to_string()), key: None };
        let lent = db.pools().borrow_with("x", LONG, options).unwrap().unwrap();
        // The last one is kept until it is returned, even if its holder is dead.
        let is_kept = note.is_dead() && !is_dead;
        assert!(!is_kept || db.pools().keep("x", &lent.lease_id).unwrap());
        let next = db.hold_slot("x", HoldOptions::new(LONG), "next").unwrap();
        assert_eq!(next.is_some(), is_dead, "{note}");
        if let Some(next) = next {
            assert!(next.token() > lent.slot.token);
            next.give_back().unwrap();
        }
        let was_held = db.pools().return_slot("x", &lent.lease_id).unwrap();
        assert_eq!(was_held, !is_dead);
    }
}

/// Process 1 of most containers reaps nothing: what is killed there stays as a zombie in its group.
/// The successor once waited for the whole ttl.
#[test]
fn a_killed_run_is_succeeded_at_once_where_process_1_reaps_nothing() {
    let desk = Desk::new();
    let script = "litelease run --ttl 10m x -- sh -c 'echo $$ > child; sleep 600; :' & run=$!
                  (while ! [ -s child ]; do sleep 0.01; done; kill -9 $run
                   litelease run x -- sh -c 'ps -eo pgid=,stat= > states; echo $LITELEASE_TOKEN > token') &
                  exec sleep 600";
    let Some(_container) = container(&desk, script) else { return };
    assert_eq!(desk.read("token"), "2");
    let (states, group) = (desk.peek("states"), desk.read("child"));
    let is_left = |line: &str| line.trim().starts_with(&format!("{group} Z"));
    assert!(states.lines().any(is_left), "or this is no test: {states}");
}

/// A process whose main thread has ended is shown as a zombie while its other threads work.
#[test]
fn a_killed_run_is_not_succeeded_while_a_thread_of_its_group_works() {
    let desk = Desk::new();
    let script = format!(
        "mkfifo input; {WORKER} hold-threaded $LITELEASE_DB y <> input > told & echo $$ > child; wait"
    );
    let run = desk.start(&["--ttl", "10m", "x"], &script);
    let child = desk.pid("child");
    let line = desk.read("told");
    let owner = line.strip_prefix("held 1 ").unwrap();
    let threaded = Identity::parse(owner).unwrap().pid as i32;
    eventually("its main thread ends", || (!is_running(threaded)).then_some(()));
    kill_with_sentinel(&run, child);
    let next = |wait: &str| {
        let words = ["run", "-w", wait, "x", "--", "sh", "-c", "echo $LITELEASE_TOKEN"];
        let (code, said, _) = outcome(&desk.run(&words));
        (code, said)
    };
    assert_eq!(next("0s"), (1, String::new()), "a thread of it is at work");
    kill(threaded, SIGKILL);
    assert_eq!(next("60s"), (0, "2\n".into()));
}

/// A pid namespace of its own, in which a shell script becomes process 1. Everything in it ends
/// with the value.
fn container(desk: &Desk, script: &str) -> Option<Holder> {
    if !is_allowed(&OWN_PIDS) {
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(OWN_PIDS).args(["sh", "-c", script]).current_dir(desk.folder.path());
    desk.environment(&mut command);
    Some(Holder::from_child(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()))
}

#[test]
fn a_wrapper_that_is_killed_while_it_waits_leaves_no_process_behind() {
    let desk = Desk::new();
    let db = desk.db();
    acquired(db.claim("x", "a", LONG));
    let run = desk.start(&["x"], "echo > started");
    let children = eventually("both of its processes", || {
        Some(children_of(run.pid())).filter(|pids| pids.len() == 2)
    });
    std::thread::sleep(Duration::from_millis(100));
    run.signal(SIGKILL);
    children.into_iter().for_each(is_gone);
    assert_eq!((db.token("x").unwrap(), desk.peek("started")), (Some(1), String::new()));
}

/// Several runs at a time, wrappers killed at random moments: alone, with their sentinels, with all
/// they have started, with a stopped command. `LITELEASE_KILLS` says how often.
#[test]
fn runs_that_are_killed_in_every_way_never_overlap() {
    let kills = std::env::var("LITELEASE_KILLS").map_or(12, |kills| kills.parse().unwrap());
    let mut dice = Dice::new("killed runs");
    let desk = Desk::new();
    let beat = "i=0; while [ $i -lt 20 ]; do echo $LITELEASE_TOKEN $(date +%s%N) >> beats; sleep 0.01; \
                i=$((i+1)); done";
    let script = format!("trap '' TERM INT HUP; ({beat}) & {beat}; wait");
    let start = || desk.start(&["--ttl", "60s", "x"], &script);
    let mut runs: Vec<Run> = (0..4).map(|_| start()).collect();
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(dice.below(500)));
        let mut run = std::mem::replace(&mut runs[dice.below(4) as usize], start());
        let children = children_of(run.pid());
        let (sentinels, others): (Vec<i32>, Vec<i32>) =
            children.into_iter().partition(|pid| session_of(*pid) == *pid);
        let (before, with) = match dice.below(4) {
            0 => (vec![], vec![]),
            1 => (sentinels.clone(), sentinels),
            2 => (vec![], [sentinels, others].concat()),
            _ => (others, vec![]),
        };
        before.into_iter().for_each(|pid| kill(pid, SIGSTOP));
        run.signal(SIGKILL);
        with.into_iter().for_each(|pid| kill(pid, SIGKILL));
        run.child.wait().unwrap();
    }
    for run in runs {
        let (code, errors) = run.end();
        assert_eq!((code, errors.as_str()), (0, ""), "the last ones are left alone");
    }
    let mut beats: Vec<(u64, i64)> = Vec::new();
    for line in desk.peek("beats").lines() {
        let (token, time) = line.split_once(' ').unwrap();
        beats.push((time.parse().unwrap(), token.parse().unwrap()));
    }
    beats.sort();
    let tokens: Vec<i64> = beats.into_iter().map(|(_, token)| token).collect();
    assert!(tokens.is_sorted(), "an older grant was at work after a newer one");
    report(&format!("dead: {kills} runs killed, {} beats, no overlap", tokens.len()));
}

fn children_of(pid: i32) -> Vec<i32> {
    let found = Command::new("pgrep").args(["-P", &pid.to_string()]).output().unwrap();
    let text = String::from_utf8(found.stdout).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

fn session_of(pid: i32) -> i32 {
    // SAFETY: no pointers are involved.
    unsafe { libc::getsid(pid) }
}

/// A slot that an operator ended was reported as expired, which `litelease run` takes for its own
/// clock: it killed its command without grace.
#[test]
fn a_slot_that_is_broken_is_lost_as_broken_before_its_next_renewal() {
    let folder = TestFolder::new("WAL");
    let (db, operator) = (folder.open(LONG), folder.open(LONG));
    db.pools().register("seats", 1).unwrap();
    let slot =
        db.hold_slot("seats", HoldOptions::new(Duration::from_secs(60)), "").unwrap().unwrap();
    assert!(operator.pools().break_slot("seats", 0, slot.token()).unwrap());
    assert_eq!(slot.lost().wait_timeout(Duration::from_secs(15)), Some(Loss::Broken));
    // A position that no pool has is no other slot.
    let next = db.hold_slot("seats", HoldOptions::new(LONG), "").unwrap().unwrap();
    assert!(!operator.pools().break_slot("seats", 1 << 20, next.token()).unwrap());
    next.check().unwrap();
}

#[test]
fn a_slot_cannot_be_held_inside_a_transaction_that_may_be_rolled_back() {
    let folder = TestFolder::new("WAL");
    let db = folder.open(LONG);
    db.pools().register("seats", 1).unwrap();
    db.conn().execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = db.hold_slot("seats", HoldOptions::new(LONG), "").unwrap_err();
    assert!(matches!(refused, HoldError::InTransaction), "{refused}");
}
