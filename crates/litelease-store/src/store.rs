//! The verbs on the stored row: load it, let the rule decide, save what it says.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use litelease_core::{
    self as rule, BreakResult, ClaimResult, Claimant, LeaseInfo, Refusal, ReleaseResult,
    RenewResult, Row, State, Step, Tenure, Term, TransferResult,
};

use crate::judge::Verdict;
use crate::sqlite::{Connection, Value, code};
use crate::statements::{Judged, Statements};
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

/// What came of asking the rule about a row.
enum Heard<'q, T> {
    /// The rule decided, and what it wants stored is stored.
    Decided(Step<'q, T>),
    /// There is no such row (or there is one already, for an insertion).
    NoSuchRow,
    /// The schema may have changed: what was loaded does not count before it was looked at.
    Stale,
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
            if self.boundary().may_look_first() {
                let busy = self.look(name, |row| {
                    let now_ms = when.now_ms();
                    Term::new(ttl_ms, now_ms)?;
                    Ok(rule::busy(row, now_ms).map(&keep))
                })?;
                if let Some(busy) = busy {
                    return Ok(busy);
                }
            }
            self.change(name, when, |row, floor, now_ms| {
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
            self.change(name, when, |row, _, now_ms| {
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
            self.change(name, when, |row, _, now_ms| Ok(rule::release(row, who, now_ms).map(&keep)))
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
            self.change(name, when, |row, floor, now_ms| {
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
            self.change(name, when, |row, floor, now_ms| {
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
        let looked = self.statements.load.with(self.connection, |statement| {
            let mut run = statement.run(&[Value::Text(name)])?;
            let has_row = run.step()?;
            // SQLite compiles a statement anew when the schema has changed: then look whether it is still
            // right, in the same snapshot, which this run holds.
            if run.is_unverified() {
                self.verify()?;
                run.mark_verified();
            }
            let state = match has_row {
                true => Some(stored([run.column(0), run.column(1), run.column(2)])),
                false => None,
            };
            let row = row(name, state)?;
            answer(row).map_err(|refusal| refused(name, refusal))
        });
        looked.or_else(|error| self.explain(error))
    }

    /// Lets the rule decide about the row and stores what it says, in one statement under the write lock.
    fn change<'q, T>(
        &self,
        name: &str,
        when: When,
        mut decide: impl FnMut(Row<'_>, i64, i64) -> Result<Step<'q, T>, Refusal>,
    ) -> Result<T, Error> {
        let mut insertions = 0;
        let step = loop {
            match self.hear(&self.statements.update, name, when, &mut decide)? {
                Heard::Decided(step) => break step,
                Heard::Stale => continue,
                Heard::NoSuchRow => {}
            }
            // Nobody was ever granted this name. Most verbs have their answer now; a claim inserts the row.
            let step = decide(Row::new(name, None), 0, when.now_ms());
            let step = step.map_err(|refusal| refused(name, refusal))?;
            if step.write.is_none() {
                break step;
            }
            let insert = || self.hear(&self.statements.insert, name, when, &mut decide);
            match self.connection.keeping_last_insert_rowid(insert)? {
                Heard::Decided(step) => break step,
                // Somebody else was faster, and then the row is there.
                Heard::NoSuchRow if insertions < 2 => insertions += 1,
                Heard::NoSuchRow => {
                    return Err(Error::UnexpectedChange { name: name.into(), changed: 0 });
                }
                Heard::Stale => {}
            }
        };
        match step.write {
            Some(state) if when == When::Now => arrived(name, state)?,
            _ => {}
        }
        Ok(step.answer)
    }

    /// Runs one of the statements that ask the rule.
    fn hear<'q, T>(
        &self,
        judged: &Judged,
        name: &str,
        when: When,
        decide: &mut impl FnMut(Row<'_>, i64, i64) -> Result<Step<'q, T>, Refusal>,
    ) -> Result<Heard<'q, T>, Error> {
        let keeps_floor = self.keeps_floor.get();
        let boundary = self.boundary();
        let is_insertion = std::ptr::eq(judged, &self.statements.insert);
        let heard = judged.for_file(keeps_floor).with(self.connection, |statement| {
            let mut heard = Ok(Heard::NoSuchRow);
            let ran = statement.judge(name, &mut |evidence| {
                let floor = match evidence.floor {
                    Some(floor) if keeps_floor => integer(floor).filter(|floor| *floor >= 0),
                    _ => (!keeps_floor).then_some(0),
                };
                let Some(floor) = floor.filter(|_| !evidence.is_unverified) else {
                    heard = Ok(Heard::Stale);
                    return None;
                };
                // Read the clock here, under the write lock: waiting for the lock takes time too.
                let now_ms = when.now_ms();
                let state = (!is_insertion).then(|| stored(evidence.row));
                let step = row(name, state).and_then(|row| {
                    decide(row, floor, now_ms).map_err(|refusal| refused(name, refusal))
                });
                let verdict = step.as_ref().ok().and_then(|step| step.write);
                heard = step.map(Heard::Decided);
                verdict.map(|state| Verdict { state, now_ms })
            });
            if matches!(heard, Ok(Heard::Stale)) {
                ran?;
                self.verify()?;
                statement.mark_verified();
                return heard;
            }
            let Ok(Heard::Decided(Step { write: Some(_), .. })) = &heard else {
                ran?;
                return heard;
            };
            ran.map_err(|failure| match boundary {
                // The statement was its own transaction, so this may have been its commit.
                Boundary::Own if !failure.means_nothing_stored() => Error::CommitUnknown(failure),
                _ => Error::Sqlite(failure),
            })?;
            match self.connection.changes() {
                1 => heard,
                0 if is_insertion => Ok(Heard::NoSuchRow),
                changed => Err(Error::UnexpectedChange { name: name.into(), changed }),
            }
        });
        heard.or_else(|error| {
            let explained = self.explain(error);
            // Unless the table of the floor came or went: then ask the other way.
            if self.keeps_floor.get() == keeps_floor { explained } else { Ok(Heard::Stale) }
        })
    }

    /// Looks behind an error that may be about our tables: if they are missing or not ours, that is the
    /// better error.
    pub(crate) fn explain<T>(&self, error: Error) -> Result<T, Error> {
        match &error {
            Error::Sqlite(failure) if failure.code & 0xff == code::ERROR => self.verify()?,
            _ => {}
        }
        Err(error)
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

/// The row called `name`, whose state is a valid one if it is there.
fn row<'a>(name: &'a str, state: Option<Option<State<'a>>>) -> Result<Row<'a>, Error> {
    match state {
        Some(None) => Err(Error::InvalidLeaseRow(name.into())),
        state => Ok(Row::new(name, state.flatten())),
    }
}

/// The state that owner, token and expiry mean, if they are valid.
pub(crate) fn stored([owner, token, expires]: [Option<Value<'_>>; 3]) -> Option<State<'_>> {
    State::stored(integer(token?)?, optional(owner?, text)?, optional(expires?, integer)?)
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
