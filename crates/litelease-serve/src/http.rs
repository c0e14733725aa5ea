//! Requests: checked here, done by the writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State as Shared};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, get, on};
use tokio::sync::{broadcast, oneshot, watch};

use crate::answer::{Refused, respond};
use crate::body::{self, Fields};
use crate::calls::{CALLS, Call, openapi};
use crate::events;
use crate::hosts;
use crate::job::{Answer, Borrow, Id, Job, Jobs, Reply, Trouble};
use crate::metrics::Metrics;
use crate::options::Options;
use crate::page;
use crate::ticket::Ticket;
use crate::writer::Changed;

/// What all requests share.
pub(crate) struct App {
    pub(crate) jobs: Jobs,
    pub(crate) options: Options,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) changes: broadcast::Sender<Changed>,
    pub(crate) stop: watch::Receiver<bool>,
    pub(crate) places: AtomicU64,
}

/// What a response was about, for logs and metrics.
#[derive(Clone, Copy)]
struct About(&'static str);

/// Every path of the server.
pub(crate) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new()
        .route("/healthz", get(|| async { about("healthz", "ok\n") }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(description));
    for file in page::FILES {
        router = router.route(file.path, get(move || async move { about("page", file) }));
    }
    for call in CALLS {
        let method = match call.method {
            "put" => MethodFilter::PUT,
            "post" => MethodFilter::POST,
            "delete" => MethodFilter::DELETE,
            _ => MethodFilter::GET,
        };
        let handler = async move |Shared(app): Shared<Arc<App>>, request: Request| {
            let done = perform(&app, call, request).await;
            about(call.name, done)
        };
        router = router.route(call.path, on(method, handler));
    }
    let wrong_method = || async { Refused::new(405, "this path does not take that method") };
    router
        .method_not_allowed_fallback(wrong_method)
        .fallback(|| async { Refused::new(404, "there is nothing at this path") })
        .layer(middleware::from_fn_with_state(Arc::clone(&app), around))
        .with_state(app)
}

fn about(name: &'static str, response: impl IntoResponse) -> Response {
    let mut response = response.into_response();
    response.extensions_mut().insert(About(name));
    response
}

/// What is done for every request: who asks, an id, a line in the log.
async fn around(Shared(app): Shared<Arc<App>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let number = app.places.fetch_add(1, Ordering::Relaxed);
    let request_id = format!("{:08x}-{number}", std::process::id());
    let mut response = match hosts::check(request.uri(), request.headers(), &app.options.hosts) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    };
    let status = response.status().as_u16();
    let About(call) = response.extensions().get().copied().unwrap_or(About("other"));
    app.metrics.answered(call, status);
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    match status {
        // At a shutdown there may be thousands of them.
        503 => tracing::debug!(request_id, call, status, ms, "request"),
        _ => tracing::info!(request_id, call, status, ms, "request"),
    }
    let headers = response.headers_mut();
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        headers.insert("x-request-id", value);
    }
    response
}

async fn perform(
    app: &Arc<App>,
    call: &'static Call,
    request: Request,
) -> Result<Response, Refused> {
    let (head, body) = request.into_parts();
    let id = pool_id(head.uri.path())?;
    let fields = match call.fields {
        [] => Fields::default(),
        wanted => body::read(&head.headers, body, wanted, app.options.patience).await?,
    };
    let answer = match call.name {
        "register" => {
            let (count, most) = (fields.count, app.options.max_count);
            if count > most {
                return Err(Refused::new(400, format!("count must be at most {most}")));
            }
            app.ask(|reply| Job::Register { id: id.clone(), count, reply }).await
        }
        "delete" => app.ask(|reply| Job::Delete { id: id.clone(), reply }).await,
        "borrow" => {
            let key = key(&head.headers)?;
            borrow(app, &id, fields, key).await
        }
        "return" => {
            let lease = fields.lease;
            app.ask(|reply| Job::Return { id: id.clone(), lease, reply }).await
        }
        "renew" => {
            let (lease, ttl_ms) = (fields.lease, app.ttl_ms(fields.ttl));
            app.ask(|reply| Job::Renew { id: id.clone(), lease, ttl_ms, reply }).await
        }
        "events" => return events::stream(app, id).await,
        _ => app.look(&id).await,
    };
    Ok(respond(answer?, &id, &app.jobs))
}

