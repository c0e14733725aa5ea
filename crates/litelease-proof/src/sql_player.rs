//! The player for the SQL functions, registered in Rust or loaded as an extension, on a real file.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use litelease::rusqlite::types::ToSql;
use litelease::rusqlite::{self, Connection, OptionalExtension};
use litelease::{KEPT, PoolInfo, SlotInfo};
use tempfile::TempDir;

use crate::crate_player::{LeaseIds, transaction_sql};
use crate::play::{self, Played, Player, error};
use crate::queue;
use crate::rig::load_extension;
use crate::scenario::{Action, shown};
use crate::ticks;

/// Plays on the SQL functions alone: what a verb does not tell is read from `litelease_leases`.
pub struct SqlPlayer {
    /// The library to load, or none to register the functions in Rust.
    extension: Option<PathBuf>,
    connections: HashMap<String, Connection>,
    current: String,
    abandoned: bool,
    lent: RefCell<LeaseIds>,
    folder: TempDir,
}

impl SqlPlayer {
    /// A player with a new file.
    pub fn new(extension: Option<PathBuf>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let current = "main".to_owned();
        let mut player = SqlPlayer {
            extension,
            connections: HashMap::new(),
            current,
            abandoned: false,
            lent: RefCell::default(),
            folder,
        };
        player.connect("main").expect("the file opens");
        player.call("bootstrap", &[]).expect("bootstrap");
        player
    }

    fn connect(&mut self, name: &str) -> litelease::Result<()> {
        if !self.connections.contains_key(name) {
            let connection = Connection::open(self.folder.path().join("scenario.sqlite3"))?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.busy_timeout(Duration::ZERO)?;
            match &self.extension {
                Some(library) => load_extension(&connection, library),
                None => litelease::functions::register(&connection)?,
            }
            self.connections.insert(name.to_owned(), connection);
        }
        self.current = name.to_owned();
        Ok(())
    }

    fn connection(&self) -> &Connection {
        &self.connections[&self.current]
    }

    /// Calls a function whose answer is a number or NULL.
    fn call(&self, verb: &str, arguments: &[&dyn ToSql]) -> rusqlite::Result<Option<i64>> {
        let places = vec!["?"; arguments.len()].join(", ");
        let sql = format!("SELECT litelease_{verb}({places})");
        self.connection().query_row(&sql, arguments, |row| row.get(0))
    }

    /// The lease on a name as `litelease_leases` shows it: owner, token, expiry.
    fn lease(&self, name: &str, now_ms: i64) -> rusqlite::Result<Option<(String, i64, i64)>> {
        let sql = "SELECT owner, token, expires_at_ms FROM litelease_leases(?2)
                   WHERE name = ?1 AND state = 'live'";
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        self.connection().query_row(sql, (name, now_ms), row).optional()
    }

    /// The answer of a claim, of which SQL tells the token or NULL.
    fn claimed(&self, name: &str, now_ms: i64, token: Option<i64>) -> rusqlite::Result<String> {
        Ok(match (token, self.lease(name, now_ms)?) {
            (Some(token), lease) => {
                format!("acquired {token} until {}", lease.map_or(0, |(_, _, until)| until))
            }
            (None, Some((owner, token, until))) => {
                format!("busy {} {token} until {until}", shown(&owner))
            }
            (None, None) => "busy nobody".into(),
        })
    }

    fn requested(&self, name: &str, now_ms: i64) -> rusqlite::Result<Option<(String, i64, i64)>> {
        let sql = "SELECT requester, until_ms, token FROM litelease_requested(?1, ?2)";
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        self.connection().query_row(sql, (name, now_ms), row).optional()
    }

