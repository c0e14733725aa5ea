//! `litelease serve`: named leases and pools of numbered slots over HTTP.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use litelease::credentials::Issuer;
use litelease_cluster::Cluster;
use litelease_core::Thresholds;
use litelease_serve::{
    LocalSocket, OpenError, Options, Replica, Service, Tls, run_replica_until_signal,
    run_until_signal,
};
use serde_json::json;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

use crate::Common;
use crate::database;
use crate::duration::{parse, parse_positive};
use crate::engine_url::EngineUrl;
use crate::exit::{Failure, Result, code};
use crate::output::{complain, printable, remark};

/// Serve named leases, queues and pools of numbered slots over HTTP, with a page for operators
///
/// Prints the address and serves until SIGINT or SIGTERM. Logs to standard error, one line of JSON
/// per request, except claims, borrows, renewals and returns that succeeded. Ids, leases, grants,
/// keys and notes are never logged.
///
/// A new file is readable by you alone (0600); an existing file keeps its mode. A second server on
/// the same file is refused.
///
/// Every client that knows the UUID of a pool may use it; everything else needs an access key (see
/// `litelease access --help`). The first start makes a key for you, in the folder for state.
///
/// To serve other machines, give it a certificate with --tls-cert and --tls-key, and the name in it
/// with --host.
///
/// With --db etcd://… or postgres://… any number of machines serve the same pools, names and
/// queues. One of them writes, and the others pass connections on to it. If it ends, another one
/// takes over: at once after a signal, otherwise when its lease of --writer-ttl is over. All of
/// them need the same certificate, and --advertise if the others do not reach them where they
/// listen.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  litelease serve --db pools.sqlite3
  litelease serve --listen 127.0.0.1:0 --db pools.sqlite3    any free port
  litelease serve --listen 10.0.0.7:7070 --db etcd://10.0.0.1:2379,10.0.0.2:2379 --tls-cert …
  litelease serve --listen 0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem --host lease.example
  curl -X PUT -H 'Content-Type: application/json' -d '{\"count\":4}' localhost:7070/l/$(uuidgen)

