//! Opening leases by URL.

use std::sync::Arc;

use crate::cluster::{Cluster, Options};
use crate::engine::{Engine, EngineUrl, Result};
use crate::host::System;

impl Cluster {
    /// Opens leases on the engine that a URL names:
    /// `etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…][/PREFIX]` (`etcds://` with TLS), or
    /// `postgres://…` as libpq has it, with `?schema=litelease`.
    ///
    /// Errors never show the password.
    pub fn open(url: &str) -> Result<Self> {
        Cluster::open_with(url, Options::default())
    }

    /// Opens leases like [`open`](Cluster::open), with options.
    pub fn open_with(url: &str, options: Options) -> Result<Self> {
        Ok(Cluster::with(engine(url.parse()?)?, Arc::new(System), options))
    }
}

fn engine(url: EngineUrl) -> Result<Arc<dyn Engine>> {
    match url {
        #[cfg(feature = "etcd")]
        EngineUrl::Etcd(url) => Ok(Arc::new(crate::etcd::EtcdEngine::open(&url)?)),
        #[cfg(feature = "postgres")]
        EngineUrl::Postgres(url) => Ok(Arc::new(crate::postgres::PostgresEngine::open(&url)?)),
        #[cfg(not(all(feature = "etcd", feature = "postgres")))]
        url => Err(crate::Error::InvalidUrl(format!(
            "this program was built without the engine of {url}: enable its feature"
        ))),
    }
}
