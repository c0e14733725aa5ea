"""The write lock of a database, through the library: the lock and the queue of the Rust ``SingleWriter`` and of
``litelease write``.

The library records what was taken, under the ticket of whoever asked. So an exception between two bytecodes loses nothing:
ending the ticket gives back whatever it has by then, the lock or a place in the queue.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import os
import weakref
from typing import Any

from ._library import loadable_path
from ._types import LiteleaseError

_SLICE_MS = 50  # how long a signal's handler has to wait at most
_LONGEST_MS = 2**62
_HELD, _NOT_YET, _TIMED_OUT, _FORKED = 0, 1, 2, 4
_GONE = 2  # an answer about the holder


class _Note(ctypes.Structure):
    """What the library tells besides an answer."""

    _fields_ = [("number", ctypes.c_int64), ("length", ctypes.c_size_t), ("text", ctypes.c_char * 1024)]

    number: int
    length: int
    text: bytes

    def __str__(self) -> str:
        return self.text[: self.length].decode(errors="replace")


@functools.lru_cache(maxsize=None)
def _library() -> ctypes.CDLL:
    # Not a PyDLL: other threads run while one waits.
    library = ctypes.CDLL(loadable_path())
    if not hasattr(library, "litelease_write_lock_new"):
        raise LiteleaseError("SingleWriter needs flock, which this system does not have")
    lock, path, note = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_size_t), ctypes.POINTER(_Note)
    library.litelease_write_lock_new.argtypes = [*path, *path, ctypes.c_uint64, ctypes.c_uint64]
    library.litelease_write_lock_new.restype = lock
    library.litelease_write_lock_wait.argtypes = [lock, *[ctypes.c_uint64] * 3, note]
    library.litelease_write_lock_end.argtypes = [lock, ctypes.c_uint64, ctypes.py_object]
    library.litelease_write_lock_end.restype = None
    library.litelease_write_lock_holder.argtypes = [*path, note]
    library.litelease_write_lock_free.argtypes = [lock]
    library.litelease_write_lock_free.restype = None
    return library


class WriteLock:
    """A lock across processes, on a file that only users who may write the database can open. One request at a time: threads
    take turns before they ask."""

    def __init__(self, path: str, database: str, poll: tuple[float, float] | None) -> None:
        self._lock: int | None = None
        self._path, like = os.fsencode(path), os.fsencode(database)
        self._library = _library()
        self._tickets = itertools.count(1)
        self._last: weakref.ref[Any] | None = None
        # 0 means to queue.
        pauses = (0, 0) if poll is None else tuple(max(1, min(math.ceil(p * 1000), _LONGEST_MS)) for p in poll)
        self._lock = self._library.litelease_write_lock_new(self._path, len(self._path), like, len(like), *pauses)

    def __del__(self) -> None:
        if self._lock:
            self._library.litelease_write_lock_free(self._lock)

    def ticket(self, taker: object) -> int:
        """Returns a new ticket. It ends with the taker at the latest, without a bytecode: a ``__del__`` would swallow an
        exception that comes there."""
        ticket = next(self._tickets)
        end = functools.partial(self._library.litelease_write_lock_end, self._lock, ticket)
        self._last = weakref.ref(taker, end)
        return ticket

    def wait(self, ticket: int, timeout: float) -> bool:
        """Waits for the lock. Returns whether it is held now."""
        note, timeout_ms = _Note(), math.ceil(min(max(0.0, timeout * 1000), _LONGEST_MS))
        answer = _NOT_YET
        while answer == _NOT_YET:  # signal handlers run here
            answer = self._library.litelease_write_lock_wait(
                self._lock, ticket, timeout_ms, _SLICE_MS, ctypes.byref(note)
            )
        if answer in (_HELD, _TIMED_OUT):
            return bool(answer == _HELD)
        if answer == _FORKED:
            raise LiteleaseError("this process was forked since the writer was opened: open a new one in the child")
        if note.number:
            raise OSError(note.number, str(note))
        raise LiteleaseError(str(note))

    def end(self, ticket: int) -> None:
        """Unlocks, or leaves the queue, if this is the last ticket. In a forked child it leaves the parent's lock alone."""
        self._library.litelease_write_lock_end(self._lock, ticket, None)

    def holder(self) -> tuple[tuple[int, str | None] | None, bool]:
        """Returns the process that holds the lock and since when, as far as that is known, and whether that process has ended,
        so that one which it forked holds the lock."""
        note = _Note()
        answer = self._library.litelease_write_lock_holder(self._path, len(self._path), ctypes.byref(note))
        holder = (note.number, str(note) or None) if answer else None
        return holder, answer == _GONE
