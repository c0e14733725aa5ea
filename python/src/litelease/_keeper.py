"""The keeper: one thread that renews all holds of a process, those of one file in one transaction."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from typing import TYPE_CHECKING

from ._leases import Litelease
from ._types import InvalidLeaseRow, LiteleaseError, Rejected, Renewed, TimeOverflow

if TYPE_CHECKING:
    from ._hold import Held

# Other files wait while one is locked, so nobody waits long at one go; the keeper tries again.
_BUSY_TIMEOUT = 0.01
# After a suspend an alarm is late.
_LONGEST_NAP = 1.0


def clock() -> float:
    """Seconds on a clock that nobody sets, and that counts the time asleep where the system can tell."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


def file_of(path: str) -> tuple[int, int] | None:
    """Which file a path leads to. It is never opened: closing it would drop SQLite's locks."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Keeper:
    """Keeps holds alive, by a thread that is started with the first one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holds: dict[str, list[Held]] = {}
        # Each with the file that it was opened on.
        self._connections: dict[str, tuple[tuple[int, int] | None, Litelease]] = {}
        self._thread: threading.Thread | None = None

    def add(self, path: str, held: Held) -> None:
        with self._changed:
            self._holds.setdefault(path, []).append(held)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="litelease keeper", daemon=True)
                self._thread.start()
            self._changed.notify()

    def remove(self, path: str, held: Held) -> None:
        with self._changed:
            holds = self._holds.get(path, [])
            if held in holds:
                holds.remove(held)
            if not holds:
                self._holds.pop(path, None)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            for path, batch in self._wait().items():
                self._renew(path, batch)

    def _wait(self) -> dict[str, list[Held]]:
        """Waits until something is due, and answers what: with what soon will be, so that they stay together."""
        with self._changed:
            while True:
                now = clock()
                for path, holds in list(self._holds.items()):
                    self._holds[path] = [held for held in holds if held.look(now)]
                self._holds = {path: holds for path, holds in self._holds.items() if holds}
                self._close_idle()
                next_due = min((held.due for holds in self._holds.values() for held in holds), default=None)
                if next_due is not None and next_due <= now:
                    return {
                        path: [held for held in holds if held.due <= now + held.ttl / 6]
                        for path, holds in self._holds.items()
                        if any(held.due <= now for held in holds)
                    }
                self._changed.wait(None if next_due is None else min(next_due - now, _LONGEST_NAP))

    def _renew(self, path: str, batch: list[Held]) -> None:
        if any(held.was_replaced() for held in batch):
            self._connections.pop(path, None)
            for held in batch:
                if held.was_replaced():
                    held.refused("the database file was moved, deleted or replaced")
            return
        start = clock()
        try:
            db = self._connection(path)
            db.conn.execute("BEGIN IMMEDIATE")
            try:
                answers = [self._renew_one(db, held) for held in batch]
                db.conn.execute("COMMIT")
            except BaseException:
                if db.conn.in_transaction:
                    db.conn.execute("ROLLBACK")
                raise
        except (sqlite3.Error, LiteleaseError) as error:
            for held in batch:
                held.failed(str(error))
            return
        for held, answer in zip(batch, answers):
            if isinstance(answer, LiteleaseError):
                held.failed(str(answer))
            elif isinstance(answer, Rejected):
                held.refused(answer.reason.value)
            else:
                # Counted from before the renewal: one that answers late must not prolong trust.
                held.renewed(start, start + held.ttl / 3)

    @staticmethod
    def _renew_one(db: Litelease, held: Held) -> Renewed | Rejected | LiteleaseError:
        try:
            return db.renew(held.name, held.owner, held.ttl, token=held.token)
        except (InvalidLeaseRow, TimeOverflow) as error:
            return error  # what is wrong with one row is not the others' fault

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

    def _close_idle(self) -> None:
        for path in [path for path in self._connections if path not in self._holds]:
            self._connections.pop(path)[1].conn.close()


_keeper = Keeper()


def keeper() -> Keeper:
    """The keeper of this process."""
    return _keeper


def _begin_anew() -> None:
    """In a forked child the thread is not there, and the locks may be held for ever."""
    global _keeper
    _left_behind.append(_keeper)  # its connections must not be closed here
    _keeper = Keeper()


_left_behind: list[Keeper] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
