//! Signed grants: what is signed, what is refused, keys and their rotation, gates, and the JWT
//! libraries of other languages.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use litelease::credentials::{
    Claims, DEFAULT_MAX_TTL, Error, IssueResult, Issued, Issuer, KeyError, KeySet, Keys, Refused,
    Verifier,
};
use litelease::{Gate, Lease, Leases, Litelease, Reason};
use litelease_proof::rig::{LONG, acquired, report};
use ring::signature::Ed25519KeyPair;
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);

/// An issuer and a service that verifies, in one temporary folder.
struct Rig {
    folder: tempfile::TempDir,
    db: Litelease,
    issuer: Issuer,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let db = Litelease::open_own(folder.path().join("app.sqlite3")).unwrap();
        let issuer = Issuer::at(folder.path().join("keys"));
        issuer.rotate(DEFAULT_MAX_TTL).unwrap();
        Rig { folder, db, issuer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn verifier(&self) -> Verifier {
        Verifier::new(self.issuer.keys().unwrap(), &self.db.issuer().unwrap(), "storage").unwrap()
    }

    fn claim(&self, name: &str, owner: &str) -> Lease {
        acquired(self.db.claim(name, owner, LONG))
    }

    fn issue(&self, lease: &Lease) -> Issued {
        issued(self.issuer.issue(&self.db, lease, "storage", MINUTE))
    }

    /// The private key that signs now, for tokens that the library would not sign.
    fn forger(&self) -> Forger {
        Forger::with_keys(&self.path("keys"))
    }
}

#[track_caller]
fn issued(result: Result<IssueResult, Error>) -> Issued {
    match result {
        Ok(IssueResult::Issued(issued)) => issued,
        other => panic!("not issued: {other:?}"),
    }
}

/// Signs whatever it is given.
struct Forger {
    pair: Ed25519KeyPair,
    key_id: String,
    public: Vec<u8>,
}

impl Forger {
    fn with_keys(folder: &Path) -> Self {
        let stored: Value =
            serde_json::from_slice(&fs::read(folder.join("key-1.json")).unwrap()).unwrap();
        let text = |name: &str| stored[name].as_str().unwrap().to_owned();
        let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)).unwrap();
        let pair = Ed25519KeyPair::from_seed_and_public_key(&bytes("d"), &bytes("x")).unwrap();
        Forger { pair, key_id: text("kid"), public: bytes("x") }
    }

    fn header(&self) -> String {
        json!({ "typ": "JWT", "alg": "EdDSA", "kid": self.key_id }).to_string()
    }

    /// A token with this header and these claims, signed as it should be.
    fn sign(&self, header: &str, claims: &str) -> String {
        let message = parts(header, claims);
        let signature = self.pair.sign(message.as_bytes());
        format!("{message}.{}", encode(signature.as_ref()))
    }
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn parts(header: &str, claims: &str) -> String {
    format!("{}.{}", encode(header), encode(claims))
}