Exit codes: 0 a signal has ended it; 64 usage; 69 the file or the address cannot be had, or
another server has the file.")]
pub(crate) struct Args {
    /// Where to listen; port 0 means any free port
    #[arg(long, env = "LITELEASE_LISTEN", hide_env_values = true, value_name = "ADDRESS:PORT")]
    #[arg(default_value = "127.0.0.1:7070")]
    listen: String,
    /// A host name that clients use for this server, besides localhost and addresses; may be
    /// repeated
    #[arg(long, env = "LITELEASE_HOST", hide_env_values = true, value_name = "NAME")]
    #[arg(value_delimiter = ',')]
    host: Vec<String>,
    /// The certificate to speak TLS with, and its chain, as PEM; read again when it has changed
    #[arg(long, env = "LITELEASE_TLS_CERT", hide_env_values = true, value_name = "FILE")]
    #[arg(requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate, as PEM
    #[arg(long, env = "LITELEASE_TLS_KEY", hide_env_values = true, value_name = "FILE")]
    #[arg(requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Let every client call everything, without an access key
    #[arg(long, env = "LITELEASE_OPEN", hide_env_values = true)]
    open: bool,
    /// Show /metrics without an access key
    #[arg(long, env = "LITELEASE_OPEN_METRICS", hide_env_values = true)]
    open_metrics: bool,
    /// Listen beyond loopback without TLS, behind a proxy that has it; also allows --open there
    #[arg(long, env = "LITELEASE_INSECURE", hide_env_values = true)]
    insecure: bool,
    /// The folder with the keys of `litelease credential`, whose public keys are served at
    /// /.well-known/jwks.json
    #[arg(long, env = "LITELEASE_CREDENTIALS", hide_env_values = true, value_name = "FOLDER")]
    credentials: Option<PathBuf>,
    /// The largest pool
    #[arg(long, env = "LITELEASE_MAX_COUNT", hide_env_values = true, value_name = "N")]
    #[arg(default_value = "1000", value_parser = clap::value_parser!(i64).range(0..=1_000_000))]
    max_count: i64,
    /// The longest ttl; a longer one is shortened to this
    #[arg(long, env = "LITELEASE_MAX_TTL", hide_env_values = true, value_name = "TIME")]
    #[arg(default_value = "24h", value_parser = positive)]
    max_ttl: Duration,
    /// The longest wait; a longer one is shortened to this
    #[arg(long, env = "LITELEASE_MAX_WAIT", hide_env_values = true, value_name = "TIME")]
    #[arg(default_value = "5m", value_parser = within_years)]
    max_wait: Duration,
    /// How many requests may wait at a time. Clients without an access key have half of this and of
    /// the limits below together, each access key has its --key-share
    #[arg(long, env = "LITELEASE_MAX_WAITERS", hide_env_values = true, value_name = "N")]
    #[arg(default_value = "20000", value_parser = clap::value_parser!(u32))]
    max_waiters: u32,
    /// How many connections may be open at a time
    #[arg(long, env = "LITELEASE_MAX_CONNECTIONS", hide_env_values = true, value_name = "N")]
    #[arg(default_value = "20000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections: u32,
    /// How many event streams may be open at a time
    #[arg(long, env = "LITELEASE_MAX_STREAMS", hide_env_values = true, value_name = "N")]
    #[arg(default_value = "4000", value_parser = clap::value_parser!(u32))]
    max_streams: u32,
    /// How many bytes of long requests and answers may be under way at a time
    #[arg(long, env = "LITELEASE_MAX_BYTES", hide_env_values = true, value_name = "N")]
    #[arg(default_value = "268435456", value_parser = clap::value_parser!(u32))]
    max_bytes: u32,
    /// How many pools may be stored
    #[arg(long, env = "LITELEASE_MAX_POOLS", hide_env_values = true, value_name = "N")]
    #[arg(default_value = "100000", value_parser = clap::value_parser!(u32))]
    max_pools: u32,
    /// How many answers to requests with an Idempotency-Key may be stored in a day
    #[arg(long, env = "LITELEASE_MAX_ANSWERS", hide_env_values = true, value_name = "N")]
    #[arg(default_value = "20000000", value_parser = clap::value_parser!(u32))]
    max_answers: u32,
    /// The share of each access key, in percent of each of these limits
    #[arg(long, env = "LITELEASE_KEY_SHARE", hide_env_values = true, value_name = "PERCENT")]
    #[arg(default_value = "25", value_parser = clap::value_parser!(u8).range(1..=100))]
    key_share: u8,
    /// How long a client may take to send the head of a request, and its body
    #[arg(long, env = "LITELEASE_MAX_PATIENCE", hide_env_values = true, value_name = "TIME")]
    #[arg(default_value = "10s", value_parser = positive)]
    max_patience: Duration,
    /// The address at which the other servers on an engine reach this one [default: where it
    /// listens]
    #[arg(long, env = "LITELEASE_ADVERTISE", hide_env_values = true, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// How long the lease of the server that writes to an engine is: after its crash, no request is
    /// answered for that long
    #[arg(long, env = "LITELEASE_WRITER_TTL", hide_env_values = true, value_name = "TIME")]
    #[arg(default_value = "5s", value_parser = writer_ttl)]
    writer_ttl: Duration,
    /// How many requests may share a commit
    #[arg(long, env = "LITELEASE_MAX_BATCH", hide_env_values = true, value_name = "N")]
    #[arg(default_value = "1000", value_parser = clap::value_parser!(u32).range(1..))]
    max_batch: u32,
    /// Call a name stuck when a client waits longer than this for it
    #[arg(long, env = "LITELEASE_STUCK_WAIT", hide_env_values = true, value_name = "TIME")]
    #[arg(default_value = "10m", value_parser = positive)]
    stuck_wait: Duration,
    /// Call a queue stuck when an item is visible longer than this and no worker receives
    #[arg(long, env = "LITELEASE_STUCK_ITEM", hide_env_values = true, value_name = "TIME")]
    #[arg(default_value = "5m", value_parser = positive)]
    stuck_item: Duration,
    /// Call a schedule stuck when its tick is due for longer than this and not begun
    #[arg(long, env = "LITELEASE_STUCK_TICK", hide_env_values = true, value_name = "TIME")]
    #[arg(default_value = "10m", value_parser = positive)]
    stuck_tick: Duration,
    /// How many rows of history the file keeps; 0 for none [default: 100000, or what it keeps
    /// already]
    #[arg(long, env = "LITELEASE_HISTORY", hide_env_values = true, value_name = "ROWS")]
    history: Option<u32>,
    /// How much to log: off, error, warn, info (requests, except borrows, returns and renewals that
    /// succeeded), debug (all requests)
    #[arg(long, env = "LITELEASE_LOG", hide_env_values = true, value_name = "LEVEL")]
    #[arg(default_value = "info", value_parser = level)]
    log: LevelFilter,
    /// Once, after the file was restored from a backup: end every lease in it, and go on with
    /// tokens far above
    #[arg(long)]
    restore_fence: bool,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    // Before the file is opened: where a service is there already, nothing is made and nothing is
    // fenced.
    let listener =
        TcpListener::bind(&args.listen).map_err(|error| cannot_listen(&args.listen, &error))?;
    let address = listener.local_addr()?;
    args.check_exposure(address)?;
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => Some(Tls::load(certificate, key)?),
        _ => None,
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let options = Options { tls, ..args.options() };
    if let Some(issuer) = &options.credentials {
        // Better now than at the first request.
        issuer.keys()?;
    }
    if let Some(url) = EngineUrl::from_common(common)? {
        return args.execute_on(&url, listener, options, scheme, common);
    }
    if args.advertise.is_some() {
        return Err(Failure::usage(
            "--advertise is for servers on an engine: a file has one server, so leave it out",
        ));
    }
    let path = database::prepare(common)?;
    database::check_local(&path)?;
    start_log(args.log);
    let opened = match args.restore_fence {
        true => Service::open_restored(&path, options),
        false => Service::open(&path, options),
    };
    let (service, url) = (opened?, format!("{scheme}://{address}"));
    let access = match args.open {
        true => None,
        false => keep_local_key(|folder| service.keep_local_key(folder, address))?,
    };
    let local = listen_locally(access.as_deref(), scheme);
    run_until_signal(listener, local, service, || print_address(&url, access.as_deref(), common))?;
    Ok(code::OK)
}

