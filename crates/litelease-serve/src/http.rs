//! Requests: routed and checked here, done by the committer.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use litelease::rusqlite::types::Value;
use litelease::{Litelease, Scope};
use litelease_store::{ItemPlace, ManyItems};
use tokio::sync::{Mutex, broadcast, oneshot, watch};

use crate::access::{Caller, Which};
use crate::answer::{HttpError, JSON, Response, TEXT, busy, no_item, respond};
use crate::body::{self, Fields, LONGEST};
use crate::calls::{Base, Call, CallKind, POOLS, V1, all, openapi};
use crate::committer::Changed;
use crate::events::{self, Target};
use crate::hosts;
use crate::job::{
    Answer, Claim, GrantJob, Id, Job, JobError, Jobs, ManyJob, Meant, NamedJob, NamedSlot, Page,
    QueueJob, QueueVerb, Reply, Verb, WaitState, Wanted, no_id,
};
use crate::metrics::Metrics;
use crate::options::Options;
use crate::page;
use crate::pending_grant::PendingGrant;
use crate::queues;
use crate::request::{Head, text};
use crate::secret::slot_key;
use crate::shares::{self, Pot, Thing};
use crate::timer::Timer;

/// The media type of a JWK set.
const JWK_SET: &str = "application/jwk-set+json";

/// How many leases a page has if the client does not say.
const USUAL_LEASES: usize = 100;

/// The state that all requests share.
pub(crate) struct App {
    pub(crate) jobs: Jobs,
    pub(crate) options: Options,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) changes: broadcast::Sender<Changed>,
    pub(crate) watched: events::Watched,
    pub(crate) stop: watch::Receiver<bool>,
    places: AtomicU64,
    /// The served file, if there is one.
    file: Option<PathBuf>,
    /// Held while queues are read.
    counting: Mutex<()>,
    /// Held while the public keys of credentials are read.
    reading_keys: Mutex<()>,
    /// What each client uses of the server.
    pub(crate) connections: Arc<Pot>,
    pub(crate) streams: Arc<Pot>,
    pub(crate) bytes: Arc<Pot>,
    /// The first half of every request id: the number of this process. The request's own follows.
    pub(crate) process: String,
    /// The OpenAPI document.
    description: Bytes,
}

/// A request that was routed: what to do for it, or why it is refused.
pub(crate) struct Request {
    started: Instant,
    route: Route,
    action: Result<Action, HttpError>,
}

/// The place that a request is sent to, whether or not it is refused there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Call(CallKind),
    Page,
    Healthz,
    Readyz,
    Metrics,
    OpenApi,
    PublicKeys,
    /// No such path or method, or the request was refused before it was routed.
    Other,
}

/// What to do for a request, with everything that the client has sent.
enum Action {
    Page(&'static page::File),
    Healthz,
    Readyz,
    Metrics(Caller),
    OpenApi,
    PublicKeys,
    Call {
        call: &'static Call,
        id: Id,
        key: Option<String>,
        fields: Box<Fields>,
    },
    /// A call on names, by a client that may or may not.
    Named {
        call: &'static Call,
        caller: Caller,
        key: Option<String>,
        fields: Box<Fields>,
    },
}

impl Route {
    /// Returns the name of the route in logs and metrics.
    const fn name(self) -> &'static str {
        match self {
            Route::Call(kind) => kind.name(),
            Route::Page => "page",
            Route::Healthz => "healthz",
            Route::Readyz => "readyz",
            Route::Metrics => "metrics",
            Route::OpenApi => "openapi",
            Route::PublicKeys => "public_keys",
            Route::Other => "other",
        }
    }

    /// Checks whether successes are logged at debug level only. These calls come by the thousand
    /// and are counted: a line for each would cost a third of what its answer does.
    const fn is_frequent(self) -> bool {
        match self {
            Route::Call(
                CallKind::Borrow
                | CallKind::Return
                | CallKind::Renew
                | CallKind::Claim
                | CallKind::RenewLease
                | CallKind::Release
                | CallKind::SlotBorrow
                | CallKind::SlotRenew
                | CallKind::SlotReturn
                | CallKind::Progress
                | CallKind::Send
                | CallKind::Receive
                | CallKind::Ack
                | CallKind::Extend,
            ) => true,
            Route::Call(
                CallKind::Register
                | CallKind::Look
                | CallKind::Delete
                | CallKind::Keep
                | CallKind::Events
                | CallKind::Transfer
                | CallKind::Break
                | CallKind::Leases
                | CallKind::LeaseEvents
                | CallKind::SlotBreak
                | CallKind::Slots
                | CallKind::Attach
                | CallKind::Limit
                | CallKind::Checkpoint
                | CallKind::LastCheckpoint
                | CallKind::Request
                | CallKind::HandOver
                | CallKind::GiveBack
                | CallKind::Bury
                | CallKind::Redrive
                | CallKind::Discard
                | CallKind::Cancel
                | CallKind::DeleteQueue
                | CallKind::Items
                | CallKind::Queues,
            ) => false,
            Route::Page
            | Route::Healthz
            | Route::Readyz
            | Route::Metrics
            | Route::OpenApi
            | Route::PublicKeys
            | Route::Other => false,
        }
    }
}

