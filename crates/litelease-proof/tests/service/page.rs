//! The web page in a real browser.

use std::path::Path;
use std::process::Command;

use litelease_proof::rig::{TestFolder, report};
use litelease_proof::server::{POOL, Server};

#[test]
fn the_page_shows_a_pool_as_it_lives() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let has_driver = root.join("target/browser/node_modules/playwright-core").exists();
    let has_browser = Command::new("chromium").arg("--version").output().is_ok();
    if !has_driver || !has_browser {
        report(
            "SKIPPED: the page in a browser: scripts/setup-browser has not found chromium and playwright-core",
        );
        return;
    }
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &[]);
    let pictures = root.join("target/browser");
    let mut node = Command::new("node");
    node.arg(root.join("crates/litelease-proof/browser/page.mjs"));
    node.args([&format!("http://{}", server.address), POOL]).arg(&pictures).current_dir(&root);
    let output = node.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    for line in told.lines() {
        report(&format!("page: {line}"));
    }
    let log = std::fs::read_to_string(&server.log).unwrap();
    assert!(log.contains("\"call\":\"page\"") && !log.contains(POOL));
}
