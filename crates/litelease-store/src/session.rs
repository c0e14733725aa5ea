//! Sessions: one transaction renews an identity and all names that were claimed in it. The file has
//! the list of those names, so that the successor of a session can break them all.
//!
//! Each function runs inside a transaction that is open, at one time. If it answers no, the caller
//! rolls back.

use litelease_core::{
    self as rule, ClaimResult, Claimant, Lease, Reason, ReleaseResult, RenewResult, Term,
    TransferResult,
};

use crate::schema::Table;
use crate::side_tables::Side;
use crate::sqlite::Value;
use crate::{Error, Store, When};

/// The session of each name that was claimed in one, by the grant of its identity. It is made by
/// the first one.
pub(crate) const SESSIONS: Table = Table {
    name: "litelease_sessions",
    definition: "(
  name TEXT PRIMARY KEY,
  token INTEGER NOT NULL CHECK (token >= 1),
  identity TEXT NOT NULL,
  session_token INTEGER NOT NULL CHECK (session_token >= 1)
)",
};

/// Stores the session of a grant, and replaces the one before.
pub(crate) const ENTER: &str = "INSERT INTO main.litelease_sessions
(name, token, identity, session_token) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, identity = excluded.identity,
session_token = excluded.session_token";

/// Finds a grant of a session.
pub(crate) const HAS_ENTERED: &str = "SELECT 1 FROM main.litelease_sessions
WHERE name = ?1 AND token = ?2 AND identity = ?3 AND session_token = ?4";

/// Reads the grants of a session that have neither been released nor succeeded.
pub(crate) const NAMES_OF_SESSION: &str = "SELECT side.name FROM main.litelease_sessions AS side
JOIN main.litelease_resources AS lease ON lease.name = side.name AND lease.token = side.token
WHERE side.identity = ?1 AND side.session_token = ?2 AND lease.owner IS NOT NULL ORDER BY side.name";

/// A session in its transactions: the grant of its identity, and the grants that were claimed in
/// it.
///
/// ```
/// # use litelease_store::SessionGrants;
/// let names = [("books", 7)];
/// let session =
///     SessionGrants { identity: "worker", owner: "a", token: 1, ttl_ms: 30_000, names: &names };
/// assert_eq!(session.names.len(), 1);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SessionGrants<'s> {
    /// The name of the identity.
    pub identity: &'s str,
    /// The owner text of all its grants, unique to the session.
    pub owner: &'s str,
    /// The token of the identity.
    pub token: i64,
    /// How long each renewal lasts.
    pub ttl_ms: i64,
    /// The names that were claimed in it, each with its token.
    pub names: &'s [(&'s str, i64)],
}

/// The answer to the renewal of a whole session.
#[derive(Debug)]
pub struct Beat<T> {
    /// The identity, with its new expiry.
    pub identity: Lease,
    /// The answer for each name, in their order.
    pub names: Vec<RenewResult>,
    /// The answer of the other change in the transaction.
    pub done: T,
}

/// The reason why nothing of a session was renewed. Nothing was written.
#[derive(Debug)]
pub struct SessionOver {
    /// The reason why its identity was refused.
    pub reason: Reason,
    /// The live lease on the identity.
    pub current: Option<Lease>,
    /// For each name why it is over by itself: the reason and the live lease. None for one that
    /// would stand, and is over because its session is.
    pub names: Vec<Option<(Reason, Option<Lease>)>>,
}

impl SessionGrants<'_> {
    pub(crate) fn has(&self, name: &str) -> bool {
        name == self.identity || self.names.iter().any(|(known, _)| *known == name)
    }

    fn who(&self, token: i64) -> Claimant<'_> {
        Claimant { owner: self.owner, token: Some(token) }
    }
}

