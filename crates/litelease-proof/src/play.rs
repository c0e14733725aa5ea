//! Players: each takes the steps of a scenario to one surface and brings its answers back as text.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use litelease::rusqlite::Connection;
use litelease::{Leases, Litelease};
use litelease_core::{
    BreakResult, ClaimResult, Claimant, LeaseInfo, Reason, Refusal, ReleaseResult, RenewResult,
    Row, State, Tenure, Term, TransferResult, inspect, purge_limit,
};
use tempfile::TempDir;

use crate::mutant::Rules;
use crate::scenario::{Action, Scenario, shown};

/// A surface that plays steps.
pub trait Player {
    /// Does a step and tells its answer.
    fn step(&mut self, now_ms: i64, action: &Action) -> Played;
}

/// What became of a step.
pub enum Played {
    /// The answer, in canonical form.
    Answer(String),
    /// The surface cannot do this, and why.
    Skipped(&'static str),
}

/// How many steps were played and which were not.
#[derive(Default)]
pub struct Tally {
    /// Steps whose answer was compared.
    pub played: usize,
    /// Steps that the surface lacks, with the reason.
    pub skipped: BTreeMap<&'static str, usize>,
}

/// Plays a scenario to its end, or to the first answer that differs.
pub fn play(scenario: &Scenario, player: &mut dyn Player, tally: &mut Tally) -> Result<(), String> {
    for step in &scenario.steps {
        match player.step(step.now_ms, &step.action) {
            Played::Skipped(why) => *tally.skipped.entry(why).or_default() += 1,
            Played::Answer(answer) if answer == step.answer => tally.played += 1,
            Played::Answer(answer) => {
                let (path, line) = (scenario.path.display(), step.line);
                return Err(format!("{path}:{line}: {}\n  but got -> {answer}", step.text));
            }
        }
    }
    Ok(())
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} steps played", self.played)?;
        for (why, steps) in &self.skipped {
            write!(f, ", {steps} SKIPPED ({why})")?;
        }
        Ok(())
    }
}

/// The pure rule, on rows in memory. Transactions are copies.
pub struct RulePlayer<R> {
    rules: R,
    file: File,
    /// What to go back to: the file as it was at each open savepoint, the transaction's own first.
    marks: Vec<(Option<String>, File)>,
    abandoned: bool,
}

#[derive(Clone, Default)]
struct File {
    rows: BTreeMap<String, Stored>,
    floor: i64,
}

#[derive(Clone)]
struct Stored {
    token: i64,
    tenure: Option<(String, i64)>,
    updated_at_ms: i64,
}

impl<R: Rules> RulePlayer<R> {
    /// A player with an empty file.
    pub fn new(rules: R) -> Self {
        RulePlayer { rules, file: File::default(), marks: Vec::new(), abandoned: false }
    }

    fn write(&mut self, name: &str, state: Option<State<'_>>, now_ms: i64) {
        let Some(state) = state else { return };
        let tenure =
            state.tenure().map(|Tenure { owner, expires_at_ms }| (owner.into(), expires_at_ms));
        let stored = Stored { token: state.token(), tenure, updated_at_ms: now_ms };
        self.file.rows.insert(name.to_owned(), stored);
    }

    fn lease_step(&mut self, now_ms: i64, action: &Action) -> Result<String, Refusal> {
        // The row is copied, so that it can be read while the file is written.
        let copy = action.name().and_then(|name| self.file.rows.get(name).cloned());
        let row =
            Row::new(action.name().unwrap_or_default(), copy.as_ref().and_then(Stored::state));
        let floor = self.file.floor;
        let (write, answer) = match action {
            Action::Claim { owner, ttl_ms, above, .. } => {
                let floor = floor.max(above.unwrap_or(0));
                let step = self.rules.claim(row, owner, Term::new(*ttl_ms, now_ms)?, floor)?;
                (step.write, step.answer.to_text())
            }
            Action::Renew { owner, ttl_ms, token, .. } => {
                let who = Claimant { owner, token: *token };
                let step = self.rules.renew(row, who, Term::new(*ttl_ms, now_ms)?);
                (step.write, step.answer.to_text())
            }
            Action::Release { owner, token, .. } => {
                let step = self.rules.release(row, Claimant { owner, token: *token }, now_ms);
                (step.write, step.answer.to_text())
            }
            Action::Transfer { owner, new_owner, ttl_ms, token, .. } => {
                let who = Claimant { owner, token: *token };
                let term = Term::new(*ttl_ms, now_ms)?;
                let step = self.rules.transfer(row, who, new_owner, term, floor)?;
                (step.write, step.answer.to_text())
            }
            Action::Break { .. } => {
                let step = self.rules.break_lease(row, now_ms, floor)?;
                (step.write, step.answer.to_text())
            }
            Action::Inspect { .. } => (None, held(inspect(row, now_ms))),
            Action::Owner { .. } => (None, owner(inspect(row, now_ms).map(|lease| lease.owner))),
            Action::Token { .. } => (None, number(row.token())),
            Action::Purge { before_ms } => return Ok(self.purge(*before_ms, now_ms)),
            _ => return Ok(self.transaction_step(action)),
        };
        self.write(row.name(), write, now_ms);
        Ok(answer)
    }

