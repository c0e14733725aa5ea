//! The rule, and the rule with a bug planted on purpose: a suite that does not notice one of those
//! is no proof.

use litelease_core::{
    self as rule, AckResult, BreakResult, CancelResult, ClaimResult, ClaimTickResult, Claimant,
    Conditions, Delay, FinishTickResult, GrantResult, Item, ItemState, Limits, PoolSnapshot, Read,
    Receipt, Refusal, ReleaseResult, RenewResult, Request, RequestResult, RequestStep, Row,
    SlotInfo, State, Step, TakenOver, Term, Tick, TickChange, TickOutcome, TickRequest, TickResult,
    TickStep, TransferResult,
};

/// The verbs of the rule, so that a proof can be run on a wrong one too.
pub trait Rules {
    /// As [`rule::claim`].
    fn claim<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        owner: &'q str,
        term: Term,
        floor: i64,
    ) -> Result<Step<'q, ClaimResult<&'a str>>, Refusal> {
        rule::claim(row, owner, term, floor)
    }

    /// As [`rule::claim_from_dead`].
    fn claim_from_dead<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        owner: &'q str,
        term: Term,
        floor: i64,
        dead: Claimant<'_>,
    ) -> Result<Step<'q, ClaimResult<&'a str>>, Refusal> {
        rule::claim_from_dead(row, owner, term, floor, dead)
    }

    /// As [`rule::ensure`].
    fn ensure<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        owner: &'q str,
        term: Term,
        floor: i64,
        conditions: Conditions,
    ) -> Result<Step<'q, ClaimResult<&'a str>>, Refusal> {
        rule::ensure(row, owner, term, floor, conditions)
    }

    /// As [`rule::renew`].
    fn renew<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'q>,
        term: Term,
        conditions: Conditions,
    ) -> Step<'q, RenewResult<&'a str>> {
        rule::renew(row, who, term, conditions)
    }

    /// As [`rule::release`].
    fn release<'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'_>,
        now_ms: i64,
    ) -> Step<'static, ReleaseResult<&'a str>> {
        rule::release(row, who, now_ms)
    }

    /// As [`rule::transfer`].
    fn transfer<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'_>,
        new_owner: &'q str,
        term: Term,
        floor: i64,
    ) -> Result<Step<'q, TransferResult<&'a str>>, Refusal> {
        rule::transfer(row, who, new_owner, term, floor)
    }

    /// As [`rule::break_lease`].
    fn break_lease<'a>(
        &self,
        row: Row<'a>,
        now_ms: i64,
        floor: i64,
    ) -> Result<Step<'static, BreakResult<&'a str>>, Refusal> {
        rule::break_lease(row, now_ms, floor)
    }

    /// As [`rule::request`].
    fn request<'a>(
        &self,
        row: Row<'_>,
        found: Option<(&'a str, Request)>,
        requester: &str,
        within_ms: i64,
        now_ms: i64,
    ) -> Result<RequestStep<'a>, Refusal> {
        rule::request(row, found, requester, within_ms, now_ms)
    }

    /// As [`Request::is_open`].
    fn is_open(&self, request: Request, row: Row<'_>, now_ms: i64) -> bool {
        request.is_open(row, now_ms)
    }

    /// As [`rule::hand_over`].
    fn hand_over<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'_>,
        found: Option<(&'q str, Request)>,
        term: Term,
        floor: i64,
    ) -> Result<Step<'q, TransferResult<&'a str>>, Refusal> {
        rule::hand_over(row, who, found, term, floor)
    }

    /// As [`rule::take_over`].
    fn take_over<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        owner: &'q str,
        term: Term,
        floor: i64,
    ) -> Result<Step<'q, TakenOver<&'a str>>, Refusal> {
        rule::take_over(row, owner, term, floor)
    }

    /// As [`rule::progress`].
    fn progress(&self, row: Row<'_>, token: i64, now_ms: i64) -> GrantResult {
        rule::progress(row, token, now_ms)
    }

    /// As [`rule::attach`].
    fn attach(&self, row: Row<'_>, token: i64, now_ms: i64) -> GrantResult {
        rule::attach(row, token, now_ms)
    }

    /// As [`Row::begins_grant`].
    fn begins_grant(&self, row: Row<'_>, state: State<'_>) -> bool {
        row.begins_grant(state)
    }

    /// As [`rule::is_shown`].
    fn is_shown(&self, row: Row<'_>, token: i64, now_ms: i64) -> bool {
        rule::is_shown(row, token, now_ms)
    }

    /// As [`rule::borrow_slot`].
    fn borrow_slot(
        &self,
        snapshot: PoolSnapshot,
        term: Term,
        newest: i64,
        floor: i64,
    ) -> Result<Option<SlotInfo>, Refusal> {
        rule::borrow_slot(snapshot, term, newest, floor)
    }

    /// As [`rule::renew_slot`].
    fn renew_slot(&self, slot: SlotInfo, term: Term) -> Option<SlotInfo> {
        rule::renew_slot(slot, term)
    }

    /// As [`rule::keep_slot`].
    fn keep_slot(&self, slot: SlotInfo, now_ms: i64) -> Option<SlotInfo> {
        rule::keep_slot(slot, now_ms)
    }

    /// As [`rule::read`].
    fn read(&self, row: Row<'_>, before: Option<i64>, term: Term, floor: i64) -> Option<Read> {
        rule::read(row, before, term, floor)
    }

    /// As [`rule::drained`].
    fn drained(&self, row: Row<'_>, token: i64, now_ms: i64, last: Option<i64>) -> bool {
        rule::drained(row, token, now_ms, last)
    }

    /// As [`SlotInfo::is_live`].
    fn is_slot_live(&self, slot: SlotInfo, now_ms: i64) -> bool {
        slot.is_live(now_ms)
    }

    /// As [`rule::deliver`].
    fn deliver(
        &self,
        item: Item,
        uuid: u128,
        token: i64,
        term: Term,
        max_attempts: i64,
    ) -> Option<Item> {
        rule::deliver(item, uuid, token, term, max_attempts)
    }

    /// As [`rule::ack`].
    fn ack(&self, item: Option<Item>, receipt: Receipt, newest: i64) -> AckResult {
        rule::ack(item, receipt, newest)
    }

    /// As [`rule::extend`].
    fn extend(&self, item: Item, receipt: Receipt, term: Term) -> Option<Item> {
        rule::extend(item, receipt, term)
    }

    /// As [`rule::give_back`].
    fn give_back(&self, item: Item, receipt: Receipt, delay: Delay) -> Option<Item> {
        rule::give_back(item, receipt, delay)
    }

    /// As [`rule::bury`].
    fn bury(&self, item: Item, receipt: Receipt, now_ms: i64) -> Option<Item> {
        rule::bury(item, receipt, now_ms)
    }

    /// As [`rule::redrive`].
    fn redrive(&self, item: Item, now_ms: i64) -> Option<Item> {
        rule::redrive(item, now_ms)
    }

    /// As [`rule::cancel`].
    fn cancel(&self, item: Option<Item>, now_ms: i64) -> CancelResult {
        rule::cancel(item, now_ms)
    }

    /// Checks whether an item keeps others from using its key.
    fn uses_its_key(&self, item: Item, now_ms: i64) -> bool {
        item.state(now_ms) != ItemState::Dead
    }

    /// As [`rule::claim_tick`].
    #[allow(clippy::too_many_arguments)]
    fn claim_tick<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        stored: Option<Tick>,
        owner: &'q str,
        asked: TickRequest,
        term: Term,
        floor: i64,
        dead: Option<Claimant<'_>>,
    ) -> Result<TickStep<'q, ClaimTickResult<&'a str>>, Refusal> {
        rule::claim_tick(row, stored, owner, asked, term, floor, dead)
    }

    /// As [`rule::tick`].
    fn tick(
        &self,
        row: Row<'_>,
        stored: Option<Tick>,
        tick_ms: i64,
        now_ms: i64,
    ) -> Result<TickStep<'static, TickResult>, Refusal> {
        rule::tick(row, stored, tick_ms, now_ms)
    }

    /// As [`rule::finish_tick`].
    fn finish_tick(
        &self,
        row: Row<'_>,
        stored: Option<Tick>,
        token: i64,
        outcome: TickOutcome,
        now_ms: i64,
    ) -> TickStep<'static, FinishTickResult> {
        rule::finish_tick(row, stored, token, outcome, now_ms)
    }

    /// As [`rule::carry_tick`].
    fn carry_tick(&self, stored: Option<Tick>, from: i64, to: i64) -> Option<Tick> {
        rule::carry_tick(stored, from, to)
    }

    /// As [`rule::skip`].
    fn skip<'a>(
        &self,
        row: Row<'a>,
        stored: Option<Tick>,
        until_ms: Option<i64>,
        breaks: bool,
        now_ms: i64,
        floor: i64,
    ) -> Result<TickStep<'static, TickChange<&'a str>>, Refusal> {
        rule::skip(row, stored, until_ms, breaks, now_ms, floor)
    }

    /// As [`rule::again`].
    fn again<'a>(
        &self,
        row: Row<'a>,
        stored: Option<Tick>,
        now_ms: i64,
    ) -> Result<TickStep<'static, TickChange<&'a str>>, Refusal> {
        rule::again(row, stored, now_ms)
    }

    /// The tick that a name still has when its row is purged.
    fn tick_after_purge(&self, stored: Option<Tick>) -> Option<Tick> {
        stored
    }

    /// The floor that a file needs when a pool is deleted of which this is the newest token.
    fn floor_after_pool(&self, newest: i64) -> i64 {
        newest
    }
}

