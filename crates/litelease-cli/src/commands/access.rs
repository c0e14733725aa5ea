//! `litelease access`: the access keys of the service.

use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use litelease::{Litelease, Permission};
use litelease_cluster::Cluster;
use litelease_serve::{AccessKey, AccessRow, ClusterAccess, FileAccess};
use serde_json::{Value, json};

use crate::Common;
use crate::database;
use crate::duration::{parse_positive, shown};
use crate::engine_url::EngineUrl;
use crate::exit::{Result, code};
use crate::output::{answer, complain, lines, printable, remark, say};

/// Make, list and take back access keys of a served file
///
/// Every call under /v1 needs an access key. A key allows scopes, each for the names that match a
/// pattern, in which * stands for any text: observe (see), claim (claim, renew, release, transfer),
/// send and receive (queues), operate (break). The server may be running: it heeds a change at
/// once, and servers on an engine (--db URL) do within a second.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  litelease access add ci --allow 'claim:backup/*' --allow 'observe:*' --expires 90d
  litelease access list
  litelease access remove ci")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Make a key and print it, this one time; the file keeps only its SHA-256
    Add {
        /// The name of the key
        #[arg(value_parser = super::name)]
        name: String,
        /// A permission of the key; may be repeated
        #[arg(long, required = true, value_name = "SCOPE:PATTERN", value_parser = Permission::parse)]
        allow: Vec<Permission>,
        /// How long it is valid [default: until it is removed]
        #[arg(long, value_name = "TIME", value_parser = parse_positive)]
        expires: Option<Duration>,
    },
    /// List the keys: what each may do, and until when
    List,
    /// Take a key back; the server refuses it from now on
    Remove {
        /// The name of the key
        #[arg(value_parser = super::name)]
        name: String,
    },
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    match args.verb {
        Verb::Add { name, allow, expires } => add(&name, &allow, expires, common),
        Verb::List => list(common),
        Verb::Remove { name } => remove(&name, common),
    }
}

/// Where the keys are: in a file, or on the engine of several servers.
enum Keys {
    File(Box<Litelease>),
    Engine(ClusterAccess),
}

impl Keys {
    /// Opens the engine, or a file as `open` does.
    fn open(common: &Common, open: impl FnOnce() -> Result<Litelease>) -> Result<Self> {
        match EngineUrl::from_common(common)? {
            None => Ok(Keys::File(Box::new(open()?))),
            Some(url) => {
                let cluster = Cluster::open(url.whole())?;
                cluster.bootstrap()?;
                Ok(Keys::Engine(ClusterAccess::new(cluster)))
            }
        }
    }

    fn add(&self, name: &str, hash: &[u8], allow: &str, ttl: Option<Duration>) -> Result<bool> {
        Ok(match self {
            Keys::File(db) => FileAccess::new(db).add(name, hash, allow, ttl)?,
            Keys::Engine(keys) => keys.add(name, hash, allow, ttl)?,
        })
    }

    fn list(&self) -> Result<Vec<AccessRow>> {
        Ok(match self {
            Keys::File(db) => FileAccess::new(db).list()?.unwrap_or_default(),
            Keys::Engine(keys) => keys.list()?,
        })
    }

    fn remove(&self, name: &str) -> Result<bool> {
        Ok(match self {
            Keys::File(db) => FileAccess::new(db).remove(name)?,
            Keys::Engine(keys) => keys.remove(name)?,
        })
    }
}

fn add(name: &str, allow: &[Permission], expires: Option<Duration>, common: &Common) -> Result<u8> {
    let keys = Keys::open(common, || database::open_patiently(common, Duration::ZERO))?;
    let key = AccessKey::generate()?;
    let allow: Vec<String> = allow.iter().map(Permission::to_string).collect();
    if !keys.add(name, &key.hash(), &allow.join("\n"), expires)? {
        let text = format!("{0}: there is a key of that name; remove it first", printable(name));
        complain(&format!("litelease: {text}"));
        return Ok(code::NO);
    }
    let printed =
        answer(common, json!({ "name": name, "key": key.show(), "allow": allow }), key.show());
    if printed.is_err() {
        // No user has seen the key, so it is of no use.
        keys.remove(name)?;
    }
    printed.map(|()| code::OK)
}

fn list(common: &Common) -> Result<u8> {
    let rows = Keys::open(common, || database::open_existing(common))?.list()?;
    let now_ms = litelease::now_ms();
    if common.json {
        say(&rows.iter().map(|row| entry(row, now_ms)).collect::<Value>().to_string())?;
    } else if rows.is_empty() {
        say("there are no access keys")?;
    } else {
        say(&table(&rows, now_ms))?;
    }
    Ok(code::OK)
}

fn remove(name: &str, common: &Common) -> Result<u8> {
    let removed = Keys::open(common, || database::open_existing(common))?.remove(name)?;
    let name = printable(name);
    let (text, code) = match removed {
        true => (format!("{name}: removed"), code::OK),
        false => (format!("{name}: there is no such key"), code::NO),
    };
    remark(common, json!({ "removed": removed }), &text)?;
    Ok(code)
}

fn entry(row: &AccessRow, now_ms: i64) -> Value {
    json!({
        "name": row.name,
        "allow": row.allow.lines().collect::<Vec<_>>(),
        "created_at_ms": row.created_at_ms,
        "expires_at_ms": row.expires_at_ms,
        "is_valid": row.expires_at_ms.is_none_or(|at_ms| at_ms > now_ms),
    })
}

fn table(rows: &[AccessRow], now_ms: i64) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["NAME", "EXPIRES", "ALLOW"]);
    for row in rows {
        let expires = match row.expires_at_ms {
            None => "never".into(),
            Some(at_ms) if at_ms <= now_ms => "expired".into(),
            Some(at_ms) => format!("in {}", shown(at_ms - now_ms)),
        };
        let allow = row.allow.lines().collect::<Vec<_>>().join(" ");
        table.add_row([printable(&row.name), expires, printable(&allow)]);
    }
    lines(&table)
}