fn print_address(url: &str, access: Option<&Path>, common: &Common) {
    // A log that is full does not keep a service from its clients.
    let value = json!({ "listening": url, "access_file": access });
    let printed = remark(common, value, &format!("listening at {url}"));
    printed.unwrap_or_else(|failure| failure.print(common.json));
}

/// Writes the access key of this user. Where that is not possible, the service does without it.
fn keep_local_key(
    keep: impl FnOnce(&Path) -> std::result::Result<Option<PathBuf>, OpenError>,
) -> Result<Option<PathBuf>> {
    let Some(folder) = database::state_folder() else { return Ok(None) };
    match keep(&folder.join("access")) {
        Err(error @ OpenError::LocalKey { .. }) => {
            complain(&json!({ "level": "WARN", "message": error.to_string() }).to_string());
            Ok(None)
        }
        kept => Ok(kept?),
    }
}

/// Opens the socket for commands of this user. With TLS it is not needed, because the certificate
/// proves the server.
fn listen_locally(access: Option<&Path>, scheme: &str) -> Option<LocalSocket> {
    let file = access.filter(|_| scheme == "http")?;
    match LocalSocket::beside(file) {
        Ok(socket) => Some(socket),
        Err(error) => {
            let text = format!("no socket beside {}: {error}", file.display());
            let text = format!("{text}; commands must name the key in LITELEASE_ACCESS_FILE");
            complain(&json!({ "level": "WARN", "message": text }).to_string());
            None
        }
    }
}

impl Args {
    /// Serves as one of several servers on an engine.
    fn execute_on(
        &self,
        url: &EngineUrl,
        listener: TcpListener,
        options: Options,
        scheme: &str,
        common: &Common,
    ) -> Result<u8> {
        if self.restore_fence {
            return Err(Failure::usage(format!(
                "--restore-fence is for a file: run litelease restore-fence --db {} before the servers start",
                url.shown()
            )));
        }
        let address = listener.local_addr()?;
        let advertise = self.advertised(address)?;
        start_log(self.log);
        let cluster = Cluster::open(url.whole())?;
        let replica = Replica::new(cluster, &advertise, options)?.with_ttl(self.writer_ttl);
        let access = match self.open {
            true => None,
            false => keep_local_key(|folder| replica.keep_local_key(folder, address))?,
        };
        let url = format!("{scheme}://{address}");
        let ready = || print_address(&url, access.as_deref(), common);
        let local = listen_locally(access.as_deref(), scheme);
        run_replica_until_signal(listener, local, replica, ready)?;
        Ok(code::OK)
    }

    /// Returns the address at which the other servers reach this one.
    fn advertised(&self, address: SocketAddr) -> Result<String> {
        match &self.advertise {
            None if address.ip().is_unspecified() => Err(Failure::usage(format!(
                "the other servers cannot reach this one at {address}: add --advertise HOST:PORT"
            ))),
            None => Ok(address.to_string()),
            Some(advertise) => {
                let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
                let is_right = advertise.rsplit_once(':').is_some_and(|(host, port)| {
                    !host.is_empty() && !host.contains([' ', '/']) && is_port(port)
                });
                match is_right {
                    true => Ok(advertise.clone()),
                    false => Err(Failure::usage(format!(
                        "--advertise {}: write HOST:PORT, like 10.0.0.7:7070",
                        printable(advertise)
                    ))),
                }
            }
        }
    }

