//! `litelease doctor`: checks everything that leases depend on, and prints what to do.

use std::path::Path;

use litelease::rusqlite::{self, Connection};
use litelease::{BootRecord, EpochInfo, Identity, LeaseRow, Litelease, Status, pool_of_name};
use litelease_sys::{is_group_lost, network_filesystem};
use serde_json::{Value, json};

use crate::Common;
use crate::database;
use crate::duration::shown;
use crate::engine_url::EngineUrl;
use crate::exit::{Result, code};
use crate::output::{GREEN, RED, YELLOW, owner, printable, process, say, slot_lease};
use crate::target::Engine;

/// Check the file or the engine with the leases, and say what to do
#[derive(clap::Args)]
#[command(after_help = "Examples:
  litelease doctor --db app.sqlite3    exit code 1: something is wrong
  litelease doctor --db etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379")]
pub(crate) struct Args {}

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    Warn,
    Wrong,
}

use Verdict::{Ok as Fine, Warn, Wrong};

/// One thing that was looked at.
struct Finding {
    what: String,
    verdict: Verdict,
    text: String,
}

pub(crate) fn execute(_: Args, common: &Common) -> Result<u8> {
    let mut findings = Vec::new();
    let mut note = |what: &str, verdict, text| {
        findings.push(Finding { what: what.to_owned(), verdict, text });
    };
    let engine = EngineUrl::from_common(common).map(|url| url.map(Engine::new));
    let (kind, place) = match (common.server()?, engine?) {
        (None, Some(engine)) => {
            inspect_engine(&engine, &mut note);
            ("url", engine.shown())
        }
        _ => {
            let path = database::path(common)?;
            inspect_file(&path, common, &mut note);
            ("file", path.display().to_string())
        }
    };
    if common.json {
        let all: Vec<Value> = findings.iter().map(Finding::as_json).collect();
        say(&json!({ kind: place, "findings": all }).to_string())?;
    } else {
        findings.iter().try_for_each(Finding::print)?;
    }
    let is_wrong = findings.iter().any(|finding| finding.verdict == Wrong);
    Ok(if is_wrong { code::NO } else { code::OK })
}

type Note<'a> = &'a mut dyn FnMut(&str, Verdict, String);

/// Checks the engine by its own facts, and the leases there.
fn inspect_engine(engine: &Engine, note: Note<'_>) {
    note("url", Fine, engine.shown());
    let facts = engine.cluster().and_then(|cluster| Ok(cluster.facts()?));
    match facts {
        Ok(facts) => {
            facts.facts.into_iter().for_each(|(word, text)| note(&word, Fine, text));
            facts.warnings.into_iter().for_each(|text| note("engine", Warn, text));
        }
        Err(failure) => return note("engine", Wrong, failure.to_string()),
    }
    match engine.check().and_then(|()| engine.rows()) {
        Ok(leases) => {
            holders(&leases, note);
            let newest = leases.iter().map(|lease| lease.token).max().unwrap_or(0);
            match engine.cluster().and_then(|cluster| Ok(cluster.engine().load(&[])?)) {
                Ok(loaded) => how_far(newest.max(loaded.floor.epoch.floor), note),
                Err(failure) => note("tokens", Wrong, failure.to_string()),
            }
        }
        Err(failure) if failure.is_missing_table() => note("leases", Warn, failure.to_string()),
        Err(failure) => note("leases", Wrong, failure.to_string()),
    }
}

