"""The keeper: one thread that renews all holds of a process, those of one file in one transaction.

The holds are in a dictionary, and whoever changes it wakes the thread through a queue. Both do that in C, without a lock
that an exception from a signal handler could leave taken.
"""

from __future__ import annotations

import os
import queue
import sqlite3
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Sequence

from . import _fork
from ._atomic import start_thread
from ._leases import Litelease
from ._types import LeaseInfo, LiteleaseError, Rejected, StaleReceipt

if TYPE_CHECKING:
    from ._hold import Held

# Other files wait while one is locked, so nobody waits long at one go; the keeper tries again.
_BUSY_TIMEOUT = 0.01
# After a suspend an alarm is late.
_LONGEST_NAP = 1.0


def clock() -> float:
    """Returns seconds on a monotonic clock, which includes suspended time where the system can tell."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


def file_of(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Returns which file a path leads to. Never opens it: closing it would drop SQLite's locks."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Kept:
    """What the keeper knows about a hold, also after the hold itself is gone."""

    def __init__(self, path: str, held: Held, keeper: Keeper | None = None) -> None:
        self.path, self.file = path, file_of(path)
        self.name, self.owner, self.token = held.name, held.owner, held.token
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

    def add(self, kept: Kept) -> None:
        self._kept[kept] = None
        if not self._running:
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

    def _wait(self) -> dict[str, list[Held]]:
        """Waits until renewals are due, and returns them with those that soon will be, so that they stay in one batch."""
        while True:
            now = clock()
            holds: dict[str, list[Held]] = {}
            for kept in list(self._kept):
                held = kept.held()
                if held is None:
                    with _fork.held_off(self):
                        self._drop(kept)
                elif held._look(now):
                    holds.setdefault(kept.path, []).append(held)
                else:
                    self._kept.pop(kept, None)
                    held.lost.set()
                del held
            with _fork.held_off(self):
                self._close_idle(holds)
            next_due = min((held._due for batch in holds.values() for held in batch), default=None)
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

    def _renew(self, path: str, batch: list[Held]) -> None:
        if any(held._was_replaced() for held in batch):
            self._connections.pop(path, None)
            for held in batch:
                if held._was_replaced():
                    held._refused("the database file was moved, deleted or replaced")
            return
        start = clock()
        try:
            answers = self._ask(self._connection(path), batch)
        except (sqlite3.Error, LiteleaseError) as error:
            for held in batch:
                held._failed(str(error))
            return
        for held, answer in zip(batch, answers):
            if isinstance(answer, LiteleaseError):
                held._failed(str(answer))
            elif isinstance(answer, (Rejected, StaleReceipt)):
                held._refused(answer.reason.value)
            else:
                # Counted from before the renewal: one that answers late must not prolong trust.
                held._renewed(start)

    def _ask(self, db: Litelease, batch: list[Held]) -> Sequence[object]:
        """Renews a batch in one transaction, and returns an answer for each."""
        return db._renew_all([(held.name, held.owner, held._ttl, held.token) for held in batch])

    def _drop(self, kept: Kept) -> None:
        """Releases a hold without references: an exception may have come before its block was entered."""
        self._kept.pop(kept, None)
        if kept.file != file_of(kept.path):
            return
        try:
            self._connection(kept.path).release(LeaseInfo(kept.name, kept.owner, kept.token, 0))
            warnings.warn(f"the hold on {kept.name!r} was dropped, so it is released: keep what hold() answers", ResourceWarning)
        except (sqlite3.Error, LiteleaseError, ResourceWarning):
            pass  # then the lease ends by itself

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

    def _close_idle(self, holds: dict[str, list[Held]]) -> None:
        for path in [path for path in self._connections if path not in holds]:
            self._connections.pop(path)[1].conn.close()


_keeper = Keeper()


def _begin_anew() -> None:
    """In a forked child the thread is not there, and the holds are the parent's."""
    global _keeper
    _keeper = Keeper()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
