"""Held leases: claimed, kept alive by a thread with a connection of its own, and released at the end."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
import time
import uuid
from types import TracebackType

from ._leases import Litelease
from ._types import Acquired, LiteleaseError, Lost, Rejected


def _clock() -> float:
    """Seconds on a clock that nobody sets, and that counts the time asleep where the system can tell."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


def identity() -> str:
    """An owner text that no two holds share, and that tells which process it was."""
    return f"{socket.gethostname()} pid {os.getpid()} {uuid.uuid4().hex}"


class Held:
    """A lease that is kept alive while its block runs. Made by ``Litelease.hold``.

    A hold is trusted until the start of its last successful renewal + ttl - margin, the margin being a tenth of the
    ttl and at least 50 ms. After that ``check()`` raises ``Lost``, whatever the database would say.
    """

    def __init__(
        self, connection: sqlite3.Connection, name: str, ttl: float, wait: float, owner: str | None
    ) -> None:
        if connection.in_transaction:
            raise LiteleaseError("hold() inside a transaction would wait on a snapshot for ever: commit first")
        path = _main_file(connection)
        if not path:
            raise LiteleaseError("a database in memory cannot be held: its leases are seen by one connection only")
        self.name = name
        self.owner = owner or identity()
        self.lost = threading.Event()
        self._reason: str | None = None
        self._ttl, self._margin = ttl, max(ttl / 10, 0.05)
        self._stop = threading.Event()
        self._path, self._pid = path, os.getpid()
        self._lock = threading.Lock()
        self.token, self._trusted_until = self._acquire(wait)
        self._keeper = threading.Thread(target=self._keep, name=f"litelease keeper of {name}", daemon=True)
        self._keeper.start()

    def check(self) -> None:
        """Raises ``Lost`` once the lease can no longer be trusted."""
        if os.getpid() != self._pid:
            raise Lost(self.name, "this is a forked process: the hold belongs to its parent")
        if self._reason is None and _clock() >= self._trusted_until:
            self._lose("it could not be renewed in time")
        if self._reason is not None:
            raise Lost(self.name, self._reason)

    def release(self) -> None:
        """Ends the hold. A lease that was lost is left alone."""
        if os.getpid() != self._pid or self._stop.is_set():
            return
        self._stop.set()
        self._keeper.join()
        if self._reason is None:
            db = self._open()
            try:
                db.release(self.name, self.owner, token=self.token)
            finally:
                db.conn.close()

    def __enter__(self) -> Held:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _acquire(self, wait: float) -> tuple[int, float]:
        deadline = _clock() + wait
        db = self._open()
        try:
            while True:
                start = _clock()
                answer = db.claim(self.name, self.owner, self._ttl)
                if isinstance(answer, Acquired):
                    return answer.lease.token, start + self._ttl - self._margin
                left = deadline - _clock()
                if left <= 0:
                    raise TimeoutError(f"{self.name!r} is held by {answer.current.owner}")
                time.sleep(min(left, 0.05))
        finally:
            db.conn.close()

    def _keep(self) -> None:
        db = self._open()
        try:
            while not self._stop.wait(self._ttl / 3):
                start = _clock()
                try:
                    answer = db.renew(self.name, self.owner, self._ttl, token=self.token)
                except (sqlite3.Error, LiteleaseError) as error:
                    if _clock() >= self._trusted_until:
                        return self._lose(f"cannot renew: {error}")
                    continue
                if isinstance(answer, Rejected):
                    return self._lose(answer.reason.value)
                # Counted from before the renewal: one that answers late must not prolong trust.
                self._trusted_until = start + self._ttl - self._margin
        finally:
            db.conn.close()

    def _lose(self, reason: str) -> None:
        with self._lock:
            self._reason = self._reason or reason
        self.lost.set()

    def _open(self) -> Litelease:
        return Litelease(sqlite3.connect(self._path, isolation_level=None, check_same_thread=False))


def _main_file(connection: sqlite3.Connection) -> str:
    cursor = connection.cursor()
    cursor.row_factory = None
    for _, schema, path in cursor.execute("PRAGMA database_list"):
        text = schema.decode() if isinstance(schema, bytes) else schema
        if text == "main":
            return path.decode() if isinstance(path, bytes) else str(path or "")
    return ""
