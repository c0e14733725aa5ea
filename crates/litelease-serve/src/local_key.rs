//! The access key of the user who runs the server: in a file that only this user can read, so that
//! commands on the same machine need no further step.
//!
//! The file is named after the address of the server. Its content is the header to send, so that
//! `curl -H @FILE` takes the key without showing it to other users.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use litelease::{Litelease, Scope};
use litelease_store::AccessRow;
use litelease_sys::{create_private_folder, private};

use crate::access::AccessKey;
use crate::error::OpenError;
use crate::local_socket;

/// The name of the key in the served file.
pub(crate) const NAME: &str = "local";

/// The part of the file before the key.
const HEADER: &str = "Authorization: Bearer ";

/// More than a key file has.
const LONGEST: u64 = 1024;

/// Returns the loopback address at which clients on this machine reach a server, if there is one.
pub(crate) fn loopback(address: SocketAddr) -> Option<SocketAddr> {
    let ip = match address.ip() {
        ip if ip.is_loopback() => ip,
        ip if !ip.is_unspecified() => return None,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    Some(SocketAddr::new(ip, address.port()))
}

/// Writes the key of a server at `address` into `folder`. Returns its file.
///
/// The key is made at the first start of a served file. A later start finds it in the folder, or
/// replaces it if its file is gone. A key that an operator has removed is not made again: then this
/// returns `None`.
pub(crate) fn keep(
    db: &Litelease,
    folder: &Path,
    address: SocketAddr,
) -> Result<Option<PathBuf>, OpenError> {
    keep_in(db, NAME, folder, address)
}

/// A store of access keys.
pub(crate) trait AccessKeys {
    /// Finds a key: `None` if it was never made, and `Some(None)` if it was removed since.
    fn find(&self, name: &str) -> Result<Option<Option<AccessRow>>, OpenError>;
    /// Stores the hash of a key, and replaces an earlier one of the same name.
    fn replace(&self, name: &str, hash: &[u8], allow: &str) -> Result<(), OpenError>;
}

/// Writes a key under `name`, like [`keep`].
pub(crate) fn keep_in(
    keys: &impl AccessKeys,
    name: &str,
    folder: &Path,
    address: SocketAddr,
) -> Result<Option<PathBuf>, OpenError> {
    let failed = |error| OpenError::LocalKey { folder: folder.into(), error };
    let row = keys.find(name)?;
    if row == Some(None) {
        return Ok(None);
    }
    let found = row.flatten().and_then(|row| find(folder, &row.hash));
    let key = match &found {
        Some((_, key)) => AccessKey::from_text(key.show()),
        None => AccessKey::generate().map_err(failed)?,
    };
    // The file is written first: the key is useless without it.
    let file = write(folder, address, &key).map_err(failed)?;
    match found {
        // The server has moved to another address.
        Some((old, _)) if old != file => {
            let _ = fs::remove_file(local_socket::beside(&old));
            let _ = fs::remove_file(old);
        }
        Some(_) => {}
        None => keys.replace(name, &key.hash(), &everything())?,
    }
    Ok(Some(file))
}

/// The permission of the key of the user who runs the server, which is everything: the file belongs
/// to this user.
fn everything() -> String {
    let all = Scope::ALL.map(|scope| format!("{scope}:*"));
    all.join("\n")
}

/// Finds the file whose key has this hash.
fn find(folder: &Path, hash: &[u8]) -> Option<(PathBuf, AccessKey)> {
    let entries = fs::read_dir(folder).ok()?;
    entries.flatten().map(|entry| entry.path()).find_map(|path| {
        let key = read(&path)?;
        (key.hash() == hash).then_some((path, key))
    })
}

fn read(path: &Path) -> Option<AccessKey> {
    let mut content = String::new();
    // Reading something other than a plain file could block for ever.
    if !fs::symlink_metadata(path).ok()?.is_file() {
        return None;
    }
    fs::File::open(path).ok()?.take(LONGEST).read_to_string(&mut content).ok()?;
    content.strip_prefix(HEADER).map(|key| AccessKey::from_text(key.trim_end()))
}

/// Writes a key file as a whole: readable by its user alone from its first moment on.
fn write(folder: &Path, address: SocketAddr, key: &AccessKey) -> io::Result<PathBuf> {
    create_private_folder(folder)?;
    let (file, new) = (folder.join(address.to_string()), folder.join(format!("{address}.new")));
    // A killed server may have left one behind. If it is a link, only the link is removed.
    let _ = fs::remove_file(&new);
    let mut written = private(OpenOptions::new().write(true).create_new(true)).open(&new)?;
    written.write_all(format!("{HEADER}{}\n", key.show()).as_bytes())?;
    written.sync_all()?;
    fs::rename(&new, &file)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_key_is_made_once_moves_with_the_server_and_is_made_anew_if_its_file_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("state/access");
        let db = Litelease::open_own(folder.path().join("a.sqlite3")).unwrap();
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let stored = || crate::FileAccess::new(&db).list().unwrap().unwrap();
        let first = keep(&db, &keys, at(1)).unwrap().unwrap();
        assert_eq!(first, keys.join("127.0.0.1:1"));
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&first), mode(&keys)), (0o600, 0o700));
        let key = read(&first).unwrap();
        assert_eq!(stored()[0].hash, key.hash());
        assert!(stored()[0].allow.contains("operate:*"));

        let second = keep(&db, &keys, at(2)).unwrap().unwrap();
        assert_eq!(read(&second).unwrap().show(), key.show());
        assert!(!first.exists());
        fs::remove_file(&second).unwrap();
        let third = keep(&db, &keys, at(2)).unwrap().unwrap();
        assert_ne!(read(&third).unwrap().show(), key.show());
        assert_eq!((stored().len(), stored()[0].hash == read(&third).unwrap().hash()), (1, true));

        // A key that an operator has removed is not made again.
        assert!(crate::FileAccess::new(&db).remove(NAME).unwrap());
        assert_eq!(keep(&db, &keys, at(2)).unwrap(), None);
        assert!(stored().is_empty());
    }

    #[test]
    fn a_link_in_the_place_of_the_key_is_replaced_and_its_target_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, keys) = (folder.path().join("victim"), folder.path().join("access"));
        fs::write(&victim, "mine").unwrap();
        fs::create_dir(&keys).unwrap();
        for name in ["127.0.0.1:1", "127.0.0.1:1.new"] {
            std::os::unix::fs::symlink(&victim, keys.join(name)).unwrap();
        }
        let db = Litelease::open_own(folder.path().join("a.sqlite3")).unwrap();
        let file = keep(&db, &keys, SocketAddr::from(([127, 0, 0, 1], 1))).unwrap().unwrap();
        assert!(fs::symlink_metadata(&file).unwrap().is_file());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
    }

    #[test]
    fn only_a_server_that_loopback_reaches_has_a_local_key() {
        for (address, reached) in [
            ("127.0.0.1:1", Some("127.0.0.1:1")),
            ("0.0.0.0:1", Some("127.0.0.1:1")),
            ("[::]:1", Some("[::1]:1")),
            ("10.0.0.7:1", None),
        ] {
            let expected = reached.map(|address| address.parse().unwrap());
            assert_eq!(loopback(address.parse().unwrap()), expected, "{address}");
        }
    }
}