/// The claims of a credential, without a check.
fn claims(credential: &str) -> Value {
    let part = credential.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

#[test]
fn a_credential_has_the_claims_that_are_promised_and_shows_name_owner_and_token() {
    let rig = Rig::new();
    let name = "upload/ü \"7\"\n";
    let lease = rig.claim(name, "a");
    let issued = rig.issue(&lease);
    let found = claims(&issued.credential);
    let seconds = |claim: &str| found[claim].as_i64().unwrap();
    assert_eq!(found["iss"], rig.db.issuer().unwrap());
    assert_eq!((&found["sub"], &found["owner"]), (&json!(name), &json!("a")));
    assert_eq!((&found["fence"], &found["aud"]), (&json!(lease.token), &json!("storage")));
    assert_eq!(found.as_object().unwrap().len(), 7, "{found}");
    assert!((59..=60).contains(&(seconds("exp") - seconds("iat"))), "{found}");
    let shown = rig.verifier().verify(&issued.credential).unwrap();
    assert_eq!((shown.name.as_str(), shown.owner.as_str()), (name, "a"));
    assert_eq!((shown.token, shown.expires_at_ms), (lease.token, issued.expires_at_ms));
    assert_eq!(shown.key_id, issued.key_id);
    assert!(!format!("{issued:?}").contains(&issued.credential));
}

/// Verifies a token that a test has made at second 20, between its `iat` 10 and its `exp` 70.
const NOW_MS: i64 = 20_000;

#[test]
fn what_is_forged_damaged_or_for_others_is_refused_and_the_reason_is_told() {
    let rig = Rig::new();
    let (forger, verifier) = (rig.forger(), rig.verifier());
    let right = json!({
        "iss": rig.db.issuer().unwrap(), "sub": "upload", "owner": "a", "fence": 3,
        "aud": "storage", "iat": 10, "exp": 70,
    });
    let header = forger.header();
    let with = |claim: &str, value: Value| {
        let mut claims = right.clone();
        claims[claim] = value;
        forger.sign(&header, &claims.to_string())
    };
    let without = |claim: &str| {
        let mut claims = right.clone();
        claims.as_object_mut().unwrap().remove(claim);
        forger.sign(&header, &claims.to_string())
    };
    let twice = |claim: &str, value: Value| {
        let text = right.to_string();
        forger.sign(&header, &format!("{},\"{claim}\":{value}}}", &text[..text.len() - 1]))
    };
    let headed = |header: Value| forger.sign(&header.to_string(), &right.to_string());
    let good = forger.sign(&header, &right.to_string());
    assert_eq!(verifier.verify_at(&good, NOW_MS).unwrap().token, 3);

    let unsigned = parts(&json!({ "typ": "JWT", "alg": "none" }).to_string(), &right.to_string());
    let hs256 = json!({ "typ": "JWT", "alg": "HS256", "kid": forger.key_id }).to_string();
    let by_public_key = {
        let message = parts(&hs256, &right.to_string());
        let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &forger.public);
        format!("{message}.{}", encode(ring::hmac::sign(&secret, message.as_bytes())))
    };
    let stranger = Rig::new().forger();
    let by_stranger = stranger.sign(&header, &right.to_string());
    let body = good.rsplit_once('.').unwrap().0;
    let signature = good.rsplit_once('.').unwrap().1;
    let other_body = body.replace(
        &encode(right.to_string()),
        &encode(right.to_string().replace("\"fence\":3", "\"fence\":9")),
    );
    let last = good.chars().last().unwrap();
    let cut: Vec<String> = (0..good.len()).step_by(7).map(|end| good[..end].to_owned()).collect();
    let mut cases: Vec<(&str, String, &str)> = vec![
        ("alg none", format!("{unsigned}."), "Malformed"),
        ("alg none with our signature", format!("{unsigned}.{signature}"), "Malformed"),
        ("alg None", headed(json!({ "alg": "None", "kid": forger.key_id })), "Malformed"),
        ("HS256 with the public key as its secret", by_public_key, "Algorithm"),
        ("HS256 in the header alone", forger.sign(&hs256, &right.to_string()), "Algorithm"),
        ("ES256", headed(json!({ "alg": "ES256", "kid": forger.key_id })), "Algorithm"),
        ("no alg", headed(json!({ "kid": forger.key_id })), "Malformed"),
        (
            "two algs",
            forger.sign(&header.replacen('{', "{\"alg\":\"none\",", 1), &right.to_string()),
            "Malformed",
        ),
        ("another key", by_stranger, "Signature"),
        ("an unknown key", headed(json!({ "alg": "EdDSA", "kid": "x" })), "UnknownKey"),
        (
            "the key of a stranger",
            stranger.sign(&stranger.header(), &right.to_string()),
            "UnknownKey",
        ),
        ("no key", headed(json!({ "alg": "EdDSA" })), "Malformed"),
        (
            "a critical header",
            headed(json!({ "alg": "EdDSA", "kid": forger.key_id, "crit": ["b64"], "b64": false })),
            "Malformed",
        ),
        (
            "a key in the header",
            {
                let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "x": encode(&stranger.public) });
                stranger.sign(
                    &json!({ "alg": "EdDSA", "kid": stranger.key_id, "jwk": jwk }).to_string(),
                    &right.to_string(),
                )
            },
            "UnknownKey",
        ),
        ("another issuer", with("iss", json!("0".repeat(32))), "Issuer"),
        ("several issuers", with("iss", json!([right["iss"], "x"])), "Malformed"),
        ("another audience", with("aud", json!("printing")), "Audience"),
        ("several audiences", with("aud", json!(["storage", "printing"])), "Malformed"),
        ("expired at this instant", with("exp", json!(20)), "Expired"),
        ("expired", with("exp", json!(19)), "Expired"),
        ("an end that is a text", with("exp", json!("70")), "Malformed"),
        ("an end that is a fraction", with("exp", json!(70.5)), "Malformed"),
        ("an end that is null", with("exp", Value::Null), "Malformed"),
        ("issued in the future", with("iat", json!(21)), "Early"),
        ("not valid yet", with("nbf", json!(21)), "Early"),
        ("a fence of 0", with("fence", json!(0)), "Malformed"),
        ("a fence beyond 64 bits", with("fence", json!(u64::MAX)), "Malformed"),
        ("claims that are a list", forger.sign(&header, "[1]"), "Malformed"),
        ("a changed claim", format!("{other_body}.{signature}"), "Signature"),
        ("no signature", format!("{body}."), "Signature"),
        ("half a signature", format!("{body}.{}", &signature[..44]), "Signature"),
        ("four parts", format!("{good}.{signature}"), "Malformed"),
        ("bad base64 in the header", format!("!{good}"), "Malformed"),
        ("bad base64 in the signature", format!("{body}.!{signature}"), "Malformed"),
        ("padding", format!("{good}=="), "Malformed"),
        ("a newline", format!("{good}\n"), "Malformed"),
        // The last letter has four bits that mean nothing: another spelling is not taken.
        ("another spelling", format!("{}{}", &good[..good.len() - 1], next(last)), "Malformed"),
        ("1 MB", "a".repeat(1 << 20), "TooLong"),
        ("1 MB after a good one", format!("{good}{}", "a".repeat(1 << 20)), "TooLong"),
        ("nothing", String::new(), "Malformed"),
    ];
    for claim in ["iss", "sub", "owner", "fence", "aud", "iat", "exp"] {
        cases.push(("a claim is missing", without(claim), "Malformed"));
        cases.push(("a claim is there twice", twice(claim, right[claim].clone()), "Malformed"));
    }
    cases.push(("a later end is there, too", twice("exp", json!(90)), "Malformed"));
    for (what, token, expected) in &cases {
        let refused = verifier.verify_at(token, NOW_MS).expect_err(what);
        assert_eq!(refused.kind(), *expected, "{what}: {refused}");
    }
    for cut in cut {
        assert!(verifier.verify_at(&cut, NOW_MS).is_err(), "{cut}");
    }
    assert!(cases.len() > 50);
}

