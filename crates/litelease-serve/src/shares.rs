//! Limits how much of the server each client may use, so that no client stops the others.
//!
//! Clients without an access key share one half of each thing. Each access key has a share of its
//! own, a quarter unless the operator sets another one.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::access::Caller;
use crate::job::JobError;
use crate::options::Options;

/// The things that clients share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    /// Requests that wait for a slot, a name or an item.
    Waiters,
    /// Open connections.
    Connections,
    /// Event streams.
    Streams,
    /// Bytes of long requests and responses that are under way.
    Bytes,
    /// Pools that are stored.
    Pools,
    /// Answers to requests with an idempotency key that are stored within a day.
    Answers,
}

impl Thing {
    pub(crate) const ALL: [Thing; 6] = [
        Thing::Waiters,
        Thing::Connections,
        Thing::Streams,
        Thing::Bytes,
        Thing::Pools,
        Thing::Answers,
    ];

    /// Returns the name of the thing in metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Thing::Waiters => "waiters",
            Thing::Connections => "connections",
            Thing::Streams => "streams",
            Thing::Bytes => "bytes",
            Thing::Pools => "pools",
            Thing::Answers => "answers",
        }
    }
}

/// The reason why a client gets no more of a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded {
    thing: Thing,
    most: usize,
    has_key: bool,
}

impl Display for Exceeded {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (thing, option) = match self.thing {
            Thing::Waiters => ("requests that wait", "--max-waiters"),
            Thing::Connections => ("connections", "--max-connections"),
            Thing::Streams => ("event streams", "--max-streams"),
            Thing::Bytes => ("bytes of long requests and answers under way", "--max-bytes"),
            Thing::Pools => ("stored pools", "--max-pools"),
            Thing::Answers => ("answers stored for an Idempotency-Key in a day", "--max-answers"),
        };
        let who = match self.has_key {
            true => "this access key",
            false => "all clients without an access key together",
        };
        write!(f, "too many {thing}: {who} may have {} (the server's {option})", self.most)
    }
}

/// How much of one thing there is, and how much of it a client may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    thing: Thing,
    whole: usize,
    key_percent: usize,
    /// True if no client needs a key, so that half of the thing need not be kept for clients with
    /// one.
    is_open: bool,
}

impl Limit {
    pub(crate) fn new(thing: Thing, options: &Options) -> Self {
        let whole = match thing {
            Thing::Waiters => options.max_waiters,
            Thing::Connections => options.max_connections,
            Thing::Streams => options.max_streams,
            Thing::Bytes => options.max_bytes,
            Thing::Pools => options.max_pools,
            Thing::Answers => options.max_answers,
        };
        let (key_percent, is_open) = (usize::from(options.key_percent), options.open);
        Limit { thing, whole, key_percent, is_open }
    }

    /// Checks whether a client that has `used`, of `total` that all clients have, may have `more`.
    pub(crate) fn check(
        self,
        caller: Caller,
        used: usize,
        total: usize,
        more: usize,
    ) -> Result<(), JobError> {
        let share = match caller.has_key() {
            _ if self.is_open => self.whole,
            true => self.whole.saturating_mul(self.key_percent) / 100,
            false => self.whole / 2,
        };
        // A client that uses nothing of a thing may have one, however large it is.
        let most = share.max(self.whole.min(1));
        let is_within =
            |used: usize, most: usize| (used == 0 && most > 0) || used.saturating_add(more) <= most;
        match is_within(used, most) && is_within(total, self.whole) {
            true => Ok(()),
            false => {
                let (thing, has_key) = (self.thing, caller.has_key());
                Err(JobError::TooMany(Exceeded { thing, most, has_key }))
            }
        }
    }
}

/// One thing, and how much of it is used.
pub(crate) struct Pot {
    limit: Limit,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    total: usize,
    by_client: HashMap<Caller, usize>,
}

impl Pot {
    pub(crate) fn new(thing: Thing, options: &Options) -> Arc<Self> {
        Arc::new(Pot { limit: Limit::new(thing, options), used: Mutex::default() })
    }