impl Request {
    /// Returns a request that is refused before it is routed.
    pub(crate) fn refuse(refused: HttpError) -> Self {
        Request { started: Instant::now(), route: Route::Other, action: Err(refused) }
    }

    /// Refuses a request after it was routed.
    pub(crate) fn refuse_for(&mut self, refused: HttpError) {
        self.action = Err(refused);
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.action.is_err()
    }

    /// Checks the body and adds it. A request that is refused already stays refused.
    pub(crate) fn add_body(&mut self, body: Result<Vec<u8>, HttpError>) {
        let added = match &mut self.action {
            Ok(Action::Call { call, fields, .. } | Action::Named { call, fields, .. })
                if !call.fields.is_empty() =>
            {
                body.and_then(|body| body::check(&body, call.fields))
                    .map(|checked| **fields = checked)
            }
            Ok(_) => body.map(|_| ()),
            Err(_) => Ok(()),
        };
        if let Err(refused) = added {
            self.action = Err(refused);
        }
    }

    /// Returns the client of a call that needs an access key, by the key that it has sent.
    pub(crate) fn caller(&self) -> Caller {
        match &self.action {
            Ok(Action::Named { caller, .. }) => *caller,
            _ => Caller::default(),
        }
    }

    /// Checks whether the request keeps its connection for long: it waits, or opens a stream.
    pub(crate) fn stays_long(&self) -> bool {
        let streams = |kind| matches!(kind, CallKind::Events | CallKind::LeaseEvents);
        self.waits()
            || matches!(
                &self.action,
                Ok(Action::Call { call, .. } | Action::Named { call, .. }) if streams(call.kind)
            )
    }

    /// Checks whether this is a borrow, a claim or a receive that waits.
    pub(crate) fn waits(&self) -> bool {
        matches!(
            &self.action,
            Ok(Action::Call { fields, .. } | Action::Named { fields, .. }) if fields.wait > 0.0
        )
    }
}

impl App {
    pub(crate) fn new(
        jobs: Jobs,
        options: Options,
        metrics: Arc<Metrics>,
        changes: broadcast::Sender<Changed>,
        stop: watch::Receiver<bool>,
        file: Option<PathBuf>,
    ) -> Self {
        let counting = Mutex::new(());
        let (places, process) = (AtomicU64::new(1), format!("{:08x}-", std::process::id()));
        let description = openapi(options.max_count).to_string().into();
        let watched = events::Watched::default();
        let pot = |thing| Pot::new(thing, &options);
        let (connections, streams) = (pot(Thing::Connections), pot(Thing::Streams));
        let (bytes, reading_keys) = (pot(Thing::Bytes), Mutex::new(()));
        App {
            jobs,
            options,
            metrics,
            changes,
            watched,
            stop,
            places,
            file,
            counting,
            reading_keys,
            connections,
            streams,
            bytes,
            process,
            description,
        }
    }

    /// Decides what to do for a request, by its head.
    pub(crate) fn route(&self, head: &Head<'_>) -> Request {
        match hosts::check(head, &self.options.hosts) {
            Ok(()) => route(head),
            Err(refused) => Request::refuse(refused),
        }
    }

