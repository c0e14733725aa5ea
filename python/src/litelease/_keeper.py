"""The keeper: one thread that renews all holds of a process, those of one file in one transaction.

The holds are in a dictionary, and whoever changes it wakes the thread through a queue. Both do that in C, without a lock
that an exception from a signal handler could leave taken.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sqlite3
import sys
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Callable, Generator, Sequence, TypeVar

from . import _fork, _library
from ._atomic import start_thread
from ._leases import Litelease
from ._types import LiteleaseError, Loss, Rejected, Renewed, StaleReceipt
from ._wait import clock

if TYPE_CHECKING:
    from ._hold import Hold

T = TypeVar("T")
# Other files wait while one is locked, so nobody waits long at one go; the keeper tries again.
_BUSY_TIMEOUT = 0.01
# How long it tries a locked file again and again, before it looks after other files.
_HASTE = 0.005
# How long the end of the interpreter waits for a locked file.
_PATIENCE = 1.0
# After a suspend an alarm is late.
_LONGEST_NAP = 1.0


def file_of(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Returns which file a path leads to. Never opens it: closing it would drop SQLite's locks."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Kept:
    """What the keeper knows about a hold, also after the hold itself is gone."""

    def __init__(self, path: str, held: Hold, keeper: Keeper | None = None) -> None:
        self.path, self.file = path, file_of(path)
        self.name, self.give_back = held.name, held._giver()
        self._keeper = keeper or _keeper
        self.held = weakref.ref(held, self._keeper.wake)

    def keep(self) -> None:
        """Starts to keep it alive."""
        self._keeper.add(self)

    def tell(self) -> None:
        """Makes the keeper look at it now."""
        self._keeper.wake(None)

    def leave(self) -> None:
        """Stops keeping it alive."""
        self._keeper.remove(self)

    def read(self, look: Callable[[Litelease], T]) -> T | None:
        """Reads its file while forks are held off, or returns None if it is not kept any more or the file was replaced."""
        return self._keeper.read(self, look)


class Keeper:
    """Keeps holds alive, by a thread that is started with the first one."""

    thread_name = "litelease keeper"

    def __init__(self) -> None:
        self._kept: dict[Kept, None] = {}
        changed: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._changed, self.wake = changed, changed.put
        # Each with the file that it was opened on.
        self._connections: dict[str, tuple[tuple[int, int] | None, Litelease]] = {}
        self._running: list[bool] = []
        self._runner: threading.Thread | None = None
        self._pid = os.getpid()
        _fork.closing.add(self)

    def add(self, kept: Kept) -> None:
        self._kept[kept] = None
        if not self._running:
            # By the first hold: multiprocessing forgets what was registered before a fork. First
            # the calls of other threads end, else one that waits would be granted what is released,
            # and nobody would release it again.
            atexit.register(self.end)
            atexit.register(_library.end_calls)
            start_thread(self._run, self._running)
        self.wake(None)

    def remove(self, kept: Kept) -> None:
        self._kept.pop(kept, None)
        self.wake(None)

    def _run(self) -> None:
        me = self._runner = threading.current_thread()
        me.name = self.thread_name
        try:
            while self._runner is me:  # else two threads have started one each
                batches = self._wait()
                while batches:
                    with _fork.held_off(self):
                        self._renew(*batches.popitem())  # and keeps none of them
        finally:
            if self._runner is me:
                self._running.clear()

    def _wait(self) -> dict[str, list[Hold]]:
        """Waits until renewals are due, and returns them with those that soon will be, so that they stay in one batch."""
        while True:
            now = clock()
            holds: dict[str, list[Hold]] = {}
            for kept in list(self._kept):
                held = kept.held()
                if held is None or held._was_closed():
                    with _fork.held_off(self):
                        self._drop(kept, held)
                elif held._look(now):
                    holds.setdefault(kept.path, []).append(held)
                else:
                    self._kept.pop(kept, None)
                    held._tell()
                del held
            with _fork.held_off(self):
                self._close_idle(holds)
            # A limit may have cut a renewal: then trust ends before the next one is due.
            times = (min(held._due, held._trusted_until) for batch in holds.values() for held in batch)
            next_due = min(times, default=None)
            if next_due is not None and next_due <= now:
                return {
                    path: [held for held in batch if held._due <= now + held._ttl / 6]
                    for path, batch in holds.items()
                    if any(held._due <= now for held in batch)
                }
            holds.clear()  # nobody's any more: it must be seen when one is dropped
            try:
                self._changed.get(timeout=None if next_due is None else min(next_due - now, _LONGEST_NAP))
                while True:
                    self._changed.get_nowait()
            except queue.Empty:
                pass

    def _renew(self, path: str, batch: list[Hold]) -> None:
        if any(held._was_replaced() for held in batch):
            self._connections.pop(path, None)
            for held in batch:
                if held._was_replaced():
                    held._refused(Loss("FileReplaced", "the database file was moved, deleted or replaced"))
            return
        try:
            db = self._connection(path)
            start, asked_at_ms = clock(), time.time_ns() // 1_000_000
            answers = self._ask(db, batch)
        except (sqlite3.Error, LiteleaseError) as error:
            for held in batch:
                _note_failure(held, error)
            return
        for held, answer in zip(batch, answers):
            if isinstance(answer, LiteleaseError):
                _note_failure(held, answer)
            elif isinstance(answer, Rejected):
                held._rejected(answer)
            elif isinstance(answer, StaleReceipt):
                held._refused(Loss("Stale", answer.reason.value))
            else:
                # Counted from before the renewal: one that answers late must not prolong trust.
                held._renewed(start, _granted(held, asked_at_ms, answer))

    def _ask(self, db: Litelease, batch: list[Hold]) -> Sequence[object]:
        """Renews a batch in one transaction, and returns an answer for each."""
        now = clock()
        with begun(db.conn, batch):
            return db._renew_all([held._grant() for held in batch], [held._unstored_progress_ms(now) for held in batch])

    def _drop(self, kept: Kept, held: Hold | None) -> None:
        """Releases a hold without references, or whose connection was closed. An exception may have come before its block
        was entered."""
        self._kept.pop(kept, None)
        if kept.file != file_of(kept.path):
            return
        try:
            kept.give_back(self._connection(kept.path))
            if held is None:
                warnings.warn(
                    f"the hold on {kept.name!r} was garbage-collected, so it is released: keep what hold() returns", ResourceWarning
                )
        except (sqlite3.Error, LiteleaseError, ResourceWarning):
            pass  # then the lease ends by itself
        finally:
            if held is not None:
                held._refused(Loss("Closed", "its connection was closed"))

    def end(self, connection: sqlite3.Connection | None = None) -> None:
        """Releases the holds of a connection, or all when the interpreter ends."""
        if os.getpid() != self._pid:
            return
        for kept in list(self._kept):
            held = kept.held()
            if connection is None or held is not None and held._conn is connection:
                self.remove(kept)
                if held is not None:
                    held._is_released = held._ended = True
                if kept.file == file_of(kept.path):
                    with contextlib.suppress(sqlite3.Error, LiteleaseError):
                        db = Litelease(sqlite3.connect(kept.path, timeout=_PATIENCE, isolation_level=None))
                        with contextlib.closing(db.conn):
                            kept.give_back(db)

    def _connection(self, path: str) -> Litelease:
        file = file_of(path)
        known = self._connections.get(path)
        if known is None or known[0] != file:
            # Never the file that was there before: nobody else sees what is renewed there.
            connection = sqlite3.connect(
                path, timeout=_BUSY_TIMEOUT, isolation_level=None, check_same_thread=False
            )
            known = self._connections[path] = (file, Litelease(connection))
        return known[1]

    def read(self, kept: Kept, look: Callable[[Litelease], T]) -> T | None:
        # With the connection of the renewals, which a fork closes. To open one for each look would
        # change the log's owner (as root), and so wake all that watch the file.
        if kept not in self._kept or kept.file != file_of(kept.path):
            return None
        db = self._connection(kept.path)
        # The holds in other files wait meanwhile.
        db.conn.execute("PRAGMA busy_timeout = 0")
        try:
            return look(db)
        finally:
            db.conn.execute(f"PRAGMA busy_timeout = {int(_BUSY_TIMEOUT * 1000)}")

    def _close_idle(self, holds: dict[str, list[Hold]]) -> None:
        for path in [path for path in self._connections if path not in holds]:
            self._connections.pop(path)[1].conn.close()

    def close_before_fork(self) -> None:
        """Closes all connections; the next renewal opens them again. The keeper uses none meanwhile."""
        while self._connections:
            conn = self._connections.popitem()[1][1].conn
            if sys.version_info >= (3, 12):
                conn.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)  # it takes time, and is of no use
            conn.close()


@contextlib.contextmanager
def begun(conn: sqlite3.Connection, batch: Sequence[Hold]) -> Generator[None, None, None]:
    """A transaction for renewals. If the file is locked it fails at once, because SQLite would sleep for milliseconds between
    two looks, while the file may be free for microseconds only. If little time is left, it looks again and again for a moment.
    A commit that waits for readers has its time."""
    conn.execute("PRAGMA busy_timeout = 0")
    end = clock() + _HASTE
    while not _begins(conn):
        now = clock()
        if now >= end or not any(held._is_in_haste(now) for held in batch):
            raise sqlite3.OperationalError("database is locked")
    try:
        conn.execute(f"PRAGMA busy_timeout = {int(_BUSY_TIMEOUT * 1000)}")
        yield
        if conn.in_transaction:
            conn.execute("COMMIT")
    finally:
        if conn.in_transaction:
            conn.execute("ROLLBACK")


def _note_failure(held: Hold, error: Exception) -> None:
    held._failed(str(error), "locked" in str(error))


def _begins(conn: sqlite3.Connection) -> bool:
    try:
        conn.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
        return False
    return True


def _granted(held: Hold, asked_at_ms: int, answer: object) -> float | None:
    """Notes the new expiry of a lease. Returns for how many seconds it was granted, if that is less than was asked for."""
    if not isinstance(answer, Renewed):
        return None
    until_ms = held._expires_at_ms = answer.lease.expires_at_ms
    if until_ms >= asked_at_ms + int(held._ttl * 1000):
        return None
    # Measured now, which is later than the row was written, in nanoseconds: so it is never too
    # long.
    return (until_ms * 1_000_000 - time.time_ns()) / 1e9


_keeper = Keeper()


def end_holds(connection: sqlite3.Connection) -> None:
    """Releases what is held through a connection that is about to be closed."""
    _keeper.end(connection)


def _begin_anew() -> None:
    """In a forked child the thread is not there, and the holds are the parent's."""
    global _keeper
    _keeper = Keeper()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
