//! A server on an engine with a planted bug, which tests must find out.

use std::net::TcpListener;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use litelease_cluster::Cluster;
use litelease_cluster::engine::{
    Change, Engine, EngineFacts, Error, Loaded, LoadedRow, Result, RowChange, Stored,
};
use litelease_serve::{Options, Replica, run_replica_until_signal};

/// The bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// It answers before the engine has the change.
    AnswersEarly,
    /// It stores under whichever token is the newest.
    TokenIgnored,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Bug; 2] = [Bug::AnswersEarly, Bug::TokenIgnored];

    /// Returns the bug with this name.
    pub fn named(name: &str) -> Option<Self> {
        Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name)
    }
}

/// Serves until a signal, like `litelease serve --open --writer-ttl 1s`.
pub fn serve(url: &str, listen: &str, bug: Bug) {
    let listener = TcpListener::bind(listen).expect("an address");
    let address = listener.local_addr().expect("its number");
    let cluster = Cluster::open(url).expect("an engine");
    let cluster = Cluster::on(Careless::new(Arc::clone(cluster.engine()), bug));
    let options = Options { open: true, ..Options::default() };
    let replica = Replica::new(cluster, &address.to_string(), options).expect("a server");
    let replica = replica.with_ttl(Duration::from_secs(1));
    let ready = || println!("listening at http://{address}");
    run_replica_until_signal(listener, None, replica, ready).expect("it serves");
}

/// A commit that is done later.
type Later = (String, i64, Vec<RowChange>);

/// An engine whose commits of the service have the bug.
struct Careless {
    engine: Arc<dyn Engine>,
    bug: Bug,
    later: mpsc::Sender<Later>,
}

impl Careless {
    fn new(engine: Arc<dyn Engine>, bug: Bug) -> Self {
        let (later, commits) = mpsc::channel::<Later>();
        let inner = Arc::clone(&engine);
        thread::spawn(move || {
            for (name, token, rows) in commits {
                thread::sleep(Duration::from_millis(20));
                let _ = inner.commit_rows(&name, token, &rows);
            }
        });
        Careless { engine, bug, later }
    }
}

impl Engine for Careless {
    fn load(&self, names: &[&str]) -> Result<Loaded> {
        self.engine.load(names)
    }

    fn store(&self, seen: &Loaded, change: &Change) -> Result<Stored> {
        self.engine.store(seen, change)
    }

    fn list(&self) -> Result<Loaded> {
        self.engine.list()
    }

    fn forget(&self, seen: &[LoadedRow]) -> Result<u64> {
        self.engine.forget(seen)
    }

    fn wait_for_change(&self, name: &str, version: i64, time: Duration) {
        self.engine.wait_for_change(name, version, time);
    }

    fn load_rows(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.engine.load_rows(prefix)
    }

    fn commit_rows(&self, name: &str, token: i64, rows: &[RowChange]) -> Result<Stored> {
        match self.bug {
            Bug::AnswersEarly => {
                let _ = self.later.send((name.into(), token, rows.to_vec()));
                Ok(Stored::Done { version: 0 })
            }
            Bug::TokenIgnored => {
                // So it is mostly here that it is stopped.
                thread::sleep(Duration::from_millis(20));
                let newest = self.engine.load(&[name])?.rows.pop().and_then(|row| row.row);
                let newest = newest.ok_or(Error::NotBootstrapped)?.token;
                self.engine.commit_rows(name, newest, rows)
            }
        }
    }

    fn most_rows(&self, new_tokens: bool) -> usize {
        self.engine.most_rows(new_tokens)
    }

    fn facts(&self) -> Result<EngineFacts> {
        self.engine.facts()
    }

    fn bootstrap(&self) -> Result<()> {
        self.engine.bootstrap()
    }
}