fn inspect_file(path: &Path, common: &Common, note: Note<'_>) {
    let file = path.display();
    if !path.exists() {
        return note(
            "file",
            Warn,
            format!("{file} is not there yet: the first claim or run makes it"),
        );
    }
    note("file", Fine, file.to_string());
    if let Some(kind) = network_filesystem(path) {
        note("filesystem", Wrong, format!("{kind}: {}", database::NOT_LOCAL));
    }
    let db = match database::open_existing(common) {
        Ok(db) => db,
        Err(failure) => return note("database", Wrong, failure.to_string()),
    };
    match db.conn().pragma_query_value(None, "quick_check", |row| row.get::<_, String>(0)) {
        Ok(said) if said == "ok" => note("database", Fine, "quick_check finds nothing".into()),
        Ok(said) => return note("database", Wrong, format!("{said}: restore it from a backup")),
        Err(error) => return note("database", Wrong, format!("{file}: {error}")),
    }
    sharing(path, note);
    durability(db.conn(), note);
    versions(note);
    writer(&db, path, note);
    match db.list() {
        Ok(leases) => {
            holders(&leases, note);
            slots(&db, note);
            guards(&db, note);
            queues(&db, note);
            side_tables(&db, note);
            match db.epoch() {
                Ok(epoch) if epoch.newest == i64::MAX => retirement(&db, note),
                Ok(epoch) => tokens(epoch, note),
                Err(error) => note("tokens", Wrong, error.to_string()),
            }
        }
        Err(litelease::Error::NotBootstrapped) => {
            note("leases", Warn, "no lease table yet: the first claim or run makes it".into());
        }
        Err(error) => note("leases", Wrong, error.to_string()),
    }
}

/// Reports where the leases of a file went that grants nothing any more.
fn retirement(db: &Litelease, note: Note<'_>) {
    match db.retirement() {
        Ok(Some(retirement)) => {
            let (moved_to, floor) = (printable(&retirement.moved_to), retirement.floor);
            let text = format!(
                "nothing is granted here any more: the leases went to {moved_to}, with tokens above {floor}; give \
                 --db that URL"
            );
            note("moved", Warn, text);
        }
        Ok(None) => {
            let text =
                "the largest possible token was granted: start with a new file and new names";
            note("tokens", Wrong, text.into());
        }
        Err(error) => note("moved", Wrong, error.to_string()),
    }
}

/// With fewer epochs below 2⁵³ left than this, an eighth of all, it is time to think of it.
const FEW_EPOCHS: i64 = 1 << 18;

/// Checks whether tokens stay in order after a power cut, and how far they have come.
fn tokens(epoch: EpochInfo, note: Note<'_>) {
    match epoch.boot {
        BootRecord::Durable => {
            note("boot", Fine, "recorded: no token is used twice after a power cut".into());
        }
        BootRecord::AtRisk => note(
            "boot",
            Warn,
            "leases were claimed inside a transaction before this boot of the machine was recorded, so their tokens \
             could be used twice after a power cut: call bootstrap outside a transaction, at every start of your \
             program"
                .into(),
        ),
        BootRecord::Missing => note(
            "boot",
            Warn,
            "not recorded since the machine was started: tokens claimed inside a transaction, with a synchronous \
             weaker than FULL (without WAL: EXTRA), could be used twice after a power cut: call bootstrap outside \
             a transaction, at every start of your program"
                .into(),
        ),
    }
    how_far(epoch.newest, note);
}

/// Reports how far tokens have come.
fn how_far(newest: i64, note: Note<'_>) {
    let left = EpochInfo { newest, boot: BootRecord::Durable }.epochs_left();
    match left {
        FEW_EPOCHS.. => note("tokens", Fine, format!("up to {newest}, {left} epochs below 2^53")),
        _ => {
            let text = format!(
                "up to {newest}: {left} epochs are left below 2^53, above which JavaScript and many JSON readers \
                 round; each boot takes one and restore-fence 16384: read tokens as 64-bit integers, or begin \
                 with a new file and new names"
            );
            note("tokens", Warn, text);
        }
    }
}

/// Checks whether tables that were guarded still are.
fn guards(db: &Litelease, note: Note<'_>) {
    let guards = match db.guards() {
        Ok(guards) => guards,
        Err(error) => return note("guards", Wrong, error.to_string()),
    };
    let missing = guards.iter().filter(|guard| !guard.is_intact);
    let missing: Vec<String> = missing.map(|guard| printable(&guard.table)).collect();
    match (guards.len(), missing.as_slice()) {
        (0, _) => {}
        (count, []) => note("guards", Fine, format!("{count} in place")),
        (_, tables) => {
            let tables = tables.join(", ");
            note(
                "guards",
                Wrong,
                format!("{tables}: the guard is gone: litelease guard add restores it"),
            );
        }
    }
}

