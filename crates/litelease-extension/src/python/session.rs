//! The session of a connection: its store, and the calls on it, one at a time.

use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use litelease_core::Lease;
use litelease_hold::file::Drain;
use litelease_store::{
    Effect, Error, HostedStore, Kind, Misuse, OwnedValue, Reader, Rows, Store, Verb, verb,
};

use crate::python::api::{
    Boxed, Object, Raised, Result, clear, py, set_exception, string, tuple, without_gil,
};
use crate::python::host::{PythonHost, SharedHost};
use crate::python::opened::{Opened, OwnStore};
use crate::python::this_process;
use crate::python::turn::{Calls, NoTurn, Turn};
use crate::python::values::Names;
use crate::python::waiting::Notifier;

/// The state that all handles on one connection share. Apart from the turn, only the thread that
/// has the turn uses it.
pub(crate) struct Session {
    names: &'static Names,
    calls: &'static Calls,
    process: u64,
    turn: Turn,
    host: Rc<PythonHost>,
    /// The connection itself, if the library has seen its opening. It needs no host.
    opened: Option<Opened>,
    store: RefCell<Option<SessionStore>>,
    has_autocommit: Cell<Option<bool>>,
    /// The readers that a writer of a cached value waits for.
    drain: RefCell<Option<Drain>>,
    notifier: Notifier,
    /// True while a worker's loop runs on the connection.
    pub(crate) has_worker: Arc<AtomicBool>,
    /// True while a reference of ours keeps the session alive, because waiters are still to be
    /// notified.
    is_kept: Cell<bool>,
}

impl Boxed for Session {
    const NAME: &'static CStr = c"litelease.session";
}

/// The store of a session, with its way to reach the connection.
enum SessionStore {
    Hosted(HostedStore),
    Own(OwnStore),
}

impl Deref for SessionStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        match self {
            SessionStore::Hosted(hosted) => hosted,
            SessionStore::Own(own) => &own.store,
        }
    }
}

/// A call, with Python's arguments.
pub(crate) struct Call<'c> {
    /// The session's object, with its `conn`, `cursor` and `handle`.
    pub(crate) session: &'c Object,
    /// True if a transaction of the caller's must be open, false if none may be; `None` allows
    /// both.
    pub(crate) is_joined: Option<bool>,
    pub(crate) verb: &'c str,
    pub(crate) values: Vec<Object>,
}

/// The reason why a call failed.
pub(crate) enum Failed {
    /// An exception is set.
    Raised,
    /// The kind of error, and its text.
    Kind(&'static str, String),
    /// An error of the store.
    Store(Error),
}

impl From<Raised> for Failed {
    fn from(_: Raised) -> Self {
        Failed::Raised
    }
}

const FORKED: &str = "this process was forked since the connection was opened, and SQLite cannot share one with its \
                      parent: open a new one in the child";
const REENTERED: &str = "another call on this connection is running in this very thread, so this one comes from a signal \
                         handler or a callback: give it a connection of its own";
/// The verbs after which no `finish` block is open.
const ENDS_OF_BLOCKS: [&str; 4] = ["end_finish", "end_finish_tick", "undo_finish", "tidy"];
/// The verbs after which one is open.
const BEGINS_OF_BLOCKS: [&str; 2] = ["begin_finish", "begin_finish_tick"];
const BLOCKED: &str = "database is locked: another thread has a finish() block open on this connection; give each \
                       thread a connection of its own";
const NESTED: &str = "finish() begins a transaction of its own: commit yours first, or call ack() in it and roll back if \
                      that is falsy";
const EXCLUSIVE: &str = "this connection has PRAGMA locking_mode = EXCLUSIVE or was opened with immutable=1, so no second \
                         one can use the file: open another one for Litelease";
const ENDING: &str = "the interpreter is shutting down";
const NOT_IN_TRANSACTION: &str = "no transaction is open, so this would be stored by itself: it was not begun, or SQLite \
                                  has ended it after an error; begin it again";
const AUTOCOMMIT_OFF: &str = "this connection was opened with autocommit=False, so it is always inside a transaction and \
                              nothing counts before conn.commit(): open another one without that for Litelease, or use \
                              Litelease(conn).joining() and commit yourself";

impl Session {
    pub(crate) fn new(
        names: &'static Names,
        calls: &'static Calls,
        opened: Option<Opened>,
    ) -> Self {
        Session {
            opened,
            names,
            calls,
            process: this_process(),
            turn: Turn::default(),
            host: Rc::new(PythonHost::new(names)),
            store: RefCell::new(None),
            has_autocommit: Cell::new(None),
            drain: RefCell::default(),
            notifier: Notifier::default(),
            has_worker: Arc::default(),
            is_kept: Cell::new(false),
        }
    }

