//! The public keys of credentials over HTTP.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use litelease::credentials::{DEFAULT_MAX_TTL, Issuer, KeySet};
use litelease_proof::command::outcome;
use litelease_proof::server::{Client, Server};
use serde_json::Value;

const PATH: &str = "/.well-known/jwks.json";

#[test]
fn the_service_shows_the_public_keys_as_they_are_and_nothing_else_of_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    let flags = ["--credentials", keys.to_str().unwrap()];
    let file = folder.path().join("pools.sqlite3");
    let mut early = std::process::Command::new(litelease_proof::rig::litelease());
    early.args(["serve", "--listen", "127.0.0.1:0", "--db"]).arg(&file).args(flags);
    let (code, _, errors) = outcome(&early.output().unwrap());
    assert_eq!(code, 69, "{errors}");
    assert!(errors.contains("litelease credential rotate"), "{errors}");

    let issuer = Issuer::at(&keys);
    issuer.rotate(DEFAULT_MAX_TTL).unwrap();
    let server = Server::start(&file, &flags);
    // Without an access key: public keys are for everybody.
    let mut client = Client::new(server.address);
    let mut get = || client.ask("GET", PATH, &Value::Null, "").unwrap();
    for _ in 0..2 {
        let found = get();
        assert_eq!(found.status, 200);
        let set = KeySet::from_json(&found.json().to_string()).unwrap();
        assert_eq!(set, issuer.keys().unwrap());
        assert!(!found.json().to_string().contains("\"d\""), "no private part");
        issuer.rotate(DEFAULT_MAX_TTL).unwrap();
    }
    fs::set_permissions(&keys, Permissions::from_mode(0o755)).unwrap();
    assert_eq!(get().status, 503);
    assert!(fs::read_to_string(&server.log).unwrap().contains("open to other users"));
    fs::set_permissions(&keys, Permissions::from_mode(0o700)).unwrap();
    assert_eq!(get().status, 200);
    assert_eq!(client.ask("POST", PATH, &Value::Null, "").unwrap().status, 405);
    assert!(server.stop());

    let server = Server::start(&file, &[]);
    let answer = Client::new(server.address).ask("GET", PATH, &Value::Null, "").unwrap();
    assert_eq!(answer.status, 404, "no folder was given");
}
