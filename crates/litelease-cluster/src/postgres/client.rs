//! Connections: to the first server of the URL that takes writes, kept for the next call, dropped
//! when they do not answer.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::Severity;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Row, Statement};

use crate::engine::{Driver, Error, PostgresUrl, Result, time_to_move};
use crate::postgres::failure::{Failure, chain};
use crate::postgres::listen::NotificationCounts;
use crate::postgres::schema::{self, Problem};
use crate::postgres::statements::{SETTINGS, Statements};
use crate::postgres::tls::Tls;

/// How long one request may take. Then the connection is dropped.
pub(crate) const REQUEST: Duration = Duration::from_millis(800);
/// How long TLS and the login may take: some ten round trips. Reaching the server has its own limit
/// before that.
const HANDSHAKE: Duration = Duration::from_millis(2_400);
/// How long all requests of a call may take.
const MOST: Duration = Duration::from_secs(10);
/// How many connections are kept.
const MOST_IDLE: usize = 8;

/// Asks whether a server takes writes, and whether transactions have the settings that ours need by
/// default.
const KIND: &str = "SELECT pg_catalog.pg_is_in_recovery(),
pg_catalog.current_setting('default_transaction_isolation') = 'read committed'
AND pg_catalog.current_setting('default_transaction_read_only') = 'off'";

/// Begins a transaction, whatever the defaults of the role are.
pub(crate) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// A commit that waits for a synchronous standby and changes nothing: everything that was committed
/// before it is there, too.
const CONFIRM: &str = "SELECT pg_catalog.set_config('synchronous_commit', 'on', true),
pg_catalog.pg_logical_emit_message(true, 'litelease', '')";

/// Notifies waiters. It need not be on the disk, because notifications are hints, and the next
/// statement need not wait.
const NOTIFY: &str = "SELECT pg_catalog.set_config('synchronous_commit', 'off', true),
pg_catalog.pg_notify($1, name) FROM unnest($2::text[]) AS name";

/// A parameter and its type.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// All connections to the servers of a URL, and their driver.
pub(crate) struct Pool {
    pub(crate) shared: Arc<Shared>,
    driver: Driver,
}

pub(crate) struct Shared {
    pub(crate) schema: String,
    pub(crate) statements: Statements,
    pub(crate) notifications: Arc<NotificationCounts>,
    servers: Vec<(String, Config)>,
    tls: Option<Tls>,
    /// The server that is tried first.
    current: AtomicUsize,
    idle: Mutex<Vec<Session>>,
    /// Connections that were dropped, and are about to be closed.
    closing: Closing,
    is_checked: AtomicBool,
    /// How many answers of commits were lost. What is read here may not be at its synchronous
    /// standby yet.
    lost: AtomicU64,
    /// How many of them were followed by a commit that has waited for the standby.
    confirmed: AtomicU64,
    /// A pooler gives connections to others between transactions: statements have no names.
    has_pooler: AtomicBool,
}

/// The tasks of dropped connections.
type Closing = Arc<Mutex<Vec<JoinHandle<()>>>>;

/// One connection.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) host: String,
    /// A single statement is a transaction as ours must be.
    has_our_defaults: bool,
    in_transaction: bool,
    /// How much longer the next request may take, because of its size.
    allowance: Duration,
    /// The server has said that a commit did not wait for its standby.
    was_hasty: Arc<AtomicBool>,
    /// Moves its bytes; none after it was dropped.
    mover: Option<JoinHandle<()>>,
    closing: Closing,
    prepared: HashMap<String, Statement>,
}

impl Drop for Session {
    fn drop(&mut self) {
        // Its end closes the connection, as soon as a call drives it. A statement that is under way
        // is never cancelled.
        if let Some(mover) = self.mover.take() {
            mover.abort();
            locked(&self.closing).push(mover);
        }
    }
}

impl Pool {
    pub(crate) fn new(url: &PostgresUrl) -> Result<Self> {
        let tls = if url.sslmode == "disable" { None } else { Some(Tls::new(url)?) };
        let shared = Shared {
            schema: url.schema.clone(),
            statements: Statements::new(&url.schema),
            notifications: Arc::default(),
            servers: url.hosts.iter().map(|(host, port)| server(url, host, *port)).collect(),
            tls,
            current: AtomicUsize::new(0),
            idle: Mutex::default(),
            closing: Closing::default(),
            is_checked: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            has_pooler: AtomicBool::new(false),
        };
        let driver = Driver::new("litelease-postgres")?;
        Ok(Pool { shared: Arc::new(shared), driver })
    }

    /// Runs a future to its end.
    pub(crate) fn run<T: Send>(&self, future: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.run_within(MOST, future)
    }

