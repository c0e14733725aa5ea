//! The folder with the keys of an issuer: its permissions, rotation, and which keys still count.
//!
//! A key is a file `key-N.json`, written once and never changed. The largest number signs. A key
//! counts until the last credential that it can have signed has expired: its own longest time after
//! its successor was made. So nothing is written when a credential is issued, and no file says when
//! a key ends.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use litelease_sys::{SideFile, create_private_folder, exposure, private};

use crate::{Error, KeySet, SigningKey};

/// The longest time of a credential, unless the issuer chooses another: 5 minutes.
pub const DEFAULT_MAX_TTL: Duration = Duration::from_secs(300);

/// A longer time of a credential would be no lease any more, and would not fit its numbers.
const MOST_MAX_TTL_MS: i64 = 10 * 365 * 86_400_000;

/// More than a key file has.
const LONGEST: u64 = 4096;

/// A key that is being written.
const NEW: &str = "new";

/// The file whose lock a rotation holds.
const LOCK: &str = "lock";

/// The keys of an issuer, in a folder that only its user can read (0700; each key 0600). Refuses to
/// use them if others could have read them.
///
/// The keys are read each time they are used, so a rotation takes effect in every process at once.
///
/// ```
/// use litelease_credentials::{DEFAULT_MAX_TTL, Keys};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let keys = Keys::at(folder.path().join("keys"));
/// let first = keys.rotate(DEFAULT_MAX_TTL, 10_000)?;
/// let second = keys.rotate(DEFAULT_MAX_TTL, 20_000)?;
/// assert_eq!(keys.newest()?.id(), second.id());
///
/// // The first one counts until its last credential has expired.
/// assert!(keys.public(319_999)?.ids().any(|id| id == first.id()));
/// assert!(!keys.public(320_000)?.ids().any(|id| id == first.id()));
/// # Ok::<(), litelease_credentials::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Keys {
    folder: PathBuf,
}

/// A key with its number.
type Numbered = (u64, SigningKey);

