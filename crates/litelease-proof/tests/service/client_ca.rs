//! The Rust client and a server whose certificate comes from a CA of its own.

use std::fs;
use std::process::Command;
use std::time::Duration;

use litelease_client::{Client, Error, Grant};
use litelease_proof::rig::TestFolder;
use litelease_proof::server::Server;
use litelease_proof::tls::Certificate;

/// A client that cannot be answered tries for as long: what does not pass must be told at once.
const TTL: Duration = Duration::from_secs(3600);

fn claim(client: &Client) -> Result<Grant, Error> {
    client.claim("n", "a", TTL, Duration::ZERO)
}

#[test]
fn a_client_trusts_the_ca_in_a_file_and_no_other() {
    let place = TestFolder::new("WAL");
    let folder = place.folder.path();
    let (certificate, ca) = Certificate::of_ca(&folder.join("ours"), "localhost");
    let (_, stranger) = Certificate::of_ca(&folder.join("stranger"), "localhost");
    let [cert, key] = [&certificate.cert, &certificate.key].map(|path| path.display().to_string());
    let server = Server::start(&place.file, &["--tls-cert", &cert, "--tls-key", &key]);
    let url = format!("https://localhost:{}", server.address.port());
    let key = server.access.trim().rsplit(' ').next().unwrap();
    let open = |file| Client::builder(&url).key(key).ca_file(file).open().unwrap();

    let client = open(&ca);
    let grant = claim(&client).unwrap();
    assert!(grant.is_trusted());
    client.release(&grant).unwrap();
    // Several in one file, with text between them.
    let both = folder.join("both.pem");
    let pems = [&stranger, &ca].map(|file| fs::read_to_string(file).unwrap());
    fs::write(&both, pems.join("our own:\n")).unwrap();
    let client = open(&both);
    client.release(&claim(&client).unwrap()).unwrap();

    let says = |client: Client| claim(&client).unwrap_err().to_string();
    let unknown = says(open(&stranger));
    assert!(unknown.contains("UnknownIssuer"), "{unknown}");
    assert!(unknown.contains("LITELEASE_CA_FILE"), "{unknown}");
    let unknown = says(Client::with_key(&url, key).unwrap());
    assert!(unknown.contains("UnknownIssuer"), "{unknown}");
    // The certificate is for the name, even if a trusted CA has signed it.
    let other = url.replace("localhost", "127.0.0.1");
    let other = Client::builder(&other).key(key).ca_file(&ca).open().unwrap();
    let wrong = says(other);
    assert!(wrong.contains("not valid for") && wrong.contains("use a name"), "{wrong}");
    // The scheme of the other kind of server.
    let plain = says(Client::with_key(&url.replace("https:", "http:"), key).unwrap());
    assert!(plain.contains("say https:// in its URL"), "{plain}");
    let other = TestFolder::new("WAL");
    let other = Server::start(&other.file, &[]);
    let tls = format!("https://localhost:{}", other.address.port());
    let tls = says(Client::with_key(&tls, key).unwrap());
    assert!(tls.contains("say http:// in its URL"), "{tls}");

    // The same from the environment, which is a process's own: in a process of its own.
    let child = |file: &std::path::Path| {
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", "client_ca::from_the_environment", "--ignored", "--nocapture"]);
        test.env("LITELEASE_CA_FILE", file).env("CA_TEST", format!("{url} {key}"));
        let output = test.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().find_map(|line| line.split_once("result: ")).unwrap().1.to_owned()
    };
    assert_eq!(child(&ca), "granted");
    assert!(child(&stranger).contains("UnknownIssuer"));
    let missing = child("missing.pem".as_ref());
    assert!(missing.contains("missing.pem") && missing.contains("No such file"), "{missing}");
}

#[test]
#[ignore = "run by the test above, in a process with an environment of its own"]
fn from_the_environment() {
    let Ok(words) = std::env::var("CA_TEST") else { return };
    let (url, key) = words.split_once(' ').unwrap();
    let granted = Client::with_key(url, key)
        .and_then(|client| claim(&client).and_then(|grant| client.release(&grant)));
    println!("\nresult: {}", granted.map_or_else(|error| error.to_string(), |()| "granted".into()));
}

#[test]
fn a_ca_file_that_cannot_be_used_is_refused_by_name_and_for_its_reason() {
    let place = TestFolder::new("WAL");
    let folder = place.folder.path();
    let (certificate, ca) = Certificate::of_ca(folder, "localhost");
    let whole = fs::read_to_string(&ca).unwrap();
    let key = fs::read_to_string(&certificate.key).unwrap();
    let file = folder.join("tried.pem");
    for (content, says) in [
        ("", "no certificate in it"),
        ("nonsense", "no certificate in it"),
        (&key, "no certificate in it"),
        (&whole[..whole.len() / 2], "not valid PEM"),
        (&whole.replacen("MII", "M?I", 1), "not valid PEM"),
        (&whole.replacen("MII", "AII", 1), "certificate 1 in it is damaged"),
        (&format!("{whole}{}", whole.replacen("MII", "AII", 1)), "certificate 2 in it is damaged"),
    ] {
        fs::write(&file, content).unwrap();
        let opened = Client::builder("https://localhost:1").key("k").ca_file(&file).open();
        let error = opened.err().expect("refused").to_string();
        assert!(error.contains("tried.pem") && error.contains(says), "{says}: {error}");
        assert!(!error.contains("PRIVATE"), "{error}");
        // Without TLS no CA is needed.
        Client::builder("http://127.0.0.1:1").key("k").ca_file(&file).open().unwrap();
    }
    let missing = Client::builder("https://localhost:1").key("k").ca_file(folder).open();
    let error = missing.err().expect("refused").to_string();
    assert!(error.contains("directory"), "{error}");
}
