//! HTTP/2 connections, by prior knowledge or as TLS has negotiated. hyper speaks the protocol.

use std::convert::Infallible;
use std::io::Cursor;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::answer::{ALWAYS, Body, HttpError, Unsent};
use crate::body::LONGEST;
use crate::http::App;
use crate::job::JobError;
use crate::request::Head;
use crate::stream::Stream;
use crate::timer::Timer;

/// Serves a connection until it ends. `received` is what was read from it already.
pub(crate) async fn serve(stream: Stream, received: Vec<u8>, app: Arc<App>) {
    let patience = app.options.patience;
    let stopped = {
        let app = Arc::clone(&app);
        async move { app.stopped().await }
    };
    let service = service_fn(move |request| {
        let app = Arc::clone(&app);
        async move { Ok::<_, Infallible>(answer(&app, request).await) }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).max_concurrent_streams(1_000);
    builder.keep_alive_interval(patience).keep_alive_timeout(patience);
    let (reader, writer) = tokio::io::split(stream);
    let stream = tokio::io::join(AsyncReadExt::chain(Cursor::new(received), reader), writer);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    // Errors of a client end its connection and are not logged.
    let _ = tokio::select! {
        done = &mut connection => done,
        () = stopped => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
}

async fn answer(app: &Arc<App>, request: hyper::Request<Incoming>) -> hyper::Response<Body> {
    let (parts, body) = request.into_parts();
    let mut request = {
        let headers = parts.headers.iter();
        let headers: Vec<_> = headers
            .map(|(name, value)| httparse::Header { name: name.as_str(), value: value.as_bytes() })
            .collect();
        let authority = parts.uri.authority().map(|authority| authority.as_str());
        let (method, path) = (parts.method.as_str(), parts.uri.path());
        let query = parts.uri.query().unwrap_or_default();
        app.route(&Head { method, path, query, authority, headers: &headers })
    };
    let longest = match body.size_hint().upper() {
        Some(length) if length <= LONGEST as u64 => Ok(LONGEST),
        _ => app.longest_body(&request).await,
    };
    let body = match (request.is_refused(), longest) {
        (true, _) => Ok(Vec::new()),
        (false, Err(refused)) => Err(refused),
        (false, Ok(longest)) => tokio::select! {
            biased;
            body = read(body, app.options.patience, longest) => body,
            // A request that is still incomplete at a stop is refused.
            () = app.stopped() => Err(JobError::Stopping.into()),
        },
    };
    request.add_body(body);
    let response = app.answer(request, &mut Timer::default()).await;
    let mut head = hyper::Response::builder().status(response.status);
    head = head.header("content-type", response.kind);
    for (name, value) in ALWAYS.into_iter().chain(response.headers()) {
        head = head.header(name, value);
    }
    head = head.header("x-request-id", app.request_id(&response));
    // All names and values are the server's own and valid.
    head.body(response.body).unwrap_or_default()
}

async fn read(body: Incoming, patience: Duration, longest: usize) -> Result<Vec<u8>, HttpError> {
    if body.size_hint().lower() > longest as u64 {
        return Err(HttpError::too_long(longest));
    }
    match timeout(patience, Limited::new(body, longest).collect()).await {
        Err(_) => Err(HttpError::too_slow()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(HttpError::too_long(longest)),
        Ok(Err(_)) => Err(HttpError::new(400, "the body ended before it was complete")),
        Ok(Ok(collected)) => Ok(collected.to_bytes().into()),
    }
}

impl Default for Body {
    fn default() -> Self {
        Body::Whole { text: Bytes::new(), unsent: None }
    }
}

/// A text that is being sent. Its grant counts as sent when the last byte has gone out, for which
/// the client must have made room. If the text is dropped before that, the slot is returned.
pub(crate) struct Outgoing {
    text: Bytes,
    unsent: Option<Unsent>,
}

impl Buf for Outgoing {
    fn remaining(&self) -> usize {
        self.text.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.text
    }

    fn advance(&mut self, count: usize) {
        self.text.advance(count);
        if self.text.is_empty() {
            self.unsent.take().into_iter().for_each(Unsent::sent);
        }
    }
}

impl HttpBody for Body {
    type Data = Outgoing;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Outgoing>, Infallible>>> {
        let outgoing = match &mut *self {
            Body::Whole { text, .. } if text.is_empty() => None,
            Body::Whole { text, unsent } => {
                Some(Outgoing { text: std::mem::take(text), unsent: unsent.take() })
            }
            Body::Stream(texts) => {
                ready!(texts.poll_recv(context)).map(|text| Outgoing { text, unsent: None })
            }
        };
        Poll::Ready(outgoing.map(|outgoing| Ok(Frame::data(outgoing))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Whole { text, .. } if text.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole { text, .. } => SizeHint::with_exact(text.len() as u64),
            Body::Stream(_) => SizeHint::default(),
        }
    }
}