/// The rule as it is.
pub struct TheRule;

impl Rules for TheRule {}

/// A lease is still live at the very instant of its expiry.
pub struct LiveAtExpiry;

impl Rules for LiveAtExpiry {
    fn claim<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        owner: &'q str,
        term: Term,
        floor: i64,
    ) -> Result<Step<'q, ClaimResult<&'a str>>, Refusal> {
        // Decided a millisecond earlier, with the expiry of the right time.
        let ttl_ms = term.until_ms().saturating_sub(term.now_ms());
        let term = Term::new(ttl_ms.saturating_add(1), term.now_ms().saturating_sub(1))?;
        rule::claim(row, owner, term, floor)
    }
}

/// A takeover keeps the token of the grant before it.
pub struct TokenNotRaised;

impl Rules for TokenNotRaised {
    fn claim<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        owner: &'q str,
        term: Term,
        floor: i64,
    ) -> Result<Step<'q, ClaimResult<&'a str>>, Refusal> {
        let right = rule::claim(row, owner, term, floor)?;
        match (right.answer, row.token()) {
            (ClaimResult::Acquired(mut lease), Some(token)) => {
                lease.token = token;
                let write = State::stored(token, Some(owner), Some(term.until_ms()));
                Ok(Step { write, answer: ClaimResult::Acquired(lease) })
            }
            _ => Ok(right),
        }
    }
}

