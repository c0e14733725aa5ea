//! Guarded tables and keys, on an engine that has some of the caller's.

use crate::cluster::Cluster;
use litelease_core::GrantRef;

use crate::engine::{Guard, GuardInfo, Result, Stored};

impl Cluster {
    /// Guards a table: from now on, a write to it must present the newest token of `name`. The
    /// server itself refuses all other writes, with `stale fencing token` in the message.
    ///
    /// The table is in the database of the leases, and is written as in SQL: `orders`,
    /// `sales.orders`, `"Orders"`. A name that was never claimed closes the table until its first
    /// grant. If several names guard one table, a write must present a token for each. Guarding
    /// again in the same way changes nothing, or restores triggers that were dropped or switched
    /// off.
    ///
    /// Only PostgreSQL has tables: etcd refuses. A guard by connection passes after
    /// `SELECT litelease.present(name, token)` in the same transaction.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// use litelease_cluster::{Cluster, Guard};
    ///
    /// # fn main() -> litelease_cluster::Result<()> {
    /// let cluster = Cluster::open("postgres://app@db.example/app")?;
    /// cluster.bootstrap()?;
    /// cluster.guard("orders", "order-writer", &Guard::by_connection())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn guard(&self, table: &str, name: &str, guard: &Guard) -> Result<()> {
        self.check_name(name)?;
        // It may be done twice without harm.
        self.until_sent(&mut self.patience(), || self.shared.engine.guard(table, name, guard))
    }

    /// Removes the guard by `name` from a table, or all its guards. Returns how many there were.
    pub fn unguard(&self, table: &str, name: Option<&str>) -> Result<u64> {
        self.until_sent(&mut self.patience(), || self.shared.engine.unguard(table, name))
    }

    /// Stores a value under a key of yours in the etcd of the leases, in one transaction that
    /// compares the token of the grant. Returns whether it is stored: false means that the name was
    /// granted to another client or broken, and nothing was.
    ///
    /// It does not ask whether the lease has ended, only whether its token is the newest: no other
    /// client can have written under a newer one before. The key is any one that is not below the
    /// prefix of the URL. If the answer is lost, this fails with
    /// [`CommitUnknown`](crate::Error::CommitUnknown), and is not repeated, because a later value
    /// of this holder may be there by then. Only etcd has keys: for PostgreSQL, guard a table.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use litelease_cluster::Cluster;
    ///
    /// # fn main() -> litelease_cluster::Result<()> {
    /// let cluster = Cluster::open("etcd://10.0.0.1:2379/jobs")?;
    /// let lease = cluster.claim("scheduler", "a", Duration::from_secs(30))?.acquired();
    /// if let Some(lease) = lease
    ///     && !cluster.guarded_put(&lease, "app/schedule", "monday")?
    /// {
    ///     println!("another scheduler has taken over");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn guarded_put<'g>(
        &self,
        grant: impl Into<GrantRef<'g>>,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool> {
        let (GrantRef { name, token, .. }, key, value) =
            (grant.into(), key.as_ref(), value.as_ref());
        self.check_name_to_hold(name)?;
        let put = || self.shared.engine.guarded_put(name, token, key, value);
        self.until_sent(&mut self.patience(), put).map(|stored| stored != Stored::Conflict)
    }

    /// Lists all guards, and whether their triggers are intact.
    pub fn guards(&self) -> Result<Vec<GuardInfo>> {
        self.until_answered(&mut self.patience(), || self.shared.engine.guards())
    }
}
