//! The program: flags and environment variables, a log, and the signals that end it.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use litelease_serve::{Options, Service, run};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

const HELP: &str = "\
litelease-serve: pools of numbered slots over HTTP, from one SQLite file

  --listen ADDRESS         where to listen (127.0.0.1:7070)
  --db FILE                the file, created if it is missing (litelease.sqlite3)
  --host NAME              a name by which clients call this server, besides localhost and addresses; may be repeated
  --max-count N            the largest pool (1000)
  --max-ttl SECONDS        the longest ttl (86400)
  --max-wait SECONDS       the longest wait (300)
  --max-waiters N          how many borrows may wait at a time (10000)
  --max-connections N      how many connections may be open at a time (20000)
  --max-batch N            how many requests may share a commit (1000)
  --restore-fence          once, after the file was restored from a backup: ends every lease, and tokens go on far above

Each with a value has an environment variable, such as LITELEASE_MAX_COUNT; a flag comes first.
";

/// What to serve and where.
struct Settings {
    listen: String,
    db: PathBuf,
    options: Options,
    is_restored: bool,
}

fn main() -> ExitCode {
    if env::args().skip(1).any(|word| word == "--help" || word == "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let settings = match settings() {
        Ok(settings) => settings,
        Err(complaint) => {
            eprintln!("litelease-serve: {complaint} (--help lists what there is)");
            return ExitCode::from(2);
        }
    };
    tracing_subscriber::fmt().json().with_writer(std::io::stderr).init();
    // One thread has all connections and another one writes: more would only wake each other.
    let served = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(serve(settings)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("litelease-serve: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(settings: Settings) -> Result<(), String> {
    let Settings { listen, db, options, is_restored } = settings;
    let opened = match is_restored {
        true => Service::open_restored(&db, options),
        false => Service::open(&db, options),
    };
    let service = opened.map_err(|error| error.to_string())?;
    let listener = TcpListener::bind(&listen)
        .await
        .map_err(|error| format!("cannot listen at {listen}: {error}"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    // Whoever has started this reads where it is.
    println!("listening at http://{address}");
    let shutdown = async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    run(listener, service, shutdown).await.map_err(|error| error.to_string())
}

fn settings() -> Result<Settings, String> {
    let mut options = Options::default();
    let (mut listen, mut db) = ("127.0.0.1:7070".to_owned(), PathBuf::from("litelease.sqlite3"));
    let mut given: Vec<(String, String)> = Vec::new();
    for name in [
        "listen",
        "db",
        "host",
        "max-count",
        "max-ttl",
        "max-wait",
        "max-waiters",
        "max-connections",
        "max-batch",
    ] {
        let variable = format!("LITELEASE_{}", name.replace('-', "_").to_uppercase());
        if let Ok(value) = env::var(&variable) {
            given.push((format!("--{name}"), value));
        }
    }
    let mut words = env::args().skip(1);
    let mut is_restored = false;
    while let Some(word) = words.next() {
        if word == "--restore-fence" {
            is_restored = true;
            continue;
        }
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (word, words.next()),
        };
        let value = value.ok_or_else(|| format!("{flag} needs a value"))?;
        given.push((flag, value));
    }
    for (flag, value) in given {
        let number = |most: i64| match value.parse::<i64>() {
            Ok(number) if (0..=most).contains(&number) => Ok(number),
            _ => Err(format!("{flag} must be a whole number from 0 to {most}, got {value:?}")),
        };
        let seconds = || match value.parse::<f64>().ok().map(Duration::try_from_secs_f64) {
            Some(Ok(seconds)) if seconds <= Duration::from_secs(10 * 365 * 86_400) => Ok(seconds),
            _ => Err(format!("{flag} must be a number of seconds, got {value:?}")),
        };
        let size = || number(1_000_000_000).map(|number| usize::try_from(number).unwrap_or(0));
        match flag.as_str() {
            "--listen" => listen = value,
            "--db" => db = value.into(),
            "--host" => options.hosts.extend(value.split(',').map(|name| name.trim().to_owned())),
            "--max-count" => options.max_count = number(1_000_000)?,
            "--max-ttl" => options.max_ttl = seconds()?.max(Duration::from_millis(1)),
            "--max-wait" => options.max_wait = seconds()?,
            "--max-waiters" => options.max_waiters = size()?,
            "--max-batch" => options.max_batch = size()?.max(1),
            "--max-connections" => options.max_connections = size()?.max(1),
            _ => return Err(format!("there is no flag {flag}")),
        }
    }
    Ok(Settings { listen, db, options, is_restored })
}
