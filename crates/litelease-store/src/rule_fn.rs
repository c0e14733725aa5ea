//! The rule as a private SQL function, so that one statement loads, decides and saves.
//!
//! `litelease_rule(?2, owner, token, expiry)` in a WHERE clause asks what to do with the row at
//! hand, while the statement already holds the write lock. `?2` is a pointer to where the call is,
//! which only this crate can bind: every other caller of the function gets an error.
//! `litelease_rule(n)` in the same statement hands over the parts of the state to store. It finds
//! the call through the data of the function, which is cheaper.

use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use litelease_core::{State, Step};

use crate::callbacks::Library;
use crate::sqlite::{Api, CallSlot, Run, Statement, Value, sqlite3_context, sqlite3_value};
use crate::statements::stored_state;
use crate::{Error, Failure};

/// The columns of the row that the rule decides about, and its other inputs.
pub(crate) struct Columns<'a> {
    /// The state that owner, token and expiry make; `None` where they make none.
    pub(crate) state: Option<State<'a>>,
    /// The file's token floor, if the statement reads it and finds an epoch of this boot.
    pub(crate) floor: Option<i64>,
    /// The statement was compiled since the schema was last found right.
    pub(crate) is_unverified: bool,
}

/// The answer to asking the rule about a row. Only a decision is stored.
pub(crate) enum RuleAnswer<'q, T> {
    /// The rule decided at this time, and whether what it stores begins a grant.
    Decided { step: Step<'q, T>, now_ms: i64, begins_grant: bool },
    /// The file's epoch does not cover the token that the rule wants to store.
    EpochNeeded { token: i64 },
    /// The statement was compiled since the schema was last checked, so the rule was not called.
    Unverified,
}

/// A run of a statement that asks the rule.
pub(crate) struct Ran<'q, T> {
    /// The answer; `None` if the statement has reached no row.
    pub(crate) asked: Result<Option<RuleAnswer<'q, T>>, Error>,
    /// How the statement ended.
    pub(crate) ended: Result<(), Failure>,
}

/// The state to store, and when.
#[derive(Clone, Copy)]
struct Write<'q> {
    state: State<'q>,
    now_ms: i64,
    begins_grant: bool,
}

/// One run of a statement that asks the rule.
struct RuleCall<'c, 'q> {
    statement: &'c Statement,
    ask: &'c mut dyn FnMut(Columns<'_>) -> Option<Write<'q>>,
    write: Option<Write<'q>>,
    /// Where the parts of the answer find this call, and the call before.
    answering: Option<(*const CallSlot, *mut c_void)>,
}

impl Drop for RuleCall<'_, '_> {
    fn drop(&mut self) {
        if let Some((answering, before)) = self.answering {
            // SAFETY: it is the data of the function that was called for this run. SQLite keeps it
            // as long as the connection is open: no function is replaced while a statement runs.
            unsafe { &*answering }.set(before);
        }
    }
}

/// The kind of pointer that `?2` is. SQLite compares it with itself on every call, which is quick
/// unless it happens to lie across the border of a memory page: hence the alignment.
static KIND: Kind = Kind(*b"litelease rule!\0");

#[repr(align(16))]
struct Kind([u8; 16]);

pub(crate) const RULE_CALL: &CStr = match CStr::from_bytes_with_nul(&KIND.0) {
    Ok(kind) => kind,
    Err(_) => c"",
};

impl Statement {
    /// Runs a statement about `name` that calls the rule, which decides whether and what to write.
    pub(crate) fn run_rule<'q, T>(
        &mut self,
        name: &str,
        mut ask: impl FnMut(Columns<'_>) -> Result<RuleAnswer<'q, T>, Error>,
    ) -> Ran<'q, T> {
        let mut asked = Ok(None);
        let ended = self.run_call(name, &mut |columns| {
            asked = ask(columns).map(Some);
            match &asked {
                Ok(Some(RuleAnswer::Decided { step, now_ms, begins_grant })) => {
                    let (now_ms, begins_grant) = (*now_ms, *begins_grant);
                    step.write.map(|state| Write { state, now_ms, begins_grant })
                }
                _ => None,
            }
        });
        Ran { asked, ended }
    }

    fn run_call<'q>(
        &mut self,
        name: &str,
        ask: &mut dyn FnMut(Columns<'_>) -> Option<Write<'q>>,
    ) -> Result<(), Failure> {
        let mut call = RuleCall { statement: self, ask, write: None, answering: None };
        let mut run = Run::start(self, &[Value::Text(name)])?;
        if let Some(call_slot) = &self.call_slot {
            // The run, which ends before the call does, empties it.
            call_slot.set((&raw mut call).cast());
        }
        while run.step()? {}
        Ok(())
    }
}