    /// Calls the function of an action. `None` is a rejection, whose reason SQL does not tell.
    fn perform(&self, now_ms: i64, action: &Action) -> rusqlite::Result<Option<String>> {
        // An option that was not given must not be given to the function either.
        let with =
            |options: &[Option<i64>]| options.iter().flatten().copied().collect::<Vec<i64>>();
        let call = |verb: &str, given: &[&dyn ToSql], options: Vec<i64>| {
            let mut all = given.to_vec();
            all.extend(options.iter().map(|option| option as &dyn ToSql));
            self.call(verb, &all)
        };
        let until =
            |name: &str| self.lease(name, now_ms).map(|lease| lease.map_or(0, |lease| lease.2));
        let now = Some(now_ms);
        Ok(Some(match action {
            Action::Claim { name, owner, ttl_ms, above } => {
                let token = call("claim", &[name, owner, ttl_ms], with(&[now, *above]))?;
                self.claimed(name, now_ms, token)?
            }
            Action::Ensure { name, owner, ttl_ms } => {
                let token = call("ensure", &[name, owner, ttl_ms], with(&[now]))?;
                self.claimed(name, now_ms, token)?
            }
            Action::Renew { name, owner, ttl_ms, token } => {
                match call("renew", &[name, owner, ttl_ms], with(&[now, *token]))? {
                    Some(token) => format!("renewed {token} until {}", until(name)?),
                    None => return Ok(None),
                }
            }
            Action::Release { name, owner, token } => {
                match call("release", &[name, owner], with(&[now, *token]))? {
                    Some(1) => format!("released {}", self.call("token", &[name])?.unwrap_or(0)),
                    _ => return Ok(None),
                }
            }
            Action::Transfer { name, owner, new_owner, ttl_ms, token } => {
                match call("transfer", &[name, owner, new_owner, ttl_ms], with(&[now, *token]))? {
                    Some(token) => format!("transferred {token} until {}", until(name)?),
                    None => return Ok(None),
                }
            }
            Action::Break { name } => match call("break", &[name], with(&[now]))? {
                Some(killed) => format!("broken {killed}"),
                None => return Ok(None),
            },
            Action::Purge { before_ms } => number(call("purge", &[before_ms], with(&[now]))?),
            Action::Inspect { name } => match self.lease(name, now_ms)? {
                Some((owner, token, until)) => {
                    format!("held {} {token} until {until}", shown(&owner))
                }
                None => "none".into(),
            },
            Action::Owner { name } => {
                let sql = "SELECT litelease_owner(?1, ?2)";
                let owner: Option<String> =
                    self.connection().query_row(sql, (name, now_ms), |row| row.get(0))?;
                owner.map_or("none".into(), |owner| format!("owner {}", shown(&owner)))
            }
            Action::Token { name } => number(self.call("token", &[name])?),
            Action::Since { name } => {
                let sql = "SELECT since_ms FROM litelease_leases(?2)
                           WHERE name = ?1 AND state = 'live'";
                let since_ms = |row: &rusqlite::Row<'_>| row.get(0);
                let found = self.connection().query_row(sql, (name, now_ms), since_ms);
                play::began(found.optional()?)
            }
            Action::Attach { name, token, value } => {
                match self.call("attach", &[name, token, value, &now_ms])? {
                    Some(1) => "done".into(),
                    _ => return Ok(None),
                }
            }
            Action::Limit { name, token, progress_ms, until_ms } => {
                match self.call("limit", &[name, token, progress_ms, until_ms, &now_ms])? {
                    Some(1) => "done".into(),
                    _ => return Ok(None),
                }
            }
            Action::Progress { name, token } => {
                match self.call("progress", &[name, token, &now_ms])? {
                    Some(1) => "done".into(),
                    _ => return Ok(None),
                }
            }
            Action::Checkpoint { name, token, value } => {
                match self.call("checkpoint", &[name, token, value, &now_ms])? {
                    Some(1) => "stored".into(),
                    _ => return Ok(None),
                }
            }
            Action::Request { name, requester, within_ms } => {
                match self.call("request", &[name, requester, within_ms, &now_ms])? {
                    Some(until_ms) => format!("requested until {until_ms}"),
                    None => match self.requested(name, now_ms)? {
                        Some((who, until_ms, _)) => {
                            format!("requested by {} until {until_ms}", shown(&who))
                        }
                        None => return Ok(None),
                    },
                }
            }
            Action::Withdraw { name, requester } => {
                play::withdrawn(self.call("withdraw_request", &[name, requester])? == Some(1))
            }
            Action::Requested { name } => play::requested(self.requested(name, now_ms)?),
            Action::HandOver { name, owner, ttl_ms, token } => {
                match call("hand_over", &[name, owner, ttl_ms], with(&[now, *token]))? {
                    Some(token) => format!("transferred {token} until {}", until(name)?),
                    None => return Ok(None),
                }
            }
            Action::TakeOver { name, owner, ttl_ms } => {
                let token = self.call("take_over", &[name, owner, ttl_ms, &now_ms])?;
                format!("acquired {} until {}", number(token), until(name)?)
            }
            Action::Value { name } => {
                let sql = "SELECT litelease_value(?1, ?2),
                           (SELECT value FROM litelease_leases(?2) WHERE name = ?1)";
                let texts = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
                let (value, listed): (Option<String>, Option<String>) =
                    self.connection().query_row(sql, (name, now_ms), texts)?;
                assert_eq!(value, listed, "the value of {name:?} and its column");
                play::value(value)
            }
            Action::Ticks(action) => ticks::call(self.connection(), now_ms, action)?,
            Action::Queue(action) => {
                queue::call(self.connection(), &mut self.lent.borrow_mut(), now_ms, action)?
            }
            Action::Read { name, reader, ttl_ms } => {
                play::version(call("read", &[name, reader, ttl_ms], with(&[now]))?)
            }
            Action::Unread { name, reader } => {
                play::unread(self.call("unread", &[name, reader])? == Some(1))
            }
            Action::Drained { name, token } => {
                play::drained(call("drained", &[name, token], with(&[now]))? == Some(1))
            }
            action => self.perform_on_pools(now_ms, action)?,
        }))
    }
}

