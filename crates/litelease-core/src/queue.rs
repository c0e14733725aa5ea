//! The rule of queues: an item is leased to one worker at a time, and delivered again until a
//! worker acknowledges it.
//!
//! An item is stored as the time at which it becomes visible and the state of its newest delivery.
//! Everything else follows: whether it is visible, delayed, leased or dead, and whether a receipt
//! still passes. Tokens decide about receipts, never clocks.

use core::fmt;

use crate::{Refusal, Term, is_live};

/// How often an item is delivered before it is dead, unless its queue has another limit.
pub const DEFAULT_ATTEMPTS: i64 = 20;

/// The largest limit of attempts that a queue may have.
pub const MAX_ATTEMPTS: i64 = 1_000_000_000;

/// The most bytes that the note of an item may have.
pub const MAX_NOTE: usize = 1_000;

/// The state of an item.
///
/// ```
/// # use litelease_core::ItemState;
/// assert_eq!(ItemState::Leased.to_string(), "leased");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ItemState {
    /// The next receive may deliver it.
    Visible,
    /// It becomes visible later: it was sent or given back with a delay.
    Delayed,
    /// A worker has it.
    Leased,
    /// Its last allowed delivery was not acknowledged, or it was buried. Only a redrive revives it.
    Dead,
}

/// The reason why a receipt does not pass.
///
/// ```
/// # use litelease_core::StaleReason;
/// assert_eq!(StaleReason::DeliveredAgain.to_string(), "delivered again");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StaleReason {
    /// Another delivery of the item is newer.
    DeliveredAgain,
    /// The worker gave the item back.
    GivenBack,
    /// The worker buried the item.
    Buried,
    /// The item was dead and was revived since.
    Redriven,
    /// The file was restored from a backup, and fenced.
    Restored,
    /// The item is no longer there: it was acknowledged, cancelled or deleted.
    Gone,
    /// No delivery that the file knows of has this receipt.
    Unknown,
}

/// An end of a delivery before its deadline, or instead of an acknowledgement.
///
/// ```
/// # use litelease_core::{Ended, StaleReason};
/// assert_eq!(Ended::Buried.reason(), StaleReason::Buried);
/// assert_eq!(Ended::parse("given back"), Some(Ended::GivenBack));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// The worker gave the item back.
    GivenBack,
    /// The worker buried the item.
    Buried,
    /// The item was dead and was revived.
    Redriven,
    /// The file was restored from a backup, and fenced.
    Restored,
}

/// The receipt of a delivery: the id of the item and a random UUID. As text it is `ID-UUID`.
///
/// ```
/// # use litelease_core::Receipt;
/// let receipt = Receipt::new(7, 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
/// assert_eq!(receipt.to_string(), "7-00112233-4455-4677-8899-aabbccddeeff");
/// assert_eq!(Receipt::parse("7-00112233-4455-4677-8899-aabbccddeeff"), Some(receipt));
/// assert_eq!(Receipt::parse("7"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// The item.
    pub id: i64,
    /// The UUID of this delivery, version 4.
    pub uuid: u128,
}

/// The newest delivery of an item.
///
/// ```
/// # use litelease_core::Delivery;
/// let delivery = Delivery { token: 8, uuid: 1, deadline_ms: 150, ended: None };
/// assert!(delivery.is_live(149));
/// assert!(!delivery.is_live(150), "at the very instant of the deadline it is over");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The fencing token: larger than that of every earlier delivery in the file.
    pub token: i64,
    /// The UUID of its receipt.
    pub uuid: u128,
    /// The first millisecond at which the worker no longer has the item. If it ended earlier, when
    /// that was.
    pub deadline_ms: i64,
    /// Its early end, if it has one. Then its receipt is stale.
    pub ended: Option<Ended>,
}

