"""One rule for ``fork``: a connection that came with it is never used, closed or freed in the child.

SQLite cannot share a connection between processes. Closing it in the child rolls back in the wal-index that the parent
is using, which destroys the file, or waits for ever for a mutex whose thread does not exist there. Python closes a
connection when it frees it, also when the interpreter ends. So the child keeps every connection that has a session.

Whatever the keeper has locked at the fork would stay locked for the child's own connections, so a fork waits for it. And it
closes the connections that the package keeps open for itself: SQLite's list of open files is copied, its locks are not, so a
connection that the child opens to a file of the list would take no lock, and the parent's last close would delete the log
under it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from typing import Generator, Protocol

from . import _library, _session
from ._atomic import Mutex, Reentered
from ._session import Session

# A disk that does not answer must not keep the caller from forking.
_PATIENCE = 5.0


class _Forking:
    """A fork, as the taker of a mutex."""


class Closing(Protocol):
    """What has connections of its own."""

    def close_before_fork(self) -> None:
        """Closes those that are not in use."""


# What has connections of its own.
closing: weakref.WeakSet[Closing] = weakref.WeakSet()


_forking = _Forking()
# Taken by the keeper while it uses a connection, and by a fork.
_working = Mutex()
# References from before the fork: the child frees what belongs to other threads before it calls
# anything here.
_kept: list[Session | None] = []


@contextlib.contextmanager
def held_off(worker: object) -> Generator[None, None, None]:
    """Lets forks wait until the block is over."""
    working = _working
    working.take(worker)
    try:
        yield
    finally:
        working.give_back(worker)


def _before() -> None:
    try:
        is_held_off = _working.take(_forking, _PATIENCE)
    except Reentered:
        is_held_off = False  # a finalizer forks in the keeper's own thread
    if is_held_off:
        for own in list(closing):
            own.close_before_fork()
    _keep_all()


def _in_parent() -> None:
    _kept.clear()
    _working.give_back(_forking)


def _in_child() -> None:
    global _working, _kept
    _working, _session._finding = Mutex(), threading.RLock()  # the threads that had them are not here
    _library.begin_anew()
    _keep_all()
    # For good: at its end the interpreter frees what the modules refer to.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))
    _kept = []


def _keep_all() -> None:
    _kept.extend([session() for session in list(_session._sessions.values())])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