    /// Takes this much for a client, until the share is dropped.
    pub(crate) fn take(self: &Arc<Self>, caller: Caller, amount: usize) -> Result<Share, JobError> {
        let mut used = self.used();
        let total = used.total;
        let own = used.by_client.entry(caller).or_default();
        let taken = self.limit.check(caller, *own, total, amount);
        match taken {
            Ok(()) => {
                *own = own.saturating_add(amount);
                used.total = total.saturating_add(amount);
                Ok(Share { pot: Arc::clone(self), caller, amount })
            }
            Err(refused) => {
                if *own == 0 {
                    used.by_client.remove(&caller);
                }
                Err(refused)
            }
        }
    }

    /// Returns how much all clients use together.
    pub(crate) fn total(&self) -> usize {
        self.used().total
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the limits as text for metrics, with the event streams and bytes that count for them.
pub(crate) fn text(options: &Options, streams: &Pot, bytes: &Pot) -> String {
    let limits = Thing::ALL.map(|thing| {
        let whole = Limit::new(thing, options).whole;
        format!("litelease_limit{{thing=\"{}\"}} {whole}\n", thing.name())
    });
    format!(
        "# HELP litelease_streams Open event streams.\n# TYPE litelease_streams gauge\n\
         litelease_streams {}\n\
         # HELP litelease_bytes_under_way Bytes of long requests and answers under way.\n\
         # TYPE litelease_bytes_under_way gauge\nlitelease_bytes_under_way {}\n\
         # HELP litelease_limit The most of each thing. Clients without an access key have a half \
         together, each key has a share.\n# TYPE litelease_limit gauge\n{}",
        streams.total(),
        bytes.total(),
        limits.concat()
    )
}

/// The part of a thing that a client has, until it is dropped.
pub(crate) struct Share {
    pot: Arc<Pot>,
    caller: Caller,
    amount: usize,
}

impl Share {
    pub(crate) fn is_of(&self, caller: Caller) -> bool {
        self.caller == caller
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used = self.pot.used();
        used.total = used.total.saturating_sub(self.amount);
        if let Some(own) = used.by_client.get_mut(&self.caller) {
            *own = own.saturating_sub(self.amount);
            if *own == 0 {
                used.by_client.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn refusal(taken: Result<Share, JobError>) -> String {
        match taken {
            Err(JobError::TooMany(exceeded)) => exceeded.to_string(),
            _ => "taken".into(),
        }
    }

    #[test]
    fn clients_without_a_key_share_a_half_and_each_key_has_a_quarter() {
        let pot = Pot::new(Thing::Streams, &Options { max_streams: 8, ..Options::default() });
        let (nobody, a) = (Caller::default(), Caller::from_key("a"));
        let keyless: Vec<Share> = (0..4).map(|_| pot.take(nobody, 1).unwrap()).collect();
        let text = "too many event streams: all clients without an access key together may have 4 \
                    (the server's --max-streams)";
        assert_eq!(refusal(pot.take(nobody, 1)), text);
        let one = pot.take(a, 2).unwrap();
        let text =
            "too many event streams: this access key may have 2 (the server's --max-streams)";
        assert_eq!(refusal(pot.take(a, 1)), text);
        let other = pot.take(Caller::from_key("b"), 2).unwrap();
        // All is used, although no key has used its share.
        assert_ne!(refusal(pot.take(Caller::from_key("c"), 1)), "taken");
        assert_eq!(pot.total(), 8);
        drop((keyless, one, other));
        assert_eq!(pot.total(), 0);
        assert!(pot.used().by_client.is_empty());
    }

    #[test]
    fn a_share_is_never_so_small_that_a_client_gets_nothing() {
        let options = Options { max_waiters: 1, max_streams: 0, ..Options::default() };
        let pot = Pot::new(Thing::Waiters, &options);
        let one = pot.take(Caller::default(), 1).unwrap();
        assert_ne!(refusal(pot.take(Caller::from_key("a"), 1)), "taken", "there is one in all");
        drop(one);
        assert_eq!(refusal(pot.take(Caller::from_key("a"), 5)), "taken");
        let none = Pot::new(Thing::Streams, &options);
        assert_ne!(refusal(none.take(Caller::default(), 1)), "taken");
    }
}
