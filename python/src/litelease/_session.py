"""One session per connection: the lock that its verbs share, and what an interrupted verb still owes.

A signal handler (Ctrl-C, the timeout of a job) or a trace function can raise between any two bytecodes, in the clean-up
too. Three rules make that harmless:

- What a verb takes (the lock, a transaction, a savepoint, another ``synchronous``) is recorded in the same C call that
  takes it, and forgotten in the same C call that gives it back (``at_once``): the record is never wrong.
- A call ends with ``Call.end`` twice, one ``finally`` around the other: an exception can stop one of them.
- What could not be given back stays recorded, and the next call on the connection begins with it. (The lock then waits for
  the next call of the same thread.)
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import threading
import weakref
from typing import Any, Callable, TypeVar, cast

from ._atomic import Mutex, Reentered, at_once
from ._types import AutocommitOff, CommitUnknown, LiteleaseError, NotInTransaction

T = TypeVar("T")
Verb = TypeVar("Verb", bound=Callable[..., Any])

_MARKER = "litelease_python_own"
_BEGIN = ("BEGIN IMMEDIATE", f"SAVEPOINT {_MARKER}")


class Session:
    """What all handles on one connection share."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.conn = connection
        self.turn = Mutex()
        self._pid = os.getpid()
        # What is owed. Of a transaction of ours, the steps of its beginning: that it is about to begin, that it has begun, and
        # that a savepoint tells it from others.
        self._own: list[object] = []
        self._savepoint: list[str] = []
        self._level: list[int] = []
        self._loading: list[bool] = []

    @property
    def is_inherited(self) -> bool:
        """Checks whether the connection came with a fork: then it is not to be touched."""
        return self._pid != os.getpid()

    def close(self) -> None:
        """Closes the connection, unless it came with a fork."""
        if not self.is_inherited:
            self.conn.close()

    @property
    def is_own(self) -> bool:
        """Checks whether the open transaction is a verb's."""
        return bool(self._own)

    @property
    def level(self) -> int | None:
        """Returns the caller's ``synchronous`` while it is raised."""
        return self._level[0] if self._level else None

    @property
    def _is_marked(self) -> bool:
        return len(self._own) > len(_BEGIN)

    def begin(self) -> None:
        """Begins a transaction of ours, with the write lock."""
        # A BEGIN that was interrupted may have begun all the same, so it is recorded before.
        self._own.append(True)
        self._own.extend(map(self.cursor().execute, _BEGIN))

    def commit(self) -> None:
        """Commits the transaction of ours. Any error but ``CommitUnknown`` means that nothing was stored."""
        try:
            at_once(functools.partial(self.cursor().execute, "COMMIT"), self._own.clear)
        except sqlite3.Error as error:
            # SQLite keeps the transaction open when a lock was in the way: then nothing was stored.
            if self.conn.in_transaction:
                raise
            raise CommitUnknown(
                f"it is not known whether the change was stored; inspect before trying again: {error}"
            ) from error

    def transaction(self, work: Callable[[], T]) -> T:
        """Does ``work`` in a transaction of ours, and leaves none open."""
        try:
            self.begin()
            done = work()
            self.commit()
            return done
        finally:
            self.settle()

    def whole(self, work: Callable[[], T]) -> T:
        """Does all of ``work`` or nothing of it, inside an open transaction."""
        if self.is_own:
            return work()  # it ends as a whole anyway
        try:
            at_once(
                functools.partial(self.cursor().execute, "SAVEPOINT litelease_python"),
                functools.partial(self._savepoint.append, "litelease_python"),
            )
            done = work()
            at_once(functools.partial(self.cursor().execute, "RELEASE litelease_python"), self._savepoint.clear)
            return done
        finally:
            self.settle()

    def raised(self, statement: str, level: int, work: Callable[[], T]) -> T:
        """Does ``work`` with a stronger ``synchronous``, set by ``statement``, and puts ``level`` back."""
        try:
            self._level.append(level)
            self.cursor().execute(statement)
            return work()
        finally:
            self.settle()

    def load(self, path: str) -> None:
        """Loads an extension, and forbids it again."""
        try:
            at_once(
                functools.partial(self._loading.append, True),
                functools.partial(self.conn.enable_load_extension, True),
            )
            self.conn.load_extension(path)
        finally:
            self.settle()

    def settle(self) -> None:
        """Gives back what a verb has taken, in the right order. What SQLite refuses now stays owed: while it is
        interrupted and a statement of the caller's is still running, it does nothing, not even a rollback."""
        if not self.owes or self.is_inherited:
            return
        with contextlib.suppress(sqlite3.Error):
            if self._savepoint:
                self._undo()
            if self._own:
                self._roll_back()
            if self._level:
                at_once(
                    functools.partial(self.cursor().execute, f"PRAGMA main.synchronous = {self._level[0]}"),
                    self._level.clear,
                )
            if self._loading:
                at_once(functools.partial(self.conn.enable_load_extension, False), self._loading.clear)

    def pay_debts(self) -> None:
        """Makes up for what an interrupted call could not give back."""
        # The caller may have gone on in the transaction since: undoing now would take that, too.
        self._savepoint.clear()
        was_unmarked = bool(self._own) and not self._is_marked and self.conn.in_transaction
        self.settle()
        if self._own:
            raise LiteleaseError(
                "an interrupted call has left its transaction open, and SQLite does not roll it back while another statement "
                "of this connection is running: finish or close that one's cursor first"
            )
        if was_unmarked:
            raise LiteleaseError(
                "a transaction that an interrupted call had left open was rolled back now, with whatever was done in it "
                "since: begin again"
            )

    def _undo(self) -> None:
        if self.conn.in_transaction:
            undo = functools.partial(self.cursor().execute, "ROLLBACK TO litelease_python")
            release = functools.partial(self.cursor().execute, "RELEASE litelease_python")
            at_once(undo, release, self._savepoint.clear)
        self._savepoint.clear()  # SQLite has rolled everything back by itself

    def _roll_back(self) -> None:
        if self.conn.in_transaction and self._is_still_ours():
            # Not conn.rollback(), which does nothing on a connection with autocommit=True.
            at_once(functools.partial(self.cursor().execute, "ROLLBACK"), self._own.clear)
        self._own.clear()

    def _is_still_ours(self) -> bool:
        """Checks whether the open transaction is the one that we began. The caller may have ended that, and begun another."""
        if not self._is_marked:
            return True
        try:
            self.cursor().execute(f"ROLLBACK TO {_MARKER}")
        except sqlite3.OperationalError as error:
            if "no such savepoint" not in str(error):
                raise
            return False
        return True

    def cursor(self) -> sqlite3.Cursor:
        """Returns a cursor with plain tuples as rows, whatever the row factory of the caller's connection."""
        cursor = self.conn.cursor()
        cursor.row_factory = None
        return cursor

    @property
    def owes(self) -> bool:
        """Checks whether something is still to be given back."""
        return bool(self._own or self._savepoint or self._level or self._loading)


