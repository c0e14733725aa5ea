//! HTTP/1 connections: one request after the other, each within its limits.
//!
//! A request that waits keeps no buffer. The server notices when its client hangs up, but a client
//! that has only closed its sending side looks the same. So such a client gets its answer, except
//! for a grant: the slot would be lost if the client were gone.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Poll, ready};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use litelease_wire::LONGEST;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::sync::mpsc;

use crate::access::Caller;
use crate::framing::{self, Chunks, Framing, LONGEST_HEAD, Length};
use crate::http::{App, Routed};
use crate::response::{ALWAYS, Body, HttpError, Response};
use crate::server::patience;
use crate::shares::Share;
use crate::stream::Stream;
use crate::timer::Timer;

/// How many bytes are read at a time.
const ROOM: usize = 1024;

/// For how long, and for how many bytes, a refused client may go on sending before the connection
/// is cut. Without this it would not see its answer.
const DRAIN_LIMITS: (Duration, usize) = (Duration::from_secs(1), 1024 * 1024);

/// The length from which on a text is not copied to be sent, and counts as bytes under way.
const LONG_TEXT: usize = 64 * 1024;

/// Serves a connection until it ends.
///
/// An `async fn` would store its arguments twice, for each of thousands of connections.
pub(crate) fn serve(
    stream: Stream,
    app: Arc<App>,
    share: Option<Share>,
) -> impl Future<Output = ()> + Send {
    let client = Client { stream, received: Vec::new(), is_over: false };
    let mut connection =
        Connection { client, timer: Timer::default(), app: Arc::clone(&app), share };
    async move {
        let is_idle = AtomicBool::new(true);
        {
            let (mut serving, mut stopped) =
                (pin!(connection.serve(&is_idle)), pin!(app.stopped()));
            // Serving comes first: a request that was received completely is answered even at a
            // stop.
            poll_fn(|context| match serving.as_mut().poll(context) {
                Poll::Pending if is_idle.load(Relaxed) => stopped.as_mut().poll(context),
                served => served,
            })
            .await;
        }
        connection.close().await;
    }
}

struct Connection {
    client: Client,
    timer: Timer,
    app: Arc<App>,
    /// The part of its client's share that the connection uses, or of the share of clients without
    /// an access key until it has sent a key. `None` if the share is used up: then the connection
    /// is closed after each answer.
    share: Option<Share>,
}

struct Client {
    stream: Stream,
    /// Bytes that were received and not used yet.
    received: Vec<u8>,
    /// The client has closed its sending side, or hung up.
    is_over: bool,
}

impl Connection {
    async fn serve(&mut self, is_idle: &AtomicBool) {
        // Errors of a client end its connection and are not logged.
        while let Ok(true) = self.turn(is_idle).await {}
    }

    /// Serves one request. Returns false if it was the last one.
    async fn turn(&mut self, is_idle: &AtomicBool) -> io::Result<bool> {
        let (mut request, framing) = match self.head().await? {
            Ok(head) => head,
            // Boxed: it takes more room than the wait for an answer.
            Err(refused) => return Box::pin(self.refuse(refused)).await,
        };
        let caller = request.caller();
        let (longest, mut body_share) = match self.longest(&request, framing, caller).await {
            Ok(longest) => longest,
            Err(refused) => {
                request.refuse_for(refused);
                (LONGEST, None)
            }
        };
        let is_refused = request.is_refused();
        let body = self.body(framing, is_refused, longest, caller, &mut body_share).await?;
        let (body, is_read) = match body {
            Ok(body) => (Ok(body), true),
            Err(refused) => (Err(refused), false),
        };
        is_idle.store(false, Relaxed);
        request.add_body(body);
        if self.share.is_none() && !caller.has_key() && request.stays_long() {
            match self.app.connections.take(caller, 1) {
                Ok(share) => self.share = Some(share),
                Err(refused) => request.refuse_for(refused.into()),
            }
        }
        let Some(response) = self.answer(request).await else { return Ok(false) };
        let has_share = self.has_share(caller, response.status);
        let stays = framing.stays && is_read && has_share && !self.app.is_stopping();
        self.respond(response, framing, stays, caller).await?;
        is_idle.store(true, Relaxed);
        if !is_read {
            self.linger().await;
        }
        // The server may have been stopped while the response was sent.
        Ok(stays && !self.app.is_stopping())
    }

