"""A value in memory that is not answered any more once another process has written a newer one."""

from __future__ import annotations

import os
import sqlite3
from typing import Callable, Generic, TypeVar

from . import _library
from ._held import Held, kept_ms
from ._leases import Litelease
from ._connection import Closing
from ._sessions import place_of
from ._time import Seconds, in_seconds
from ._types import LiteleaseError, Reader
from ._wait import DatabaseFile, clock, never

T = TypeVar("T")
R = TypeVar("R")
# A writer keeps the name alive with this ttl. While it has the name, readers read the file.
_WRITER_TTL = 30.0


class ReadersLeft(LiteleaseError, TimeoutError):
    """Readers have not given up in time. ``readers`` are those that may still answer from memory. Nothing was written."""

    def __init__(self, name: str, readers: list[Reader]) -> None:
        first = readers[0].reader if readers else "?"
        super().__init__(
            f"{len(readers)} readers of {name!r} may still answer from memory, {first} among them: wait for longer than their ttl"
        )
        self.name, self.readers = name, readers


class Cached(Closing, Generic[T]):
    """A value that is read from the file once and then answered from memory, until a writer changes it.

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
        self, db: Litelease | str | os.PathLike[str], name: str, load: Callable[[sqlite3.Connection], T], ttl: Seconds = 60.0
    ) -> None:
        path, _ = place_of(db, "Cached")
        self._file, self.name, self._load = DatabaseFile(path), name, load
        _library.find_library()
        self._native, self._reader = _library.cached_open(path, name, kept_ms(name, in_seconds(ttl)))
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
        with self._file.opened() as db:
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
        with self._file.opened() as db, Held(self._file.path, None, never, self.name, _WRITER_TTL, wait=patience) as held:
            db._rows("begin_drain", self.name)
            waiter = _library.waiter(self._file.path)
            # A claim notifies no waiter by itself.
            db._row("notify")
            _library.cached_give_way(self._native)
            while True:
                generation = _library.generation(waiter)
                held.check()
                left = db._rows("drain_left")
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
                    raise ReadersLeft(self.name, [Reader(*row[:2]) for row in left])
                _library.listen(waiter, generation, min(left[0][2] / 1000 if left else 0.5, time_left))

    def close(self) -> None:
        """Gives the read up. ``get`` then raises."""
        self._kept = ()
        _library.cached_close(self._native)
