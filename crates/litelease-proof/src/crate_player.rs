//! The player for the Rust crate, which works on a real file.

use std::collections::HashMap;
use std::time::Duration;

use litelease::rusqlite::{Connection, types};
use litelease::{BorrowOptions, GrantRef, Leases, Litelease, LiteleaseRef, Pools};
use tempfile::TempDir;

use crate::play::{self, Played, Player, ToText, error, held, number, owner};
use crate::queue;
use crate::scenario::Action;
use crate::ticks;

/// The Rust crate on a real file in WAL mode, with no busy timeout.
pub struct CratePlayer {
    mode: Mode,
    connections: HashMap<String, Litelease>,
    current: String,
    abandoned: bool,
    /// What the scenario calls the leases on slots.
    lent: LeaseIds,
    folder: TempDir,
}

/// The UUIDs of leases on slots, by what a scenario calls them.
pub type LeaseIds = HashMap<String, String>;

/// What the verbs are called on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// The handle itself.
    Autocommit,
    /// A transaction of its own around each verb.
    Transaction,
    /// A savepoint inside a savepoint inside a transaction around each verb.
    Savepoint,
    /// A borrowed handle, made anew for each verb.
    Borrowed,
}

impl CratePlayer {
    /// A player with a new file.
    pub fn new(mode: Mode) -> Result<Self, Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let current = "main".to_owned();
        let mut player = CratePlayer {
            mode,
            connections: HashMap::new(),
            current,
            abandoned: false,
            lent: LeaseIds::new(),
            folder,
        };
        player.connect("main")?;
        player.db().bootstrap()?;
        Ok(player)
    }

    fn connect(&mut self, name: &str) -> litelease::Result<()> {
        if !self.connections.contains_key(name) {
            let connection = Connection::open(self.folder.path().join("scenario.sqlite3"))?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.busy_timeout(Duration::ZERO)?;
            self.connections.insert(name.to_owned(), Litelease::from_connection(connection));
        }
        self.current = name.to_owned();
        Ok(())
    }

    fn db(&mut self) -> &mut Litelease {
        self.connections.get_mut(&self.current).expect("the current connection is open")
    }

    fn lease_step(&mut self, now_ms: i64, action: &Action) -> litelease::Result<String> {
        let mode = self.mode;
        let mut lent = std::mem::take(&mut self.lent);
        let done = self.in_mode(mode, |leases| perform(leases, &mut lent, now_ms, action));
        self.lent = lent;
        done
    }

    fn in_mode(
        &mut self,
        mode: Mode,
        mut perform: impl FnMut(&Leases) -> litelease::Result<String>,
    ) -> litelease::Result<String> {
        let db = self.db();
        // Inside a transaction of the scenario's own the verbs join that one.
        if !db.conn().is_autocommit() {
            return perform(db);
        }
        match mode {
            Mode::Autocommit => perform(db),
            Mode::Borrowed => perform(&LiteleaseRef::new(db.conn())),
            Mode::Transaction => {
                let tx = db.transaction()?;
                let answer = perform(&tx)?;
                tx.commit().map(|()| answer)
            }
            Mode::Savepoint => {
                let mut tx = db.transaction()?;
                let mut outer = tx.savepoint()?;
                let inner = outer.savepoint()?;
                let answer = perform(&inner)?;
                inner.commit()?;
                outer.commit()?;
                tx.commit().map(|()| answer)
            }
        }
    }
}

impl Player for CratePlayer {
    fn has_ticks(&self) -> bool {
        true
    }