    /// Reads the head of a request.
    async fn head(&mut self) -> io::Result<Result<(Routed, Framing), HttpError>> {
        let Connection { client, timer, app, share } = self;
        let deadline = Timer::deadline(patience(app, share.as_ref()));
        loop {
            if !client.received.is_empty() {
                match framing::head(&client.received, |head| app.route(head)) {
                    Ok(Some((request, framing, used))) => {
                        client.received.drain(..used);
                        return Ok(Ok((request, framing)));
                    }
                    Ok(None) => {}
                    Err(refused) => return Ok(Err(refused)),
                }
            }
            match timer.until(deadline, client.fill()).await {
                Some(filled) => filled?,
                None if client.received.is_empty() => return Err(io::ErrorKind::TimedOut.into()),
                None => {
                    let refused = HttpError::new(
                        408,
                        "the head of the request took too long to arrive: send the request again",
                    );
                    return Ok(Err(refused));
                }
            }
        }
    }

    /// Checks whether the connection is within the share of its client. It counts for a client's
    /// access key once the key has proved valid, which a call with status 200 or 409 shows.
    fn has_share(&mut self, caller: Caller, status: u16) -> bool {
        let is_new = || self.share.as_ref().is_none_or(|share| !share.is_of(caller));
        if caller.has_key() && matches!(status, 200 | 409) && is_new() {
            self.share = None;
            self.share = self.app.connections.take(caller, 1).ok();
        }
        self.share.is_some()
    }

    /// Returns how long the body of a request may be, and the part of its client's share that it
    /// takes, if its length is known. Only clients with an access key may send a long one.
    async fn longest(
        &self,
        request: &Routed,
        framing: Framing,
        caller: Caller,
    ) -> Result<(usize, Option<Share>), HttpError> {
        let length = match framing.length {
            Length::Known(..=LONGEST) => return Ok((LONGEST, None)),
            Length::Known(length) => length,
            Length::Chunked => 0,
        };
        let longest = self.app.longest_body(request).await?;
        let share = match longest > LONGEST && length > 0 {
            true => Some(self.app.bytes.take(caller, length.min(longest))?),
            false => None,
        };
        Ok((longest, share))
    }

    /// Reads the body of a request. `Err` if it was not read to its end. A client that is refused
    /// and waits for `100 Continue` does not have to send it. A chunked body takes its share once
    /// it is long.
    async fn body(
        &mut self,
        framing: Framing,
        is_refused: bool,
        longest: usize,
        caller: Caller,
        body_share: &mut Option<Share>,
    ) -> io::Result<Result<Vec<u8>, HttpError>> {
        match framing.length {
            Length::Known(length) if length > longest => {
                return Ok(Err(HttpError::too_long(longest)));
            }
            Length::Known(length) if length <= self.client.received.len() => {
                return Ok(Ok(self.client.take(length)));
            }
            _ if framing.expects && is_refused => return Ok(Err(HttpError::too_slow())),
            _ if framing.expects => self.send(b"HTTP/1.1 100 Continue\r\n\r\n").await?,
            _ => {}
        }
        let Connection { client, timer, app, share } = self;
        let read = async {
            match framing.length {
                Length::Known(length) => {
                    while client.received.len() < length {
                        client.fill().await?;
                    }
                    Ok(Ok(client.take(length)))
                }
                Length::Chunked => {
                    let mut chunks = Chunks::new(longest);
                    loop {
                        let is_done = match chunks.take(&mut client.received) {
                            Ok(is_done) => is_done,
                            Err(refused) => return Ok(Err(refused)),
                        };
                        let is_long = chunks.len() + client.received.len() > LONGEST;
                        if is_long && longest > LONGEST && body_share.is_none() {
                            match app.bytes.take(caller, longest) {
                                Ok(share) => *body_share = Some(share),
                                Err(refused) => return Ok(Err(refused.into())),
                            }
                        }
                        if is_done {
                            return Ok(Ok(chunks.into_body()));
                        }
                        client.fill().await?;
                    }
                }
            }
        };
        let read = timer.within(patience(app, share.as_ref()), read).await;
        read.unwrap_or(Ok(Err(HttpError::too_slow())))
    }

