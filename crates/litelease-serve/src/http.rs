//! Requests: routed and checked here, carried out by the committer. The folder has a file per
//! resource, with the handlers of its calls.

mod call;
mod grants;
mod history;
mod leases;
mod overview;
mod pools;
mod queues;
mod slots;
mod ticks;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use litelease::{Error, Litelease, Scope};
use litelease_wire::{LONGEST, Members, POOLS, openapi};
use tokio::sync::{Mutex, broadcast, oneshot, watch};

use self::call::{Context, HANDLERS, Handler, Prepared, Shown, milliseconds};
use crate::access::{Caller, Which};
use crate::answer::Answer;
use crate::committer::{Changed, Reader};
use crate::events;
use crate::hosts;
use crate::job::{GrantJob, Id, Job, JobError, Jobs, Reply, WaitState, Wanted};
use crate::listings;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::overview::{Holders, Processes};
use crate::page;
use crate::pending_grant::PendingGrant;
use crate::request::{Head, text};
use crate::response::{HttpError, JSON, Response, TEXT};
use crate::shares::{self, Pot, Thing};
use crate::timer::Timer;

/// The media type of a JWK set.
const JWK_SET: &str = "application/jwk-set+json";

/// The state that all requests share.
pub(crate) struct App {
    pub(crate) jobs: Jobs,
    pub(crate) options: Options,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) changes: broadcast::Sender<Changed>,
    pub(crate) watched: events::Watched,
    pub(crate) stop: watch::Receiver<bool>,
    /// The number of the next request.
    sequence: AtomicU64,
    /// The served file, if there is one.
    file: Option<PathBuf>,
    /// The processes of holders, as their clients have told them.
    pub(crate) holders: Holders,
    /// The processes of holders on this host.
    processes: std::sync::Mutex<Processes>,
    /// Held while queues are read.
    counting: Mutex<()>,
    /// Held while the public keys of credentials are read.
    reading_keys: Mutex<()>,
    /// The connections of each client, then its streams and the bytes that it has sent.
    pub(crate) connections: Arc<Pot>,
    pub(crate) streams: Arc<Pot>,
    pub(crate) bytes: Arc<Pot>,
    /// The first half of every request id: the number of this process. The request's own follows.
    pub(crate) process: String,
    /// The OpenAPI document.
    description: Bytes,
}

/// A request that was routed, with its action, or the reason why it is refused.
pub(crate) struct Routed {
    started: Instant,
    route: Route,
    action: Result<Action, HttpError>,
}

/// The handler of a request, whether or not that refuses it.
#[derive(Clone, Copy)]
enum Route {
    Call(&'static Handler),
    Page,
    Healthz,
    Readyz,
    Metrics,
    OpenApi,
    PublicKeys,
    /// No such path or method, or the request was refused before it was routed.
    Other,
}

/// The work of a request, with all that the client has sent.
enum Action {
    Page(&'static page::File),
    Healthz,
    Readyz,
    Metrics(Caller),
    OpenApi,
    PublicKeys,
    Call(Box<CallAction>),
}

/// A call, and what its client has sent.
struct CallAction {
    handler: &'static Handler,
    /// The pool of its path, if it is a call on a pool.
    pool: Option<Id>,
    caller: Caller,
    key: Option<String>,
    /// The typed request. `None` until its body is read.
    request: Option<Box<dyn Prepared>>,
}

impl Route {
    /// Returns the name of the route in logs and metrics.
    const fn name(self) -> &'static str {
        match self {
            Route::Call(handler) => handler.call.name,
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
    /// and are counted, and a line for each would cost a third as much as its answer.
    const fn is_frequent(self) -> bool {
        matches!(self, Route::Call(Handler { call, .. }) if call.is_frequent)
    }
}

impl Routed {
    /// Returns a request that is refused before it is routed.
    pub(crate) fn refuse(refused: HttpError) -> Self {
        Routed { started: Instant::now(), route: Route::Other, action: Err(refused) }
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
            Ok(Action::Call(action)) if action.handler.call.has_body() => body.and_then(|body| {
                action.request = Some((action.handler.read)(Members::of_body(&body)?)?);
                Ok(())
            }),
            Ok(_) => body.map(drop),
            Err(_) => Ok(()),
        };
        if let Err(refused) = added {
            self.action = Err(refused);
        }
    }

    /// Returns the client of a call that needs an access key, identified by its key.
    pub(crate) fn caller(&self) -> Caller {
        self.call().map_or_else(Caller::default, |action| action.caller)
    }

    /// Checks whether the request keeps its connection for long: it waits, or opens a stream.
    pub(crate) fn stays_long(&self) -> bool {
        self.waits() || self.call().is_some_and(|action| action.handler.call.is_stream)
    }

