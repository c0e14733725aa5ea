"""A value in memory that is not answered any more once another process has written a newer one."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from types import TracebackType
from typing import Callable, Generator, Generic, TypeVar

from . import _library
from ._held import Held, kept_ms
from ._leases import Litelease
from ._sessions import place_of
from ._time import Seconds, in_seconds, now_ms
from ._types import LiteleaseError, Reader
from ._wait import clock, inode_of, wait_for_change

T = TypeVar("T")
R = TypeVar("R")
# A writer keeps the name alive with this ttl. While it has the name, readers read the file.
_WRITER_TTL = 30.0
# The longest sleep between two reads of the file, since a wake-up is only a hint.
_SLOW_POLL = 0.5
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
        self._path, _ = place_of(db, "Cached")
        self._file, self.name, self._load = inode_of(self._path), name, load
        _library.find_library()
        self._native, self._reader = _library.cached_open(self._path, name, kept_ms(name, in_seconds(ttl)))
        # The value with its version; empty if none was loaded under a read.
        self._kept: tuple[T, int] | tuple[()] = ()

    @property
    def reader(self) -> str:
        """The reader text, which is unique to this value: host, process and a random part."""
        return self._reader

    @property
    def trusted_for(self) -> float:
        """For how many seconds ``get`` will answer from memory if no writer comes: 0 if there is nothing in memory."""
        kept = self._kept
        return _library.cached_trusted_for(self._native, kept[1]) if kept else 0.0

    def get(self) -> T:
        """Returns the value: from memory while it can be trusted, which does not touch the file; otherwise from the file.

        While a writer has the name, every call reads the file. It waits for no writer.
        """
        kept = self._kept
        if kept and _library.cached_trusted_for(self._native, kept[1]):
            return kept[0]
        version = _library.cached_acquire(self._native)
        if kept and kept[1] == version:
            return kept[0]  # no writer had the name since it was loaded
        with self._using() as db:
            db.conn.execute("BEGIN")
            try:
                value = self._load(db.conn)
            finally:
                if db.conn.in_transaction:
                    db.conn.execute("ROLLBACK")
        if version is not None:
            # If the read was given up meanwhile, the writer has changed the version.
            self._kept = (value, version)
        return value

    def write(self, patience: Seconds, work: Callable[[sqlite3.Connection], R]) -> R:
        """Waits until no reader in any process answers from memory, and then calls ``work`` with a connection, in one
        transaction. Returns what ``work`` returns. If it raises, nothing is written.

        Claims the name, so that no read is granted from then on, and waits until every reader has given up, has died or has
        expired, measured by elapsed time too. All of that takes at most ``patience`` seconds: then raises ``HoldTimeout`` if
        another writer has the name, or ``ReadersLeft``.
        """
        begin, patience = clock(), in_seconds(patience)
        _library.cached_trusted_for(self._native, 0)  # or it is closed
        with self._using() as db, Held(self._path, self.name, _WRITER_TTL, patience, None, None) as held:
            drain = _Drain(db, self.name)
            waiter = _library.waiter(self._path)
            # A claim notifies no waiter by itself.
            db._row("notify")
            _library.cached_give_way(self._native)
            while True:
                generation = _library.generation(waiter)
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
                wait_for_change(waiter, generation, min(drain.sleep_time(left), time_left), lambda: False)

    def close(self) -> None:
        """Gives the read up. ``get`` then raises."""
        self._kept = ()
        _library.cached_close(self._native)

    def __enter__(self) -> Cached[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _using(self) -> Generator[Litelease, None, None]:
        if inode_of(self._path) != self._file:  # opening a file that was deleted would make it
            raise LiteleaseError(f"{self._path} was moved, deleted or replaced: open it again")
        conn = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            yield Litelease(conn)
        finally:
            conn.close()


class _Drain:
    """The readers that a writer waits for."""

    def __init__(self, db: Litelease, name: str) -> None:
        """Begins to wait, after the name was claimed: from then on no reader is added."""
        now, wall_ms = clock(), now_ms()
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
        now, wall_ms = clock(), now_ms()
        # Those that have expired by the row, too.
        for reader in db.readers(self._name, now_ms=-(2**63)):
            if now >= self._until.get(reader.reader, now) and reader.expires_at_ms <= wall_ms:
                continue
            if _library.is_dead(reader.reader):
                db.unread(self._name, reader.reader)
            else:
                left.append(reader)
        return left

    def sleep_time(self, left: list[Reader]) -> float:
        """Returns how long to sleep at most: until the last reader has expired."""
        now = clock()
        last = max((self._until.get(reader.reader, now + _SLOW_POLL) for reader in left), default=now + _SLOW_POLL)
        return min(max(last - now, 0.001), _SLOW_POLL)