/// The letter after this one in the alphabet of base64.
fn next(letter: char) -> char {
    const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let at = LETTERS.find(letter).unwrap();
    LETTERS.chars().nth((at + 1) % LETTERS.len()).unwrap()
}

#[test]
fn a_credential_never_outlives_its_lease_nor_the_longest_time_of_its_issuer() {
    let rig = Rig::new();
    let issuer = rig.db.issuer().unwrap();
    let verifier = |keys: KeySet| Verifier::new(keys, &issuer, "storage").unwrap();
    for (lease_ms, ttl_ms, now_ms) in [
        (10_000, 60_000, 1_000),
        (10_999, 60_000, 1_999),
        (1_700, 60_000, 1_300),
        (3_600_000, 2_001, 999),
        (3_600_000, 3_600_000, 500),
        (3_600_000, 299_999, 1),
    ] {
        let name = format!("{lease_ms} {ttl_ms} {now_ms}");
        let at = rig.db.at(now_ms);
        let lease = acquired(at.claim(&name, "a", Duration::from_millis(lease_ms)));
        let ttl = Duration::from_millis(ttl_ms);
        let issued = issued(rig.issuer.issue(&at, &lease, "storage", ttl));
        let most_ms = now_ms + i64::try_from(ttl_ms).unwrap().min(300_000);
        let end_ms = most_ms.min(lease.expires_at_ms);
        assert_eq!(issued.expires_at_ms, end_ms / 1000 * 1000, "{name}");
        let verifier = verifier(rig.issuer.keys().unwrap());
        let verify = |now_ms| verifier.verify_at(&issued.credential, now_ms);
        assert!(verify(now_ms).is_ok(), "{name}");
        assert!(verify(issued.expires_at_ms - 1).is_ok(), "{name}");
        // Not a millisecond of leeway unless it is asked for.
        for late_ms in [0, 1, 999, 1_000, 59_000] {
            let refused = verify(issued.expires_at_ms + late_ms);
            assert!(matches!(refused, Err(Refused::Expired { .. })), "{name}: {refused:?}");
        }
        let lenient = verifier.clone().leeway(Duration::from_secs(2));
        assert!(lenient.verify_at(&issued.credential, issued.expires_at_ms + 1_999).is_ok());
        assert!(lenient.verify_at(&issued.credential, issued.expires_at_ms + 2_000).is_err());
    }
}

