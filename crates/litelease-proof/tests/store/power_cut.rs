//! Simulated power cuts: files stay whole, and no token comes back.

use std::fs;
use std::thread;
use std::time::Duration;

use litelease::rusqlite::{Connection, OpenFlags};
use litelease::{Litelease, LiteleaseRef};
use litelease_proof::boot::{Boot, pretend};
use litelease_proof::disk::{Cut, Disk, Event, Image};
use litelease_proof::power_cut::{Epoch, Journals, Setting, Tally, cut_power, cut_power_of_shared};
use litelease_proof::rig::{Dice, acquired, report};
use litelease_proof::vfs;

const SEED: u64 = 7;

/// Cuts the power in each setting, on two threads.
fn cut_all(settings: &[Setting], epoch: Epoch, images: u64) -> Vec<(Setting, Tally)> {
    let halves = [0, 1].map(|half| {
        let settings: Vec<Setting> = settings.iter().copied().skip(half).step_by(2).collect();
        let cut = move |setting| (setting, cut_power(setting, epoch, images, None, SEED));
        thread::spawn(move || settings.into_iter().map(cut).collect::<Vec<_>>())
    });
    let all: Vec<_> = halves.into_iter().flat_map(|half| half.join().expect("no panic")).collect();
    for (setting, tally) in &all {
        report(&format!("power cuts, epoch {epoch:?}, {setting}: {tally}"));
    }
    all
}

#[test]
fn after_a_power_cut_no_file_is_damaged_and_no_token_comes_back() {
    let settings: Vec<Setting> = Setting::all().collect();
    let mut all = Tally::default();
    for (setting, tally) in cut_all(&settings, Epoch::On, 500) {
        assert_eq!(tally.repeated, 0, "{:?}", tally.first);
        if setting.may_be_damaged() {
            // SQLite warns of this: a journal that is synced only once can look right and be torn.
            assert!(tally.damaged * 50 < tally.images, "{setting}: {tally}, {:?}", tally.first);
        } else {
            assert_eq!(tally.damaged, 0, "{:?}", tally.first);
        }
        match setting.is_strong() {
            true => assert_eq!(tally.lost, 0, "{setting}: a grant got lost"),
            false => all.lost += tally.lost,
        }
        all.images += tally.images;
    }
    assert!(all.images >= 6_000, "only {} files", all.images);
    assert!(all.lost > 100, "the cuts took nothing, so they prove nothing");
}

/// Connections of different `synchronous` share a file. `bootstrap` on one that loses nothing once
/// left no record of the boot, and a grant inside a transaction of a weaker one recorded it in the
/// commit that the cut took: token 1, and token 1 again.
#[test]
fn no_token_comes_back_where_connections_of_different_strength_share_a_file() {
    let both = [Journals::Wal, Journals::Rollback].map(|journals| {
        thread::spawn(move || {
            let cut = |epoch, images| cut_power_of_shared(journals, epoch, images, None, SEED);
            (journals, cut(Epoch::On, 800), cut(Epoch::Off, 300))
        })
    });
    for (journals, tally, control) in both.map(|cuts| cuts.join().expect("no panic")) {
        report(&format!("power cuts, shared file, {journals:?}: {tally}"));
        assert_eq!((tally.repeated, tally.damaged), (0, 0), "{:?}", tally.first);
        assert!(tally.images >= 800 && tally.lost > 10, "the cuts took too little: {tally}");
        assert!(control.repeated > 0, "without the epoch: {control}");
    }
}

/// The negative control: the same cuts, and the file does not learn that the machine was off.
#[test]
fn without_the_epoch_tokens_come_back_where_commits_get_lost_and_only_there() {
    let settings: Vec<Setting> =
        Setting::all().filter(|setting| !setting.may_be_damaged()).collect();
    for (setting, tally) in cut_all(&settings, Epoch::Off, 300) {
        assert_eq!(tally.damaged, 0, "{:?}", tally.first);
        match setting.is_strong() {
            true => assert_eq!((tally.lost, tally.repeated), (0, 0), "{:?}", tally.first),
            false => assert!(tally.repeated > 0, "{setting}: {tally}"),
        }
    }
}

/// A process is killed after it has written the mark and before it has synced it. Another one of
/// the same boot finds the mark, and grants by it; then the power goes.
#[test]
fn a_mark_that_was_never_synced_is_not_trusted() {
    assert!(never_synced("NORMAL", |db| db.bootstrap().unwrap()) > 0, "it is trusted in the end");
    assert!(never_synced("FULL", |db| db.bootstrap().unwrap()) > 0, "it is trusted in the end");
    // Nor is an epoch that a grant outside a transaction has begun.
    let trusted = never_synced("NORMAL", |db| {
        db.bootstrap().unwrap();
        acquired(db.at(5_000).claim_above("y", "o", Duration::from_millis(1), 5 << 32));
    });
    assert!(trusted > 0, "it is trusted in the end");
    // A commit that is synced leaves one inside the caller's transaction, too. It was once taken
    // for safe before the sync.
    let trusted = never_synced("FULL", |db| {
        db.conn().execute_batch("BEGIN IMMEDIATE").unwrap();
        acquired(db.at(5_000).claim("y", "o", Duration::from_millis(1)));
        db.conn().execute_batch("COMMIT").unwrap();
    });
    assert_eq!(trusted, 0, "the next bootstrap makes sure");
}