/// The private function, for the connections of one library.
///
/// # Safety
/// Only SQLite may call it, as a function that was registered with the library's own
/// `create_function_v2`.
pub(crate) unsafe extern "C" fn rule_fn<L: Library>(
    context: *mut sqlite3_context,
    count: c_int,
    values: *mut *mut sqlite3_value,
) {
    let api = L::api();
    let values = match usize::try_from(count) {
        // SAFETY: SQLite hands over `count` values that live for the duration of the call.
        Ok(count) if count > 0 => unsafe { slice::from_raw_parts(values, count) },
        _ => &[],
    };
    // A panic must not unwind into SQLite. There is none to expect; if there is one, nothing is
    // written.
    let answered = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: as above.
        unsafe { answer(api, context, values) }
    }));
    if !matches!(answered, Ok(true)) {
        // SAFETY: the context is SQLite's own, and it copies the message.
        unsafe {
            (api.result_error)(context, c"litelease_rule is private to Litelease".as_ptr(), -1)
        };
    }
}

/// Answers a call, unless it is not one of ours.
///
/// # Safety
/// Context and values must be those of a call by the library of `api`.
unsafe fn answer(api: &Api, context: *mut sqlite3_context, values: &[*mut sqlite3_value]) -> bool {
    // SAFETY: the function is registered with such data, which lives as long as the connection.
    let answering = unsafe { &*(api.user_data)(context).cast::<CallSlot>() };
    match values {
        [part] => {
            // SAFETY: a call is set only after the rule was asked about a row and before it is
            // dropped.
            let Some(call) = (unsafe { answering.get().cast::<RuleCall<'_, '_>>().as_ref() })
            else {
                return false;
            };
            let Some(Write { state, now_ms, begins_grant }) = &call.write else { return false };
            let tenure = state.tenure();
            // SAFETY: the value lives for the duration of the call.
            let part = match unsafe { (api.value_int64)(*part) } {
                0 => tenure.map(|tenure| Value::Text(tenure.owner)),
                1 => Some(Value::Integer(state.token())),
                2 => tenure.map(|tenure| Value::Integer(tenure.expires_at_ms)),
                4 => begins_grant.then_some(Value::Integer(*now_ms)),
                _ => Some(Value::Integer(*now_ms)),
            };
            // SAFETY: the text belongs to the request, which outlives the run.
            unsafe { api.result(context, part.unwrap_or(Value::Null)) };
            true
        }
        // SAFETY: as promised.
        [call, columns @ ..] => unsafe { ask(api, context, *call, columns, answering) },
        [] => false,
    }
}

/// Asks the rule about the row at hand.
///
/// # Safety
/// As for `answer`; the last argument must be the data of the function.
unsafe fn ask(
    api: &Api,
    context: *mut sqlite3_context,
    call: *mut sqlite3_value,
    columns: &[*mut sqlite3_value],
    answering: &CallSlot,
) -> bool {
    // SAFETY: the value is SQLite's; it gives back only a pointer that was bound under this name.
    let call_slot = unsafe { (api.value_pointer)(call, RULE_CALL.as_ptr()) }.cast::<CallSlot>();
    // SAFETY: a pointer of this kind is that to the call_slot of the statement which makes this
    // call.
    let Some(call_slot) = (unsafe { call_slot.as_ref() }) else { return false };
    let here = call_slot.get();
    // SAFETY: the call_slot is filled only by `Statement::run_rule`, which is waiting for the step
    // that this call belongs to and keeps the call alive and untouched meanwhile.
    let Some(call) = (unsafe { here.cast::<RuleCall<'_, '_>>().as_mut() }) else {
        return false;
    };
    // SAFETY: the values live for the duration of the call.
    let value = |at: usize| columns.get(at).and_then(|value| unsafe { api.value(*value) });
    let is_unverified = call.statement.is_unverified();
    let state = stored_state([value(0), value(1), value(2)]);
    let floor = value(3).and_then(Value::integer);
    call.write = (call.ask)(Columns { state, floor, is_unverified });
    if call.answering.is_none() {
        call.answering = Some((answering, answering.get()));
    }
    let is_write = Value::Integer(i64::from(call.write.is_some()));
    answering.set(here);
    // SAFETY: the context is SQLite's own.
    unsafe { api.result(context, is_write) };
    true
}
