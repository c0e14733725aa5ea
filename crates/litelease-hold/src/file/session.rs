//! Sessions: one heartbeat for an identity and all the names that were claimed in it.
//!
//! A session's names carry its owner text, which is unique to it. Every transaction of a session
//! renews the identity first, exactly; if that is refused, nothing is written.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use litelease_core::{ClaimResult, Lease, ReleaseResult, RenewResult};
use litelease_store::{Beat, SessionGrants, SessionOver, Store, When};

use super::aside::STEP;
use super::{
    Aside, DatabaseFile, FileConnection, FileError, FileHandle, GrantKind, KeptRows, OwnConnection,
    granted, in_ms, loss, now_ms, patiently,
};
use crate::{
    Clock, Current, Due, Held, HeldGrant, Hold, HoldError, HolderKind, Identity, Loss, Lost,
    Notice, Renewal, Rows, SystemClock, Window, held_from,
};

type Result<T, E = HoldError<FileError>> = std::result::Result<T, E>;

/// How long the rows of a file wait for their first connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// Opens the session of an identity, which is a name like any other. With `replaces`, or if the
/// process of the identity's session has ended, replaces that session. Returns the hold of the
/// identity, whose release closes the session, and the handle that claims names in it.
///
/// Fails with [`HoldError::Busy`] if another session has the identity.
pub fn open_session(
    caller: &Aside<'_>,
    identity: &str,
    ttl: Duration,
    replaces: bool,
) -> Result<(Held, Arc<SessionMembers>)> {
    let window = Window::new(ttl).ok_or(HoldError::TtlTooShort(ttl))?;
    let file = caller.file;
    let home = file.home("sessions")?;
    let own = caller.patiently(|| Ok(OwnConnection::open(file, STEP)?))?;
    let owner = Identity::new(HolderKind::Hold).to_string();
    let opened = caller.patiently(|| {
        if own.is_moved() {
            return Err(moved(file));
        }
        own.with(|db: &FileConnection| open_in(db, file, identity, &owner, ttl, replaces))
    });
    let (start, granted) = opened.inspect_err(|_| {
        // A claim that failed may have been stored.
        let _ = own.with(|db| db.leases().release_if_stored(identity, &owner));
    })?;
    let (name, secret) = (identity.into(), String::new());
    let grant = HeldGrant { name, owner, token: granted.token, ttl, secret };
    let members = Arc::new(SessionMembers {
        identity: grant.clone(),
        window,
        file: file.clone(),
        db: own,
        names: Mutex::default(),
        hold: OnceLock::new(),
    });
    lock_open().push(members.clone());
    let whole = Renewal::whole(granted.expires_at_ms);
    let hold = Hold::new(grant.clone(), window, start, whole);
    match home.keeper.keep(&home.key, hold, || SessionRows::open(file)) {
        Ok(kept) => {
            let _ = members.hold.set(kept.hold.clone());
            Ok((held_from(kept), members))
        }
        Err(error) => {
            // Without the keeper, no thread would renew it.
            members.dismiss();
            let _ = members.db.with(|db| db.leases().release_if_stored(identity, &grant.owner));
            Err(error)
        }
    }
}

/// Claims the identity, and breaks the names of the session that it replaces.
fn open_in(
    db: &FileConnection,
    file: &DatabaseFile,
    identity: &str,
    owner: &str,
    ttl: Duration,
    replaces: bool,
) -> Result<(Duration, Lease)> {
    let tx = db.leases().begin()?;
    // The clock is read once, after the wait for the write lock.
    let (start, now_ms) = (SystemClock.now(), now_ms());
    let is_dead = |current: &Lease| is_dead(&current.owner);
    let opened = tx.store.open_session(identity, owner, in_ms(ttl), now_ms, replaces, is_dead);
    let granted = match opened? {
        ClaimResult::Acquired(granted) => granted,
        ClaimResult::Busy(current) => return Err(HoldError::Busy(current)),
    };
    // The broken names are free.
    tx.freed();
    tx.commit()?;
    if db.connection().has_moved() {
        return Err(moved(file));
    }
    Ok((start, granted))
}