    /// Runs a future for at most `time`. Then it is dropped, and its outcome is unknown.
    pub(crate) fn run_for<T: Send>(
        &self,
        time: Duration,
        future: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.run_within(time.min(MOST), future)
    }

    /// Runs a future that may take longer than any request.
    pub(crate) fn run_within<T: Send>(
        &self,
        limit: Duration,
        future: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let late = || format!("no answer within {} ms", limit.as_millis());
        let limited = async {
            let done = timeout(limit, future).await;
            self.shared.close_dropped().await;
            done.unwrap_or_else(|_| Err(Error::CommitUnknown(late())))
        };
        self.driver.run(limited)?
    }

    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.driver.spawn(future);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        match self.driver.is_forked() {
            // The connections belong to the parent: a fork must not touch their sockets.
            true => std::mem::forget(Arc::clone(&self.shared)),
            false => locked(&self.shared.idle).clear(),
        }
    }
}

fn server(url: &PostgresUrl, host: &str, port: u16) -> (String, Config) {
    let mut config = Config::new();
    config.host(host).port(port).connect_timeout(REQUEST);
    if let Some((user, password)) = &url.user {
        config.user(user);
        if let Some(password) = password {
            config.password(password);
        }
    }
    if let Some(database) = &url.database {
        config.dbname(database);
    }
    config.application_name(url.application_name.as_deref().unwrap_or("litelease"));
    config.ssl_mode(match url.sslmode.as_str() {
        "disable" => SslMode::Disable,
        "prefer" => SslMode::Prefer,
        _ => SslMode::Require,
    });
    match host.contains(':') {
        true => (format!("[{host}]:{port}"), config),
        false => (format!("{host}:{port}"), config),
    }
}

impl Shared {
    /// Returns a connection whose tables are known to be ours.
    pub(crate) async fn session(&self) -> Result<Session> {
        let mut session = self.any_session().await.map_err(Failure::of_read)?;
        let lost = self.lost.load(Ordering::Acquire);
        if self.confirmed.load(Ordering::Acquire) < lost {
            let confirmed = Box::pin(self.query(&mut session, CONFIRM, &[])).await;
            confirmed.map_err(Failure::of_read)?;
            // Connections that were lost during the wait are skipped.
            self.confirmed.fetch_max(lost, Ordering::AcqRel);
        }
        if !self.is_checked.load(Ordering::Relaxed) {
            let checked = Box::pin(schema::check(&session.client, &session.host, &self.schema));
            match checked.await {
                Ok(()) => self.is_checked.store(true, Ordering::Relaxed),
                Err(Problem::Failure(failure)) => return Err(failure.of_read()),
                Err(Problem::Error(error)) => return Err(error),
            }
        }
        Ok(session)
    }

    /// Returns a connection, one that is kept or a new one.
    pub(crate) async fn any_session(&self) -> Result<Session, Failure> {
        let idle = locked(&self.idle).pop();
        match idle {
            Some(session) if !session.client.is_closed() => Ok(session),
            // In a box: a rare part must not make every request larger, which is moved a few times.
            _ => Box::pin(self.connect()).await,
        }
    }

    /// Keeps a connection for the next call.
    pub(crate) fn keep(&self, session: Session) {
        let mut idle = locked(&self.idle);
        if idle.len() < MOST_IDLE && !session.client.is_closed() {
            idle.push(session);
        }
    }

    /// Drops all connections: their server does not answer, or is no primary any more.
    fn drop_all(&self) {
        locked(&self.idle).clear();
    }

    /// Waits until the connections that were dropped are closed: the next call that drives them may
    /// come late, and a transaction that was left open keeps its locks until then.
    async fn close_dropped(&self) {
        let closing = std::mem::take(&mut *locked(&self.closing));
        for mover in closing {
            let _ = mover.await;
        }
    }

    /// The answer to a statement was lost.
    fn lost_answer(&self) {
        self.lost.fetch_add(1, Ordering::AcqRel);
        self.drop_all();
    }

