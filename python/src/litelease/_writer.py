"""Many processes, one SQLite file, one writer at a time, in a fair queue.

The lock is the same as that of the Rust ``SingleWriter`` and of ``litelease write``: an flock on a file next to the
database, and a queue in front of it, which is an flock on a second file. How that works, and why, is told in
``litelease-filelock``, in ``queue.rs`` and ``lock_waiter.rs``.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import io
import os
import queue
import re
import sqlite3
import stat
import threading
import time
from typing import Callable, Iterator

from ._atomic import Mutex, Reentered, start_thread
from ._leases import Litelease
from ._session import session_of
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
        self._session = session_of(self._conn)
        if not self._conn.execute("PRAGMA database_list").fetchone()[2]:
            raise LiteleaseError("a database in memory has no other writers: a single writer needs a file")
        # One file has one lock, whichever way it is called.
        self.path = os.path.realpath(path)
        self.lock_path = os.fspath(lock_path) if lock_path is not None else f"{self.path}.lock"
        self._turn = Mutex()
        self._place = _Place(self.lock_path, self.path)
        # The boot in the file's row when it was last seen to be durably recorded.
        self._recorded: int | None = None
        self._set_up(synchronous)

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Waits for the lock and begins a transaction; commits at the end of the block and unlocks."""
        block = _Block(self)
        try:
            try:
                block.begin()
                self._begin()
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

    def holder(self) -> tuple[int, str] | None:
        """Returns the process that took the lock last and since when, if that is known."""
        return _signed(self.lock_path)

    def close(self) -> None:
        """Closes the connection. Does nothing in a forked child."""
        self._session.close()

    def _set_up(self, synchronous: str) -> None:
        if self._conn.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            # Switching wants the file for itself, so it is a write like any other.
            self._under_lock(lambda: switch_to_wal(self._conn, self.path))
        self._conn.execute(f"PRAGMA synchronous = {synchronous}")
        if self._is_unrecorded():
            self._under_lock(self._record_boot)

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

    def _begin(self) -> None:
        """Begins a transaction with the boot durably recorded. It looks at the record under SQLite's write lock, each time: a
        program that writes without the lock file can put it at risk."""
        for _ in range(3):
            self._record_boot()
            self._conn.execute("BEGIN IMMEDIATE")
            if self._recorded is None or self._stored_boot() == self._recorded:
                return
            self._conn.execute("ROLLBACK")
            self._recorded = None
        raise LiteleaseError("other programs put the record of this boot at risk again and again; try again")

    def _is_unrecorded(self) -> bool:
        """Whether the file has leases and no record of the present boot yet, as far as this writer knows."""
        if self._recorded is not None:
            return False
        sql = "SELECT count(*) FROM main.sqlite_schema WHERE name = 'litelease_resources'"
        if not self._conn.execute(sql).fetchone()[0]:
            return False
        try:
            has_recorded = Litelease(self._conn)._has_recorded_boot()
        except LiteleaseError:
            # Leases that cannot be used are no concern of other writes: the verbs tell.
            return False
        if has_recorded:
            self._recorded = self._stored_boot()
        return not has_recorded

    def _record_boot(self) -> None:
        """Records the present boot of the machine once the file has leases: what is claimed inside the transactions of this
        writer can get lost in a power cut, and within them nothing can be made durable first."""
        if self._is_unrecorded():
            Litelease(self._conn).bootstrap()
            self._recorded = self._stored_boot()

    def _stored_boot(self) -> int | None:
        cursor = self._conn.cursor()
        # The caller may have set one on the connection.
        cursor.row_factory = None
        try:
            row = cursor.execute("SELECT boot FROM main.litelease_meta WHERE id = 1 AND format = 1").fetchone()
        except sqlite3.OperationalError:
            # The table is gone.
            return None
        return row[0] if row else None