/// A session, shared by its handle, its names and the keeper.
pub struct SessionMembers {
    identity: HeldGrant,
    window: Window,
    file: DatabaseFile,
    /// The connection on which names are claimed. Locked before `names`.
    db: OwnConnection<FileConnection>,
    /// Locked as long as a transaction of the session is open. The keeper's rows are locked before
    /// it, so no caller of the keeper has this lock.
    names: Mutex<Names>,
    /// The hold of the identity.
    hold: OnceLock<Arc<Hold>>,
}

#[derive(Default)]
struct Names {
    list: Vec<Name>,
    is_closed: bool,
}

struct Name {
    grant: HeldGrant,
    /// `None` until the keeper has it.
    hold: Option<Arc<Hold>>,
}

impl Names {
    /// Removes the holds that are over.
    fn tidy(&mut self) {
        let is_over = |hold: &Arc<Hold>| hold.is_ended() || hold.loss().is_some();
        self.list.retain(|name| !name.hold.as_ref().is_some_and(is_over));
    }

    fn fail(&self, mut why: impl FnMut(&HeldGrant) -> Loss) {
        for Name { grant, hold } in &self.list {
            if let Some(hold) = hold {
                hold.fail(why(grant));
            }
        }
    }

    fn forget(&mut self, grant: &HeldGrant) {
        self.list.retain(|name| name.grant != *grant);
    }
}

/// The answer of a function of the store that renews a session.
pub(super) type Answer<T> = Result<Result<Beat<T>, SessionOver>, litelease_store::Error>;

/// The outcome for each hold of renewing a whole session.
struct Renewed {
    start: Duration,
    identity: (Lease, Renewal),
    /// The outcome for each name of the list.
    names: Vec<Result<(Lease, Renewal), Loss>>,
}

/// The reason why nothing of a session is renewed.
struct SessionEnd {
    reason: Loss,
    /// The reason for each name of the list.
    names: Vec<Loss>,
}

