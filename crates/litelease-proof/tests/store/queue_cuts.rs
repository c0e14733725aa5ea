//! Simulated power cuts with queues: what was sent is there, what was acknowledged is gone, no
//! receipt comes back.

use std::time::Duration;
use std::{fs, thread};

use litelease::Litelease;
use litelease_proof::boot::{Boot, pretend};
use litelease_proof::power_cut::{Epoch, Setting, Tally};
use litelease_proof::queue_cut::cut_power_of_queues;
use litelease_proof::rig::{LONG, TestFolder, report};

const SEED: u64 = 11;

fn cut_all(settings: &[Setting], epoch: Epoch, images: u64) -> Vec<(Setting, Tally)> {
    let halves = [0, 1].map(|half| {
        let settings: Vec<Setting> = settings.iter().copied().skip(half).step_by(2).collect();
        let cut = move |setting| (setting, cut_power_of_queues(setting, epoch, images, None, SEED));
        thread::spawn(move || settings.into_iter().map(cut).collect::<Vec<_>>())
    });
    let all: Vec<_> = halves.into_iter().flat_map(|half| half.join().expect("no panic")).collect();
    for (setting, tally) in &all {
        report(&format!("power cuts of queues, epoch {epoch:?}, {setting}: {tally}"));
    }
    all
}

#[test]
fn after_a_power_cut_queues_keep_what_they_told_and_no_number_comes_back() {
    let settings: Vec<Setting> = Setting::all().collect();
    let mut lost = 0;
    for (setting, tally) in cut_all(&settings, Epoch::On, 120) {
        assert_eq!(tally.repeated, 0, "{:?}", tally.first);
        match setting.may_be_damaged() {
            // SQLite warns of this: a journal that is synced only once can look right and be torn.
            true => {
                assert!(tally.damaged * 20 < tally.images, "{setting}: {tally}, {:?}", tally.first)
            }
            false => assert_eq!(tally.damaged, 0, "{:?}", tally.first),
        }
        match setting.is_strong() {
            true => assert_eq!(tally.lost, 0, "{setting}: what was told is not so"),
            false => lost += tally.lost,
        }
    }
    assert!(lost > 20, "the cuts took nothing, so they prove nothing");
}

/// The negative control: the same cuts, and the file does not learn that the machine was off.
#[test]
fn without_the_epoch_numbers_of_queues_come_back() {
    let weak = [
        Setting { journal: "WAL", synchronous: "NORMAL" },
        Setting { journal: "DELETE", synchronous: "FULL" },
    ];
    for (setting, tally) in cut_all(&weak, Epoch::Off, 250) {
        assert!(tally.repeated > 0, "{setting}: {tally}");
    }
}

/// A boot without a call of `bootstrap`: the first send or receive must record it before it gives
/// out a number.
#[test]
fn the_first_number_of_a_boot_is_above_all_that_the_power_cut_took() {
    let visibility = Duration::from_secs(60);
    let number = |db: &Litelease, sends: bool| match sends {
        true => db.queue("q").send("x").unwrap(),
        false => db.queue("q").receive(visibility).unwrap().unwrap().token,
    };
    for sends in [true, false] {
        let place = TestFolder::new("WAL");
        pretend(Some(Boot::Known(1)));
        let db = place.open(LONG);
        db.conn().execute_batch("PRAGMA synchronous = NORMAL").unwrap();
        (0..5).for_each(|at| _ = db.queue("q").send(at).unwrap());
        db.conn().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        // The commits that follow are only in the log, which was not synced.
        let copy = place.folder.path().join("after the cut");
        fs::copy(&place.file, &copy).unwrap();
        let told = (0..3).map(|_| number(&db, sends)).max().unwrap();
        pretend(Some(Boot::Known(2)));
        let again = number(&Litelease::open(&copy).unwrap(), sends);
        assert!(again > told, "sends: {sends}: {told}, then {again}");
        pretend(None);
    }
}
