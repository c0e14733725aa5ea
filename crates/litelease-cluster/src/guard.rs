//! Guarded tables, on an engine that has tables of the caller's.

use crate::cluster::Cluster;
use crate::engine::{Guard, GuardInfo, Result};

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

    /// Lists all guards, and whether their triggers are intact.
    pub fn guards(&self) -> Result<Vec<GuardInfo>> {
        self.until_answered(&mut self.patience(), || self.shared.engine.guards())
    }
}