/// An item as it is stored.
///
/// ```
/// # use litelease_core::{Item, ItemState};
/// let item = Item::sent(120);
/// assert_eq!(item.state(119), ItemState::Delayed);
/// assert_eq!(item.state(120), ItemState::Visible);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// When it is visible, unless it is acknowledged before. None if it is dead, or will be at its
    /// deadline: its last allowed delivery took it out of the visible order.
    visible_at_ms: Option<i64>,
    /// How often it was delivered since it was sent or redriven.
    attempts: i64,
    delivery: Option<Delivery>,
}

/// The time at which an item becomes visible: now, or after a delay.
///
/// ```
/// # use litelease_core::{Delay, Refusal};
/// assert_eq!(Delay::new(20, 100)?.until_ms(), 120);
/// assert_eq!(Delay::new(-1, 100), Err(Refusal::InvalidDelay { delay_ms: -1 }));
/// # Ok::<(), Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    now_ms: i64,
    until_ms: i64,
}

/// The answer to an acknowledgement.
///
/// ```
/// # use litelease_core::{AckResult, StaleReason};
/// let answer = AckResult::Stale { reason: StaleReason::Gone };
/// assert!(!answer.is_acknowledged());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a stale receipt means that the work belongs to another worker"]
pub enum AckResult {
    /// The item is done, and gone.
    Acknowledged,
    /// The receipt does not pass. Nothing changed.
    Stale {
        /// The reason.
        reason: StaleReason,
    },
}

/// The answer to a cancellation.
///
/// ```
/// # use litelease_core::CancelResult;
/// assert_ne!(CancelResult::Cancelled, CancelResult::NotFound);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelResult {
    /// The item is gone.
    Cancelled,
    /// A worker has it until this deadline. Nothing changed.
    Leased {
        /// The deadline of its delivery.
        deadline_ms: i64,
    },
    /// The queue has no such item.
    NotFound,
}

impl ItemState {
    /// Returns the word for it.
    pub fn word(self) -> &'static str {
        match self {
            ItemState::Visible => "visible",
            ItemState::Delayed => "delayed",
            ItemState::Leased => "leased",
            ItemState::Dead => "dead",
        }
    }
}

impl StaleReason {
    /// Returns the words for it.
    pub fn word(self) -> &'static str {
        match self {
            StaleReason::DeliveredAgain => "delivered again",
            StaleReason::GivenBack => "given back",
            StaleReason::Buried => "buried",
            StaleReason::Redriven => "redriven",
            StaleReason::Restored => "restored",
            StaleReason::Gone => "gone",
            StaleReason::Unknown => "unknown",
        }
    }
}

impl Ended {
    /// Returns the reason why the receipt is stale.
    pub fn reason(self) -> StaleReason {
        match self {
            Ended::GivenBack => StaleReason::GivenBack,
            Ended::Buried => StaleReason::Buried,
            Ended::Redriven => StaleReason::Redriven,
            Ended::Restored => StaleReason::Restored,
        }
    }

    /// Returns the ending that these words are stored for.
    pub fn parse(word: &str) -> Option<Ended> {
        let all = [Ended::GivenBack, Ended::Buried, Ended::Redriven, Ended::Restored];
        all.into_iter().find(|ended| ended.reason().word() == word)
    }
}

impl Receipt {
    /// Returns the receipt of an item with a UUID made from random bits.
    pub fn new(id: i64, random: u128) -> Receipt {
        let uuid = random & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
        Receipt { id, uuid }
    }

    /// Returns the receipt that a text is, if it is one, exactly as it was given out.
    pub fn parse(text: &str) -> Option<Receipt> {
        let (id, uuid) = text.split_once('-')?;
        if id.starts_with('0') || !id.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let mut bits: u128 = 0;
        for (at, byte) in uuid.bytes().enumerate() {
            let digit = match (at, byte) {
                (8 | 13 | 18 | 23, b'-') => continue,
                (8 | 13 | 18 | 23 | 36.., _) => return None,
                (_, b'0'..=b'9') => byte - b'0',
                (_, b'a'..=b'f') => byte - b'a' + 10,
                _ => return None,
            };
            bits = bits << 4 | u128::from(digit);
        }
        (uuid.len() == 36).then_some(Receipt { id: id.parse().ok()?, uuid: bits })
    }
}

