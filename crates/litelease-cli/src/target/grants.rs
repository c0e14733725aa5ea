//! The secrets of grants that this user's scripts have claimed on servers, each in a file of its
//! own.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use litelease_sys::{create_private_folder, private};
use serde_json::{Value, json};

use crate::database;
use crate::exit::{Failure, Result};

/// A secret is kept for this long after the end of its lease, so that a late verb gets the reason.
const KEPT_MS: i64 = 24 * 3600 * 1000;

/// Keeps the secret of a grant. Other users cannot read it.
pub(super) fn keep(url: &str, name: &str, token: i64, secret: &str, until_ms: i64) -> Result<()> {
    let path = path(url, name, token)?;
    let cannot = |error: std::io::Error| {
        let text = format!("cannot keep the grant in {}: {error}", path.display());
        Failure::failed("Grant", text)
    };
    if let Some(folder) = path.parent() {
        create_private_folder(folder).map_err(cannot)?;
        prune(folder);
    }
    let until_ms = until_ms.saturating_add(KEPT_MS);
    let content = json!({
        "server": url, "name": name, "token": token, "grant": secret, "until_ms": until_ms,
    });
    // Written beside and renamed, so that no process reads half of it.
    let half = path.with_extension(std::process::id().to_string());
    let _ = fs::remove_file(&half);
    let file = private(fs::OpenOptions::new().write(true).create_new(true)).open(&half);
    let written = file.and_then(|mut file| file.write_all(content.to_string().as_bytes()));
    written.and_then(|()| fs::rename(&half, &path)).map_err(cannot)
}

/// Finds the secret of a grant.
pub(super) fn find(url: &str, name: &str, token: i64) -> Option<String> {
    let kept = read(&path(url, name, token).ok()?)?;
    let is_it = kept["server"] == url && kept["name"] == name && kept["token"] == token;
    kept["grant"].as_str().filter(|_| is_it).map(str::to_owned)
}

/// Removes secrets that are long over.
fn prune(folder: &std::path::Path) {
    let now_ms = litelease::now_ms();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let until_ms = read(&entry.path()).and_then(|kept| kept["until_ms"].as_i64());
        if until_ms.is_some_and(|until_ms| !litelease::is_live(until_ms, now_ms)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn read(path: &std::path::Path) -> Option<Value> {
    serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
}

fn path(url: &str, name: &str, token: i64) -> Result<PathBuf> {
    let folder = database::state_folder().ok_or_else(|| {
        Failure::usage("$HOME is not set: set it, or XDG_STATE_HOME, to a folder for the grant")
    })?;
    // A name may be too long for a file, or have a slash. The content is compared in full.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in url.bytes().chain([0]).chain(name.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    Ok(folder.join("grants").join(format!("{hash:016x}-{token}.json")))
}
