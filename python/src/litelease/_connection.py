"""One session per connection: what the library keeps for it, and the lock that its verbs share.

The library has the connection to itself while a verb runs, gives everything back before it returns, and runs no bytecode
meanwhile: so no signal handler and no trace function can raise in the middle. What an authorizer forbids to undo is undone by
the next verb on the connection, whichever handle that has, and that verb raises.

One rule for ``fork``: a connection that came with it is never used, closed or freed in the child. SQLite cannot share a
connection between processes. Closing it in the child rolls back in the wal-index that the parent is using, which destroys the
file, or waits for ever for a mutex whose thread does not exist there. Python closes a connection when it frees it, also when
the interpreter ends. So the child keeps every connection that has a session. And a fork closes the connections of trackers and
of the library: SQLite's list of open files is copied, its locks are not, so a connection that the child opens to a file of the
list would take no lock, and the parent's last close would delete the log under it.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import sqlite3
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from . import _library
from ._atomic import at_once
from ._types import LiteleaseError, answer

if TYPE_CHECKING:
    from ._wait import DatabaseFile

Yes = TypeVar("Yes")
No = TypeVar("No")
Me = TypeVar("Me", bound="Closing")


class Session:
    """What all handles on one connection share."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.conn = connection
        # Made by the first verb, and kept here, where the collector of garbage sees it.
        self.cursor: sqlite3.Cursor | None = None
        self.handle = _library.new_handle(getattr(connection, "_litelease", None))
        self._pid = os.getpid()
        # By which the library knows the holds of the connection.
        self.number: int | None = None
        # Known from the first verb on that opens it a second time.
        self.file: DatabaseFile | None = None

    @property
    def is_inherited(self) -> bool:
        """Checks whether the connection came with a fork: then it is not to be touched."""
        return self._pid != os.getpid()

    def close(self) -> None:
        """Closes the connection, unless it came with a fork."""
        if not self.is_inherited:
            self.conn.close()


class OwnConnection(sqlite3.Connection):
    """A connection that the library has seen being opened, and whose statements it runs by itself."""

    _litelease: object = None

    def __init__(self, *values: Any, **options: Any) -> None:
        if "_litelease" in vars(self):
            raise LiteleaseError("this connection was opened before, and the library knows that one: open another one")
        _library.find_library()
        self._litelease = _library.opened(functools.partial(super().__init__, *values, **options))

    def close(self) -> None:
        """Closes it, once no verb is under way, unless it came with a fork."""
        session = session_of(self)
        if not session.is_inherited:
            _library.call(session, None, "forget")
            super().close()


class Closing:
    """A ``with`` block that ends by closing what it is about."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: Me) -> Me:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Handle:
    """A handle on a connection: it calls verbs by their names."""

    def __init__(self, connection: sqlite3.Connection, is_joined: bool = False) -> None:
        self.conn = connection
        self._session = session_of(connection)
        # Whether a transaction of the caller's must be open.
        self._is_joined = is_joined

    def _rows(self, verb: str, *values: object) -> list[tuple[Any, ...]]:
        """Calls a verb, and returns the rows of its answer."""
        rows: list[tuple[Any, ...]] = _library.call(self._session, self._is_joined, verb, *values)
        return rows

    def _row(self, verb: str, *values: object) -> Any:
        """Calls a verb that answers one row, or none."""
        rows = _library.call(self._session, self._is_joined, verb, *values)
        return rows[0] if rows else None

    def _answer(self, yes: type[Yes], no: type[No], verb: str, *values: object) -> Yes | No:
        """Calls a verb that answers one of two cases."""
        made: Yes | No = answer(self._row(verb, *values))
        return made


def load(connection: sqlite3.Connection) -> None:
    """Loads the extension into a connection, so that its statements can call ``litelease_claim`` and the rest.

    Many Pythons are built without ``enable_load_extension``; there this is an error, while everything else works, apart from
    guards by connection. On a file that ``litelease.open`` has opened it works in every Python.
    """
    load_if_missing(session_of(connection), None, "use litelease.Litelease(conn), Pools, hold() or Tracker instead, which work without it")


def load_if_missing(session: Session, is_joined: bool | None, why: str) -> None:
    """Loads the extension, if it is not there yet."""
    if _library.call(session, is_joined, "load", _library.loadable_path()) is None:
        raise sqlite3.NotSupportedError(
            "this Python's sqlite3 cannot load extensions (it was built without enable_load_extension; "
            f"Debian's and python.org's can): {why}"
        )


# All sessions by the ids of their connections, which live as long as a session does. Not a
# WeakValueDictionary: it forgets a value in Python, where an exception of a signal handler's would
# be swallowed.
_sessions: dict[int, weakref.ref[Session]] = {}
_finding = threading.RLock()


@atexit.register
def _keep_open() -> None:
    """Keeps connections open where the runtime ends an interpreter that was left alive. It does so late, in its own thread,
    which ends when it takes the GIL back, as Python does where it closes a connection. The threads of the library would then
    keep the process alive."""
    if sys.is_finalizing():
        for known in list(_sessions.values()):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(known()))


def session_of(connection: sqlite3.Connection) -> Session:
    """Returns the session of a connection: the same for all handles on it."""
    _check(connection)
    taken: list[bool] = []
    give_back = functools.partial(at_once, _finding.release, taken.clear)
    try:
        try:
            taken.extend(map(_finding.acquire, (True,)))
            key = id(connection)
            known = _sessions.get(key)
            session = None if known is None else known()
            if session is None:
                session = Session(connection)
                # Called with the reference, which `pop` takes for a default.
                _sessions[key] = weakref.ref(session, functools.partial(_sessions.pop, key))
            return session
        finally:
            if taken:
                give_back()
    finally:
        if taken:
            give_back()


def _check(connection: object) -> None:
    kind = type(connection)
    module = kind.__module__.partition(".")[0]
    if module == "aiosqlite":
        raise TypeError(
            "an aiosqlite connection runs its statements in a thread of its own: open a plain sqlite3.connect(path) for Litelease"
        )
    if module == "django":
        raise TypeError(
            "this is Django's wrapper: pass the sqlite3 connection inside, connection.connection, after "
            "connection.ensure_connection()"
        )
    if not hasattr(kind, "in_transaction"):
        raise TypeError(f"Litelease needs a sqlite3.Connection, got {connection!r}")


# References from before the fork: the child frees what belongs to other threads before it calls
# anything here.
_kept: list[Session | None] = []


def _keep_all() -> None:
    _kept.extend([session() for session in list(_sessions.values())])


def _in_child() -> None:
    global _kept, _finding
    _finding = threading.RLock()  # the thread that had it is not here
    _library.begin_anew()
    _keep_all()
    # For good: at its end the interpreter frees what the modules refer to.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))
    _kept = []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_keep_all, after_in_parent=lambda: _kept.clear(), after_in_child=_in_child)