async fn borrow(
    app: &App,
    id: &Id,
    fields: Fields,
    key: Option<String>,
) -> Result<Answer, Trouble> {
    let wait = Duration::try_from_secs_f64(fields.wait).unwrap_or(Duration::MAX);
    let wait = Some(wait.min(app.options.max_wait)).filter(|wait| !wait.is_zero());
    let place = app.places.fetch_add(1, Ordering::Relaxed);
    let (reply, answer) = oneshot::channel();
    let ticket = Ticket::new(answer, app.jobs.clone(), id.clone(), place);
    let (ttl_ms, note, waits) = (app.ttl_ms(fields.ttl), fields.note, wait.is_some());
    let job = Borrow { id: id.clone(), ttl_ms, note, key, waits, place, reply };
    app.jobs.send(Job::Borrow(job)).map_err(|_| Trouble::Stopping)?;
    ticket.wait(wait).await
}

/// The id in a path: a UUID with its hyphens, in either case.
fn pool_id(path: &str) -> Result<Id, Refused> {
    let text = path.split('/').nth(2).unwrap_or_default();
    match uuid::Uuid::try_parse(text) {
        Ok(id) if text.len() == 36 => Ok(id.to_string().into()),
        _ => Err(Refused::new(400, "the id of a pool must be a UUID")),
    }
}

fn key(headers: &HeaderMap) -> Result<Option<String>, Refused> {
    let wrong =
        || Refused::new(400, "Idempotency-Key must be one text of 1 to 200 visible characters");
    let mut keys = headers.get_all("idempotency-key").iter();
    match (keys.next(), keys.next()) {
        (None, _) => Ok(None),
        (Some(key), None) => match key.to_str() {
            Ok(key) if (1..=200).contains(&key.len()) => Ok(Some(key.to_owned())),
            _ => Err(wrong()),
        },
        _ => Err(wrong()),
    }
}

async fn ready(Shared(app): Shared<Arc<App>>) -> Response {
    // No pool has this id, so the answer is that there is none.
    let nobody: Id = "".into();
    let looked = tokio::time::timeout(Duration::from_secs(2), app.look(&nobody)).await;
    let answer = match looked {
        _ if *app.stop.borrow() => Err(Refused::from(Trouble::Stopping)),
        Ok(Ok(_) | Err(Trouble::NoSuchPool)) => Ok("ready\n"),
        _ => Err(Refused::new(503, "the database does not answer")),
    };
    about("readyz", answer)
}

async fn description(Shared(app): Shared<Arc<App>>) -> Response {
    about("openapi", axum::response::Json(openapi(app.options.max_count)))
}

async fn metrics(Shared(app): Shared<Arc<App>>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    about("metrics", (kind, app.metrics.text()))
}

impl App {
    /// Leaves a job and waits for its answer.
    pub(crate) async fn ask(&self, job: impl FnOnce(Reply) -> Job) -> Result<Answer, Trouble> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(job(reply)).map_err(|_| Trouble::Stopping)?;
        answer.await.unwrap_or(Err(Trouble::Stopping))
    }

    pub(crate) async fn look(&self, id: &Id) -> Result<Answer, Trouble> {
        self.ask(|reply| Job::Look { id: id.clone(), reply }).await
    }

    /// Seconds as milliseconds, within the limit, and never less than was asked for.
    fn ttl_ms(&self, seconds: f64) -> i64 {
        let most = i64::try_from(self.options.max_ttl.as_millis()).unwrap_or(i64::MAX);
        // A cast of a float saturates.
        ((seconds * 1000.0).ceil() as i64).clamp(1, most)
    }
}
