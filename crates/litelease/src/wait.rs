//! Waiting for a name across processes: woken by a bell, by writes to the file and by timers; the
//! row decides.

use std::path::Path;
use std::time::Duration;

use litelease_hold::{Clock, Examination, SystemClock, Waiter, nap};
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::file::has_moved;
use crate::kept_rows::is_busy;
use crate::leases::in_ms;
use crate::{
    ClaimResult, HoldError, Lease, Leases, Litelease, LiteleaseRef, RequestResult, Transaction,
};

/// A claim that was waited for, and when the attempt that succeeded began.
pub(crate) struct Waited {
    pub(crate) answer: ClaimResult,
    pub(crate) start: Duration,
}

/// A claim to make, with what is stored in the same commit.
pub(crate) struct Claim<'a> {
    pub(crate) name: &'a str,
    pub(crate) owner: &'a str,
    pub(crate) ttl: Duration,
    pub(crate) value: Option<&'a Value>,
    pub(crate) progress_within: Option<Duration>,
    pub(crate) max_time: Option<Duration>,
    /// How soon the present holder is asked to give the name up.
    pub(crate) request: Option<Duration>,
}

impl<'a> Claim<'a> {
    /// A claim and nothing else.
    pub(crate) fn new(name: &'a str, owner: &'a str, ttl: Duration) -> Self {
        Claim {
            name,
            owner,
            ttl,
            value: None,
            progress_within: None,
            max_time: None,
            request: None,
        }
    }

    /// Makes the claim. If the holder of `dead` is known to have ended, takes that grant over.
    fn make(
        &self,
        leases: &Leases,
        connection: &Connection,
        dead: Option<&Lease>,
    ) -> crate::Result<ClaimResult> {
        if !self.has_more() {
            return self.ask(leases, dead);
        }
        // A busy name is answered without the write lock, as by a plain claim.
        if dead.is_none()
            && let Some(current) = leases.inspect(self.name)?
        {
            return Ok(ClaimResult::Busy(current));
        }
        let tx = Transaction::begin(leases, connection)?;
        let answer = self.ask(&tx, dead)?;
        if let ClaimResult::Acquired(lease) = &answer {
            self.store_more(&tx, lease)?;
            tx.commit()?;
        }
        Ok(answer)
    }

    /// Takes a lease that was handed over since the grant under `asked` was asked for.
    fn accept(
        &self,
        leases: &Leases,
        connection: &Connection,
        current: &Lease,
        asked: Option<i64>,
    ) -> crate::Result<Option<Lease>> {
        let tx = Transaction::begin(leases, connection)?;
        let accepted = match asked {
            Some(token) if current.token > token => tx.renew(current, self.ttl)?.renewed(),
            _ => tx.accept(self.name, self.owner, self.ttl)?,
        };
        if let Some(lease) = &accepted {
            self.store_more(&tx, lease)?;
            tx.commit()?;
        }
        Ok(accepted)
    }

    /// Checks whether something is to be stored with the grant.
    fn has_more(&self) -> bool {
        self.value.is_some() || self.progress_within.is_some() || self.max_time.is_some()
    }

    /// Stores what rides on the grant.
    fn store_more(&self, leases: &Leases, lease: &Lease) -> crate::Result<()> {
        if let Some(value) = self.value {
            let _ = leases.attach((self.name, lease.token), value)?;
        }
        if self.progress_within.is_some() || self.max_time.is_some() {
            let end_ms = |time| leases.when().now_ms().saturating_add(in_ms(time));
            let not_after_ms = self.max_time.map(end_ms);
            let _ = leases.limit((self.name, lease.token), self.progress_within, not_after_ms)?;
        }
        Ok(())
    }

    fn ask(&self, leases: &Leases, dead: Option<&Lease>) -> crate::Result<ClaimResult> {
        match dead {
            Some(dead) => leases.claim_from_dead(self.name, self.owner, self.ttl, dead.into()),
            None => leases.claim(self.name, self.owner, self.ttl),
        }
    }
}

