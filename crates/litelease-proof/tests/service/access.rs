//! Who may call what: access keys, their scopes, patterns and expiry, and how they are taken back.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use litelease_proof::command::{Desk, ended, outcome};
use litelease_proof::rig::TestFolder;
use litelease_proof::server::{Client, Response, Server};
use serde_json::{Value, json};

/// A served file, and the command on it.
struct Served {
    desk: Desk,
    server: Server,
}

impl Served {
    fn new(flags: &[&str]) -> Self {
        let desk = Desk::new();
        let server = Server::start(&desk.file, flags);
        Served { desk, server }
    }

    /// Makes a key that allows this.
    fn key(&self, name: &str, words: &[&str]) -> String {
        let (code, key, errors) =
            outcome(&self.desk.run(&[&["access", "add", name], words].concat()));
        assert_eq!((code, errors.as_str()), (0, ""), "{key}");
        key.trim().to_owned()
    }

    fn client(&self, key: &str) -> Client {
        Client::new(self.server.address).bearing(key)
    }
}

fn metrics(mut client: Client) -> Response {
    client.ask("GET", "/metrics", &Value::Null, "").unwrap()
}

#[test]
fn a_call_without_a_key_or_with_a_wrong_expired_removed_or_weaker_one_is_refused() {
    let served = Served::new(&[]);
    let none = metrics(Client::new(served.server.address));
    assert_eq!(none.status, 401);
    assert!(none.head.contains("www-authenticate: Bearer realm=\"litelease\"\r\n"), "{none:?}");
    assert!(none.error().contains("Authorization: Bearer KEY"), "{none:?}");

    let good = served.key("good", &["--allow", "observe:*"]);
    assert_eq!(metrics(served.client(&good)).status, 200);
    let short = served.key("short", &["--allow", "observe:*", "--expires", "200ms"]);
    thread::sleep(Duration::from_millis(250));
    let (most, but_one) = good.split_at(good.len() - 1);
    let other = if but_one == "0" { "1" } else { "0" };
    for wrong in [
        "x".to_owned(),
        short,
        most.to_owned(),
        format!("{most}{other}"),
        format!("{good}0"),
        good.to_uppercase(),
        format!("{good} {good}"),
        format!("{good},"),
        "litelease-".to_owned(),
    ] {
        let refused = metrics(served.client(&wrong));
        assert_eq!(refused.status, 401, "{wrong}: {refused:?}");
        assert!(refused.head.contains("error=\"invalid_token\""), "{refused:?}");
    }
    for headers in [
        format!("Authorization: {good}\r\n"),
        format!("Authorization: Basic {good}\r\n"),
        format!("Authorization: Bearer {good}\r\nAuthorization: Bearer {good}\r\n"),
        format!("Proxy-Authorization: Bearer {good}\r\n"),
        format!("Cookie: Authorization=Bearer {good}\r\n"),
    ] {
        let mut client = Client::new(served.server.address);
        let refused = client.ask("GET", "/metrics", &Value::Null, &headers).unwrap();
        assert_eq!(refused.status, 401, "{headers}");
    }
    let query = format!("/metrics?access_key={good}");
    let mut client = Client::new(served.server.address);
    assert_eq!(client.ask("GET", &query, &Value::Null, "").unwrap().status, 401);

    for allow in ["operate:*", "claim:*", "observe:a/*", "observe:*a", "observe:a"] {
        let weak = served.key(allow, &["--allow", allow]);
        let refused = metrics(served.client(&weak));
        assert_eq!(refused.status, 403, "{allow}");
        assert!(refused.error().contains("observe"), "{refused:?}");
    }
    assert_eq!(metrics(served.client(&good)).status, 200);
    assert_eq!(outcome(&served.desk.run(&["access", "remove", "good"])).0, 0);
    assert_eq!(metrics(served.client(&good)).status, 401, "taken back at once");
    // The same name again is another key.
    let again = served.key("good", &["--allow", "observe:*"]);
    assert_eq!(metrics(served.client(&good)).status, 401);
    assert_eq!(metrics(served.client(&again)).status, 200);
}

