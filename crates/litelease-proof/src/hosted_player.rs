//! The player for hosted stores: the verbs by their names, on a connection that only a host
//! touches, as a binding for another language calls them. The host here is `rusqlite`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use litelease_core::{PoolInfo, SlotInfo, TickOutcome};
use litelease_store::{Error, Failure, Host, HostedStore, Misuse, OwnedValue, Rows, Value, verb};
use rusqlite::Connection;
use rusqlite::types::{ToSqlOutput, ValueRef};
use tempfile::TempDir;

use crate::crate_player::{LeaseIds, transaction_sql};
use crate::play::{self, Played, Player};
use crate::scenario::{Action, shown};
use crate::ticks::TickAction;

/// A connection of `rusqlite` as a host.
pub struct RusqliteHost(pub Rc<Connection>);

impl Host for RusqliteHost {
    fn run(&self, sql: &str, values: &[Value<'_>]) -> Result<Rows, Failure> {
        self.try_run(sql, values).map_err(|error| Failure {
            code: error.sqlite_error().map_or(1, |error| error.extended_code),
            message: error.to_string(),
        })
    }

    fn is_in_transaction(&self) -> bool {
        !self.0.is_autocommit()
    }

    fn changes(&self) -> i64 {
        i64::try_from(self.0.changes()).expect("few changes")
    }

    fn total_changes(&self) -> i64 {
        i64::try_from(self.0.total_changes()).expect("few changes")
    }
}

impl RusqliteHost {
    fn try_run(&self, sql: &str, values: &[Value<'_>]) -> rusqlite::Result<Rows> {
        let mut statement = self.0.prepare(sql)?;
        let columns = statement.column_count();
        let values = values.iter().map(|value| ToSqlOutput::Borrowed(as_ref(*value)));
        let mut found = statement.query(rusqlite::params_from_iter(values))?;
        let mut rows = Rows::new(columns);
        while let Some(row) = found.next()? {
            for column in 0..columns {
                rows.push(owned(row.get_ref(column)?));
            }
        }
        Ok(rows)
    }
}

fn as_ref(value: Value<'_>) -> ValueRef<'_> {
    match value {
        Value::Null => ValueRef::Null,
        Value::Integer(number) => ValueRef::Integer(number),
        Value::Real(number) => ValueRef::Real(number),
        Value::Text(text) => ValueRef::Text(text.as_bytes()),
        Value::Blob(bytes) => ValueRef::Blob(bytes),
    }
}

fn owned(value: ValueRef<'_>) -> OwnedValue {
    match value {
        ValueRef::Null => OwnedValue::Null,
        ValueRef::Integer(number) => OwnedValue::Integer(number),
        ValueRef::Real(number) => OwnedValue::Real(number),
        ValueRef::Text(text) => OwnedValue::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => OwnedValue::Blob(bytes.into()),
    }
}

/// Values for a verb, from what a test has at hand.
#[macro_export]
macro_rules! values {
    ($($value:expr),* $(,)?) => { [$($crate::hosted_player::ToValue::to_value(&$value)),*] };
}

/// What can be an argument of a verb.
pub trait ToValue {
    /// The value.
    fn to_value(&self) -> OwnedValue;
}

impl ToValue for i64 {
    fn to_value(&self) -> OwnedValue {
        OwnedValue::Integer(*self)
    }
}

impl ToValue for String {
    fn to_value(&self) -> OwnedValue {
        OwnedValue::Text(self.clone())
    }
}

impl ToValue for &str {
    fn to_value(&self) -> OwnedValue {
        OwnedValue::Text((*self).into())
    }
}

impl<T: ToValue> ToValue for &T {
    fn to_value(&self) -> OwnedValue {
        (*self).to_value()
    }
}

impl<T: ToValue> ToValue for Option<T> {
    fn to_value(&self) -> OwnedValue {
        self.as_ref().map_or(OwnedValue::Null, ToValue::to_value)
    }
}

/// Calls a verb by its name.
pub fn call(
    store: &HostedStore,
    name: &str,
    values: &[OwnedValue],
) -> Result<Vec<Vec<OwnedValue>>, Error> {
    let verb = verb(name, values.len()).unwrap_or_else(|| panic!("no verb {name}"));
    verb.call(store, values).map_err(|misuse| match misuse {
        Misuse::Error(error) => error,
        Misuse::Argument(at) => panic!("{name}: argument {at} is missing or of another type"),
    })
}

/// Hosted stores on one file, which do not wait for locks.
pub struct HostedPlayer {
    connections: HashMap<String, (Rc<Connection>, HostedStore)>,
    current: String,
    lent: RefCell<LeaseIds>,
    /// Whether a step was skipped that the rest of the file depends on.
    is_abandoned: bool,
    folder: TempDir,
}

impl HostedPlayer {
    /// A player with a new file.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut player = HostedPlayer {
            connections: HashMap::new(),
            current: "main".into(),
            lent: RefCell::default(),
            is_abandoned: false,
            folder,
        };
        player.connect("main").expect("the file opens");
        call(player.store(), "bootstrap", &[]).expect("bootstrap");
        player
    }

