//! Engines at the end of a long or a narrow line: connecting takes many round trips, and an item of
//! 1 MiB its time.

use std::time::Duration;

use litelease_cluster::Cluster;
use litelease_cluster::engine::Stored;
use litelease_proof::etcd::{self, Etcd};
use litelease_proof::postgres::{self, Postgres};
use litelease_proof::proxy::Proxy;
use serde_json::json;

const LONG: Duration = Duration::from_secs(60);

fn claims(url: &str) {
    let claimed = Cluster::open(url).unwrap().claim("x", "a", LONG);
    assert!(claimed.unwrap().acquired().is_some());
}

/// TLS and a login are some eight answers, each of which takes 120 ms here.
#[test]
fn postgresql_is_reached_over_a_long_line() {
    let folder = tempfile::tempdir().unwrap();
    if !postgres::is_installed() || !crate::make_certificates(folder.path()) {
        return;
    }
    let mut server = Postgres::start();
    let give = |name: &str| server.give(&folder.path().join(name));
    let (cert, key) = (give("server.pem"), give("server.key"));
    let (cert, key) = (cert.display(), key.display());
    server.configure(&format!("ssl = on\nssl_cert_file = '{cert}'\nssl_key_file = '{key}'"));
    server.add_user("far", "geheim");
    let near = server.url("far").replace("postgres@", "far:geheim@") + "&sslmode=require";
    Cluster::open(&near).unwrap().bootstrap().unwrap();
    let proxy = Proxy::slow(server.address().parse().unwrap(), Duration::from_millis(120));
    claims(&near.replace(&server.address(), &proxy.address().to_string()));
}

/// The settings, the version and the login are three answers, each of which takes 300 ms here.
#[test]
fn etcd_is_reached_over_a_long_line() {
    if !etcd::is_installed() {
        return;
    }
    let etcd = Etcd::start(1);
    let call = |path: &str, body| etcd.call(0, path, &body).expect("an answer");
    call("auth/user/add", json!({ "name": "root", "password": "geheim" }));
    call("auth/user/grant", json!({ "user": "root", "role": "root" }));
    call("auth/enable", json!({}));
    let proxy = Proxy::slow(etcd.address(0), Duration::from_millis(300));
    claims(&format!("etcd://root:geheim@{}/far", proxy.address()));
}

/// One megabyte takes more than a second to the engine, and as long back.
fn moves_an_item(near: &Cluster, far: &Cluster) {
    let lease = near.of_service().claim("serve", "a", LONG).unwrap().acquired().unwrap();
    let item = (b"item".to_vec(), Some(vec![7; 1 << 20]));
    let engine = far.engine();
    let stored = engine.commit_rows("serve", lease.token, std::slice::from_ref(&item));
    assert!(matches!(stored, Ok(Stored::Done { .. })), "{stored:?}");
    let rows = engine.load_rows(b"").unwrap();
    assert!(rows.len() == 1 && Some(&rows[0].1) == item.1.as_ref());
}

const REST: Duration = Duration::from_millis(70);

#[test]
fn an_item_of_a_megabyte_is_stored_in_postgresql_over_a_narrow_line() {
    if !postgres::is_installed() {
        return;
    }
    let server = Postgres::shared();
    let proxy = Proxy::narrow(server.address().parse().unwrap(), REST);
    let url = server.url("narrow");
    let near = Cluster::open(&url).unwrap();
    near.bootstrap().unwrap();
    let far = url.replace(&server.address(), &proxy.address().to_string());
    moves_an_item(&near, &Cluster::open(&far).unwrap());
}

#[test]
fn an_item_of_a_megabyte_is_stored_in_etcd_over_a_narrow_line() {
    if !etcd::is_installed() {
        return;
    }
    let etcd = Etcd::shared();
    let proxy = Proxy::narrow(etcd.address(0), REST);
    let near = Cluster::open(&etcd.url("narrow")).unwrap();
    let far = format!("etcd://{}/narrow", proxy.address());
    moves_an_item(&near, &Cluster::open(&far).unwrap());
}