#[test]
fn only_a_live_grant_gets_a_credential_and_never_inside_a_transaction() {
    let mut rig = Rig::new();
    let at = |rig: &Rig, now_ms: i64, lease: &Lease| {
        rig.issuer.issue(&rig.db.at(now_ms), lease, "storage", MINUTE).unwrap()
    };
    let lease = acquired(rig.db.at(10_000).claim("x", "a", Duration::from_millis(10_400)));
    assert!(at(&rig, 10_000, &lease).issued().is_some());
    assert!(matches!(at(&rig, 20_100, &lease), IssueResult::TooShort(found) if found == lease));
    let rejected = |reason| IssueResult::Rejected { reason };
    assert_eq!(at(&rig, 20_400, &lease), rejected(Reason::Expired));
    let next = acquired(rig.db.at(20_400).claim("x", "b", Duration::from_secs(10)));
    assert_eq!(at(&rig, 20_400, &lease), rejected(Reason::HeldBy));
    assert!(at(&rig, 20_400, &next).issued().is_some());
    let same_owner = Lease { owner: "b".into(), ..lease.clone() };
    assert_eq!(at(&rig, 20_400, &same_owner), rejected(Reason::Superseded { by: 2 }));
    let ahead = Lease { token: 9, ..next.clone() };
    assert_eq!(at(&rig, 20_400, &ahead), rejected(Reason::UnknownToken));
    let unknown = Lease { name: "y".into(), ..next.clone() };
    assert_eq!(at(&rig, 20_400, &unknown), rejected(Reason::NeverClaimed));

    let short = rig.issuer.issue(&rig.db.at(20_400), &next, "storage", Duration::from_millis(500));
    assert!(matches!(short, Ok(IssueResult::TooShort(_))));
    let nobody = rig.issuer.issue(&rig.db.at(20_400), &next, "", MINUTE);
    assert!(matches!(nobody, Err(Error::Keys(KeyError::NoAudience))));
    let long = rig.claim(&"n".repeat(7_000), "a");
    let too_long = rig.issuer.issue(&rig.db, &long, "storage", MINUTE);
    assert!(matches!(too_long, Err(Error::Keys(KeyError::TooLong { .. }))));

    // What is rolled back leaves its token to another owner.
    let issuer = rig.issuer.clone();
    let tx = rig.db.transaction().unwrap();
    let lease = acquired(tx.claim("z", "a", LONG));
    let inside = issuer.issue(&tx, &lease, "storage", MINUTE);
    assert!(matches!(inside, Err(Error::InTransaction)), "{inside:?}");
    tx.rollback().unwrap();
}