macro_rules! waiting {
    () => {
        /// Claims like [`claim`](Leases::claim), but waits until the name is free. Returns `Busy`
        /// after `timeout`.
        ///
        /// It notices within a millisecond or so when another process releases through this crate,
        /// and soon otherwise. Waiters are not queued: the first to wait need not be the first to
        /// get the name. A holder that kept the name with [`hold`](Self::hold) or `litelease run`
        /// and has died is taken over at once, or within a second if it dies later (Linux). For a
        /// lock on the file it waits as long as the connection's busy timeout says, even past
        /// `timeout`.
        ///
        /// If `owner` has an open [`request`](Leases::request) for the name, it repeats it, and
        /// returns the lease that is handed over.
        ///
        /// ```
        /// # fn main() -> Result<(), litelease::HoldError> {
        /// # litelease_doctest::path!(path);
        /// let db = Litelease::open_own(&path)?;
        /// let other = Litelease::open_own(&path)?;
        /// let lease = db.claim("books", "a", Duration::from_millis(150))?.acquired().unwrap();
        /// // It is never renewed, so it is over before the waiting is.
        /// let next = other.claim_wait("books", "b", Duration::from_secs(30), Duration::from_secs(60))?;
        /// assert!(matches!(next, ClaimResult::Acquired(lease) if lease.token == 2));
        /// # Ok(())
        /// # }
        /// ```
        pub fn claim_wait(
            &self,
            name: &str,
            owner: &str,
            ttl: Duration,
            timeout: Duration,
        ) -> std::result::Result<ClaimResult, HoldError> {
            let claim = Claim::new(name, owner, ttl);
            Ok(claim_wait(self, self.conn(), &claim, timeout)?.answer)
        }

        /// Waits like [`claim_wait`](Self::claim_wait), and meanwhile asks the present holder to
        /// give the name up `within` this time: see [`request`](Leases::request). Use a fresh owner
        /// text for each attempt. The request is withdrawn after `timeout`.
        ///
        /// ```
        /// # fn main() -> Result<(), litelease::HoldError> {
        /// # litelease_doctest::path!(path);
        /// let (seconds, db) = (Duration::from_secs, Litelease::open_own(&path)?);
        /// let held = db.hold("books", HoldOptions::new(seconds(60)))?;
        /// std::thread::spawn(move || {
        ///     while held.requested().is_none() {
        ///         std::thread::sleep(Duration::from_millis(5)); // or work
        ///     }
        ///     held.hand_over(seconds(60)).map(drop).map_err(|(_, error)| error)
        /// });
        /// let next = db.request_wait("books", "b", seconds(30), seconds(20), seconds(60))?;
        /// assert!(matches!(next, ClaimResult::Acquired(lease) if lease.token == 2));
        /// # Ok(())
        /// # }
        /// ```
        pub fn request_wait(
            &self,
            name: &str,
            owner: &str,
            ttl: Duration,
            within: Duration,
            timeout: Duration,
        ) -> std::result::Result<ClaimResult, HoldError> {
            let claim = Claim { request: Some(within), ..Claim::new(name, owner, ttl) };
            Ok(claim_wait(self, self.conn(), &claim, timeout)?.answer)
        }
    };
}

impl Litelease {
    waiting!();
}

impl LiteleaseRef<'_> {
    waiting!();
}

