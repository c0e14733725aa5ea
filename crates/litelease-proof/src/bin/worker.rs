//! A process that uses leases, for tests that need real ones: to race, to kill, to restart.
//!
//! ```text
//! worker claim FILE NAME OWNER TTL_MS     claims once
//! worker inspect FILE NAME                tells who has it
//! worker cycle FILE NAME OWNER ROUNDS TTL_MS
//!                                         claims and releases, telling each token once it is granted
//! worker write FILE NAME OWNER TTL_MS     claims, and writes without end and without a renewal, until it is
//!                                         refused; then tells how each of its writes fared
//! worker admit FILE NAME                  passes a gate under larger and larger tokens, telling each
//! worker note FILE WHO WRITES             writes as a single writer
//! worker hold-write-lock FILE             holds the single writer's lock until its input ends
//! worker wait-cycle FILE NAME OWNER ROUNDS
//!                                         waits for the name and releases it, telling each token
//! worker hold FILE NAME TTL_MS WAIT_MS    holds a name until its input ends, telling the token, or who has it
//! worker hold-threaded FILE NAME          the same on a thread, after the main thread has ended
//! worker hold-forked FILE NAME            the same, and a forked copy tells what it makes of the hold
//! worker fork-commits FILE KIND           keeps something of a kind and closes its connection; a forked copy commits 21
//!                                         rows, one of them before this process closes everything
//! worker fork-holds FILE FORKS GATE       holds names in SQL, and forks again and again; each copy holds a name in a
//!                                         file of its own; tells how many copies hang; GATE is `gated` or `ungated`
//! worker hold-renewing FILE NAME          the same, with one renewal after the other
//! worker lock-it FILE NAME                locks a name with a Tracker once
//! worker lock-moving FILE NAME            locks a name with a Tracker, changes to the folder `other`, and locks it again
//! worker cached-read FILE NAME TTL_MS     answers from memory until its input ends, and then stores when it answered
//!                                         each value last
//! worker cached-forked FILE NAME          caches a value, and a forked copy tells what it makes of it
//! worker cached-write FILE NAME TTL_MS ROUNDS
//!                                         writes larger and larger values, and stores when each was committed
//! worker hold-lock FILE                   holds the write lock until its input ends
//! worker write-loop FILE                  commits one short transaction after the other, until its input ends
//! worker finish-all FILE QUEUE VISIBILITY_MS
//!                                         finishes items without end, each with a row in `effects`
//! worker finish-later FILE QUEUE VISIBILITY_MS
//!                                         receives an item, and tries to finish it at each line of its input
//! worker session FILE IDENTITY TTL_MS NAME...
//!                                         claims the names in a session; at each line of its input, tells how many it
//!                                         trusts, and how many tables `of_NAME` it may write to
//! worker lead FILE NAME TTL_MS            campaigns without end, and writes its term until it is refused
//! worker shards FILE GROUP COUNT ID TTL_MS
//!                                         works on its shards without end, telling each checkpoint: shard, token, value
//! worker engine-forked URL                claims a name of an engine; a forked copy tells what it may do, and then this
//!                                         process whether its next write is stored
//! worker believe URL NUMBER NAMES PLANTED claims names of an engine without end, and tells what it believes
//! worker serve URL ADDRESS BUG            serves an engine with a planted bug, until a signal
//! ```

use std::any::Any;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use litelease::rusqlite::{Connection, ErrorCode};
use litelease::{
    AdmitResult, Cached, CheckpointResult, ClaimResult, Election, Gate, HoldError, HoldOptions,
    Litelease, ReleaseResult, Session, ShardEvent, Shards, ShardsOptions, SingleWriter, Tracker,
    WriterOptions,
};
use litelease_cluster::Cluster;
use litelease_cluster::engine::{Change, Stored};
use litelease_hold::{Clock, SystemClock};
use litelease_proof::believers::{Planted, believe};
use litelease_proof::careless::{self, Bug};
use litelease_proof::play::ToText;

