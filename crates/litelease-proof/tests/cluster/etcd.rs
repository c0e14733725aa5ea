//! A real etcd: what it costs to be cut off, logins, encryption, restored data and rows that are
//! not ours.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use litelease_cluster::engine::{Changes, Commit, Committed, Condition, Listener, Part, Stored};
use litelease_cluster::{
    ClaimResult, Cluster, Error, Lease, Options, Reason, ReleaseResult, RenewResult,
};
use litelease_proof::etcd::{Etcd, base64, is_installed};
use litelease_proof::rig::eventually;
use serde_json::json;

const LONG: Duration = Duration::from_secs(60);

fn open(url: &str) -> Cluster {
    Cluster::open(url).unwrap()
}

#[track_caller]
fn acquired(claimed: litelease_cluster::Result<ClaimResult>) -> Lease {
    claimed.unwrap().acquired().expect("nobody has it")
}

/// A full etcd takes no new value, not even that a name is free. It takes deletions.
#[test]
fn a_release_frees_its_name_in_an_etcd_that_is_full() {
    if !is_installed() {
        return;
    }
    let etcd = Etcd::start_small();
    let (one, other) = (open(&etcd.url("full")), open(&etcd.url("full")));
    let lease = acquired(one.claim("x", "a", LONG));
    etcd.fill();
    let error = other.claim("y", "b", LONG).unwrap_err();
    assert!(matches!(&error, Error::Refused(text) if text.contains("space")), "{error}");
    assert!(matches!(one.release(&lease).unwrap(), ReleaseResult::Released { .. }));
    assert_eq!((other.inspect("x").unwrap(), other.token("x").unwrap()), (None, Some(1)));

    etcd.make_room();
    assert_eq!(acquired(other.claim("x", "b", LONG)).token, 2);
    assert_eq!(other.list().unwrap()[0].token, 2);
}

/// Two clusters play two members that have diverged: to a client they look alike.
/// The names that a holder is told about.
#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Listener for Heard {
    fn changed(&self, name: Option<&str>, _: Option<i64>) {
        self.0.lock().unwrap().push(name.unwrap_or("any").to_owned());
    }
}

/// Every grant was once told to every process with a hold: with a hundred of them, claims of other
/// names took twice as long.
#[test]
fn a_holder_is_told_about_its_own_names_only() {
    if !is_installed() {
        return;
    }
    let etcd = Etcd::start(1);
    let (holder, other) = (open(&etcd.url("")), open(&etcd.url("")));
    let engine = holder.engine();
    let heard = Arc::new(Heard::default());
    let listener: Arc<dyn Listener> = heard.clone();
    engine.listen(Changes::Tokens, Arc::downgrade(&listener));
    let follow = |name: &str| {
        acquired(holder.claim(name, "a", LONG));
        let version = engine.load(&[name]).unwrap().rows[0].version;
        engine.follow(name, version);
    };
    let told = |names: &[&str]| {
        eventually("the last of them is told", || {
            heard.0.lock().unwrap().last().map(String::as_str) == names.last().copied()
        });
        let mut heard = heard.0.lock().unwrap().clone();
        // Two keys of a name are watched, and of both it may be unknown what happened.
        heard.dedup();
        assert_eq!(heard, names);
    };
    follow("mine");
    let sent = etcd.events();
    thread::scope(|scope| {
        for thread in 0..8 {
            let other = &other;
            scope.spawn(move || {
                for number in 0..125 {
                    acquired(other.claim(&format!("{thread} {number}"), "b", LONG));
                }
            });
        }
    });
    let _ = other.break_lease("mine").unwrap();
    told(&["mine"]);
    assert_eq!(etcd.events() - sent, 1, "of 1,001 changes");

    // A name is followed later, and another one no longer.
    follow("mine, too");
    engine.unfollow("mine");
    acquired(other.claim("mine", "b", LONG));
    let _ = other.break_lease("mine, too").unwrap();
    told(&["mine", "mine, too"]);

    // etcd has forgotten what happened since the claim, so it may have been anything.
    let version = engine.load(&["mine"]).unwrap().rows[0].version;
    acquired(other.claim("later", "b", LONG));
    let revision = engine.load(&["later"]).unwrap().rows[0].version;
    let compact = json!({ "revision": revision });
    assert!(etcd.call(0, "kv/compaction", &compact).unwrap()["header"].is_object());
    engine.follow("mine", version - 1);
    told(&["mine", "mine, too", "mine"]);
}