/// Returns how often the mark was trusted that `leave` has left, with the process killed after each
/// of its events.
fn never_synced(synchronous: &str, leave: impl Fn(&Litelease)) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("db");
    let open_with = |synchronous: &str| {
        let connection =
            Connection::open_with_flags_and_vfs(&file, OpenFlags::default(), vfs::NAME).unwrap();
        let pragmas = format!("PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}");
        connection.execute_batch(&pragmas).unwrap();
        Litelease::from_connection(connection)
    };
    let open = || open_with("NORMAL");
    let put = |image: &Image| {
        for end in ["", "-journal", "-wal", "-shm"] {
            let path = folder.path().join(format!("db{end}"));
            match image.get(&format!("db{end}")) {
                Some(bytes) => fs::write(path, bytes).unwrap(),
                None => drop(fs::remove_file(path)),
            }
        }
        vfs::record(image);
    };
    let grant = |db: &Litelease, now_ms| {
        acquired(db.at(now_ms).claim("x", "o", Duration::from_millis(1))).token
    };
    // The first boot leaves some grants.
    vfs::record(&Image::new());
    pretend(Some(Boot::Known(1)));
    let db = open();
    db.bootstrap().unwrap();
    (1..4).for_each(|round| assert_eq!(grant(&db, 100 * round), round));
    drop(db);
    let _ = vfs::recorded();
    let files = Image::from([("db".to_owned(), fs::read(&file).unwrap())]);
    // The second boot: its first process is killed after every single event of leaving the mark.
    pretend(Some(Boot::Known(2)));
    put(&files);
    let start = vfs::position();
    let db = open_with(synchronous);
    leave(&db);
    let end = vfs::position();
    drop(db);
    let events = vfs::recorded();
    let mut trusted = 0;
    for at in start..=end {
        let mut disk = Disk::default();
        events[..at].iter().for_each(|event| disk.follow(event));
        let mut dice = Dice::from(1);
        let killed = disk.cut(Cut::LosesNothing, &mut dice);
        let safe = disk.cut(Cut::LosesAll, &mut dice);
        pretend(Some(Boot::Known(2)));
        put(&killed);
        let before = vfs::position();
        let db = open();
        db.bootstrap().unwrap();
        let granted = grant(&db, 10_000);
        let after = vfs::position();
        drop(db);
        let syncs = vfs::recorded()[before..after]
            .iter()
            .filter(|event| matches!(event, Event::Sync(_) | Event::SyncFolder))
            .count();
        if syncs > 0 {
            continue;
        }
        // It trusted what it found, so what it found must have been safe.
        trusted += 1;
        pretend(Some(Boot::Known(3)));
        put(&safe);
        let db = open();
        db.bootstrap().unwrap();
        let again = grant(&db, 20_000);
        drop(db);
        let _ = vfs::recorded();
        assert!(
            again > granted,
            "killed after event {at}, {}: {granted}, then {again}",
            events[at - 1]
        );
    }
    pretend(None);
    trusted
}

/// Runs `work` in boot 1, cuts the power so that everything that was not synced is lost, and claims
/// the same name in boot 2. Returns the token that `work` was granted, and the one that boot 2
/// grants.
fn before_and_after_a_cut(work: impl FnOnce(&dyn Fn() -> Connection) -> i64) -> (i64, i64) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("db");
    let open = || {
        let connection =
            Connection::open_with_flags_and_vfs(&file, OpenFlags::default(), vfs::NAME).unwrap();
        let pragmas = "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL";
        connection.execute_batch(pragmas).unwrap();
        connection
    };
    pretend(Some(Boot::Known(1)));
    vfs::record(&Image::new());
    let told = work(&open);
    let mut disk = Disk::default();
    vfs::recorded().iter().for_each(|event| disk.follow(event));
    for end in ["", "-journal", "-wal", "-shm"] {
        drop(fs::remove_file(folder.path().join(format!("db{end}"))));
    }
    for (name, bytes) in disk.cut(Cut::LosesAll, &mut Dice::from(1)) {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    pretend(Some(Boot::Known(2)));
    let db = Litelease::open(&file).unwrap();
    db.bootstrap().unwrap();
    let again = acquired(db.at(30_000).claim("y", "c", Duration::from_millis(1))).token;
    pretend(None);
    (told, again)
}

/// Another process crosses into the next epoch inside a transaction of its own, which puts the
/// record of the boot at risk. A handle that had seen the record before trusted what it had seen:
/// its token came back.
#[test]
fn a_record_that_others_put_at_risk_is_made_sure_before_the_next_transaction() {
    let ttl = Duration::from_millis(1);
    let (told, again) = before_and_after_a_cut(|open| {
        let mut b = Litelease::from_connection(open());
        b.bootstrap().unwrap();
        let tx = b.transaction().unwrap();
        acquired(tx.at(1_000).claim("y", "b", ttl));
        tx.commit().unwrap();
        let a = open();
        a.execute_batch("BEGIN IMMEDIATE").unwrap();
        acquired(LiteleaseRef::joining(&a).at(1_000).claim_above("x", "a", ttl, 1 << 32));
        a.execute_batch("COMMIT").unwrap();
        let tx = b.transaction().unwrap();
        let told = acquired(tx.at(2_000).claim("y", "b", ttl)).token;
        tx.commit().unwrap();
        // The machine goes off before either connection is closed.
        std::mem::forget((a, b));
        told
    });
    assert!(again > told, "{told}, then {again}");
}