/// A renewal that comes too late revives the lease.
pub struct RenewRevives;

impl Rules for RenewRevives {
    fn renew<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'q>,
        term: Term,
        conditions: Conditions,
    ) -> Step<'q, RenewResult<&'a str>> {
        let right = rule::renew(row, who, term, conditions);
        // The lease as it was, if it was ever this owner's.
        let over = row.live(i64::MIN).filter(|lease| lease.owner == who.owner);
        match (right.answer, over) {
            (RenewResult::Rejected { current: None, .. }, Some(mut lease)) => {
                lease.expires_at_ms = term.until_ms();
                let write = State::stored(lease.token, Some(who.owner), Some(term.until_ms()));
                Step { write, answer: RenewResult::Renewed(lease) }
            }
            _ => right,
        }
    }
}

/// Every owner can release every lease.
pub struct ReleaseByAnyone;

impl Rules for ReleaseByAnyone {
    fn release<'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'_>,
        now_ms: i64,
    ) -> Step<'static, ReleaseResult<&'a str>> {
        match row.live(now_ms) {
            Some(lease) => rule::release(row, Claimant { owner: lease.owner, token: None }, now_ms),
            None => rule::release(row, who, now_ms),
        }
    }
}

/// A claim that is answered with busy prolongs the lease it met.
pub struct BusyWrites;

impl Rules for BusyWrites {
    fn claim<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        owner: &'q str,
        term: Term,
        floor: i64,
    ) -> Result<Step<'q, ClaimResult<&'a str>>, Refusal> {
        let right = rule::claim(row, owner, term, floor)?;
        match right.answer {
            ClaimResult::Busy(lease) => {
                let write = State::stored(lease.token, Some(owner), Some(term.until_ms()));
                Ok(Step { write, ..right })
            }
            ClaimResult::Acquired(_) => Ok(right),
        }
    }
}

/// A transfer hands over the old token with the lease.
pub struct TransferKeepsToken;

impl Rules for TransferKeepsToken {
    fn transfer<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'_>,
        new_owner: &'q str,
        term: Term,
        floor: i64,
    ) -> Result<Step<'q, TransferResult<&'a str>>, Refusal> {
        let right = rule::transfer(row, who, new_owner, term, floor)?;
        match (right.answer, row.token()) {
            (TransferResult::Transferred(mut lease), Some(token)) => {
                lease.token = token;
                let write = State::stored(token, Some(new_owner), Some(term.until_ms()));
                Ok(Step { write, answer: TransferResult::Transferred(lease) })
            }
            _ => Ok(right),
        }
    }
}

/// A break frees the name and leaves the broken holder's token the newest.
pub struct BreakKeepsToken;

impl Rules for BreakKeepsToken {
    fn break_lease<'a>(
        &self,
        row: Row<'a>,
        now_ms: i64,
        floor: i64,
    ) -> Result<Step<'static, BreakResult<&'a str>>, Refusal> {
        let right = rule::break_lease(row, now_ms, floor)?;
        match (right.answer, row.token()) {
            (BreakResult::Broken { .. }, Some(token)) => {
                Ok(Step { write: State::stored(token, None, None), ..right })
            }
            _ => Ok(right),
        }
    }
}

/// The exact form of a renewal looks at the owner alone.
pub struct ExactIgnored;

impl Rules for ExactIgnored {
    fn renew<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'q>,
        term: Term,
        conditions: Conditions,
    ) -> Step<'q, RenewResult<&'a str>> {
        rule::renew(row, Claimant { token: None, ..who }, term, conditions)
    }
}

/// A grant exceeds the row's token only.
pub struct FloorIgnored;

