//! The host API of the library as C functions: the rule and the statements for hosts that cannot load an extension, such
//! as a Python whose `sqlite3` was built without that. They call these functions and run the statements on
//! their own connection.
//!
//! Texts are pointers to UTF-8 with a length; a null pointer is no text.

use std::ffi::{c_char, c_int, c_uchar};
use std::panic::catch_unwind;
use std::{ptr, slice, str};

use litelease_store::host_api::{
    EpochQuestion, LARGEST_TOKEN_NEEDED, Outcome, Question, Verb, Wish, decide, difference, epoch,
    epoch_covers, epoch_recorded, purge_limit, raise, statement, tells_boots_apart,
};

use litelease_core::{Claimant, Epoch, RaiseResult, Reason, Refusal, State};
#[cfg(unix)]
use litelease_keeper::{HolderKind, Identity};

/// A text of the host's.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Text {
    start: *const c_uchar,
    length: usize,
}

/// What the rule is asked. Numbers that do not apply are 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CQuestion {
    /// 0 claim, 1 renew, 2 release, 3 transfer, 4 break, 5 inspect; 6 claim from the dead holder whose grant is
    /// `owner` and `token`, for `new_owner`; 7 raise the token of the name above `token`.
    verb: c_int,
    has_row: c_int,
    has_expiry: c_int,
    has_token: c_int,
    stored_token: i64,
    stored_expires_at_ms: i64,
    ttl_ms: i64,
    now_ms: i64,
    token: i64,
    floor: i64,
    stored_owner: Text,
    owner: Text,
    new_owner: Text,
}

/// What the rule answers.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CDecision {
    /// 0 done, 1 busy, 2 rejected, 3 the floor is too low.
    outcome: c_int,
    /// 0 never claimed, 1 held by, 2 superseded, 3 unknown token, 4 released, 5 expired.
    reason: c_int,
    writes: c_int,
    /// Whether the state to store has an owner: the one who asked, or the new one of a transfer.
    has_owner: c_int,
    token: i64,
    expires_at_ms: i64,
}

/// Asks the rule. Answers 0, or why it refuses: 1 the ttl, 2 the time, 3 the token, 4 the stored row is not
/// valid, 5 the question is not.
///
/// # Safety
/// The pointers must be valid, and the texts UTF-8 of their length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn litelease_host_decide(
    question: *const CQuestion,
    decision: *mut CDecision,
) -> c_int {
    // SAFETY: as promised.
    let answered = catch_unwind(|| unsafe { answer(&*question) });
    match answered.unwrap_or(Err(5)) {
        Ok(answer) => {
            // SAFETY: as promised.
            unsafe { *decision = answer };
            0
        }
        Err(code) => code,
    }
}

/// What is asked about the epoch of a file.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CEpochQuestion {
    /// 0 to grant a token, 1 to raise the floor, 2 to fence a restored file, 3 to record the present boot.
    wish: c_int,
    is_own: c_int,
    /// The token, the floor, or the newest token.
    number: i64,
    floor: i64,
    boot: i64,
    synchronous: i64,
    file: Text,
    journal_mode: Text,
}

/// The epoch to store.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CEpoch {
    /// Whether another one than before is needed.
    writes: c_int,
    /// Whether a power cut can take commits, so that this one needs `synchronous` raised.
    may_lose_commits: c_int,
    floor: i64,
    boot: i64,
}

/// Asks which epoch is needed. Answers 0, or as `litelease_host_decide` does.
///
/// # Safety
/// As for `litelease_host_decide`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn litelease_host_epoch(
    question: *const CEpochQuestion,
    answer: *mut CEpoch,
) -> c_int {
    // SAFETY: as promised.
    let answered = catch_unwind(|| unsafe { answer_epoch(&*question) });
    match answered.unwrap_or(Err(5)) {
        Ok(found) => {
            // SAFETY: as promised.
            unsafe { *answer = found };
            0
        }
        Err(code) => code,
    }
}

/// Checks whether a token may be granted with this epoch, as far as can be told from the two alone: 1 or 0.
#[unsafe(no_mangle)]
pub extern "C" fn litelease_host_epoch_covers(floor: i64, boot: i64, token: i64) -> c_int {
    catch_unwind(|| epoch_covers(Epoch { floor, boot }, token)).map_or(0, c_int::from)
}

