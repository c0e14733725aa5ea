//! The words of the history.

/// The kinds of rows in a history.
///
/// ```
/// assert!(litelease_core::HISTORY_KINDS.contains(&"granted"));
/// ```
pub const HISTORY_KINDS: [&str; 21] = [
    // A grant of a name, and how it ended.
    "granted",
    "renewed_late",
    "released",
    "expired",
    "died",
    "transferred",
    "handed_over",
    "taken_over",
    "broken",
    "raised",
    // A tick.
    "tick_claimed",
    "tick_done",
    "tick_failed",
    "tick_skipped",
    "tick_again",
    "tick_forgotten",
    // A queue.
    "item_died",
    "redriven",
    "discarded",
    "cancelled",
    "queue_deleted",
];