impl Rules for FloorIgnored {
    fn claim<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        owner: &'q str,
        term: Term,
        _floor: i64,
    ) -> Result<Step<'q, ClaimResult<&'a str>>, Refusal> {
        rule::claim(row, owner, term, 0)
    }
}

/// A claim from a dead holder takes over whichever grant is live, and not just the one that was
/// examined.
pub struct TakesOverAnyGrant;

impl Rules for TakesOverAnyGrant {
    fn claim_from_dead<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        owner: &'q str,
        term: Term,
        floor: i64,
        dead: Claimant<'_>,
    ) -> Result<Step<'q, ClaimResult<&'a str>>, Refusal> {
        let live = row.live(term.now_ms());
        let any = live.map(|lease| Claimant { owner: lease.owner, token: Some(lease.token) });
        rule::claim_from_dead(row, owner, term, floor, any.unwrap_or(dead))
    }
}

/// A claim from a dead holder looks at the owner text and not at the token.
pub struct TakesOverSameOwner;

impl Rules for TakesOverSameOwner {
    fn claim_from_dead<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        owner: &'q str,
        term: Term,
        floor: i64,
        dead: Claimant<'_>,
    ) -> Result<Step<'q, ClaimResult<&'a str>>, Refusal> {
        rule::claim_from_dead(row, owner, term, floor, Claimant { token: row.token(), ..dead })
    }
}

/// A claim from a dead holder goes on under the dead one's token.
pub struct TakeoverKeepsToken;

impl Rules for TakeoverKeepsToken {
    fn claim_from_dead<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        owner: &'q str,
        term: Term,
        floor: i64,
        dead: Claimant<'_>,
    ) -> Result<Step<'q, ClaimResult<&'a str>>, Refusal> {
        let right = rule::claim_from_dead(row, owner, term, floor, dead)?;
        match (right.answer, row.live(term.now_ms())) {
            (ClaimResult::Acquired(mut lease), Some(dead)) => {
                lease.token = dead.token;
                let write = State::stored(dead.token, Some(owner), Some(term.until_ms()));
                Ok(Step { write, answer: ClaimResult::Acquired(lease) })
            }
            _ => Ok(right),
        }
    }
}

/// An ensure renews whichever lease is live, also a stranger's.
pub struct EnsureRenewsAnyones;

impl Rules for EnsureRenewsAnyones {
    fn ensure<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        owner: &'q str,
        term: Term,
        floor: i64,
        conditions: Conditions,
    ) -> Result<Step<'q, ClaimResult<&'a str>>, Refusal> {
        match row.live(term.now_ms()) {
            Some(mut lease) => {
                lease.expires_at_ms = lease.expires_at_ms.max(term.until_ms());
                let until_ms = Some(lease.expires_at_ms);
                let write = State::stored(lease.token, Some(owner), until_ms);
                Ok(Step { write, answer: ClaimResult::Acquired(lease) })
            }
            None => rule::ensure(row, owner, term, floor, conditions),
        }
    }
}

/// An ensure grants its own lease anew, under another token.
pub struct EnsureRaisesToken;

impl Rules for EnsureRaisesToken {
    fn ensure<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        owner: &'q str,
        term: Term,
        floor: i64,
        _conditions: Conditions,
    ) -> Result<Step<'q, ClaimResult<&'a str>>, Refusal> {
        let own = Claimant { owner, token: row.token() };
        rule::claim_from_dead(row, owner, term, floor, own)
    }
}

/// An ensure prolongs its own lease although its conditions do not allow that.
pub struct EnsureIgnoresConditions;

impl Rules for EnsureIgnoresConditions {
    fn ensure<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        owner: &'q str,
        term: Term,
        floor: i64,
        _conditions: Conditions,
    ) -> Result<Step<'q, ClaimResult<&'a str>>, Refusal> {
        rule::ensure(row, owner, term, floor, Conditions::default())
    }
}

/// An ensure shortens a lease that would last longer.
pub struct EnsureShortens;

impl Rules for EnsureShortens {
    fn ensure<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        owner: &'q str,
        term: Term,
        floor: i64,
        conditions: Conditions,
    ) -> Result<Step<'q, ClaimResult<&'a str>>, Refusal> {
        let right = rule::ensure(row, owner, term, floor, conditions)?;
        match right.answer {
            ClaimResult::Acquired(mut lease) => {
                lease.expires_at_ms = term.until_ms();
                let write = State::stored(lease.token, Some(owner), Some(term.until_ms()));
                Ok(Step { write, answer: ClaimResult::Acquired(lease) })
            }
            ClaimResult::Busy(_) => Ok(right),
        }
    }
}

/// Another slot than the lowest free one is lent out, where there is one.
pub struct LowestSkipped;

