//! Which file the leases are in, and opening it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use litelease::rusqlite::{Connection, OpenFlags};
use litelease::{Actor, Lease, Litelease, ReleaseResult};
use litelease_sys::{create_private_folder, network_filesystem};

use crate::Common;
use crate::engine_url::EngineUrl;
use crate::exit::{Failure, Result, code, is_locked};
use crate::output::printable;

/// Returns the file to use: `--db`, else `$LITELEASE_DB`, else the user's own.
pub(crate) fn path(common: &Common) -> Result<PathBuf> {
    if let Some(url) = common.server()? {
        return Err(Failure::usage(format!(
            "this works on a file only, not at {}: name the file with --db",
            printable(url)
        )));
    }
    if let Some(url) = EngineUrl::from_common(common)? {
        return Err(Failure::usage(format!(
            "this works on a file only, not at {}: name the file with --db",
            url.shown()
        )));
    }
    match &common.db {
        Some(path) if path.as_os_str().is_empty() => {
            Err(Failure::usage("--db (or $LITELEASE_DB) is empty: give it a file"))
        }
        Some(path) => Ok(path.clone()),
        None => own_path(),
    }
}

/// Returns the user's own file, in the folder for state that outlives a program.
pub(crate) fn own_path() -> Result<PathBuf> {
    let folder = state_folder().ok_or_else(|| {
        Failure::usage("$HOME is not set: name the file with the leases with --db")
    })?;
    Ok(folder.join("leases.sqlite3"))
}

/// Returns the user's folder for state of ours, if it is known where that is.
pub(crate) fn state_folder() -> Option<PathBuf> {
    let absolute =
        |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("litelease"))
}

/// Refuses a file that is shorter than the smallest page: SQLite would take it for an empty one and
/// overwrite it.
fn check_length(path: &Path) -> Result<()> {
    let length = fs::metadata(path).map_or(0, |metadata| metadata.len());
    if (1..512).contains(&length) {
        let text = format!("{} is not a database: choose another file with --db", path.display());
        return Err(Failure::failed("NotADatabase", text));
    }
    Ok(())
}

/// Returns the file to grant from, which may be missing. Creates the folder of the user's own file.
pub(crate) fn prepare(common: &Common) -> Result<PathBuf> {
    let path = path(common)?;
    check_length(&path)?;
    if common.db.is_none()
        && let Some(folder) = path.parent()
    {
        // Private to the user, as the XDG specification wants it.
        create_private_folder(folder).map_err(|error| {
            Failure::failed("Folder", format!("cannot make {}: {error}", folder.display()))
        })?;
    }
    Ok(path)
}

/// The shortest busy timeout, also for callers that do not wait for a name: a hundred jobs that
/// start in the same minute take turns.
const PATIENCE: Duration = Duration::from_secs(60);

/// Opens the file for a claim that waits for `wait`. Creates it if it is missing.
pub(crate) fn open_patiently(common: &Common, wait: Duration) -> Result<Litelease> {
    let path = prepare(common)?;
    let (begin, patience) = (Instant::now(), wait.max(PATIENCE));
    let db = loop {
        match Litelease::open_own(&path) {
            Err(error) if is_locked(&error) && begin.elapsed() < patience => {
                std::thread::sleep(Duration::from_millis(20));
            }
            opened => break opened?,
        }
    };
    // A caller that waits longer tries again and again.
    db.conn().busy_timeout(PATIENCE).map_err(litelease::Error::from)?;
    Ok(db)
}

/// Releases a lease, and waits for other writers as long as the claim did. Returns whether the
/// lease is over.
pub(crate) fn release_patiently(path: &Path, lease: &Lease) -> bool {
    let release = || -> litelease::Result<ReleaseResult> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        let left_ms = lease.expires_at_ms.saturating_sub(litelease::now_ms());
        let left = Duration::from_millis(u64::try_from(left_ms).unwrap_or_default());
        connection.busy_timeout(left.min(PATIENCE))?;
        Litelease::from_connection(connection).release(lease)
    };
    // If it is rejected, another process has ended it, or it has expired.
    release().is_ok()
}

