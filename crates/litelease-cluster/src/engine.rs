//! The contract of an engine, and the types that pass between it and the verbs.
//!
//! An engine keeps rows and compares before it writes. It knows no rule: the verbs load a row, ask
//! the rule in `litelease-core` and hand back what to store.

#[cfg(any(feature = "etcd", feature = "postgres"))]
mod driver;
mod error;
mod guard;
mod url;

use std::sync::Weak;
use std::time::Duration;

use litelease_core::{Epoch, State};

#[cfg(any(feature = "etcd", feature = "postgres"))]
pub(crate) use driver::{Driver, FORMAT, first_behind, time_to_move};
pub use error::{Error, Result};
pub use guard::GuardInfo;
pub use litelease_core::Guard;
pub use url::{EngineUrl, EtcdUrl, PostgresUrl};

/// A store that several machines share: it keeps rows, and compares before it writes.
///
/// Every call is one request, or a few, of bounded time. An engine does not repeat a request that
/// changes something: the verbs do, because they know what was asked. If a request may or may not
/// have been carried out, it fails with [`Error::CommitUnknown`]; with [`Error::Unreachable`] if
/// nothing can have been stored.
pub trait Engine: Send + Sync {
    /// Reads rows, the floor and the time, all at one instant.
    fn load(&self, names: &[&str]) -> Result<Loaded>;

    /// Stores all of a change or nothing of it.
    ///
    /// It is stored only if the floor and every row of `seen` that the change names are still the
    /// same, to the last column; with [`beside`](Change::beside), what is beside them, too.
    /// Otherwise the answer is [`Stored::Conflict`]. A row that was absent must still be absent.
    fn store(&self, seen: &Loaded, change: &Change) -> Result<Stored>;

    /// Reads like [`load`](Engine::load), for at most `time`: a later answer is of no use.
    fn load_within(&self, names: &[&str], time: Duration) -> Result<Loaded> {
        let _ = time;
        self.load(names)
    }

    /// Stores each of these rows for itself, if the floor, this row of `seen` and what is beside it
    /// are still the same, and the row is live, and waits for at most `time`. `rows` has a new row
    /// for each row of `seen`, under the same token, at most [`most_rows`](Engine::most_rows) of
    /// them.
    ///
    /// Returns for each what became of it. A row that has changed does not keep the others from
    /// being stored. If the call fails, each of them may or may not be stored. An engine with a
    /// clock that is later than `at_ms` of a row stores it [as of then](StoredRow::as_of), with its
    /// whole ttl, and answers [`Stored::DoneAt`].
    fn store_each(&self, seen: &Loaded, rows: &[StoredRow], time: Duration) -> Result<Vec<Stored>> {
        let _ = time;
        let store = |seen: &Loaded, rows: &[StoredRow]| {
            let names = seen.rows.iter().map(|row| row.name.clone());
            let rows = names.zip(rows.iter().cloned()).collect();
            let change = Change { rows, while_live: true, beside: true, ..Change::default() };
            self.store(seen, &change)
        };
        let stored = store(seen, rows)?;
        if stored != Stored::Conflict || rows.len() < 2 {
            return Ok(vec![stored; rows.len()]);
        }
        // One of them has changed. The others are stored one by one.
        let one = |row: &LoadedRow| Loaded { rows: vec![row.clone()], ..seen.without_rows() };
        let pairs = seen.rows.iter().zip(rows.chunks(1));
        pairs.map(|(row, new)| store(&one(row), new)).collect()
    }

    /// Notifies `listener` of changes by other clients, until it is dropped. The engine calls it on
    /// its own thread, and it must return at once.
    ///
    /// An engine that cannot notify does nothing: its callers read the rows now and then.
    fn listen(&self, what: Changes, listener: Weak<dyn Listener>) {
        let _ = (what, listener);
    }

    /// Notifies listeners to [`Changes::Tokens`] of changes to this name after `version`, until it
    /// was [unfollowed](Engine::unfollow) as often. An engine that notifies of all names does
    /// nothing.
    fn follow(&self, name: &str, version: i64) {
        let _ = (name, version);
    }