impl Rules for LowestSkipped {
    fn borrow_slot(
        &self,
        snapshot: PoolSnapshot,
        term: Term,
        newest: i64,
        floor: i64,
    ) -> Result<Option<SlotInfo>, Refusal> {
        let lowest = snapshot.lowest + i64::from(snapshot.info.available() > 1);
        rule::borrow_slot(PoolSnapshot { lowest, ..snapshot }, term, newest, floor)
    }
}

/// A pool that was made smaller lends out its low positions, however many are in use.
pub struct ShrunkPoolLends;

impl Rules for ShrunkPoolLends {
    fn borrow_slot(
        &self,
        mut snapshot: PoolSnapshot,
        term: Term,
        newest: i64,
        floor: i64,
    ) -> Result<Option<SlotInfo>, Refusal> {
        snapshot.info.in_use = 0;
        rule::borrow_slot(snapshot, term, newest, floor)
    }
}

/// The file's floor does not count for pools.
pub struct SlotFloorIgnored;

impl Rules for SlotFloorIgnored {
    fn borrow_slot(
        &self,
        snapshot: PoolSnapshot,
        term: Term,
        newest: i64,
        _floor: i64,
    ) -> Result<Option<SlotInfo>, Refusal> {
        rule::borrow_slot(snapshot, term, newest, 0)
    }
}

/// Every slot counts for itself: a token comes again.
pub struct SlotTokenNotRaised;

impl Rules for SlotTokenNotRaised {
    fn borrow_slot(
        &self,
        snapshot: PoolSnapshot,
        term: Term,
        newest: i64,
        floor: i64,
    ) -> Result<Option<SlotInfo>, Refusal> {
        rule::borrow_slot(snapshot, term, newest.saturating_sub(1), floor)
    }
}

/// A lease on a slot is live at the very instant of its expiry.
pub struct SlotLiveAtExpiry;

impl Rules for SlotLiveAtExpiry {
    fn is_slot_live(&self, slot: SlotInfo, now_ms: i64) -> bool {
        slot.is_live(now_ms - 1)
    }
}

/// A renewal of a slot that comes too late revives it.
pub struct SlotRenewRevives;

impl Rules for SlotRenewRevives {
    fn renew_slot(&self, slot: SlotInfo, term: Term) -> Option<SlotInfo> {
        Some(SlotInfo { expires_at_ms: slot.expires_at_ms.max(term.until_ms()), ..slot })
    }
}

/// A renewal of a slot can shorten it.
pub struct SlotRenewShortens;

impl Rules for SlotRenewShortens {
    fn renew_slot(&self, slot: SlotInfo, term: Term) -> Option<SlotInfo> {
        rule::renew_slot(slot, term).map(|slot| SlotInfo { expires_at_ms: term.until_ms(), ..slot })
    }
}

/// The tokens of a deleted pool are forgotten.
pub struct DeleteForgets;

impl Rules for DeleteForgets {
    fn floor_after_pool(&self, _newest: i64) -> i64 {
        0
    }
}

/// A slot that is kept expires all the same.
pub struct KeptSlotExpires;

impl Rules for KeptSlotExpires {
    fn keep_slot(&self, slot: SlotInfo, now_ms: i64) -> Option<SlotInfo> {
        rule::keep_slot(slot, now_ms).map(|_| slot)
    }
}

/// Keeping a slot that is over revives it.
pub struct KeepRevives;

impl Rules for KeepRevives {
    fn keep_slot(&self, slot: SlotInfo, _now_ms: i64) -> Option<SlotInfo> {
        rule::keep_slot(slot, i64::MIN)
    }
}

/// A value is shown as long as its token is the newest, whether its lease has ended or not.
pub struct ValueOutlivesGrant;

impl Rules for ValueOutlivesGrant {
    fn is_shown(&self, row: Row<'_>, token: i64, _now_ms: i64) -> bool {
        rule::is_newest(row, token)
    }
}

/// A value is shown as long as the name has a live lease, even if another grant attached it.
pub struct ValueOfPredecessor;

impl Rules for ValueOfPredecessor {
    fn is_shown(&self, row: Row<'_>, _token: i64, now_ms: i64) -> bool {
        row.live(now_ms).is_some()
    }
}

/// A renewal makes a grant look young.
pub struct RenewBegins;

impl Rules for RenewBegins {
    fn begins_grant(&self, _row: Row<'_>, state: State<'_>) -> bool {
        state.tenure().is_some()
    }
}

/// A grant looks as old as the one before it of the same owner.
pub struct SameOwnerGoesOn;

impl Rules for SameOwnerGoesOn {
    fn begins_grant(&self, row: Row<'_>, state: State<'_>) -> bool {
        let owner = |state: State<'_>| state.tenure().map(|tenure| tenure.owner.to_owned());
        row.begins_grant(state) && row.state().and_then(owner) != owner(state)
    }
}

/// A holder whose lease has ended attaches a value all the same.
pub struct AttachAfterTheEnd;

impl Rules for AttachAfterTheEnd {
    fn attach(&self, row: Row<'_>, token: i64, now_ms: i64) -> GrantResult {
        match rule::is_newest(row, token) {
            true => GrantResult::Done,
            false => rule::attach(row, token, now_ms),
        }
    }
}