    /// Checks whether this is a borrow, a claim or a receive that waits.
    pub(crate) fn waits(&self) -> bool {
        let request = self.call().and_then(|action| action.request.as_ref());
        request.is_some_and(|request| request.waits())
    }

    fn call(&self) -> Option<&CallAction> {
        match &self.action {
            Ok(Action::Call(action)) => Some(action),
            _ => None,
        }
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
        let (sequence, process) = (AtomicU64::new(1), format!("{:08x}-", std::process::id()));
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
            sequence,
            file,
            holders: Holders::default(),
            processes: std::sync::Mutex::default(),
            counting,
            reading_keys,
            connections,
            streams,
            bytes,
            process,
            description,
        }
    }

    /// Decides by the head of a request how to handle it.
    pub(crate) fn route(&self, head: &Head<'_>) -> Routed {
        match hosts::check(head, &self.options.hosts) {
            Ok(()) => route(head),
            Err(refused) => Routed::refuse(refused),
        }
    }

    /// Carries out a request, and logs and counts it.
    ///
    /// An `async fn` would store its arguments twice, and thousands of requests wait here.
    pub(crate) fn answer<'a>(
        self: &'a Arc<Self>,
        request: Routed,
        timer: &'a mut Timer,
    ) -> impl Future<Output = Response> + Send + 'a {
        let Routed { started, route, action } = request;
        async move {
            let (mut shown, mut caller) = (Shown::default(), Caller::default());
            let done = match action {
                Ok(action) => {
                    if let Action::Call(call) = &action {
                        caller = call.caller;
                        shown = call.request.as_ref().map(|it| it.shown()).unwrap_or_default();
                    }
                    self.perform(action, timer).await
                }
                Err(refused) => Err(refused),
            };
            self.log(started, route, caller, &shown, done.unwrap_or_else(Response::from))
        }
    }

    /// Numbers, counts and logs a response.
    fn log(
        &self,
        started: Instant,
        route: Route,
        caller: Caller,
        shown: &Shown,
        mut response: Response,
    ) -> Response {
        let (call, status) = (route.name(), response.status);
        let (name, reason) = (shown.name.as_deref(), shown.reason.as_deref());
        self.metrics.answered(call, status);
        response.number = self.sequence.fetch_add(1, Ordering::Relaxed);
        let request_id = || self.request_id(&response);
        let ms = || u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let key = || self.metrics.key_name(caller);
        macro_rules! line {
            ($level:ident) => {{
                let (request_id, key, ms) = (request_id(), key(), ms());
                let key = key.as_deref();
                tracing::$level!(request_id, call, status, name, key, reason, ms, "request");
            }};
        }
        let is_quiet = match status {
            200 => route.is_frequent(),
            // A shutdown answers every waiter with 503.
            status => status == 503,
        };
        match is_quiet {
            true if tracing::enabled!(tracing::Level::DEBUG) => line!(debug),
            true => {}
            false => line!(info),
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
                let text = self.metrics.text() + &shares + &self.tick_metrics(caller).await;
                Ok(Response::new(200, "text/plain; version=0.0.4", text))
            }
            Action::OpenApi => Ok(Response::new(200, JSON, self.description.clone())),
            Action::PublicKeys => self.public_keys().await,
            Action::Call(action) => self.call(action, timer).await,
        }
    }

    async fn call(
        self: &Arc<Self>,
        action: Box<CallAction>,
        timer: &mut Timer,
    ) -> Result<Response, HttpError> {
        let CallAction { handler, pool, caller, key, request } = *action;
        let (call, echoed) = (handler.call, key.clone());
        let Some(request) = request else { return Err(HttpError::nothing_there()) };
        let context = Context { app: self, call, pool, caller, key, timer };
        let done = match context.pool.is_none() && !self.options.open && !caller.has_key() {
            true => Err(JobError::NoKey.into()),
            false => request.handle(context).await,
        };
        let response = done.unwrap_or_else(Response::from);
        Ok(echoed.into_iter().fold(response, |response, key| response.with("idempotency-key", key)))
    }

    /// Reads queues or pools of the file beside the committer, for one request at a time, because
    /// it may take long. Where there is no file, the committer reads.
    async fn read_beside<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Litelease, i64) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, HttpError> {
        let Some(file) = self.file.clone() else {
            return Ok(self.read(false, None, move |reader| reader.read(read)).await?);
        };
        let _turn = self.counting.lock().await;
        let now_ms = (self.options.clock)();
        match tokio::task::spawn_blocking(move || listings::read_file(&file, read, now_ms)).await {
            Ok(Ok(page)) => Ok(page),
            Ok(Err(error)) => {
                tracing::error!(kind = error.kind(), "queues or pools cannot be read");
                Err(JobError::Database.into())
            }
            Err(_) => Err(JobError::Database.into()),
        }
    }

    /// Returns how long the body of a request may be, if it is long. Only a client with a valid
    /// access key may send a long one: it takes memory.
    pub(crate) async fn longest_body(&self, request: &Routed) -> Result<usize, HttpError> {
        let Some(action) = request.call() else { return Ok(LONGEST) };
        let (caller, longest) = (action.caller, action.handler.call.longest_body);
        if longest > LONGEST && !self.options.open {
            self.read(true, None, move |reader| reader.check_key(caller)).await?;
        }
        Ok(longest)
    }

    /// Requests a slot, a name or an item. The answer is `NoneFree` if the time to wait is over.
    ///
    /// Thousands of requests wait at the same time, so the result has only the state of the wait.
    fn grant<'t>(
        &self,
        id: &Id,
        wanted: Wanted,
        ttl_ms: i64,
        wait: f64,
        key: Option<String>,
        timer: &'t mut Timer,
    ) -> Result<impl Future<Output = Result<Answer, JobError>> + Send + use<'t>, JobError> {
        let wait = Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX);
        let wait = Some(wait.min(self.options.max_wait)).filter(|wait| !wait.is_zero());
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        let pending_grant = PendingGrant::new(answer, self.jobs.clone(), id.clone(), sequence);
        let (id, state) = (id.clone(), wait.map(|_| WaitState::default()));
        let job =
            GrantJob { id, wanted, ttl_ms, key, wait: state.clone(), sequence, share: None, reply };
        self.jobs.send(Job::Grant(job)).map_err(|_| JobError::Stopping)?;
        // Boxed, because a future that is moved into another one takes its room twice.
        Ok(Box::pin(async move {
            let wait = wait.zip(state.as_ref()).map(|(wait, state)| (wait, state, timer));
            pending_grant.wait(wait).await
        }))
    }

    /// Checks whether a client may see the metrics.
    async fn admit_to_metrics(&self, caller: Caller) -> Result<(), JobError> {
        if self.options.open || self.options.open_metrics {
            return Ok(());
        }
        self.admit(caller, Scope::Observe, Which::Under("".into())).await
    }

    /// Returns the metrics of ticks. They have names, so a client that may not observe them gets
    /// none.
    async fn tick_metrics(&self, caller: Caller) -> String {
        let is_open = self.options.open;
        let done = self.read(false, None, move |reader| {
            if !is_open {
                reader.check(caller, Scope::Observe, &Which::Under("".into()))?;
            }
            reader.ticks_done()
        });
        done.await.map_or_else(|_| String::new(), |done| self.metrics.ticks_text(&done))
    }

    /// Checks whether a client has a scope for some names.
    pub(crate) async fn admit(
        &self,
        caller: Caller,
        scope: Scope,
        names: Which,
    ) -> Result<(), JobError> {
        self.read(true, None, move |reader| reader.check(caller, scope, &names)).await
    }

    /// Returns the current public keys of credentials.
    async fn public_keys(&self) -> Result<Response, HttpError> {
        let Some(issuer) = self.options.credentials.clone() else {
            return Err(HttpError::nothing_there());
        };
        // One request reads at a time, because each read takes a thread.
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
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job::Ready(reply)).map_err(|_| JobError::Stopping)?;
        match tokio::time::timeout(Duration::from_secs(2), answer).await {
            _ if self.is_stopping() => Err(JobError::Stopping.into()),
            Ok(answer) => {
                answer.unwrap_or(Err(JobError::Stopping))?;
                Ok(Response::new(200, TEXT, "ready\n"))
            }
            Err(_) => Err(HttpError::new(
                503,
                "the database does not answer: another program may keep it locked",
            )),
        }
    }

    pub(crate) fn processes(&self) -> MutexGuard<'_, Processes> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits until the server stops.
    pub(crate) async fn stopped(&self) {
        let mut stop = self.stop.clone();
        // A dropped sender means a stop as well.
        let _ = stop.wait_for(|stops| *stops).await;
    }

    /// Sends a job to the committer and waits for its answer.
    pub(crate) async fn ask(&self, job: impl FnOnce(Reply) -> Job) -> Result<Answer, JobError> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(job(reply)).map_err(|_| JobError::Stopping)?;
        answer.await.unwrap_or(Err(JobError::Stopping))
    }

    /// Sends a read to the committer, which runs it between two commits, and reports these names.
    /// Those with `is_first` come first.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        is_first: bool,
        reported: Option<crate::job::Reported>,
        work: impl FnOnce(&Reader<'_>) -> Result<T, JobError> + Send + 'static,
    ) -> Result<T, JobError> {
        let (reply, answer) = oneshot::channel();
        let read = Box::new(move |reader: Result<&Reader<'_>, JobError>| {
            let done = reader.and_then(work);
            // The client may be gone.
            Box::new(move || _ = reply.send(done)) as Box<dyn FnOnce()>
        });
        self.jobs.send(Job::Read { read, is_first, reported }).map_err(|_| JobError::Stopping)?;
        answer.await.unwrap_or(Err(JobError::Stopping))
    }

    pub(crate) async fn inspect(&self, id: &Id, with_slots: bool) -> Result<Answer, JobError> {
        self.ask(|reply| Job::Inspect { id: id.clone(), with_slots, reply }).await
    }

    /// Converts a ttl to milliseconds, rounded up and cut to the limit.
    fn ttl_ms(&self, seconds: f64) -> i64 {
        let most = i64::try_from(self.options.max_ttl.as_millis()).unwrap_or(i64::MAX);
        milliseconds(seconds).clamp(1, most)
    }
}

