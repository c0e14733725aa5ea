"""One rule for ``fork``: a connection that came with it is never used, closed or freed in the child.

SQLite cannot share a connection between processes. Closing it in the child rolls back in the wal-index that the parent
is using, which destroys the file, or waits for ever for a mutex whose thread does not exist there. Python closes a
connection when it frees it, also when the interpreter ends. So the child keeps every connection that has a session.

A fork also closes the connections that the package keeps open for itself, and the library those of its own: SQLite's list of
open files is copied, its locks are not, so a connection that the child opens to a file of the list would take no lock, and the
parent's last close would delete the log under it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Protocol

from . import _library, _session
from ._session import Session

class Closing(Protocol):
    """What has connections of its own."""

    def close_before_fork(self) -> None:
        """Closes those that are not in use."""


# What has connections of its own.
closing: weakref.WeakSet[Closing] = weakref.WeakSet()


# References from before the fork: the child frees what belongs to other threads before it calls
# anything here.
_kept: list[Session | None] = []


def _before() -> None:
    for own in list(closing):
        own.close_before_fork()
    _keep_all()


def _in_child() -> None:
    global _kept
    _session._finding = threading.RLock()  # the thread that had it is not here
    _library.begin_anew()
    _keep_all()
    # For good: at its end the interpreter frees what the modules refer to.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))
    _kept = []


def _keep_all() -> None:
    _kept.extend([session() for session in list(_session._sessions.values())])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=lambda: _kept.clear(), after_in_child=_in_child)
