//! The row as the rule sees it, and the limits that are checked once, in constructors.

use core::fmt;

use crate::{GrantResult, Lease, Reason};

/// The stored row of one name: nothing yet, or a state.
///
/// ```
/// # use litelease_core::{Row, State};
/// let row = Row::new("scheduler", State::stored(7, Some("a"), Some(150)));
/// assert_eq!(row.live(149).map(|lease| lease.owner), Some("a"));
/// assert_eq!(row.live(150), None, "at the very instant of expiry the name is free");
/// assert_eq!(row.token(), Some(7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    name: &'a str,
    state: Option<State<'a>>,
}

/// The part of a row that the verbs change: the newest token, and the owner, if there is one.
///
/// ```
/// # use litelease_core::State;
/// assert!(State::stored(1, None, None).is_some());
/// assert_eq!(State::stored(0, None, None), None, "tokens start at 1");
/// assert_eq!(State::stored(1, Some("a"), None), None, "owner and expiry go together");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State<'a> {
    token: i64,
    tenure: Option<Tenure<'a>>,
}

/// An owner and the end of its lease. They travel together, because neither means anything alone.
///
/// ```
/// # use litelease_core::{State, Tenure};
/// let state = State::stored(1, Some("a"), Some(150)).unwrap();
/// assert_eq!(state.tenure(), Some(Tenure { owner: "a", expires_at_ms: 150 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure<'a> {
    /// The owner.
    pub owner: &'a str,
    /// The first millisecond at which it no longer does.
    pub expires_at_ms: i64,
}

/// The state of a name.
///
/// ```
/// # use litelease_core::Status;
/// assert_eq!(Status::Live.to_string(), "live");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It has a live lease.
    Live,
    /// Its last lease ran out.
    Expired,
    /// Its last lease was released or broken.
    Released,
}

impl Status {
    /// Returns the word for it.
    pub fn word(self) -> &'static str {
        match self {
            Status::Live => "live",
            Status::Expired => "expired",
            Status::Released => "released",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The claimant that asks to renew, release or transfer: an owner, or exactly one of its grants.
///
/// ```
/// # use litelease_core::Claimant;
/// let anyone_called_a = Claimant { owner: "a", token: None };
/// let the_seventh_grant = Claimant { owner: "a", token: Some(7) };
/// # assert_ne!(anyone_called_a, the_seventh_grant);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimant<'a> {
    /// The owner text.
    pub owner: &'a str,
    /// The token of the grant. Two processes may use one owner text; the token distinguishes them.
    pub token: Option<i64>,
}

/// A time to decide at and the expiry that a grant made then would have.
///
/// ```
/// # use litelease_core::{Refusal, Term};
/// assert!(Term::new(50, 100).is_ok());
/// assert_eq!(Term::new(0, 100), Err(Refusal::InvalidTtl { ttl_ms: 0 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    now_ms: i64,
    until_ms: i64,
}

/// A request that no stored state could make valid, or a token that cannot grow. Nothing is
/// written.
///
/// ```
/// # use litelease_core::Refusal;
/// let refusal = Refusal::InvalidTtl { ttl_ms: -5 };
/// assert_eq!(refusal.to_string(), "the ttl must be at least 1 ms, got -5 ms");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The ttl is zero or negative.
    InvalidTtl {
        /// The ttl that was given.
        ttl_ms: i64,
    },
    /// The delay is negative.
    InvalidDelay {
        /// The delay that was given.
        delay_ms: i64,
    },
    /// `now_ms + ttl_ms` is more than 64 bits can hold.
    TimeOverflow {
        /// The time of the request.
        now_ms: i64,
        /// The ttl of the call.
        ttl_ms: i64,
    },
    /// The next token would be more than 64 bits can hold.
    TokenExhausted,
    /// The ttl is longer than this kind of grant may be.
    TtlTooLong {
        /// The ttl that was given.
        ttl_ms: i64,
        /// The longest that may be.
        most_ms: i64,
    },
    /// A time other than a ttl is zero or negative.
    InvalidTime {
        /// Which one.
        what: &'static str,
        /// The time that was given.
        ms: i64,
    },
    /// A tick may have no grant at all.
    InvalidAttempts {
        /// The number of grants that was given.
        attempts: i64,
    },
    /// The newest tick that is stored is more than a minute ahead of the clock, which was set back.
    /// No tick would run until then.
    TickAhead {
        /// The stored tick.
        tick_ms: i64,
        /// The clock.
        now_ms: i64,
    },
    /// A tick is to be begun and finished at once, while a holder is at work on one.
    TickHeld {
        /// The tick under way.
        tick_ms: i64,
    },
}

