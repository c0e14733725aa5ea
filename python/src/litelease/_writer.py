"""Many processes, one SQLite file, one writer at a time, and nobody starves.

The lock is the same as that of the Rust ``SingleWriter`` and of ``litelease write``: an flock on a file next to the
database, and a queue in front of it, which is an flock on a second file. How that works, and why, is told in
``litelease-writer``, in ``queue.rs`` and ``place.rs``.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import re
import sqlite3
import stat
import threading
import time
from typing import Iterator

from ._leases import Litelease
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
    Where the file has leases, the present boot is recorded in a commit of its own before any block begins: then leases
    that are claimed inside one are in order after a power cut.
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
        self._place = _Place(self.lock_path)
        # Whether the present boot is recorded for the leases in the file.
        self._has_recorded = False
        self._set_up(synchronous)

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Waits for the lock and begins a transaction; commits at the end of the block and unlocks."""
        with self._lock():
            try:
                self._record_boot()
                self._conn.execute("BEGIN IMMEDIATE")
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
        if self._is_unrecorded():
            with self._lock():
                self._record_boot()

    def _is_unrecorded(self) -> bool:
        """Whether the file has leases and no record of the present boot yet, as far as this writer knows."""
        if self._has_recorded:
            return False
        sql = "SELECT count(*) FROM main.sqlite_schema WHERE name = 'litelease_resources'"
        if not self._conn.execute(sql).fetchone()[0]:
            return False
        try:
            self._has_recorded = Litelease(self._conn)._has_recorded_boot()
        except LiteleaseError:
            # Leases that cannot be used are no concern of other writes: the verbs tell.
            return False
        return not self._has_recorded

    def _record_boot(self) -> None:
        """Records the present boot of the machine once the file has leases: what is claimed inside the transactions of this
        writer can get lost in a power cut, and within them nothing can be made durable first."""
        if self._is_unrecorded():
            Litelease(self._conn).bootstrap()
            self._has_recorded = True

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
                file.close()
        finally:
            self._turn.release()

    def _is_here(self) -> bool:
        """Whether this is the process that opened it. A forked child shares its lock and transaction, and must end neither."""
        return self._pid == os.getpid()

    def _acquire(self, deadline: float) -> io.FileIO:
        while True:
            file = self._place.lock(deadline)
            if file is None:
                raise WriteLockTimeout(self.timeout, self.holder())
            if _is_still_at(file, self.lock_path):
                return file
            # Somebody removed it meanwhile: what we hold is a lock on nothing.
            _unlock(file)


_SLICE = 0.001  # how long whoever was let in may go on without queueing again
_HEAD_START = 0.0002  # of the one who is woken, before whoever has just unlocked
_PATIENCE = 0.05  # how long the queue is trusted at first: its head may be stopped