    /// Ends one [`follow`](Engine::follow).
    fn unfollow(&self, name: &str) {
        let _ = name;
    }

    /// Reads all rows and the floor, in the order of names, without what is beside them.
    fn list(&self) -> Result<Loaded>;

    /// Reads what is beside all rows, each with its name.
    ///
    /// It need not be a snapshot: something that is beside a row counts only for its token.
    fn list_beside(&self, kind: SideKind) -> Result<Vec<(String, SideRow)>> {
        let _ = kind;
        Ok(Vec::new())
    }

    /// Deletes those rows of `seen` that are still the same, with the payloads beside them, and
    /// returns how many.
    ///
    /// The floor is above their tokens by now. A row that has changed stays.
    fn forget(&self, seen: &[LoadedRow]) -> Result<u64>;

    /// Sleeps until the row of a name may have changed since `version`, for at most `time`.
    fn wait_for_change(&self, name: &str, version: i64, time: Duration);

    /// Reads the rows that [`commit_rows`](Engine::commit_rows) has stored under keys that begin
    /// with `prefix`, in the order of keys.
    ///
    /// It makes as many requests as their size needs, so it is not a snapshot: concurrent writes
    /// may or may not appear. A caller that needs one takes a new token first, which stops other
    /// writers.
    fn load_rows(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;

    /// Stores rows of the service, each a key and a value (none: it is deleted), if `token` is
    /// still the newest token of `name`.
    fn commit_rows(&self, name: &str, token: i64, rows: &[RowChange]) -> Result<Stored>;

    /// Does the same if the engine is still the incarnation that rows were
    /// [loaded](Engine::load) from. Another one may have lost commits, and these rows may be
    /// changes to what it does not have. An engine that loses none does not compare.
    fn commit_rows_of(
        &self,
        _incarnation: i64,
        name: &str,
        token: i64,
        rows: &[RowChange],
    ) -> Result<Stored> {
        self.commit_rows(name, token, rows)
    }

    /// Stores a commit of the service: each of its parts for itself, and its rows with the first
    /// part that is sent. Without parts, it stores nothing.
    ///
    /// Every part is one name. It is stored only if the row of that name is still the one that the
    /// part was decided on, and it takes its rows of the service along. A part that has met a
    /// conflict, or a row that another transaction has locked, keeps no other from being stored.
    fn commit_parts(&self, commit: &Commit<'_>) -> Result<Committed> {
        let _ = commit;
        Err(Error::Refused("this engine stores no names for a service".into()))
    }

    /// Returns how many parts and rows one [`Commit`] may have together, if a part has at most this
    /// many rows.
    fn most_parts(&self, rows_each: usize) -> usize {
        self.most_rows(false).saturating_sub(rows_each + 2).max(1)
    }

    /// Returns how many rows one [`Change`] may have, with new tokens or with those they have.
    fn most_rows(&self, new_tokens: bool) -> usize;

    /// Returns facts for operators, each with what to do if something is wrong.
    fn facts(&self) -> Result<EngineFacts>;

    /// Makes what the engine needs before the first row, and checks it strictly if it is there.
    fn bootstrap(&self) -> Result<()> {
        Ok(())
    }

    /// Checks whether the engine can store a name or an owner text.
    fn check_text(&self, what: &'static str, text: &str) -> Result<()> {
        let _ = (what, text);
        Ok(())
    }

    /// Guards a table of the caller's, if the engine has any.
    fn guard(&self, table: &str, name: &str, guard: &Guard) -> Result<()> {
        let _ = (table, name, guard);
        Err(no_tables())
    }

    /// Removes guards, and returns how many.
    fn unguard(&self, table: &str, name: Option<&str>) -> Result<u64> {
        let _ = (table, name);
        Err(no_tables())
    }

    /// Stores a value under a key of the caller's, if `token` is still the newest of `name`.
    fn guarded_put(&self, name: &str, token: i64, key: &[u8], value: &[u8]) -> Result<Stored> {
        let _ = (name, token, key, value);
        Err(Error::Refused(
            "only etcd has keys of the caller's; guard a table, or use a Gate".into(),
        ))
    }

    /// Returns all guards.
    fn guards(&self) -> Result<Vec<GuardInfo>> {
        Err(no_tables())
    }
}

fn no_tables() -> Error {
    Error::Refused("guarded tables need SQLite or PostgreSQL; use a Gate".into())
}

/// The changes that a [`Listener`] is called for. It may be called for others, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Changes {
    /// Losses of leases: breaks, transfers and new grants of the names that are
    /// [followed](Engine::follow).
    Tokens,
    /// Every change of a row.
    Rows,
}