    /// Does what a request asks for, and logs and counts it.
    pub(crate) async fn answer(self: &Arc<Self>, request: Request, timer: &mut Timer) -> Response {
        let done = match request.action {
            Ok(action) => self.perform(action, timer).await,
            Err(refused) => Err(refused),
        };
        let mut response = done.unwrap_or_else(Response::from);
        let (call, status) = (request.route.name(), response.status);
        self.metrics.answered(call, status);
        response.number = self.places.fetch_add(1, Ordering::Relaxed);
        let request_id = || self.request_id(&response);
        let ms = || u64::try_from(request.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        match status {
            200 if request.route.is_frequent() => {
                tracing::debug!(request_id = request_id(), call, status, ms = ms(), "request");
            }
            // A shutdown answers every waiter with 503.
            503 => tracing::debug!(request_id = request_id(), call, status, ms = ms(), "request"),
            _ => tracing::info!(request_id = request_id(), call, status, ms = ms(), "request"),
        }
        response
    }

    /// Returns the id of a request, which is in the log and in its answer.
    pub(crate) fn request_id(&self, response: &Response) -> String {
        format!("{}{}", self.process, response.number)
    }

    async fn perform(
        self: &Arc<Self>,
        action: Action,
        timer: &mut Timer,
    ) -> Result<Response, HttpError> {
        match action {
            Action::Page(file) => Ok(file.response()),
            Action::Healthz => Ok(Response::new(200, TEXT, "ok\n")),
            Action::Readyz => self.ready().await,
            Action::Metrics(caller) => {
                self.admit_to_metrics(caller).await?;
                let shares = shares::text(&self.options, &self.streams, &self.bytes);
                let text = self.metrics.text() + &shares;
                Ok(Response::new(200, "text/plain; version=0.0.4", text))
            }
            Action::OpenApi => Ok(Response::new(200, JSON, self.description.clone())),
            Action::PublicKeys => self.public_keys().await,
            Action::Call { call, id, key: None, fields } => {
                self.call(call, id, None, fields, timer).await
            }
            Action::Call { call, id, key, fields } => {
                let own_key = key.clone().filter(|_| call.has_key());
                let done = self.call(call, id, own_key, fields, timer).await;
                Ok(echoing(key, done))
            }
            Action::Named { call, caller, key, fields } => {
                // In a box, so that it takes no room in connections that borrow from pools.
                let done = Box::pin(self.call_on_names(call, caller, key.clone(), fields, timer));
                let done = done.await;
                Ok(echoing(key, done))
            }
        }
    }

    async fn call(
        self: &Arc<Self>,
        call: &'static Call,
        id: Id,
        key: Option<String>,
        fields: Box<Fields>,
        timer: &mut Timer,
    ) -> Result<Response, HttpError> {
        let answer = match call.kind {
            CallKind::Register => Ok(self.register(Caller::default(), &id, fields.count).await?),
            CallKind::Delete => self.ask(|reply| Job::Delete { id: id.clone(), reply }).await,
            CallKind::Borrow => self.borrow(&id, fields, key, timer).await,
            CallKind::Return => {
                let lease = fields.lease;
                self.ask(|reply| Job::Return { id: id.clone(), lease, reply }).await
            }
            CallKind::Renew => {
                let (lease, ttl_ms) = (fields.lease, self.ttl_ms(fields.ttl));
                self.ask(|reply| Job::Renew { id: id.clone(), lease, ttl_ms, reply }).await
            }
            CallKind::Keep => {
                let lease = fields.lease;
                self.ask(|reply| Job::Keep { id: id.clone(), lease, reply }).await
            }
            CallKind::Events => return events::stream(self, Target::Pool(id)).await,
            CallKind::Look => self.look(&id, false).await,
            CallKind::Claim
            | CallKind::RenewLease
            | CallKind::Release
            | CallKind::Transfer
            | CallKind::Break
            | CallKind::Leases
            | CallKind::LeaseEvents
            | CallKind::SlotBorrow
            | CallKind::SlotRenew
            | CallKind::SlotReturn
            | CallKind::SlotBreak
            | CallKind::Slots
            | CallKind::Attach
            | CallKind::Limit
            | CallKind::Progress
            | CallKind::Checkpoint
            | CallKind::LastCheckpoint
            | CallKind::Request
            | CallKind::HandOver
            | CallKind::Send
            | CallKind::Receive
            | CallKind::Ack
            | CallKind::Extend
            | CallKind::GiveBack
            | CallKind::Bury
            | CallKind::Redrive
            | CallKind::Discard
            | CallKind::Cancel
            | CallKind::DeleteQueue
            | CallKind::Items
            | CallKind::Queues => return Err(HttpError::nothing_there()),
        };
        Ok(respond(answer?, &id, &self.jobs))
    }

    async fn call_on_names(
        self: &Arc<Self>,
        call: &'static Call,
        caller: Caller,
        key: Option<String>,
        fields: Box<Fields>,
        timer: &mut Timer,
    ) -> Result<Response, HttpError> {
        if !self.options.open && !caller.has_key() {
            return Err(JobError::NoKey.into());
        }
        let ttl_ms = self.ttl_ms(fields.ttl);
        let (grant, name) = (fields.lease.clone(), fields.name.clone().unwrap_or_default());
        let verb = match call.kind {
            CallKind::Claim => return self.claim(caller, key, fields, timer).await,
            CallKind::RenewLease => Verb::Renew { grant, ttl_ms },
            CallKind::Release => Verb::Release { grant },
            CallKind::Transfer => Verb::Transfer { grant, new_owner: fields.owner, ttl_ms },
            CallKind::Break => Verb::Break { name },
            CallKind::Attach => Verb::Attach { grant, value: fields.value.unwrap_or(Value::Null) },
            CallKind::Limit => Verb::Limit {
                grant,
                progress_within_ms: fields.progress_within.map(milliseconds),
                max_time_ms: fields.max_time.map(milliseconds),
            },
            CallKind::Progress => Verb::Progress { grant },
            CallKind::Checkpoint => {
                Verb::Checkpoint { grant, value: fields.value.unwrap_or(Value::Null) }
            }
            CallKind::Request => {
                let within_ms = milliseconds(fields.ttl);
                Verb::Request { name, requester: fields.owner, within_ms }
            }
            CallKind::HandOver => Verb::HandOver { grant, ttl_ms },
            CallKind::LastCheckpoint => {
                let name = name.into();
                let job = |reply| Job::LastCheckpoint { caller, name, reply };
                return Ok(respond(self.ask(job).await?, &no_id(), &self.jobs));
            }
            CallKind::Receive => return self.receive(caller, key, fields, timer).await,
            CallKind::Send
            | CallKind::Ack
            | CallKind::Extend
            | CallKind::GiveBack
            | CallKind::Bury
            | CallKind::Redrive
            | CallKind::Discard
            | CallKind::Cancel
            | CallKind::DeleteQueue => return self.call_on_queue(call, caller, key, fields).await,
            CallKind::Items => return self.items(caller, fields).await,
            CallKind::Queues => return self.queues(caller, fields).await,
            CallKind::Slots => return self.slots(caller, fields).await,
            CallKind::SlotBreak => return self.break_slot(caller, &name, fields).await,
            CallKind::Leases => {
                let names = which(&fields)?;
                let limit = fields.limit.unwrap_or(USUAL_LEASES);
                let page = Page { names, after: fields.after, limit, all: fields.all };
                let caller = Some(caller);
                let read = self.ask(|reply| Job::Leases { caller, page, reply }).await?;
                return Ok(respond(read, &no_id(), &self.jobs));
            }
            CallKind::LeaseEvents => {
                let target = Target::Names(which(&fields)?, caller);
                return events::stream(self, target).await;
            }
            CallKind::SlotBorrow | CallKind::SlotRenew | CallKind::SlotReturn => {
                return self.call_on_named_pool(call, caller, key, fields, timer).await;
            }
            CallKind::Register
            | CallKind::Look
            | CallKind::Delete
            | CallKind::Borrow
            | CallKind::Return
            | CallKind::Renew
            | CallKind::Keep
            | CallKind::Events => return Err(HttpError::nothing_there()),
        };
        let answer = self.ask(|reply| Job::Named(NamedJob { caller, verb, reply })).await?;
        Ok(respond(answer, &no_id(), &self.jobs))
    }

    async fn register(&self, caller: Caller, id: &Id, count: i64) -> Result<Answer, HttpError> {
        let most = self.options.max_count;
        if count > most {
            return Err(HttpError::new(
                400,
                format!("count must be at most {most} (the server's --max-count)"),
            ));
        }
        Ok(self.ask(|reply| Job::Register { caller, id: id.clone(), count, reply }).await?)
    }

    /// Does a call on a pool that has a name. A client that may claim the name may use the pool.
    async fn call_on_named_pool(
        self: &Arc<Self>,
        call: &'static Call,
        caller: Caller,
        key: Option<String>,
        fields: Box<Fields>,
        timer: &mut Timer,
    ) -> Result<Response, HttpError> {
        let name = fields.name.as_deref().unwrap_or_default();
        self.admit(caller, Scope::Claim, Which::One(name.into())).await?;
        let id = Id::Pool(litelease::pool_of_name(name).into());
        if call.kind == CallKind::SlotBorrow {
            let count = fields.count;
            let has_count = match self.look(&id, false).await {
                Ok(Answer::Pool(info)) => info.count == count,
                Ok(_) | Err(JobError::NoSuchPool) => false,
                Err(error) => return Err(error.into()),
            };
            if !has_count {
                self.register(caller, &id, count).await?;
            }
        }
        let kind = match call.kind {
            CallKind::SlotRenew => CallKind::Renew,
            CallKind::SlotReturn => CallKind::Return,
            _ => {
                // All clients of the pool share its keys: without the caller in it, a client could
                // get the lease of another one that has sent the same key.
                let key = key.map(|key| slot_key(caller, name, &key));
                let (name, ttl_ms) = (name.into(), self.ttl_ms(fields.ttl));
                let slot = NamedSlot { caller, name, note: fields.note };
                let wanted = Wanted::NamedSlot(Box::new(slot));
                let lent = self.grant(&id, wanted, ttl_ms, fields.wait, key, timer).await?;
                return Ok(respond(lent, &id, &self.jobs));
            }
        };
        self.call(of_kind(kind)?, id, key, fields, timer).await
    }

    async fn break_slot(
        &self,
        caller: Caller,
        name: &str,
        fields: Box<Fields>,
    ) -> Result<Response, HttpError> {
        self.admit(caller, Scope::Operate, Which::One(name.into())).await?;
        let id = Id::Pool(litelease::pool_of_name(name).into());
        let (position, token) = (fields.count, fields.min_token);
        let job = |reply| Job::BreakSlot { id: id.clone(), position, token, reply };
        Ok(respond(self.ask(job).await?, &id, &self.jobs))
    }

    async fn claim(
        &self,
        caller: Caller,
        key: Option<String>,
        fields: Box<Fields>,
        timer: &mut Timer,
    ) -> Result<Response, HttpError> {
        let name: Arc<str> = fields.name.unwrap_or_default().into();
        let claim = Claim { caller, owner: fields.owner, min_token: fields.min_token };
        let (id, ttl_ms) = (Id::Name(name.clone()), self.ttl_ms(fields.ttl));
        let wanted = Wanted::Name(Box::new(claim));
        let answer = self.grant(&id, wanted, ttl_ms, fields.wait, key, timer).await?;
        if !matches!(answer, Answer::Nothing) {
            return Ok(respond(answer, &id, &self.jobs));
        }
        // The time is up. A client that may claim the name may see who has it.
        self.admit(caller, Scope::Claim, Which::One(name.clone())).await?;
        let page = Page { names: Which::One(name), after: None, limit: 1, all: false };
        match self.ask(|reply| Job::Leases { caller: None, page, reply }).await? {
            Answer::Name { current: Some(current), .. } => {
                Ok(busy("the name did not come free in time: ask again", &current))
            }
            _ => Err(HttpError::new(409, "the name did not come free in time: ask again")),
        }
    }

    async fn receive(
        &self,
        caller: Caller,
        key: Option<String>,
        fields: Box<Fields>,
        timer: &mut Timer,
    ) -> Result<Response, HttpError> {
        let id = Id::Queue(fields.name.unwrap_or_default().into());
        let (visibility_ms, wanted) = (self.ttl_ms(fields.ttl), Wanted::Item(Box::new(caller)));
        match self.grant(&id, wanted, visibility_ms, fields.wait, key, timer).await? {
            Answer::Nothing => Ok(no_item()),
            answer => Ok(respond(answer, &id, &self.jobs)),
        }
    }

    async fn call_on_queue(
        &self,
        call: &Call,
        caller: Caller,
        key: Option<String>,
        fields: Box<Fields>,
    ) -> Result<Response, HttpError> {
        let queue: Option<Arc<str>> = fields.name.map(Arc::from);
        let (receipt, note) = (fields.lease, fields.note);
        let (visibility_ms, delay_ms) = (self.ttl_ms(fields.ttl), milliseconds(fields.delay));
        let verb = match call.kind {
            CallKind::Send => {
                let body = fields.value.unwrap_or(Value::Null);
                QueueVerb::Send { body, delay_ms, key: fields.item_key }
            }
            CallKind::Ack => QueueVerb::Ack { receipt },
            CallKind::Extend => QueueVerb::Extend { receipt, visibility_ms },
            CallKind::GiveBack => QueueVerb::GiveBack { receipt, delay_ms, note },
            CallKind::Redrive => match fields.item {
                Some(id) => QueueVerb::Redrive { id },
                None => return self.change_many(caller, queue, ManyItems::Redrive, key).await,
            },
            CallKind::Discard => match fields.item {
                Some(id) => QueueVerb::Discard { id },
                None => return self.change_many(caller, queue, ManyItems::Discard, key).await,
            },
            CallKind::DeleteQueue => {
                return self.change_many(caller, queue, ManyItems::Delete, key).await;
            }
            CallKind::Cancel => match (fields.item, fields.item_key) {
                (Some(id), None) => QueueVerb::Cancel(Meant::Id(id)),
                (None, Some(key)) => QueueVerb::Cancel(Meant::Key(key)),
                _ => {
                    return Err(HttpError::new(
                        400,
                        "give the id or the key of an item, and not both",
                    ));
                }
            },
            _ => QueueVerb::Bury { receipt, note },
        };
        let job = |reply| Job::Queued(QueueJob { caller, queue, verb, key, reply });
        Ok(respond(self.ask(job).await?, &no_id(), &self.jobs))
    }

    async fn change_many(
        &self,
        caller: Caller,
        queue: Option<Arc<str>>,
        change: ManyItems,
        key: Option<String>,
    ) -> Result<Response, HttpError> {
        let (queue, after, count) = (queue.unwrap_or_default(), None, 0);
        let job = |reply| Job::Many(ManyJob { caller, queue, change, after, count, key, reply });
        Ok(respond(self.ask(job).await?, &no_id(), &self.jobs))
    }

    /// Counts the items of queues. That looks at every item.
    async fn queues(&self, caller: Caller, fields: Box<Fields>) -> Result<Response, HttpError> {
        let names = which(&fields)?;
        self.admit(caller, Scope::Observe, names.clone()).await?;
        let (after, limit) = (fields.after, fields.limit.unwrap_or(USUAL_LEASES));
        let count = move |db: &Litelease, now_ms| {
            queues::count(db, &names, after.as_deref(), limit, now_ms)
        };
        self.look_beside(Box::new(count)).await
    }

    /// Lists items of a queue.
    async fn items(&self, caller: Caller, fields: Box<Fields>) -> Result<Response, HttpError> {
        let queue: Arc<str> = fields.name.unwrap_or_default().into();
        let after = fields.after.map(|after| ItemPlace::parse(&after).ok_or_else(wrong_after));
        let (after, limit) = (after.transpose()?, fields.limit.unwrap_or(USUAL_LEASES));
        self.admit(caller, Scope::Observe, Which::One(queue.clone())).await?;
        let list = move |db: &Litelease, now_ms| queues::list(db, &queue, after, limit, now_ms);
        self.look_beside(Box::new(list)).await
    }

    /// Lists the held slots of the pool of a name, or the pools of which slots are held.
    async fn slots(&self, caller: Caller, fields: Box<Fields>) -> Result<Response, HttpError> {
        let names = which(&fields)?;
        self.admit(caller, Scope::Observe, names.clone()).await?;
        let (after, limit) = (fields.after, fields.limit.unwrap_or(USUAL_LEASES));
        let look: queues::Look = match names {
            Which::Under(prefix) => Box::new(move |db, now_ms| {
                queues::pools(db, &prefix, after.as_deref(), limit, now_ms)
            }),
            Which::One(name) => {
                let from = after.map(|after| after.parse::<u32>().map_err(|_| wrong_after()));
                let from = from.transpose()?.map_or(0, |after| i64::from(after) + 1);
                Box::new(move |db, now_ms| queues::slots(db, &name, from, limit, now_ms))
            }
        };
        self.look_beside(look).await
    }

    /// Looks at the queues or pools of a file beside the committer, for one request at a time: it
    /// may take long. Where there is no file, the committer looks.
    async fn look_beside(&self, look: queues::Look) -> Result<Response, HttpError> {
        let Some(file) = self.file.clone() else {
            let seen = self.ask(|reply| Job::Queues { look, reply }).await?;
            return Ok(respond(seen, &no_id(), &self.jobs));
        };
        let _turn = self.counting.lock().await;
        let now_ms = (self.options.clock)();
        match tokio::task::spawn_blocking(move || queues::look_in(&file, look, now_ms)).await {
            Ok(Ok(page)) => Ok(Response::json(200, &page)),
            Ok(Err(error)) => {
                tracing::error!(kind = error.kind(), "queues or pools cannot be read");
                Err(JobError::Database.into())
            }
            Err(_) => Err(JobError::Database.into()),
        }
    }

    /// Returns how long the body of a request may be, if it is long. Only a client with a valid
    /// access key may send a long one: it takes memory.
    pub(crate) async fn longest_body(&self, request: &Request) -> Result<usize, HttpError> {
        let (caller, longest) = match &request.action {
            Ok(Action::Named { call, caller, .. }) => (*caller, call.longest_body()),
            _ => return Ok(LONGEST),
        };
        if longest > LONGEST && !self.options.open {
            self.ask(|reply| Job::AdmitKey { caller, reply }).await?;
        }
        Ok(longest)
    }

    async fn borrow(
        &self,
        id: &Id,
        fields: Box<Fields>,
        key: Option<String>,
        timer: &mut Timer,
    ) -> Result<Answer, JobError> {
        let (ttl_ms, wanted) = (self.ttl_ms(fields.ttl), Wanted::Slot { note: fields.note });
        self.grant(id, wanted, ttl_ms, fields.wait, key, timer).await
    }

    /// Asks for a slot or a name. The answer is `Nothing` if the time to wait is over.
    async fn grant(
        &self,
        id: &Id,
        wanted: Wanted,
        ttl_ms: i64,
        wait: f64,
        key: Option<String>,
        timer: &mut Timer,
    ) -> Result<Answer, JobError> {
        let wait = Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX);
        let wait = Some(wait.min(self.options.max_wait)).filter(|wait| !wait.is_zero());
        let place = self.places.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        let pending_grant = PendingGrant::new(answer, self.jobs.clone(), id.clone(), place);
        let (id, state) = (id.clone(), wait.map(|_| WaitState::default()));
        let job =
            GrantJob { id, wanted, ttl_ms, key, wait: state.clone(), place, share: None, reply };
        self.jobs.send(Job::Grant(job)).map_err(|_| JobError::Stopping)?;
        let wait = wait.zip(state.as_ref()).map(|(wait, state)| (wait, state, timer));
        pending_grant.wait(wait).await
    }