/// Checks the side tables of grants, and counts the rows of grants that have ended.
fn side_tables(db: &Litelease, note: Note<'_>) {
    let tables = match db.side_tables() {
        Ok(tables) => tables,
        Err(error) => return note("side rows", Wrong, error.to_string()),
    };
    for info in &tables {
        let table = info.table;
        if let Some(fault) = &info.fault {
            let text = format!(
                "{table} is not as litelease makes it: {fault}; rename or restore it, because commands that need it fail"
            );
            note("side rows", Wrong, text);
        }
        if info.damaged > 0 {
            let text = format!(
                "{table}: {} damaged rows: delete them, because the leases they belong to are not renewed",
                info.damaged
            );
            note("side rows", Wrong, text);
        }
    }
    let ended: i64 = tables.iter().map(|info| info.ended).sum();
    let rows: i64 = tables.iter().map(|info| info.rows).sum();
    match ended {
        0 if tables.is_empty() || tables.iter().any(|info| info.fault.is_some()) => {}
        0 => note("side rows", Fine, format!("{}, with {rows} rows", tables.len())),
        ended => {
            let text = format!(
                "{ended} of {rows} rows are of grants that have ended: litelease purge deletes them"
            );
            note("side rows", Fine, text);
        }
    }
}

/// Finds items that no worker will receive: dead ones, and those of a clock that was set back.
fn queues(db: &Litelease, note: Note<'_>) {
    let queues = match db.queues() {
        Ok(queues) => queues,
        Err(error) => return note("queues", Wrong, error.to_string()),
    };
    for queue in &queues {
        let name = printable(&queue.queue);
        if queue.dead > 0 {
            let text = format!(
                "{name}: {} dead items: retry them with litelease queue redrive, or delete them with litelease \
                 queue discard",
                queue.dead
            );
            note("queue", Warn, text);
        }
        if queue.from_the_future > 0 {
            let text = format!(
                "{name}: {} items have a time in the future and stay hidden until then: check the clock of this host",
                queue.from_the_future
            );
            note("clock", Warn, text);
        }
    }
    if !queues.is_empty() {
        let items: i64 = queues.iter().map(|queue| queue.len()).sum();
        note("queues", Fine, format!("{}, with {items} items", queues.len()));
    }
}

/// Checks whether users who share the file can read each other's writes: SQLite gives its log the
/// mode of the database, and the group that the folder gives.
fn sharing(path: &Path, note: Note<'_>) {
    let Ok(path) = path.canonicalize() else { return };
    let Some(folder) = path.parent() else { return };
    let (Ok(file), Ok(found)) = (path.metadata(), folder.metadata()) else { return };
    if is_group_lost(&file, &found) {
        let folder = folder.display();
        let text = format!(
            "the file is shared with its group, but new files in its folder are not: run chmod g+s {folder}"
        );
        note("group", Warn, text);
    }
}

/// Reports which settings keep a grant through a power cut.
fn durability(connection: &Connection, note: Note<'_>) {
    let mode = connection.pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0));
    match mode.as_deref() {
        Ok("wal") => {
            note("journal", Fine, "WAL: with synchronous FULL a power cut loses no grant".into())
        }
        Ok(mode @ ("memory" | "off")) => {
            let text =
                format!("{mode}: a crash can damage the file: run PRAGMA journal_mode = WAL on it");
            note("journal", Wrong, text);
        }
        Ok(mode) => {
            let text = format!(
                "{mode}: a power cut can undo the last grants, though no token is used twice: run PRAGMA \
                 journal_mode = WAL on the file to keep them"
            );
            note("journal", Warn, text);
        }
        Err(error) => note("journal", Wrong, error.to_string()),
    }
}