/// Finds the route of a request.
fn route(head: &Head<'_>) -> Routed {
    let started = Instant::now();
    // HEAD is GET without a body.
    let method = if head.method == "HEAD" { "GET" } else { head.method };
    let found = match head.path.strip_prefix(POOLS) {
        Some(pool) => {
            let (id, under) = pool.split_at(pool.find('/').unwrap_or(pool.len()));
            find(method, |handler| handler.call.of_pool() == Some(under))
                .map(|handler| (Route::Call(handler), called(handler, Some(id), head)))
        }
        None if head.path.starts_with("/v1") => {
            find(method, |handler| handler.call.path == head.path)
                .map(|handler| (Route::Call(handler), called(handler, None, head)))
        }
        None => beside_calls(head, method),
    };
    let (route, action) = found.unwrap_or_else(|refused| (Route::Other, Err(refused)));
    Routed { started, route, action }
}

/// The route of a request, with its action or the reason of its refusal. `Err` if there is no such
/// route.
type Found = Result<(Route, Result<Action, HttpError>), HttpError>;

/// Finds a call by its path and method.
fn find(method: &str, is_there: impl Fn(&&Handler) -> bool) -> Result<&'static Handler, HttpError> {
    let there = || HANDLERS.iter().filter(|handler| is_there(handler));
    if let Some(found) = there().find(|found| found.call.method.eq_ignore_ascii_case(method)) {
        return Ok(found);
    }
    let methods: Vec<String> = there().map(|found| found.call.method.to_uppercase()).collect();
    Err(match methods.is_empty() {
        true => HttpError::nothing_there(),
        false => HttpError::method(&methods.join(", ")),
    })
}