    /// Makes a call. `fail` raises its error, after everything was given back.
    pub(crate) fn call(&self, fail: &Object, call: Call<'_>) -> Result<Object> {
        let (done, raised) = match self.run(&call) {
            Ok(ran) => ran,
            Err(failed) => (Err(failed), Vec::new()),
        };
        done.or_else(|failed| raise(self.names, fail, failed, &raised))
    }

    #[allow(clippy::type_complexity)]
    fn run(
        &self,
        call: &Call<'_>,
    ) -> std::result::Result<(std::result::Result<Object, Failed>, Vec<(String, Object)>), Failed>
    {
        if self.process != this_process() {
            return Err(Failed::Kind("LiteleaseError", FORKED.into()));
        }
        let values = match call.verb {
            "load" | "file" => Vec::new(),
            _ => self.values(call)?,
        };
        let ends_block = ENDS_OF_BLOCKS.contains(&call.verb);
        let taken = self.turn.take(self.calls, ends_block).map_err(|reason| match reason {
            NoTurn::Blocked => Failed::Kind("OperationalError", BLOCKED.into()),
            NoTurn::Reentered => Failed::Kind("LiteleaseError", REENTERED.into()),
            NoTurn::Ending => Failed::Kind("LiteleaseError", ENDING.into()),
            NoTurn::Raised => Failed::Raised,
        })?;
        let connection = call.session.attribute(&self.names.conn)?;
        if call.verb == "forget" {
            // The connection is about to close.
            drop(self.store.take());
            return Ok((self.names.none().map_err(Failed::from), Vec::new()));
        }
        if self.opened.is_some() {
            // A connection that was closed raises here.
            drop(connection.attribute(&self.names.in_transaction)?);
            self.make_store()?;
        }
        let is_hosted = matches!(&*self.store.borrow(), None | Some(SessionStore::Hosted(_)));
        if is_hosted {
            let cursor = self.cursor(call.session, &connection)?;
            self.host.begin(Object::borrowed(connection.as_raw())?, cursor)?;
        }
        let done = self.work(call, &connection, &values);
        let raised = if is_hosted { self.host.end() } else { Vec::new() };
        self.keep_while_owing(call.session);
        if ends_block || BEGINS_OF_BLOCKS.contains(&call.verb) {
            taken.set_block(self.store.borrow().as_ref().is_some_and(|store| store.has_begun()));
        }
        drop(taken);
        Ok((done, raised))
    }

    fn work(
        &self,
        call: &Call<'_>,
        connection: &Object,
        values: &[OwnedValue],
    ) -> std::result::Result<Object, Failed> {
        let mut store = self.store.borrow_mut();
        if store.is_none() {
            let host = Box::new(SharedHost(Rc::clone(&self.host)));
            let hosted = HostedStore::new(host).map_err(|failure| Failed::Store(failure.into()))?;
            *store = Some(SessionStore::Hosted(hosted));
        }
        let Some(store) = &*store else { return Err(Failed::Raised) };
        self.check_boundary(connection, call.is_joined)?;
        match call.verb {
            "file" => self.file(store),
            "load" => match store {
                SessionStore::Hosted(_) => self.load(connection, &call.values),
                SessionStore::Own(own) => match own.load() {
                    Ok(()) => Ok(string("there")?),
                    Err(text) => Err(Failed::Kind("OperationalError", text)),
                },
            },
            "begin_drain" | "drain_left" => self.wait_for_readers(store, values),
            verb if BEGINS_OF_BLOCKS.contains(&verb) && store.is_in_transaction() => {
                Err(Failed::Kind("LiteleaseError", NESTED.into()))
            }
            name => {
                let verb = verb(name, values.len())
                    .ok_or_else(|| misuse(format!("there is no verb {name}")))?;
                let called = match store {
                    SessionStore::Hosted(hosted) => {
                        let called = verb.call(store, values);
                        hosted.restore_rowid();
                        called
                    }
                    SessionStore::Own(own) => {
                        let mut called = Ok(Vec::new());
                        without_gil(|| called = verb.call(&own.store, values));
                        called
                    }
                };
                match called {
                    Ok(rows) => {
                        let frees = verb.effect == Effect::Frees;
                        self.notify(store, frees && !is_no(&rows));
                        Ok(self.names.list_of(&rows)?)
                    }
                    Err(Misuse::Error(error)) => Err(Failed::Store(error)),
                    Err(Misuse::Argument(at)) => {
                        Err(wrong_type(Some(verb), at, call.values.get(at)))
                    }
                }
            }
        }
    }