    /// Checks whether a client may see the metrics.
    async fn admit_to_metrics(&self, caller: Caller) -> Result<(), JobError> {
        if self.options.open || self.options.open_metrics {
            return Ok(());
        }
        self.admit(caller, Scope::Observe, Which::Under("".into())).await
    }

    /// Checks whether a client may do something.
    pub(crate) async fn admit(
        &self,
        caller: Caller,
        scope: Scope,
        names: Which,
    ) -> Result<(), JobError> {
        self.ask(|reply| Job::Admit { caller, scope, names, reply }).await.map(drop)
    }

    /// Returns the public keys of credentials, as they are now.
    async fn public_keys(&self) -> Result<Response, HttpError> {
        let Some(issuer) = self.options.credentials.clone() else {
            return Err(HttpError::nothing_there());
        };
        // For one request at a time, because each reading takes a thread.
        let _turn = self.reading_keys.lock().await;
        let read = tokio::task::spawn_blocking(move || issuer.keys()).await;
        match read
            .map_err(|error| error.to_string())
            .and_then(|keys| keys.map_err(|e| e.to_string()))
        {
            Ok(keys) => Ok(Response::new(200, JWK_SET, keys.to_json())),
            Err(error) => {
                tracing::error!(error, "cannot read the keys of credentials");
                Err(HttpError::new(503, "the keys of credentials cannot be read: the log says why"))
            }
        }
    }