/// Releases a lease, and records the exit code of its command, if the file keeps a history. Returns
/// whether that was done.
pub(crate) fn release_recorded(path: &Path, lease: &Lease, code: u8) -> bool {
    let release = || -> litelease::Result<bool> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Litelease::from_connection(Connection::open_with_flags(path, flags)?);
        if db.history_keeps()?.is_none() {
            return Ok(false);
        }
        db.conn().busy_timeout(RECORD_PATIENCE)?;
        let actor = Actor { result: Some(code.into()), ..Actor::default() };
        let released = db.acting(&actor, || db.release(lease))?;
        Ok(matches!(released, ReleaseResult::Released { .. }))
    };
    release().unwrap_or(false)
}

/// How long a release that is recorded waits for other writers. A plain one follows.
const RECORD_PATIENCE: Duration = Duration::from_secs(1);

/// Makes sure that the file is, or will be, on a local disk.
pub(crate) fn check_local(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let there = if path.exists() { path } else { folder.unwrap_or(Path::new(".")) };
    match network_filesystem(there) {
        Some(kind) => {
            let text = format!("it is on {kind}: {NOT_LOCAL}, and name it with --db");
            Err(Failure::failed("NetworkFilesystem", text))
        }
        None => Ok(()),
    }
}

/// The error for a file on a network filesystem.
pub(crate) const NOT_LOCAL: &str =
    "file locks are not reliable over a network: use a file on a local disk";

/// Makes sure that the file is still the one that was opened.
pub(crate) fn check_moved(db: &Litelease) -> Result<()> {
    match db.has_moved() {
        true => Err(Failure::failed("FileMoved", "it was moved, deleted or replaced: start again")),
        false => Ok(()),
    }
}

/// Opens a file for reading, and creates nothing. Returns `None` if nothing was ever leased: the
/// file is missing or empty.
pub(crate) fn open_for_reading(common: &Common) -> Result<Option<Litelease>> {
    if !path(common)?.exists() {
        return Ok(None);
    }
    let db = open_existing(common)?;
    const ANY_TABLE: &str = "SELECT count(*) FROM (SELECT 1 FROM sqlite_schema LIMIT 1)";
    let tables: i64 =
        db.conn().query_row(ANY_TABLE, [], |row| row.get(0)).map_err(litelease::Error::from)?;
    Ok((tables > 0).then_some(db))
}

/// Refuses a file that does not exist.
pub(crate) fn check_existing(path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let missing = format!("{} does not exist: nothing was ever leased there", path.display());
    Err(Failure::failed("NoFile", missing))
}

/// Opens an existing file, and creates nothing.
pub(crate) fn open_existing(common: &Common) -> Result<Litelease> {
    let path = path(common)?;
    check_existing(&path)?;
    check_length(&path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(&path, flags).map_err(litelease::Error::from)?;
    connection.busy_timeout(Duration::from_secs(10)).map_err(litelease::Error::from)?;
    Ok(Litelease::from_connection(connection))
}

/// Returns what to say about a database whose readers and writers block each other, because it is
/// not in WAL mode. Nothing if there is no database yet.
pub(crate) fn not_wal(common: &Common) -> Result<Option<Failure>> {
    let path = path(common)?;
    if !path.exists() {
        return Ok(None);
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mode = Connection::open_with_flags(&path, flags)
        .and_then(|db| db.pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0)));
    let found = match mode {
        Ok(mode) if mode == "wal" => return Ok(None),
        Ok(mode) => format!("is in journal mode {}", mode.to_uppercase()),
        Err(error) => format!("does not tell its journal mode ({error})"),
    };
    let text = format!(
        "{} {found}, in which readers and this command wait for each other: run PRAGMA journal_mode \
         = WAL on it once",
        path.display()
    );
    Ok(Some(Failure::new(code::OK, "NotWal", text)))
}