impl Delivery {
    /// Checks whether a worker has the item at `now_ms`.
    pub fn is_live(&self, now_ms: i64) -> bool {
        self.ended.is_none() && is_live(self.deadline_ms, now_ms)
    }
}

impl Item {
    /// Returns a new item that is visible from `visible_at_ms` on.
    pub fn sent(visible_at_ms: i64) -> Item {
        Item { visible_at_ms: Some(visible_at_ms), attempts: 0, delivery: None }
    }

    /// Returns the item that stored values mean, if they fit together.
    pub fn stored(
        visible_at_ms: Option<i64>,
        attempts: i64,
        delivery: Option<Delivery>,
    ) -> Option<Item> {
        let is_right = match delivery {
            // Only a delivery takes an item out of the visible order.
            None => visible_at_ms.is_some() && attempts == 0,
            Some(delivery) => delivery.token >= 1 && attempts >= 0,
        };
        is_right.then_some(Item { visible_at_ms, attempts, delivery })
    }

    /// Returns when it is visible, unless it is acknowledged before.
    pub fn visible_at_ms(&self) -> Option<i64> {
        self.visible_at_ms
    }

    /// Returns how often it was delivered since it was sent or redriven.
    pub fn attempts(&self) -> i64 {
        self.attempts
    }

    /// Its newest delivery.
    pub fn delivery(&self) -> Option<Delivery> {
        self.delivery
    }

    /// Returns its state at `now_ms`.
    pub fn state(&self, now_ms: i64) -> ItemState {
        let is_leased = self.delivery.is_some_and(|delivery| delivery.is_live(now_ms));
        match self.visible_at_ms {
            _ if is_leased => ItemState::Leased,
            None => ItemState::Dead,
            Some(visible_at_ms) if visible_at_ms > now_ms => ItemState::Delayed,
            Some(_) => ItemState::Visible,
        }
    }

    /// Returns the delivery of a receipt, if it is the newest one and nothing has ended it.
    fn passing(&self, receipt: Receipt) -> Result<Delivery, StaleReason> {
        match self.delivery {
            None => Err(StaleReason::Unknown),
            Some(newest) if newest.uuid != receipt.uuid => Err(StaleReason::DeliveredAgain),
            Some(Delivery { ended: Some(ended), .. }) => Err(ended.reason()),
            Some(newest) => Ok(newest),
        }
    }

    /// Returns the item after its newest delivery was ended at `now_ms`.
    fn ended(self, ended: Ended, visible_at_ms: Option<i64>, now_ms: i64) -> Item {
        let end = |delivery: Delivery| {
            let deadline_ms = delivery.deadline_ms.min(now_ms);
            Delivery { deadline_ms, ended: Some(ended), ..delivery }
        };
        Item { visible_at_ms, delivery: self.delivery.map(end), ..self }
    }
}

impl Delay {
    /// Checks a delay: it is not negative, and its end fits into 64 bits.
    pub fn new(delay_ms: i64, now_ms: i64) -> Result<Delay, Refusal> {
        if delay_ms < 0 {
            return Err(Refusal::InvalidDelay { delay_ms });
        }
        let overflow = Refusal::TimeOverflow { now_ms, ttl_ms: delay_ms };
        let until_ms = now_ms.checked_add(delay_ms).ok_or(overflow)?;
        Ok(Delay { now_ms, until_ms })
    }

    /// Returns the time of the request.
    pub fn now_ms(&self) -> i64 {
        self.now_ms
    }

    /// Returns the time at which it ends.
    pub fn until_ms(&self) -> i64 {
        self.until_ms
    }
}

