//! Opening leases by URL.

use std::sync::Arc;

use litelease_engine::{Engine, Error, Place, Result};

use crate::cluster::{Cluster, Options};
use crate::host::System;

impl Cluster {
    /// Opens leases on the engine that a URL names:
    /// `etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…][/PREFIX]` (`etcds://` with TLS), or
    /// `postgres://…` as libpq has it, with `?schema=litelease`.
    ///
    /// Errors never show the password.
    ///
    /// ```
    /// # use litelease_cluster::{Cluster, Error};
    /// let error = Cluster::open("etcd://").err();
    /// assert!(matches!(error, Some(Error::InvalidUrl(reason)) if reason.contains("host is missing")));
    /// ```
    pub fn open(url: &str) -> Result<Self> {
        Cluster::open_with(url, Options::default())
    }

    /// Opens leases like [`open`](Cluster::open), with options.
    pub fn open_with(url: &str, options: Options) -> Result<Self> {
        Ok(Cluster::with(engine(url.parse()?)?, Arc::new(System), options))
    }
}

fn engine(place: Place) -> Result<Arc<dyn Engine>> {
    let missing = |name: &str| {
        Err(Error::InvalidUrl(format!("this program was built without {name}: enable its feature")))
    };
    match place {
        #[cfg(feature = "etcd")]
        Place::Etcd(url) => Ok(Arc::new(litelease_etcd::EtcdEngine::open(&url)?)),
        #[cfg(not(feature = "etcd"))]
        Place::Etcd(_) => missing("etcd"),
        #[cfg(feature = "postgres")]
        Place::Postgres(url) => Ok(Arc::new(litelease_postgres::PostgresEngine::open(&url)?)),
        #[cfg(not(feature = "postgres"))]
        Place::Postgres(_) => missing("postgres"),
        _ => missing("this engine"),
    }
}