#[test]
fn what_needs_no_key_is_the_page_health_the_description_and_pools() {
    let served = Served::new(&[]);
    let mut client = Client::new(served.server.address);
    for path in ["/", "/docs", "/healthz", "/readyz", "/openapi.json"] {
        assert_eq!(client.ask("GET", path, &Value::Null, "").unwrap().status, 200, "{path}");
    }
    client.register(1);
    // A key that is wrong does no harm where none is needed.
    served.client("wrong").register(2);
}

#[test]
fn open_turns_the_check_off_and_is_refused_where_other_machines_would_get_in() {
    let open = Served::new(&["--open"]);
    assert_eq!(metrics(Client::new(open.server.address)).status, 200);
    assert_eq!(open.server.access, "", "no key was made");
    let metrics_only = Served::new(&["--open-metrics"]);
    assert_eq!(metrics(Client::new(metrics_only.server.address)).status, 200);

    let desk = Desk::new();
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let mut command = desk.command(&["serve", "--listen", listen, "--open"]);
        let (code, said, errors) = outcome(&ended(&mut command));
        assert_eq!((code, said.as_str()), (64, ""), "{errors}");
        assert!(errors.contains("--insecure") && errors.contains("access add"), "{errors}");
        assert!(!desk.file.exists(), "nothing was made");
    }
}

#[test]
fn the_key_is_printed_once_and_only_its_hash_is_stored() {
    let served = Served::new(&[]);
    let key = served.key("ci", &["--allow", "claim:backup/*", "--allow", "observe:*"]);
    assert_eq!((key.len(), key.starts_with("litelease-")), (74, true), "{key}");
    let secret = key.trim_start_matches("litelease-");
    let desk = &served.desk;
    let (code, listed, _) = outcome(&desk.run(&["access", "list"]));
    assert_eq!(code, 0);
    assert!(listed.contains("ci") && listed.contains("claim:backup/* observe:*"), "{listed}");
    let (_, json, _) = outcome(&desk.run(&["access", "list", "--json"]));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["allow"], json!(["claim:backup/*", "observe:*"]));
    assert_eq!((&json[0]["expires_at_ms"], &json[0]["is_valid"]), (&Value::Null, &json!(true)));
    assert_eq!(json[1]["name"], json!("local"));
    for entry in fs::read_dir(desk.folder.path()).unwrap().flatten() {
        let content = fs::read(entry.path()).unwrap_or_default();
        let has_it = content.windows(secret.len()).any(|bytes| bytes == secret.as_bytes());
        assert!(!has_it, "{:?}", entry.path());
    }
    assert!(!listed.contains(secret) && !json.to_string().contains(secret));

    let (code, said, errors) = outcome(&desk.run(&["access", "add", "ci", "--allow", "operate:*"]));
    assert_eq!((code, said.as_str()), (1, ""));
    assert!(errors.contains("there is a key of that name"), "{errors}");
    assert!(!outcome(&desk.run(&["access", "list"])).1.contains("ci      never    operate"));
    assert_eq!(outcome(&desk.run(&["access", "remove", "nobody"])).0, 1);
    for allow in ["write:*", "claim", "claim:", "Claim:*", "claim:a\nobserve:*"] {
        let (code, _, errors) = outcome(&desk.run(&["access", "add", "x", "--allow", allow]));
        assert_eq!((code, errors.lines().count()), (64, 1), "{allow}: {errors}");
    }
    assert_eq!(outcome(&desk.run(&["access", "add", "x"])).0, 64, "a key that allows nothing");
    // A key that no user can read is not made.
    let mut lost = desk.command(&["access", "add", "lost", "--allow", "claim:*"]);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(lost.stdout(full).output().unwrap().status.code(), Some(74));
    assert!(!outcome(&desk.run(&["access", "list"])).1.contains("lost"));
}