#[test]
fn a_gate_refuses_a_token_older_than_the_newest_one_of_the_same_issuer_and_name() {
    let rig = Rig::new();
    let (gate, verifier) = (Gate::open(rig.path("gate.sqlite3")).unwrap(), rig.verifier());
    let first = rig.claim("x", "a");
    let a = rig.issue(&first);
    assert_eq!(gate.admit_credential(&verifier, &a.credential).unwrap().token, first.token);
    assert!(gate.admit_credential(&verifier, &a.credential).is_ok(), "again");
    rig.db.release(&first).unwrap();
    let second = rig.claim("x", "b");
    let b = rig.issue(&second);
    assert!(gate.admit_credential(&verifier, &b.credential).is_ok());
    let stale = gate.admit_credential(&verifier, &a.credential);
    assert!(
        matches!(&stale, Err(Error::Refused(Refused::Stale { token, newest })) if (*token, *newest) == (first.token, second.token)),
        "{stale:?}"
    );
    // Another process, and another name of the same issuer.
    let gate = Gate::open(rig.path("gate.sqlite3")).unwrap();
    assert!(gate.admit_credential(&verifier, &a.credential).is_err());
    let other = rig.issue(&rig.claim("y", "a"));
    assert!(gate.admit_credential(&verifier, &other.credential).is_ok());
}

#[test]
fn tokens_of_two_issuers_are_never_compared() {
    let (one, two) = (Rig::new(), Rig::new());
    let gate = Gate::open(one.path("gate.sqlite3")).unwrap();
    let newer = acquired(one.db.claim_above("x", "a", LONG, 40));
    let older = two.claim("x", "b");
    let (newer, older) = (one.issue(&newer), two.issue(&older));
    assert!(gate.admit_credential(&one.verifier(), &newer.credential).is_ok());
    // Token 1 of the other file says nothing about token 41 of the first.
    assert!(gate.admit_credential(&two.verifier(), &older.credential).is_ok());
    assert!(gate.admit_credential(&one.verifier(), &newer.credential).is_ok());
    // A plain name of the gate is another one, too.
    assert!(matches!(gate.admit("x", 1), Ok(litelease::AdmitResult::Admitted)));

    // One set of keys for both files does not help: the issuer is pinned.
    let shared = Issuer::at(one.path("keys"));
    let lease = two.claim("y", "b");
    let foreign = issued(shared.issue(&two.db, &lease, "storage", MINUTE));
    let refused = gate.admit_credential(&one.verifier(), &foreign.credential).unwrap_err();
    assert!(matches!(refused, Error::Refused(Refused::Issuer { .. })), "{refused:?}");
    assert!(refused.to_string().contains("tokens of two issuers cannot be compared"), "{refused}");
}

#[test]
fn restored_copies_of_a_file_are_different_issuers() {
    let rig = Rig::new();
    let original = rig.db.issuer().unwrap();
    rig.db.conn().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let copies = ["one.sqlite3", "two.sqlite3"].map(|name| {
        fs::copy(rig.path("app.sqlite3"), rig.path(name)).unwrap();
        Litelease::open(rig.path(name)).unwrap()
    });
    for copy in &copies {
        assert_eq!(copy.issuer().unwrap(), original, "a copy alone is the same issuer");
        copy.restore_fence().unwrap();
        assert_ne!(copy.issuer().unwrap(), original);
    }
    // Their tokens would collide: a verifier tells them apart by the issuer.
    let leases = copies.each_ref().map(|copy| acquired(copy.claim("x", "a", LONG)));
    assert_eq!(leases[0].token, leases[1].token);
    assert_ne!(copies[0].issuer().unwrap(), copies[1].issuer().unwrap());
    let verifier = rig.verifier();
    let of_copy = issued(rig.issuer.issue(&copies[0], &leases[0], "storage", MINUTE));
    assert!(matches!(verifier.verify(&of_copy.credential), Err(Refused::Issuer { .. })));
    // The id is part of the file alone, and a table that is not ours is refused.
    assert_eq!(rig.db.issuer().unwrap(), original);
    rig.db.conn().execute_batch("DROP TABLE litelease_issuer").unwrap();
    rig.db.conn().execute_batch("CREATE TABLE litelease_issuer (x)").unwrap();
    let error = rig.db.issuer().unwrap_err();
    assert!(error.to_string().contains("litelease_issuer"), "{error}");
}