    /// Waits for the answer. Returns `None` if the client of a borrow hangs up meanwhile. The same
    /// if the borrow waits and the client sends so much that hanging up would go unnoticed.
    fn answer(&mut self, request: Routed) -> impl Future<Output = Option<Response>> + Send {
        let Connection { client, timer, app, .. } = self;
        if client.received.is_empty() {
            client.received = Vec::new();
        }
        let waits = request.waits();
        async move {
            let mut answer = pin!(app.answer(request, timer));
            loop {
                if waits && !client.listens() {
                    return None;
                }
                tokio::select! {
                    biased;
                    // The next request may arrive before this one is answered.
                    heard = client.hear(), if client.listens() => heard.ok()?,
                    // Dropping a grant returns the slot.
                    response = &mut answer => {
                        return (!client.is_over || !response.is_grant()).then_some(response);
                    }
                }
            }
        }
    }

    async fn refuse(&mut self, refused: HttpError) -> io::Result<bool> {
        let framing = Framing {
            length: Length::Known(0),
            expects: false,
            is_head: false,
            stays: false,
            is_old: false,
        };
        let response = self.app.answer(Routed::refuse(refused), &mut self.timer).await;
        self.respond(response, framing, false, Caller::default()).await?;
        self.linger().await;
        Ok(false)
    }

