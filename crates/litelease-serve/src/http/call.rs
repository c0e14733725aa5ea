//! Calls: how a typed request is read and handled.

use std::pin::Pin;
use std::sync::Arc;

use litelease::{Error, Grant, Identity, Litelease, Scope};
use litelease_wire::{self as wire, Call, Invalid, Key, Members, Request};
use serde::Serialize;

use super::App;
use crate::access::{Caller, Which};
use crate::answer::Answer;
use crate::committer::{Done, Operator, Served};
use crate::job::{Id, Job, JobError, Task, Wanted, Work, no_id};
use crate::response::{HttpError, Response};
use crate::timer::Timer;

pub(super) type Handled = Result<Response, HttpError>;

/// The handler of a call.
pub(super) trait Handle: Request {
    fn handle(self, context: Context<'_>) -> impl Future<Output = Handled> + Send;
}

/// The longest text of a request in the log, in characters.
const MOST_SHOWN: usize = 200;

/// The parts of a request that a log shows. None of them is a secret.
#[derive(Default)]
pub(super) struct Shown {
    pub(super) name: Option<String>,
    pub(super) reason: Option<String>,
}

fn shortened(text: &str) -> String {
    text.chars().take(MOST_SHOWN).collect()
}

/// The row of a call, and the function that reads its request.
pub(super) struct Handler {
    pub(super) call: &'static Call,
    pub(super) read: fn(Members) -> Result<Box<dyn Prepared>, Invalid>,
}

/// A request that was read.
pub(super) trait Prepared: Send + Sync {
    fn waits(&self) -> bool;

    /// Returns what a log shows of the request: the name that it is about, and a reason.
    fn shown(&self) -> Shown;

    fn handle<'a>(
        self: Box<Self>,
        context: Context<'a>,
    ) -> Pin<Box<dyn Future<Output = Handled> + Send + 'a>>;
}

impl<R: Handle> Prepared for R {
    fn waits(&self) -> bool {
        Request::waits(self)
    }

    fn shown(&self) -> Shown {
        let text = |fields: &[&str]| self.text(fields).map(shortened);
        Shown { name: text(&["name", "queue", "prefix"]), reason: text(&["reason"]) }
    }

    fn handle<'a>(
        self: Box<Self>,
        context: Context<'a>,
    ) -> Pin<Box<dyn Future<Output = Handled> + Send + 'a>> {
        Box::pin(Handle::handle(*self, context))
    }
}

fn read<R: Handle>(members: Members) -> Result<Box<dyn Prepared>, Invalid> {
    Ok(Box::new(R::read(members)?))
}

macro_rules! handlers {
    ($($request:ident),* $(,)?) => {
        /// All calls.
        pub(super) const HANDLERS: &[Handler] =
            &[$(Handler { call: &wire::$request::CALL, read: read::<wire::$request> }),*];
    };
}

wire::for_all_calls!(handlers);

/// The context of a call: the app, the client, and the row of the call.
pub(super) struct Context<'a> {
    pub(super) app: &'a Arc<App>,
    pub(super) call: &'static Call,
    /// The pool of the path, if it has one.
    pub(super) pool: Option<Id>,
    pub(super) caller: Caller,
    /// The idempotency key.
    pub(super) key: Option<String>,
    pub(super) timer: &'a mut Timer,
}

impl<'a> Context<'a> {
    /// Returns the pool of the path.
    pub(super) fn pool(&mut self) -> Id {
        self.pool.take().unwrap_or_else(no_id)
    }

    /// Returns the scope that the client needs.
    pub(super) fn scope(&self) -> Scope {
        self.call.scope()
    }

    /// Checks whether the client may make this call for these names.
    pub(super) async fn admit(&self, names: Which) -> Result<(), HttpError> {
        Ok(self.app.admit(self.caller, self.scope(), names).await?)
    }