    fn connect(&mut self, name: &str) -> rusqlite::Result<()> {
        if !self.connections.contains_key(name) {
            let connection = Connection::open(self.folder.path().join("scenario.sqlite3"))?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.busy_timeout(Duration::ZERO)?;
            let connection = Rc::new(connection);
            let host = Box::new(RusqliteHost(Rc::clone(&connection)));
            let store = HostedStore::new(host).expect("the path of the file");
            self.connections.insert(name.to_owned(), (connection, store));
        }
        self.current = name.to_owned();
        Ok(())
    }

    fn connection(&self) -> &Connection {
        &self.connections[&self.current].0
    }

    fn store(&self) -> &HostedStore {
        &self.connections[&self.current].1
    }

    fn is_live(&self, name: &str, now_ms: i64) -> bool {
        call(self.store(), "inspect", &values![name, now_ms]).is_ok_and(|rows| !rows.is_empty())
    }

    fn perform(&self, now_ms: i64, action: &Action) -> Result<String, Error> {
        let ask = |verb: &str, values: &[OwnedValue]| call(self.store(), verb, values);
        let told = |verb: &str, values: &[OwnedValue]| {
            ask(verb, values).map(|rows| outcome_text(&rows[0]))
        };
        match action {
            Action::Claim { name, owner, ttl_ms, above } => {
                told("claim", &values![name, owner, ttl_ms, now_ms, above])
            }
            Action::ClaimFromDead { name, owner, ttl_ms, dead, token } => {
                told("claim_from_dead", &values![name, owner, ttl_ms, now_ms, dead, token])
            }
            Action::Ensure { name, owner, ttl_ms } => {
                told("ensure", &values![name, owner, ttl_ms, now_ms])
            }
            Action::Attach { name, token, value } => {
                told("attach", &values![name, token, value, now_ms])
            }
            Action::Value { name } => {
                let rows = ask("value", &values![name, now_ms])?;
                Ok(play::value(rows.first().map(|row| text(&row[0]).to_owned())))
            }
            Action::Renew { name, owner, ttl_ms, token } => {
                told("renew", &values![name, owner, ttl_ms, now_ms, token])
            }
            Action::Release { name, owner, token } => {
                told("release", &values![name, owner, now_ms, token])
            }
            Action::Transfer { name, owner, new_owner, ttl_ms, token } => {
                told("transfer", &values![name, owner, new_owner, ttl_ms, now_ms, token])
            }
            Action::Break { name } => told("break", &values![name, now_ms]),
            Action::Purge { before_ms } => {
                Ok(integer(&ask("purge", &values![before_ms, now_ms])?[0][0]).to_string())
            }
            Action::Inspect { name } => {
                let rows = ask("inspect", &values![name, now_ms])?;
                Ok(rows.first().map_or("none".into(), |row| format!("held {}", grant(&row[1..]))))
            }
            Action::Owner { name } => {
                let rows = ask("inspect", &values![name, now_ms])?;
                Ok(play::owner(rows.first().map(|row| text(&row[1]))))
            }
            Action::Token { name } => {
                let rows = ask("token", &values![name])?;
                Ok(play::number(rows.first().map(|row| integer(&row[0]))))
            }
            Action::Since { name } => {
                let rows = ask("inspect", &values![name, now_ms])?;
                Ok(play::began(rows.first().map(|row| integer(&row[4]))))
            }
            Action::Limit { name, token, progress_ms, until_ms } => {
                told("limit", &values![name, token, progress_ms, until_ms, now_ms])
            }
            Action::Progress { name, token } => told("progress", &values![name, token, now_ms]),
            Action::Checkpoint { name, token, value } => {
                told("checkpoint", &values![name, token, value, now_ms])
            }
            Action::Request { name, requester, within_ms } => {
                told("request", &values![name, requester, within_ms, now_ms])
            }
            Action::Withdraw { name, requester } => {
                let rows = ask("withdraw_request", &values![name, requester])?;
                Ok(play::withdrawn(integer(&rows[0][0]) == 1))
            }
            Action::Requested { name } => {
                let rows = ask("requested", &values![name, now_ms])?;
                let open =
                    rows.first().map(|row| (text(&row[0]), integer(&row[1]), integer(&row[2])));
                Ok(play::requested(open))
            }
            Action::HandOver { name, owner, ttl_ms, token } => {
                told("hand_over", &values![name, owner, ttl_ms, now_ms, token])
            }
            Action::TakeOver { name, owner, ttl_ms } => {
                let rows = ask("take_over", &values![name, owner, ttl_ms, now_ms])?;
                Ok(format!("acquired {}", until(&rows[0][2..])))
            }
            Action::Ticks(action) => self.perform_on_ticks(now_ms, action),
            Action::Read { name, reader, ttl_ms } => {
                let rows = ask("read", &values![name, reader, ttl_ms, now_ms])?;
                Ok(play::version(rows.first().map(|row| integer(&row[0]))))
            }
            Action::Unread { name, reader } => {
                Ok(play::unread(integer(&ask("unread", &values![name, reader])?[0][0]) == 1))
            }
            Action::Drained { name, token } => {
                let rows = ask("drained", &values![name, token, now_ms])?;
                Ok(play::drained(integer(&rows[0][0]) == 1))
            }
            action => self.perform_on_pools(now_ms, action),
        }
    }