    async fn respond(
        &mut self,
        mut response: Response,
        framing: Framing,
        stays: bool,
        caller: Caller,
    ) -> io::Result<()> {
        // A client that does not read its answers must not fill the memory with them.
        let mut share = None;
        if let Body::Whole { text, .. } = &response.body
            && text.len() > LONG_TEXT
        {
            match self.app.bytes.take(caller, text.len()) {
                Ok(taken) => share = Some(taken),
                Err(refused) => {
                    let number = response.number;
                    response = HttpError::from(refused).into();
                    response.number = number;
                }
            }
        }
        let mut out = Vec::with_capacity(512);
        let mut digits = itoa::Buffer::new();
        write_head(&mut out, &response, stays);
        let number = digits.format(response.number);
        put(&mut out, &["x-request-id: ", &self.app.process, number, "\r\n"]);
        match &response.body {
            Body::Whole { text, .. } => {
                put(&mut out, &["content-length: ", digits.format(text.len()), "\r\n\r\n"]);
                match text.len() > LONG_TEXT {
                    _ if framing.is_head => {}
                    true => {
                        self.send(&out).await?;
                        out = Vec::new();
                        self.send(text).await?;
                    }
                    false => out.extend_from_slice(text),
                }
            }
            Body::Stream(_) if framing.is_old => put(&mut out, &["\r\n"]),
            Body::Stream(_) => put(&mut out, &["transfer-encoding: chunked\r\n\r\n"]),
        }
        self.send(&out).await?;
        drop(share);
        match response.body {
            Body::Whole { unsent: Some(unsent), .. } => unsent.sent(),
            Body::Stream(texts) if !framing.is_head => {
                self.stream_out(texts, framing.is_old).await?
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends texts until there are no more or the client hangs up. A client that has closed its
    /// sending side gets the first one.
    async fn stream_out(
        &mut self,
        mut texts: mpsc::Receiver<Bytes>,
        is_old: bool,
    ) -> io::Result<()> {
        let mut is_first = true;
        loop {
            let text = tokio::select! {
                text = texts.recv(), if is_first || self.client.listens() => text,
                heard = self.client.hear(), if self.client.listens() => {
                    heard?;
                    continue;
                }
                else => None,
            };
            is_first = false;
            match (text, is_old) {
                (Some(text), true) => self.send(&text).await?,
                // All streams of a subject share the text, so a long one is not copied.
                (Some(text), false) if text.len() > LONG_TEXT => {
                    self.send(format!("{:x}\r\n", text.len()).as_bytes()).await?;
                    self.send(&text).await?;
                    self.send(b"\r\n").await?;
                }
                (Some(text), false) => {
                    let mut chunk = format!("{:x}\r\n", text.len()).into_bytes();
                    chunk.extend_from_slice(&text);
                    chunk.extend_from_slice(b"\r\n");
                    self.send(&chunk).await?;
                }
                (None, true) => return Ok(()),
                (None, false) => return self.send(b"0\r\n\r\n").await,
            }
        }
    }

    /// Sends all bytes, or fails if the client does not take them in time.
    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Connection { client: Client { stream, .. }, timer, app, .. } = self;
        let sent = match stream.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            sent => sent?,
        };
        match bytes.get(sent..) {
            None | Some([]) => Ok(()),
            Some(rest) => {
                let send = async {
                    stream.write_all(rest).await?;
                    // With TLS, a part may be encrypted and not sent yet.
                    stream.flush().await
                };
                let sent = timer.within(app.options.patience, send).await;
                sent.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }

    /// Ends TLS before the connection ends. Otherwise the client cannot tell the end from a cut.
    async fn close(&mut self) {
        let Connection { client, timer, .. } = self;
        if let Stream::Tls(stream) = &mut client.stream {
            // The client may be gone, or take nothing any more.
            let _ = timer.within(DRAIN_LIMITS.0, stream.shutdown()).await;
        }
    }

    /// Lets a client that may still be sending read its answer before the connection is cut.
    async fn linger(&mut self) {
        let Connection { client, timer, .. } = self;
        let (time, most) = DRAIN_LIMITS;
        let drain = async {
            let mut read = 0;
            client.stream.shutdown().await?;
            while read < most {
                client.received.clear();
                match client.read().await? {
                    0 => break,
                    more => read += more,
                }
            }
            io::Result::Ok(())
        };
        // The connection ends in any case.
        let _ = timer.within(time, drain).await;
    }
}

impl Client {
    /// Reads more bytes. Fails if the client has closed its sending side.
    async fn fill(&mut self) -> io::Result<()> {
        match self.read().await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    fn take(&mut self, length: usize) -> Vec<u8> {
        let rest = self.received.split_off(length);
        std::mem::replace(&mut self.received, rest)
    }

    /// Checks whether the client can be read from: it has not hung up, and there is room.
    fn listens(&self) -> bool {
        !self.is_over && self.received.len() < LONGEST_HEAD
    }

    /// Reads while a request is being answered.
    async fn hear(&mut self) -> io::Result<()> {
        self.is_over = self.read().await? == 0;
        Ok(())
    }

    /// Reads into a buffer that all connections share, and appends to `received`: so each
    /// connection needs no more memory than what it has received.
    async fn read(&mut self) -> io::Result<usize> {
        thread_local! {
            static PLACE: RefCell<[u8; ROOM]> = const { RefCell::new([0; ROOM]) };
        }
        poll_fn(|context| {
            PLACE.with_borrow_mut(|place| {
                let mut read = ReadBuf::new(place);
                ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
                self.received.extend_from_slice(read.filled());
                Poll::Ready(Ok(read.filled().len()))
            })
        })
        .await
    }
}

/// Writes the status line and all headers except the request id and the length, which come last.
fn write_head(out: &mut Vec<u8>, response: &Response, stays: bool) {
    let mut digits = itoa::Buffer::new();
    let status = digits.format(response.status);
    put(out, &["HTTP/1.1 ", status, " ", reason(response.status), "\r\n"]);
    put_header(out, "content-type", response.kind);
    for (name, value) in response.headers() {
        put_header(out, name, value);
    }
    put_always(out);
    if !stays {
        put_header(out, "connection", "close");
    }
}

/// Returns the reason phrase of a status.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        413 => "Payload Too Large",
        415 => "Unsupported Media Type",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        // The words are for people; clients read the number.
        _ => "",
    }
}

fn put_header(out: &mut Vec<u8>, name: &str, value: &str) {
    put(out, &[name, ": ", value, "\r\n"]);
}

fn put(out: &mut Vec<u8>, texts: &[&str]) {
    texts.iter().for_each(|text| out.extend_from_slice(text.as_bytes()));
}

/// Writes the headers that every answer has, the date among them. They are formatted once a
/// second.
fn put_always(out: &mut Vec<u8>) {
    thread_local! {
        static MADE: RefCell<(u64, Vec<u8>)> = const { RefCell::new((0, Vec::new())) };
    }
    let now = SystemTime::now();
    let second = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    MADE.with_borrow_mut(|(of, made)| {
        if *of != second || made.is_empty() {
            *of = second;
            made.clear();
            ALWAYS.iter().for_each(|(name, value)| put_header(made, name, value));
            put_header(made, "date", &httpdate::fmt_http_date(now));
        }
        out.extend_from_slice(made);
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use super::*;
    use crate::answer::UndeliveredGrant;
    use crate::http;
    use crate::job::{Id, Job, Receiver};
    use crate::options::Options;
    use crate::response::Unsent;

    /// Returns a connection whose send buffer is full, its client, which reads nothing, and the
    /// jobs that are sent to the committer.
    async fn stuck() -> (Connection, TcpStream, Receiver<Job>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        // The system keeps finding more room for a while.
        while timeout(Duration::from_millis(200), stream.writable()).await.is_ok() {
            let _ = stream.try_write(&[0; 64 * 1024]);
        }
        let options = Options { patience: Duration::from_millis(50), ..Options::default() };
        let (app, todo) = http::tests::app(options);
        let client = Client { stream: Stream::Plain(stream), received: Vec::new(), is_over: false };
        (Connection { client, timer: Timer::default(), app, share: None }, peer, todo)
    }

    /// A client that does not read its answers could fill the memory with them.
    #[test]
    fn a_long_answer_is_sent_only_within_its_clients_share_of_bytes() {
        http::tests::play(|| async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let (app, _todo) =
                http::tests::app(Options { max_bytes: 4 * LONG_TEXT, ..Options::default() });
            let stream = Stream::Plain(stream);
            let client = Client { stream, received: Vec::new(), is_over: false };
            let timer = Timer::default();
            let mut connection = Connection { client, timer, app: Arc::clone(&app), share: None };
            let framing = Framing {
                length: Length::Known(0),
                expects: false,
                is_head: false,
                stays: true,
                is_old: false,
            };
            let other = app.bytes.take(Caller::default(), LONG_TEXT).unwrap();
            for (held, expected) in [(Some(other), "HTTP/1.1 429 "), (None, "HTTP/1.1 200 ")] {
                let text = "x".repeat(LONG_TEXT + 1);
                let response = Response::new(200, "text/plain", text);
                let nobody = Caller::default();
                connection.respond(response, framing, true, nobody).await.unwrap();
                let mut head = [0; 13];
                peer.read_exact(&mut head).await.unwrap();
                assert_eq!(std::str::from_utf8(&head), Ok(expected));
                let mut rest = vec![0; 2 * LONG_TEXT];
                let _ = peer.read(&mut rest).await.unwrap();
                drop(held);
            }
            assert_eq!(app.bytes.total(), 0);
        });
    }

    #[track_caller]
    fn is_given_up<T>(done: Result<io::Result<T>, tokio::time::error::Elapsed>) {
        assert!(matches!(done, Ok(Err(_))), "a client that takes nothing is waited for");
    }

    #[test]
    fn a_client_that_takes_nothing_is_given_up_and_so_is_its_grant() {
        const LONG: Duration = Duration::from_secs(20);
        http::tests::play(|| async {
            let (mut connection, _client, todo) = stuck().await;
            is_given_up(timeout(LONG, connection.send(b"x")).await);
            let framing = Framing {
                length: Length::Known(2),
                expects: true,
                is_head: false,
                stays: true,
                is_old: false,
            };
            // Not even `100 Continue` can be sent.
            is_given_up(
                timeout(
                    LONG,
                    connection.body(framing, false, LONGEST, Caller::default(), &mut None),
                )
                .await,
            );
            let jobs = connection.app.jobs.clone();
            let grant = UndeliveredGrant::Slot { id: Id::Pool("p".into()), lease: "lease".into() };
            let unsent = Unsent { jobs, grant: Some(grant.clone()) };
            let mut response = Response::new(200, "text/plain", "");
            response.body = Body::Whole { text: "lent".into(), unsent: Some(unsent) };
            is_given_up(
                timeout(LONG, connection.respond(response, framing, true, Caller::default())).await,
            );
            assert!(matches!(todo.try_recv(), Ok(Job::GiveBack(given)) if given == grant));
        });
    }

    /// Each borrower that waits has such a future.
    #[test]
    fn a_connection_takes_little_memory_of_its_own() {
        crate::http::tests::play(|| async {
            let (app, _todo) = crate::http::tests::app(crate::Options::default());
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let size = size_of_val(&serve(Stream::Plain(stream), app, None));
            assert!(size <= 1_800, "{size} bytes");
        });
    }
}