#[test]
fn keys_that_others_could_read_or_replace_sign_nothing() {
    let rig = Rig::new();
    let lease = rig.claim("x", "a");
    let (folder, key) = (rig.path("keys"), rig.path("keys/key-1.json"));
    let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let refused = |what: &str| {
        let issued = rig.issuer.issue(&rig.db, &lease, "storage", MINUTE);
        let Err(Error::Keys(error)) = issued else { panic!("{what}: {issued:?}") };
        assert!(rig.issuer.keys().is_err(), "{what}");
        assert!(rig.issuer.rotate(DEFAULT_MAX_TTL).is_err(), "{what}");
        error
    };
    let modes = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((modes(&folder), modes(&key)), (0o700, 0o600));
    for open in [0o640, 0o604, 0o620, 0o644, 0o601] {
        mode(&key, open);
        let error = refused(&format!("{open:o}"));
        assert!(matches!(&error, KeyError::Exposed { path, .. } if *path == key), "{error}");
    }
    mode(&key, 0o600);
    for open in [0o750, 0o705, 0o711, 0o755] {
        mode(&folder, open);
        let error = refused(&format!("{open:o}"));
        assert!(matches!(&error, KeyError::Exposed { path, .. } if *path == folder), "{error}");
    }
    mode(&folder, 0o700);
    rig.issue(&lease);

    let good = fs::read(&key).unwrap();
    let secret = serde_json::from_slice::<Value>(&good).unwrap()["d"].as_str().unwrap().to_owned();
    let write = |bytes: &[u8]| fs::write(&key, bytes).unwrap();
    for damaged in [&b""[..], b"{}", &good[..good.len() / 2], &[0; 4096]] {
        write(damaged);
        let error = refused("damaged");
        assert!(matches!(&error, KeyError::Damaged { .. }), "{error}");
        assert!(!error.to_string().contains(&secret));
    }
    // With the public part of another key, no verifier would accept the credential.
    let stranger = Rig::new().forger();
    let mut mixed: Value = serde_json::from_slice(&good).unwrap();
    mixed["x"] = json!(encode(&stranger.public));
    write(mixed.to_string().as_bytes());
    assert!(matches!(refused("mixed"), KeyError::Damaged { .. }));
    write(&good);
    rig.issue(&lease);
    fs::rename(&key, rig.path("away")).unwrap();
    symlink(rig.path("away"), &key).unwrap();
    assert!(matches!(refused("a link"), KeyError::File(_)));
}

#[test]
fn an_old_key_verifies_until_its_last_credential_has_expired_and_is_deleted_by_a_later_rotation() {
    let rig = Rig::new();
    let keys = Keys::at(rig.path("more"));
    let issuer = rig.db.issuer().unwrap();
    let sign = |iat: i64, exp: i64| {
        let claims = Claims {
            iss: issuer.clone(),
            sub: "x".into(),
            owner: "a".into(),
            fence: 1,
            aud: "storage".into(),
            iat,
            exp,
            nbf: None,
        };
        keys.newest().unwrap().sign(&claims).unwrap()
    };
    let verify = |credential: &str, now_ms: i64| {
        let verifier = Verifier::new(keys.public(now_ms).unwrap(), &issuer, "storage").unwrap();
        verifier.verify_at(credential, now_ms)
    };
    let ttl = Duration::from_secs(100);
    let first = keys.rotate(ttl, 10_000).unwrap();
    assert_eq!(first.max_ttl_ms(), 100_000);
    let last = sign(50, 150);
    let second = keys.rotate(Duration::from_secs(5), 50_000).unwrap();
    assert_ne!(first.id(), second.id());
    assert!(verify(&last, 50_000).is_ok());
    assert!(verify(&last, 149_999).is_ok(), "until its last credential has expired");
    assert!(matches!(verify(&last, 150_000), Err(Refused::UnknownKey { .. })));
    // A shorter time of the new key does not cut the old one, and a clock set back does not either.
    keys.rotate(ttl, 20_000).unwrap();
    assert!(verify(&last, 149_999).is_ok());
    let files = || {
        let entries = fs::read_dir(rig.path("more")).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name.starts_with("key-"));
        names.sort();
        names
    };
    assert_eq!(files(), ["key-1.json", "key-2.json", "key-3.json"]);
    keys.rotate(ttl, 149_999).unwrap();
    assert_eq!(files(), ["key-1.json", "key-3.json", "key-4.json"]);
    keys.rotate(ttl, 150_000).unwrap();
    assert_eq!(files(), ["key-3.json", "key-4.json", "key-5.json"]);
    for wrong in [Duration::ZERO, Duration::from_millis(999), Duration::from_secs(1 << 40)] {
        assert!(matches!(keys.rotate(wrong, 150_000), Err(KeyError::InvalidMaxTtl)));
    }
}