/// An acknowledgement looks at the item and not at the receipt.
pub struct AckIgnoresReceipt;

impl Rules for AckIgnoresReceipt {
    fn ack(&self, item: Option<Item>, receipt: Receipt, newest: i64) -> AckResult {
        match item.and_then(|item| item.delivery()) {
            Some(_) => AckResult::Acknowledged,
            None => rule::ack(item, receipt, newest),
        }
    }
}

/// Every delivery of an item has the same receipt.
pub struct ReceiptReturns;

impl Rules for ReceiptReturns {
    fn deliver(
        &self,
        item: Item,
        uuid: u128,
        token: i64,
        term: Term,
        max_attempts: i64,
    ) -> Option<Item> {
        let uuid = item.delivery().map_or(uuid, |earlier| earlier.uuid);
        rule::deliver(item, uuid, token, term, max_attempts)
    }
}

/// The last allowed delivery is dead at once, so its receipt never passes.
pub struct LastReceiptNeverPasses;

impl Rules for LastReceiptNeverPasses {
    fn deliver(
        &self,
        item: Item,
        uuid: u128,
        token: i64,
        term: Term,
        max_attempts: i64,
    ) -> Option<Item> {
        let delivered = rule::deliver(item, uuid, token, term, max_attempts)?;
        match delivered.visible_at_ms() {
            Some(_) => Some(delivered),
            None => rule::bury(delivered, Receipt { id: 0, uuid }, term.now_ms()),
        }
    }
}

/// A dead item is delivered again.
pub struct DeadDelivered;

impl Rules for DeadDelivered {
    fn deliver(
        &self,
        item: Item,
        uuid: u128,
        token: i64,
        term: Term,
        max_attempts: i64,
    ) -> Option<Item> {
        let item = match item.state(term.now_ms()) {
            ItemState::Dead => Item::stored(Some(term.now_ms()), item.attempts(), item.delivery())?,
            _ => item,
        };
        rule::deliver(item, uuid, token, term, max_attempts)
    }
}

/// The limit of attempts is one too large.
pub struct OneAttemptTooMany;

impl Rules for OneAttemptTooMany {
    fn deliver(
        &self,
        item: Item,
        uuid: u128,
        token: i64,
        term: Term,
        max_attempts: i64,
    ) -> Option<Item> {
        rule::deliver(item, uuid, token, term, max_attempts + 1)
    }
}

/// The key of a dead item still keeps others from using it.
pub struct KeyOutlivesItem;

impl Rules for KeyOutlivesItem {
    fn uses_its_key(&self, _item: Item, _now_ms: i64) -> bool {
        true
    }
}

/// An extension that comes too late revives the delivery.
pub struct ExtendRevives;

impl Rules for ExtendRevives {
    fn extend(&self, item: Item, receipt: Receipt, term: Term) -> Option<Item> {
        let before = item.delivery().map_or(0, |delivery| delivery.deadline_ms) - 1;
        let now_ms = term.now_ms().min(before);
        rule::extend(item, receipt, Term::new(term.until_ms() - now_ms, now_ms).ok()?)
    }
}

/// An extension can shorten a delivery.
pub struct ExtendShortens;

impl Rules for ExtendShortens {
    fn extend(&self, item: Item, receipt: Receipt, term: Term) -> Option<Item> {
        let extended = rule::extend(item, receipt, term)?;
        let mut delivery = extended.delivery()?;
        delivery.deadline_ms = term.until_ms();
        let visible_at_ms = extended.visible_at_ms().map(|_| term.until_ms());
        Item::stored(visible_at_ms, extended.attempts(), Some(delivery))
    }
}

/// Giving an item back at its last attempt makes it visible again.
pub struct GiveBackRevives;

impl Rules for GiveBackRevives {
    fn give_back(&self, item: Item, receipt: Receipt, delay: Delay) -> Option<Item> {
        let given_back = rule::give_back(item, receipt, delay)?;
        Item::stored(Some(delay.until_ms()), given_back.attempts(), given_back.delivery())
    }
}

/// A redriven item keeps its attempts.
pub struct RedriveCounts;

impl Rules for RedriveCounts {
    fn redrive(&self, item: Item, now_ms: i64) -> Option<Item> {
        let redriven = rule::redrive(item, now_ms)?;
        Item::stored(redriven.visible_at_ms(), item.attempts(), redriven.delivery())
    }
}

/// An item that a worker has can be cancelled.
pub struct CancelTakes;

impl Rules for CancelTakes {
    fn cancel(&self, item: Option<Item>, _now_ms: i64) -> CancelResult {
        rule::cancel(item, i64::MAX)
    }
}

/// A read is granted although a writer has the name.
pub struct ReadUnderWriter;

