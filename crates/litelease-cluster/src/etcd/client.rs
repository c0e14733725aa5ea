//! Connections to the members: the next one when one does not answer, logins, and the revision that
//! was seen last.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use http::HeaderValue;
use http::uri::{Authority, Scheme};
use prost::Message;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::engine::{Driver, Error, EtcdUrl, Result, time_to_move};
use crate::etcd::failure::Failure;
use crate::etcd::grpc::{Channel, Framed, Status};
use crate::etcd::messages::{
    AuthenticateRequest, AuthenticateResponse, Empty, Header, StatusResponse, WatchCreateRequest,
    WatchRequest, WatchResponse, WatchUnion,
};
use crate::etcd::tls;

/// How long one request may take, and each step of connecting. Then the next member is asked.
const REQUEST: Duration = Duration::from_millis(800);
/// How long all members together may take.
const MOST: Duration = Duration::from_secs(10);
/// How often a watch asks whether its member is still the one that is asked.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// The silence after which a member is pinged while a watch is open, and how long its answer may
/// take.
const SILENCE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(3));

const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
const WATCH: &str = "/etcdserverpb.Watch/Watch";

/// The oldest version whose transactions and status are as this client needs them.
const OLDEST: (u32, u32) = (3, 4);

/// A client of all members.
pub(crate) struct Client {
    /// For calls, on the threads of their callers.
    calls: Arc<Connections>,
    /// For watches, which go on between calls.
    background: Arc<Connections>,
    driver: Driver,
}

/// Connections to the members, over which one runtime asks. Another one must have its own: a
/// connection rests while no thread drives the runtime that made it.
pub(crate) struct Connections {
    shared: Arc<Shared>,
    channels: Vec<Mutex<Option<Channel>>>,
}

/// Facts about the members.
struct Shared {
    members: Vec<Member>,
    tls: Option<TlsConnector>,
    /// The member that is tried first.
    current: AtomicUsize,
    login: Option<(String, String)>,
    token: Mutex<Option<HeaderValue>>,
    /// The newest revision that was answered.
    newest: AtomicI64,
    forgotten: OnceLock<Error>,
}

/// One member.
pub(crate) struct Member {
    /// With its port, as people write it.
    pub(crate) host: String,
    address: (String, u16),
    authority: Authority,
}

impl Client {
    pub(crate) fn new(url: &EtcdUrl) -> Result<Self> {
        let members = url.hosts.iter().map(|(host, port)| Member::new(host, *port));
        let shared = Arc::new(Shared {
            members: members.collect::<Result<_>>()?,
            tls: if url.tls { Some(tls::connector(url)?) } else { None },
            current: AtomicUsize::new(0),
            login: url.user.clone(),
            token: Mutex::default(),
            newest: AtomicI64::new(0),
            forgotten: OnceLock::new(),
        });
        Ok(Client {
            calls: Arc::new(Connections::new(&shared)),
            background: Arc::new(Connections::new(&shared)),
            driver: Driver::new("litelease-etcd")?,
        })
    }

    /// Sends a request that changes nothing, and waits for at most `time`.
    pub(crate) fn read_within<Q, A>(
        &self,
        path: &'static str,
        request: Q,
        time: Duration,
    ) -> Result<A>
    where
        Q: Message,
        A: Message + Default + HasHeader,
    {
        self.send(path, request, (time, 0), Failure::of_read)
    }

    /// Sends a request whose answer may have this many bytes.
    pub(crate) fn read_large<Q, A>(
        &self,
        path: &'static str,
        request: Q,
        time: Duration,
        bytes: usize,
    ) -> Result<A>
    where
        Q: Message,
        A: Message + Default + HasHeader,
    {
        self.send(path, request, (time, bytes), Failure::of_read)
    }

