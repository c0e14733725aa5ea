//! The access keys of a service on an engine. Any program may change them, under a lease of their
//! own. The server that writes reads them twice a second.

use std::time::Duration;

use litelease_cluster::engine::Stored;
use litelease_cluster::{Cluster, Host, Lease, System};
use litelease_store::AccessRow;

use crate::error::OpenError;
use crate::local_key::{AccessKeys, NAME as LOCAL};
use crate::mirror::encoding::{self, ACCESS};

/// The name of the lease under which access keys are changed.
const ACCESS_NAME: &str = "serve/access";

/// How long a change may take, and how long another one waits for it.
const TTL: Duration = Duration::from_secs(10);

/// How long to wait before asking again.
const PAUSE: Duration = Duration::from_millis(50);

/// The access keys of a service on an engine. The server that writes notices a change within a
/// second.
///
/// ```
/// use litelease_cluster::{Cluster, MemoryEngine};
/// use litelease_serve::{AccessKey, ClusterAccess};
///
/// let access = ClusterAccess::new(Cluster::on(MemoryEngine::new()));
/// let key = AccessKey::generate().unwrap();
/// assert!(access.add("ci", &key.hash(), "claim:backup/*", None)?);
/// assert_eq!(access.list()?[0].name, "ci");
/// assert!(access.remove("ci")?);
/// # Ok::<(), litelease_serve::OpenError>(())
/// ```
pub struct ClusterAccess {
    cluster: Cluster,
}

impl ClusterAccess {
    /// Returns the access keys on an engine.
    pub fn new(cluster: Cluster) -> Self {
        ClusterAccess { cluster: cluster.of_service() }
    }

    /// Returns all keys, in the order of their names.
    pub fn list(&self) -> Result<Vec<AccessRow>, OpenError> {
        let rows = self.cluster.engine().load_rows(ACCESS).map_err(OpenError::Cluster)?;
        Ok(rows
            .iter()
            .map(|(key, value)| encoding::read_access(key, value))
            .collect::<Result<_, _>>()?)
    }

    /// Adds a key, unless there is one of this name or with this hash. Returns whether it did.
    pub fn add(
        &self,
        name: &str,
        hash: &[u8],
        allow: &str,
        expires: Option<Duration>,
    ) -> Result<bool, OpenError> {
        self.change(|keys| {
            if keys.iter().any(|row| row.name == name || row.hash == hash) {
                return None;
            }
            let (name, hash, allow) = (name.to_owned(), hash.to_vec(), allow.to_owned());
            let created_at_ms = litelease::now_ms();
            let later = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
            let expires_at_ms = expires.map(|time| created_at_ms.saturating_add(later(time)));
            let row = AccessRow { name, hash, allow, created_at_ms, expires_at_ms };
            Some((encoding::access_key(&row.name), Some(encoding::write_access(&row))))
        })
    }

    /// Adds those of these keys that are not there, with the dates at which they end, and without
    /// that of a server's own user. Returns the name of one, and adds none, if there is another key
    /// of its name.
    pub fn add_all(&self, rows: &[AccessRow]) -> Result<Option<String>, OpenError> {
        let known = self.list()?;
        let is_known = |row: &&AccessRow| known.iter().any(|other| other.name == row.name);
        let is_same = |row: &AccessRow| known.iter().any(|other| other.hash == row.hash);
        let rows = || rows.iter().filter(|row| row.name != LOCAL);
        if let Some(row) = rows().filter(is_known).find(|row| !is_same(row)) {
            return Ok(Some(row.name.clone()));
        }
        for row in rows().filter(|row| !is_known(row) && !is_same(row)) {
            self.change(|_| {
                Some((encoding::access_key(&row.name), Some(encoding::write_access(row))))
            })?;
        }
        Ok(None)
    }

    /// Takes a key back. Returns whether there was one.
    pub fn remove(&self, name: &str) -> Result<bool, OpenError> {
        self.change(|keys| {
            let found = keys.iter().find(|row| row.name == name);
            found.map(|row| (encoding::access_key(&row.name), None))
        })
    }

    /// Replaces the key of this name, or adds it.
    fn put(&self, name: &str, hash: &[u8], allow: &str) -> Result<(), OpenError> {
        self.remove(name)?;
        self.add(name, hash, allow, None).map(drop)
    }

    /// Changes a key under a lease, so that other programs wait before they change one.
    fn change(
        &self,
        decide: impl Fn(&[AccessRow]) -> Option<(Vec<u8>, Option<Vec<u8>>)>,
    ) -> Result<bool, OpenError> {
        let lease = self.claim()?;
        let changed = self.list().and_then(|keys| match decide(&keys) {
            Some(row) => {
                let stored = self.cluster.engine().commit_rows(ACCESS_NAME, lease.token, &[row]);
                match stored.map_err(OpenError::Cluster)? {
                    Stored::Done { .. } | Stored::DoneAt { .. } => Ok(true),
                    Stored::Conflict => Err(OpenError::Cluster(litelease_cluster::Error::Locked(
                        "another program has changed the access keys meanwhile".into(),
                    ))),
                }
            }
            None => Ok(false),
        });
        // If this fails, the lease expires.
        let _ = self.cluster.release(&lease);
        changed
    }

    fn claim(&self) -> Result<Lease, OpenError> {
        let owner = format!("{} {:x}", std::process::id(), System.random_id());
        let mut tries = TTL.as_millis() * 2 / PAUSE.as_millis();
        loop {
            let claimed =
                self.cluster.claim(ACCESS_NAME, &owner, TTL).map_err(OpenError::Cluster)?;
            match claimed.acquired() {
                Some(lease) => return Ok(lease),
                None if tries == 0 => {
                    return Err(OpenError::Cluster(litelease_cluster::Error::Locked(
                        "another program changes the access keys".into(),
                    )));
                }
                None => tries -= 1,
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl AccessKeys for ClusterAccess {
    fn find(&self, name: &str) -> Result<Option<Option<AccessRow>>, OpenError> {
        // An engine does not record whether the key was removed, so the next start of its server
        // makes it again.
        Ok(self.list()?.into_iter().find(|row| row.name == name).map(Some))
    }

    fn replace(&self, name: &str, hash: &[u8], allow: &str) -> Result<(), OpenError> {
        self.put(name, hash, allow)
    }
}
