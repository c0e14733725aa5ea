//! The web page in a real browser.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use litelease::Litelease;
use litelease_proof::rig::{LONG, TestFolder, litelease, report};
use litelease_proof::server::{POOL, Server};

/// Returns the root of the project, or `None` and says why if there is no browser.
fn root() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let modules = root.join("target/browser/node_modules");
    let has_driver = ["playwright-core", "axe-core"].iter().all(|name| modules.join(name).exists());
    if has_driver && Command::new("chromium").arg("--version").output().is_ok() {
        return Some(root);
    }
    report(
        "SKIPPED: the page in a browser: scripts/setup-browser has not found chromium, playwright-core and \
         axe-core",
    );
    None
}

/// Runs a script of the folder `browser`.
fn play(root: &Path, script: &str, arguments: &[&str]) {
    let mut node = Command::new("node");
    node.arg(root.join("crates/litelease-proof/browser").join(script)).args(arguments);
    let output = node.arg(root.join("target/browser")).current_dir(root).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    for line in told.lines() {
        report(&format!("page: {line}"));
    }
}

#[test]
fn the_playground_shows_a_pool_as_it_lives() {
    let Some(root) = root() else { return };
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &[]);
    play(&root, "try.mjs", &[&format!("http://{}", server.address), POOL]);
    let log = std::fs::read_to_string(&server.log).unwrap();
    assert!(log.contains("\"call\":\"page\"") && !log.contains(POOL));
}

/// Ten thousand names, one of them held for 41 minutes, and a queue with five dead items.
fn fill(db: &mut Litelease) {
    let (now_ms, hours) = (litelease::now_ms(), |hours: u64| Duration::from_secs(3600 * hours));
    let long_ago = db.at(now_ms - 41 * 60_000);
    assert!(long_ago.claim("import-orders", "worker-3", hours(3)).unwrap().acquired().is_some());
    let all = db.transaction().unwrap();
    for number in 0..10_000 {
        let name = format!("customer/{number}");
        assert!(all.claim(&name, "sync", hours(2)).unwrap().acquired().is_some());
    }
    all.commit().unwrap();
    let queue = db.queue("mail").at(now_ms - 120_000);
    for number in 0..6 {
        queue.send(format!("body of {number}")).unwrap();
    }
    for number in 0..5 {
        let item = queue.receive(Duration::from_secs(30)).unwrap().unwrap();
        let note = match number {
            0..3 => format!("SMTP 421 try again later (id {number}a)"),
            _ => "no such user".to_owned(),
        };
        assert!(queue.bury(&item.receipt, Some(&note)).unwrap());
    }
}

#[test]
fn operators_see_what_is_stuck_and_end_it() {
    let Some(root) = root() else { return };
    let place = TestFolder::new("WAL");
    fill(&mut place.open(LONG));
    let (command, file) = (litelease(), place.file.display().to_string());
    play(&root, "page.mjs", &[&command.display().to_string(), &file]);
}