/// Ends the threads, also when a test fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_credential_is_refused_while_keys_rotate() {
    let rig = Rig::new();
    let published = rig.path("jwks.json");
    rig.issuer.keys().unwrap().save(&published).unwrap();
    let verifier = Verifier::reading(&published, &rig.db.issuer().unwrap(), "storage").unwrap();
    let lease = rig.claim("x", "a");
    let (done, file, issuer) = (AtomicBool::new(false), rig.path("app.sqlite3"), &rig.issuer);
    std::thread::scope(|scope| {
        let _done = Done(&done);
        for _ in 0..2 {
            scope.spawn(|| {
                let db = Litelease::open(&file).unwrap();
                let id = db.issuer().unwrap();
                while !done.load(Ordering::Relaxed) {
                    let issued = issued(issuer.issue(&db, &lease, "storage", MINUTE));
                    // As a service does that fetches the set of keys for a key it does not know.
                    let keys = issuer.keys().unwrap();
                    let fresh = Verifier::new(keys, &id, "storage").unwrap();
                    fresh.verify(&issued.credential).unwrap();
                }
            });
        }
        for _ in 0..20 {
            let before = rig.issue(&lease);
            verifier.verify(&before.credential).unwrap();
            rig.issuer.rotate(DEFAULT_MAX_TTL).unwrap();
            verifier.verify(&before.credential).unwrap();
            let after = rig.issue(&lease);
            assert_ne!(before.key_id, after.key_id);
            let early = verifier.verify(&after.credential);
            assert!(matches!(early, Err(Refused::UnknownKey { .. })), "{early:?}");
            rig.issuer.keys().unwrap().save(&published).unwrap();
            verifier.verify(&after.credential).unwrap();
            verifier.verify(&before.credential).unwrap();
        }
    });
    // A key that is taken out of the file is trusted no longer; without a file, nothing is.
    let issued = rig.issue(&lease);
    KeySet::default().save(&published).unwrap();
    assert!(matches!(verifier.verify(&issued.credential), Err(Refused::UnknownKey { .. })));
    fs::write(&published, "{").unwrap();
    assert!(matches!(verifier.verify(&issued.credential), Err(Refused::Keys(_))));
    fs::remove_file(&published).unwrap();
    assert!(matches!(verifier.verify(&issued.credential), Err(Refused::Keys(_))));
    rig.issuer.keys().unwrap().save(&published).unwrap();
    assert!(verifier.verify(&issued.credential).is_ok());
}

#[test]
fn a_set_of_keys_takes_what_it_knows_and_ignores_the_rest() {
    let rig = Rig::new();
    let mut set: Value = serde_json::from_str(&rig.issuer.keys().unwrap().to_json()).unwrap();
    let ours = set["keys"][0].clone();
    let strange = [
        json!({ "kty": "oct", "kid": "a", "k": "AAAA" }),
        json!({ "kty": "EC", "kid": "b", "crv": "P-256", "x": "AAAA", "y": "AAAA" }),
        json!({ "kty": "OKP", "kid": "c", "crv": "Ed25519", "x": "AAAA" }),
        json!({ "kty": "OKP", "kid": "d", "crv": "X25519", "x": ours["x"] }),
        json!({ "kty": "OKP", "kid": "e", "crv": "Ed25519", "use": "enc", "x": ours["x"] }),
        json!({ "kty": "OKP", "crv": "Ed25519", "x": ours["x"] }),
        json!({ "kty": "new", "kid": "f" }),
    ];
    set["keys"].as_array_mut().unwrap().extend(strange);
    set["issued_by"] = json!("somebody");
    let keys = KeySet::from_json(&set.to_string()).unwrap();
    assert_eq!(keys, rig.issuer.keys().unwrap());
    assert!(KeySet::from_json("{}").is_err());
}