impl Rules for ReadUnderWriter {
    fn read(&self, row: Row<'_>, before: Option<i64>, term: Term, floor: i64) -> Option<Read> {
        let free =
            State::stored(row.token().unwrap_or(1), None, None).filter(|_| row.token().is_some());
        rule::read(Row::new(row.name(), free), before, term, floor)
    }
}

/// A read that a reader has already is prolonged although a writer has the name.
pub struct ReadProlongedUnderWriter;

impl Rules for ReadProlongedUnderWriter {
    fn read(&self, row: Row<'_>, before: Option<i64>, term: Term, floor: i64) -> Option<Read> {
        match before {
            Some(_) => ReadUnderWriter.read(row, before, term, floor),
            None => rule::read(row, before, term, floor),
        }
    }
}

/// Reading again can shorten a read.
pub struct ReadShortens;

impl Rules for ReadShortens {
    fn read(&self, row: Row<'_>, _before: Option<i64>, term: Term, floor: i64) -> Option<Read> {
        rule::read(row, None, term, floor)
    }
}

/// A writer writes although readers answer from memory.
pub struct DrainedWithReaders;

impl Rules for DrainedWithReaders {
    fn drained(&self, row: Row<'_>, token: i64, now_ms: i64, _last: Option<i64>) -> bool {
        rule::drained(row, token, now_ms, None)
    }
}

/// A writer that was succeeded or whose lease has ended writes.
pub struct DrainedForAnyWriter;

impl Rules for DrainedForAnyWriter {
    fn drained(&self, row: Row<'_>, _token: i64, now_ms: i64, last: Option<i64>) -> bool {
        row.token().is_some() && last.is_none_or(|expires_at_ms| expires_at_ms <= now_ms)
    }
}

/// A renewal as it would be under other limits.
fn renew_under<'a, 'q: 'a>(
    row: Row<'a>,
    who: Claimant<'q>,
    term: Term,
    conditions: Conditions,
    change: impl Fn(Limits) -> Limits,
) -> Step<'q, RenewResult<&'a str>> {
    rule::renew(row, who, term, Conditions { limits: conditions.limits.map(change), ..conditions })
}

/// A renewal prolongs past the end of its grant.
pub struct RenewPastTheEnd;

impl Rules for RenewPastTheEnd {
    fn renew<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'q>,
        term: Term,
        conditions: Conditions,
    ) -> Step<'q, RenewResult<&'a str>> {
        let right = rule::renew(row, who, term, conditions);
        match right.answer {
            // Refused from the end on, but not cut before.
            RenewResult::Renewed(_) => {
                let endless = |limits| Limits { not_after_ms: None, ..limits };
                renew_under(row, who, term, conditions, endless)
            }
            RenewResult::Rejected { .. } => right,
        }
    }
}

/// A renewal does not ask for progress.
pub struct RenewWithoutProgress;

impl Rules for RenewWithoutProgress {
    fn renew<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'q>,
        term: Term,
        conditions: Conditions,
    ) -> Step<'q, RenewResult<&'a str>> {
        let lax = |limits| Limits { progress_within_ms: None, ..limits };
        renew_under(row, who, term, conditions, lax)
    }
}

/// Limits outlive their grant, and bind the next one.
pub struct LimitsOutliveGrant;

impl Rules for LimitsOutliveGrant {
    fn renew<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'q>,
        term: Term,
        conditions: Conditions,
    ) -> Step<'q, RenewResult<&'a str>> {
        let token = row.token().unwrap_or(1);
        renew_under(row, who, term, conditions, |limits| Limits { token, ..limits })
    }
}

/// An end cuts the present lease, which its holder may still trust.
pub struct EndCutsLease;

impl Rules for EndCutsLease {
    fn renew<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'q>,
        term: Term,
        conditions: Conditions,
    ) -> Step<'q, RenewResult<&'a str>> {
        let right = rule::renew(row, who, term, conditions);
        match (right.answer, conditions.limits.and_then(|limits| limits.not_after_ms)) {
            (RenewResult::Renewed(mut lease), Some(end_ms)) => {
                lease.expires_at_ms = lease.expires_at_ms.min(end_ms);
                let expiry = Some(lease.expires_at_ms);
                let write = State::stored(lease.token, Some(who.owner), expiry);
                Step { write, answer: RenewResult::Renewed(lease) }
            }
            _ => right,
        }
    }
}

/// Every token counts as progress.
pub struct ProgressOfZombie;

impl Rules for ProgressOfZombie {
    fn progress(&self, _row: Row<'_>, _token: i64, _now_ms: i64) -> GrantResult {
        GrantResult::Done
    }
}

/// A renewal as it would be with another request.
fn renew_asked<'a, 'q: 'a>(
    row: Row<'a>,
    who: Claimant<'q>,
    term: Term,
    conditions: Conditions,
    change: impl Fn(Request) -> Option<Request>,
) -> Step<'q, RenewResult<&'a str>> {
    rule::renew(
        row,
        who,
        term,
        Conditions { request: conditions.request.and_then(change), ..conditions },
    )
}