/// Longer than any test looks for who is next.
const MINUTE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("worker {words:?}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    match words {
        ["claim", file, name, owner, ttl_ms] => {
            let db = open(file)?;
            report(&db.claim(name, owner, Duration::from_millis(ttl_ms.parse()?))?.to_text())
        }
        ["believe", url, number, names, planted] => {
            end_with_input();
            let planted = Planted::parse(planted).ok_or("no such bug")?;
            Ok(believe(url, number.parse()?, names.parse()?, planted)?)
        }
        ["serve", url, listen, bug] => {
            careless::serve(url, listen, Bug::named(bug).ok_or("no such bug")?);
            Ok(())
        }
        ["inspect", file, name] => match open(file)?.inspect(name)? {
            Some(lease) => report(&format!("held {} {}", lease.owner, lease.token)),
            None => report("none"),
        },
        ["cycle", file, name, owner, rounds, ttl_ms] => {
            cycle(file, name, owner, rounds.parse()?, Duration::from_millis(ttl_ms.parse()?))
        }
        ["write", file, name, owner, ttl_ms] => {
            write(file, name, owner, Duration::from_millis(ttl_ms.parse()?))
        }
        ["admit", file, name] => {
            let gate = Gate::open(file)?;
            for token in 1.. {
                if gate.admit(name, token)? == AdmitResult::Admitted {
                    report(&token.to_string())?;
                }
            }
            Ok(())
        }
        ["note", file, who, writes] => {
            let options = WriterOptions { timeout: Duration::from_secs(120), ..Default::default() };
            let writer = SingleWriter::open_with(file, options)?;
            for n in 0..writes.parse::<u32>()? {
                writer.write(|tx| tx.execute("INSERT INTO notes VALUES (?1, ?2)", (who, n)))?;
            }
            Ok(())
        }
        ["hold-write-lock", file] => {
            let options = WriterOptions { timeout: Duration::from_secs(120), ..Default::default() };
            let writer = SingleWriter::open_with(file, options)?;
            let tx = writer.begin()?;
            tx.execute("INSERT INTO notes VALUES ('killed', 0)", [])?;
            report("locked")?;
            std::io::stdin().read_to_end(&mut Vec::new())?;
            Ok(())
        }
        ["wait-cycle", file, name, owner, rounds] => {
            let db = open(file)?;
            for _ in 0..rounds.parse()? {
                let claimed = db.claim_wait(name, owner, Duration::from_secs(60), Duration::MAX)?;
                let lease = claimed.acquired().ok_or("waited for ever and got nothing")?;
                report(&lease.token.to_string())?;
                db.release(&lease)?;
            }
            Ok(())
        }
        ["hold", file, name, ttl_ms, wait_ms] => {
            let wait = Duration::from_millis(wait_ms.parse()?);
            let options = HoldOptions::new(Duration::from_millis(ttl_ms.parse()?)).wait(wait);
            let db = open(file)?;
            match db.hold(name, options) {
                Ok(held) => {
                    report(&format!("held {} {}", held.token(), held.owner()))?;
                    until_input_ends()
                }
                Err(HoldError::Busy(current)) => report(&format!("busy {}", current.owner)),
                Err(error) => Err(error.into()),
            }
        }
        ["hold-threaded", file, name] => {
            let db = open(file)?;
            let held = db.hold(name, HoldOptions::new(MINUTE))?;
            let work = move || {
                let told = report(&format!("held {} {}", held.token(), held.owner()));
                std::process::exit(i32::from(told.and_then(|()| until_input_ends()).is_err()))
            };
            std::thread::spawn(work);
            // What pthread_exit does in the end; its way there is by unwinding, which Rust does not
            // allow. SAFETY: ends this thread only, and nothing refers to what is on its stack.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
            Ok(())
        }
        ["hold-forked", file, name] => {
            let db = open(file)?;
            let held = db.hold(name, HoldOptions::new(MINUTE))?;
            // SAFETY: the copy asks and tells, and ends without unwinding.
            if unsafe { libc::fork() } == 0 {
                let found = held.check().map_or_else(|lost| lost.to_string(), |()| "held".into());
                let _ = report(&format!("{} {found}", std::process::id()));
                let _ = until_input_ends();
                // SAFETY: ends the copy at once.
                unsafe { libc::_exit(0) };
            }
            sleep(MINUTE);
            Ok(held.check()?)
        }
        ["fork-commits", file, kind] => fork_commits(file, kind),
        ["fork-holds", file, forks, gate] => fork_holds(file, forks.parse()?, gate),
        ["hold-renewing", file, name] => {
            let mut db = open(file)?;
            let held = db.hold(name, HoldOptions::new(MINUTE))?;
            report(&format!("held {} {}", held.token(), held.owner()))?;
            loop {
                let tx = db.transaction()?;
                held.renew_in(&tx)?;
                tx.commit()?;
            }
        }
        ["lock-it", file, name] => match Tracker::new(file)?.lock_it(name, Tracker::EXPIRE) {
            Ok(token) => report(&format!("won {token}")),
            Err(HoldError::TrackerIsLocked { owner, .. }) => report(&format!("lost to {owner}")),
            Err(error) => Err(error.into()),
        },
        ["lock-moving", file, name] => {
            let tracker = Tracker::new(file)?;
            tracker.lock_it(name, Tracker::EXPIRE)?;
            std::env::set_current_dir("other")?;
            let again = tracker.lock_it(name, Tracker::EXPIRE);
            report(again.map_or_else(|error| error.kind(), |_| "locked twice"))
        }
        ["cached-read", file, name, ttl_ms] => {
            cached_read(file, name, Duration::from_millis(ttl_ms.parse()?))
        }
        ["cached-forked", file, name] => {
            let value = cached(file, name, MINUTE)?;
            value.get()?;
            // SAFETY: the copy asks and tells, and ends without unwinding.
            let copy = unsafe { libc::fork() };
            if copy == 0 {
                let answers = [value.get().map(drop), value.write(MINUTE, |_| Ok(()))];
                let kinds =
                    answers.map(|answer| answer.map_or_else(|error| error.kind(), |()| "ok"));
                drop(value);
                let _ = report(&kinds.join(" "));
                // SAFETY: ends the copy at once.
                unsafe { libc::_exit(0) };
            }
            // SAFETY: waits for the copy, and asks for nothing else.
            unsafe { libc::waitpid(copy, std::ptr::null_mut(), 0) };
            value
                .write(MINUTE, |tx| Ok(tx.conn().execute("UPDATE config SET value = 1", [])?))?;
            report(&value.get()?.to_string())
        }
        ["engine-forked", url] => engine_forked(url),
        ["cached-write", file, name, ttl_ms, rounds] => {
            cached_write(file, name, Duration::from_millis(ttl_ms.parse()?), rounds.parse()?)
        }
        ["hold-lock", file] => {
            let mut db = open(file)?;
            let tx = db.transaction()?;
            report("locked")?;
            std::io::stdin().read_to_end(&mut Vec::new())?;
            Ok(tx.rollback()?)
        }
        ["write-loop", file] => {
            let db = open(file)?;
            db.conn().execute_batch("CREATE TABLE loops (n); INSERT INTO loops VALUES (0)")?;
            let ends = std::thread::spawn(|| until_input_ends().is_ok());
            report("writes")?;
            while !ends.is_finished() {
                db.conn().execute("UPDATE loops SET n = n + 1", [])?;
            }
            Ok(())
        }
        ["finish-all", file, queue, visibility_ms] => {
            let db = open(file)?;
            let queue = db.queue(queue);
            let visibility = Duration::from_millis(visibility_ms.parse()?);
            loop {
                match queue.receive(visibility) {
                    // The machine was busy for too long.
                    Err(litelease::Error::ExpiredOnArrival(_)) => {}
                    Err(error) => return Err(error.into()),
                    Ok(None) => sleep(Duration::from_millis(5)),
                    Ok(Some(item)) => {
                        report(&format!("received {}", item.id))?;
                        match finish(&item) {
                            Ok(()) => report(&format!("finished {}", item.id))?,
                            Err(error @ litelease::Error::StaleReceipt { .. }) => {
                                report(&error.to_string())?;
                            }
                            Err(error) => return Err(error.into()),
                        }
                    }
                }
            }
        }
        ["finish-later", file, queue, visibility_ms] => {
            let db = open(file)?;
            let visibility = Duration::from_millis(visibility_ms.parse()?);
            let item = db.queue(queue).receive(visibility)?.ok_or("nothing is visible")?;
            report(&format!("received {}", item.id))?;
            for line in std::io::stdin().lines() {
                line?;
                report(&finish(&item).map_or_else(|error| error.to_string(), |()| "done".into()))?;
            }
            Ok(())
        }
        ["session", file, identity, ttl_ms, names @ ..] => {
            let ttl = Duration::from_millis(ttl_ms.parse()?);
            in_session(file, identity, ttl, names)
        }
        ["lead", file, name, ttl_ms] => lead(file, name, Duration::from_millis(ttl_ms.parse()?)),
        ["shards", file, group, count, id, ttl_ms] => {
            let options = ShardsOptions::new(id, Duration::from_millis(ttl_ms.parse()?));
            loop {
                match work_on_shards(file, group, count.parse()?, options.clone()) {
                    // It was stopped for too long: it begins again.
                    Err(HoldError::Lost(_) | HoldError::Busy(_)) => sleep(Duration::from_millis(5)),
                    done => return Ok(done?),
                }
            }
        }
        _ => Err("unknown words".into()),
    }
}