/// Sessions.
impl Store {
    /// Grants an identity to `owner`. If another session has the identity, replaces it if `is_dead`
    /// returns true for that, or if `replaces`: breaks it and all its names.
    pub fn open_session(
        &self,
        identity: &str,
        owner: &str,
        ttl_ms: i64,
        now_ms: i64,
        replaces: bool,
        is_dead: impl FnOnce(&Lease) -> bool,
    ) -> Result<ClaimResult, Error> {
        let when = When::At(now_ms);
        let before = self.token(identity)?;
        let current = self.inspect(identity, when, |current| current.into_owned())?;
        let is_over = current.as_ref().is_some_and(is_dead);
        let granted = match current {
            Some(current) if !replaces && !is_over => return Ok(ClaimResult::Busy(current)),
            _ => self.take_over(identity, owner, ttl_ms, when, |taken| taken.lease.into_owned())?,
        };
        if let Some(before) = before.filter(|_| replaces || is_over) {
            for name in self.names_of_session(identity, before)? {
                // Not a mere break, which leaves the token of an expired lease the newest.
                let token =
                    self.take_over(&name, owner, ttl_ms, when, |taken| taken.lease.token)?;
                let who = Claimant { owner, token: Some(token) };
                self.release(&name, who, when, |_| ())?;
            }
        }
        Ok(ClaimResult::Acquired(granted))
    }

    /// Renews exactly the identity and then, after `work`, all names, to the same instant. `work`
    /// gets the ttl to claim with. If the identity is refused, nothing is written.
    pub fn beat_session<T>(
        &self,
        session: SessionGrants<'_>,
        now_ms: i64,
        work: impl FnOnce(i64) -> Result<T, Error>,
    ) -> Result<Result<Beat<T>, SessionOver>, Error> {
        let (SessionGrants { identity, ttl_ms, .. }, when) = (session, When::At(now_ms));
        let renew = |name: &str, token: i64, ttl_ms: i64| {
            self.renew(name, session.who(token), ttl_ms, when, |answer| answer.into_owned())
        };
        let identity = match renew(identity, session.token, ttl_ms)? {
            RenewResult::Renewed(lease) => lease,
            RenewResult::Rejected { reason, current } => {
                let names = session.names.iter();
                let names = names.map(|(name, token)| self.own_end(session, name, *token, now_ms));
                let names = names.collect::<Result<_, _>>()?;
                return Ok(Err(SessionOver { reason, current, names }));
            }
        };
        // A renewal never shortens, so the session may last longer than its ttl after the clock
        // went back.
        let ttl_ms = identity.expires_at_ms.saturating_sub(now_ms);
        let done = work(ttl_ms)?;
        let names = session.names.iter().map(|(name, token)| renew(name, *token, ttl_ms));
        let names = names.collect::<Result<_, _>>()?;
        Ok(Ok(Beat { identity, names, done }))
    }

    /// Claims a name in a session, and renews the whole session. Replaces a holder for which
    /// `is_dead` returns true.
    pub fn claim_in_session(
        &self,
        session: SessionGrants<'_>,
        name: &str,
        now_ms: i64,
        is_dead: impl FnOnce(&Lease) -> bool,
    ) -> Result<Result<Beat<ClaimResult>, SessionOver>, Error> {
        let (owner, when) = (session.owner, When::At(now_ms));
        self.beat_session(session, now_ms, |ttl_ms| {
            let current = match self.claim(name, owner, ttl_ms, when, 0, |it| it.into_owned())? {
                ClaimResult::Busy(current) => current,
                granted => return self.entered(session, granted),
            };
            let holder = Claimant { owner: &current.owner, token: Some(current.token) };
            let answer = if current.owner == owner && !session.has(name) {
                let adopted = self.adopt(session, name, current.token, ttl_ms, when)?;
                adopted.map_or(ClaimResult::Busy(current), ClaimResult::Acquired)
            } else if is_dead(&current) {
                self.claim_from_dead(name, owner, ttl_ms, when, holder, |it| it.into_owned())?
            } else {
                ClaimResult::Busy(current)
            };
            self.entered(session, answer)
        })
    }

    /// Takes a live lease that carries the session's owner text and is none of its names: it was
    /// handed over to the session, or granted to a claim that failed after its commit, or is lost
    /// and not yet over.
    ///
    /// In the last case the session may have a handle on it, and dropping that would release the
    /// new grant. So a lease that the session had before gets a new token. So does one that would
    /// outlive the session, because a renewal never shortens.
    pub(crate) fn adopt(
        &self,
        session: SessionGrants<'_>,
        name: &str,
        token: i64,
        ttl_ms: i64,
        when: When,
    ) -> Result<Option<Lease>, Error> {
        let who = session.who(token);
        // Not a mere transfer: limits and requests are for it, too.
        let renewed = match self.renew(name, who, ttl_ms, when, |answer| answer.into_owned())? {
            RenewResult::Renewed(lease) => lease,
            RenewResult::Rejected { .. } => return Ok(None),
        };
        let session_ends_at_ms = when.now_ms().saturating_add(ttl_ms);
        let ends_with_it = session_ends_at_ms >= renewed.expires_at_ms;
        if ends_with_it && !self.has_entered(session, name, token)? {
            return Ok(Some(renewed));
        }
        let again = |answer: TransferResult<&str>| answer.into_owned().transferred();
        self.transfer(name, who, session.owner, ttl_ms, when, again)
    }

