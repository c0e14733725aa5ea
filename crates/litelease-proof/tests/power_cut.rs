//! Simulated power cuts: files stay whole, and no token comes back.

use std::thread;

use litelease_proof::power_cut::{Epoch, Setting, Tally, cut_power};
use litelease_proof::rig::tell;

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
        tell(&format!("power cuts, epoch {epoch:?}, {setting}: {tally}"));
    }
    all
}

#[test]
fn after_a_power_cut_no_file_is_damaged_and_no_token_comes_back() {
    let settings: Vec<Setting> = Setting::all().collect();
    let mut all = Tally::default();
    for (setting, tally) in cut_all(&settings, Epoch::On, 1_700) {
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
    assert!(all.images >= 20_000, "only {} files", all.images);
    assert!(all.lost > 100, "the cuts took nothing, so they prove nothing");
}

/// The negative control: the same cuts, and the file does not learn that the machine was off.
#[test]
fn without_the_epoch_tokens_come_back_where_commits_get_lost_and_only_there() {
    let settings: Vec<Setting> =
        Setting::all().filter(|setting| !setting.may_be_damaged()).collect();
    for (setting, tally) in cut_all(&settings, Epoch::Off, 600) {
        assert_eq!(tally.damaged, 0, "{:?}", tally.first);
        match setting.is_strong() {
            true => assert_eq!((tally.lost, tally.repeated), (0, 0), "{:?}", tally.first),
            false => assert!(tally.repeated > 0, "{setting}: {tally}"),
        }
    }
}