impl AckResult {
    /// Checks whether the item was acknowledged.
    ///
    /// ```
    /// # use litelease_core::AckResult;
    /// assert!(AckResult::Acknowledged.is_acknowledged());
    /// ```
    pub fn is_acknowledged(self) -> bool {
        self == AckResult::Acknowledged
    }
}

/// Returns the next number for an id or a token. It exceeds `newest`, the newest one of any queue
/// of the file, and `floor`.
///
/// ```
/// # use litelease_core::next_number;
/// assert_eq!(next_number(6, 0)?, 7);
/// assert_eq!(next_number(6, 1 << 32)?, (1 << 32) + 1);
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn next_number(newest: i64, floor: i64) -> Result<i64, Refusal> {
    newest.max(floor).checked_add(1).ok_or(Refusal::TokenExhausted)
}

/// Delivers an item that is visible, under a new token and a new receipt. The last attempt that
/// `max_attempts` allows (0: any number) takes it out of the visible order: it is dead once its
/// deadline has passed, without another write.
///
/// ```
/// # use litelease_core::{Item, ItemState, Term, deliver};
/// let item = deliver(Item::sent(100), 1, 8, Term::new(50, 100)?, 1).unwrap();
/// assert_eq!((item.state(149), item.state(150)), (ItemState::Leased, ItemState::Dead));
/// assert_eq!(deliver(item, 2, 9, Term::new(50, 150)?, 1), None);
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn deliver(item: Item, uuid: u128, token: i64, term: Term, max_attempts: i64) -> Option<Item> {
    if item.state(term.now_ms()) != ItemState::Visible {
        return None;
    }
    let attempts = item.attempts.saturating_add(1);
    let is_last = max_attempts > 0 && attempts >= max_attempts;
    let delivery = Delivery { token, uuid, deadline_ms: term.until_ms(), ended: None };
    let visible_at_ms = (!is_last).then_some(delivery.deadline_ms);
    Some(Item { visible_at_ms, attempts, delivery: Some(delivery) })
}

/// Acknowledges an item. The newest receipt passes, also after its deadline, unless a worker has
/// received the item since. `newest` is the newest number of the file's queues: an item that is not
/// there has been there if its id is not larger.
///
/// ```
/// # use litelease_core::{AckResult, Item, Receipt, StaleReason, Term, ack, deliver};
/// let (first, second) = (Receipt { id: 1, uuid: 1 }, Receipt { id: 1, uuid: 2 });
/// let item = deliver(Item::sent(100), 1, 2, Term::new(50, 100)?, 20).unwrap();
/// assert_eq!(ack(Some(item), first, 2), AckResult::Acknowledged);
/// let item = deliver(item, 2, 3, Term::new(50, 150)?, 20).unwrap();
/// let reason = StaleReason::DeliveredAgain;
/// assert_eq!(ack(Some(item), first, 3), AckResult::Stale { reason });
/// assert_eq!(ack(Some(item), second, 3), AckResult::Acknowledged);
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn ack(item: Option<Item>, receipt: Receipt, newest: i64) -> AckResult {
    let passing = match item {
        Some(item) => item.passing(receipt).map(drop),
        None if receipt.id <= newest => Err(StaleReason::Gone),
        None => Err(StaleReason::Unknown),
    };
    match passing {
        Ok(()) => AckResult::Acknowledged,
        Err(reason) => AckResult::Stale { reason },
    }
}

/// Prolongs a live delivery. It never shortens one and never revives one.
///
/// ```
/// # use litelease_core::{Item, Receipt, Term, deliver, extend};
/// let receipt = Receipt { id: 1, uuid: 1 };
/// let item = deliver(Item::sent(100), 1, 2, Term::new(50, 100)?, 20).unwrap();
/// assert_eq!(extend(item, receipt, Term::new(10, 120)?), Some(item), "not shortened");
/// assert_eq!(extend(item, receipt, Term::new(10, 150)?), None, "not revived");
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn extend(item: Item, receipt: Receipt, term: Term) -> Option<Item> {
    let delivery = item.passing(receipt).ok().filter(|found| found.is_live(term.now_ms()))?;
    let deadline_ms = delivery.deadline_ms.max(term.until_ms());
    let visible_at_ms = item.visible_at_ms.map(|_| deadline_ms);
    Some(Item { visible_at_ms, delivery: Some(Delivery { deadline_ms, ..delivery }), ..item })
}