fn versions(note: Note<'_>) {
    // Older ones can lose commits when writes and checkpoints race.
    let verdict = if rusqlite::version_number() >= 3_051_003 { Fine } else { Warn };
    note(
        "sqlite",
        verdict,
        format!("{} inside litelease {}", rusqlite::version(), env!("CARGO_PKG_VERSION")),
    );
}

fn writer(db: &Litelease, path: &Path, note: Note<'_>) {
    match db.write_lock_pid() {
        None => note("writers", Fine, "nobody holds the write lock".into()),
        Some(pid) => {
            let file = path.display();
            let text =
                format!("pid {pid} is writing {file}: if this does not end, look at that process");
            note("writers", Warn, text);
        }
    }
}

/// A lease that lasts longer than this was not meant so, or a clock is wrong.
const YEAR_MS: i64 = 366 * 86_400_000;

fn holders(leases: &[LeaseRow], note: Note<'_>) {
    let now_ms = litelease::now_ms();
    let live = leases.iter().filter(|lease| lease.status(now_ms) == Some(Status::Live));
    let mut count = 0;
    for (lease, (who, expiry)) in live.filter_map(|lease| Some((lease, lease.tenure.as_ref()?))) {
        count += 1;
        let (name, left) = (printable(&lease.name), shown(expiry - now_ms));
        dead_holder(&name, who, &left, &format!("litelease break {name}"), note);
        if expiry - now_ms > YEAR_MS {
            note("clock", Warn, format!("{name} lasts {left} more: check the clock of this host"));
        }
    }
    let names = match leases.len() {
        1 => "1 name".into(),
        many => format!("{many} names"),
    };
    note("leases", Fine, format!("{names}, {count} of them live"));
}

/// Reports a holder whose process has ended, and how to free the name.
fn dead_holder(what: &str, who: &str, left: &str, command: &str, note: Note<'_>) {
    if process(who) == "dead" {
        let way = match Identity::parse(who).is_some_and(|holder| holder.is_dead()) {
            true => "the next run or hold takes it over at once".into(),
            false => format!("free in {left}; {command} frees it now"),
        };
        note("holder", Warn, format!("{what}: {} is gone, {way}", owner(who)));
    }
}

/// Finds slots by name whose holders have ended.
fn slots(db: &Litelease, note: Note<'_>) {
    let start = pool_of_name("");
    let held = db.pools().in_use(&start).and_then(|pools| {
        let rows =
            |(id, _): (String, _)| Ok((id[start.len()..].to_owned(), db.pools().slots(&id)?));
        pools.into_iter().map(rows).collect::<litelease::Result<Vec<_>>>()
    });
    let held = match held {
        Ok(held) => held,
        Err(error) => return note("slots", Wrong, error.to_string()),
    };
    let (mut count, now_ms) = (0, litelease::now_ms());
    for (name, rows) in &held {
        for row in rows {
            count += 1;
            let (name, position) = (printable(name), row.slot.position);
            let lease = slot_lease(row);
            let left = shown(lease.expires_at_ms - now_ms);
            let command = format!("litelease break {name} --slot {position}");
            dead_holder(&format!("{name} slot {position}"), &lease.owner, &left, &command, note);
        }
    }
    if count > 0 {
        note("slots", Fine, format!("{count} held by name"));
    }
}

impl Finding {
    fn word(&self) -> &'static str {
        match self.verdict {
            Fine => "ok",
            Warn => "warn",
            Wrong => "wrong",
        }
    }

    fn print(&self) -> Result<()> {
        let colour = match self.verdict {
            Fine => GREEN,
            Warn => YELLOW,
            Wrong => RED,
        };
        let Finding { what, text, .. } = self;
        say(&format!("{colour}{:<6}{colour:#}{what:<10} {text}", self.word()))
    }

    fn as_json(&self) -> Value {
        json!({ "what": self.what, "verdict": self.word(), "text": self.text })
    }
}
