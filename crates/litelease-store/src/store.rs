//! The verbs on the stored row: load it, let the rule decide, save what it says.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use litelease_core::{
    self as rule, BreakResult, ClaimResult, Claimant, LeaseInfo, Refusal, ReleaseResult,
    RenewResult, Row, State, Step, Tenure, Term, TransferResult,
};

use crate::schema::FORMAT;
use crate::sqlite::{Connection, Run, Value, code};
use crate::statements::Statements;
use crate::transaction::Boundary;
use crate::{Error, Failure};

/// The leases in one SQLite database, reached through one connection.
///
/// Statements are compiled at first use and kept until the store is dropped. Each verb hands its answer,
/// which borrows from the row, to a function of the caller's that keeps what it needs of it.
pub struct Store {
    pub(crate) connection: Connection,
    pub(crate) statements: Statements,
    /// Whether the file has a table that keeps the token floor, as of the last look at its schema.
    pub(crate) keeps_floor: Cell<bool>,
}

/// The time that a verb decides at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The system clock, read once the write lock is held.
    Now,
    /// This Unix time in milliseconds.
    At(i64),
}

/// A row as it was found, with what is needed to save it again.
struct Found<'a> {
    row: Row<'a>,
    rowid: Option<i64>,
    floor: i64,
}

impl Store {
    /// The leases in the main database of `connection`.
    pub fn new(connection: Connection) -> Self {
        Store { connection, statements: Statements::new(), keeps_floor: Cell::new(false) }
    }

