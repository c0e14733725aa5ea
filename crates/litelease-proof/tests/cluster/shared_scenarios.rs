//! Every scenario file about leases, played on the engines that several machines share.

use std::cell::Cell;
use std::rc::Rc;

use litelease_cluster::{Cluster, MemoryEngine};
use litelease_proof::cluster_player::{ClusterPlayer, NOT_ON_ENGINES, ONLY_SQLITE};
use litelease_proof::etcd::{Etcd, is_installed};
use litelease_proof::play::{Tally, play};
use litelease_proof::postgres::{self, Postgres};
use litelease_proof::rig::report;
use litelease_proof::scenario;

/// Plays all files, each with a function that makes clients on rows of its own.
fn check<C: Fn() -> Cluster + 'static>(engine: &str, new_rows: impl Fn() -> C) -> Tally {
    let is_sqlites = |path: &std::path::Path| {
        ONLY_SQLITE.iter().any(|name| path.file_name().is_some_and(|file| file == *name))
    };
    let scenarios = scenario::all().unwrap();
    let skipped = scenarios.iter().filter(|scenario| is_sqlites(&scenario.path)).count();
    assert_eq!(skipped, ONLY_SQLITE.len(), "a file that is left out by name does not exist");
    let mut tally = Tally::default();
    let (mut failures, mut left_out) = (Vec::new(), Vec::<String>::new());
    for scenario in scenarios.iter().filter(|scenario| !is_sqlites(&scenario.path)) {
        let connect = Rc::new(new_rows());
        let mut player = ClusterPlayer::new(move || connect());
        failures.extend(play(scenario, &mut player, &mut tally).err());
        if player.misses_a_verb() {
            left_out
                .push(scenario.path.file_stem().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    let begins = |verb: &&str| left_out.iter().any(|file| file.starts_with(*verb));
    assert!(NOT_ON_ENGINES.iter().all(begins), "{left_out:?}: shorten the list");
    let is_known = |file: &&String| NOT_ON_ENGINES.iter().any(|verb| file.starts_with(verb));
    left_out.retain(|file| !is_known(&file));
    assert_eq!(left_out, Vec::<String>::new(), "{engine}: a verb is left out");
    report(&format!("{engine}: {} scenario files, {tally}", scenarios.len() - skipped));
    assert!(failures.is_empty(), "{engine}:\n{}", failures.join("\n"));
    assert!(tally.played > 180, "only {} steps were played", tally.played);
    tally
}

#[test]
fn the_engine_in_memory_plays_all_scenarios() {
    check("memory", || {
        let engine = MemoryEngine::new();
        move || Cluster::on(engine.clone())
    });
}

#[test]
fn etcd_plays_all_scenarios() {
    if !is_installed() {
        return;
    }
    let etcd = Etcd::shared();
    let prefixes = Cell::new(0);
    check("etcd", || {
        prefixes.set(prefixes.get() + 1);
        let url = etcd.url(&format!("scenario{}", prefixes.get()));
        move || Cluster::open(&url).unwrap()
    });
}

#[test]
fn postgres_plays_all_scenarios() {
    if !postgres::is_installed() {
        return;
    }
    let server = Postgres::shared();
    let schemas = Cell::new(0);
    check("PostgreSQL", || {
        schemas.set(schemas.get() + 1);
        let url = server.url(&format!("scenario{}", schemas.get()));
        Cluster::open(&url).unwrap().bootstrap().unwrap();
        move || Cluster::open(&url).unwrap()
    });
}