/// Decides whether what ends at `end_ms` is live at `now_ms`. At the instant of its end it is over.
///
/// ```
/// # use litelease_core::is_live;
/// assert!(is_live(150, 149));
/// assert!(!is_live(150, 150));
/// ```
#[inline]
pub fn is_live(end_ms: i64, now_ms: i64) -> bool {
    end_ms > now_ms
}

impl<'a> Row<'a> {
    /// Returns the row called `name`; no state means that the name was never claimed.
    #[inline]
    pub fn new(name: &'a str, state: Option<State<'a>>) -> Self {
        Row { name, state }
    }

    /// Returns the name of the row.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Returns the lease that is live at `now_ms`, if there is one.
    #[inline]
    pub fn live(&self, now_ms: i64) -> Option<Lease<&'a str>> {
        let state = self.state?;
        let tenure = state.tenure.filter(|tenure| is_live(tenure.expires_at_ms, now_ms))?;
        Some(self.lease(state.token, tenure))
    }

    /// Returns the state of the row at `now_ms`; `None` if the name was never claimed.
    ///
    /// ```
    /// # use litelease_core::{Row, State, Status};
    /// let row = Row::new("scheduler", State::stored(7, Some("a"), Some(150)));
    /// assert_eq!(row.status(149), Some(Status::Live));
    /// assert_eq!(row.status(150), Some(Status::Expired));
    /// ```
    pub fn status(&self, now_ms: i64) -> Option<Status> {
        Some(match self.state?.tenure {
            None => Status::Released,
            Some(tenure) if is_live(tenure.expires_at_ms, now_ms) => Status::Live,
            Some(_) => Status::Expired,
        })
    }

    /// Returns the stored state, if the name was ever claimed.
    pub fn state(&self) -> Option<State<'a>> {
        self.state
    }

    /// Returns the newest token ever issued for this name, live or not.
    #[inline]
    pub fn token(&self) -> Option<i64> {
        self.state.map(|state| state.token)
    }

    /// Checks whether writing `state` begins a grant: an owner under a token that the row did not
    /// have. The time of that is stored with it, and shown until the next grant begins.
    ///
    /// ```
    /// # use litelease_core::{Row, State};
    /// let row = Row::new("scheduler", State::stored(7, Some("a"), Some(150)));
    /// let begins = |token, owner| row.begins_grant(State::stored(token, owner, owner.map(|_| 200)).unwrap());
    /// assert!(begins(8, Some("a")), "a transfer, or a claim of what has expired");
    /// assert!(!begins(7, Some("a")), "a renewal");
    /// assert!(!begins(8, None), "a break");
    /// ```
    #[inline]
    pub fn begins_grant(&self, state: State<'_>) -> bool {
        state.tenure.is_some() && self.token() != Some(state.token)
    }

    /// Returns the lease that a tenure under a token means for this name.
    #[inline]
    pub(crate) fn lease<'b>(&self, token: i64, tenure: Tenure<'b>) -> Lease<&'b str>
    where
        'a: 'b,
    {
        let Tenure { owner, expires_at_ms } = tenure;
        Lease { name: self.name, owner, token, expires_at_ms }
    }

    /// Returns the next token: larger than the row's and larger than the floor.
    #[inline]
    pub(crate) fn next_token(&self, floor: i64) -> Result<i64, Refusal> {
        let newest = self.token().unwrap_or(0).max(floor);
        newest.checked_add(1).ok_or(Refusal::TokenExhausted)
    }

    /// Returns the token that ends a lease and is never granted: the next one. In a file that
    /// grants nothing any more it is the largest one, which this name has not had yet.
    pub(crate) fn ungranted_token(&self, floor: i64) -> Result<i64, Refusal> {
        match self.token() {
            Some(newest) if floor == i64::MAX && newest < floor => Ok(floor),
            _ => self.next_token(floor),
        }
    }

    /// Checks whether `token` is that of the live grant, and returns the reason if not.
    pub(crate) fn on_grant(&self, token: i64, now_ms: i64) -> GrantResult {
        match self.live(now_ms) {
            Some(lease) if lease.token == token => GrantResult::Done,
            live => {
                // An old token is superseded, and not merely another owner's, whether the name is
                // held or free by now.
                let owner = live.map_or("", |lease| lease.owner);
                let who = Claimant { owner, token: Some(token) };
                GrantResult::Stale { reason: self.why_not(Some(who), now_ms) }
            }
        }
    }

    /// Returns the first reason that fits, for a caller who is not the live holder.
    pub(crate) fn why_not(&self, who: Option<Claimant<'_>>, now_ms: i64) -> Reason {
        let Some(state) = self.state else { return Reason::NeverClaimed };
        let given = who.and_then(|who| who.token).unwrap_or(state.token);
        match self.live(now_ms) {
            Some(lease) if who.is_some_and(|who| who.owner != lease.owner) => Reason::HeldBy,
            _ if given < state.token => Reason::Superseded { by: state.token },
            _ if given > state.token => Reason::UnknownToken,
            _ if state.tenure.is_none() => Reason::Released,
            _ => Reason::Expired,
        }
    }
}