    async fn ready(&self) -> Result<Response, HttpError> {
        let asked = self.ask(|reply| Job::Ready { reply });
        match tokio::time::timeout(Duration::from_secs(2), asked).await {
            _ if self.is_stopping() => Err(JobError::Stopping.into()),
            Ok(answer) => Ok(respond(answer?, &no_id(), &self.jobs)),
            Err(_) => Err(HttpError::new(
                503,
                "the database does not answer: another program may keep it locked",
            )),
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits until the server stops.
    pub(crate) async fn stopped(&self) {
        let mut stop = self.stop.clone();
        // A sender that is gone means a stop as well.
        let _ = stop.wait_for(|stops| *stops).await;
    }

    /// Sends a job to the committer and waits for its answer.
    pub(crate) async fn ask(&self, job: impl FnOnce(Reply) -> Job) -> Result<Answer, JobError> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(job(reply)).map_err(|_| JobError::Stopping)?;
        answer.await.unwrap_or(Err(JobError::Stopping))
    }

    pub(crate) async fn look(&self, id: &Id, with_slots: bool) -> Result<Answer, JobError> {
        self.ask(|reply| Job::Look { id: id.clone(), with_slots, reply }).await
    }

    /// Converts a ttl to milliseconds, rounded up and cut to the limit.
    fn ttl_ms(&self, seconds: f64) -> i64 {
        let most = i64::try_from(self.options.max_ttl.as_millis()).unwrap_or(i64::MAX);
        milliseconds(seconds).clamp(1, most)
    }
}

/// Converts seconds to milliseconds, rounded up.
fn milliseconds(seconds: f64) -> i64 {
    // A cast of a float saturates.
    (seconds * 1000.0).ceil() as i64
}

/// Finds the route of a request.
fn route(head: &Head<'_>) -> Request {
    let started = Instant::now();
    // HEAD is GET without a body.
    let method = if head.method == "HEAD" { "GET" } else { head.method };
    let found = match (head.path.strip_prefix(POOLS), head.path.strip_prefix(V1)) {
        (Some(pool), _) => on_pool(pool, method, head),
        (_, Some(under)) => on_names(under, method, head),
        _ => beside_pools(head, method),
    };
    let (route, action) = found.unwrap_or_else(|refused| (Route::Other, Err(refused)));
    Request { started, route, action }
}

/// The route of a request, and what to do or why it is refused. `Err` if there is no such route.
type Found = Result<(Route, Result<Action, HttpError>), HttpError>;

fn on_pool(pool: &str, method: &str, head: &Head<'_>) -> Found {
    let (id, under) = pool.split_at(pool.find('/').unwrap_or(pool.len()));
    let call = find(Base::Pool, under, method)?;
    Ok((Route::Call(call.kind), called(call, id, head)))
}

fn on_names(under: &str, method: &str, head: &Head<'_>) -> Found {
    let call = find(Base::V1, under, method)?;
    Ok((Route::Call(call.kind), called_on_names(call, head)))
}

/// Finds a call by what it does.
fn of_kind(kind: CallKind) -> Result<&'static Call, HttpError> {
    all().find(|call| call.kind == kind).ok_or_else(HttpError::nothing_there)
}