impl Keys {
    /// Returns the keys in this folder. Reads and makes nothing yet.
    ///
    /// ```
    /// # use litelease_credentials::Keys;
    /// let keys = Keys::at("/var/lib/app/credentials");
    /// assert!(keys.folder().is_absolute());
    /// ```
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Keys { folder: folder.into() }
    }

    /// Returns the folder.
    ///
    /// ```
    /// # use litelease_credentials::Keys;
    /// assert!(Keys::at("keys").folder().ends_with("keys"));
    /// ```
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes a key that signs from now on, and the folder if it is missing. Deletes keys that no
    /// longer count. Credentials under the new key last for `max_ttl` at most.
    ///
    /// A process that is killed at any moment leaves the old key or the new one in use.
    ///
    /// ```
    /// # use litelease_credentials::{DEFAULT_MAX_TTL, Keys};
    /// # let folder = tempfile::tempdir().unwrap();
    /// let keys = Keys::at(folder.path().join("keys"));
    /// keys.rotate(DEFAULT_MAX_TTL, 10_000)?;
    /// # Ok::<(), litelease_credentials::Error>(())
    /// ```
    pub fn rotate(&self, max_ttl: Duration, now_ms: i64) -> Result<SigningKey, Error> {
        let max_ttl_ms = i64::try_from(max_ttl.as_millis()).unwrap_or(i64::MAX);
        if !(1000..=MOST_MAX_TTL_MS).contains(&max_ttl_ms) {
            return Err(Error::InvalidMaxTtl);
        }
        create_private_folder(&self.folder).map_err(|error| Error::io(&self.folder, error))?;
        self.check_folder()?;
        let _lock = self.lock()?;
        let keys = self.load()?;
        let (number, before_ms) = match keys.last() {
            Some((number, newest)) => (number + 1, newest.created_at_ms),
            None => (1, i64::MIN),
        };
        // A clock that was set back does not let the key before end earlier than it began.
        let (key, text) = SigningKey::generate(now_ms.max(before_ms), max_ttl_ms)?;
        self.write(number, &text)?;
        self.delete_ended(now_ms)?;
        Ok(key)
    }

    /// Returns the key that signs now.
    ///
    /// Read the clock before you call this: a key counts for its longest time after its successor
    /// was made, and a credential under it must have ended by then.
    ///
    /// ```
    /// # use litelease_credentials::{DEFAULT_MAX_TTL, Keys};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let keys = Keys::at(folder.path().join("keys"));
    /// # keys.rotate(DEFAULT_MAX_TTL, 10_000)?;
    /// let key = keys.newest()?;
    /// # Ok::<(), litelease_credentials::Error>(())
    /// ```
    pub fn newest(&self) -> Result<SigningKey, Error> {
        let newest = self.load()?.pop().map(|(_, key)| key);
        newest.ok_or_else(|| Error::NoKey { folder: self.folder.clone() })
    }

    /// Returns the public keys that count at this Unix time in milliseconds: the one that signs,
    /// and those whose last credential may not have expired yet.
    ///
    /// ```
    /// # use litelease_credentials::{DEFAULT_MAX_TTL, Keys};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let keys = Keys::at(folder.path().join("keys"));
    /// # keys.rotate(DEFAULT_MAX_TTL, 10_000)?;
    /// println!("{}", keys.public(10_000)?.to_json());
    /// # Ok::<(), litelease_credentials::Error>(())
    /// ```
    pub fn public(&self, now_ms: i64) -> Result<KeySet, Error> {
        let keys = self.load()?;
        if keys.is_empty() {
            return Err(Error::NoKey { folder: self.folder.clone() });
        }
        let ended = ended(&keys, now_ms);
        let public = |(_, key): &Numbered| (key.id().to_owned(), key.public());
        let counting = keys.iter().filter(|(number, _)| !ended.contains(number));
        Ok(KeySet::new(counting.map(public).collect()))
    }

    /// Reads all keys, in the order of their numbers.
    fn load(&self) -> Result<Vec<Numbered>, Error> {
        if !self.check_folder()? {
            return Ok(Vec::new());
        }
        let mut keys = Vec::new();
        for number in self.numbers()? {
            // A rotation deletes keys that have ended.
            keys.extend(self.read(number)?.map(|key| (number, key)));
        }
        Ok(keys)
    }

    /// Checks that only this user can see into the folder. False if there is none.
    fn check_folder(&self) -> Result<bool, Error> {
        let failed = |error| Error::io(&self.folder, error);
        let found = match fs::metadata(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            found => found.map_err(failed)?,
        };
        match exposure(&found) {
            _ if !found.is_dir() => Err(failed(io::ErrorKind::NotADirectory.into())),
            Some(what) => Err(Error::Exposed { path: self.folder.clone(), what }),
            None => Ok(true),
        }
    }

    /// Lists the numbers of the keys, in their order. Other files are left alone.
    fn numbers(&self) -> Result<Vec<u64>, Error> {
        let failed = |error| Error::io(&self.folder, error);
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let number = name.to_str().and_then(|name| {
                name.strip_prefix("key-")?.strip_suffix(".json")?.parse::<u64>().ok()
            });
            numbers.extend(number);
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn read(&self, number: u64) -> Result<Option<SigningKey>, Error> {
        let path = self.path(number);
        let failed = |error| Error::io(&path, error);
        let Some(file) = SideFile::at(&path).open_to_read()? else { return Ok(None) };
        if let Some(what) = exposure(&file.metadata().map_err(failed)?) {
            return Err(Error::Exposed { path, what });
        }
        let mut text = Vec::new();
        file.take(LONGEST).read_to_end(&mut text).map_err(failed)?;
        match SigningKey::parse(&text) {
            Ok(key) => Ok(Some(key)),
            Err(reason) => Err(Error::Damaged { path: Some(path), reason: reason.into() }),
        }
    }

    /// Writes a key as a whole: readable by this user alone from its first moment on, and on the
    /// disk before it counts.
    fn write(&self, number: u64, text: &str) -> Result<(), Error> {
        let (path, new) = (self.path(number), self.folder.join(NEW));
        let write = || {
            // A killed rotation may have left one behind. If it is a link, only the link is
            // removed.
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut options = OpenOptions::new();
            let mut file = private(options.write(true).create_new(true)).open(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            self.sync()
        };
        write().map_err(|error| Error::io(&path, error))
    }

    fn delete_ended(&self, now_ms: i64) -> Result<(), Error> {
        for number in ended(&self.load()?, now_ms) {
            let path = self.path(number);
            fs::remove_file(&path).map_err(|error| Error::io(&path, error))?;
        }
        Ok(())
    }

    /// Waits until no other process rotates.
    fn lock(&self) -> Result<File, Error> {
        let path = self.folder.join(LOCK);
        let failed = |error| Error::io(&path, error);
        let file = SideFile::at(&path).open()?;
        loop {
            match file.lock() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                locked => return locked.map(|()| file).map_err(failed),
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("key-{number}.json"))
    }
}

/// Returns the numbers of the keys whose last credential has expired.
fn ended(keys: &[Numbered], now_ms: i64) -> Vec<u64> {
    let pairs = keys.iter().zip(keys.iter().skip(1));
    let has_ended = |((_, key), (_, next)): &(&Numbered, &Numbered)| {
        next.created_at_ms.saturating_add(key.max_ttl_ms) <= now_ms
    };
    pairs.filter(has_ended).map(|((number, _), _)| *number).collect()
}
