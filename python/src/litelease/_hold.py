"""Held leases: claimed, kept alive by the keeper of the process, and released at the end."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from types import TracebackType

from . import _keeper, _library
from ._identity import identity
from ._keeper import clock
from ._leases import Litelease
from ._types import Acquired, Busy, InvalidTtl, LiteleaseError, Lost

# How often a holder is examined while others wait.
_EXAMINE_EVERY = 0.25


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
        if not ttl > 0.1:
            raise InvalidTtl(f"{name!r}: a hold of {ttl} s could never be trusted: give it more than 0.1 s")
        self.name = name
        self.owner = owner or identity()
        self.lost = threading.Event()
        self._reason: str | None = None
        self._ttl, self._margin = ttl, max(ttl / 10, 0.05)
        self._path, self._pid, self._file = path, os.getpid(), _keeper.file_of(path)
        self._lock = threading.Lock()
        self._ended = False
        start = self._acquire(wait)
        self.trusted_until = start + ttl - self._margin
        self.due = start + ttl / 3
        _keeper.keeper().add(path, self)

    def check(self) -> None:
        """Raises ``Lost`` once the lease can no longer be trusted."""
        if os.getpid() != self._pid:
            raise Lost(self.name, "this is a forked process: the hold belongs to its parent")
        self.look(clock())
        if self._reason is not None:
            raise Lost(self.name, self._reason)

    def release(self) -> None:
        """Ends the hold. A lease that was lost is left alone."""
        if os.getpid() != self._pid or self._ended:
            return
        self._ended = True
        _keeper.keeper().remove(self._path, self)
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
        try:
            self.release()
        except sqlite3.Error:
            # What went wrong in the block matters more; the lease ends by itself.
            if error is None:
                raise

    # What the keeper calls.

    def look(self, now: float) -> bool:
        """Whether it is still trusted at ``now``; once it is not, it is lost for good."""
        with self._lock:
            if self._reason is None and now >= self.trusted_until:
                self._lose(self._trouble or "it could not be renewed in time")
            return self._reason is None

    def renewed(self, start: float, due: float) -> None:
        """A renewal that was begun at ``start`` went well. One that answers late does not prolong trust."""
        if self.look(clock()):
            self.trusted_until, self.due, self._trouble = start + self._ttl - self._margin, due, None

    def refused(self, reason: str) -> None:
        """The row says that it is over."""
        with self._lock:
            if self._reason is None:
                self._lose(reason)

    def failed(self, trouble: str) -> None:
        """A renewal failed. It is tried again as long as there is trust."""
        self._trouble = f"cannot renew: {trouble}"
        self.due = clock() + min(max(self._ttl / 20, 0.01), 0.25)
        self.look(clock())

    def was_replaced(self) -> bool:
        """Whether the file is another one than was claimed in."""
        return _keeper.file_of(self._path) != self._file

    @property
    def ttl(self) -> float:
        """How long each renewal is good for."""
        return self._ttl

    _trouble: str | None = None

    def _lose(self, reason: str) -> None:
        self._reason = reason
        self.lost.set()

    def _acquire(self, wait: float) -> float:
        deadline, examine_at = clock() + wait, 0.0
        db = self._open()
        try:
            while True:
                start = clock()
                answer = db.claim(self.name, self.owner, self._ttl)
                if isinstance(answer, Busy) and start >= examine_at:
                    examine_at = start + _EXAMINE_EVERY
                    if _library.is_dead(answer.current.owner):
                        answer = db.claim_from_dead(self.name, self.owner, self._ttl, dead=answer.current)
                if isinstance(answer, Acquired):
                    self.token = answer.lease.token
                    return start
                left = deadline - clock()
                if left <= 0:
                    raise TimeoutError(f"{self.name!r} is held by {answer.current.owner}")
                time.sleep(min(left, 0.05))
        finally:
            db.conn.close()

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