    fn purge(&mut self, before_ms: i64, now_ms: i64) -> String {
        let limit = purge_limit(before_ms, now_ms);
        let (rows, floor) = (&mut self.file.rows, &mut self.file.floor);
        let before = rows.len();
        rows.retain(|_, row| {
            let ended = row.state().map_or(i64::MAX, |state| state.ends_at_ms(row.updated_at_ms));
            if ended <= limit {
                *floor = row.token.max(*floor);
            }
            ended > limit
        });
        (before - rows.len()).to_string()
    }

    fn transaction_step(&mut self, action: &Action) -> String {
        let at = |name: &str, marks: &[(Option<String>, File)]| {
            marks.iter().rposition(|(mark, _)| mark.as_deref() == Some(name))
        };
        match action {
            Action::Begin { .. } => self.marks.push((None, self.file.clone())),
            Action::Savepoint { name } => self.marks.push((Some(name.clone()), self.file.clone())),
            Action::Commit => self.marks.clear(),
            Action::Rollback => {
                if let Some((_, file)) = self.marks.drain(..).next() {
                    self.file = file;
                }
            }
            Action::RollbackTo { name } => match at(name, &self.marks) {
                Some(at) => {
                    self.marks.truncate(at + 1);
                    self.file = self.marks[at].1.clone();
                }
                None => return format!("error no savepoint {name}"),
            },
            Action::ReleaseSavepoint { name } => match at(name, &self.marks) {
                Some(at) => self.marks.truncate(at),
                None => return format!("error no savepoint {name}"),
            },
            _ => return "error not a step of the rule".into(),
        }
        "ok".into()
    }
}

impl<R: Rules> Player for RulePlayer<R> {
    fn step(&mut self, now_ms: i64, action: &Action) -> Played {
        // Without other connections, what follows in this file has no meaning here.
        self.abandoned |= matches!(action, Action::Conn { .. });
        if self.abandoned {
            return Played::Skipped("the pure rule has no connections");
        }
        Played::Answer(self.lease_step(now_ms, action).unwrap_or_else(|refusal| match refusal {
            Refusal::InvalidTtl { .. } => "error InvalidTtl".into(),
            Refusal::TimeOverflow { .. } => "error TimeOverflow".into(),
            Refusal::TokenExhausted => "error TokenExhausted".into(),
        }))
    }
}

impl Stored {
    fn state(&self) -> Option<State<'_>> {
        let (owner, expires) = match &self.tenure {
            Some((owner, expires)) => (Some(owner.as_str()), Some(*expires)),
            None => (None, None),
        };
        State::stored(self.token, owner, expires)
    }
}

/// The Rust crate on a real file in WAL mode, with no busy timeout.
pub struct CratePlayer {
    mode: Mode,
    connections: HashMap<String, Litelease>,
    current: String,
    abandoned: bool,
    folder: TempDir,
}

/// What the verbs are called on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// The handle itself.
    Autocommit,
    /// A transaction of its own around each verb.
    Transaction,
    /// A savepoint inside a savepoint inside a transaction around each verb.
    Savepoint,
    /// A borrowed handle, made anew for each verb.
    Borrowed,
}

