"""Many processes, one SQLite file, one writer at a time, and nobody starves.

The lock is the same as that of the Rust ``SingleWriter`` and of ``litelease write``: an flock on a file next to the
database.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import sqlite3
import stat
import threading
import time
from typing import Iterator

from ._types import LiteleaseError, WriteLockTimeout
from ._wal import switch_to_wal

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}


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
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float = 0.5,
        lock_path: str | os.PathLike[str] | None = None,
        busy_timeout: float = 0.5,
        synchronous: str = "NORMAL",
    ) -> None:
        if fcntl is None:
            raise LiteleaseError("SingleWriter needs flock, which this system does not have")
        if synchronous.upper() not in ("OFF", "NORMAL", "FULL", "EXTRA"):
            raise ValueError(f"synchronous is OFF, NORMAL, FULL or EXTRA, got {synchronous!r}")
        self.timeout = timeout
        self._busy_timeout = busy_timeout
        self._conn = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None, check_same_thread=False)
        if not self._conn.execute("PRAGMA database_list").fetchone()[2]:
            raise LiteleaseError("a database in memory has no other writers: a single writer needs a file")
        # One file has one lock, whichever way it is called.
        self.path = os.path.realpath(path)
        self.lock_path = os.fspath(lock_path) if lock_path is not None else f"{self.path}.lock"
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._owner: int | None = None
        self._place = _Place()
        self._set_up(synchronous)

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Waits for the lock and begins a transaction; commits at the end of the block and unlocks."""
        with self._lock():
            self._conn.execute("BEGIN IMMEDIATE")
            try:
                yield self._conn
                if self._is_here() and not self._conn.in_transaction:
                    raise LiteleaseError(
                        "the transaction was ended inside the block, as executescript() and `with conn:` do it: what was "
                        "written before that is stored"
                    )
                if self._is_here():
                    self._conn.execute("COMMIT")
            finally:
                if self._is_here() and self._conn.in_transaction:
                    self._conn.execute("ROLLBACK")

    def reader(self) -> sqlite3.Connection:
        """Another connection, for reading: it sees what was committed, and waits for nobody."""
        conn = sqlite3.connect(self.path, timeout=self._busy_timeout)
        conn.execute("PRAGMA query_only = ON")
        return conn

    def holder(self) -> tuple[int, str] | None:
        """The process that signed the lock file last and since when, if that can be told."""
        return _signed(self.lock_path)

    def close(self) -> None:
        """Closes the connection."""
        self._conn.close()

    def _set_up(self, synchronous: str) -> None:
        if self._conn.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            # Switching wants the file for itself, so it is a write like any other.
            with self._lock():
                switch_to_wal(self._conn, self.path)
        self._conn.execute(f"PRAGMA synchronous = {synchronous}")

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        if not self._is_here():
            raise LiteleaseError("this process was forked since the writer was opened: open a new one in the child")
        me, deadline = threading.get_ident(), time.monotonic() + self.timeout
        if self._owner == me:
            raise LiteleaseError(
                "this thread already holds the write lock through this writer: use the connection that it has"
            )
        if not self._turn.acquire(timeout=min(max(0.0, self.timeout), threading.TIMEOUT_MAX)):
            raise WriteLockTimeout(self.timeout, self.holder())
        try:
            file = self._acquire(deadline)
            self._owner = me
            try:
                _sign(file)
                yield
            finally:
                self._owner = None
                if self._is_here():
                    fcntl.flock(file, fcntl.LOCK_UN)
                os.close(file)
        finally:
            self._turn.release()

    def _is_here(self) -> bool:
        """Whether this is the process that opened it. A forked child shares its lock and transaction, and must end neither."""
        return self._pid == os.getpid()

    def _acquire(self, deadline: float) -> int:
        while True:
            file = self._place.wait(lambda: _open(self.lock_path), deadline)
            if file is None:
                raise WriteLockTimeout(self.timeout, self.holder())
            if _is_still_at(file, self.lock_path):
                return file
            # Somebody removed it meanwhile: what we hold is a lock on nothing.
            os.close(file)


class _Place:
    """A place in the system's queue, held by at most one thread: that cannot be called back at a deadline, so its place
    serves the next one who asks, or is given up unused at once."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting = self._wanted = False
        self._done: int | OSError | None = None

    def wait(self, open_file: object, deadline: float) -> int | None:
        with self._changed:
            if not self._waiting:
                file: int = open_file()  # type: ignore[operator]
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return file
                except BlockingIOError:
                    pass
                try:
                    threading.Thread(target=self._queue, args=(file,), name="litelease-writer", daemon=True).start()
                except BaseException:
                    os.close(file)
                    raise
                self._waiting = True
            self._wanted = True
            try:
                while self._waiting:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return None
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
                done, self._done = self._done, None
            finally:
                # Whatever ends the waiting, a signal too: from here on nobody would take what the thread gets.
                self._wanted = False
                if isinstance(self._done, int):
                    os.close(self._done)
                self._done = None
        if isinstance(done, OSError):
            raise done
        return done

    def _queue(self, file: int) -> None:
        done: int | OSError = file
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # Python itself tries again when it is interrupted
        except OSError as error:
            done = error
        with self._changed:
            self._waiting = False
            if self._wanted:
                self._done = done
            else:
                os.close(file)  # nobody waits any more
            self._changed.notify_all()


def _open(path: str) -> int:
    """Opens the lock file, never truncating it. Whatever else is at the path is refused, and not even opened."""
    with contextlib.suppress(FileNotFoundError):
        _refuse(path, os.lstat(path).st_mode)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        _refuse(path, os.fstat(file).st_mode)
    except LiteleaseError:
        os.close(file)
        raise
    return file


def _refuse(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        what = _KINDS.get(stat.S_IFMT(mode), "a device")
        raise LiteleaseError(f"{path} cannot be a lock file: it is {what}; it was left alone, choose another path")


def _is_still_at(file: int, path: str) -> bool:
    ours = os.fstat(file)
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _sign(file: int) -> None:
    """Leaves the holder's line. The lock holds without it, so a full disk is no reason to give up."""
    now = datetime.datetime.now(datetime.timezone.utc)
    with contextlib.suppress(OSError):
        os.ftruncate(file, 0)
        os.pwrite(file, f"pid:{os.getpid()} time:{now:%Y-%m-%dT%H:%M:%SZ}\n".encode(), 0)


def _signed(path: str) -> tuple[int, str] | None:
    try:
        file = _open(path)
    except (OSError, LiteleaseError):
        return None
    try:
        found = re.fullmatch(rb"pid:(\d{1,10}) time:([-:0-9TZ]{20})\n?", os.pread(file, 256, 0))
    finally:
        os.close(file)
    return (int(found[1]), found[2].decode()) if found else None
