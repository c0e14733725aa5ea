//! The limits of what clients may store: pools, and answers for idempotency keys.

use std::cell::RefCell;
use std::collections::HashMap;

use litelease::Litelease;

use super::batch::Failed;
use crate::access::Caller;
use crate::answered_rows;
use crate::job::JobError;
use crate::options::Options;
use crate::shares::{Limit, Thing};

pub(super) struct Bounds {
    pools: Limit,
    answers: Limit,
    /// The pools that each client has made since the server was started.
    made: RefCell<HashMap<Caller, usize>>,
    counted: RefCell<Counted>,
}

/// The requests of a day that may store an answer.
struct Counted {
    since_ms: i64,
    total: usize,
    by_client: HashMap<Caller, usize>,
}

impl Bounds {
    pub(super) fn new(options: &Options) -> Self {
        let counted = Counted { since_ms: i64::MIN, total: 0, by_client: HashMap::new() };
        Bounds {
            pools: Limit::new(Thing::Pools, options),
            answers: Limit::new(Thing::Answers, options),
            made: RefCell::default(),
            counted: RefCell::new(counted),
        }
    }

    /// Checks whether a client may register a pool: an existing one, or one more.
    pub(super) fn check_pool(
        &self,
        db: &Litelease,
        caller: Caller,
        id: &str,
        now_ms: i64,
    ) -> Result<(), Failed> {
        if db.pools().at(now_ms).info(id)?.is_some() {
            return Ok(());
        }
        let total =
            usize::try_from(db.with_store(|store| store.count_pools())?).unwrap_or(usize::MAX);
        let mut made = self.made.borrow_mut();
        let own = made.entry(caller).or_default();
        // A pool does not record its maker, so all pools count for clients without a key.
        let used = if caller.has_key() { *own } else { total };
        let checked = self.pools.check(caller, used, total, 1);
        *own += usize::from(checked.is_ok());
        Ok(checked?)
    }

    /// Checks whether the answer to another request of a client with a valid access key may be
    /// stored.
    pub(super) fn check_answer(&self, caller: Caller, now_ms: i64) -> Result<(), JobError> {
        let mut counted = self.counted.borrow_mut();
        if now_ms.saturating_sub(answered_rows::KEPT_MS) >= counted.since_ms {
            *counted = Counted { since_ms: now_ms, total: 0, by_client: HashMap::new() };
        }
        let own = counted.by_client.get(&caller).copied().unwrap_or(0);
        self.answers.check(caller, own, counted.total, 1)
    }

    /// Counts a request whose answer may have been stored.
    pub(super) fn count_answer(&self, caller: Caller) {
        let mut counted = self.counted.borrow_mut();
        *counted.by_client.entry(caller).or_default() += 1;
        counted.total += 1;
    }
}