impl CratePlayer {
    /// A player with a new file.
    pub fn new(mode: Mode) -> Result<Self, Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let current = "main".to_owned();
        let mut player =
            CratePlayer { mode, connections: HashMap::new(), current, abandoned: false, folder };
        player.connect("main")?;
        player.db().bootstrap()?;
        Ok(player)
    }

    fn connect(&mut self, name: &str) -> litelease::Result<()> {
        if !self.connections.contains_key(name) {
            let connection = Connection::open(self.folder.path().join("scenario.sqlite3"))?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.busy_timeout(Duration::ZERO)?;
            self.connections.insert(name.to_owned(), Litelease::from_connection(connection));
        }
        self.current = name.to_owned();
        Ok(())
    }

    fn db(&mut self) -> &mut Litelease {
        self.connections.get_mut(&self.current).expect("the current connection is open")
    }

    fn lease_step(&mut self, now_ms: i64, action: &Action) -> litelease::Result<String> {
        let mode = self.mode;
        let db = self.db();
        // Inside a transaction of the scenario's own the verbs join that one.
        if !db.conn().is_autocommit() {
            return perform(db, now_ms, action);
        }
        match mode {
            Mode::Autocommit => perform(db, now_ms, action),
            Mode::Borrowed => perform(&litelease::LiteleaseRef::new(db.conn()), now_ms, action),
            Mode::Transaction => {
                let tx = db.transaction()?;
                let answer = perform(&tx, now_ms, action)?;
                tx.commit().map(|()| answer)
            }
            Mode::Savepoint => {
                let mut tx = db.transaction()?;
                let mut outer = tx.savepoint()?;
                let inner = outer.savepoint()?;
                let answer = perform(&inner, now_ms, action)?;
                inner.commit()?;
                outer.commit()?;
                tx.commit().map(|()| answer)
            }
        }
    }
}

impl Player for CratePlayer {
    fn step(&mut self, now_ms: i64, action: &Action) -> Played {
        // A claim on a live name is busy without the write lock, but a transaction of our own asks for it.
        let owns_boundary = matches!(self.mode, Mode::Transaction | Mode::Savepoint);
        self.abandoned |= owns_boundary && matches!(action, Action::Conn { .. });
        if self.abandoned {
            return Played::Skipped(
                "a transaction around each verb would wait for the other connection",
            );
        }
        if action.ttl_ms().is_some_and(|ttl_ms| ttl_ms < 0) {
            return Played::Skipped("a Duration cannot be negative");
        }
        let done = match action {
            Action::Conn { name } => self.connect(name).map(|()| "ok".into()),
            action => match transaction_sql(action) {
                Some(sql) => {
                    self.db().conn().execute_batch(&sql).map(|()| "ok".into()).map_err(Into::into)
                }
                None => self.lease_step(now_ms, action),
            },
        };
        Played::Answer(done.unwrap_or_else(|failed| error(&failed)))
    }
}

/// Calls the verb of an action on any handle of the crate.
pub fn perform(leases: &Leases, now_ms: i64, action: &Action) -> litelease::Result<String> {
    let ttl = Duration::from_millis(action.ttl_ms().unwrap_or(0).unsigned_abs());
    // An exact form means one grant; its expiry plays no part.
    let grant = |name: &str, owner: &str, token: i64| LeaseInfo {
        name: name.to_owned(),
        owner: owner.to_owned(),
        token,
        lease_expires_at_ms: 0,
    };
    Ok(match action {
        Action::Claim { name, owner, above: None, .. } => {
            leases.claim_at(name, owner, ttl, now_ms)?.to_text()
        }
        Action::Claim { name, owner, above: Some(above), .. } => {
            leases.claim_above_at(name, owner, ttl, now_ms, *above)?.to_text()
        }
        Action::Renew { name, owner, token: None, .. } => {
            leases.renew_at(name, owner, ttl, now_ms)?.to_text()
        }
        Action::Renew { name, owner, token: Some(token), .. } => {
            leases.renew_exact_at(&grant(name, owner, *token), ttl, now_ms)?.to_text()
        }
        Action::Release { name, owner, token: None } => {
            leases.release_at(name, owner, now_ms)?.to_text()
        }
        Action::Release { name, owner, token: Some(token) } => {
            leases.release_exact_at(&grant(name, owner, *token), now_ms)?.to_text()
        }
        Action::Transfer { name, owner, new_owner, token: None, .. } => {
            leases.transfer_at(name, owner, new_owner, ttl, now_ms)?.to_text()
        }
        Action::Transfer { name, owner, new_owner, token: Some(token), .. } => {
            let lease = grant(name, owner, *token);
            leases.transfer_exact_at(&lease, new_owner, ttl, now_ms)?.to_text()
        }
        Action::Break { name } => leases.break_lease_at(name, now_ms)?.to_text(),
        Action::Purge { before_ms } => leases.purge_at(*before_ms, now_ms)?.to_string(),
        Action::Inspect { name } => held(leases.inspect_at(name, now_ms)?),
        Action::Owner { name } => owner(leases.owner_at(name, now_ms)?),
        Action::Token { name } => number(leases.token(name)?),
        _ => "error not a verb on leases".into(),
    })
}