/// Decides whether the floor of a file may be raised from `present` to `floor`: 0 raise it, 1 it is so already,
/// 2 it is too low, 3 no token would be larger.
#[unsafe(no_mangle)]
pub extern "C" fn litelease_host_raise(present: i64, floor: i64) -> c_int {
    match raise(present, floor) {
        Ok(RaiseResult::Raised) => 0,
        Ok(RaiseResult::Unchanged) => 1,
        Ok(RaiseResult::TooLow { .. }) => 2,
        Err(_) => 3,
    }
}

/// Returns the time up to which rows may be purged: the parameter of the statements `ended` and `delete_ended`.
#[unsafe(no_mangle)]
pub extern "C" fn litelease_host_purge_limit(before_ms: i64, now_ms: i64) -> i64 {
    purge_limit(before_ms, now_ms)
}

/// Why a restored file cannot be fenced without a token that was seen elsewhere, copied to `out` as far as it fits. Answers its
/// length, or 0 if it can be.
///
/// # Safety
/// The pointer must be valid for its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn litelease_host_needs_largest_token(
    out: *mut c_char,
    size: usize,
) -> usize {
    let needed = catch_unwind(|| !tells_boots_apart()).unwrap_or(true);
    // SAFETY: as promised.
    unsafe { give(needed.then(|| LARGEST_TOKEN_NEEDED.to_owned()), out, size) }
}

/// Takes note that this process has left its epoch in a file.
///
/// # Safety
/// The text must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn litelease_host_epoch_recorded(file: Text, floor: i64) {
    // SAFETY: as promised.
    let file = unsafe { text(file) }.unwrap_or("");
    // There is nothing in it to panic.
    let _ = catch_unwind(|| epoch_recorded(file, floor));
}

/// # Safety
/// The texts must be valid.
unsafe fn answer_epoch(asked: &CEpochQuestion) -> Result<CEpoch, c_int> {
    // SAFETY: as promised.
    let (file, journal_mode) = unsafe { (text(asked.file), text(asked.journal_mode)) };
    let stored = Epoch { floor: asked.floor, boot: asked.boot };
    let question = EpochQuestion {
        wish: match asked.wish {
            0 => Wish::Grant(asked.number),
            1 => Wish::Raise(asked.number),
            2 => Wish::Restore(asked.number),
            3 => Wish::Record,
            _ => return Err(5),
        },
        epoch: stored,
        file: file.unwrap_or(""),
        journal_mode: journal_mode.unwrap_or(""),
        synchronous: asked.synchronous,
        is_own: asked.is_own != 0,
    };
    let (wanted, may_lose_commits) = epoch(question).map_err(code_of)?;
    let Epoch { floor, boot } = wanted.unwrap_or(stored);
    Ok(CEpoch {
        writes: c_int::from(wanted.is_some()),
        may_lose_commits: c_int::from(may_lose_commits),
        floor,
        boot,
    })
}

/// A statement by its name, copied to `out` as far as it fits. Answers its length, or 0 if there is none.
///
/// # Safety
/// The pointers must be valid for their lengths, and the name UTF-8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn litelease_host_statement(
    name: Text,
    out: *mut c_char,
    size: usize,
) -> usize {
    // SAFETY: as promised.
    let found = catch_unwind(|| unsafe { text(name) }.and_then(statement));
    // SAFETY: as promised.
    unsafe { give(found.unwrap_or(None), out, size) }
}

/// The first difference between a table as it is stored and as it should be, copied to `out` as far as it
/// fits. Answers its length, or 0 if there is none.
///
/// # Safety
/// The pointers must be valid for their lengths, and the texts UTF-8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn litelease_host_difference(
    table: Text,
    kind: Text,
    sql: Text,
    out: *mut c_char,
    size: usize,
) -> usize {
    let found = catch_unwind(|| {
        // SAFETY: as promised.
        let [table, kind, sql] =
            [table, kind, sql].map(|given| unsafe { text(given) }.unwrap_or(""));
        difference(table, kind, sql)
    });
    // SAFETY: as promised.
    unsafe { give(found.unwrap_or_else(|_| Some("internal error".into())), out, size) }
}

/// A new owner text for this process, copied to `out` as far as it fits: `kind` is 0 for a process that holds the lease
/// itself, 1 for a lock that another process may unlock. Answers its length, or 0 where the system has none.
///
/// # Safety
/// The pointer must be valid for the length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn litelease_host_identity(
    kind: c_int,
    out: *mut c_char,
    size: usize,
) -> usize {
    let made = catch_unwind(|| identity(kind)).unwrap_or(None);
    // SAFETY: as promised.
    unsafe { give(made, out, size) }
}