/// Returns a response with the key of its request, so that the client can tell it from the response
/// to another one.
fn echoing(key: Option<String>, done: Result<Response, HttpError>) -> Response {
    let response = done.unwrap_or_else(Response::from);
    key.into_iter().fold(response, |response, key| response.with("idempotency-key", key))
}

/// Finds a call by its path and method.
fn find(base: Base, under: &str, method: &str) -> Result<&'static Call, HttpError> {
    let there = || all().filter(|call| call.base == base && call.under == under);
    if let Some(call) = there().find(|call| call.method.eq_ignore_ascii_case(method)) {
        return Ok(call);
    }
    let methods: Vec<String> = there().map(|call| call.method.to_uppercase()).collect();
    Err(match methods.is_empty() {
        true => HttpError::nothing_there(),
        false => HttpError::method(&methods.join(", ")),
    })
}

fn beside_pools(head: &Head<'_>, method: &str) -> Found {
    let page = || page::FILES.iter().find(|file| file.path == head.path);
    let (route, action) = match head.path {
        "/healthz" => (Route::Healthz, Action::Healthz),
        "/readyz" => (Route::Readyz, Action::Readyz),
        "/metrics" => (Route::Metrics, Action::Metrics(Caller::of(head))),
        "/openapi.json" => (Route::OpenApi, Action::OpenApi),
        "/.well-known/jwks.json" => (Route::PublicKeys, Action::PublicKeys),
        _ => (Route::Page, Action::Page(page().ok_or_else(HttpError::nothing_there)?)),
    };
    match method {
        "GET" => Ok((route, Ok(action))),
        _ => Err(HttpError::method("GET")),
    }
}