/// Gives an item back, visible now or after a delay. At its last allowed attempt it is dead
/// instead; one that is dead already stays as it is.
///
/// ```
/// # use litelease_core::{Delay, Item, ItemState, Receipt, Term, deliver, give_back};
/// let receipt = Receipt { id: 1, uuid: 1 };
/// let item = deliver(Item::sent(100), 1, 2, Term::new(50, 100)?, 20).unwrap();
/// let item = give_back(item, receipt, Delay::new(20, 110)?).unwrap();
/// assert_eq!((item.state(129), item.state(130)), (ItemState::Delayed, ItemState::Visible));
/// assert_eq!(item.attempts(), 1);
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn give_back(item: Item, receipt: Receipt, delay: Delay) -> Option<Item> {
    item.passing(receipt).ok()?;
    if item.state(delay.now_ms) == ItemState::Dead {
        return None;
    }
    let visible_at_ms = item.visible_at_ms.map(|_| delay.until_ms);
    Some(item.ended(Ended::GivenBack, visible_at_ms, delay.now_ms))
}

/// Undoes a delivery that no worker has heard of: the attempt does not count, and the item has its
/// place in the order again. None if the receipt no longer passes.
///
/// ```
/// # use litelease_core::{Item, ItemState, Receipt, Term, deliver, undeliver};
/// let receipt = Receipt { id: 1, uuid: 1 };
/// let item = deliver(Item::sent(100), 1, 2, Term::new(50, 120)?, 1).unwrap();
/// let item = undeliver(item, receipt, 100, 130).unwrap();
/// assert_eq!((item.state(130), item.attempts()), (ItemState::Visible, 0));
/// assert_eq!(item.visible_at_ms(), Some(100));
/// assert_eq!(undeliver(item, receipt, 100, 130), None, "once");
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn undeliver(item: Item, receipt: Receipt, visible_at_ms: i64, now_ms: i64) -> Option<Item> {
    item.passing(receipt).ok()?;
    let attempts = item.attempts.saturating_sub(1).max(0);
    Some(Item { attempts, ..item.ended(Ended::GivenBack, Some(visible_at_ms), now_ms) })
}

/// Makes an item dead at once.
///
/// ```
/// # use litelease_core::{Item, ItemState, Receipt, Term, bury, deliver};
/// let item = deliver(Item::sent(100), 1, 2, Term::new(50, 100)?, 20).unwrap();
/// let item = bury(item, Receipt { id: 1, uuid: 1 }, 110).unwrap();
/// assert_eq!(item.state(110), ItemState::Dead);
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn bury(item: Item, receipt: Receipt, now_ms: i64) -> Option<Item> {
    item.passing(receipt).ok()?;
    Some(item.ended(Ended::Buried, None, now_ms))
}

/// Revives a dead item: it is visible now, with no attempt counted.
///
/// ```
/// # use litelease_core::{Item, ItemState, Term, deliver, redrive};
/// let item = deliver(Item::sent(100), 1, 2, Term::new(50, 100)?, 1).unwrap();
/// assert_eq!(redrive(item, 149), None, "a worker has it");
/// let item = redrive(item, 150).unwrap();
/// assert_eq!((item.state(150), item.attempts()), (ItemState::Visible, 0));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn redrive(item: Item, now_ms: i64) -> Option<Item> {
    (item.state(now_ms) == ItemState::Dead)
        .then(|| Item { attempts: 0, ..item.ended(Ended::Redriven, Some(now_ms), now_ms) })
}