    /// Runs work in the next commit.
    pub(super) async fn perform(&self, task: Task) -> Handled {
        let (caller, scope) = (self.caller, self.scope());
        self.ask(|reply| Job::Work(Box::new(Work { caller, scope, task, reply }))).await
    }

    /// Runs work on a grant in the next commit.
    pub(super) async fn on_grant(
        &self,
        secret: String,
        work: impl Fn(&Served<'_>, &Grant, i64) -> Done + Send + 'static,
    ) -> Handled {
        self.perform(Task::Grant(secret, Box::new(work))).await
    }

    /// Runs work on a name in the next commit.
    pub(super) async fn on_name(
        &self,
        name: String,
        work: impl Fn(&Served<'_>, &str, i64) -> Done + Send + 'static,
    ) -> Handled {
        self.perform(Task::Name(Id::Name(name.into()), Box::new(work))).await
    }

    /// Runs work on a pool or a queue in the next commit.
    pub(super) async fn on_id(
        &self,
        task: fn(Id, crate::job::OnId) -> Task,
        id: Id,
        work: impl FnOnce(&Served<'_>, &str, i64) -> Done + Send + 'static,
    ) -> Handled {
        self.perform(task(id, Box::new(work))).await
    }

    /// Returns the client as an operator, who has given this reason.
    pub(super) fn operator(&self, reason: Option<String>) -> Operator {
        Operator { caller: self.caller, reason }
    }

    /// Sends a job to the committer and returns its answer as a response.
    pub(super) async fn ask(&self, job: impl FnOnce(crate::job::Reply) -> Job) -> Handled {
        Ok(self.app.ask(job).await?.respond(&no_id(), &self.app.jobs))
    }

    /// Reads queues or pools beside the committer, and answers with what was read.
    pub(super) async fn answer_beside<T: Serialize + Send + 'static>(
        &self,
        read: impl FnOnce(&Litelease, i64) -> Result<T, Error> + Send + 'static,
    ) -> Handled {
        Ok(Response::json(200, &self.app.read_beside(read).await?))
    }

    /// Requests a slot, a name or an item, and returns the wait for it.
    pub(super) fn grant(
        self,
        id: &Id,
        wanted: Wanted,
        ttl: f64,
        wait: f64,
    ) -> Result<impl Future<Output = Result<Answer, JobError>> + Send + use<'a>, HttpError> {
        let ttl_ms = self.app.ttl_ms(ttl);
        let key = self.key.filter(|_| self.call.key != Key::Echoed);
        Ok(self.app.grant(id, wanted, ttl_ms, wait, key, self.timer)?)
    }
}

/// Refuses an owner text in the form that `hold` and `run` write: another holder would take the
/// lease over once the process in it has ended.
pub(super) fn not_of_process(field: &str, text: &str) -> Result<(), HttpError> {
    match Identity::parse(text).is_some_and(|who| who.is_holder()) {
        true => {
            let must = "another text: those of this form belong to hold and run";
            Err(HttpError::new(400, format!("{field} must be {must}")))
        }
        false => Ok(()),
    }
}

/// Returns the names that a request is about.
pub(super) fn which(name: Option<String>, prefix: Option<String>) -> Result<Which, HttpError> {
    match (name, prefix) {
        (Some(_), Some(_)) => Err(HttpError::new(400, "give a name or a prefix, and not both")),
        (Some(name), None) => Ok(Which::One(name.into())),
        (None, prefix) => Ok(Which::Under(prefix.unwrap_or_default().into())),
    }
}

/// How many entries a page has by default.
pub(super) const USUAL_PAGE: usize = 100;

pub(super) fn wrong_after() -> HttpError {
    HttpError::new(400, "after must be the field next of the page before")
}

/// Converts seconds to milliseconds, rounded up.
pub(super) fn milliseconds(seconds: f64) -> i64 {
    // A cast of a float saturates.
    (seconds * 1000.0).ceil() as i64
}
