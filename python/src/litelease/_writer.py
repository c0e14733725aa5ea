"""Many processes, one SQLite file, one writer at a time, in a fair queue."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import Callable, Generator

from . import _library
from ._leases import Litelease
from ._connection import session_of
from ._types import LiteleaseError, WriteLockTimeout
from ._wait import clock
from ._wal import switch_to_wal


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
        self, path: str | os.PathLike[str], *, timeout: float = 0.5, poll: tuple[float, float] | None = None,
        lock_path: str | os.PathLike[str] | None = None, busy_timeout: float = 0.5, synchronous: str = "NORMAL",
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
        first, longest = poll or (0.0, 0.0)  # which means to queue
        self._lock = _library.write_lock(os.fsencode(self.lock_path), os.fsencode(self.path), first, longest)
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
        return _library.write_holder(os.fsencode(self.lock_path))[0]

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

    A signal handler can raise anywhere, in ``end`` too. So the library records what is taken, ``end`` gives back whatever
    there is, and it is called twice; and what this refers to gives it back when it is freed, without a bytecode.
    """

    def __init__(self, writer: SingleWriter) -> None:
        self._writer = writer
        self._request = _library.write_request(writer._lock)

    def begin(self) -> None:
        """Waits for the lock."""
        writer = self._writer
        deadline = clock() + writer.timeout
        has_turn = _library.write_turn(self._request, writer.timeout)
        if has_turn and writer._conn.in_transaction:
            writer._conn.execute("ROLLBACK")  # one that could not be rolled back when its block ended
        answer = has_turn and _library.write_wait(self._request, deadline - clock())
        if isinstance(answer, tuple):
            raise OSError(*answer) if answer[0] else LiteleaseError(answer[1])
        if not answer:
            raise WriteLockTimeout(writer.timeout, *_library.write_holder(os.fsencode(writer.lock_path)))

    def end(self) -> None:
        """Rolls back what was not committed, and unlocks. Calling it twice is harmless."""
        writer = self._writer
        if not _library.write_has_turn(self._request):
            return
        if not writer._session.is_inherited:
            with contextlib.suppress(sqlite3.Error):  # what was raised in the block matters more
                if writer._conn.in_transaction:
                    writer._conn.execute("ROLLBACK")
        _library.write_end(self._request)