/// Returns a call, still without its body if it has one.
fn called(
    handler: &'static Handler,
    pool: Option<&str>,
    head: &Head<'_>,
) -> Result<Action, HttpError> {
    let pool = pool.map(pool_id).transpose()?;
    check_json(handler, head)?;
    let key = key(head)?;
    let (caller, members) = match pool {
        Some(_) => (Caller::default(), Members::default()),
        None => (Caller::from_head(head), Members::of_query(head.query)?),
    };
    let request = match handler.call.has_body() {
        true => members.refuse_all().map(|()| None)?,
        false => Some((handler.read)(members)?),
    };
    Ok(Action::Call(Box::new(CallAction { handler, pool, caller, key, request })))
}

fn beside_calls(head: &Head<'_>, method: &str) -> Found {
    let page = || page::FILES.iter().find(|file| file.path == head.path);
    let (route, action) = match head.path {
        "/healthz" => (Route::Healthz, Action::Healthz),
        "/readyz" => (Route::Readyz, Action::Readyz),
        "/metrics" => (Route::Metrics, Action::Metrics(Caller::from_head(head))),
        "/openapi.json" => (Route::OpenApi, Action::OpenApi),
        "/.well-known/jwks.json" => (Route::PublicKeys, Action::PublicKeys),
        _ => (Route::Page, Action::Page(page().ok_or_else(HttpError::nothing_there)?)),
    };
    match method {
        "GET" => Ok((route, Ok(action))),
        _ => Err(HttpError::method("GET")),
    }
}

/// Checks the type of the body, if the call has one.
fn check_json(handler: &Handler, head: &Head<'_>) -> Result<(), HttpError> {
    if !handler.call.has_body() || is_json(head) || (is_usual(head) && !is_from_browser(head)) {
        return Ok(());
    }
    Err(HttpError::new(415, "the body must be JSON: send Content-Type: application/json"))
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

/// Checks whether the content type is one that programs send by default: none at all, the one of
/// curl and Python's urllib, or the one of `fetch` in Node.
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

/// Checks whether a browser shows the request's origin. A page of another site can make a browser
/// send any of the default types without asking this server first, but not JSON.
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
    use crate::job::{Receiver, channel};
    use crate::response::Body;

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