/// A renewal does not care who asks for the lease.
pub struct RequestIgnored;

impl Rules for RequestIgnored {
    fn renew<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'q>,
        term: Term,
        conditions: Conditions,
    ) -> Step<'q, RenewResult<&'a str>> {
        renew_asked(row, who, term, conditions, |_| None)
    }
}

/// A request never lapses: a dead requester evicts the holder.
pub struct RequestNeverLapses;

impl Rules for RequestNeverLapses {
    fn renew<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'q>,
        term: Term,
        conditions: Conditions,
    ) -> Step<'q, RenewResult<&'a str>> {
        let repeated_at_ms = term.now_ms();
        renew_asked(row, who, term, conditions, |request| {
            Some(Request { repeated_at_ms, ..request })
        })
    }
}

/// A request outlives the grant that it was for.
pub struct RequestOutlivesGrant;

impl Rules for RequestOutlivesGrant {
    fn renew<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'q>,
        term: Term,
        conditions: Conditions,
    ) -> Step<'q, RenewResult<&'a str>> {
        let token = row.token().unwrap_or(1);
        renew_asked(row, who, term, conditions, |request| Some(Request { token, ..request }))
    }
}

/// A request cuts the lease as it is, which its holder still trusts.
pub struct RequestCutsLease;

impl Rules for RequestCutsLease {
    fn renew<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'q>,
        term: Term,
        conditions: Conditions,
    ) -> Step<'q, RenewResult<&'a str>> {
        let right = rule::renew(row, who, term, conditions);
        let open = conditions.request.filter(|request| request.is_open(row, term.now_ms()));
        match (right.answer, open) {
            (RenewResult::Renewed(mut lease), Some(request)) => {
                lease.expires_at_ms = lease.expires_at_ms.min(request.until_ms);
                let expiry = Some(lease.expires_at_ms);
                let write = State::stored(lease.token, Some(who.owner), expiry);
                Step { write, answer: RenewResult::Renewed(lease) }
            }
            _ => right,
        }
    }
}

/// A second requester takes the place of the first.
pub struct SecondRequestWins;

impl Rules for SecondRequestWins {
    fn request<'a>(
        &self,
        row: Row<'_>,
        _found: Option<(&'a str, Request)>,
        requester: &str,
        within_ms: i64,
        now_ms: i64,
    ) -> Result<RequestStep<'a>, Refusal> {
        rule::request(row, None, requester, within_ms, now_ms)
    }
}

/// Repeating a request puts off the time to give the lease up.
pub struct RepeatProlongs;

impl Rules for RepeatProlongs {
    fn request<'a>(
        &self,
        row: Row<'_>,
        found: Option<(&'a str, Request)>,
        requester: &str,
        within_ms: i64,
        now_ms: i64,
    ) -> Result<RequestStep<'a>, Refusal> {
        let mut step = rule::request(row, found, requester, within_ms, now_ms)?;
        if let (Some(request), RequestResult::Requested { token, .. }) =
            (&mut step.write, step.answer)
        {
            request.until_ms = now_ms + within_ms;
            step.answer = RequestResult::Requested { token, until_ms: request.until_ms };
        }
        Ok(step)
    }
}

/// A lease is handed to a requester that has not been heard of for long.
pub struct HandsOverToLapsed;

impl Rules for HandsOverToLapsed {
    fn hand_over<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'_>,
        found: Option<(&'q str, Request)>,
        term: Term,
        floor: i64,
    ) -> Result<Step<'q, TransferResult<&'a str>>, Refusal> {
        let repeated_at_ms = term.now_ms();
        let alive = found.map(|(who, request)| (who, Request { repeated_at_ms, ..request }));
        rule::hand_over(row, who, alive, term, floor)
    }
}

/// Every owner can hand over every lease.
pub struct HandOverByAnyone;

impl Rules for HandOverByAnyone {
    fn hand_over<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        who: Claimant<'_>,
        found: Option<(&'q str, Request)>,
        term: Term,
        floor: i64,
    ) -> Result<Step<'q, TransferResult<&'a str>>, Refusal> {
        let holder =
            row.live(term.now_ms()).map(|lease| Claimant { owner: lease.owner, token: None });
        rule::hand_over(row, holder.unwrap_or(who), found, term, floor)
    }
}

/// Who takes a lease over goes on under the old holder's token.
pub struct TakeOverKeepsToken;

impl Rules for TakeOverKeepsToken {
    fn take_over<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        owner: &'q str,
        term: Term,
        floor: i64,
    ) -> Result<Step<'q, TakenOver<&'a str>>, Refusal> {
        let mut right = rule::take_over(row, owner, term, floor)?;
        if let Some(token) = row.token() {
            right.answer.lease.token = token;
            right.write = State::stored(token, Some(owner), Some(term.until_ms()));
        }
        Ok(right)
    }
}