/// Receives change notifications. They are hints: read the row before acting.
pub trait Listener: Send + Sync {
    /// Handles a possible change of the row of this name, or of any row if it is `None`. `token` is
    /// the newest token after it, if the engine knows.
    fn changed(&self, name: Option<&str>, token: Option<i64>);
}

/// A snapshot: the rows, the floor and the clock, read at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Loaded {
    /// The floor of all tokens, and the incarnation that it was recorded in.
    pub floor: TokenFloor,
    /// The incarnation of the engine now: a positive number that changes when commits may have been
    /// lost, such as etcd's cluster id or PostgreSQL's timeline.
    pub incarnation: i64,
    /// The engine's own clock, as Unix time in milliseconds, if it has one that all clients share.
    /// Without one, a row is over when it was seen unchanged for a whole ttl.
    pub server_ms: Option<i64>,
    /// The requested rows, in the order of the request.
    pub rows: Vec<LoadedRow>,
}

/// The floor of all tokens as it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TokenFloor {
    /// The floor, and the incarnation.
    pub epoch: Epoch,
    /// Another number after every change; 0 if nothing is stored.
    pub version: i64,
}

/// A name, and its row if it has one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LoadedRow {
    /// The name.
    pub name: String,
    /// Another number after every change; 0 if there is no row.
    pub version: i64,
    /// The row.
    pub row: Option<StoredRow>,
    /// The rows beside it.
    pub sides: Vec<SideRow>,
}

/// Something that is stored beside the row of a name, so that plain grants cost nothing more.
///
/// It is stored in a transaction that compares the version of the row, and it belongs to a grant.
/// Only a [`Change`] with [`beside`](Change::beside) depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SideRow {
    /// Its kind.
    pub kind: SideKind,
    /// Another number after every change. It does not matter when it is stored.
    pub version: i64,
    /// The token of the grant that it was stored under.
    pub token: i64,
    /// The attempt that stored it.
    pub attempt: i64,
    /// Its content, as a JSON object.
    pub text: String,
}

/// The kinds of what is beside a row, of which a name has at most one each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SideKind {
    /// The value, the limits and the request of a grant. With another token than the row's it does
    /// not count.
    Payload,
}

impl SideKind {
    /// All kinds.
    pub const ALL: [SideKind; 1] = [SideKind::Payload];

    /// Returns the letter that stands for it in keys and columns.
    pub fn letter(self) -> &'static str {
        match self {
            SideKind::Payload => "p",
        }
    }
}

/// A row as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoredRow {
    /// The newest token.
    pub token: i64,
    /// The owner, unless the name was released.
    pub tenure: Option<StoredTenure>,
    /// When the newest grant began, by the clock of the client that decided: for people. It does
    /// not matter once the name was released.
    pub since_ms: i64,
    /// When it was stored, by the clock of the client that decided.
    pub at_ms: i64,
    /// The attempt that stored it.
    pub attempt: i64,
    /// The attempt that ended the last tenure before its time: a release, a transfer or a break; 0
    /// if there was none. Other grants and renewals leave it as it is, so a client whose answer was
    /// lost finds its attempt also after the next grant.
    pub ended: i64,
}

/// An owner, the end of its lease by a clock, and its length, for clients that trust no clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoredTenure {
    /// The owner.
    pub owner: String,
    /// The first millisecond after its lease, by the clock of the client that decided.
    pub until_ms: i64,
    /// How long the lease is, counted from when the row was stored.
    pub ttl_ms: i64,
}