impl SqlPlayer {
    fn perform_on_pools(&self, now_ms: i64, action: &Action) -> rusqlite::Result<String> {
        let mut lent = self.lent.borrow_mut();
        let uuid = |lent: &LeaseIds, lease: &String| lent.get(lease).unwrap_or(lease).clone();
        let word = |yes: Option<i64>, word: &str| match yes {
            Some(1) => word.into(),
            _ => "none".into(),
        };
        Ok(match action {
            Action::Pool { pool, count } => {
                let count = self.call("pool", &[pool, count])?.unwrap_or(-1);
                let sql = "SELECT count(*) FROM litelease_slots(?1, ?2)";
                let in_use = self.connection().query_row(sql, (pool, now_ms), |row| row.get(0))?;
                play::pool(PoolInfo { count, in_use })
            }
            Action::Borrow { pool, lease, ttl_ms, key } => {
                let sql = "SELECT litelease_borrow(?1, ?2, ?3, NULL, ?4)";
                let values = (pool, ttl_ms, now_ms, key);
                let borrowed: Option<String> =
                    self.connection().query_row(sql, values, |row| row.get(0))?;
                let slot = match &borrowed {
                    Some(uuid) => self.slot(pool, uuid)?,
                    None => None,
                };
                lent.extend(borrowed.map(|uuid| (lease.clone(), uuid)));
                play::slot(slot)
            }
            Action::Return { pool, lease } => {
                let returned = self.call("return", &[pool, &uuid(&lent, lease), &now_ms])?;
                word(returned, "returned")
            }
            Action::RenewSlot { pool, lease, ttl_ms } => {
                let lease = uuid(&lent, lease);
                match self.call("pool_renew", &[pool, &lease, ttl_ms, &now_ms])? {
                    Some(_) => play::slot(self.slot(pool, &lease)?),
                    None => "none".into(),
                }
            }
            Action::Keep { pool, lease } => {
                word(self.call("keep", &[pool, &uuid(&lent, lease), &now_ms])?, "kept")
            }
            Action::DeletePool { pool } => word(self.call("pool_delete", &[pool])?, "deleted"),
            Action::Slots { pool } => {
                let sql = "SELECT position, token, expires_at_ms FROM litelease_slots(?1, ?2)";
                let mut statement = self.connection().prepare(sql)?;
                let slots = statement.query_map((pool, now_ms), as_slot)?;
                play::slots(slots.collect::<rusqlite::Result<Vec<_>>>()?)
            }
            _ => "error not a function".into(),
        })
    }

    fn slot(&self, pool: &str, lease: &str) -> rusqlite::Result<Option<SlotInfo>> {
        let sql = "SELECT position, token, expires_at_ms FROM litelease_slot(?1, ?2)";
        self.connection().query_row(sql, (pool, lease), as_slot).optional()
    }
}

fn as_slot(row: &rusqlite::Row<'_>) -> rusqlite::Result<SlotInfo> {
    // A slot that is kept has no expiry.
    let expires_at_ms = row.get::<_, Option<i64>>(2)?.unwrap_or(KEPT);
    Ok(SlotInfo { position: row.get(0)?, token: row.get(1)?, expires_at_ms })
}

impl Player for SqlPlayer {
    fn has_ticks(&self) -> bool {
        true
    }

    fn step(&mut self, now_ms: i64, action: &Action) -> Played {
        // What follows in this file depends on it.
        self.abandoned |= matches!(action, Action::ClaimFromDead { .. });
        if self.abandoned {
            return Played::Skipped("SQL has no claim from a dead holder");
        }
        let done = match action {
            Action::Conn { name } => {
                return Played::Answer(
                    self.connect(name).map_or_else(|e| error(&e), |()| "ok".into()),
                );
            }
            action => match transaction_sql(action) {
                Some(sql) => self.connection().execute_batch(&sql).map(|()| Some("ok".into())),
                None => self.perform(now_ms, action),
            },
        };
        match done {
            Ok(Some(answer)) => Played::Answer(answer),
            Ok(None) => Played::No,
            Err(failed) => Played::Answer(by_its_words(failed)),
        }
    }
}

fn number(number: Option<i64>) -> String {
    number.map_or("none".into(), |number| number.to_string())
}

/// An error of ours is a plain one to SQLite; its words tell which.
fn by_its_words(failed: rusqlite::Error) -> String {
    let text = failed.to_string();
    for (words, kind) in [
        ("the ttl must be at least 1 ms", "InvalidTtl"),
        ("ends after the last representable time", "TimeOverflow"),
        ("progress_within must be at least 1 ms", "InvalidTime"),
        ("within must be at least 1 ms", "InvalidTime"),
        ("no larger token exists", "TokenExhausted"),
        ("the ttl of a read is at most", "TtlTooLong"),
        ("there is no such pool", "NoSuchPool"),
        ("a pool has 0 to", "InvalidCount"),
        ("of a borrow has", "InvalidText"),
        ("of an item has", "InvalidText"),
        ("the delay must not be negative", "InvalidDelay"),
        ("a queue allows 0", "InvalidAttempts"),
        ("the newest tick is", "TickAhead"),
        ("a holder is at work on the tick", "TickHeld"),
        ("does not have its tick any more", "StaleTick"),
    ] {
        if text.contains(words) {
            return format!("error {kind}");
        }
    }
    error(&litelease::Error::Sqlite(failed))
}
