//! The signature failures of the recipes in docs/recipes: a test each, named after the failure.
//!
//! Each story is told twice. With its protection off, the failure happens: otherwise the test would
//! prove nothing. With it on, the story ends as its first word says.

mod credential;

use End::*;
use Protection::*;

/// Whether the protection that a story is about is there. It is the only difference between the halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protection {
    Off,
    On,
}

/// How a story ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The failure happened.
    Failed,
    /// The stale owner was refused, and nothing was written.
    Refused,
    /// The damage has a limit that was set beforehand.
    Capped,
}

/// Tells a story in two halves: it must fail without its protection, and end so with it.
#[track_caller]
fn both_halves(with_protection: End, story: impl Fn(Protection) -> End) {
    assert_eq!(story(Off), Failed, "without the protection there is nothing to protect from");
    assert_eq!(story(On), with_protection, "with the protection");
}