    /// Grants `name` to `owner` if nobody has it, under a token larger than `min_token`.
    pub fn claim<'q, T>(
        &self,
        name: &'q str,
        owner: &'q str,
        ttl_ms: i64,
        when: When,
        min_token: i64,
        keep: impl Fn(ClaimResult<&str>) -> T,
    ) -> Result<T, Error> {
        self.naming("claim", name, || {
            let boundary = self.boundary();
            if boundary.may_look_first() {
                let busy = self.look(name, |row| {
                    let now_ms = when.now_ms();
                    Term::new(ttl_ms, now_ms)?;
                    Ok(rule::busy(row, now_ms).map(&keep))
                })?;
                if let Some(busy) = busy {
                    return Ok(busy);
                }
            }
            self.change(boundary, name, when, |row, floor, now_ms| {
                let term = Term::new(ttl_ms, now_ms)?;
                Ok(rule::claim(row, owner, term, floor.max(min_token))?.map(&keep))
            })
        })
    }

    /// Prolongs a live lease.
    pub fn renew<'q, T>(
        &self,
        name: &'q str,
        who: Claimant<'q>,
        ttl_ms: i64,
        when: When,
        keep: impl Fn(RenewResult<&str>) -> T,
    ) -> Result<T, Error> {
        self.naming("renew", name, || {
            self.change(self.boundary(), name, when, |row, _, now_ms| {
                Ok(rule::renew(row, who, Term::new(ttl_ms, now_ms)?).map(&keep))
            })
        })
    }

    /// Ends a live lease early.
    pub fn release<T>(
        &self,
        name: &str,
        who: Claimant<'_>,
        when: When,
        keep: impl Fn(ReleaseResult<&str>) -> T,
    ) -> Result<T, Error> {
        self.naming("release", name, || {
            self.change(self.boundary(), name, when, |row, _, now_ms| {
                Ok(rule::release(row, who, now_ms).map(&keep))
            })
        })
    }

    /// Hands a live lease to a new owner under a new token.
    pub fn transfer<'q, T>(
        &self,
        name: &'q str,
        who: Claimant<'_>,
        new_owner: &'q str,
        ttl_ms: i64,
        when: When,
        keep: impl Fn(TransferResult<&str>) -> T,
    ) -> Result<T, Error> {
        self.naming("transfer", name, || {
            self.change(self.boundary(), name, when, |row, floor, now_ms| {
                let term = Term::new(ttl_ms, now_ms)?;
                Ok(rule::transfer(row, who, new_owner, term, floor)?.map(&keep))
            })
        })
    }

    /// Ends anybody's live lease and raises its token.
    pub fn break_lease<T>(
        &self,
        name: &str,
        when: When,
        keep: impl Fn(BreakResult<&str>) -> T,
    ) -> Result<T, Error> {
        self.naming("break", name, || {
            self.change(self.boundary(), name, when, |row, floor, now_ms| {
                Ok(rule::break_lease(row, now_ms, floor)?.map(&keep))
            })
        })
    }

    /// The live lease on `name`, if there is one. Needs no write lock.
    pub fn inspect<T>(
        &self,
        name: &str,
        when: When,
        keep: impl Fn(LeaseInfo<&str>) -> T,
    ) -> Result<Option<T>, Error> {
        self.naming("inspect", name, || {
            self.look(name, |row| Ok(rule::inspect(row, when.now_ms()).map(&keep)))
        })
    }

    /// The newest token of `name`, live or not. Needs no write lock.
    pub fn token(&self, name: &str) -> Result<Option<i64>, Error> {
        self.naming("look up", name, || self.look(name, |row| Ok(row.token())))
    }

    /// Reads a row and changes nothing.
    fn look<T>(
        &self,
        name: &str,
        mut answer: impl FnMut(Row<'_>) -> Result<T, Refusal>,
    ) -> Result<T, Error> {
        self.load(name, |found| answer(found.row).map_err(|refusal| refused(name, refusal)))
    }

    /// Loads, decides and saves in one transaction.
    fn change<'q, T>(
        &self,
        boundary: Boundary,
        name: &str,
        when: When,
        mut decide: impl FnMut(Row<'_>, i64, i64) -> Result<Step<'q, T>, Refusal>,
    ) -> Result<T, Error> {
        let step = self.within(boundary, || {
            // Read the clock under the write lock: waiting for the lock takes time too.
            let now_ms = when.now_ms();
            let (rowid, step) = self.load(name, |found| {
                let step = decide(found.row, found.floor, now_ms);
                Ok((found.rowid, step.map_err(|refusal| refused(name, refusal))?))
            })?;
            if let Some(state) = step.write {
                self.save(name, rowid, state, now_ms)?;
            }
            Ok(step)
        })?;
        match step.write {
            Some(state) if when == When::Now => arrived(name, state)?,
            _ => {}
        }
        Ok(step.answer)
    }

    /// Lends the row called `name` to `work`, having made sure that the schema is right.
    fn load<T>(
        &self,
        name: &str,
        mut work: impl FnMut(Found<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        loop {
            let keeps_floor = self.keeps_floor.get();
            match self.try_load(name, keeps_floor, &mut work) {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                Err(error) => {
                    self.explain(&error)?;
                    // Unless the table of the floor came or went: then load the other way.
                    if self.keeps_floor.get() == keeps_floor {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// One attempt to load. It comes to nothing if the table of the token floor came or went meanwhile.
    fn try_load<T>(
        &self,
        name: &str,
        keeps_floor: bool,
        work: &mut impl FnMut(Found<'_>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let held = match keeps_floor {
            true => &self.statements.load_with_floor,
            false => &self.statements.load,
        };
        held.with(self.connection, |statement| {
            let mut run = statement.run(&[Value::Text(name)])?;
            let has_row = run.step()?;
            let floor = if keeps_floor { floor(&run) } else { Some(0) };
            // SQLite compiles a statement anew when the schema has changed: then look whether it is still
            // right, in the same snapshot, which this run holds.
            if run.is_unverified() || floor.is_none() {
                self.verify()?;
                run.mark_verified();
            }
            let Some(floor) = floor.filter(|_| self.keeps_floor.get() == keeps_floor) else {
                return Ok(None);
            };
            let Some((row, rowid)) = row(name, &run, has_row) else {
                return Err(Error::InvalidLeaseRow(name.into()));
            };
            work(Found { row, rowid, floor }).map(Some)
        })
    }

    /// Stores a state under a name that was just loaded, and makes sure that it is stored.
    fn save(
        &self,
        name: &str,
        rowid: Option<i64>,
        state: State<'_>,
        now_ms: i64,
    ) -> Result<(), Error> {
        let (owner, expires) = match state.tenure() {
            Some(Tenure { owner, expires_at_ms }) => {
                (Value::Text(owner), Value::Integer(expires_at_ms))
            }
            None => (Value::Null, Value::Null),
        };
        let token = Value::Integer(state.token());
        let now = Value::Integer(now_ms);
        match rowid {
            Some(rowid) => {
                let values = [Value::Integer(rowid), owner, token, expires, now];
                self.statements.update.execute(self.connection, &values)?;
            }
            None => self.connection.keeping_last_insert_rowid(|| {
                let values = [Value::Text(name), owner, token, expires, now];
                self.statements.insert.execute(self.connection, &values)
            })?,
        }
        match self.connection.changes() {
            1 => Ok(()),
            changed => Err(Error::UnexpectedChange { name: name.into(), changed }),
        }
    }

    /// Looks behind an error that may be about our tables: if they are missing or not ours, that is the
    /// better error.
    pub(crate) fn explain(&self, error: &Error) -> Result<(), Error> {
        match error {
            Error::Sqlite(failure) if failure.code & 0xff == code::ERROR => self.verify(),
            _ => Ok(()),
        }
    }

    /// Adds to an error of SQLite what was tried, on what and where.
    pub(crate) fn naming<T>(
        &self,
        verb: &str,
        name: &str,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        work().map_err(|error| {
            error.map_sqlite(|Failure { code, message }| {
                let file = match self.connection.filename() {
                    path if path.is_empty() => "a database in memory".into(),
                    path => path,
                };
                let what = if name.is_empty() { verb.into() } else { format!("{verb} {name:?}") };
                Failure { code, message: format!("cannot {what} in {file}: {message}") }
            })
        })
    }
}

impl When {
    /// This time, or the system clock's.
    pub fn now_ms(self) -> i64 {
        match self {
            When::At(now_ms) => now_ms,
            When::Now => match SystemTime::now().duration_since(UNIX_EPOCH) {
                Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
                Err(before) => {
                    i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms)
                }
            },
        }
    }
}

/// The row that a run of a load statement stands on and its rowid, or `None` if it is not a valid one.
fn row<'a>(name: &'a str, run: &'a Run<'_, '_>, has_row: bool) -> Option<(Row<'a>, Option<i64>)> {
    // Where the floor is loaded too there is a row even if the name has none.
    let rowid = if has_row { optional(run.column(0)?, integer)? } else { None };
    let state = match rowid {
        Some(_) => Some(stored(run)?),
        None => None,
    };
    Some((Row::new(name, state), rowid))
}

/// The token floor in columns 4 and 5, if there is a valid one of the format that this version knows.
fn floor(run: &Run<'_, '_>) -> Option<i64> {
    let format = run.column(5).and_then(integer)?;
    let floor = run.column(4).and_then(integer)?;
    (format == FORMAT && floor >= 0).then_some(floor)
}

/// The state in columns 1 to 3: owner, token, expiry.
pub(crate) fn stored<'a>(run: &'a Run<'_, '_>) -> Option<State<'a>> {
    let owner = optional(run.column(1)?, text)?;
    let token = integer(run.column(2)?)?;
    let expires_at_ms = optional(run.column(3)?, integer)?;
    State::stored(token, owner, expires_at_ms)
}

/// NULL is nothing; anything else must be of the right type.
fn optional<'a, T>(value: Value<'a>, read: fn(Value<'a>) -> Option<T>) -> Option<Option<T>> {
    match value {
        Value::Null => Some(None),
        value => read(value).map(Some),
    }
}

pub(crate) fn integer(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Integer(number) => Some(number),
        _ => None,
    }
}

pub(crate) fn text(value: Value<'_>) -> Option<&str> {
    match value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

/// Makes sure that a lease which was just stored is not over already: committing takes time too.
fn arrived(name: &str, state: State<'_>) -> Result<(), Error> {
    let Some(Tenure { owner, expires_at_ms }) = state.tenure() else { return Ok(()) };
    if When::Now.now_ms() < expires_at_ms {
        return Ok(());
    }
    Err(Error::ExpiredOnArrival(LeaseInfo {
        name: name.into(),
        owner: owner.into(),
        token: state.token(),
        lease_expires_at_ms: expires_at_ms,
    }))
}

fn refused(name: &str, refusal: Refusal) -> Error {
    Error::Refused { name: name.into(), refusal }
}