    /// Asks another server from now on.
    fn next_after(&self, at: usize) {
        let next = (at + 1) % self.servers.len();
        let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Connects to the first server that takes writes.
    pub(crate) async fn connect(&self) -> Result<Session, Failure> {
        let mut failures = Vec::new();
        for _ in 0..self.servers.len() {
            let at = self.current.load(Ordering::Relaxed) % self.servers.len();
            let (host, _) = &self.servers[at];
            let dropped = OnDrop::new(|| self.next_after(at));
            let most = REQUEST + HANDSHAKE;
            let connected = timeout(most, self.connect_to(at)).await;
            match connected.unwrap_or_else(|_| Err(Failure::NotDone(late(host, most)))) {
                Err(Failure::NotDone(text) | Failure::Unknown(text)) => failures.push(text),
                connected => {
                    dropped.forget();
                    return connected;
                }
            }
        }
        Err(Failure::NotDone(failures.join("; ")))
    }

    async fn connect_to(&self, at: usize) -> Result<Session, Failure> {
        let (host, config) = &self.servers[at];
        let was_hasty = Arc::new(AtomicBool::new(false));
        let notifications = Arc::clone(&self.notifications);
        let failed = |error: tokio_postgres::Error| refused(host, &error);
        let (client, mover) = match &self.tls {
            None => {
                let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
                (client, tokio::spawn(drive(connection, Arc::clone(&was_hasty), notifications)))
            }
            Some(tls) => {
                let (client, connection) = config.connect(tls.clone()).await.map_err(failed)?;
                (client, tokio::spawn(drive(connection, Arc::clone(&was_hasty), notifications)))
            }
        };
        let mut session = Session {
            client,
            host: host.clone(),
            has_our_defaults: true,
            in_transaction: false,
            allowance: Duration::ZERO,
            was_hasty,
            mover: Some(mover),
            closing: Arc::clone(&self.closing),
            prepared: HashMap::new(),
        };
        let failed = |error| Failure::from_error(&session.host, &error).not_sent();
        let kind = timeout(REQUEST, session.client.query_typed(KIND, &[])).await;
        let kind = kind.map_err(|_| Failure::NotDone(late(host, REQUEST)))?.map_err(failed)?;
        let (is_standby, has_our_defaults) =
            kind.first().map_or((false, true), |row| (row.get(0), row.get(1)));
        if is_standby {
            return Err(Failure::NotDone(format!(
                "{}: this is a standby, and takes no writes",
                session.host
            )));
        }
        session.has_our_defaults = has_our_defaults;
        Ok(session)
    }

    /// Runs a statement, and drops the connection if its outcome is unknown.
    pub(crate) async fn query(
        &self,
        session: &mut Session,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Failure> {
        self.query_and_notify(session, sql, parameters, &[]).await
    }

    /// Runs a statement that frees names, and notifies their waiters in a statement of its own, so
    /// that commits do not wait for each other. It is sent behind the first one, and its answer is
    /// not awaited. If the first one stores nothing, the waiters read the row in vain.
    pub(crate) async fn query_and_notify(
        &self,
        session: &mut Session,
        sql: &str,
        parameters: &[Parameter<'_>],
        freed: &[&str],
    ) -> Result<Vec<Row>, Failure> {
        if !session.has_our_defaults && !session.in_transaction {
            return Box::pin(self.query_begun(session, sql, parameters, freed)).await;
        }
        let named =
            !self.has_pooler.load(Ordering::Relaxed) && !self.statements.is_planned_anew(sql);
        session.was_hasty.store(false, Ordering::Release);
        let tell = [(&self.schema as _, Type::TEXT), (&freed as _, Type::TEXT_ARRAY)];
        let tell: &[Parameter<'_>] = if freed.is_empty() { &[] } else { &tell };
        // The caller may have less time than a request takes.
        let dropped = OnDrop::new(|| self.lost_answer());
        let most = REQUEST + std::mem::take(&mut session.allowance);
        let done = timeout(most, session.query(sql, parameters, tell, named)).await;
        dropped.forget();
        let done = match done {
            Ok(Ok(rows)) if session.was_hasty.swap(false, Ordering::AcqRel) => {
                let hasty = "the server did not wait for its synchronous standby";
                drop(rows);
                Err(Failure::Unknown(format!("{}: {hasty}", session.host)))
            }
            Ok(done) => done.map_err(|error| Failure::from_error(&session.host, &error)),
            Err(_) => Err(Failure::Unknown(late(&session.host, most))),
        };
        match &done {
            Err(Failure::NamedStatement) => self.has_pooler.store(true, Ordering::Relaxed),
            Err(Failure::Unknown(_)) => self.lost_answer(),
            Err(Failure::NotDone(_)) => self.drop_all(),
            Err(Failure::NotBootstrapped) => self.is_checked.store(false, Ordering::Relaxed),
            _ => {}
        }
        done
    }

    /// Runs a statement in a transaction that is begun as ours must be.
    async fn query_begun(
        &self,
        session: &mut Session,
        sql: &str,
        parameters: &[Parameter<'_>],
        freed: &[&str],
    ) -> Result<Vec<Row>, Failure> {
        self.begin(session).await?;
        // Until the commit is sent, nothing is stored.
        let rows = self.query(session, sql, parameters).await.map_err(Failure::not_sent)?;
        self.end(session, "COMMIT", freed).await?;
        Ok(rows)
    }

    /// Begins a transaction of several statements. After an error its connection is not kept.
    pub(crate) async fn begin(&self, session: &mut Session) -> Result<(), Failure> {
        session.in_transaction = true;
        // A client that is stopped in between, or whose machine is gone, must not keep its locks.
        let limit = "pg_catalog.set_config('idle_in_transaction_session_timeout', '2000', true)";
        for sql in [BEGIN, &format!("SELECT {limit}, {SETTINGS}")] {
            self.query(session, sql, &[]).await.map_err(Failure::not_sent)?;
        }
        Ok(())
    }

    /// Ends a transaction with `COMMIT` or `ROLLBACK`, and notifies the waiters of `freed`.
    pub(crate) async fn end(
        &self,
        session: &mut Session,
        how: &str,
        freed: &[&str],
    ) -> Result<(), Failure> {
        self.query_and_notify(session, how, &[], freed).await?;
        session.in_transaction = false;
        Ok(())
    }
}

impl Session {
    /// Gives the next request the time that this many bytes take.
    pub(crate) fn allow(&mut self, bytes: usize) {
        self.allowance = time_to_move(bytes);
    }

    async fn query(
        &mut self,
        sql: &str,
        parameters: &[Parameter<'_>],
        tell: &[Parameter<'_>],
        named: bool,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        if !named {
            return self.telling(tell, self.client.query_typed(sql, parameters)).await;
        }
        let statement = match self.prepared.get(sql) {
            Some(statement) => statement.clone(),
            None => {
                let types: Vec<Type> = parameters.iter().map(|(_, kind)| kind.clone()).collect();
                let statement = self.client.prepare_typed(sql, &types).await?;
                self.prepared.insert(sql.to_owned(), statement.clone());
                statement
            }
        };
        let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|(value, _)| *value).collect();
        self.telling(tell, self.client.query(&statement, &values)).await
    }

    /// Waits for a statement, behind which the notifications are sent.
    async fn telling<T>(&self, tell: &[Parameter<'_>], statement: impl Future<Output = T>) -> T {
        if tell.is_empty() {
            return statement.await;
        }
        let (mut statement, mut told) =
            (pin!(statement), pin!(self.client.query_typed(NOTIFY, tell)));
        let mut is_sent = false;
        // The first poll of each sends it.
        poll_fn(|context| {
            let done = statement.as_mut().poll(context);
            if !is_sent {
                is_sent = true;
                let _ = told.as_mut().poll(context);
            }
            done
        })
        .await
    }
}

/// Runs an action when it is dropped, unless it is forgotten: as when the caller of a future gives
/// it up.
struct OnDrop<F: FnMut()>(Option<F>);

impl<F: FnMut()> OnDrop<F> {
    fn new(action: F) -> Self {
        OnDrop(Some(action))
    }

    fn forget(mut self) {
        self.0 = None;
    }
}

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(action) = &mut self.0 {
            action();
        }
    }
}

/// Drives a connection, and reads the notifications of the server.
async fn drive<S, T>(
    mut connection: Connection<S, T>,
    was_hasty: Arc<AtomicBool>,
    notifications: Arc<NotificationCounts>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        match message {
            // The warning that a wait for the standby was ended has no code of its own, and its
            // text is translated. No statement of ours has any other.
            AsyncMessage::Notice(notice) if notice.parsed_severity() == Some(Severity::Warning) => {
                was_hasty.store(true, Ordering::Release);
            }
            AsyncMessage::Notification(sent) => notifications.notify(sent.payload()),
            _ => {}
        }
    }
}

/// Returns a positive number that is the same for a text in every version of every program: FNV-1a.
pub(crate) fn number_of(text: &str) -> i64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    i64::try_from(hash >> 1).unwrap_or(1).max(1)
}

/// Reads an error of connecting: nothing was sent.
fn refused(host: &str, error: &tokio_postgres::Error) -> Failure {
    let text = format!("{host}: {}", chain(error));
    match error.as_db_error() {
        Some(_) => Failure::from_error(host, error).not_sent(),
        None if text.contains("certificate") => {
            Failure::Refused(format!("{text}: check sslmode and sslrootcert of the URL"))
        }
        None if text.contains("server does not support TLS") => {
            Failure::Refused(format!("{text}: write ?sslmode=prefer, or switch TLS on there"))
        }
        None if text.contains("password missing") => Failure::Refused(format!(
            "{host}: the server asks for a password, and the URL has none: write USER:PASSWORD@HOST"
        )),
        None => Failure::NotDone(text),
    }
}

fn late(host: &str, time: Duration) -> String {
    format!("{host}: no answer within {} ms", time.as_millis())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