impl SessionMembers {
    /// Claims a name in the session, without waiting for it. The same commit renews the session and
    /// all its names to the same instant.
    ///
    /// If the session can no longer be renewed, nothing is written, and all its holds are lost.
    pub fn claim(self: &Arc<Self>, caller: &Aside<'_>, name: &str) -> Result<Held> {
        let claim = |store: &Store, session: SessionGrants<'_>, now_ms: i64| {
            store.claim_in_session(session, name, now_ms, |current| is_dead(&current.owner))
        };
        let (held, _) = self.change(caller, claim, |answer| match answer {
            ClaimResult::Acquired(lease) => Ok(vec![lease.clone()]),
            ClaimResult::Busy(current) => Err(HoldError::Busy(current.clone())),
        })?;
        let held = held.into_iter().next().ok_or_else(|| self.as_lost(Loss::Expired))?;
        held.check()?;
        Ok(held)
    }

    pub(super) fn check(&self) -> Result<(), Lost> {
        let hold = self.hold.get().ok_or_else(|| self.as_lost(Loss::Expired))?;
        hold.check(SystemClock.now()).map_err(|reason| self.as_lost(reason))
    }

    /// Ends trust in the names, before another owner can be granted them.
    fn close(&self) {
        let mut names = lock(&self.names);
        names.is_closed = true;
        names.fail(|_| closed());
    }

    fn dismiss(&self) {
        lock_open().retain(|members| members.identity.owner != self.identity.owner);
    }

    fn as_lost(&self, reason: Loss) -> Lost {
        Lost { name: self.identity.name.clone(), reason }
    }

    /// Renews the whole session by a function of the store, in an open transaction. The caller
    /// commits it, or rolls it back if the identity is refused.
    fn beat<T>(
        &self,
        store: &Store,
        names: &Names,
        work: impl FnOnce(&Store, SessionGrants<'_>, i64) -> Answer<T>,
    ) -> Result<Result<(Renewed, T), SessionEnd>> {
        // The clock is read once, after the wait for the write lock.
        let (start, now_ms) = (SystemClock.now(), now_ms());
        let HeldGrant { name: identity, owner, token, ttl, .. } = &self.identity;
        let all: Vec<(&str, i64)> =
            names.list.iter().map(|Name { grant, .. }| (&*grant.name, grant.token)).collect();
        let (token, ttl_ms) = (*token, in_ms(*ttl));
        let session = SessionGrants { identity, owner, token, ttl_ms, names: &all };
        let Beat { identity, names: renewed, done } = match work(store, session, now_ms)? {
            Ok(beat) => beat,
            Err(over) => return Ok(Err(self.over(names, over))),
        };
        let renewed_to = |lease: Lease| {
            let renewal = granted(now_ms, *ttl, &lease);
            (lease, renewal)
        };
        let renewed = renewed.into_iter().zip(&names.list).map(|(answer, name)| match answer {
            RenewResult::Renewed(lease) => Ok(renewed_to(lease)),
            RenewResult::Rejected { reason, current } => {
                Err(loss(name.grant.token, reason, current))
            }
        });
        let names = renewed.collect();
        Ok(Ok((Renewed { start, identity: renewed_to(identity), names }, done)))
    }

    fn over(&self, names: &Names, over: SessionOver) -> SessionEnd {
        let reason = loss(self.identity.token, over.reason, over.current);
        let names = over.names.into_iter().zip(&names.list).map(|(own, name)| match own {
            _ if reason.may_pass() => reason.clone(),
            Some((reason, current)) => loss(name.grant.token, reason, current),
            None => Loss::SessionOver { reason: reason.to_string() },
        });
        SessionEnd { names: names.collect(), reason }
    }

    /// Records the outcome for every hold.
    fn settle(&self, names: &Names, beat: &Renewed) {
        let now = SystemClock.now();
        if let Some(hold) = self.hold.get() {
            hold.committed(beat.start, now, beat.identity.1);
        }
        for (Name { hold, .. }, answer) in names.list.iter().zip(&beat.names) {
            match (hold, answer) {
                (Some(hold), Ok((_, renewal))) => hold.committed(beat.start, now, *renewal),
                (Some(hold), Err(loss)) if !loss.may_pass() => hold.fail(loss.clone()),
                _ => {}
            }
        }
        // The holder may have learned of its loss during the commit.
        if let Some(over) = self.session_over() {
            names.fail(|_| over.clone());
        }
    }

    /// Returns why every name is lost, once the session is lost. That is final: its row may be live
    /// for a margin longer, and renewing it would keep names whose holder has given them up.
    fn session_over(&self) -> Option<Loss> {
        let reason = self.hold.get()?.loss()?.to_string();
        Some(Loss::SessionOver { reason })
    }

    /// Ends trust in the identity and all names.
    fn fail(&self, names: &Names, over: &SessionEnd) {
        if over.reason.may_pass() {
            return;
        }
        for (Name { hold, .. }, loss) in names.list.iter().zip(&over.names) {
            if let Some(hold) = hold {
                hold.fail(loss.clone());
            }
        }
        if let Some(hold) = self.hold.get() {
            hold.fail(over.reason.clone());
        }
    }

    /// Changes what the session holds, in one transaction, by a function of the store that also
    /// renews the whole session. `granted` returns what that has granted, or the reason to roll
    /// everything back.
    pub(super) fn change<T>(
        self: &Arc<Self>,
        caller: &Aside<'_>,
        work: impl Fn(&Store, SessionGrants<'_>, i64) -> Answer<T>,
        granted: impl Fn(&T) -> Result<Vec<Lease>>,
    ) -> Result<(Vec<Held>, T)> {
        self.check()?;
        let home = self.file.home("sessions")?;
        let (granted, start, done) = caller.patiently(|| self.try_to_change(&work, &granted))?;
        let mut held = Vec::with_capacity(granted.len());
        for (grant, renewal) in granted {
            let hold = Hold::new(grant.clone(), self.window, start, renewal);
            let open = || SessionRows::open(&self.file);
            let kept = home.keeper.keep(&home.key, hold, open).inspect_err(|_| {
                // Without the keeper, no thread would notice its loss.
                lock(&self.names).forget(&grant);
                let _ = self.db.with(|db| db.leases().release_if_stored(&grant.name, &grant.owner));
            })?;
            let mut names = lock(&self.names);
            if names.is_closed {
                kept.hold.fail(closed());
            }
            if let Some(over) = self.session_over() {
                kept.hold.fail(over);
            }
            for name in names.list.iter_mut().filter(|name| name.grant == grant) {
                name.hold = Some(kept.hold.clone());
            }
            drop(names);
            held.push(held_from(kept));
        }
        Ok((held, done))
    }

    #[allow(clippy::type_complexity)] // it is taken apart at once
    fn try_to_change<T>(
        &self,
        work: &impl Fn(&Store, SessionGrants<'_>, i64) -> Answer<T>,
        granted: &impl Fn(&T) -> Result<Vec<Lease>>,
    ) -> Result<(Vec<(HeldGrant, Renewal)>, Duration, T)> {
        self.db.with(|db| {
            let mut names = lock(&self.names);
            if names.is_closed {
                return Err(self.as_lost(closed()).into());
            }
            if db.connection().has_moved() {
                return Err(moved(&self.file));
            }
            names.tidy();
            let tx = db.leases().begin()?;
            // Checked again, because the wait for the write lock takes time.
            self.check()?;
            let (beat, done) = match self.beat(tx.store, &names, work)? {
                Ok(beat) => beat,
                Err(over) => {
                    drop(tx);
                    self.fail(&names, &over);
                    return Err(self.as_lost(over.reason).into());
                }
            };
            let granted = granted(&done)?;
            tx.commit()?;
            // Checked again: other programs may not see the file that stores the change.
            if db.connection().has_moved() {
                return Err(moved(&self.file));
            }
            self.settle(&names, &beat);
            let new = granted.into_iter().map(|lease| {
                let HeldGrant { owner, ttl, .. } = self.identity.clone();
                let expires_at_ms = lease.expires_at_ms;
                let secret = String::new();
                let grant = HeldGrant { name: lease.name, owner, token: lease.token, ttl, secret };
                (grant, Renewal { expires_at_ms, ..beat.identity.1 })
            });
            let new: Vec<(HeldGrant, Renewal)> = new.collect();
            let as_names = new.iter().map(|(grant, _)| Name { grant: grant.clone(), hold: None });
            names.list.extend(as_names);
            Ok((new, beat.start, done))
        })
    }

    /// Renews the whole session inside a transaction of the holder's own. Passes each hold to
    /// `pending`, with its renewal and when that began: the COMMIT decides.
    pub fn renew_in(
        &self,
        store: &Store,
        pending: impl Fn(Arc<Hold>, Lease, Renewal, Duration),
    ) -> Result<()> {
        // Does not check for trust: an earlier renewal in this transaction may have to prolong it
        // first.
        if let Some(reason) = self.hold.get().and_then(|hold| hold.loss()) {
            return Err(self.as_lost(reason).into());
        }
        let mut names = lock(&self.names);
        names.tidy();
        let beat = match self.beat(store, &names, renew)? {
            Ok((beat, ())) => beat,
            Err(over) => return Err(self.as_lost(over.reason).into()),
        };
        let holds = names.list.iter().map(|name| name.hold.clone());
        let renewed = beat.names.into_iter().map(Result::ok);
        let all = holds.zip(renewed).chain([(self.hold.get().cloned(), Some(beat.identity))]);
        for (hold, renewed) in all {
            if let (Some(hold), Some((lease, renewal))) = (hold, renewed) {
                pending(hold, lease, renewal, beat.start);
            }
        }
        Ok(())
    }
}

impl fmt::Debug for SessionMembers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionMembers").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// The sessions of this process, for the keeper, which knows only grants.
static OPEN: Mutex<Vec<Arc<SessionMembers>>> = Mutex::new(Vec::new());

/// Returns the sessions of this process. A fork keeps them locked.
pub(super) fn lock_open() -> MutexGuard<'static, Vec<Arc<SessionMembers>>> {
    lock(&OPEN)
}

fn session_of(grant: &HeldGrant) -> Option<Arc<SessionMembers>> {
    lock_open().iter().find(|members| members.identity.owner == grant.owner).cloned()
}

/// The rows of sessions in one file. The keeper renews a session as a whole, whichever of its names
/// is due.
struct SessionRows {
    rows: KeptRows,
}

impl SessionRows {
    fn open(file: &DatabaseFile) -> Result<Box<dyn Rows>> {
        let open = || KeptRows::open(file, GrantKind::Names);
        Ok(Box::new(SessionRows { rows: patiently(PATIENCE, open)? }))
    }

    /// Renews a session. Returns the answer for each of the grants that are due.
    fn renew_session(
        db: &FileConnection,
        members: &SessionMembers,
        due: &[&Due<'_>],
    ) -> Result<Vec<Result<Renewal, Loss>>> {
        let mut names = lock(&members.names);
        if names.is_closed {
            return Ok(due.iter().map(|_| Err(closed())).collect());
        }
        names.tidy();
        let tx = KeptRows::begin(db)?;
        if let Some(over) = members.session_over() {
            names.fail(|_| over.clone());
            return Ok(due.iter().map(|_| Err(over.clone())).collect());
        }
        for Due { grant, progress, .. } in due {
            if let Some(ago) = progress {
                let at = When::At(now_ms() - in_ms(*ago));
                let _ = tx.store.progress(&grant.name, grant.token, at)?;
            }
        }
        let position = |grant: &HeldGrant| names.list.iter().position(|name| name.grant == *grant);
        match members.beat(tx.store, &names, renew)? {
            Ok((beat, ())) => {
                tx.commit()?;
                if db.connection().has_moved() {
                    return Ok(due.iter().map(|_| Err(Loss::FileReplaced)).collect());
                }
                members.settle(&names, &beat);
                let answer = |due: &&Due<'_>| match position(due.grant) {
                    _ if *due.grant == members.identity => Ok(beat.identity.1),
                    Some(position) => beat.names[position].clone().map(|(_, renewal)| renewal),
                    None => Err(Loss::ReleasedElsewhere),
                };
                Ok(due.iter().map(answer).collect())
            }
            Err(over) => {
                drop(tx);
                let answer = |due: &&Due<'_>| match position(due.grant) {
                    Some(position) => Err(over.names[position].clone()),
                    None => Err(over.reason.clone()),
                };
                let answers = due.iter().map(answer).collect();
                members.fail(&names, &over);
                Ok(answers)
            }
        }
    }

    /// Releases a whole session.
    fn release_session(db: &FileConnection, members: &SessionMembers) -> Result<Result<(), Loss>> {
        let mut names = lock(&members.names);
        let tx = db.leases().begin()?;
        let HeldGrant { name: identity, owner, token, .. } = &members.identity;
        let all: Vec<(&str, i64)> =
            names.list.iter().map(|Name { grant, .. }| (&*grant.name, grant.token)).collect();
        let session = SessionGrants { identity, owner, token: *token, ttl_ms: 0, names: &all };
        if let ReleaseResult::Rejected { reason, current } =
            tx.store.close_session(session, now_ms())?
        {
            return Ok(Err(loss(*token, reason, current)));
        }
        tx.freed();
        tx.commit()?;
        names.list.clear();
        Ok(Ok(()))
    }

    fn trouble(&self, error: HoldError<FileError>) -> Loss {
        match error {
            HoldError::Lease(FileError::Verb(error)) => self.rows.trouble(&error),
            error => Loss::CannotRenew { error: error.to_string() },
        }
    }
}