#[test]
fn members_with_different_data_are_named() {
    if !is_installed() {
        return;
    }
    let (one, other) = (Etcd::shared(), Etcd::start(1));
    acquired(open(&one.url("diverged")).claim("x", "a", LONG));
    acquired(open(&other.url("diverged")).claim("x", "b", LONG));
    let url = format!("etcd://{},{}/diverged", one.address(0), other.address(0));
    let named = |url: &str| {
        let warnings = open(url).facts().unwrap().warnings;
        warnings.iter().any(|warning| warning.contains("have diverged"))
    };
    assert!(named(&url));
    assert!(!named(&other.url("diverged")));
}

#[test]
fn a_fresh_process_revives_nothing() {
    if !is_installed() {
        return;
    }
    let etcd = Etcd::shared();
    let url = etcd.url("revived");
    let ttl = Duration::from_millis(300);
    let lease = acquired(open(&url).claim("x", "a", ttl));
    thread::sleep(ttl);
    let fresh = || open(&url);
    let renewed = fresh().renew(&lease, ttl).unwrap();
    assert!(
        matches!(renewed, RenewResult::Rejected { reason: Reason::Expired, .. }),
        "{renewed:?}"
    );
    assert_eq!(fresh().inspect("x").unwrap(), None);
    assert!(matches!(fresh().claim("x", "b", ttl).unwrap(), ClaimResult::Busy(_)));
}

#[test]
fn a_dead_holder_is_succeeded_after_a_whole_ttl_and_a_break_is_seen_at_once() {
    if !is_installed() {
        return;
    }
    let etcd = Etcd::shared();
    let (a, b) = (open(&etcd.url("dead")), open(&etcd.url("dead")));
    let ttl = Duration::from_millis(1_000);
    let lease = acquired(a.claim("x", "a", ttl));
    let start = Instant::now();
    let next = loop {
        match b.claim("x", "b", ttl).unwrap() {
            ClaimResult::Acquired(lease) => break lease,
            ClaimResult::Busy(_) => {
                // Nothing happens to the row, so that the nap lasts.
                let version = b.engine().load(&["x"]).unwrap().rows[0].version;
                b.engine().wait_for_change("x", version, Duration::from_millis(100));
            }
        }
    };
    assert!(start.elapsed() >= ttl, "{:?}", start.elapsed());
    assert_eq!(next.token, 2);
    assert!(matches!(a.renew(&lease, ttl).unwrap(), RenewResult::Rejected { .. }));

    let version = b.engine().load(&["x"]).unwrap().rows[0].version;
    let breaker = thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        a.break_lease("x").unwrap()
    });
    let start = Instant::now();
    b.engine().wait_for_change("x", version, 2 * LONG);
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
    let _ = breaker.join().unwrap();
    // A change that has come before the nap ends it, too.
    let start = Instant::now();
    b.engine().wait_for_change("x", version, 2 * LONG);
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
}

#[test]
fn without_a_majority_a_verb_is_unreachable_in_time_and_reads_are_not_stale() {
    if !is_installed() {
        return;
    }
    let mut etcd = Etcd::start(3);
    let cluster = open(&etcd.url(""));
    let lease = acquired(cluster.claim("x", "a", LONG));
    etcd.kill(0);
    etcd.kill(1);
    for verb in ["inspect", "renew"] {
        let start = Instant::now();
        let error = match verb {
            "inspect" => cluster.inspect("x").map(|_| ()),
            _ => cluster.renew(&lease, LONG).map(|_| ()),
        };
        let (kind, took) = (error.unwrap_err().kind(), start.elapsed());
        // A change that was sent may be stored when the others come back.
        assert!(["Unreachable", "CommitUnknown"].contains(&kind), "{verb}: {kind}");
        assert!(verb != "inspect" || kind == "Unreachable", "{verb}: {kind}");
        assert!(took > Duration::from_millis(4_500) && took < LONG, "{took:?}");
    }
    etcd.spawn(0);
    etcd.wait_for_leader();
    assert_eq!(cluster.inspect("x").unwrap().map(|lease| lease.token), Some(1));
    assert!(matches!(cluster.renew(&lease, LONG).unwrap(), RenewResult::Renewed(_)));
}