    /// Answers the path of the main database, for connections of our own; empty for one in memory.
    fn file(&self, store: &SessionStore) -> std::result::Result<Object, Failed> {
        use litelease_store::Host;

        let path = file_of(store);
        let (is_exclusive, has_moved) = match store {
            _ if path.is_empty() => (false, false),
            SessionStore::Own(own) => {
                let connection = own.store.connection();
                (connection.locks_exclusively(), connection.has_moved())
            }
            SessionStore::Hosted(_) => {
                let mode = self.host.run("PRAGMA main.locking_mode", &[]);
                let mode = mode.map_err(|failure| Failed::Store(failure.into()))?;
                let mut exclusive = Rows::new(1);
                exclusive.push(OwnedValue::Text("exclusive".into()));
                (mode == exclusive, false)
            }
        };
        match (is_exclusive, has_moved) {
            (true, _) => Err(Failed::Kind("LiteleaseError", EXCLUSIVE.into())),
            (_, true) => {
                let text = format!("{path} was moved, deleted or replaced: open it again");
                Err(Failed::Kind("LiteleaseError", text))
            }
            _ => Ok(string(&path)?),
        }
    }

    /// Begins to wait for the readers of a name. Without one, answers those that may still answer
    /// from memory, each with its end and for how many ms to sleep at most.
    fn wait_for_readers(
        &self,
        store: &Store,
        values: &[OwnedValue],
    ) -> std::result::Result<Object, Failed> {
        let mut drain = self.drain.borrow_mut();
        if let Some(OwnedValue::Text(name)) = values.first() {
            *drain = Some(Drain::new(store, name).map_err(Failed::Store)?);
        }
        let Some(drain) = &*drain else { return Ok(self.names.list_of(&[])?) };
        let (left, sleep) = drain.readers_left(store).map_err(Failed::Store)?;
        let sleep_ms = i64::try_from(sleep.as_millis()).unwrap_or(0).max(1);
        let row = |Reader { reader, expires_at_ms }: Reader| {
            let numbers = [expires_at_ms, sleep_ms].map(OwnedValue::Integer);
            [OwnedValue::Text(reader)].into_iter().chain(numbers).collect()
        };
        Ok(self.names.list_of(&left.into_iter().map(row).collect::<Vec<_>>())?)
    }

    /// Makes the store of a connection that the library has seen being opened, which is open.
    fn make_store(&self) -> std::result::Result<(), Failed> {
        let mut store = self.store.borrow_mut();
        if let (None, Some(opened)) = (&*store, self.opened) {
            // SAFETY: it is open: the GIL is held since it was asked.
            let own = unsafe { OwnStore::new(opened) }.map_err(Failed::Store)?;
            *store = own.map(SessionStore::Own);
        }
        Ok(())
    }

    /// Wakes waiters of the file once a freed name is committed. After a COMMIT of the caller's
    /// own, the next verb does it; until then waiters notice the write to the file.
    fn notify(&self, store: &SessionStore, has_freed: bool) {
        if has_freed {
            self.notifier.freed();
        }
        if self.notifier.owes() && !store.is_in_transaction() {
            self.notifier.committed(|| Some(file_of(store)).filter(|file| !file.is_empty()));
        }
    }