/// Runs a program that verifies a credential, and returns what it prints.
fn verify_elsewhere(command: &mut Command, input: &Value) -> Value {
    use std::io::Write;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

const PYTHON: &str = r#"
import json, sys, jwt
given = json.load(sys.stdin)
keys = jwt.PyJWKSet.from_dict(given["keys"])
told = []
for token, audience, issuer in given["cases"]:
    try:
        key = keys[jwt.get_unverified_header(token)["kid"]]
        told.append(jwt.decode(token, key, algorithms=["EdDSA"], audience=audience, issuer=issuer))
    except (jwt.PyJWTError, KeyError) as error:
        told.append(type(error).__name__)
print(json.dumps(told))
"#;

const NODE: &str = r#"
import { createLocalJWKSet, jwtVerify } from "jose";
let text = "";
for await (const part of process.stdin) text += part;
const { keys, cases } = JSON.parse(text);
const set = createLocalJWKSet(keys);
const results = [];
for (const [token, audience, issuer] of cases) {
  try {
    results.push((await jwtVerify(token, set, { algorithms: ["EdDSA"], audience, issuer })).payload);
  } catch (error) {
    results.push(error.code);
  }
}
console.log(JSON.stringify(results));
"#;

#[test]
fn the_jwt_libraries_of_python_and_node_verify_ours_and_refuse_what_we_refuse() {
    let rig = Rig::new();
    let lease = rig.claim("upload/7", "a");
    let before = rig.issue(&lease).credential;
    rig.issuer.rotate(DEFAULT_MAX_TTL).unwrap();
    let after = rig.issue(&lease).credential;
    let id = rig.db.issuer().unwrap();
    let long_ago = {
        let at: &Leases = &rig.db.at(10_000);
        let lease = acquired(at.claim("old", "a", LONG));
        issued(rig.issuer.issue(at, &lease, "storage", MINUTE)).credential
    };
    let foreign = Rig::new();
    let foreign = foreign.issue(&foreign.claim("upload/7", "a")).credential;
    let mut changed = after.clone();
    let middle = changed.rfind('.').unwrap() + 40;
    let letter = next(changed.as_bytes()[middle] as char).to_string();
    changed.replace_range(middle..=middle, &letter);
    let keys: Value = serde_json::from_str(&rig.issuer.keys().unwrap().to_json()).unwrap();
    let cases = json!([
        [before, "storage", id],
        [after, "storage", id],
        [after, "printing", id],
        [after, "storage", "0"],
        [long_ago, "storage", id],
        [foreign, "storage", id],
        [changed, "storage", id],
    ]);
    let input = json!({ "keys": keys, "cases": cases });
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/jwt");
    let check = |library: &str, told: Value| {
        for (index, told) in told.as_array().unwrap().iter().enumerate() {
            match index {
                0 | 1 => {
                    assert_eq!(told["sub"], "upload/7", "{library}: {told}");
                    assert_eq!(told["fence"], lease.token, "{library}: {told}");
                }
                _ => assert!(told.is_string(), "{library} accepts case {index}: {told}"),
            }
        }
        assert_eq!(told.as_array().unwrap().len(), 7);
    };
    let python = target.join("python/bin/python");
    match python.exists() {
        true => check("PyJWT", verify_elsewhere(Command::new(python).args(["-c", PYTHON]), &input)),
        false => report("SKIPPED: PyJWT is not installed: scripts/setup-jwt"),
    }
    match target.join("node_modules/jose").exists() {
        true => {
            // It looks for jose in the folders above it.
            let script = tempfile::Builder::new().suffix(".mjs").tempfile_in(&target).unwrap();
            fs::write(script.path(), NODE).unwrap();
            check("jose", verify_elsewhere(Command::new("node").arg(script.path()), &input));
        }
        false => report("SKIPPED: jose is not installed: scripts/setup-jwt"),
    }
}