/// A set of changes to store in one step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Change {
    /// The new floor, if it changes.
    pub floor: Option<Epoch>,
    /// New rows by name. Each name is one of those that were loaded.
    pub rows: Vec<(String, StoredRow)>,
    /// The loaded rows must still be live when this is stored, by the engine's own clock.
    pub while_live: bool,
    /// The shortest time that the lease of the one row must last after it is stored, by the
    /// engine's own clock. The client may have guessed that clock: if it is later than `at_ms` when
    /// the row is stored, the row is stored as of then, and the answer is [`Stored::DoneAt`]. An
    /// engine without a clock stores the row as it is.
    pub lasts_ms: Option<i64>,
    /// Rows to store beside loaded rows, by name, whether those change or not.
    pub sides: Vec<(String, SideRow)>,
    /// The payloads beside the rows must still be those that were loaded, as far as they are of
    /// their token.
    pub beside: bool,
    /// Clients that wait for changes of these names are told, also if none is freed.
    pub tells: bool,
}

impl Change {
    /// Returns the names that it is about.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let rows = self.rows.iter().map(|(name, _)| name.as_str());
        let of_row = |name: &str| self.rows.iter().any(|(of_row, _)| of_row == name);
        let sides = self.sides.iter().map(|(name, _)| name.as_str());
        rows.chain(sides.filter(move |name| !of_row(name)))
    }
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the change may have met a conflict"]
pub enum Stored {
    /// It is stored, and this is the version of the floor and rows that it changed.
    Done {
        /// The new version.
        version: i64,
    },
    /// The same, and this is the engine's own clock at that moment. A row with an earlier `at_ms`
    /// has this one, and its lease ends [`lasts_ms`](Change::lasts_ms) after it, or later.
    DoneAt {
        /// The new version.
        version: i64,
        /// The engine's own clock.
        server_ms: i64,
    },
    /// Nothing was stored: a row or the floor has changed since it was loaded.
    Conflict,
}

/// A commit of the service: what it has decided about names, and rows of its own.
#[derive(Clone, Debug)]
pub struct Commit<'c> {
    /// The name and token of the lease of the server that writes. Nothing is stored under an older
    /// token.
    pub writer: (&'c str, i64),
    /// The version of the floor that was decided on.
    pub floor_version: i64,
    /// The incarnation that was decided on.
    pub incarnation: i64,
    /// The names, each once.
    pub parts: &'c [Part],
    /// Rows of the service that belong to no name.
    pub rows: &'c [RowChange],
}

/// One name of a [`Commit`].
#[derive(Clone, Debug)]
pub struct Part {
    /// The row that was decided on.
    pub before: LoadedRow,
    /// The new row, or `None` if the one before only has to be there still.
    pub row: Option<StoredRow>,
    /// The condition for the lease before, by the engine's own clock, if it has one.
    pub condition: Condition,
    /// Rows of the service that are stored with it.
    pub rows: Vec<RowChange>,
}

impl Part {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.before.name
    }

    /// Returns the new row as it is stored at this time of the engine's own clock: its lease is as
    /// long as it was decided.
    pub fn row_at(&self, server_ms: i64) -> Option<StoredRow> {
        let decided = self.row.as_ref()?;
        let moved = |at_ms: i64| server_ms.saturating_add(at_ms.saturating_sub(decided.at_ms));
        let mut row = StoredRow { at_ms: server_ms, ..decided.clone() };
        if let Some(tenure) = &mut row.tenure {
            tenure.until_ms = moved(tenure.until_ms);
        }
        if self.before.row.as_ref().is_none_or(|before| before.token != row.token) {
            row.since_ms = moved(row.since_ms);
        }
        Some(row)
    }

    /// Checks whether waiters of the name may go on once this row is stored.
    pub fn frees(&self, row: &StoredRow) -> bool {
        let had = self.before.row.as_ref().filter(|before| before.tenure.is_some());
        let is_handed_on =
            |before: &StoredRow| before.token != row.token && self.condition != Condition::Ended;
        had.is_some_and(|before| row.tenure.is_none() || is_handed_on(before))
    }
}