class _Block:
    """What a writer has taken for one block: its turn among the threads, the lock, and a transaction.

    A signal handler can raise anywhere, in ``end`` too. So all is recorded before it is taken, ``end`` gives back whatever
    there is, and it is called twice.
    """

    def __init__(self, writer: SingleWriter) -> None:
        self._writer = writer
        self._files: list[object] = []

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
            raise WriteLockTimeout(writer.timeout, writer.holder())
        if writer._conn.in_transaction:
            writer._conn.execute("ROLLBACK")  # one that could not be rolled back when its block ended
        _sign(self._lock(deadline))

    def end(self) -> None:
        """Rolls back what was not committed, and unlocks. Calling it twice is harmless."""
        writer = self._writer
        if not writer._turn.is_held_by(self):
            return
        writer._place.give_up()
        is_inherited = writer._session.is_inherited
        if not is_inherited:
            with contextlib.suppress(sqlite3.Error):  # what was raised in the block matters more
                if writer._conn.in_transaction:
                    writer._conn.execute("ROLLBACK")
        for file in self._files:
            if isinstance(file, io.FileIO):
                if not is_inherited:
                    _unlock(file)
                file.close()
        writer._turn.give_back(self)

    def _lock(self, deadline: float) -> io.FileIO:
        writer = self._writer
        while True:
            file = writer._place.lock(deadline, self._files)
            if file is None:
                raise WriteLockTimeout(writer.timeout, writer.holder())
            if _is_still_at(file, writer.lock_path):
                return file
            # Somebody removed it meanwhile: what we hold is a lock on nothing.
            _unlock(file)


_SLICE = 0.001  # how long whoever was let in may go on without queueing again
_HEAD_START = 0.0002  # of the one who is woken, before whoever has just unlocked
_TRIES, _PAUSE = 5, 0.002  # to open a file that somebody else is just creating
_PATIENCE = 0.05  # how long the queue is trusted at first: its head may be stopped


class _Place:
    """A place in the queue, held by at most one thread: that cannot be called back at a deadline, so its place serves the
    next one who asks, or is given up unused at once.

    What the thread gets goes through a queue in C. A lock around it could be left taken by an exception.
    """

    def __init__(self, path: str, database: str) -> None:
        self._path, self._database = path, database
        self._let_in = float("-inf")
        self._is_wanted = False
        self._waiting: list[bool] = []  # whether the thread is still waiting
        self._done: queue.SimpleQueue[io.FileIO | OSError | LiteleaseError] = queue.SimpleQueue()

    def lock(self, deadline: float, files: list[object]) -> io.FileIO | None:
        """The lock file, locked. ``None`` if the deadline came first. What is opened is in ``files`` before it is locked."""
        file = _open(self._path, self._database)
        files.append(file)
        locked: io.FileIO | None = None
        now = time.monotonic()
        is_over, is_let_in = now >= deadline, now < self._let_in + _SLICE
        if (is_over or is_let_in or _is_empty(self._path)) and _try_lock(file):
            locked = file
        elif not is_over:
            locked, is_let_in = self._wait(file, deadline, files), False
        if locked is not None and not is_let_in:
            self._let_in = time.monotonic()
        if locked is not file:
            file.close()
        return locked

    def give_up(self) -> None:
        """Wants nothing more: what the thread gets, or has got, is unlocked."""
        self._is_wanted = False
        while not self._done.empty():
            with contextlib.suppress(queue.Empty):
                done = self._done.get_nowait()
                if isinstance(done, io.FileIO):
                    _unlock(done)

    def _wait(self, file: io.FileIO, deadline: float, files: list[object]) -> io.FileIO | None:
        patience = _PATIENCE
        try:
            self._is_wanted = True
            while True:
                if not self._waiting:
                    start_thread(self._queue, self._waiting)
                left = max(0.0, deadline - time.monotonic())
                with contextlib.suppress(queue.Empty):
                    files.extend(map(self._done.get, (True,), (min(left, patience),)))
                    done = files[-1]
                    if isinstance(done, Exception):
                        raise done
                    assert isinstance(done, io.FileIO)
                    return done
                if _try_lock(file):
                    return file
                if left <= patience:
                    return None
                patience *= 2
        finally:
            self.give_up()

    def _queue(self) -> None:
        head = _head(self._path, self._database)
        try:
            if not self._is_wanted:
                self._waiting.clear()
                # One who has begun to wait before that relies on this thread; one who begins later starts another.
                if not self._is_wanted or self._waiting:
                    return
                self._waiting.append(True)
            done = self._locked()
            self._waiting.clear()
            self._done.put(done)
            if not self._is_wanted:
                self.give_up()
        finally:
            if head is not None:
                _unlock(head)

    def _locked(self) -> io.FileIO | OSError | LiteleaseError:
        try:
            file = _open(self._path, self._database)
        except (OSError, LiteleaseError) as error:
            return error
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # Python itself tries again when it is interrupted
        except OSError as error:
            file.close()
            return error
        return file