    fn step(&mut self, now_ms: i64, action: &Action) -> Played {
        // A claim on a live name is busy without the write lock, but a transaction of our own asks
        // for it.
        let owns_boundary = matches!(self.mode, Mode::Transaction | Mode::Savepoint);
        self.abandoned |= owns_boundary && matches!(action, Action::Conn { .. });
        if self.abandoned {
            return Played::Skipped(
                "a transaction around each verb would wait for the other connection",
            );
        }
        if action.ttl_ms().is_some_and(|ttl_ms| ttl_ms < 0) {
            return Played::Skipped("a Duration cannot be negative");
        }
        let done = match action {
            Action::Conn { name } => self.connect(name).map(|()| "ok".into()),
            action => match transaction_sql(action) {
                Some(sql) => {
                    self.db().conn().execute_batch(&sql).map(|()| "ok".into()).map_err(Into::into)
                }
                None => self.lease_step(now_ms, action),
            },
        };
        Played::Answer(done.unwrap_or_else(|failed| error(&failed)))
    }
}

/// Calls the verb of an action on any handle of the crate.
pub fn perform(
    leases: &Leases,
    lent: &mut LeaseIds,
    now_ms: i64,
    action: &Action,
) -> litelease::Result<String> {
    let ttl = Duration::from_millis(action.ttl_ms().unwrap_or(0).unsigned_abs());
    fn grant<'a>(name: &'a str, owner: &'a str, token: i64) -> GrantRef<'a> {
        GrantRef { name, token, owner: Some(owner) }
    }
    Ok(match action {
        Action::Claim { name, owner, above: None, .. } => {
            leases.at(now_ms).claim(name, owner, ttl)?.to_text()
        }
        Action::Claim { name, owner, above: Some(above), .. } => {
            leases.at(now_ms).claim_above(name, owner, ttl, *above)?.to_text()
        }
        Action::ClaimFromDead { name, owner, dead, token, .. } => {
            let dead = grant(name, dead, *token);
            leases.at(now_ms).claim_from_dead(name, owner, ttl, dead)?.to_text()
        }
        Action::Renew { name, owner, token: None, .. } => {
            leases.at(now_ms).renew_by_owner(name, owner, ttl)?.to_text()
        }
        Action::Renew { name, owner, token: Some(token), .. } => {
            leases.at(now_ms).renew(grant(name, owner, *token), ttl)?.to_text()
        }
        Action::Release { name, owner, token: None } => {
            leases.at(now_ms).release_by_owner(name, owner)?.to_text()
        }
        Action::Release { name, owner, token: Some(token) } => {
            leases.at(now_ms).release(grant(name, owner, *token))?.to_text()
        }
        Action::Transfer { name, owner, new_owner, token: None, .. } => {
            leases.at(now_ms).transfer_by_owner(name, owner, new_owner, ttl)?.to_text()
        }
        Action::Transfer { name, owner, new_owner, token: Some(token), .. } => {
            let lease = grant(name, owner, *token);
            leases.at(now_ms).transfer(lease, new_owner, ttl)?.to_text()
        }
        Action::Break { name } => leases.at(now_ms).break_lease(name)?.to_text(),
        Action::Purge { before_ms } => leases.at(now_ms).purge(*before_ms)?.to_string(),
        Action::Ensure { name, owner, .. } => leases.at(now_ms).ensure(name, owner, ttl)?.to_text(),
        Action::Inspect { name } => held(leases.at(now_ms).inspect(name)?),
        Action::Owner { name } => owner(leases.at(now_ms).owner(name)?),
        Action::Token { name } => number(leases.token(name)?),
        Action::Since { name } => play::since(leases.row(name)?, now_ms),
        Action::Attach { name, token, value } => {
            leases.at(now_ms).attach((name, *token), value)?.to_text()
        }
        Action::Value { name } => {
            play::value(leases.at(now_ms).value(name)?.map(|value| match value {
                types::Value::Text(text) => text,
                value => format!("{value:?}"),
            }))
        }
        Action::Ticks(action) => ticks::perform(leases, now_ms, action)?,
        Action::Queue(action) => queue::perform(leases, lent, now_ms, action)?,
        Action::Read { name, reader, .. } => {
            play::version(leases.at(now_ms).read(name, reader, ttl)?)
        }
        Action::Unread { name, reader } => play::unread(leases.unread(name, reader)?),
        Action::Drained { name, token } => {
            play::drained(leases.at(now_ms).drained((name, *token))?)
        }
        Action::Limit { name, token, progress_ms, until_ms } => {
            let within = progress_ms.map(|ms| Duration::from_millis(ms.unsigned_abs()));
            leases.at(now_ms).limit((name, *token), within, *until_ms)?.to_text()
        }
        Action::Progress { name, token } => leases.at(now_ms).progress((name, *token))?.to_text(),
        Action::Checkpoint { name, token, value } => {
            play::checkpoint(leases.at(now_ms).checkpoint((name, *token), value)?, *token)
        }
        Action::Request { name, requester, within_ms } => {
            let within = Duration::from_millis(within_ms.unsigned_abs());
            leases.at(now_ms).request(name, requester, within)?.to_text()
        }
        Action::Withdraw { name, requester } => {
            play::withdrawn(leases.withdraw_request(name, requester)?)
        }
        Action::Requested { name } => {
            let open = leases.at(now_ms).requested(name)?;
            play::requested(open.map(|open| (open.requester, open.until_ms, open.token)))
        }
        Action::HandOver { name, owner, token, .. } => {
            // Rust hands over exactly one grant.
            let token = token.or(leases.token(name)?).unwrap_or(1);
            leases.at(now_ms).hand_over(grant(name, owner, token), ttl)?.to_text()
        }
        Action::TakeOver { name, owner, .. } => {
            leases.at(now_ms).take_over(name, owner, ttl)?.to_text()
        }
        action => perform_on_pools(&leases.pools(), lent, now_ms, action)?,
    })
}

