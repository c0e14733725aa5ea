"""A value in memory that is not answered any more once another process has written a newer one."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Callable, Generator, Generic, TypeVar

from . import _fork, _keeper, _library
from ._held import Held
from ._identity import identity
from ._leases import Litelease
from ._sessions import place_of
from ._time import Seconds, in_ms, in_seconds
from ._types import ExpiredOnArrival, InvalidTtl, LiteleaseError, Reader, TtlTooLong
from ._wait import clock, nap

T = TypeVar("T")
R = TypeVar("R")
# A writer keeps the name alive with this ttl. While it has the name, readers read the file.
_WRITER_TTL = 30.0
# How long a read waits for the write lock. After that it is answered from the file.
_GRANT_PATIENCE = 0.1
# The longest sleep between two looks, since a wake-up is only a hint, and the shortest.
_SLOW_POLL = 0.5
_LOOK_PAUSE = 0.002
_MAX_TTL_MS = 3_600_000


class ReadersLeft(LiteleaseError, TimeoutError):
    """Readers have not given up in time. ``readers`` are those that may still answer from memory. Nothing was written."""

    def __init__(self, name: str, readers: list[Reader]) -> None:
        first = readers[0].reader if readers else "?"
        super().__init__(
            f"{len(readers)} readers of {name!r} may still answer from memory, {first} among them: wait for longer than their ttl"
        )
        self.name, self.readers = name, readers


class Cached(Generic[T]):
    """A value that is read from the file once and then answered from memory, until somebody wants to write it.

    ``load`` reads the value from the connection that it gets, in a transaction of its own; it must not write. ``ttl`` is more
    than 0.1 s and at most an hour: a writer waits that long for a process that is stopped.

    ``get`` never answers a value that was overwritten before the call began, if all writers go through ``write`` or do what it
    does. A thread watches the file, and gives the value up when a writer has claimed the name.

    >>> import tempfile, litelease
    >>> db = litelease.open(tempfile.mkdtemp() + "/app.sqlite3")
    >>> _ = db.conn.executescript("CREATE TABLE config (rate INTEGER); INSERT INTO config VALUES (5)")
    >>> with Cached(db, "config", lambda conn: conn.execute("SELECT rate FROM config").fetchone()[0]) as rate:
    ...     print(rate.get(), rate.get())  # from the file, and from memory
    ...     _ = rate.write(90, lambda conn: conn.execute("UPDATE config SET rate = 7"))
    ...     print(rate.get())
    5 5
    7
    """

    def __init__(
        self,
        db: Litelease | str | os.PathLike[str],
        name: str,
        load: Callable[[sqlite3.Connection], T],
        ttl: Seconds = 60.0,
    ) -> None:
        path, _ = place_of(db, "Cached")
        self._shared = shared = _Shared(path, name, load, in_seconds(ttl))
        thread = threading.Thread(target=shared.watch, name="litelease cached", daemon=True)
        thread.start()
        # One that nobody refers to any more gives its read up.
        self._end = weakref.finalize(self, shared.end)

    @property
    def name(self) -> str:
        """The name that a writer claims."""
        return self._shared.name

    @property
    def reader(self) -> str:
        """The reader text, which is unique to this value: host, process and a random part."""
        return self._shared.reader

    @property
    def trusted_for(self) -> float:
        """For how many seconds ``get`` will answer from memory if no writer comes: 0 if there is nothing in memory."""
        kept = self._shared.kept
        return max(0.0, kept[1] - clock()) if kept else 0.0

    def get(self) -> T:
        """Returns the value: from memory while it can be trusted, which does not touch the file; otherwise from the file.

        While a writer has the name, every call reads the file. It waits for no writer.
        """
        shared = self._shared
        shared.check()
        kept = shared.kept
        if kept and clock() < kept[1]:
            value: T = kept[0]
            return value
        return shared.fetch()

    def write(self, patience: Seconds, work: Callable[[sqlite3.Connection], R]) -> R:
        """Waits until no reader in any process answers from memory, and then calls ``work`` with a connection, in one
        transaction. Returns what ``work`` returns. If it raises, nothing is written.

        Claims the name, so that no read is granted from then on, and waits until every reader has given up, has died or has
        expired, measured by elapsed time too. All of that takes at most ``patience`` seconds: then raises ``HoldTimeout`` if
        another writer has the name, or ``ReadersLeft``.
        """
        self._shared.check()
        return self._shared.write(in_seconds(patience), work)

    def close(self) -> None:
        """Gives the read up and ends the thread. ``get`` then raises."""
        self._end()

    def __enter__(self) -> Cached[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Shared(Generic[T]):
    """What the value and its thread share."""

    def __init__(self, path: str, name: str, load: Callable[[sqlite3.Connection], T], ttl: float) -> None:
        window = _library.window(ttl)
        if window is None:
            raise InvalidTtl(f"{name!r}: a ttl of {ttl} s is too short to be kept alive: give more than 0.1 s")
        self._ttl_ms = in_ms(name, ttl, None)
        if self._ttl_ms > _MAX_TTL_MS:
            raise TtlTooLong(f"{name!r}: the ttl of a read is at most {_MAX_TTL_MS} ms, got {self._ttl_ms} ms")
        self.name, self.reader = name, identity()
        self._path, self._file, self._pid = path, _keeper.file_of(path), os.getpid()
        self._load, self._ttl, self._trusted_for = load, ttl, window[0]
        # The value and until when it may be answered from memory; empty if it may not.
        self.kept: tuple[Any, ...] = ()
        self._version: int | None = None
        # The value that was loaded under the version.
        self._loaded: tuple[Any, ...] = ()
        # Until when a writer may wait for us, if it may.
        self._granted_until: float | None = None
        self._is_stopped = False
        # Taken while a value is loaded, and taken before the other, which is for the row.
        self._loading, self._row = threading.RLock(), threading.RLock()
        self._granted = threading.Event()

    def check(self) -> None:
        if os.getpid() != self._pid:
            raise LiteleaseError("this is a forked process: the cached value belongs to its parent; make another one here")
        if self._is_stopped:
            raise LiteleaseError(f"the cached value {self.name!r} is closed")

    def fetch(self) -> T:
        """Reads the value from the file, unless it may be answered from memory again."""
        with self._loading:
            is_granted = self._acquire()
            kept = self.kept
            # Another thread was faster, or no writer had the name since it was loaded.
            if kept and clock() < kept[1]:
                value: T = kept[0]
                return value
            with self._using(5.0) as db:
                db.conn.execute("BEGIN")
                try:
                    value = self._load(db.conn)
                finally:
                    if db.conn.in_transaction:
                        db.conn.execute("ROLLBACK")
            with self._row:
                # If it was given up meanwhile, it is not trusted; and the writer has changed the
                # version.
                if is_granted and self._version == is_granted[0] and self._granted_until is not None:
                    self._loaded = (value,)
                    self.kept = (value, is_granted[1])
            return value

    def _acquire(self) -> tuple[int, float] | None:
        """Asks for a read. Returns its version and until when it is trusted; None while a writer has the name, or the file is
        locked."""
        with self._row:
            kept = self.kept
            if kept and clock() < kept[1]:
                return None
            with self._using(_GRANT_PATIENCE) as db:
                start = clock()
                try:
                    version = db.read(self.name, self.reader, ttl_ms=self._ttl_ms)
                except ExpiredOnArrival:
                    return None
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error):
                        raise
                    return None
                self._check_file()
            if version is None:
                return None
            # From before the call, and a little less than the row says.
            trusted_until = start + self._trusted_for
            if self._version != version:
                self._version, self._loaded, self.kept = version, (), ()
            elif self._loaded:
                self.kept = (self._loaded[0], trusted_until)
            self._granted_until = clock() + self._ttl
            self._granted.set()
            return version, trusted_until

    def watch(self) -> None:
        """Watches the file as long as a writer may wait for us."""
        waiter = _library.waiter(self._path)
        while not self._is_stopped and os.getpid() == self._pid:
            until = self._granted_until
            if until is None or clock() >= until:
                self._granted.clear()
                if self._granted_until == until:
                    self._granted_until = None
                    self._granted.wait(1.0)
                continue
            heard = _library.heard(waiter)
            with _fork.held_off(self), contextlib.suppress(sqlite3.Error, LiteleaseError):
                self.look()
            nap(waiter, heard, min(until - clock(), _SLOW_POLL), lambda: self._is_stopped)
            time.sleep(_LOOK_PAUSE)
        while self._granted_until is not None and os.getpid() == self._pid:
            with _fork.held_off(self):
                self._leave()
            time.sleep(_LOOK_PAUSE)

    def look(self) -> None:
        """Gives the read up if a writer has the name. What cannot be read now is left to the trust window."""
        with self._row:
            if self._granted_until is None:
                return
            is_moved = _keeper.file_of(self._path) != self._file
            if is_moved:
                self.kept, self._loaded, self._granted_until = (), (), None
                return
            with self._using(_GRANT_PATIENCE) as db:
                if db.inspect(self.name) is None:
                    return
                self.kept, self._loaded = (), ()
                # Only now: a writer that finds no reader writes. If it fails, it is tried again.
                db.unread(self.name, self.reader)
                self._granted_until = None

    def write(self, patience: float, work: Callable[[sqlite3.Connection], R]) -> R:
        begin = clock()
        self._check_file()
        with Held(self._path, self.name, _WRITER_TTL, patience, None, None) as held, self._using(5.0) as db:
            drain = _Drain(db, self.name)
            waiter = _library.waiter(self._path)
            # A claim rings no bell by itself.
            db._row("ring")
            self.look()
            while True:
                heard = _library.heard(waiter)
                held.check()
                left = drain.readers_left(db)
                if not left:
                    db._begin()
                    try:
                        if db._row("drain", self.name, held.token)[0]:
                            done = work(db.conn)
                            db.conn.execute("COMMIT")
                            return done
                    finally:
                        if db.conn.in_transaction:
                            db.conn.execute("ROLLBACK")
                time_left = patience - (clock() - begin)
                if time_left <= 0:
                    raise ReadersLeft(self.name, left)
                nap(waiter, heard, min(drain.nap(left), time_left), lambda: False)

    def end(self) -> None:
        """Gives the read up."""
        if os.getpid() != self._pid or self._is_stopped:
            return
        with self._row:
            self._is_stopped = True
            self.kept = self._loaded = ()
            self._granted.set()
            # If that fails because the file is locked, the thread goes on trying.
            self._leave()

    def _leave(self) -> None:
        """Gives the read up, if a writer may wait for us."""
        with self._row:
            until = self._granted_until
            if until is None or clock() >= until or _keeper.file_of(self._path) != self._file:
                self._granted_until = None
                return
            with contextlib.suppress(sqlite3.Error, LiteleaseError), self._using(_GRANT_PATIENCE) as db:
                db.unread(self.name, self.reader)
                self._granted_until = None

    def _check_file(self) -> None:
        if _keeper.file_of(self._path) != self._file:
            self.kept = self._loaded = ()
            raise LiteleaseError(f"{self._path} was moved, deleted or replaced: open it again")

    @contextlib.contextmanager
    def _using(self, timeout: float) -> Generator[Litelease, None, None]:
        self._check_file()
        conn = sqlite3.connect(self._path, timeout=timeout, isolation_level=None, check_same_thread=False)
        try:
            yield Litelease(conn)
        finally:
            conn.close()


class _Drain:
    """The readers that a writer waits for."""

    def __init__(self, db: Litelease, name: str) -> None:
        """Begins to wait, after the name was claimed: from then on no reader is added."""
        now, wall_ms = clock(), _now_ms()
        self._name = name
        # Until when each reader that was live when the name was claimed may answer from memory, by
        # elapsed time: the wall clock may be set forward meanwhile.
        self._until = {
            reader.reader: now + min(reader.expires_at_ms - wall_ms, _MAX_TTL_MS) / 1000
            for reader in db.readers(name, now_ms=wall_ms)
        }

    def readers_left(self, db: Litelease) -> list[Reader]:
        """Returns the readers that may still answer from memory. Gives up for those whose process has ended."""
        left: list[Reader] = []
        now, wall_ms = clock(), _now_ms()
        # Those that have expired by the row, too.
        for reader in db.readers(self._name, now_ms=-(2**63)):
            if now >= self._until.get(reader.reader, now) and reader.expires_at_ms <= wall_ms:
                continue
            if _library.is_dead(reader.reader):
                db.unread(self._name, reader.reader)
            else:
                left.append(reader)
        return left

    def nap(self, left: list[Reader]) -> float:
        """Returns how long to sleep at most: until the last reader has expired."""
        now = clock()
        last = max((self._until.get(reader.reader, now + _SLOW_POLL) for reader in left), default=now + _SLOW_POLL)
        return min(max(last - now, 0.001), _SLOW_POLL)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