/// Writes the effect of an item and acknowledges it.
fn finish(item: &litelease::Item<'_>) -> litelease::Result<()> {
    item.finish(|tx| {
        tx.conn().execute("INSERT INTO effects VALUES (?1, ?2)", (item.id, item.token))?;
        Ok(())
    })
}

/// Ends this process when its input does: the test is gone.
fn end_with_input() {
    std::thread::spawn(|| {
        let _ = until_input_ends();
        std::process::exit(0);
    });
}

fn until_input_ends() -> Result<(), Box<dyn std::error::Error>> {
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn cycle(
    file: &str,
    name: &str,
    owner: &str,
    rounds: u32,
    ttl: Duration,
) -> Result<(), Box<dyn std::error::Error>> {
    let db = open(file)?;
    let mut granted = 0;
    while granted < rounds {
        match db.claim(name, owner, ttl) {
            // The machine was busy for longer than the ttl: stored, but not ours, and not told.
            Err(litelease::Error::ExpiredOnArrival(_)) => {}
            Err(error) => return Err(error.into()),
            Ok(ClaimResult::Busy(_)) => sleep(Duration::from_micros(200)),
            Ok(ClaimResult::Acquired(lease)) => {
                granted += 1;
                report(&lease.token.to_string())?;
                match db.release(&lease)? {
                    ReleaseResult::Released { .. } => {}
                    // A process may have been stopped for longer than the ttl.
                    ReleaseResult::Rejected { reason, .. } => eprintln!("not released: {reason}"),
                }
            }
        }
    }
    Ok(())
}

fn in_session(
    file: &str,
    identity: &str,
    ttl: Duration,
    names: &[&str],
) -> Result<(), Box<dyn std::error::Error>> {
    let db = open(file)?;
    let session = Session::open(&db, identity, ttl)?;
    let held: Vec<_> = names.iter().map(|name| session.claim(name)).collect::<Result<_, _>>()?;
    report("open")?;
    for line in std::io::stdin().lines() {
        line?;
        let trusted = held.iter().filter(|held| held.check().is_ok()).count();
        let mut written = 0;
        // Tried in any case: the file must refuse what is not trusted any more.
        for held in &held {
            held.present_on(&db)?;
            let sql = format!("INSERT INTO of_{} VALUES (?1)", held.name());
            written += usize::from(!insert(&db, &sql, held.token())?);
        }
        report(&format!("trusted {trusted} written {written}"))?;
    }
    Ok(session.close()?)
}

fn lead(file: &str, name: &str, ttl: Duration) -> Result<(), Box<dyn std::error::Error>> {
    let db = open(file)?;
    let election = Election::new(&db, name)?;
    loop {
        let options = HoldOptions::new(ttl).wait(Duration::MAX);
        let leader = election.campaign(std::process::id(), options)?;
        leader.held().present_on(&db)?;
        report(&format!("leads {}", leader.term()))?;
        // It never asks whether it is still the leader. The file must stop it.
        while !insert(&db, "INSERT INTO decisions VALUES (?1)", leader.term())? {
            sleep(Duration::from_millis(2));
        }
        let read = leader.read(|_| Ok(()));
        report(if read.is_err() { "refused" } else { "read although refused" })?;
    }
}

fn work_on_shards(
    file: &str,
    group: &str,
    count: usize,
    options: ShardsOptions,
) -> Result<(), HoldError> {
    let shards = Shards::join(&open(file)?, group, count, options)?;
    let mut work: BTreeMap<usize, (i64, i64)> = BTreeMap::new();
    loop {
        while let Some(event) = shards.next(Duration::from_millis(2))? {
            match event {
                ShardEvent::Assigned { shard, token, checkpoint } => {
                    let value = match checkpoint.map(|checkpoint| checkpoint.value) {
                        Some(litelease::rusqlite::types::Value::Integer(value)) => value,
                        _ => 0,
                    };
                    work.insert(shard, (token, value));
                }
                ShardEvent::Requested { shard, .. } if work.contains_key(&shard) => {
                    let is_moved = shards.hand_over(shard).unwrap_or(false);
                    if is_moved {
                        work.remove(&shard);
                    }
                }
                ShardEvent::Lost { shard, .. } => drop(work.remove(&shard)),
                _ => {}
            }
        }
        for (shard, (token, value)) in &mut work {
            // If it is refused, an event will tell.
            if shards.checkpoint(*shard, *value + 1).is_ok() {
                *value += 1;
                let _ = report(&format!("{shard} {token} {value}"));
            }
        }
    }
}

/// The value that readers cache.
fn cached(file: &str, name: &str, ttl: Duration) -> Result<Cached<i64>, HoldError> {
    open(file)?.cached(name, ttl, |conn| {
        Ok(conn.query_row("SELECT value FROM config", [], |row| row.get(0))?)
    })
}

/// Forks while the keeper renews names every few milliseconds. Each fourth copy holds a name
/// itself.
fn fork_holds(file: &str, forks: u32, gate: &str) -> Result<(), Box<dyn std::error::Error>> {
    let is_gated = gate == "gated";
    #[cfg(planted)]
    litelease_hold::file::HAS_NO_GATE.store(!is_gated, std::sync::atomic::Ordering::SeqCst);
    let open = |file: &str| -> Result<Connection, Box<dyn std::error::Error>> {
        let connection = Connection::open(file)?;
        connection.busy_timeout(MINUTE)?;
        litelease::functions::register(&connection)?;
        connection.query_row("SELECT litelease_bootstrap()", [], |_| Ok(()))?;
        Ok(connection)
    };
    let hold = |connection: &Connection, name: &str, ttl_ms: i64| {
        let sql = "SELECT litelease_hold(?1, ?2)";
        connection.query_row(sql, (name, ttl_ms), |row| row.get::<_, Option<i64>>(0))
    };
    let (connection, mut hung) = (open(file)?, 0);
    for number in 0..forks {
        for name in ["a", "b", "c"] {
            // Again, if it was lost. A busy machine may refuse, and the next fork tries again.
            let _ = hold(&connection, name, 110);
        }
        sleep(Duration::from_micros(u64::from(number % 40) * 1000));
        // SAFETY: the copy ends without unwinding.
        let copy = unsafe { libc::fork() };
        if copy == 0 {
            let holds =
                || open(&format!("{file}-copy")).and_then(|own| Ok(hold(&own, "d", 60_000)?));
            let is_fine = number % 4 != 0 || holds().is_ok();
            // SAFETY: ends the copy at once.
            unsafe { libc::_exit(i32::from(!is_fine)) };
        }
        let (mut status, begin) = (0, std::time::Instant::now());
        // SAFETY: the copy is ours, and the status is a number.
        while unsafe { libc::waitpid(copy, &raw mut status, libc::WNOHANG) } == 0 {
            if begin.elapsed() > Duration::from_secs(if is_gated { 30 } else { 3 }) {
                // SAFETY: as above.
                unsafe { libc::kill(copy, libc::SIGKILL) };
            }
            sleep(Duration::from_micros(200));
        }
        if status != 0 {
            hung += 1;
            if !is_gated {
                break; // once is proof enough
            }
        }
    }
    report(&format!("{hung} of {forks}"))?;
    // SAFETY: ends at once: without the gate the keeper may be stuck, too.
    unsafe { libc::_exit(0) }
}

fn fork_commits(file: &str, kind: &str) -> Result<(), Box<dyn std::error::Error>> {
    let db = open(file)?;
    db.conn().execute_batch("CREATE TABLE notes (text)")?;
    let kept: Box<dyn Any> = match kind {
        "hold" => Box::new(db.hold("x", HoldOptions::new(MINUTE))?),
        "slot" => {
            db.pools().register("p", 1)?;
            Box::new(db.hold_slot("p", HoldOptions::new(MINUTE), "")?)
        }
        "session" => {
            let session = Session::open(&db, "x", MINUTE)?;
            Box::new((session.claim("y")?, session))
        }
        "shards" => Box::new(Shards::join(&db, "g", 2, ShardsOptions::new("a", MINUTE))?),
        "cached" => {
            let value = db.cached("x", MINUTE, |_| Ok(1))?;
            value.get()?;
            Box::new(value)
        }
        other => return Err(format!("no such kind: {other}").into()),
    };
    drop(db);
    let (mut own, mut copys) = UnixStream::pair()?;
    // SAFETY: the copy writes to the file on a connection of its own, and ends without unwinding.
    let copy = unsafe { libc::fork() };
    if copy == 0 {
        drop(own);
        let mut commit_all = || -> Result<(), Box<dyn std::error::Error>> {
            let connection = Connection::open(file)?;
            connection.busy_timeout(MINUTE)?;
            for row in 0..21 {
                connection.execute("INSERT INTO notes VALUES (?1)", [row])?;
                if row == 0 {
                    copys.write_all(b".")?;
                    copys.read_exact(&mut [0])?;
                }
            }
            Ok(())
        };
        let code = commit_all().map_or(1, |()| 0);
        // SAFETY: ends the copy at once.
        unsafe { libc::_exit(code) };
    }
    drop(copys);
    own.read_exact(&mut [0])?;
    drop(kept);
    let path = std::fs::canonicalize(file)?;
    let is_open = || -> std::io::Result<bool> {
        let mut opened = std::fs::read_dir("/proc/self/fd")?.flatten();
        Ok(opened.any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path)))
    };
    while is_open()? {
        sleep(Duration::from_millis(1));
    }
    own.write_all(b".")?;
    let mut status = 0;
    // SAFETY: `status` is ours to write to.
    unsafe { libc::waitpid(copy, &mut status, 0) };
    report(&format!("{status}"))
}