impl Rows for SessionRows {
    fn renew(&mut self, due: &[Due<'_>]) -> Vec<Result<Renewal, Loss>> {
        let mut answers: Vec<Result<Renewal, Loss>> =
            due.iter().map(|_| Err(Loss::FileReplaced)).collect();
        if self.is_moved() {
            return answers;
        }
        let mut owners: Vec<&str> = due.iter().map(|due| due.grant.owner.as_str()).collect();
        owners.sort_unstable();
        owners.dedup();
        for owner in owners {
            let is_its = |index: &usize| due[*index].grant.owner == owner;
            let places: Vec<usize> = (0..due.len()).filter(is_its).collect();
            let its: Vec<&Due<'_>> = places.iter().map(|place| &due[*place]).collect();
            let renewed = match session_of(its[0].grant) {
                Some(members) => self.rows.db.with(|db| Self::renew_session(db, &members, &its)),
                None => Ok(its.iter().map(|_| Err(Loss::ReleasedElsewhere)).collect()),
            };
            let renewed = renewed.unwrap_or_else(|error| {
                let trouble = self.trouble(error);
                its.iter().map(|_| Err(trouble.clone())).collect()
            });
            for (place, answer) in places.into_iter().zip(renewed) {
                answers[place] = answer;
            }
        }
        answers
    }

    fn release(&mut self, grant: &HeldGrant, time: Duration) -> Result<(), Loss> {
        let Some(members) = session_of(grant) else {
            // Closing a session releases its names. Losing it does not.
            return match self.rows.read(grant).is_current {
                true => self.rows.release(grant, time),
                false => Err(closed()),
            };
        };
        if members.identity == *grant {
            members.close();
            let released = match self.is_moved() {
                true => Err(Loss::FileReplaced),
                false => self
                    .rows
                    .db
                    .with(|db| Self::release_session(db, &members))
                    .unwrap_or_else(|error| Err(self.trouble(error))),
            };
            if !released.as_ref().is_err_and(Loss::may_pass) {
                members.dismiss();
            }
            return released;
        }
        // The row is released while no transaction of the session is open.
        let mut names = lock(&members.names);
        if names.is_closed && names.list.iter().any(|name| name.grant == *grant) {
            return Err(closed()); // the session releases it
        }
        let released = self.rows.release(grant, time);
        if !released.as_ref().is_err_and(Loss::may_pass) {
            names.forget(grant);
        }
        released
    }

    fn read(&mut self, grant: &HeldGrant) -> Current {
        self.rows.read(grant)
    }

    fn hand_over(&mut self, grant: &HeldGrant, ttl: Duration) -> Result<Option<Lease>, Loss> {
        let members = session_of(grant);
        let mut names = members.as_ref().map(|members| lock(&members.names));
        let handed = self.rows.hand_over_by(grant, |db, who| {
            let (shard, ttl_ms) = (&grant.name, in_ms(ttl));
            db.store.hand_over_shard(shard, who, ttl_ms, When::Now, |answer| answer.into_owned())
        });
        if let (Some(names), Ok(Some(_))) = (&mut names, &handed) {
            names.forget(grant);
        }
        handed
    }

    fn listen(&mut self, notice: Notice) {
        self.rows.listen(notice);
    }

    fn beside(&self) -> Option<Box<dyn Rows>> {
        None
    }

    fn is_moved(&mut self) -> bool {
        self.rows.is_moved()
    }
}

/// Renews a session, and changes nothing else.
fn renew(store: &Store, session: SessionGrants<'_>, now_ms: i64) -> Answer<()> {
    store.beat_session(session, now_ms, |_| Ok(()))
}

fn is_dead(owner: &str) -> bool {
    Identity::parse(owner).is_some_and(|holder| holder.is_dead())
}

fn closed() -> Loss {
    Loss::SessionOver { reason: "it was closed".into() }
}

fn moved(file: &DatabaseFile) -> HoldError<FileError> {
    HoldError::Lease(FileError::Moved(file.path.clone()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