fn called(call: &'static Call, id: &str, head: &Head<'_>) -> Result<Action, HttpError> {
    let id = pool_id(id)?;
    check_json(call, head)?;
    let key = key(head)?;
    Ok(Action::Call { call, id, key, fields: Box::default() })
}

fn called_on_names(call: &'static Call, head: &Head<'_>) -> Result<Action, HttpError> {
    check_json(call, head)?;
    let key = key(head)?;
    let fields = Box::new(body::check_query(head.query, call.query)?);
    Ok(Action::Named { call, caller: Caller::of(head), key, fields })
}

/// Checks the type of the body, if the call has one.
fn check_json(call: &Call, head: &Head<'_>) -> Result<(), HttpError> {
    if call.fields.is_empty() || is_json(head) || (is_usual(head) && !is_from_browser(head)) {
        return Ok(());
    }
    Err(HttpError::new(415, "the body must be JSON: send Content-Type: application/json"))
}

fn wrong_after() -> HttpError {
    HttpError::new(400, "after must be the field next of the page before")
}

/// Returns the names that a request asks for.
fn which(fields: &Fields) -> Result<Which, HttpError> {
    match (&fields.name, &fields.prefix) {
        (Some(_), Some(_)) => Err(HttpError::new(400, "give a name or a prefix, and not both")),
        (Some(name), None) => Ok(Which::One(name.as_str().into())),
        (None, prefix) => Ok(Which::Under(prefix.as_deref().unwrap_or_default().into())),
    }
}

