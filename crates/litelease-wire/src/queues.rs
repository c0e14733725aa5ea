//! Calls on queues, and their answers.

use litelease_core::Scope;

use crate::LONGEST_ITEM;
use crate::answer::{NATURAL, POSITIVE, Seconds};
use crate::call::{Call, Key};
use crate::field::{
    Delay, ItemId, ItemIds, ItemKey, ItemNote, Note, Optional, PageLength, Stored, Text, Ttl, Wait,
};
use crate::leases::{AFTER, REASON};
use crate::pools::WAIT;
use crate::value::Value;

/// The longest list of items, in bytes.
const LONGEST_IDS: usize = 32 * 1024;

const QUEUE: &str = "the name of the queue, any text";
const QUEUE_OF_RECEIPT: &str = "the name of the queue; that of the receipt if it is left out";
const RECEIPT: &str = "the receipt from the answer to the receive";
const VISIBILITY: &str =
    "seconds for which nobody else receives the item; cut to the longest that the server allows";
const DELAY: &str = "seconds until the item is visible, 0 if left out";
const ITEM: &str = "only this item";
const ITEMS: &str = "exactly these items, at most 1000, instead of an id";
const WHY: &str = "why, for operators; at most 1000 bytes";

calls! {
    /// Sends an item to a queue
    Send = Call {
        name: "send",
        scopes: &[Scope::Send],
        key: Key::PerDay,
        // Base64 makes it longer.
        longest_body: LONGEST_ITEM + LONGEST_ITEM / 2,
        is_frequent: true,
        ..Call::post("/v1/queue/send")
    } => Sent {
        queue: Text = QUEUE,
        body: Stored = "a text, a number, null, or bytes as {\"base64\":…}; at most 1 MiB",
        delay: Delay = DELAY,
        key: Optional<ItemKey> =
            "unique among the items of the queue that are neither acknowledged nor dead",
    }

    /// Receives the item that was visible longest, and waits for one if asked to
    Receive = Call {
        name: "receive",
        scopes: &[Scope::Receive],
        key: Key::PerDay,
        is_frequent: true,
        errors: &[409, 429],
        ..Call::post("/v1/queue/receive")
    } => Received {
        queue: Text = QUEUE,
        visibility: Ttl = VISIBILITY,
        wait: Wait = WAIT,
    }

    /// Acknowledges an item: it is done, and gone
    Ack = Call {
        name: "ack",
        scopes: &[Scope::Receive],
        key: Key::PerDay,
        is_frequent: true,
        errors: &[409],
        ..Call::post("/v1/queue/ack")
    } => Acknowledged {
        queue: Optional<Text> = QUEUE_OF_RECEIPT,
        receipt: Text = RECEIPT,
    }

    /// Prolongs a live delivery; never shortens it
    Extend = Call {
        name: "extend",
        scopes: &[Scope::Receive],
        is_frequent: true,
        errors: &[409],
        ..Call::post("/v1/queue/extend")
    } => Extended {
        queue: Optional<Text> = QUEUE_OF_RECEIPT,
        receipt: Text = RECEIPT,
        visibility: Ttl = VISIBILITY,
    }

    /// Makes an item visible again, now or after a delay
    GiveBack = Call {
        name: "give_back",
        scopes: &[Scope::Receive],
        errors: &[409],
        ..Call::post("/v1/queue/give-back")
    } => GivenBack {
        queue: Optional<Text> = QUEUE_OF_RECEIPT,
        receipt: Text = RECEIPT,
        delay: Delay = DELAY,
        note: Optional<ItemNote> = WHY,
    }

    /// Makes an item dead at once
    Bury = Call {
        name: "bury",
        scopes: &[Scope::Receive],
        errors: &[409],
        ..Call::post("/v1/queue/bury")
    } => Buried {
        queue: Optional<Text> = QUEUE_OF_RECEIPT,
        receipt: Text = RECEIPT,
        note: Optional<ItemNote> = WHY,
    }

    /// Revives dead items, with no attempt counted
    Redrive = Call {
        name: "redrive",
        scopes: &[Scope::Operate],
        key: Key::PerDay,
        longest_body: LONGEST_IDS,
        ..Call::post("/v1/queue/redrive")
    } => Redriven {
        queue: Text = QUEUE,
        id: Optional<ItemId> = ITEM,
        ids: Optional<ItemIds> = ITEMS,
        reason: Optional<Note> = REASON,
    }

    /// Deletes dead items
    Discard = Call {
        name: "discard",
        scopes: &[Scope::Operate],
        key: Key::PerDay,
        longest_body: LONGEST_IDS,
        ..Call::post("/v1/queue/discard")
    } => Discarded {
        queue: Text = QUEUE,
        id: Optional<ItemId> = ITEM,
        ids: Optional<ItemIds> = ITEMS,
        reason: Optional<Note> = REASON,
    }

    /// Removes an item that no worker has, by its id or its key
    Cancel = Call {
        name: "cancel",
        scopes: &[Scope::Operate],
        key: Key::PerDay,
        errors: &[409],
        ..Call::post("/v1/queue/cancel")
    } => Cancelled {
        queue: Text = QUEUE,
        id: Optional<ItemId> = "the item",
        key: Optional<ItemKey> = "the item with this key",
    }

    /// Deletes a queue with everything in it
    DeleteQueue = Call {
        name: "delete_queue",
        scopes: &[Scope::Operate],
        key: Key::PerDay,
        ..Call::post("/v1/queue/delete")
    } => QueueDeleted {
        queue: Text = QUEUE,
    }

    /// Lists the items of a queue in pages, without bodies and receipts: dead ones first,
    /// then in the order of their delivery
    ListItems = Call {
        name: "items",
        scopes: &[Scope::Observe],
        ..Call::get("/v1/queue/items")
    } => Items {
        queue: Text = QUEUE,
        after: Optional<Text> = AFTER,
        limit: Optional<PageLength> = "how many items at most, 100 if left out",
    }

    /// Counts the items of queues by their state
    ListQueues = Call {
        name: "queues",
        scopes: &[Scope::Observe],
        ..Call::get("/v1/queues")
    } => Queues {
        queue: Optional<Text> = QUEUE,
        prefix: Optional<Text> =
            "all queues whose name begins with this text; every one if it is left out",
        after: Optional<Text> = AFTER,
        limit: Optional<PageLength> = "how many queues at most, 100 if left out",
    }
}