/// Ends the newest delivery because the file was restored: the worker with its receipt may have
/// worked on after the backup was made. None if nothing is to be ended.
///
/// ```
/// # use litelease_core::{Item, ItemState, Term, deliver, fence_item};
/// let item = deliver(Item::sent(100), 1, 2, Term::new(50, 100)?, 20).unwrap();
/// assert_eq!(fence_item(item, 110).unwrap().state(110), ItemState::Visible);
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn fence_item(item: Item, now_ms: i64) -> Option<Item> {
    item.delivery.filter(|delivery| delivery.ended.is_none())?;
    let visible_at_ms = item.visible_at_ms.map(|visible_at_ms| visible_at_ms.min(now_ms));
    Some(item.ended(Ended::Restored, visible_at_ms, now_ms))
}

/// Decides whether an item may be cancelled: no worker has it.
///
/// ```
/// # use litelease_core::{CancelResult, Item, Term, cancel, deliver};
/// let item = deliver(Item::sent(100), 1, 2, Term::new(50, 100)?, 20).unwrap();
/// assert_eq!(cancel(Some(item), 149), CancelResult::Leased { deadline_ms: 150 });
/// assert_eq!(cancel(Some(item), 150), CancelResult::Cancelled);
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn cancel(item: Option<Item>, now_ms: i64) -> CancelResult {
    match item.map(|item| item.delivery.filter(|delivery| delivery.is_live(now_ms))) {
        None => CancelResult::NotFound,
        Some(Some(Delivery { deadline_ms, .. })) => CancelResult::Leased { deadline_ms },
        Some(None) => CancelResult::Cancelled,
    }
}