class Call:
    """One call of a verb: it has the connection to itself."""

    def __init__(self, session: Session, is_joined: bool | None) -> None:
        self._session = session
        self._is_joined = is_joined

    def begin(self) -> None:
        """Waits for the call of another thread, pays what an earlier one owes, and refuses what cannot go well."""
        session = self._session
        if session.is_inherited:
            raise LiteleaseError(
                "this process was forked since the connection was opened, and SQLite cannot share one with its parent: "
                "open a new one in the child"
            )
        try:
            session.turn.take(self)
        except Reentered:
            raise LiteleaseError(
                "another call on this connection is running in this very thread, so this one comes from a signal handler "
                "or a callback: give it a connection of its own"
            ) from None
        _busy.add(session)  # not before: the call that was waited for takes it out
        if session.owes:
            session.pay_debts()
        if self._is_joined is not None:
            _check_boundary(session.conn, self._is_joined)

    def end(self) -> None:
        """Gives everything back. Calling it twice is harmless."""
        session = self._session
        if session.turn.is_held_by(self):
            session.settle()
            if not session.owes:
                _busy.discard(session)
            session.turn.give_back(self)


def _check_boundary(connection: sqlite3.Connection, is_joined: bool) -> None:
    if is_joined:
        if not connection.in_transaction:
            raise NotInTransaction(
                "no transaction is open, so this would be stored by itself: it was not begun, or SQLite has ended it after an "
                "error; begin it again"
            )
    elif getattr(connection, "autocommit", None) is False:
        raise AutocommitOff(
            "this connection was opened with autocommit=False, so it is always inside a transaction and nothing counts before "
            "conn.commit(): open another one without that for Litelease, or use Litelease(conn).joining() and commit yourself"
        )


def call(session: Session, is_joined: bool | None, work: Callable[[], T]) -> T:
    """Does ``work`` with the connection to itself, and leaves nothing behind. ``is_joined`` says whether a transaction of the
    caller's must be open; ``None`` asks for nothing."""
    this = Call(session, is_joined)
    try:
        try:
            this.begin()
            return work()
        finally:
            this.end()
    finally:
        this.end()


def verb(method: Verb) -> Verb:
    """Makes a method a verb: it runs as a call on ``self._session``."""

    @functools.wraps(method)
    def run(self: Any, *values: Any, **named: Any) -> Any:
        this = Call(self._session, self._is_joined)
        try:
            try:
                this.begin()
                return method(self, *values, **named)
            finally:
                this.end()
        finally:
            this.end()

    return cast(Verb, run)


# All sessions by the ids of their connections, which live as long as a session does.
_sessions: weakref.WeakValueDictionary[int, Session] = weakref.WeakValueDictionary()
_finding = threading.RLock()
# Those in a call, and those that owe something: no handle may be left that knows them.
_busy: set[Session] = set()


def session_of(connection: sqlite3.Connection) -> Session:
    """Returns the session of a connection: the same for all handles on it."""
    taken: list[bool] = []
    try:
        try:
            taken.extend(map(_finding.acquire, (True,)))
            session = _sessions.get(id(connection))
            if session is None:
                session = _sessions[id(connection)] = Session(connection)
            return session
        finally:
            if taken:
                at_once(_finding.release, taken.clear)
    finally:
        if taken:
            at_once(_finding.release, taken.clear)
