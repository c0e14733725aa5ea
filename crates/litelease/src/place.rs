//! A file as a place: what a hold and a wait ask of it, on the caller's connection.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use litelease_hold::{
    Cancel, Claimed, Clock, Granted, Home, NoKeeper, Place, ProcessKeeper, Rows, SystemClock,
    Waiter, Wish, nap,
};
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::file::{DatabaseFile, has_moved};
use crate::kept_rows::{GrantKind, KeptRows, is_busy};
use crate::leases::in_ms;
use crate::{ClaimResult, HoldError, Lease, Leases, RequestResult, Transaction};

type Result<T, E = HoldError> = std::result::Result<T, E>;

/// The keeper of everything that this process holds in files.
pub(crate) static FILES: ProcessKeeper = ProcessKeeper::new();

/// How long a waiter sleeps if the name is free and the file is not.
const LOCKED_PAUSE_MS: i64 = 10;

/// Returns the keeper, and the key of the rows of one kind in this file.
pub(crate) fn home(kind: &str, file: &DatabaseFile) -> Result<Home, NoKeeper> {
    let DatabaseFile { path, vfs } = file;
    Ok(Home { keeper: FILES.get()?, key: format!("{kind} {vfs:?} {path}") })
}

/// A file as a place, for one hold or one wait.
pub(crate) struct FilePlace<'l> {
    leases: &'l Leases,
    connection: &'l Connection,
    pub(crate) file: DatabaseFile,
    /// Values and limits that are stored in the commit of a claim.
    more: More<'l>,
    waiter: Option<Waiter>,
    /// The count of wake-ups before the last claim.
    heard: u32,
}

/// Values and limits that are stored with a grant, and end with it.
#[derive(Default)]
pub(crate) struct More<'l> {
    pub(crate) value: Option<&'l Value>,
    pub(crate) progress_within: Option<Duration>,
    pub(crate) max_time: Option<Duration>,
}

impl<'l> FilePlace<'l> {
    /// Fails inside a transaction, whose snapshot would never show that the name has become free,
    /// and for a database in memory.
    pub(crate) fn new(
        leases: &'l Leases,
        connection: &'l Connection,
        more: More<'l>,
    ) -> Result<Self> {
        if leases.store().is_in_transaction() {
            return Err(HoldError::InTransaction);
        }
        let file = DatabaseFile::behind(leases, connection)?;
        Ok(FilePlace { leases, connection, file, more, waiter: None, heard: 0 })
    }

    fn check_moved(&self) -> Result<()> {
        match has_moved(self.connection) {
            true => Err(HoldError::FileMoved(self.file.path.clone())),
            false => Ok(()),
        }
    }

    fn sleep(&mut self, cancel: Option<&Cancel>, until_expiry_ms: i64, at_most: Duration) {
        match &self.waiter {
            Some(waiter) => {
                waiter.nap_unless(cancel, self.heard, nap(until_expiry_ms, at_most));
            }
            // Reads once more before it sleeps: what happened before it listened was not heard.
            None => self.waiter = Some(Waiter::at(Path::new(&*self.file))),
        }
    }

    fn make(&self, wish: &Wish<'_>) -> crate::Result<ClaimResult> {
        if self.more.is_empty() {
            return ask(self.leases, wish);
        }
        // A busy name is answered without the write lock, as by a plain claim.
        if wish.dead.is_none()
            && let Some(current) = self.leases.inspect(wish.name)?
        {
            return Ok(ClaimResult::Busy(current));
        }
        let tx = Transaction::begin(self.leases, self.connection)?;
        let answer = ask(&tx, wish)?;
        if let ClaimResult::Acquired(lease) = &answer {
            self.more.store(&tx, lease)?;
            tx.commit()?;
        }
        Ok(answer)
    }
}