answers! {
    /// An item was sent, or one of that key was there.
    Sent { id: i64 = POSITIVE, queue: String }

    /// An item is received, or nothing.
    Received { item: Option<Item> }

    /// A delivery of an item.
    Item {
        attempt: i64 = POSITIVE,
        body: Value,
        expires_at_unix: i64,
        expires_in: Seconds,
        id: i64 = POSITIVE,
        queue: String,
        receipt: String,
        token: i64 = POSITIVE,
    }

    /// An item is done, and gone.
    Acknowledged { acknowledged: bool, id: i64 = POSITIVE, queue: String }

    /// A delivery is prolonged.
    Extended {
        expires_at_unix: i64,
        expires_in: Seconds,
        id: i64 = POSITIVE,
        queue: String,
    }

    /// An item is visible again, or will be.
    GivenBack { given_back: bool, id: i64 = POSITIVE, queue: String }

    /// An item is dead.
    Buried { buried: bool, id: i64 = POSITIVE, queue: String }

    /// So many items are revived.
    Redriven { queue: String, redriven: i64 = NATURAL }

    /// So many items are deleted.
    Discarded { discarded: i64 = NATURAL, queue: String }

    /// An item is removed.
    Cancelled { cancelled: bool, id: i64 = POSITIVE, queue: String }

    /// A queue is deleted, if there was one.
    QueueDeleted { deleted: bool, queue: String }

    /// How an item stands.
    ItemState {
        age: Seconds = ("description", "seconds since it was sent"),
        attempt: i64 = NATURAL,
        id: i64 = POSITIVE,
        key: Option<String>,
        note: Option<String>,
        state: String = ("enum", ["visible", "delayed", "leased", "dead"].as_slice()),
        visible_in: Option<Seconds> = (
            "description",
            "seconds, negative if it is visible since then; null if it is dead or at its last \
             delivery"
        ),
    }

    /// Items, and the `after` of the next page.
    Items { items: Vec<ItemState>, next: Option<String> }

    /// How many items a queue has, by their state.
    Queue {
        dead: i64 = NATURAL,
        delayed: i64 = NATURAL,
        leased: i64 = NATURAL,
        max_attempts: i64 = NATURAL,
        oldest: Option<Seconds>,
        queue: String,
        visible: i64 = NATURAL,
    }

    /// Queues, and the `after` of the next page.
    Queues { next: Option<String>, queues: Vec<Queue> }
}