    fn perform_on_pools(&self, now_ms: i64, action: &Action) -> Result<String, Error> {
        let ask = |verb: &str, values: &[OwnedValue]| call(self.store(), verb, values);
        let mut lent = self.lent.borrow_mut();
        let uuid = |lent: &LeaseIds, lease: &String| lent.get(lease).unwrap_or(lease).clone();
        let word = |rows: Vec<Vec<OwnedValue>>, word: &str| match integer(&rows[0][0]) {
            1 => word.into(),
            _ => "none".into(),
        };
        Ok(match action {
            Action::Pool { pool, count } => {
                let row = ask("pool", &values![pool, count, now_ms])?.remove(0);
                play::pool(PoolInfo { count: integer(&row[0]), in_use: integer(&row[1]) })
            }
            Action::Borrow { pool, lease, ttl_ms, key } => {
                let note: Option<&str> = None;
                let rows = ask("borrow", &values![pool, ttl_ms, now_ms, note, key])?;
                lent.extend(rows.iter().map(|row| (lease.clone(), text(&row[0]).to_owned())));
                play::slot(rows.first().map(|row| slot(&row[1..])))
            }
            Action::Return { pool, lease } => {
                word(ask("return", &values![pool, uuid(&lent, lease), now_ms])?, "returned")
            }
            Action::RenewSlot { pool, lease, ttl_ms } => {
                let rows = ask("pool_renew", &values![pool, uuid(&lent, lease), ttl_ms, now_ms])?;
                play::slot(rows.first().map(|row| slot(row)))
            }
            Action::Keep { pool, lease } => {
                word(ask("keep", &values![pool, uuid(&lent, lease), now_ms])?, "kept")
            }
            Action::DeletePool { pool } => word(ask("pool_delete", &values![pool])?, "deleted"),
            Action::Slots { pool } => {
                let rows = ask("slots", &values![pool, now_ms])?;
                play::slots(rows.iter().map(|row| slot(row)))
            }
            _ => NO_SUCH_VERB.into(),
        })
    }
}

impl HostedPlayer {
    fn perform_on_ticks(&self, now_ms: i64, action: &TickAction) -> Result<String, Error> {
        let name = action.name();
        let ask = |verb: &str, values: &[OwnedValue]| {
            call(self.store(), verb, values).map(|rows| rows.into_iter().next().unwrap_or_default())
        };
        let previous = |value: &OwnedValue| match value {
            OwnedValue::Integer(previous_ms) => format!(" previous {previous_ms}"),
            _ => String::new(),
        };
        let row = match action {
            TickAction::Claim { owner, tick_ms, ttl_ms, attempts, .. } => {
                ask("claim_tick", &values![name, owner, ttl_ms, tick_ms, attempts, now_ms])?
            }
            TickAction::Tick { tick_ms, .. } => ask("tick", &values![name, tick_ms, now_ms])?,
            TickAction::Finish { token, outcome, .. } => {
                let has_failed = i64::from(*outcome == TickOutcome::Failed);
                ask("finish_tick", &values![name, token, has_failed, now_ms])?
            }
            TickAction::Skip { until_ms, breaks, .. } => {
                let breaks = i64::from(*breaks);
                ask("tick_skip", &values![name, until_ms, breaks, now_ms])?
            }
            TickAction::Again { .. } => ask("tick_again", &values![name, now_ms])?,
            TickAction::Forget { .. } => ask("tick_forget", &values![name, now_ms])?,
            TickAction::Ticks { .. } => {
                let rows = call(self.store(), "ticks", &values![now_ms])?;
                let row = rows.iter().find(|row| text(&row[0]) == name);
                return Ok(row.map_or("none".into(), |row| {
                    let newest = format!("{} {}", integer(&row[1]), text(&row[2]));
                    let (attempt, attempts) = (integer(&row[4]), integer(&row[5]));
                    format!("tick {newest} attempt {attempt} of {attempts}{}", previous(&row[3]))
                }));
            }
        };
        let newest = |row: &[OwnedValue]| format!("{} {}", integer(&row[1]), text(&row[2]));
        Ok(match (action, text(&row[0])) {
            (TickAction::Forget { .. }, "Changed") => "forgotten".into(),
            (_, "Acquired") => {
                let attempt = integer(&row[5]);
                format!("{} attempt {attempt}{}", outcome_text(&row), previous(&row[6]))
            }
            (TickAction::Claim { .. }, "Busy") => match &row[5] {
                OwnedValue::Integer(tick_ms) => format!("{} runs {tick_ms}", outcome_text(&row)),
                _ => outcome_text(&row),
            },
            (_, "Busy") => outcome_text(&row),
            (_, "AlreadyTaken") => format!("taken {}", newest(&row)),
            (_, "InFuture") => "in future".into(),
            (_, "First") => "first".into(),
            (_, "Finished") => "finished".into(),
            (_, "Repeated") => "finished before".into(),
            (_, "Stale") => "error StaleTick".into(),
            (_, "Changed") => format!("newest {}", newest(&row)),
            (_, "Unknown") => "none".into(),
            (_, word) => format!("unknown case {word}"),
        })
    }
}

impl Default for HostedPlayer {
    fn default() -> Self {
        HostedPlayer::new()
    }
}

impl Player for HostedPlayer {
    fn has_ticks(&self) -> bool {
        true
    }