/// Parses the id of a pool: a UUID with hyphens, in either case.
fn pool_id(text: &str) -> Result<Id, HttpError> {
    match uuid::Uuid::try_parse(text) {
        Ok(id) if text.len() == 36 => {
            let mut buffer = uuid::Uuid::encode_buffer();
            Ok(Id::Pool((&*id.as_hyphenated().encode_lower(&mut buffer)).into()))
        }
        _ => Err(HttpError::new(
            400,
            "the id of a pool must be a UUID, such as 4f2c8a52-7a4e-4c6b-9d1e-2f6a3b5c7d90",
        )),
    }
}

fn is_json(head: &Head<'_>) -> bool {
    content_type(head).is_some_and(|kind| kind.eq_ignore_ascii_case(b"application/json"))
}

/// Checks whether the content type is one that programs send if they are told none: no type at
/// all, the one of curl and Python's urllib, or the one of `fetch` in Node.
fn is_usual(head: &Head<'_>) -> bool {
    let is = |kind: &[u8], usual: &[u8]| kind.eq_ignore_ascii_case(usual);
    content_type(head).is_some_and(|kind| {
        kind.is_empty() || is(kind, b"application/x-www-form-urlencoded") || is(kind, b"text/plain")
    })
}

/// Returns the content type without its parameters, empty if there is none. `None` if there are
/// several.
fn content_type<'a>(head: &Head<'a>) -> Option<&'a [u8]> {
    let kind = head.one("content-type").ok()?.unwrap_or_default();
    kind.split(|byte| *byte == b';').next().map(<[u8]>::trim_ascii)
}

/// Checks whether a browser says where the request comes from. A page of another site can make a
/// browser send any of the usual types without asking this server first, but not JSON.
fn is_from_browser(head: &Head<'_>) -> bool {
    head.all("origin").next().is_some() || head.all("sec-fetch-site").next().is_some()
}

fn key(head: &Head<'_>) -> Result<Option<String>, HttpError> {
    match head.one("idempotency-key").map(|key| key.map(text)) {
        Ok(None) => Ok(None),
        Ok(Some(Some(key))) if (1..=200).contains(&key.len()) => Ok(Some(key.to_owned())),
        _ => Err(HttpError::new(
            400,
            "Idempotency-Key must be one text of 1 to 200 visible characters",
        )),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::answer::Body;
    use crate::job::{Receiver, channel};

    /// Returns the shared state without a committer, and the jobs that are sent to it.
    pub(crate) fn app(options: Options) -> (Arc<App>, Receiver<Job>) {
        let (jobs, todo) = channel();
        let (changes, stop) = (broadcast::channel(1).0, watch::channel(false).1);
        (Arc::new(App::new(jobs, options, Arc::default(), changes, stop, None)), todo)
    }

    #[test]
    fn the_description_is_made_once() {
        play(|| async {
            let (app, _todo) = app(Options::default());
            let mut places = Vec::new();
            for _ in 0..2 {
                let described = app
                    .perform(Action::OpenApi, &mut Timer::default())
                    .await
                    .map(|response| response.body);
                let Ok(Body::Whole { text, .. }) = described else { continue };
                assert!(text.starts_with(b"{"));
                places.push(text.as_ptr());
            }
            assert!(matches!(places[..], [first, second] if first == second), "{places:?}");
        });
    }

    /// Runs `work` where jobs can be sent.
    pub(crate) fn play<F: Future<Output = ()>>(work: impl Fn() -> F + Send + Sync + 'static) {
        let mut config = shuttle::Config::new();
        config.stack_size = 1024 * 1024;
        let runner = shuttle::Runner::new(shuttle::scheduler::RandomScheduler::new(1), config);
        runner.run(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(work());
        });
    }
}