class _Place:
    """A place in the queue, held by at most one thread: that cannot be called back at a deadline, so its place serves the
    next one who asks, or is given up unused at once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._let_in = float("-inf")
        self._changed = threading.Condition()
        self._waiting = self._wanted = False
        self._done: io.FileIO | OSError | LiteleaseError | None = None

    def lock(self, deadline: float) -> io.FileIO | None:
        """The lock file, locked. ``None`` if the deadline came first."""
        file, locked = _open(self._path), None
        try:
            now = time.monotonic()
            is_over, is_let_in = now >= deadline, now < self._let_in + _SLICE
            if (is_over or is_let_in or _is_empty(self._path)) and _try_lock(file):
                locked = file
            elif not is_over:
                locked, is_let_in = self._wait(file, deadline), False
            if locked is not None and not is_let_in:
                self._let_in = time.monotonic()
            return locked
        finally:
            if locked is not file:
                file.close()

    def _wait(self, file: io.FileIO, deadline: float) -> io.FileIO | None:
        with self._changed:
            if not self._waiting:
                threading.Thread(target=self._queue, name="litelease-writer", daemon=True).start()
                self._waiting = True
            patience = _PATIENCE
            try:
                self._wanted = True
                while True:
                    left = max(0.0, deadline - time.monotonic())
                    if self._changed.wait_for(lambda: not self._waiting, min(left, patience)):
                        done, self._done = self._done, None
                        break
                    if _try_lock(file):
                        return file
                    if left <= patience:
                        return None
                    patience *= 2
            finally:
                # Whatever ends the waiting, a signal too: from here on nobody would take what the thread gets.
                self._wanted = False
                if isinstance(self._done, io.FileIO):
                    _unlock(self._done)
                self._done = None
        if isinstance(done, Exception):
            raise done
        return done

    def _queue(self) -> None:
        head = _head(self._path)
        try:
            with self._changed:
                if not self._wanted:
                    self._waiting = False
                    return
            done = self._locked()
            with self._changed:
                self._waiting = False
                if self._wanted:
                    self._done = done
                elif isinstance(done, io.FileIO):
                    _unlock(done)
                self._changed.notify_all()
        finally:
            if head is not None:
                _unlock(head)

    def _locked(self) -> io.FileIO | OSError | LiteleaseError:
        try:
            file = _open(self._path)
        except (OSError, LiteleaseError) as error:
            return error
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # Python itself tries again when it is interrupted
        except OSError as error:
            file.close()
            return error
        return file


def _head(path: str) -> io.FileIO | None:
    """Waits to be the head of the queue: only that one waits for the lock. ``None`` if there can be no queue."""
    time.sleep(_HEAD_START)
    try:
        file = _open(f"{path}.queue")
    except (OSError, LiteleaseError):
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        file.close()
        return None
    return file


def _is_empty(path: str) -> bool:
    """Whether nobody is in the queue. Nobody ever was where there is no file."""
    try:
        file = _file(f"{path}.queue", os.O_RDONLY)
    except OSError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        _unlock(file)


def _try_lock(file: io.FileIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def _unlock(file: io.FileIO) -> None:
    """Closing it would do, unless a process was forked off meanwhile that has it open, too."""
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)
    file.close()


def _file(path: str, flags: int) -> io.FileIO:
    """An open file that closes itself when nobody has it any more: a signal's handler may raise between any two lines,
    and a bare descriptor would keep its lock for as long as the process lives."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return io.FileIO(path, opener=lambda path, _: os.open(path, flags, 0o666))


def _open(path: str) -> io.FileIO:
    """Opens the lock file, never truncating it. Whatever else is at the path is refused, and not even opened."""
    with contextlib.suppress(FileNotFoundError):
        _refuse(path, os.lstat(path).st_mode)
    file = _file(path, os.O_RDWR | os.O_CREAT)
    try:
        _refuse(path, os.fstat(file.fileno()).st_mode)
    except LiteleaseError:
        file.close()
        raise
    return file


def _refuse(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        what = _KINDS.get(stat.S_IFMT(mode), "a device")
        raise LiteleaseError(f"{path} cannot be a lock file: it is {what}; it was left alone, choose another path")


def _is_still_at(file: io.FileIO, path: str) -> bool:
    ours = os.fstat(file.fileno())
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _sign(file: io.FileIO) -> None:
    """Leaves the holder's line. The lock holds without it, so a full disk is no reason to give up."""
    now = datetime.datetime.now(datetime.timezone.utc)
    with contextlib.suppress(OSError):
        os.ftruncate(file.fileno(), 0)
        os.pwrite(file.fileno(), f"pid:{os.getpid()} time:{now:%Y-%m-%dT%H:%M:%SZ}\n".encode(), 0)


def _signed(path: str) -> tuple[int, str] | None:
    try:
        file = _open(path)
    except (OSError, LiteleaseError):
        return None
    try:
        found = re.fullmatch(rb"pid:(\d{1,10}) time:([-:0-9TZ]{20})\n?", os.pread(file.fileno(), 256, 0))
    finally:
        file.close()
    return (int(found[1]), found[2].decode()) if found else None