    fn step(&mut self, now_ms: i64, action: &Action) -> Played {
        if self.is_abandoned {
            return Played::Skipped(NO_SUCH_VERB);
        }
        let done = match action {
            Action::Conn { name } => {
                return match self.connect(name) {
                    Ok(()) => Played::Answer("ok".into()),
                    Err(failed) => Played::Answer(play::error(&failed.into())),
                };
            }
            action => match transaction_sql(action) {
                Some(sql) => {
                    let done = self.connection().execute_batch(&sql);
                    let done = done.map_err(|failed| play::error(&failed.into()));
                    return Played::Answer(done.map_or_else(|error| error, |()| "ok".into()));
                }
                None => self.perform(now_ms, action),
            },
        };
        match done {
            Ok(answer) if answer == NO_SUCH_VERB => {
                self.is_abandoned = true;
                Played::Skipped(NO_SUCH_VERB)
            }
            Ok(answer) => Played::Answer(answer),
            // Others look first, and find it busy in the snapshot that they have.
            Err(Error::Sqlite(failure))
                if failure.code == BUSY_SNAPSHOT
                    && matches!(action, Action::Claim { name, .. } if self.is_live(name, now_ms)) =>
            {
                Played::Skipped("a host cannot tell whether a transaction has read yet")
            }
            Err(error) => Played::Answer(error_text(&error)),
        }
    }
}

const NO_SUCH_VERB: &str = "it has no name among the verbs yet";

/// A snapshot that is not the newest cannot be written from.
const BUSY_SNAPSHOT: i32 = 517;

fn error_text(error: &Error) -> String {
    match error {
        Error::Sqlite(failure) if failure.code == 5 => "error SQLITE_BUSY".into(),
        Error::Sqlite(failure) if failure.code == BUSY_SNAPSHOT => {
            "error SQLITE_BUSY_SNAPSHOT".into()
        }
        Error::Sqlite(failure) => format!("error SQLITE {}", failure.code),
        error => format!("error {}", error.kind()),
    }
}

/// The answer of a verb with cases, in the words of scenario files.
fn outcome_text(row: &[OwnedValue]) -> String {
    match text(&row[0]) {
        "Acquired" => format!("acquired {}", until(&row[3..])),
        "Busy" => format!("busy {}", grant(&row[2..])),
        "Renewed" => format!("renewed {}", until(&row[3..])),
        "Transferred" => format!("transferred {}", until(&row[3..])),
        "Done" => "done".into(),
        "Stored" => "stored".into(),
        "Stale" => format!("rejected superseded by {}", integer(&row[1])),
        "Requested" => format!("requested until {}", integer(&row[2])),
        "RequestedBy" => {
            format!("requested by {} until {}", shown(text(&row[1])), integer(&row[2]))
        }
        "Released" => format!("released {}", integer(&row[2])),
        "Broken" => format!("broken {}", integer(&row[2])),
        "Rejected" => match text(&row[1]) {
            "HELD_BY" => {
                format!("rejected held by {} {}", shown(text(&row[4])), integer(&row[5]))
            }
            "SUPERSEDED" => format!("rejected superseded by {}", integer(&row[2])),
            word => format!("rejected {}", word.to_lowercase().replace('_', " ")),
        },
        other => format!("unknown case {other}"),
    }
}

/// Owner, token, expiry.
fn grant(row: &[OwnedValue]) -> String {
    format!("{} {}", shown(text(&row[0])), until(&row[1..]))
}

fn until(row: &[OwnedValue]) -> String {
    format!("{} until {}", integer(&row[0]), integer(&row[1]))
}

fn slot(row: &[OwnedValue]) -> SlotInfo {
    // Listed without an expiry: it is kept.
    let number = |at: usize| row[at].value().integer().unwrap_or(i64::MAX);
    let [position, token, expires_at_ms] = [0, 1, 2].map(number);
    SlotInfo { position, token, expires_at_ms }
}

fn text(value: &OwnedValue) -> &str {
    value.value().text().expect("a text")
}

fn integer(value: &OwnedValue) -> i64 {
    value.value().integer().expect("a number")
}