#[test]
fn an_etcd_that_is_not_there_is_unreachable_and_the_next_member_is_asked_at_once() {
    if !is_installed() {
        return;
    }
    let etcd = Etcd::shared();
    let url = etcd.url("next").replace("etcd://", "etcd://127.0.0.1:1,127.0.0.1:2,");
    acquired(open(&url).claim("x", "a", LONG));
    let options = Options { patience: Duration::from_millis(300), ..Options::default() };
    let nobody = Cluster::open_with("etcd://127.0.0.1:1", options).unwrap();
    let error = nobody.claim("x", "a", LONG).unwrap_err();
    assert_eq!(error.kind(), "Unreachable");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

#[test]
fn a_process_that_has_seen_more_than_a_restored_etcd_stops() {
    if !is_installed() {
        return;
    }
    let mut etcd = Etcd::start(1);
    let cluster = open(&etcd.url(""));
    acquired(cluster.claim("x", "a", LONG));
    etcd.kill(0);
    let (data, backup) = (etcd.data(0), etcd.folder().join("backup"));
    copy(&data, &backup);
    etcd.spawn(0);
    etcd.wait_for_leader();
    acquired(cluster.claim("y", "a", LONG));
    acquired(cluster.claim("z", "a", LONG));
    etcd.kill(0);
    fs::remove_dir_all(&data).unwrap();
    copy(&backup, &data);
    etcd.spawn(0);
    etcd.wait_for_leader();
    for _ in 0..3 {
        let error = cluster.claim("y", "a", LONG).unwrap_err();
        assert_eq!(error.kind(), "Forgotten", "{error}");
        assert!(error.to_string().contains("restore-fence"), "{error}");
    }
    // A process that has seen nothing cannot tell. That is what the fence is for.
    let fresh = open(&etcd.url(""));
    let floor = fresh.restore_fence().unwrap();
    assert!(acquired(fresh.claim("y", "b", LONG)).token > floor);
    assert_eq!(cluster.inspect("y").unwrap_err().kind(), "Forgotten");
}

#[test]
fn rows_that_are_not_ours_are_reported_and_left_alone() {
    if !is_installed() {
        return;
    }
    let etcd = Etcd::shared();
    let cluster = open(&etcd.url("odd"));
    for value in ["", "x", "[]", r#"{"token":0,"at":1,"attempt":"1"}"#] {
        etcd.put("odd/r/x", value);
        for verb in [
            cluster.claim("x", "a", LONG).map(|_| ()),
            cluster.inspect("x").map(|_| ()),
            cluster.list().map(|_| ()),
            cluster.purge(i64::MAX).map(|_| ()),
            cluster.restore_fence().map(|_| ()),
        ] {
            assert_eq!(verb.unwrap_err().kind(), "InvalidLeaseRow", "{value}");
        }
    }
    acquired(cluster.claim("y", "a", LONG));
    etcd.put("odd/m", r#"{"format":2}"#);
    assert_eq!(cluster.claim("z", "a", LONG).unwrap_err().kind(), "NewerFormat");
    etcd.put("odd/m", "7");
    assert_eq!(cluster.claim("z", "a", LONG).unwrap_err().kind(), "SchemaMismatch");
}

/// What docs promise to those who compare in transactions of their own.
#[test]
fn the_key_of_a_token_changes_with_grants_and_breaks_and_not_with_renewals() {
    if !is_installed() {
        return;
    }
    let etcd = Etcd::shared();
    let cluster = open(&etcd.url("jobs"));
    let token = || {
        let range = json!({ "key": base64(b"jobs/t/x") });
        let pair = etcd.call(0, "kv/range", &range).unwrap()["kvs"][0].clone();
        (pair["value"].as_str().map(str::to_owned), pair["version"].as_str().map(str::to_owned))
    };
    let is =
        |value: &str, version: &str| (Some(base64(value.as_bytes())), Some(version.to_owned()));
    let lease = acquired(cluster.claim("x", "a", LONG));
    assert_eq!(token(), is("1", "1"));
    let _ = cluster.renew(&lease, LONG).unwrap();
    assert_eq!(token(), is("1", "1"));
    let _ = cluster.transfer(&lease, "b", LONG).unwrap();
    assert_eq!(token(), is("2", "2"));
    let _ = cluster.break_lease("x").unwrap();
    assert_eq!(token(), is("3", "3"));
    assert_eq!(cluster.purge(i64::MAX).unwrap(), 1);
    assert_eq!(token(), (None, None));
    assert_eq!(acquired(cluster.claim("x", "a", LONG)).token, 4);
}

#[test]
fn a_guarded_put_is_stored_under_the_newest_token_and_under_no_other() {
    if !is_installed() {
        return;
    }
    let etcd = Etcd::shared();
    let cluster = open(&etcd.url("guarded"));
    let value = || {
        let range = json!({ "key": base64(b"app/schedule") });
        etcd.call(0, "kv/range", &range).unwrap()["kvs"][0]["value"].as_str().map(str::to_owned)
    };
    let lease = acquired(cluster.claim("x", "a", LONG));
    assert!(cluster.guarded_put(&lease, "app/schedule", "monday").unwrap());
    assert_eq!(value(), Some(base64(b"monday")));
    let _ = cluster.renew(&lease, LONG).unwrap();
    assert!(cluster.guarded_put(&lease, "app/schedule", "tuesday").unwrap());
    let _ = cluster.break_lease("x").unwrap();
    assert!(!cluster.guarded_put(&lease, "app/schedule", "late").unwrap());
    let next = acquired(cluster.claim("x", "b", LONG));
    assert!(!cluster.guarded_put(&lease, "app/schedule", "late").unwrap());
    assert_eq!(value(), Some(base64(b"tuesday")));
    assert!(cluster.guarded_put(&next, "app/schedule", "friday").unwrap());
    assert_eq!(value(), Some(base64(b"friday")));
    // A key of the leases would let it forge a token.
    for key in ["", "guarded/t/x", "guarded/app"] {
        let refused = cluster.guarded_put(&next, key, "7").unwrap_err();
        assert!(matches!(refused, Error::InvalidName { .. }), "{key}: {refused}");
    }
}

#[test]
fn more_rows_than_fit_into_a_transaction_are_listed_fenced_and_purged() {
    if !is_installed() {
        return;
    }
    let etcd = Etcd::shared();
    let cluster = open(&etcd.url("many"));
    let names: Vec<String> = (0..300).map(|number| format!("{number:03}")).collect();
    thread::scope(|scope| {
        for names in names.chunks(50) {
            let cluster = &cluster;
            scope.spawn(move || {
                names.iter().for_each(|name| drop(acquired(cluster.claim(name, "a", LONG))));
            });
        }
    });
    let listed = cluster.list().unwrap();
    assert!(listed.iter().map(|row| &row.name).eq(&names), "in the order of names");
    let many: Vec<&str> = names.iter().map(String::as_str).collect();
    let loaded = cluster.engine().load(&many).unwrap();
    assert!(loaded.rows.iter().map(|row| &row.name).eq(&names));

    let floor = cluster.restore_fence().unwrap();
    assert!(cluster.list().unwrap().iter().all(|row| row.token == floor && row.tenure.is_none()));
    acquired(cluster.claim("007", "b", LONG));
    assert_eq!(cluster.purge(i64::MAX).unwrap(), 299);
    assert_eq!(cluster.list().unwrap().len(), 1);

    // Rows of the service, in as many steps as it takes, and only under the newest token.
    let engine = cluster.engine();
    let rows: Vec<_> = names.iter().map(|name| (name.clone().into(), Some(vec![7]))).collect();
    assert_eq!(engine.commit_rows("007", floor, &rows), Ok(Stored::Conflict));
    assert!(matches!(engine.commit_rows("007", floor + 1, &rows), Ok(Stored::Done { .. })));
    assert_eq!(engine.load_rows(b"").unwrap().len(), 300);
    let gone: Vec<_> = names.iter().map(|name| (name.clone().into(), None)).collect();
    assert!(matches!(engine.commit_rows("007", floor + 1, &gone), Ok(Stored::Done { .. })));
    assert_eq!(engine.load_rows(b"").unwrap(), []);
    // etcd refuses the last part. The answer must not be that nothing is stored: the first parts
    // are.
    let mut rows = rows;
    rows[299].1 = Some(vec![7; 3_000_000]);
    let refused = engine.commit_rows("007", floor + 1, &rows);
    assert!(
        matches!(&refused, Err(Error::CommitUnknown(why)) if why.contains("a part")),
        "{refused:?}"
    );
    assert_eq!(engine.load_rows(b"").unwrap().len(), 256);
    // Of one part alone, nothing is.
    let refused = engine.commit_rows("007", floor + 1, &rows[299..]);
    assert!(matches!(refused, Err(Error::Unreachable(_) | Error::Refused(_))), "{refused:?}");
}

#[test]
fn users_and_passwords_are_checked_and_a_login_that_has_ended_is_made_again() {
    if !is_installed() {
        return;
    }
    let mut etcd = Etcd::start(1);
    let call = |etcd: &Etcd, path: &str, body| {
        assert!(etcd.call(0, path, &body).unwrap()["header"].is_object());
    };
    call(&etcd, "auth/user/add", json!({ "name": "root", "password": "geheim" }));
    call(&etcd, "auth/role/add", json!({ "name": "root" }));
    call(&etcd, "auth/user/grant", json!({ "user": "root", "role": "root" }));
    call(&etcd, "auth/user/add", json!({ "name": "nobody", "password": "geheim" }));
    call(&etcd, "auth/enable", json!({}));
    let with = |user: &str| {
        let options = Options { patience: Duration::from_secs(2), ..Options::default() };
        Cluster::open_with(&etcd.url("").replace("://", &format!("://{user}")), options).unwrap()
    };
    let root = with("root:geheim@");
    acquired(root.claim("x", "a", LONG));
    for (user, says) in [
        ("", "asks for a user"),
        ("root:falsch-geheim@", "refuses this user and password"),
        ("nobody:geheim@", "permission"),
    ] {
        let error = with(user).claim("y", "a", LONG).unwrap_err();
        assert_eq!(error.kind(), "Refused", "{error}");
        assert!(error.to_string().contains(says), "{user}: {error}");
        assert!(!format!("{error} {error:?}").contains("geheim"), "{error:?}");
    }
    // A member that was started again knows no logins.
    etcd.kill(0);
    etcd.spawn(0);
    let start = Instant::now();
    while let Err(error) = root.inspect("x") {
        assert!(start.elapsed() < LONG, "{error}");
    }
    acquired(root.claim("y", "a", LONG));
}

#[test]
fn connections_are_encrypted_and_certificates_checked() {
    let folder = tempfile::tempdir().unwrap();
    if !is_installed() || !crate::make_certificates(folder.path()) {
        return;
    }
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (ca, cert, key) = (file("ca.pem"), file("server.pem"), file("server.key"));
    let words = ["--cert-file", &cert, "--key-file", &key, "--trusted-ca-file", &ca];
    let etcd = Etcd::start_with(1, &[&words[..], &["--client-cert-auth"]].concat());
    let (cert, key) = (file("client.pem"), file("client.key"));
    let url = etcd.url("x");
    let patient = Options { patience: Duration::from_secs(20), ..Options::default() };
    let ours = format!("{url}?ca={ca}&cert={cert}&key={key}");
    acquired(Cluster::open_with(&ours, patient).unwrap().claim("x", "a", LONG));

    let hasty = Options { patience: Duration::from_secs(2), ..Options::default() };
    let refused =
        |url: &str| Cluster::open_with(url, hasty).unwrap().claim("y", "a", LONG).unwrap_err();
    for url in [url.clone(), format!("{url}?ca={cert}")] {
        let error = refused(&url);
        assert_eq!(error.kind(), "Refused", "{error}");
        assert!(error.to_string().contains("check etcds://"), "{error}");
    }
    // A server that is not content closes the connection without a word.
    for url in [format!("{url}?ca={ca}"), url.replace("etcds", "etcd")] {
        let error = refused(&url);
        assert_eq!(error.kind(), "Unreachable", "{error}");
        assert!(error.to_string().contains("write etcds://"), "{error}");
    }
    for url in [format!("{url}?ca=/no/such/file"), format!("{url}?ca={ca}&cert={cert}&key=/none")] {
        let missing = Cluster::open(&url).err();
        assert!(
            matches!(missing, Some(Error::InvalidUrl(text)) if text.contains("cannot be read"))
        );
    }
}

#[test]
fn a_member_that_only_learns_is_passed_over_and_named() {
    if !is_installed() {
        return;
    }
    let mut etcd = Etcd::start(1);
    let voter = etcd.url("");
    let learner = etcd.add_learner();
    let start = Instant::now();
    let hasty = Options { patience: Duration::from_millis(500), ..Options::default() };
    let error = loop {
        let error = Cluster::open_with(&learner, hasty).unwrap().inspect("x").unwrap_err();
        if error.to_string().contains("learner") || start.elapsed() > LONG {
            break error;
        }
    };
    assert!(matches!(&error, Error::Unreachable(text) if text.contains("learner")), "{error}");
    let both = format!("{learner},{}", voter.trim_start_matches("etcd://"));
    acquired(open(&both).claim("x", "a", LONG));
    let warnings = open(&both).facts().unwrap().warnings;
    assert!(warnings.iter().any(|warning| warning.contains("is a learner")), "{warnings:?}");
}

#[test]
fn facts_tell_versions_sizes_members_and_clocks() {
    if !is_installed() {
        return;
    }
    let etcd = Etcd::shared();
    let facts = open(&etcd.url("facts")).facts().unwrap();
    let fact = |word: &str| facts.facts.iter().find(|(known, _)| known.contains(word));
    assert!(fact("127.0.0.1").is_some_and(|(_, value)| value.starts_with("etcd 3.")), "{facts:?}");
    assert_eq!(fact("members").map(|(_, value)| value.as_str()), Some("1"));
    assert!(fact("clocks").is_some_and(|(_, value)| value.contains("less than")), "{facts:?}");
    assert!(facts.warnings.iter().any(|warning| warning.contains("three survive")), "{facts:?}");
    assert_eq!(open("etcd://127.0.0.1:1").facts().unwrap_err().kind(), "Unreachable");
}

/// A caller that is itself on a thread of an async runtime.
#[test]
fn the_verbs_work_inside_an_async_program() {
    if !is_installed() {
        return;
    }
    let etcd = Etcd::shared();
    let url = etcd.url("async");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        acquired(open(&url).claim("x", "a", LONG));
    });
}