impl Place for FilePlace<'_> {
    type Error = HoldError;

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    fn home(&self) -> Result<Home, NoKeeper> {
        home("names", &self.file)
    }

    fn claim(&mut self, wish: &Wish<'_>) -> Result<Claimed> {
        // What is heard from here on happened after the row was read.
        self.heard = self.waiter.as_ref().map_or(0, Waiter::heard);
        self.check_moved()?;
        match self.make(wish)? {
            ClaimResult::Acquired(lease) => {
                // Checked again: no other program may see the file that has the grant.
                self.check_moved()?;
                Ok(Claimed::Granted(Granted::whole(lease)))
            }
            ClaimResult::Busy(current) => Ok(Claimed::Busy(current)),
        }
    }

    fn request(&mut self, wish: &Wish<'_>) -> Result<Option<i64>> {
        let Wish { name, owner, request, .. } = *wish;
        Ok(match (request, self.leases.requested(name)?) {
            (_, Some(open)) if open.requester == owner => {
                self.leases.repeat_request(name, owner)?
            }
            // Another owner has a request open, or this one is to make none.
            (_, Some(_)) | (None, None) => None,
            (Some(within), None) => match self.leases.request(name, owner, within)? {
                RequestResult::Requested { token, .. } => Some(token),
                RequestResult::RequestedBy { .. } | RequestResult::Rejected { .. } => None,
            },
        })
    }

    fn accept(
        &mut self,
        wish: &Wish<'_>,
        handed: &Lease,
        asked: Option<i64>,
    ) -> Result<Option<Granted>> {
        let tx = Transaction::begin(self.leases, self.connection)?;
        let accepted = match asked {
            Some(token) if handed.token > token => tx.renew(handed, wish.ttl)?.renewed(),
            _ => tx.accept(wish.name, wish.owner, wish.ttl)?,
        };
        if let Some(lease) = &accepted {
            self.more.store(&tx, lease)?;
            tx.commit()?;
        }
        Ok(accepted.map(Granted::whole))
    }

    fn withdraw(&mut self, wish: &Wish<'_>) -> Result<Option<Lease>> {
        let _ = self.leases.withdraw_request(wish.name, wish.owner);
        Ok(self.leases.inspect(wish.name)?)
    }

    fn take_back(&mut self, wish: &Wish<'_>) {
        // The owner text tells: no other grant uses it.
        let live = self.leases.inspect(wish.name).ok().flatten();
        if let Some(lease) = live.filter(|lease| lease.owner == wish.owner) {
            let _ = self.leases.release(&lease);
        }
    }

    fn wait(&mut self, wish: &Wish<'_>, current: &Lease, at_most: Duration) {
        self.sleep(wish.cancel, current.expires_at_ms.saturating_sub(crate::now_ms()), at_most);
    }

    fn pause(&mut self, error: &HoldError, at_most: Duration) -> bool {
        let may_pass = matches!(error, HoldError::Lease(error) if is_busy(error));
        if may_pass {
            self.sleep(None, LOCKED_PAUSE_MS, at_most);
        }
        may_pass
    }

    fn rows(&self) -> Result<Box<dyn Rows>> {
        let rows = open_rows(&self.file, GrantKind::Names, busy_timeout(self.connection))?;
        // Checked again: they may be rows of a file that came in its place.
        self.check_moved()?;
        Ok(rows)
    }
}

impl More<'_> {
    fn is_empty(&self) -> bool {
        self.value.is_none() && self.progress_within.is_none() && self.max_time.is_none()
    }

    fn store(&self, leases: &Leases, lease: &Lease) -> crate::Result<()> {
        if let Some(value) = self.value {
            let _ = leases.attach(lease, value)?;
        }
        if self.progress_within.is_some() || self.max_time.is_some() {
            let end_ms = |time| leases.when().now_ms().saturating_add(in_ms(time));
            let not_after_ms = self.max_time.map(end_ms);
            let _ = leases.limit(lease, self.progress_within, not_after_ms)?;
        }
        Ok(())
    }
}

fn ask(leases: &Leases, wish: &Wish<'_>) -> crate::Result<ClaimResult> {
    match wish.dead {
        Some(dead) => leases.claim_from_dead(wish.name, wish.owner, wish.ttl, dead.into()),
        None => leases.claim(wish.name, wish.owner, wish.ttl),
    }
}

/// Opens rows for the keeper.
pub(crate) fn open_rows(
    file: &DatabaseFile,
    kind: GrantKind,
    patience: Duration,
) -> Result<Box<dyn Rows>> {
    Ok(Box::new(open_patiently(patience, || Ok(KeptRows::open(file, kind)?))?))
}

/// Opens something for the keeper. Its own connection waits for no writer, since other files wait
/// for the keeper. So a writer that is in the way of its first read is waited for here.
pub(crate) fn open_patiently<T>(patience: Duration, open: impl Fn() -> Result<T>) -> Result<T> {
    let begin = SystemClock.now();
    loop {
        match open() {
            Err(HoldError::Lease(error))
                if is_busy(&error) && SystemClock.now() < begin + patience =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return opened,
        }
    }
}

/// Returns the busy timeout of a connection.
pub(crate) fn busy_timeout(connection: &Connection) -> Duration {
    let ms = connection.pragma_query_value(None, "busy_timeout", |row| row.get::<_, u32>(0));
    Duration::from_millis(ms.unwrap_or_default().into())
}