/// Checks whether the process that an owner text names was the holder, and has provably ended: 1 or 0.
///
/// # Safety
/// The text must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn litelease_host_is_dead(owner: Text) -> c_int {
    // SAFETY: as promised.
    let owner = unsafe { text(owner) };
    catch_unwind(|| owner.is_some_and(is_dead)).map_or(0, c_int::from)
}

#[cfg(unix)]
fn identity(kind: c_int) -> Option<String> {
    let kind = if kind == 0 { HolderKind::Hold } else { HolderKind::Lock };
    Some(Identity::new(kind).to_string())
}

#[cfg(unix)]
fn is_dead(owner: &str) -> bool {
    Identity::parse(owner).is_some_and(|holder| holder.is_dead())
}

#[cfg(not(unix))]
fn identity(_kind: c_int) -> Option<String> {
    None
}

#[cfg(not(unix))]
fn is_dead(_owner: &str) -> bool {
    false
}

/// The version of the library, as a C string.
#[unsafe(no_mangle)]
pub extern "C" fn litelease_host_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// # Safety
/// The texts must be valid.
unsafe fn answer(asked: &CQuestion) -> Result<CDecision, c_int> {
    // SAFETY: as promised.
    let (stored_owner, owner, new_owner) =
        unsafe { (text(asked.stored_owner), text(asked.owner), text(asked.new_owner)) };
    let expiry = (asked.has_expiry != 0).then_some(asked.stored_expires_at_ms);
    let state = match asked.has_row {
        0 => None,
        _ => Some(State::stored(asked.stored_token, stored_owner, expiry).ok_or(4)?),
    };
    let token = (asked.has_token != 0).then_some(asked.token);
    let who = Claimant { owner: owner.unwrap_or(""), token };
    let ttl_ms = asked.ttl_ms;
    let verb = match asked.verb {
        0 => Verb::Claim { owner: owner.ok_or(5)?, ttl_ms },
        1 => Verb::Renew { who, ttl_ms },
        2 => Verb::Release { who },
        3 => Verb::Transfer { who, new_owner: new_owner.ok_or(5)?, ttl_ms },
        4 => Verb::Break,
        5 => Verb::Inspect,
        6 => Verb::ClaimFromDead { owner: new_owner.ok_or(5)?, ttl_ms, dead: who },
        7 => Verb::RaiseName { floor: asked.token },
        _ => return Err(5),
    };
    let question = Question { verb, state, now_ms: asked.now_ms, floor: asked.floor };
    let (outcome, write) = decide(question).map_err(code_of)?;
    let (outcome, reason) = match outcome {
        Outcome::Done => (0, 0),
        Outcome::Busy => (1, 0),
        Outcome::Rejected(reason) => (2, number(reason)),
        Outcome::FloorTooLow => (3, 0),
    };
    let tenure = write.and_then(|state| state.tenure());
    Ok(CDecision {
        outcome,
        reason,
        writes: c_int::from(write.is_some()),
        has_owner: c_int::from(tenure.is_some()),
        token: write.map_or(0, |state| state.token()),
        expires_at_ms: tenure.map_or(0, |tenure| tenure.expires_at_ms),
    })
}

fn code_of(refusal: Refusal) -> c_int {
    match refusal {
        Refusal::InvalidTtl { .. } => 1,
        Refusal::TimeOverflow { .. } => 2,
        Refusal::TokenExhausted => 3,
        Refusal::InvalidTime { .. } => 4,
    }
}

fn number(reason: Reason) -> c_int {
    match reason {
        Reason::NeverClaimed => 0,
        Reason::HeldBy => 1,
        Reason::Superseded { .. } => 2,
        Reason::UnknownToken => 3,
        Reason::Released => 4,
        Reason::Expired => 5,
        Reason::NoProgress => 6,
        Reason::TimeIsUp => 7,
        Reason::Requested => 8,
        Reason::NotRequested => 9,
    }
}

/// # Safety
/// The pointer must be null or valid for the length.
unsafe fn text<'a>(given: Text) -> Option<&'a str> {
    if given.start.is_null() {
        return None;
    }
    // SAFETY: as promised.
    str::from_utf8(unsafe { slice::from_raw_parts(given.start, given.length) }).ok()
}

/// # Safety
/// `out` must be valid for `size` bytes.
unsafe fn give(text: Option<String>, out: *mut c_char, size: usize) -> usize {
    let Some(text) = text else { return 0 };
    if !out.is_null() {
        // SAFETY: as promised, and no more than `size` bytes are written.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), out.cast(), text.len().min(size)) };
    }
    text.len()
}