def _head(path: str, database: str) -> io.FileIO | None:
    """Waits to be the head of the queue: only that one waits for the lock. ``None`` if there can be no queue."""
    time.sleep(_HEAD_START)
    try:
        file = _open(f"{path}.queue", database)
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
        file = _existing(f"{path}.queue", os.O_RDONLY)
    except (OSError, LiteleaseError):
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
    if file.closed:
        return
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)
    file.close()


def _file(path: str, flags: int) -> io.FileIO:
    """An open file that closes itself when nobody has it any more: a signal's handler may raise between any two lines,
    and a bare descriptor would keep its lock for as long as the process lives."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    # Nobody else may use a new file before it has the mode and the group of the database.
    return io.FileIO(path, opener=lambda path, _: os.open(path, flags, 0o600))


def _open(path: str, database: str) -> io.FileIO:
    """Opens the lock file, never truncating it, or creates it for whoever may write the database.

    Whatever else is at the path is refused, and not even opened.
    """
    for tries_left in range(_TRIES, -1, -1):
        try:
            return _existing(path, os.O_RDWR, database)
        except FileNotFoundError:
            pass
        except PermissionError:
            # Perhaps somebody else has just created it, and gives it its mode next.
            if not tries_left:
                raise
            time.sleep(_PAUSE)
            continue
        try:
            return _created(path, database)
        except FileExistsError:
            if not tries_left:
                raise
    raise AssertionError("unreachable")


def _existing(path: str, flags: int, database: str | None = None) -> io.FileIO:
    _refuse(path, os.lstat(path).st_mode)
    file = _file(path, flags)
    try:
        found = os.fstat(file.fileno())
        _refuse(path, found.st_mode)
        if database is not None and found.st_uid == os.geteuid():
            with contextlib.suppress(OSError):  # it can be used as it is
                _set_access(file, found, os.stat(database))
    except LiteleaseError:
        file.close()
        raise
    return file


def _created(path: str, database: str) -> io.FileIO:
    if not os.access(database, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, "not created for a database that this user may not write", path)
    like = os.stat(database)
    file = _file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    if os.geteuid() == 0:  # root's own file would be in everybody's way
        with contextlib.suppress(OSError):
            os.fchown(file.fileno(), like.st_uid, -1)
    _set_access(file, os.fstat(file.fileno()), like)
    return file


def _set_access(file: io.FileIO, found: os.stat_result, like: os.stat_result) -> None:
    """Gives a side file the group of the database and a mode: only users who may write the database can open it."""
    write = like.st_mode & 0o222
    mode = 0o600 | write | write << 1
    if found.st_gid == like.st_gid and stat.S_IMODE(found.st_mode) == mode:
        return
    with contextlib.suppress(OSError):
        os.fchown(file.fileno(), -1, like.st_gid)
    if os.fstat(file.fileno()).st_gid != like.st_gid:
        # Another group may do no more than everybody.
        mode = mode & 0o606 | (mode & 0o006) << 3
    if stat.S_IMODE(found.st_mode) != mode:
        os.fchmod(file.fileno(), mode)


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
        file = _existing(path, os.O_RDONLY)
    except (OSError, LiteleaseError):
        return None
    try:
        found = re.fullmatch(rb"pid:(\d{1,10}) time:([-:0-9TZ]{20})\n?", os.pread(file.fileno(), 256, 0))
    finally:
        file.close()
    return (int(found[1]), found[2].decode()) if found else None