fn perform_on_pools(
    pools: &Pools<'_>,
    lent: &mut LeaseIds,
    now_ms: i64,
    action: &Action,
) -> litelease::Result<String> {
    let ttl = Duration::from_millis(action.ttl_ms().unwrap_or(0).unsigned_abs());
    let uuid = |lent: &LeaseIds, lease: &String| lent.get(lease).unwrap_or(lease).clone();
    Ok(match action {
        Action::Pool { pool, count } => play::pool(pools.at(now_ms).register(pool, *count)?),
        Action::Borrow { pool, lease, key, .. } => {
            let options = key.iter().fold(BorrowOptions::new(), |options, key| options.key(key));
            let borrowed = pools.at(now_ms).borrow_with(pool, ttl, options)?;
            if let Some(borrowed) = &borrowed {
                lent.insert(lease.clone(), borrowed.lease_id.clone());
            }
            play::slot(borrowed.map(|borrowed| borrowed.slot))
        }
        Action::Return { pool, lease } => {
            let returned = pools.at(now_ms).return_slot(pool, &uuid(lent, lease))?;
            if returned { "returned".into() } else { "none".into() }
        }
        Action::RenewSlot { pool, lease, .. } => {
            play::slot(pools.at(now_ms).renew(pool, &uuid(lent, lease), ttl)?)
        }
        Action::Keep { pool, lease } => {
            let kept = pools.at(now_ms).keep(pool, &uuid(lent, lease))?;
            if kept { "kept".into() } else { "none".into() }
        }
        Action::DeletePool { pool } => {
            if pools.delete(pool)? {
                "deleted".into()
            } else {
                "none".into()
            }
        }
        Action::Slots { pool } => {
            play::slots(pools.at(now_ms).slots(pool)?.into_iter().map(|row| row.slot))
        }
        _ => "error not a verb on leases".into(),
    })
}

pub(crate) fn transaction_sql(action: &Action) -> Option<String> {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    Some(match action {
        Action::Begin { immediate: false } => "BEGIN".into(),
        Action::Begin { immediate: true } => "BEGIN IMMEDIATE".into(),
        Action::Commit => "COMMIT".into(),
        Action::Rollback => "ROLLBACK".into(),
        Action::Savepoint { name } => format!("SAVEPOINT {}", quoted(name)),
        Action::RollbackTo { name } => format!("ROLLBACK TO {}", quoted(name)),
        Action::ReleaseSavepoint { name } => format!("RELEASE {}", quoted(name)),
        _ => return None,
    })
}
