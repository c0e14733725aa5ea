"""Elections: one leader at a time, whose term is the fencing token of its lease."""

from __future__ import annotations

import sqlite3
import time
from typing import Callable, TypeVar

from . import _library
from ._fences import Value
from ._held import REPLACED, Held, loss
from ._leases import Litelease
from ._connection import Closing
from ._time import Seconds, in_seconds
from ._types import LeaderInfo, LiteleaseError, Loss, Lost, Reason, Rejected, RequestInfo, Unchanged, Vacant
from ._wait import DatabaseFile, clock, file_of, never

T = TypeVar("T")

_NO_SNAPSHOT = "the function ended the transaction that it reads in, so its rows are not of one snapshot: do not commit or roll back in it"


class Election:
    """An election under a name: the owner of the lease leads, and its value tells the others about the leader.

    >>> import tempfile
    >>> from litelease import open
    >>> db = open(tempfile.mkdtemp() + "/app.sqlite3")
    >>> election = Election(db, "leader")
    >>> with election.campaign("10.0.0.7:4000", ttl=30) as leader:
    ...     known = election.leader()
    ...     (known.term == leader.term, known.value)
    (True, '10.0.0.7:4000')
    >>> election.leader() is None
    True
    """

    def __init__(self, db: Litelease, name: str) -> None:
        self.name, self.conn = name, db.conn
        self._file = DatabaseFile(file_of(db, "Election"))

    def campaign(
        self,
        value: Value,
        ttl: Seconds = 60.0,
        *,
        wait: Seconds = 0.0,
        owner: str | None = None,
        progress_within: Seconds | None = None,
        max_time: Seconds | None = None,
        request: Seconds | None = None,
        on_requested: Callable[[RequestInfo], object] | None = None,
    ) -> Leader:
        """Runs for leader: waits up to ``wait`` seconds, and leads under a new term. The value is there in the commit that
        makes the leader. ``HoldTimeout`` if another one leads until then. The options are those of ``Litelease.hold``."""
        return Leader(
            self._file.path, self.conn, never, self.name, ttl, value=value, wait=wait, owner=owner,
            progress_within=progress_within, max_time=max_time, request=request, on_requested=on_requested,
        )

    def leader(self) -> LeaderInfo | None:
        """Returns the present leader, if there is one: its term and its value in one snapshot. Takes no lock."""
        with self._file.opened() as db:
            return self._look(db)

    def observe(self) -> Observer:
        """Follows the election: an iterator over the present state and then its changes, in order. Each is the newest state,
        so an observer that is slow skips what was true only in between. Renewals are no change.

        >>> import tempfile
        >>> from litelease import open
        >>> election = Election(open(tempfile.mkdtemp() + "/app.sqlite3"), "leader")
        >>> with election.observe() as observer:
        ...     next(observer)
        ...     observer.next(timeout=0)
        Vacant()
        Unchanged()
        """
        return Observer(self)

    def _look(self, db: Litelease) -> LeaderInfo | None:
        self._file.check()
        found = db._row("leader", self.name)
        if found is None:
            return None
        _, owner, term, expires_at_ms, value = found
        return LeaderInfo(term, owner, value, expires_at_ms)


class Observer(Closing):
    """Follows an election. Made by ``Election.observe``; a ``with`` block, or ``close()``, closes its connection."""

    def __init__(self, election: Election) -> None:
        self._election, self._db = election, election._file.opened()
        self._waiter = _library.waiter(election._file.path)
        # What was told last.
        self._last: list[LeaderInfo | None] = []

    def next(self, timeout: Seconds) -> LeaderInfo | Vacant | Unchanged:
        """Returns the present state at the first call, and then waits for a change, for at most ``timeout`` seconds."""
        end = clock() + in_seconds(timeout)
        while True:
            # A later generation belongs to a change after this read.
            generation, found = _library.generation(self._waiter), self._election._look(self._db)
            if not self._last or _is_change(self._last[0], found):
                self._last = [found]
                return Vacant() if found is None else found
            left = end - clock()
            if left <= 0:
                return Unchanged()
            # At its expiry the leader is none any more, though nothing is written.
            until_ms = 2**62 if found is None else found.expires_at_ms
            _library.listen(self._waiter, generation, _library.time_to_next_read(until_ms - time.time_ns() // 1_000_000, left))

    def close(self) -> None:
        """Closes its connection. In a forked child it does nothing."""
        self._db._session.close()

    def __iter__(self) -> Observer:
        return self

    def __next__(self) -> LeaderInfo | Vacant:
        while True:
            found = self.next(float("inf"))
            if not isinstance(found, Unchanged):
                return found


def _is_change(last: LeaderInfo | None, found: LeaderInfo | None) -> bool:
    """Checks whether observers get it. The expiry of a leader that goes on is no news."""
    if last is None or found is None:
        return last is not found
    return (last.term, type(last.value), last.value) != (found.term, type(found.value), found.value)


class Leader(Held):
    """The leader of an election, until its block ends or it is lost: a hold. Made by ``Election.campaign``."""

    @property
    def term(self) -> int:
        """The term: the fencing token of the lease. A later leader has a larger one."""
        return self.token

    def proclaim(self, value: Value) -> None:
        """Proclaims another value in the place of the one before. Raises ``Lost`` if this is no longer the leader."""
        self.check()
        with self._at_file() as db:
            answer = db.attach(self.lease, value)
        if isinstance(answer, Rejected):
            raise Lost(self.name, loss(self.token, answer))

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Calls ``work`` with a connection, to read in one snapshot that shows that this term is the newest one. Raises
        ``Lost`` if it is not. So what ``work`` reads was not overwritten by a later leader at the time of the snapshot.

        The connection reads only: write with the token, to tables that the name guards. What was computed from memory needs
        ``check()`` before it is served.
        """
        with self._at_file() as db:
            db.conn.execute("PRAGMA query_only = 1")
            db.conn.execute("BEGIN")
            newest = db.token(self.name)  # takes the snapshot
            if newest != self.token:
                current = db.inspect(self.name)
                raise Lost(self.name, self._outdated(newest, Rejected(Reason.SUPERSEDED, current, newest)))
            done = work(db.conn)
            if not db.conn.in_transaction:
                raise LiteleaseError(_NO_SNAPSHOT)
            return done

    def resign(self) -> None:
        """Releases the lease, so that another candidate leads at once. The end of the block does it, too."""
        self.release()

    def _outdated(self, newest: int | None, rejected: Rejected) -> Loss:
        if newest is None or newest < self.token:
            return REPLACED
        return loss(self.token, rejected)

    def _at_file(self) -> Litelease:
        """Opens a connection for a moment. A leader that has ended, or that came with a fork, has none."""
        over = _library.held_check(self._native)
        if over is not None and over[0] in ("Forked", "Released", "HandedOver"):
            self.check()
        if self._file.was_replaced():
            raise Lost(self.name, REPLACED)
        return self._file.opened()