#[test]
fn the_local_key_belongs_to_the_user_who_serves_and_survives_a_restart() {
    let place = TestFolder::new("WAL");
    let folder = place.file.with_extension("state").join("litelease/access");
    let server = Server::start(&place.file, &[]);
    assert_eq!(metrics(server.client()).status, 200);
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let file = folder.join(server.address.to_string());
    assert_eq!((mode(&file), mode(&folder)), (0o600, 0o700));
    let first = server.access.clone();
    assert!(server.stop());
    let server = Server::start(&place.file, &[]);
    assert_eq!(server.access, first, "the same key at another port");
    let files: Vec<_> = fs::read_dir(&folder).unwrap().flatten().collect();
    assert_eq!(files.len(), 2, "a key and a socket; those of the old port are gone: {files:?}");
    assert!(server.stop());

    // Who loses the file gets a new key, and the lost one is worth nothing.
    fs::remove_dir_all(&folder).unwrap();
    let server = Server::start(&place.file, &[]);
    assert_ne!(server.access, first);
    assert_eq!(metrics(server.client()).status, 200);
    let mut old = Client::new(server.address);
    assert_eq!(old.ask("GET", "/metrics", &Value::Null, &first).unwrap().status, 401);
    assert!(server.stop());

    // Where the folder cannot be made, the service starts all the same and says so.
    fs::remove_dir_all(place.file.with_extension("state")).unwrap();
    fs::write(place.file.with_extension("state"), "").unwrap();
    let server = Server::start(&place.file, &[]);
    assert_eq!(server.access, "");
    let log = fs::read_to_string(&server.log).unwrap();
    assert!(log.contains("make a key with litelease access add"), "{log}");
}

/// The local key went to whatever listened at the address of its server while that was down.
#[test]
fn the_local_key_does_not_go_to_a_stranger_at_the_address_of_its_server() {
    let desk = Desk::new();
    let state = desk.file.with_extension("state");
    for is_killed in [true, false] {
        let server = Server::start(&desk.file, &[]);
        let (address, url) = (server.address, format!("http://{}", server.address));
        let ask = || {
            let mut command = desk.command(&["who", "n", "--server", &url]);
            outcome(&ended(command.env("XDG_STATE_HOME", &state).env_remove("LITELEASE_DB")))
        };
        let (code, _, errors) = ask();
        assert_eq!((code, errors.as_str()), (1, ""), "through the socket: nobody has it");
        match is_killed {
            true => server.kill(),
            false => assert!(server.stop()),
        }
        let stranger = TcpListener::bind(address).unwrap();
        let heard = thread::spawn(move || {
            let mut heard = String::new();
            // The last connection is the test's own.
            while !heard.ends_with("enough") {
                let (mut stream, _) = stranger.accept().unwrap();
                stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                let _ = stream.read_to_string(&mut heard);
            }
            heard
        });
        let (code, ..) = ask();
        assert_eq!(code, 69);
        TcpStream::connect(address).unwrap().write_all(b"enough").unwrap();
        let heard = heard.join().unwrap();
        assert!(!heard.to_lowercase().contains("authorization"), "{heard}");
    }
}

#[test]
fn the_lines_of_the_document_print_what_it_shows() {
    let served = Served::new(&[]);
    let state = served.desk.file.with_extension("state").display().to_string();
    let replaced = [
        ("127.0.0.1:7070", served.server.address.to_string()),
        ("$HOME/.local/state", state),
        ("pools.sqlite3", served.desk.file.display().to_string()),
    ];
    let replaced = replaced.each_ref().map(|(words, by)| (*words, by.as_str()));
    super::http::run_document("access.md", 0, &replaced, &served.desk);
}

#[test]
fn keys_in_a_table_that_is_damaged_let_nobody_in() {
    let served = Served::new(&[]);
    let key = served.key("ci", &["--allow", "observe:*", "--expires", "1h"]);
    let db = litelease::rusqlite::Connection::open(&served.desk.file).unwrap();
    db.execute("UPDATE litelease_access SET expires_at_ms = 'never'", []).unwrap();
    assert_eq!(metrics(served.client(&key)).status, 502);
    db.execute("UPDATE litelease_access SET expires_at_ms = NULL, allow = 'everything'", [])
        .unwrap();
    assert_eq!(metrics(served.client(&key)).status, 403);
    db.execute_batch("DROP TABLE litelease_access; CREATE TABLE litelease_access (name, hash)")
        .unwrap();
    assert_eq!(metrics(served.client(&key)).status, 502);
    db.execute_batch("DROP TABLE litelease_access").unwrap();
    assert_eq!(metrics(served.client(&key)).status, 401);
}