impl fmt::Display for ItemState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl fmt::Display for StaleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Receipt { id, uuid } = self;
        let part = |shift: u32, bits: u32| uuid >> shift & ((1 << bits) - 1);
        let (a, b, c) = (part(96, 32), part(80, 16), part(64, 16));
        write!(f, "{id}-{a:08x}-{b:04x}-{c:04x}-{:04x}-{:012x}", part(48, 16), part(0, 48))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const FIRST: Receipt = Receipt { id: 1, uuid: 1 };

    fn delivered(max_attempts: i64) -> Item {
        let term = Term::new(50, 100).unwrap();
        deliver(Item::sent(100), 1, 2, term, max_attempts).unwrap()
    }

    fn again(item: Item, uuid: u128, now_ms: i64) -> Item {
        deliver(item, uuid, 3, Term::new(50, now_ms).unwrap(), 20).unwrap()
    }

    fn reason(item: Item, receipt: Receipt) -> Option<StaleReason> {
        match ack(Some(item), receipt, 9) {
            AckResult::Acknowledged => None,
            AckResult::Stale { reason } => Some(reason),
        }
    }

    #[test]
    fn the_newest_receipt_passes_until_somebody_else_has_received_the_item() {
        let item = delivered(20);
        assert_eq!(reason(item, FIRST), None);
        assert_eq!(reason(again(item, 2, 150), FIRST), Some(StaleReason::DeliveredAgain));
        assert_eq!(reason(again(item, 2, 150), Receipt { id: 1, uuid: 2 }), None);
    }

    #[test]
    fn a_stale_receipt_says_why() {
        let delay = Delay::new(0, 110).unwrap();
        let given_back = give_back(delivered(20), FIRST, delay).unwrap();
        assert_eq!(reason(given_back, FIRST), Some(StaleReason::GivenBack));
        let buried = bury(delivered(20), FIRST, 110).unwrap();
        assert_eq!(reason(buried, FIRST), Some(StaleReason::Buried));
        assert_eq!(reason(redrive(buried, 110).unwrap(), FIRST), Some(StaleReason::Redriven));
        let restored = fence_item(delivered(20), 110).unwrap();
        assert_eq!(reason(restored, FIRST), Some(StaleReason::Restored));
        assert_eq!(reason(Item::sent(100), FIRST), Some(StaleReason::Unknown));
        let stale = |reason| AckResult::Stale { reason };
        assert_eq!(ack(None, FIRST, 1), stale(StaleReason::Gone));
        assert_eq!(ack(None, FIRST, 0), stale(StaleReason::Unknown));
    }

    #[test]
    fn the_last_allowed_delivery_dies_at_its_deadline_by_the_clock() {
        let item = delivered(1);
        assert_eq!(item.visible_at_ms(), None);
        assert_eq!(item.state(149), ItemState::Leased);
        assert_eq!(item.state(150), ItemState::Dead);
        // Its receipt still passes: tokens decide, not clocks.
        assert_eq!(reason(item, FIRST), None);
        // And nothing but a redrive revives it.
        assert_eq!(extend(item, FIRST, Term::new(50, 150).unwrap()), None);
        assert_eq!(give_back(item, FIRST, Delay::new(0, 150).unwrap()), None);
        assert_eq!(deliver(item, 2, 3, Term::new(50, 150).unwrap(), 20), None);
        assert!(redrive(item, 150).is_some());
    }

    #[test]
    fn giving_back_at_the_last_attempt_kills() {
        let item = give_back(delivered(1), FIRST, Delay::new(20, 110).unwrap()).unwrap();
        assert_eq!(item.state(110), ItemState::Dead);
        assert_eq!(item.state(0), ItemState::Dead, "whatever the clock says");
    }

    #[test]
    fn an_extension_moves_deadline_and_visibility_together() {
        let item = extend(delivered(20), FIRST, Term::new(50, 149).unwrap()).unwrap();
        assert_eq!(item.visible_at_ms(), Some(199));
        assert_eq!(item.delivery().unwrap().deadline_ms, 199);
        let last = extend(delivered(1), FIRST, Term::new(50, 149).unwrap()).unwrap();
        assert_eq!((last.visible_at_ms(), last.state(199)), (None, ItemState::Dead));
    }

    #[test]
    fn a_fence_leaves_items_that_nobody_received_as_they_are() {
        assert_eq!(fence_item(Item::sent(500), 110), None);
        let item = fence_item(delivered(20), 110).unwrap();
        assert_eq!((item.state(110), item.attempts()), (ItemState::Visible, 1));
        assert_eq!(fence_item(delivered(1), 110).unwrap().state(110), ItemState::Dead);
    }

    #[test]
    fn receipts_are_read_exactly_as_they_are_given_out() {
        let receipt = Receipt::new(i64::MAX, u128::MAX);
        assert_eq!(Receipt::parse(&receipt.to_string()), Some(receipt));
        let strange = [
            "",
            "7",
            "-",
            "7-",
            "0-00112233-4455-4677-8899-aabbccddeeff",
            "07-00112233-4455-4677-8899-aabbccddeeff",
            "+7-00112233-4455-4677-8899-aabbccddeeff",
            "7-00112233-4455-4677-8899-AABBCCDDEEFF",
            "7-00112233-4455-4677-8899-aabbccddeef",
            "7-00112233-4455-4677-8899-aabbccddeeff0",
            "7-001122334455467788990aabbccddeeff000",
            "7-00112233-4455-4677-8899-aabbccddeéf",
            "9223372036854775808-00112233-4455-4677-8899-aabbccddeeff",
            "-00112233-4455-4677-8899-aabbccddeeff",
        ];
        for text in strange {
            assert_eq!(Receipt::parse(text), None, "{text}");
        }
    }

    #[test]
    fn stored_values_that_do_not_fit_together_are_no_item() {
        let delivery = Delivery { token: 1, uuid: 1, deadline_ms: 150, ended: None };
        assert!(Item::stored(None, 1, Some(delivery)).is_some());
        assert_eq!(Item::stored(None, 0, None), None);
        assert_eq!(Item::stored(Some(1), 1, None), None);
        assert_eq!(Item::stored(Some(1), -1, Some(delivery)), None);
        assert_eq!(Item::stored(Some(1), 1, Some(Delivery { token: 0, ..delivery })), None);
    }
}
