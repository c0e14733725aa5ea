"""Waiting for a name or a slot: woken by notifications and by writes to it; the rows decide.

The GIL is released meanwhile, and signal handlers run within 50 ms.
"""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING, Callable

from . import _library
from ._time import Seconds, in_ms, in_seconds
from ._types import Acquired, Busy, Lease, LiteleaseError

if TYPE_CHECKING:
    from ._leases import Litelease
    from ._connection import Handle

MOVED = "{} was moved, deleted or replaced: open it again"
_TWO_LIBRARIES = "two libraries in one process drop each other's locks"


# Seconds on a monotonic clock, which includes suspended time where the system can tell.
clock = _library.clock


def inode_of(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Returns which file a path leads to. Never opens it: closing it would drop SQLite's locks."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class DatabaseFile:
    """A database file, and connections that are opened to it for a moment."""

    def __init__(self, path: str) -> None:
        self.path, self._inode = path, inode_of(path)

    def was_replaced(self) -> bool:
        """Checks whether the path leads to another file by now, or to none."""
        return inode_of(self.path) != self._inode

    def check(self) -> None:
        """Raises if the file was replaced. To open one that was deleted would make it."""
        if self.was_replaced():
            raise LiteleaseError(MOVED.format(self.path))

    def opened(self) -> Litelease:
        """Opens a connection, which a ``with`` block closes."""
        from ._leases import Litelease

        self.check()
        return Litelease(sqlite3.connect(self.path, isolation_level=None, check_same_thread=False))


class Stopped(LiteleaseError):
    """The waiter was told to stop. It was granted nothing."""


def never() -> bool:
    """For a waiter that runs to its end."""
    return False


def as_native(stop: Callable[[], bool]) -> Callable[[], bool] | None:
    """Returns what the library asks whether to stop: nothing for a waiter that runs to its end, which sleeps longer."""
    return None if stop is never else stop


def file_of(db: Handle, verb: str) -> str:
    """Returns the path of the file to wait at."""
    if not isinstance(db.conn, sqlite3.Connection):
        module = type(db.conn).__module__
        raise TypeError(f"{verb}() opens the file with Python's sqlite3, not with {module}: {_TWO_LIBRARIES}")
    path = "" if db._is_joined else str(_library.call(db._session, False, "file"))
    if db._is_joined or db.conn.in_transaction:
        raise LiteleaseError(f"{verb}() inside a transaction would wait on a snapshot for ever: commit first")
    if not path:
        raise LiteleaseError(f"{verb}() needs a file: a database in memory is seen by one connection only")
    if "\ufffd" in path and inode_of(path) is None:
        raise LiteleaseError(f"{verb}() opens the file a second time, which needs a name that is UTF-8: {path}")
    db._session.file = db._session.file or DatabaseFile(path)
    db._session.file.check()
    return path


def claim_at(
    path: str, name: str, owner: str, ttl: Seconds, wait: Seconds, request: Seconds | None = None, stop: Callable[[], bool] = never
) -> Acquired | Busy:
    """Claims a name of a file, and waits for it. It takes over from a holder whose process has ended, and takes what a request
    of this owner's has brought. With ``request``, the present holder is asked to give it up within that time."""
    for text in (name, owner):
        if not isinstance(text, str):
            raise TypeError(f"names and owners are str, got {text!r}")
    _library.find_library()
    ttl_ms, within_ms = in_ms(name, ttl, None), None if request is None else in_ms(name, request, None, "request")
    more = (None, None, None, within_ms, None)
    answer = _library.claim_wait(path, name, ttl_ms, in_seconds(wait), owner, *more, as_native(stop))
    if answer is None:
        raise Stopped
    is_granted, lease = answer
    return Acquired(Lease(name, *lease)) if is_granted else Busy(Lease(name, *lease))
