"""Many processes, one SQLite file, one writer at a time, in a fair queue."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from typing import Callable, Generator

from ._atomic import Mutex, Reentered
from ._leases import Litelease
from ._session import session_of
from ._types import LiteleaseError, WriteLockTimeout
from ._wal import switch_to_wal
from ._write_lock import WriteLock


class SingleWriter:
    """A connection that writes under a lock which all writers of the file share.

    >>> import tempfile, os
    >>> folder = tempfile.mkdtemp()
    >>> writer = SingleWriter(os.path.join(folder, "data.db"))  # WAL, busy timeout 0.5 s, synchronous NORMAL
    >>> with writer.write() as conn:
    ...     _ = conn.execute("CREATE TABLE notes (text)")
    ...     _ = conn.execute("INSERT INTO notes VALUES ('a')")
    >>> writer.reader().execute("SELECT count(*) FROM notes").fetchone()
    (1,)

    An error inside the block rolls back and unlocks. Threads may share a writer; they are served one after the other.

    Processes wait in a queue. With ``poll=(0.005, 0.05)`` a writer tries again after 5 ms at first and 50 ms at last instead:
    it can starve, and overtakes those that queue.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float = 0.5,
        poll: tuple[float, float] | None = None,
        lock_path: str | os.PathLike[str] | None = None,
        busy_timeout: float = 0.5,
        synchronous: str = "NORMAL",
    ) -> None:
        if synchronous.upper() not in ("OFF", "NORMAL", "FULL", "EXTRA"):
            raise ValueError(f"synchronous is OFF, NORMAL, FULL or EXTRA, got {synchronous!r}")
        if poll is not None and not 0 < poll[0] <= poll[1]:
            raise ValueError(f"poll is the first and the longest pause in seconds, got {poll!r}")
        self.timeout = timeout
        self._busy_timeout = busy_timeout
        self._conn = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None, check_same_thread=False)
        self._session = session_of(self._conn)
        if not self._conn.execute("PRAGMA database_list").fetchone()[2]:
            raise LiteleaseError("a database in memory has no other writers: a single writer needs a file")
        # One file has one lock, whichever way it is called.
        self.path = os.path.realpath(path)
        self.lock_path = os.path.abspath(lock_path) if lock_path is not None else f"{self.path}.lock"
        self._turn = Mutex()
        self._lock = WriteLock(self.lock_path, self.path, poll)
        self._leases = Litelease(self._conn)
        self._set_up(synchronous)

    @contextlib.contextmanager
    def write(self) -> Generator[sqlite3.Connection, None, None]:
        """Waits for the lock and begins a transaction; commits at the end of the block and unlocks."""
        block = _Block(self)
        try:
            try:
                block.begin()
                self._leases._begin()
                yield self._conn
                if self._session.is_inherited:
                    return  # lock and transaction are the parent's
                if not self._conn.in_transaction:
                    raise LiteleaseError(
                        "the transaction was ended inside the block, as executescript() and `with conn:` do it: what was "
                        "written before that is stored"
                    )
                self._conn.execute("COMMIT")
            finally:
                block.end()
        finally:
            block.end()

    def reader(self) -> sqlite3.Connection:
        """Opens another connection, for reading. It sees what was committed and does not wait for writers."""
        conn = sqlite3.connect(self.path, timeout=self._busy_timeout)
        conn.execute("PRAGMA query_only = ON")
        return conn

    def holder(self) -> tuple[int, str | None] | None:
        """Returns the process that holds the lock and since when, as far as that is known. A process that has not signed the
        lock file, such as flock(1), has no time."""
        return self._lock.holder()[0]

    def close(self) -> None:
        """Closes the connection. Does nothing in a forked child."""
        self._session.close()

    def _set_up(self, synchronous: str) -> None:
        if self._conn.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            # Switching wants the file for itself, so it is a write like any other.
            self._under_lock(lambda: switch_to_wal(self._conn, self.path))
        self._conn.execute(f"PRAGMA synchronous = {synchronous}")
        if self._is_unrecorded():
            self._under_lock(self._leases._record_boot)

    def _under_lock(self, work: Callable[[], None]) -> None:
        block = _Block(self)
        try:
            try:
                block.begin()
                work()
            finally:
                block.end()
        finally:
            block.end()

    def _is_unrecorded(self) -> bool:
        """Checks whether the file has leases and no record of the present boot yet: what is claimed inside the transactions of
        this writer can get lost in a power cut, and within them nothing can be made durable first."""
        try:
            return not self._leases._has_recorded_boot()
        except LiteleaseError:
            return False  # leases that cannot be used are no concern of other writes: the verbs tell


class _Block:
    """What a writer has taken for one block: its turn among the threads, the lock, and a transaction.

    A signal handler can raise anywhere, in ``end`` too. So all is recorded where it is taken, ``end`` gives back whatever
    there is, and it is called twice.
    """

    def __init__(self, writer: SingleWriter) -> None:
        self._writer = writer
        self._ticket = 0

    def begin(self) -> None:
        """Waits for the lock."""
        writer = self._writer
        if writer._session.is_inherited:
            raise LiteleaseError("this process was forked since the writer was opened: open a new one in the child")
        deadline = time.monotonic() + writer.timeout
        try:
            is_taken = writer._turn.take(self, min(max(0.0, writer.timeout), threading.TIMEOUT_MAX))
        except Reentered:
            raise LiteleaseError(
                "this thread already holds the write lock through this writer: use the connection that it has"
            ) from None
        if not is_taken:
            raise WriteLockTimeout(writer.timeout, *writer._lock.holder())
        if writer._conn.in_transaction:
            writer._conn.execute("ROLLBACK")  # one that could not be rolled back when its block ended
        self._ticket = writer._lock.ticket(self)
        if not writer._lock.wait(self._ticket, deadline - time.monotonic()):
            raise WriteLockTimeout(writer.timeout, *writer._lock.holder())

    def end(self) -> None:
        """Rolls back what was not committed, and unlocks. Calling it twice is harmless."""
        writer = self._writer
        if not writer._turn.is_held_by(self):
            return
        if not writer._session.is_inherited:
            with contextlib.suppress(sqlite3.Error):  # what was raised in the block matters more
                if writer._conn.in_transaction:
                    writer._conn.execute("ROLLBACK")
        writer._lock.end(self._ticket)
        writer._turn.give_back(self)