impl<'a> State<'a> {
    /// Returns a state as read from storage, or `None` where it breaks what every writer promises:
    /// tokens start at 1, and owner and expiry are there together or not at all.
    #[inline]
    pub fn stored(token: i64, owner: Option<&'a str>, expires_at_ms: Option<i64>) -> Option<Self> {
        let tenure = match (owner, expires_at_ms) {
            (Some(owner), Some(expires_at_ms)) => Some(Tenure { owner, expires_at_ms }),
            (None, None) => None,
            _ => return None,
        };
        (token >= 1).then_some(State { token, tenure })
    }

    /// Returns the newest token.
    #[inline]
    pub fn token(&self) -> i64 {
        self.token
    }

    /// Returns the owner and its expiry, unless the name was released. It may have expired.
    #[inline]
    pub fn tenure(&self) -> Option<Tenure<'a>> {
        self.tenure
    }

    /// Returns when the last lease ended, or will end: at its expiry, or when the row was last
    /// written if it was released then.
    pub fn ends_at_ms(&self, updated_at_ms: i64) -> i64 {
        self.tenure.map_or(updated_at_ms, |tenure| tenure.expires_at_ms)
    }

    #[inline]
    pub(crate) fn owned(token: i64, owner: &'a str, expires_at_ms: i64) -> Self {
        State { token, tenure: Some(Tenure { owner, expires_at_ms }) }
    }

    #[inline]
    pub(crate) fn free(token: i64) -> Self {
        State { token, tenure: None }
    }
}

impl<'a, S: AsRef<str>> From<&'a Lease<S>> for Claimant<'a> {
    /// Means exactly this grant.
    fn from(lease: &'a Lease<S>) -> Self {
        Claimant { owner: lease.owner.as_ref(), token: Some(lease.token) }
    }
}

impl Claimant<'_> {
    /// Checks whether this lease is the claimant's.
    #[inline]
    pub(crate) fn is(&self, lease: &Lease<&str>) -> bool {
        self.owner == lease.owner && self.token.is_none_or(|token| token == lease.token)
    }
}

impl Term {
    /// Returns a grant of `ttl_ms` made at `now_ms`.
    #[inline]
    pub fn new(ttl_ms: i64, now_ms: i64) -> Result<Self, Refusal> {
        if ttl_ms <= 0 {
            return Err(Refusal::InvalidTtl { ttl_ms });
        }
        match now_ms.checked_add(ttl_ms) {
            Some(until_ms) => Ok(Term { now_ms, until_ms }),
            None => Err(Refusal::TimeOverflow { now_ms, ttl_ms }),
        }
    }

    /// Returns the time to decide at.
    #[inline]
    pub fn now_ms(&self) -> i64 {
        self.now_ms
    }

    /// Returns the expiry of a grant made then.
    #[inline]
    pub fn until_ms(&self) -> i64 {
        self.until_ms
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::InvalidTtl { ttl_ms } => {
                write!(f, "the ttl must be at least 1 ms, got {ttl_ms} ms")
            }
            Refusal::InvalidDelay { delay_ms } => {
                write!(f, "the delay must not be negative, got {delay_ms} ms")
            }
            Refusal::TimeOverflow { now_ms, ttl_ms } => {
                write!(
                    f,
                    "a ttl of {ttl_ms} ms at {now_ms} ms ends after the last representable time"
                )
            }
            Refusal::InvalidTime { what, ms } => {
                write!(f, "{what} must be at least 1 ms, got {ms} ms")
            }
            Refusal::TokenExhausted => f.write_str(
                "no larger token exists: the file was moved (`litelease doctor` tells where to), \
                 or the newest token or the minimum is at its maximum",
            ),
            Refusal::InvalidAttempts { attempts } => {
                write!(f, "a tick has 1 attempt or more, got {attempts}")
            }
            Refusal::TickAhead { tick_ms, now_ms } => write!(
                f,
                "the newest tick is {tick_ms}, but it is {now_ms} now: the clock was set back, or the \
                 schedule is paused; `litelease ticks skip` makes ticks run from now on"
            ),
            Refusal::TickHeld { tick_ms } => write!(
                f,
                "a holder is at work on the tick {tick_ms}: use claim_tick and finish for every tick \
                 of a name, or tick for every one"
            ),
            Refusal::TtlTooLong { ttl_ms, most_ms } => {
                write!(f, "the ttl of a read is at most {most_ms} ms, got {ttl_ms} ms")
            }
        }
    }
}

impl core::error::Error for Refusal {}