/// A cluster that was made from a backup has the keys of the one before, and another id.
#[test]
fn a_commit_of_the_service_that_another_cluster_has_answered_is_not_taken_for_stored() {
    if !is_installed() {
        return;
    }
    let etcd = Etcd::shared();
    let cluster = open(&etcd.url("another"));
    let lease = acquired(cluster.of_service().claim("serve", "w", LONG));
    let engine = cluster.engine();
    let loaded = engine.load(&["x"]).unwrap();
    let part = |row| Part {
        before: loaded.rows[0].clone(),
        row,
        condition: Condition::None,
        rows: vec![(b"key".to_vec(), Some(b"value".to_vec()))],
    };
    let commit = |incarnation| {
        let (parts, floor_version) = ([part(None)], loaded.floor.version);
        let writer = ("serve", lease.token);
        let commit = Commit { writer, floor_version, incarnation, parts: &parts, rows: &[] };
        engine.commit_parts(&commit)
    };
    assert!(matches!(commit(loaded.incarnation), Ok(Committed::Parts(_))));
    let other = loaded.incarnation + 1;
    assert!(matches!(commit(other), Err(Error::CommitUnknown(_))));
    let rows = [(b"other".to_vec(), None)];
    let stored = |at| engine.commit_rows_of(at, "serve", lease.token, &rows);
    assert!(matches!(stored(loaded.incarnation), Ok(Stored::Done { .. })));
    assert!(matches!(stored(other), Err(Error::CommitUnknown(_))));
}
