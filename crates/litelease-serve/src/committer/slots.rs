//! Verbs on pools and their slots, except a borrow.

use litelease_wire::{Deleted, Kept, Returned};

use super::batch::{Done, Operator, Served, duration};
use crate::access::Caller;
use crate::answer::{Answer, PoolAnswer};

/// Creates a pool, or changes how many slots it has.
pub(crate) fn register(
    file: &Served<'_>,
    caller: Caller,
    id: &str,
    count: i64,
    now_ms: i64,
) -> Done {
    file.bounds.check_pool(file.db, caller, id, now_ms)?;
    Ok(PoolAnswer::pool(id, file.db.pools().at(now_ms).register(id, count)?).into())
}

/// Deletes a pool.
pub(crate) fn delete(file: &Served<'_>, id: &str, _: i64) -> Done {
    file.db.pools().delete(id)?;
    Ok(PoolAnswer::Deleted(Deleted { deleted: true }).into())
}

/// Returns a slot.
pub(crate) fn return_slot(file: &Served<'_>, id: &str, lease: &str, now_ms: i64) -> Done {
    returned(file.db.pools().at(now_ms).return_slot(id, lease)?)
}

/// Ends any holder's lease on a slot.
pub(crate) fn break_slot(
    file: &Served<'_>,
    id: &str,
    position: i64,
    token: i64,
    operator: &Operator,
    now_ms: i64,
) -> Done {
    let pools = file.db.pools().at(now_ms);
    returned(file.acting(operator, || pools.break_slot(id, position, token))?)
}

fn returned(returned: bool) -> Done {
    Ok(PoolAnswer::Returned(Returned { returned }).into())
}

/// Prolongs the lease on a slot.
pub(crate) fn renew(file: &Served<'_>, id: &str, lease: String, ttl_ms: i64, now_ms: i64) -> Done {
    let renewed = file.db.pools().at(now_ms).renew(id, &lease, duration(ttl_ms))?;
    Ok(Answer::Pool(match renewed {
        Some(slot) => {
            let ttl_ms = slot.expires_at_ms.saturating_sub(now_ms);
            PoolAnswer::Renewed { lease, slot, ttl_ms }
        }
        None => PoolAnswer::LeaseEnded,
    }))
}

/// Keeps a slot without expiry.
pub(crate) fn keep(file: &Served<'_>, id: &str, lease: &str, now_ms: i64) -> Done {
    Ok(Answer::Pool(match file.db.pools().at(now_ms).keep(id, lease)? {
        true => PoolAnswer::Kept(Kept { kept: true }),
        false => PoolAnswer::LeaseEnded,
    }))
}
