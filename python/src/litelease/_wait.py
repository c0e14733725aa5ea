"""Waiting for a name or a slot: woken by notifications and by writes to it; the rows decide.

The GIL is released meanwhile, and signal handlers run within 50 ms.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable

from . import _library
from ._time import Seconds, in_ms, in_seconds
from ._types import Acquired, Busy, Lease, LiteleaseError

if TYPE_CHECKING:
    from ._session import Handle

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


class Stopped(LiteleaseError):
    """The waiter was told to stop. It was granted nothing."""


def never() -> bool:
    """For a waiter that nobody stops."""
    return False


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
    return path


def wait_for_change(waiter: object, generation: int, seconds: float, is_stopped: Callable[[], bool]) -> None:
    """Waits until another process notifies, because a process has sent or given back, or something else was freed; at most
    so long."""
    end = clock() + seconds
    while (left := end - clock()) > 0 and not _library.listen(waiter, generation, left) and not is_stopped():
        pass


@dataclass(frozen=True)
class More:
    """What is stored in the commit of a claim, and how soon the present holder is asked to give the name up."""

    value: None | int | float | str | bytes = None
    progress_within_ms: int | None = None
    max_time_ms: int | None = None
    request_ms: int | None = None

    @staticmethod
    def of(
        name: str,
        value: None | int | float | str | bytes = None,
        progress_within: Seconds | None = None,
        max_time: Seconds | None = None,
        request: Seconds | None = None,
    ) -> More:
        """Converts the options of a hold."""

        def ms(time: Seconds | None, what: str) -> int | None:
            return None if time is None else in_ms(name, time, None, what)

        within_ms, max_ms = ms(progress_within, "progress_within"), ms(max_time, "max_time")
        return More(value, within_ms, max_ms, ms(request, "request"))


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
    answer = _library.claim_wait(path, name, ttl_ms, in_seconds(wait), owner, *more, stop)
    if answer is None:
        raise Stopped
    is_granted, lease = answer
    return Acquired(Lease(name, *lease)) if is_granted else Busy(Lease(name, *lease))