    /// Checks whether the grant of `name` under `token` was noted as one of this session.
    fn has_entered(
        &self,
        session: SessionGrants<'_>,
        name: &str,
        token: i64,
    ) -> Result<bool, Error> {
        if !self.has(Side::Sessions)? {
            return Ok(false);
        }
        let mut statement = self.connection.prepare(HAS_ENTERED)?;
        let numbers = [token, session.token].map(Value::Integer);
        let values = [Value::Text(name), numbers[0], Value::Text(session.identity), numbers[1]];
        Ok(statement.run(&values)?.step()?)
    }

    /// Releases the identity and, if it was still the session's, all names.
    pub fn close_session(
        &self,
        session: SessionGrants<'_>,
        now_ms: i64,
    ) -> Result<ReleaseResult, Error> {
        let (SessionGrants { identity, token, names, .. }, when) = (session, When::At(now_ms));
        let released = self.release(identity, session.who(token), when, |it| it.into_owned())?;
        if let ReleaseResult::Released { .. } = released {
            for (name, token) in names {
                // Names that were lost or released before are left alone.
                self.release(name, session.who(*token), when, |_| ())?;
            }
        }
        Ok(released)
    }

    /// Finds out why a name is over, apart from its session. Writes nothing.
    #[allow(clippy::type_complexity)]
    fn own_end(
        &self,
        session: SessionGrants<'_>,
        name: &str,
        token: i64,
        now_ms: i64,
    ) -> Result<Option<(Reason, Option<Lease>)>, Error> {
        self.read_row(name, |row| {
            let term = Term::new(session.ttl_ms, now_ms)?;
            let step = rule::renew(row, session.who(token), term, self.conditions(name)?);
            Ok(match step.answer {
                RenewResult::Rejected { reason, current } if !is_passing(reason) => {
                    Some((reason, current.map(Lease::into_owned)))
                }
                _ => None,
            })
        })
    }

    fn entered(
        &self,
        session: SessionGrants<'_>,
        answer: ClaimResult,
    ) -> Result<ClaimResult, Error> {
        if let ClaimResult::Acquired(lease) = &answer {
            self.enter_session(session, &lease.name, lease.token)?;
        }
        Ok(answer)
    }

    /// Stores that the grant of `name` under `token` belongs to a session.
    pub(crate) fn enter_session(
        &self,
        session: SessionGrants<'_>,
        name: &str,
        token: i64,
    ) -> Result<(), Error> {
        self.with_context("note the session of", Some(name), || {
            let values = [
                Value::Text(name),
                Value::Integer(token),
                Value::Text(session.identity),
                Value::Integer(session.token),
            ];
            self.write_side(Side::Sessions, ENTER, &values)
        })
    }

    /// Returns the names of a session whose grants still stand in the file, live or expired.
    fn names_of_session(&self, identity: &str, session_token: i64) -> Result<Vec<String>, Error> {
        self.with_context("read the names of session", Some(identity), || {
            self.verify()?;
            if !self.has(Side::Sessions)? {
                return Ok(Vec::new());
            }
            let mut statement = self.connection.prepare(NAMES_OF_SESSION)?;
            let mut run = statement.run(&[Value::Text(identity), Value::Integer(session_token)])?;
            let mut names = Vec::new();
            while run.step()? {
                match run.column(0).and_then(Value::text) {
                    Some(name) => names.push(name.to_owned()),
                    None => return Err(SESSIONS.mismatch("a name is no text".into())),
                }
            }
            Ok(names)
        })
    }
}

/// Checks whether a rejected renewal leaves the grant as it is, so that trying again may help.
///
/// ```
/// # use litelease_core::Reason;
/// # use litelease_store::is_passing;
/// assert!(is_passing(Reason::Requested) && !is_passing(Reason::Released));
/// ```
pub fn is_passing(reason: Reason) -> bool {
    matches!(reason, Reason::NoProgress | Reason::TimeIsUp | Reason::Requested)
}