    /// Converts the arguments to values. An error names the argument that is no value of SQLite's.
    fn values(&self, call: &Call<'_>) -> std::result::Result<Vec<OwnedValue>, Failed> {
        let value = |(at, given): (usize, &Object)| {
            self.names.to_value(given)?.ok_or_else(|| {
                let verb = verb(call.verb, call.values.len());
                match self.names.is_integer(given) {
                    true => {
                        let what = verb.map_or("an argument", |verb| name_of(verb, at));
                        let (fits, shown) = ("a whole number of at most 64 bits", given.shown());
                        let text = format!("{what} must be {fits}, got {shown}");
                        Failed::Kind("OverflowError", text)
                    }
                    false => wrong_type(verb, at, Some(given)),
                }
            })
        };
        call.values.iter().enumerate().map(value).collect()
    }

    /// A cursor of ours, kept with the session's object, where Python's garbage collector sees it.
    fn cursor(&self, session: &Object, connection: &Object) -> Result<Object> {
        let kept = session.attribute(&self.names.cursor)?;
        if !self.names.is_none(&kept) {
            return Ok(kept);
        }
        let cursor = connection.attribute(&self.names.cursor)?.call(vec![])?;
        cursor.set_attribute(&self.names.row_factory, &self.names.none)?;
        session.set_attribute(&self.names.cursor, &cursor)?;
        Ok(cursor)
    }

    fn check_boundary(
        &self,
        connection: &Object,
        is_joined: Option<bool>,
    ) -> std::result::Result<(), Failed> {
        match is_joined {
            Some(true) => match connection.attribute(&self.names.in_transaction)?.is_true()? {
                true => Ok(()),
                false => Err(Failed::Kind("NotInTransaction", NOT_IN_TRANSACTION.into())),
            },
            Some(false) if self.is_autocommit_off(connection)? => {
                Err(Failed::Kind("AutocommitOff", AUTOCOMMIT_OFF.into()))
            }
            _ => Ok(()),
        }
    }

    /// Python has `autocommit` since 3.12. It is False, True, or a number that stands for the older
    /// way.
    fn is_autocommit_off(&self, connection: &Object) -> Result<bool> {
        if self.has_autocommit.get() == Some(false) {
            return Ok(false);
        }
        match connection.attribute(&self.names.autocommit) {
            Ok(found) => found.is_true().map(|is_on| !is_on),
            Err(Raised) => {
                clear();
                self.has_autocommit.set(Some(false));
                Ok(false)
            }
        }
    }

    /// Loads the extension into the connection, if it is not there yet, and forbids loading again.
    /// Answers None if this Python cannot load extensions.
    fn load(&self, connection: &Object, values: &[Object]) -> std::result::Result<Object, Failed> {
        use litelease_store::Host;

        let is_there = self.host.run("SELECT litelease_version()", &[]).is_ok();
        let Ok(enable) = connection.attribute(&self.names.enable_load_extension) else {
            clear();
            return if is_there { Ok(string("there")?) } else { Ok(self.names.none()?) };
        };
        if !is_there {
            let Some(path) = values.first() else { return Err(misuse("no path".into())) };
            drop(enable.call(vec![crate::python::api::integer(1)?])?);
            let loaded = connection
                .attribute(&self.names.load_extension)
                .and_then(|load| load.call(vec![Object::borrowed(path.as_raw())?]));
            // Stored while Python is called again.
            let loaded = loaded.map_err(|Raised| crate::python::api::take_exception());
            let forbidden = enable.call(vec![crate::python::api::integer(0)?]);
            if let Err(exception) = loaded {
                if forbidden.is_err() {
                    clear();
                }
                return Err(set_exception(exception?).into());
            }
            drop(forbidden?);
        }
        Ok(string("there")?)
    }