    /// Refuses settings that other machines could read or abuse, unless an option allows them.
    fn check_exposure(&self, address: SocketAddr) -> Result<()> {
        if self.insecure || address.ip().is_loopback() {
            return Ok(());
        }
        let refuse = |text: String| Err(Failure::usage(text));
        match (self.open, &self.tls_cert) {
            (true, _) => refuse(format!(
                "--open at {address} lets every machine that reaches it end every lease: leave --open out and make \
                 keys with litelease access add, or add --insecure"
            )),
            (false, None) => refuse(format!(
                "{address} can be reached by other machines, and keys and leases would go there in the clear: add \
                 --tls-cert cert.pem --tls-key key.pem, or --insecure behind a proxy that has TLS"
            )),
            (false, Some(_)) => Ok(()),
        }
    }

    fn options(&self) -> Options {
        let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        Options {
            max_count: self.max_count,
            max_ttl: self.max_ttl,
            max_wait: self.max_wait,
            max_waiters: size(self.max_waiters),
            max_connections: size(self.max_connections),
            max_streams: size(self.max_streams),
            max_bytes: size(self.max_bytes),
            max_pools: size(self.max_pools),
            max_answers: size(self.max_answers),
            key_percent: self.key_share,
            patience: self.max_patience,
            max_batch: size(self.max_batch),
            history: self.history,
            open: self.open,
            open_metrics: self.open_metrics,
            credentials: self.credentials.clone().map(Issuer::at),
            thresholds: self.thresholds(),
            hosts: self.host.iter().map(|name| name.trim().to_owned()).collect(),
            ..Options::default()
        }
    }

    fn thresholds(&self) -> Thresholds {
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        Thresholds {
            wait_ms: ms(self.stuck_wait),
            item_ms: ms(self.stuck_item),
            tick_ms: ms(self.stuck_tick),
            ..Thresholds::default()
        }
    }
}

/// Logs only the lines of the service: those of its libraries would show whole paths, which are
/// secret.
fn start_log(level: LevelFilter) {
    let lines = tracing_subscriber::fmt::layer().json().with_writer(io::stderr);
    // It would panic if it could not print its own error.
    let lines = lines.log_internal_errors(false);
    let ours = Targets::new().with_target("litelease_serve", level);
    tracing_subscriber::registry().with(lines.with_filter(ours)).init();
}

fn cannot_listen(listen: &str, error: &io::Error) -> Failure {
    let way_out = match error.kind() {
        ErrorKind::AddrInUse => {
            "something else listens there; end it, or choose another port with --listen"
        }
        ErrorKind::PermissionDenied => {
            "ports below 1024 need a privilege (CAP_NET_BIND_SERVICE); choose another one with --listen"
        }
        ErrorKind::AddrNotAvailable => {
            "this machine has no such address; choose another with --listen"
        }
        ErrorKind::InvalidInput => {
            let text = format!("cannot listen at {listen}: say ADDRESS:PORT, like 127.0.0.1:7070");
            return Failure::usage(text);
        }
        _ => return Failure::listen(format!("cannot listen at {listen}: {error}")),
    };
    Failure::listen(format!("cannot listen at {listen}: {way_out}"))
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Database(error) => error.into(),
            OpenError::Cluster(error) => error.into(),
            error => Failure::failed(error.kind(), error),
        }
    }
}

/// Parses the ttl of the writer: at least a second, so that a busy machine keeps it, and at most a
/// minute, because a crashed writer blocks all requests for that long.
fn writer_ttl(text: &str) -> std::result::Result<Duration, String> {
    match parse_positive(text)? {
        time if (1..=60).contains(&time.as_secs()) => Ok(time),
        _ => Err("it must be from 1s to 60s".into()),
    }
}

/// Longer times would not fit into the milliseconds of a file.
const YEARS: Duration = Duration::from_secs(10 * 365 * 86_400);

fn within_years(text: &str) -> std::result::Result<Duration, String> {
    match parse(text)? {
        time if time <= YEARS => Ok(time),
        _ => Err("it must be at most ten years".into()),
    }
}

fn positive(text: &str) -> std::result::Result<Duration, String> {
    parse_positive(text)?;
    within_years(text)
}

fn level(text: &str) -> std::result::Result<LevelFilter, String> {
    text.parse().map_err(|_| "it must be off, error, warn, info or debug".into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn without_a_flag_the_limits_are_those_of_the_library() {
        let line = Line::try_parse_from(["serve"]).map_err(|error| error.to_string());
        let options = line.map(|line| format!("{:?}", line.args.options()));
        assert_eq!(options, Ok(format!("{:?}", Options::default())));
    }
}