    /// Sends a request that changes rows.
    pub(crate) fn write<Q, A>(&self, path: &'static str, request: Q) -> Result<A>
    where
        Q: Message,
        A: Message + Default + HasHeader,
    {
        self.write_within(path, request, MOST)
    }

    /// Sends a request that changes rows, and waits for at most `time`.
    pub(crate) fn write_within<Q, A>(
        &self,
        path: &'static str,
        request: Q,
        time: Duration,
    ) -> Result<A>
    where
        Q: Message,
        A: Message + Default + HasHeader,
    {
        self.send(path, request, (time, 0), Failure::of_write)
    }

    fn send<Q, A>(
        &self,
        path: &'static str,
        request: Q,
        (time, bytes): (Duration, usize),
        meaning: impl Fn(Failure) -> Error,
    ) -> Result<A>
    where
        Q: Message,
        A: Message + Default + HasHeader,
    {
        let shared = &self.calls.shared;
        if let Some(forgotten) = shared.forgotten.get() {
            return Err(forgotten.clone());
        }
        // Another call has seen a newer state since than this request must show.
        let seen = shared.newest.load(Ordering::Acquire);
        let until = Instant::now() + time.min(MOST);
        let request = Framed::new(&request);
        let most = REQUEST + time_to_move(request.len() + bytes);
        let answer: Result<A, Failure> =
            self.driver.run(self.calls.ask_in_turn(path, request, most, until))?;
        let answer = answer.map_err(meaning)?;
        shared.check(seen, answer.header())?;
        Ok(answer)
    }

    /// Waits for a change of a key after a revision, for at most `time`.
    pub(crate) fn watch(&self, key: Vec<u8>, revision: i64, time: Duration) {
        let watch = async {
            let watched = timeout(time, self.calls.watch_once(key, revision)).await;
            // Lets the connection send that the watch is over: it may not be driven again for long.
            yield_now().await;
            watched
        };
        // An error ends the waiting, too: the caller reads the row. But it must not spin.
        if !matches!(self.driver.run(watch), Ok(Ok(Ok(())) | Err(_))) {
            std::thread::sleep(time.min(Duration::from_millis(100)));
        }
    }

    /// Sends a request to one member.
    pub(crate) fn ask<Q, A>(&self, member: usize, path: &'static str, request: Q) -> Result<A>
    where
        Q: Message,
        A: Message + Default,
    {
        let (request, until) = (Framed::new(&request), Instant::now() + MOST);
        let ask = || self.driver.run(self.calls.ask(member, path, request.clone(), REQUEST, until));
        let answer = match ask()? {
            // The next one logs in again.
            Err(Failure::LoggedOut) if self.calls.shared.login.is_some() => ask()?,
            answer => answer,
        };
        answer.map_err(Failure::of_read)
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.calls.shared.members
    }

    /// Returns the newest revision that was answered.
    pub(crate) fn newest(&self) -> i64 {
        self.calls.shared.newest.load(Ordering::Acquire)
    }

    /// Runs a future to its end.
    pub(crate) fn run<T: Send>(&self, future: impl Future<Output = T> + Send) -> Result<T> {
        self.driver.run(future)
    }

    /// Runs the work between calls, over connections of its own.
    pub(crate) fn spawn<F>(&self, future: impl FnOnce(Arc<Connections>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.driver.spawn(future(Arc::clone(&self.background)));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The connections belong to the parent: a fork must not touch their sockets.
        if self.driver.is_forked() {
            std::mem::forget((Arc::clone(&self.calls), Arc::clone(&self.background)));
        }
    }
}

/// An answer that names its cluster and its revision.
pub(crate) trait HasHeader {
    fn header(&self) -> Option<&Header>;
}

impl Connections {
    fn new(shared: &Arc<Shared>) -> Self {
        let channels = shared.members.iter().map(|_| Mutex::default()).collect();
        Connections { shared: Arc::clone(shared), channels }
    }

    /// Asks the members in turn until one can have done it, or there is no time left.
    async fn ask_in_turn<A: Message + Default>(
        &self,
        path: &'static str,
        request: Framed,
        most: Duration,
        until: Instant,
    ) -> Result<A, Failure> {
        let mut failure = Failure::NotDone("there was no time left to ask".into());
        let mut logins = 0;
        for _ in 0..=self.shared.members.len() {
            if Instant::now() >= until {
                break;
            }
            let at = self.current();
            failure = match self.ask(at, path, request.clone(), most, until).await {
                Err(Failure::LoggedOut) if logins == 0 && self.shared.login.is_some() => {
                    logins += 1;
                    continue;
                }
                Err(failure @ Failure::NotDone(_)) => {
                    self.next_after(at);
                    failure
                }
                Err(failure @ Failure::Unknown(_)) => {
                    self.next_after(at);
                    return Err(failure);
                }
                done => return done,
            };
        }
        Err(failure)
    }

    /// Asks another member from now on, and this one over a new connection.
    pub(crate) fn next_after(&self, at: usize) {
        *locked(&self.channels[at]) = None;
        let (current, next) = (&self.shared.current, (at + 1) % self.channels.len());
        let _ = current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    async fn ask<A: Message + Default>(
        &self,
        at: usize,
        path: &'static str,
        request: Framed,
        most: Duration,
        until: Instant,
    ) -> Result<A, Failure> {
        let host = &self.shared.members[at].host;
        let left = || until.saturating_duration_since(Instant::now());
        let late = |time: Duration| format!("{host}: no answer within {} ms", time.as_millis());
        let time = left();
        let mut channel = match timeout(time, self.connected(at)).await {
            Ok(channel) => channel?,
            Err(_) => return Err(Failure::NotDone(late(time))),
        };
        let time = left().min(most);
        if time.is_zero() {
            return Err(Failure::NotDone(format!("{host}: there was no time left to ask")));
        }
        let token = self.token();
        let answer = match timeout(time, channel.ask(path, request, token.clone())).await {
            Ok(answer) => answer.map_err(|status| Failure::from_status(host, &status)),
            Err(_) => Err(Failure::Unknown(late(time))),
        };
        if let Err(Failure::LoggedOut) = answer {
            // Another caller may have logged in again meanwhile.
            locked(&self.shared.token).take_if(|kept| Some(&*kept) == token.as_ref());
        }
        answer
    }

    /// Returns a connection to a member, whose version is known to do, with a login if there is to
    /// be one. Each step of it must be done in time: over a long line, all of them take longer than
    /// a request may.
    async fn connected(&self, at: usize) -> Result<Channel, Failure> {
        let mut channel = match self.kept(at).await {
            Some(channel) => channel,
            // In a box: a rare part must not make every request larger, which is moved a few times.
            None => Box::pin(self.connect(at)).await?,
        };
        let has_token = locked(&self.shared.token).is_some();
        if let (Some(login), false) = (&self.shared.login, has_token) {
            let login = Box::pin(self.log_in(at, &mut channel, login.clone()));
            let token = self.in_time(at, login).await?;
            *locked(&self.shared.token) = Some(token);
        }
        Ok(channel)
    }

    /// Returns the connection that was made before, unless it has come to its end.
    async fn kept(&self, at: usize) -> Option<Channel> {
        let mut channel = locked(&self.channels[at]).clone()?;
        timeout(REQUEST, channel.ready()).await.ok()?.ok().map(|()| channel)
    }

    async fn connect(&self, at: usize) -> Result<Channel, Failure> {
        let mut channel = self.open(at).await?;
        self.in_time(at, check_version(&self.shared.members[at].host, &mut channel)).await?;
        *locked(&self.channels[at]) = Some(channel.clone());
        Ok(channel)
    }

    /// Waits for one step of connecting.
    async fn in_time<T>(
        &self,
        at: usize,
        step: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let host = &self.shared.members[at].host;
        let late = || format!("{host}: no answer within {} ms", REQUEST.as_millis());
        timeout(REQUEST, step).await.unwrap_or_else(|_| Err(Failure::NotDone(late())))
    }

    async fn open(&self, at: usize) -> Result<Channel, Failure> {
        let Member { host, address, authority } = &self.shared.members[at];
        let failed = |error: io::Error| Failure::of_connecting(host, &error);
        let (name, port) = address;
        let connect = async { TcpStream::connect((name.as_str(), *port)).await.map_err(failed) };
        let stream = self.in_time(at, connect).await?;
        stream.set_nodelay(true).map_err(failed)?;
        let opened = match &self.shared.tls {
            None => Channel::open(stream, Scheme::HTTP, authority.clone()).await,
            Some(tls) => {
                let name = ServerName::try_from(name.clone());
                let name = name.map_err(|error| failed(io::Error::other(error)))?;
                let connect = async { tls.connect(name, stream).await.map_err(failed) };
                let stream = self.in_time(at, connect).await?;
                if stream.get_ref().1.alpn_protocol() != Some(tls::HTTP2) {
                    return Err(Failure::NotDone(format!("{host}: no HTTP/2: is this etcd?")));
                }
                Channel::open(stream, Scheme::HTTPS, authority.clone()).await
            }
        };
        opened.map_err(|error| failed(io::Error::other(error)))
    }

    async fn log_in(
        &self,
        at: usize,
        channel: &mut Channel,
        (name, password): (String, String),
    ) -> Result<HeaderValue, Failure> {
        let host = &self.shared.members[at].host;
        let request = Framed::new(&AuthenticateRequest { name, password });
        let answer = channel.ask(AUTHENTICATE, request, None).await;
        let answer: AuthenticateResponse =
            answer.map_err(|status| not_sent(Failure::from_status(host, &status)))?;
        let token = HeaderValue::try_from(answer.token);
        token.map_err(|_| Failure::Refused(format!("{host}: an odd login")))
    }

    fn token(&self) -> Option<HeaderValue> {
        locked(&self.shared.token).clone()
    }

    /// Returns once a key has changed after a revision.
    async fn watch_once(&self, key: Vec<u8>, revision: i64) -> Result<(), Failure> {
        let mut create =
            WatchCreateRequest { key, start_revision: revision + 1, ..Default::default() };
        loop {
            let (mut compacted, mut is_refused) = (0, false);
            let watched = self.watch(create.clone(), |answer| {
                (compacted, is_refused) = (answer.compact_revision, answer.canceled);
                answer.canceled || !answer.events.is_empty()
            });
            watched.await?;
            match compacted {
                0 if is_refused => return Err(Failure::NotDone("the watch was refused".into())),
                0 => return Ok(()),
                _ => {}
            }
            // The row was read long after it was written, and etcd has compacted the revisions in
            // between.
            create.start_revision = compacted;
        }
    }

    /// Watches at the member that is tried first, until `is_done`, or until another one is tried.
    pub(crate) async fn watch(
        &self,
        create: WatchCreateRequest,
        is_done: impl FnMut(&WatchResponse) -> bool + Send,
    ) -> Result<(), Failure> {
        self.watch_all(create, is_done, &Notify::new(), Vec::new).await
    }

    /// Watches on one stream. What `more` returns is sent there, at first and at each `changed`.
    pub(crate) async fn watch_all(
        &self,
        create: WatchCreateRequest,
        mut is_done: impl FnMut(&WatchResponse) -> bool + Send,
        changed: &Notify,
        more: impl Fn() -> Vec<WatchUnion> + Send,
    ) -> Result<(), Failure> {
        let at = self.current();
        let member = &self.shared.members[at];
        let late = || Failure::NotDone(format!("{}: no answer in time", member.host));
        let mut channel = self.connected(at).await?;
        let framed = |request| Framed::new(&WatchRequest { request_union: Some(request) });
        let create = framed(WatchUnion::Create(create));
        let failed = |status: Status| Failure::from_status(&member.host, &status);
        let begun = timeout(REQUEST, channel.stream(WATCH, create, self.token())).await;
        let mut answers = begun.map_err(|_| late())?.map_err(failed)?;
        let mut heard = Instant::now();
        loop {
            for request in more() {
                answers.send(framed(request)).map_err(failed)?;
            }
            let (mut answer, mut change) = (pin!(answers.next()), pin!(changed.notified()));
            let next = poll_fn(|context| match answer.as_mut().poll(context) {
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
                Poll::Pending => change.as_mut().poll(context).map(|()| None),
            });
            match timeout(LOOK_AROUND, next).await {
                Ok(None) => {}
                // A member that does not answer sends no events, either.
                Err(_) if self.current() != at => return Err(late()),
                Err(_) if heard.elapsed() < SILENCE.0 => {}
                Err(_) => {
                    let sign = channel.ask::<StatusResponse>(STATUS, Framed::new(&Empty {}), None);
                    let _ = timeout(SILENCE.1, sign).await.map_err(|_| late())?;
                    heard = Instant::now();
                }
                Ok(Some(answer)) => match answer.map_err(failed)? {
                    Some(answer) if !is_done(&answer) => heard = Instant::now(),
                    _ => return Ok(()),
                },
            }
        }
    }

    /// Returns the member that is tried first.
    pub(crate) fn current(&self) -> usize {
        self.shared.current.load(Ordering::Relaxed) % self.channels.len()
    }
}

impl Shared {
    /// Refuses for ever if the cluster has gone back behind what this process has seen.
    fn check(&self, seen: i64, header: Option<&Header>) -> Result<()> {
        let found = header.map_or(0, |header| header.revision);
        self.newest.fetch_max(found, Ordering::AcqRel);
        match found < seen {
            true => Err(self.forgotten.get_or_init(|| Error::Forgotten { seen, found }).clone()),
            false => Ok(()),
        }
    }
}

impl Member {
    fn new(host: &str, port: u16) -> Result<Self> {
        let address = (host.to_owned(), port);
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let host = format!("{host}:{port}");
        let authority = Authority::try_from(host.as_str());
        let authority = authority.map_err(|error| Error::InvalidUrl(format!("{host}: {error}")))?;
        Ok(Member { host, address, authority })
    }
}

async fn check_version(host: &str, channel: &mut Channel) -> Result<(), Failure> {
    let status = channel.ask(STATUS, Framed::new(&Empty {}), None).await;
    let status: StatusResponse = match status.map_err(|error| Failure::from_status(host, &error)) {
        Ok(status) => status,
        // Newer versions may ask for a login first. They are not too old.
        Err(Failure::LoggedOut | Failure::Refused(_)) => return Ok(()),
        // A member that wants TLS, or a certificate, closes the connection without a word.
        Err(Failure::Unknown(text)) => {
            let hint = "if this member wants TLS, write etcds://; if it asks for certificates, cert= and key=";
            return Err(Failure::NotDone(format!("{text} ({hint})")));
        }
        Err(failure) => return Err(failure),
    };
    let mut numbers = status.version.split('.').map(|number| number.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version < OLDEST {
        true => Err(Failure::Refused(format!(
            "{host}: this is etcd {}: version 3.4 or newer is needed",
            status.version
        ))),
        false => Ok(()),
    }
}

/// Returns the failure of a request that was never sent: it is not done.
fn not_sent(failure: Failure) -> Failure {
    match failure {
        Failure::Unknown(text) => Failure::NotDone(text),
        failure => failure,
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