fn transaction_sql(action: &Action) -> Option<String> {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    Some(match action {
        Action::Begin { immediate: false } => "BEGIN".into(),
        Action::Begin { immediate: true } => "BEGIN IMMEDIATE".into(),
        Action::Commit => "COMMIT".into(),
        Action::Rollback => "ROLLBACK".into(),
        Action::Savepoint { name } => format!("SAVEPOINT {}", quoted(name)),
        Action::RollbackTo { name } => format!("ROLLBACK TO {}", quoted(name)),
        Action::ReleaseSavepoint { name } => format!("RELEASE {}", quoted(name)),
        _ => return None,
    })
}

impl Action {
    fn name(&self) -> Option<&str> {
        use Action::*;
        match self {
            Claim { name, .. } | Renew { name, .. } | Release { name, .. } => Some(name),
            Transfer { name, .. } | Break { name } | Inspect { name } => Some(name),
            Owner { name } | Token { name } => Some(name),
            _ => None,
        }
    }

    fn ttl_ms(&self) -> Option<i64> {
        use Action::*;
        match self {
            Claim { ttl_ms, .. } | Renew { ttl_ms, .. } | Transfer { ttl_ms, .. } => Some(*ttl_ms),
            _ => None,
        }
    }
}

/// An answer in the words of scenario files.
pub trait ToText {
    /// The text.
    fn to_text(&self) -> String;
}

impl<S: AsRef<str>> ToText for ClaimResult<S> {
    fn to_text(&self) -> String {
        match self {
            ClaimResult::Acquired(lease) => format!("acquired {}", grant(lease)),
            ClaimResult::Busy(lease) => {
                format!("busy {} {}", shown(lease.owner.as_ref()), grant(lease))
            }
        }
    }
}

impl<S: AsRef<str>> ToText for RenewResult<S> {
    fn to_text(&self) -> String {
        match self {
            RenewResult::Renewed(lease) => format!("renewed {}", grant(lease)),
            RenewResult::Rejected { reason, current } => rejected(reason, current),
        }
    }
}

impl<S: AsRef<str>> ToText for ReleaseResult<S> {
    fn to_text(&self) -> String {
        match self {
            ReleaseResult::Released { token, .. } => format!("released {token}"),
            ReleaseResult::Rejected { reason, current } => rejected(reason, current),
        }
    }
}

impl<S: AsRef<str>> ToText for TransferResult<S> {
    fn to_text(&self) -> String {
        match self {
            TransferResult::Transferred(lease) => format!("transferred {}", grant(lease)),
            TransferResult::Rejected { reason, current } => rejected(reason, current),
        }
    }
}

impl<S: AsRef<str>> ToText for BreakResult<S> {
    fn to_text(&self) -> String {
        match self {
            BreakResult::Broken { killed, .. } => format!("broken {killed}"),
            BreakResult::Rejected { reason, current } => rejected(reason, current),
        }
    }
}

fn grant<S>(lease: &LeaseInfo<S>) -> String {
    format!("{} until {}", lease.token, lease.lease_expires_at_ms)
}

fn rejected<S: AsRef<str>>(reason: &Reason, current: &Option<LeaseInfo<S>>) -> String {
    match (reason, current) {
        (Reason::HeldBy, Some(lease)) => {
            format!("rejected held by {} {}", shown(lease.owner.as_ref()), lease.token)
        }
        (Reason::HeldBy, None) => "rejected held by nobody".into(),
        (Reason::Superseded { by }, _) => format!("rejected superseded by {by}"),
        (reason, _) => format!("rejected {reason}"),
    }
}

fn held<S: AsRef<str>>(lease: Option<LeaseInfo<S>>) -> String {
    match lease {
        Some(lease) => format!("held {} {}", shown(lease.owner.as_ref()), grant(&lease)),
        None => "none".into(),
    }
}

fn owner<S: AsRef<str>>(owner: Option<S>) -> String {
    owner.map_or("none".into(), |owner| format!("owner {}", shown(owner.as_ref())))
}

fn number(number: Option<i64>) -> String {
    number.map_or("none".into(), |number| number.to_string())
}

/// An error in the words of scenario files: its kind, or SQLite's own name for it.
pub fn error(error: &litelease::Error) -> String {
    let litelease::Error::Sqlite(failure) = error else { return format!("error {}", error.kind()) };
    let code = failure.sqlite_error().map_or(0, |error| error.extended_code);
    let name = match code {
        5 => "SQLITE_BUSY",
        6 => "SQLITE_LOCKED",
        8 => "SQLITE_READONLY",
        13 => "SQLITE_FULL",
        517 => "SQLITE_BUSY_SNAPSHOT",
        _ => return format!("error SQLITE {code}"),
    };
    format!("error {name}")
}