    /// Keeps the session alive while waiters are still to be notified, because only it knows of
    /// them.
    fn keep_while_owing(&self, session: &Object) {
        let owes = self.store.borrow().as_ref().is_some_and(|store| !store.is_settled());
        if owes == self.is_kept.replace(owes) {
            return;
        }
        // SAFETY: the object is alive, and the reference that is given back was taken here.
        unsafe {
            match owes {
                true => (py().Py_IncRef)(session.as_raw()),
                false => (py().Py_DecRef)(session.as_raw()),
            }
        }
    }
}

/// Returns the path of the main database; empty for one in memory.
fn file_of(store: &SessionStore) -> String {
    match store {
        SessionStore::Hosted(hosted) => hosted.file().to_owned(),
        SessionStore::Own(own) => own.store.file().unwrap_or_default(),
    }
}

/// Raises an error in Python. For an error of SQLite's it raises again the exception that `sqlite3`
/// has raised.
pub(crate) fn raise(
    names: &Names,
    fail: &Object,
    failed: Failed,
    raised: &[(String, Object)],
) -> Result<Object> {
    let (kind, text, lease) = match &failed {
        Failed::Raised => return Err(Raised),
        Failed::Kind(kind, text) => (*kind, text.clone(), None),
        Failed::Store(Error::ExpiredOnArrival(lease)) => {
            ("ExpiredOnArrival", String::new(), Some(lease))
        }
        Failed::Store(error) => (error.kind(), error.to_string(), None),
    };
    let cause = match &failed {
        Failed::Store(Error::Sqlite(failure) | Error::CommitUnknown(failure)) => raised
            .iter()
            .rfind(|(message, _)| failure.message.ends_with(message.as_str()))
            .map(|(_, exception)| Object::borrowed(exception.as_raw())),
        _ => None,
    };
    let (kind, code) = match &failed {
        // The error did not come from an exception of `sqlite3`.
        Failed::Store(Error::Sqlite(failure)) if cause.is_none() => {
            (exception_of(failure.code), failure.code)
        }
        _ => (kind, 0),
    };
    let lease = match lease {
        Some(Lease { name, owner, token, expires_at_ms }) => tuple(vec![
            string(name)?,
            string(owner)?,
            crate::python::api::integer(*token)?,
            crate::python::api::integer(*expires_at_ms)?,
        ])?,
        None => names.none()?,
    };
    let cause = cause.unwrap_or_else(|| names.none())?;
    let code = crate::python::api::integer(code.into())?;
    fail.call(vec![string(kind)?, string(&text)?, cause, lease, code])
}

/// Returns the class of `sqlite3`'s exceptions for an error of SQLite's.
fn exception_of(code: i32) -> &'static str {
    match code & 0xff {
        1 | 3..=6 | 8..=10 | 13..=17 => "OperationalError",
        2 | 12 => "InternalError",
        7 => "MemoryError",
        18 => "DataError",
        19 | 20 => "IntegrityError",
        21 => "ProgrammingError",
        _ => "DatabaseError",
    }
}

/// Returns the text of what an argument must be.
fn wrong_type(verb: Option<&Verb>, at: usize, given: Option<&Object>) -> Failed {
    let shown = given.map_or("nothing".into(), Object::shown);
    let wanted = match verb.and_then(|verb| verb.argument(at)).map(|argument| argument.kind) {
        Some(Kind::Text | Kind::Texts) => "a str",
        Some(Kind::Integer) | None => "a whole number",
        Some(Kind::Flag) => "0 or 1",
        Some(Kind::Anything) => "None, an int, a float, a str or bytes",
        Some(Kind::IntegerOrKey) => "an int or a str",
        Some(Kind::Count) => "a whole number of 0 or more",
    };
    let what = verb.map_or("an argument", |verb| name_of(verb, at));
    misuse(format!("{what} must be {wanted}, got {shown}"))
}

fn name_of(verb: &Verb, at: usize) -> &'static str {
    verb.argument(at).map_or("an argument", |argument| argument.name)
}

/// Checks whether an answer means that nothing was done.
fn is_no(rows: &[Vec<OwnedValue>]) -> bool {
    match rows.first().and_then(|row| row.first()) {
        Some(OwnedValue::Text(case)) => ["Rejected", "Busy"].contains(&case.as_str()),
        Some(value) => *value == OwnedValue::Integer(0),
        None => false,
    }
}

fn misuse(text: String) -> Failed {
    Failed::Kind("TypeError", text)
}