/// A condition for the lease before, when a part is stored, by the engine's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No clock is asked, and times are stored as they were decided.
    None = 0,
    /// The lease is live.
    Live = 1,
    /// The lease is over.
    Ended = 2,
}

/// The outcome of a [`Commit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Committed {
    /// Another server writes, or the engine is another incarnation. Nothing was stored.
    Replaced,
    /// The floor has changed. Nothing was stored.
    FloorChanged,
    /// The rows are stored. What became of each part, in order.
    Parts(Vec<Stored>),
}

/// A row of the service: its key, and its new value or none.
pub type RowChange = (Vec<u8>, Option<Vec<u8>>);

/// Facts about an engine, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineFacts {
    /// Each fact: a word and its value.
    pub facts: Vec<(String, String)>,
    /// Settings to change, and how.
    pub warnings: Vec<String>,
}

impl Loaded {
    /// Returns the floor and the time alone.
    pub fn without_rows(&self) -> Loaded {
        let Loaded { floor, incarnation, server_ms, .. } = *self;
        Loaded { floor, incarnation, server_ms, rows: Vec::new() }
    }

    /// Returns the change of the floor that must be stored before `token` may be granted, or `None`
    /// if the floor will do.
    pub fn floor_for(&self, token: i64) -> Result<Option<Epoch>> {
        match self.floor.epoch.is_enough_for(token) {
            true => Ok(None),
            false => Ok(self.floor.epoch.needed(token, crate::change::context(self))?),
        }
    }

    /// Returns the row of a requested name.
    pub fn row(&self, name: &str) -> Option<&LoadedRow> {
        self.rows.iter().find(|row| row.name == name)
    }
}

impl LoadedRow {
    /// Returns a name without a row.
    pub fn absent(name: &str) -> Self {
        LoadedRow { name: name.to_owned(), version: 0, row: None, sides: Vec::new() }
    }

    /// Returns what is beside it for its own token.
    pub fn side(&self, kind: SideKind) -> Option<&SideRow> {
        let token = self.row.as_ref()?.token;
        self.sides.iter().find(|side| side.kind == kind && side.token == token)
    }

    /// Checks whether two rows of a name are the same, whatever is beside them.
    pub fn is_same_row(&self, other: &LoadedRow) -> bool {
        (&self.name, self.version, &self.row) == (&other.name, other.version, &other.row)
    }

    /// Returns the version of the payload of its own token, or 0 if there is none.
    pub fn payload_version(&self) -> i64 {
        self.side(SideKind::Payload).map_or(0, |side| side.version)
    }
}

impl StoredRow {
    /// Returns the row as it is stored at this time of the engine's own clock, with a lease that
    /// lasts so long from then on.
    pub fn as_of(&self, server_ms: i64, lasts_ms: i64) -> StoredRow {
        let mut row = self.clone();
        row.at_ms = row.at_ms.max(server_ms);
        if let Some(tenure) = &mut row.tenure {
            tenure.until_ms = tenure.until_ms.max(server_ms.saturating_add(lasts_ms));
            tenure.ttl_ms = tenure.until_ms.saturating_sub(row.at_ms);
        }
        row
    }

    /// Checks whether a transfer has stored it: its owner has not renewed it yet.
    pub fn was_handed_over(&self) -> bool {
        self.tenure.is_some() && self.ended == self.attempt
    }

    /// Returns the row as the rule sees it, or an error if it breaks what every writer promises.
    pub fn state(&self, name: &str) -> Result<State<'_>> {
        let tenure = self.tenure.as_ref();
        let owner = tenure.map(|tenure| tenure.owner.as_str());
        State::stored(self.token, owner, tenure.map(|tenure| tenure.until_ms))
            .ok_or_else(|| Error::InvalidLeaseRow { name: name.into(), reason: "token".into() })
    }
}