pub(crate) fn claim_wait(
    leases: &Leases,
    connection: &Connection,
    claim: &Claim<'_>,
    timeout: Duration,
) -> Result<Waited, HoldError> {
    if leases.store().is_in_transaction() {
        return Err(HoldError::InTransaction);
    }
    let file = leases.store().file().ok_or(HoldError::InMemory)?;
    let begin = SystemClock.now();
    let (mut waiter, mut examination) = (None, Examination::default());
    let mut asking = Asking::default();
    loop {
        // What is heard from here on happened after we looked.
        let heard = waiter.as_ref().map_or(0, Waiter::heard);
        if has_moved(connection) {
            return Err(HoldError::FileMoved(file));
        }
        let start = SystemClock.now();
        let answer = match claim.make(leases, connection, None) {
            Ok(ClaimResult::Busy(current)) if examination.is_dead(start, &current.owner) => {
                claim.make(leases, connection, Some(&current))
            }
            answer => answer,
        };
        // Asked again: what was just granted may be in a file that nobody else opens any more.
        if matches!(answer, Ok(ClaimResult::Acquired(_))) && has_moved(connection) {
            return Err(HoldError::FileMoved(file));
        }
        // What a request has brought is the requester's own.
        let answer = match answer {
            Ok(ClaimResult::Busy(current)) => asking.follow(leases, connection, claim, current),
            answer => answer,
        };
        let left = timeout.saturating_sub(SystemClock.now() - begin);
        let until_expiry_ms = match answer {
            Ok(ClaimResult::Busy(current)) if !left.is_zero() => {
                current.expires_at_ms.saturating_sub(crate::now_ms())
            }
            // The name is free, the file is not.
            Err(error) if is_busy(&error) && !left.is_zero() => 10,
            answer => {
                if claim.request.is_none() || matches!(answer, Ok(ClaimResult::Acquired(_))) {
                    return Ok(Waited { answer: answer?, start });
                }
                // If this fails, it lapses by itself.
                let _ = leases.withdraw_request(claim.name, claim.owner);
                // It may have been handed over just before: then nobody else would ever take it.
                let start = SystemClock.now();
                let answer = match (answer?, leases.inspect(claim.name)?) {
                    (ClaimResult::Busy(_), Some(current)) if current.owner == claim.owner => {
                        asking.follow(leases, connection, claim, current)?
                    }
                    (answer, _) => answer,
                };
                return Ok(Waited { answer, start });
            }
        };
        match &waiter {
            Some(waiter) => waiter.nap(heard, nap(until_expiry_ms, left)),
            // Look once more before sleeping: what happened before we listened was not heard.
            None => waiter = Some(Waiter::at(Path::new(&file))),
        }
    }
}

/// How often a request is repeated: several times before it would lapse.
const REPEAT_EVERY: Duration = Duration::from_secs(3);

/// The request of a waiter, while it waits.
#[derive(Default)]
struct Asking {
    /// The token of the grant that was asked for last, and when.
    asked: Option<(i64, Duration)>,
}

impl Asking {
    /// Makes or repeats the request, and takes what was handed over: that is granted, whatever the
    /// claim was answered. Otherwise it is still busy.
    fn follow(
        &mut self,
        leases: &Leases,
        connection: &Connection,
        claim: &Claim<'_>,
        current: Lease,
    ) -> crate::Result<ClaimResult> {
        let Claim { name, owner, request, .. } = *claim;
        if current.owner == owner {
            // Trusted from this renewal on, and not from when it was handed over.
            let asked = self.asked.map(|(token, _)| token);
            let accepted = claim.accept(leases, connection, &current, asked)?;
            return Ok(accepted.map_or(ClaimResult::Busy(current), ClaimResult::Acquired));
        }
        let now = SystemClock.now();
        let is_fresh = |(token, at)| token == current.token && now < at + REPEAT_EVERY;
        if self.asked.is_some_and(is_fresh) {
            return Ok(ClaimResult::Busy(current));
        }
        let token = match (request, leases.requested(name)?) {
            (_, Some(open)) if open.requester == owner => leases.repeat_request(name, owner)?,
            // Somebody else asks, or nobody was asked to ask.
            (_, Some(_)) | (None, None) => None,
            (Some(within), None) => match leases.request(name, owner, within)? {
                RequestResult::Requested { token, .. } => Some(token),
                RequestResult::RequestedBy { .. } | RequestResult::Rejected { .. } => None,
            },
        };
        if let Some(token) = token {
            self.asked = Some((token, now));
        }
        Ok(ClaimResult::Busy(current))
    }
}