fn engine_forked(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::open(url)?;
    cluster.bootstrap()?;
    // Something goes on in the background, too.
    let watch = cluster.watch();
    let lease = cluster.claim("x", "a", MINUTE)?.acquired().ok_or("somebody has it")?;
    let seen = cluster.engine().load(&["x"])?;
    // SAFETY: the copy asks and tells, and ends without unwinding.
    let copy = unsafe { libc::fork() };
    if copy == 0 {
        let answers =
            [cluster.renew(&lease, MINUTE).map(drop), cluster.engine().load(&["x"]).map(drop)];
        drop((watch, cluster));
        for answer in answers {
            let text = |error: litelease_cluster::Error| format!("{}: {error}", error.kind());
            let _ = report(&answer.map_or_else(text, |()| "done".into()));
        }
        // SAFETY: ends the copy at once.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: waits for the copy, and asks for nothing else.
    unsafe { libc::waitpid(copy, std::ptr::null_mut(), 0) };
    let mut row = seen.rows[0].row.clone().ok_or("there is no row")?;
    row.attempt += 1;
    let change = Change { rows: vec![("x".into(), row)], while_live: true, ..Change::default() };
    match cluster.engine().store(&seen, &change)? {
        Stored::Done { .. } | Stored::DoneAt { .. } => report("stored"),
        Stored::Conflict => report("conflict"),
    }
}

fn cached_read(file: &str, name: &str, ttl: Duration) -> Result<(), Box<dyn std::error::Error>> {
    let value = cached(file, name, ttl)?;
    let ends = std::thread::spawn(|| until_input_ends().is_ok());
    let (mut gets, mut answers) = (0u64, BTreeMap::new());
    report("reads")?;
    while !ends.is_finished() {
        // What counts is when it was asked: it may be stopped between the answer and any later look
        // at a clock.
        let asked = SystemClock.now();
        answers.insert(*value.get()?, asked);
        gets += 1;
        sleep(Duration::from_micros(300));
    }
    drop(value);
    let db = open(file)?;
    for (value, asked) in answers {
        let sql = "INSERT INTO answers VALUES (?1, ?2, ?3)";
        db.conn().execute(sql, (std::process::id(), value, asked.as_nanos() as i64))?;
    }
    report(&gets.to_string())
}

fn cached_write(
    file: &str,
    name: &str,
    ttl: Duration,
    rounds: i64,
) -> Result<(), Box<dyn std::error::Error>> {
    let (value, db) = (cached(file, name, ttl)?, open(file)?);
    for round in 1..=rounds {
        value.write(MINUTE, |tx| {
            Ok(tx.conn().execute("UPDATE config SET value = ?1", [round])?)
        })?;
        let committed = SystemClock.now().as_nanos() as i64;
        db.conn().execute("INSERT INTO commits VALUES (?1, ?2)", (round, committed))?;
        report(&round.to_string())?;
        sleep(Duration::from_millis(60));
    }
    Ok(())
}

/// A writer that never asks whether it is still the owner. The others must stop it.
fn write(
    file: &str,
    name: &str,
    owner: &str,
    ttl: Duration,
) -> Result<(), Box<dyn std::error::Error>> {
    let db = open(file)?;
    let lease = loop {
        match db.claim(name, owner, ttl) {
            Ok(ClaimResult::Acquired(lease)) => break lease,
            Ok(ClaimResult::Busy(_)) | Err(litelease::Error::ExpiredOnArrival(_)) => {
                sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error.into()),
        }
    };
    db.present((name, lease.token))?;
    report(&lease.token.to_string())?;
    // By connection, by column, and not guarded at all.
    let writes = ["INSERT INTO orders VALUES (?1)", "INSERT INTO ledger VALUES (?1, ?1)"];
    let mut refused = [false; 3];
    while !refused.contains(&true) {
        for (sql, refused) in writes.iter().zip(&mut refused) {
            *refused = insert(&db, sql, lease.token)?;
        }
        insert(&db, "INSERT INTO diary VALUES (?1)", lease.token)?;
        refused[2] = matches!(
            db.checkpoint((name, lease.token), lease.token)?,
            CheckpointResult::Stale { .. }
        );
        // Otherwise it would nearly always be stopped with the lock, and no other process could
        // take over.
        sleep(Duration::from_millis(2));
    }
    // It was stopped between two of them, maybe: then the others have still to be tried.
    for (sql, refused) in writes.iter().zip(&mut refused) {
        *refused = insert(&db, sql, lease.token)?;
    }
    report(&format!("refused {refused:?}"))?;
    report(&db.renew(&lease, ttl)?.to_text())?;
    report(&db.release(&lease)?.to_text())
}

/// Answers whether the write was refused. A snapshot that became too old while the process was
/// stopped is no refusal, and no success.
fn insert(db: &Litelease, sql: &str, token: i64) -> Result<bool, Box<dyn std::error::Error>> {
    loop {
        match db.conn().execute(sql, [token]) {
            Ok(_) => return Ok(false),
            Err(error) if litelease::is_stale(&error) => return Ok(true),
            Err(error) => match error.sqlite_error_code() {
                Some(ErrorCode::DatabaseBusy) => {}
                _ => return Err(error.into()),
            },
        }
    }
}

fn open(file: &str) -> litelease::Result<Litelease> {
    let db = Litelease::open(file)?;
    db.conn().busy_timeout(Duration::from_secs(60))?;
    db.bootstrap()?;
    Ok(db)
}

/// Writes a line that is out before anything else happens.
fn report(line: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
