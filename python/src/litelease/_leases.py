"""The verbs on a connection of the caller's: each asks the library, and gives its answer a class."""

from __future__ import annotations

import os
import sqlite3  # pyright: ignore[reportUnusedImport]  # the examples use it
from typing import TYPE_CHECKING, Callable

from ._fences import Fences, Value
from ._connection import Closing, OwnConnection
from ._ticks import Ticks
from ._time import Seconds, in_ms, in_seconds
from ._types import (
    Acquired, Broken, Busy, HistoryRow, Lease, Reader, Rejected, Released, Renewed, Requested, RequestedBy, RequestInfo,
    Stored, TakenOver, Transferred, answer,
)
from ._wait import claim_at, file_of, never

if TYPE_CHECKING:
    from ._held import Held
    from ._queue import Queue, QueueInfo


class Litelease(Fences, Ticks, Closing):
    """Leases in the main database of a ``sqlite3`` connection.

    Each verb takes ``now_ms`` for tests and simulations; without it the system clock is read once the write lock
    is held. ``ttl`` is in seconds or a ``timedelta``, or in whole milliseconds as ``ttl_ms``.

    >>> db = Litelease(sqlite3.connect(":memory:"))
    >>> db.bootstrap()
    >>> db.claim("scheduler", "a", ttl=30).lease.token
    1
    >>> type(db.claim("scheduler", "b", ttl=30)).__name__
    'Busy'
    """

    def joining(self) -> Litelease:
        """Returns the same verbs for use inside transactions of yours only: each raises ``NotInTransaction`` if none is open.

        SQLite ends a transaction by itself after some errors (a full disk, ``ON CONFLICT ROLLBACK``). A plain handle would
        then commit the next claim alone.

        >>> db = Litelease(sqlite3.connect(":memory:", isolation_level=None))
        >>> db.bootstrap()
        >>> in_tx = db.joining()
        >>> _ = db.conn.execute("BEGIN IMMEDIATE")
        >>> in_tx.claim("scheduler", "a", ttl=30).lease.token
        1
        >>> _ = db.conn.execute("COMMIT")
        >>> in_tx.claim("reports", "a", ttl=30)
        Traceback (most recent call last):
        ...
        litelease._types.NotInTransaction: no transaction is open, so this would be stored by itself: it was not begun, \
or SQLite has ended it after an error; begin it again
        """
        return Litelease(self.conn, True)

    def bootstrap(self) -> None:
        """Creates the lease table if it is missing; otherwise checks it strictly.

        Call it at every start, outside a transaction: it also records the present boot of the machine, so that no power cut
        can take that. From then on all grants of this boot are in order after one, whatever the ``synchronous`` of the
        connection that makes them. Inside a transaction it records nothing.

        >>> Litelease(sqlite3.connect(":memory:")).bootstrap()
        """
        self._row("bootstrap")

    def claim(
        self, name: str, owner: str, ttl: Seconds | None = None, *, ttl_ms: int | None = None, now_ms: int | None = None,
        min_token: int = 0,
    ) -> Acquired | Busy:
        """Grants ``name`` to ``owner`` if nobody has it, under a token larger than ``min_token``. ``Busy`` is falsy."""
        return self._answer(Acquired, Busy, "claim", name, owner, in_ms(name, ttl, ttl_ms), now_ms, min_token)

    def ensure(
        self, name: str, owner: str, ttl: Seconds | None = None, *, ttl_ms: int | None = None, now_ms: int | None = None
    ) -> Acquired | Busy:
        """Claims ``name``, or renews what ``owner`` already has: for a caller that may ask twice.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> [db.ensure("scheduler", "a", ttl=30).lease.token for _ in range(2)]
        [1, 1]
        """
        return self._answer(Acquired, Busy, "ensure", name, owner, in_ms(name, ttl, ttl_ms), now_ms)

    def _claim_from_dead(
        self, name: str, owner: str, ttl: Seconds | None = None, *, dead: Lease, ttl_ms: int | None = None,
        now_ms: int | None = None,
    ) -> Acquired | Busy:
        """Claims a name whose holder the caller knows to have ended: takes over exactly the grant ``dead`` in one commit,
        under a new token. If another grant is live by now, the answer is ``Busy``.

        ``hold`` finds dead holders by itself.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> dead = db.claim("scheduler", "a", ttl=30).lease
        >>> db._claim_from_dead("scheduler", "b", ttl=30, dead=dead).lease.token
        2
        """
        ttl_ms = in_ms(name, ttl, ttl_ms)
        return self._answer(Acquired, Busy, "claim_from_dead", name, owner, ttl_ms, now_ms, dead.owner, dead.token)

    def renew(
        self, lease: Lease, ttl: Seconds | None = None, *, ttl_ms: int | None = None, now_ms: int | None = None
    ) -> Renewed | Rejected:
        """Prolongs this grant to at least ``ttl`` from now. It never shortens a lease and never revives one.

        Owner and token must both match: a later grant to the same owner text is not renewed.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> lease = db.claim("scheduler", "a", ttl=30).lease
        >>> type(db.renew(lease, ttl=60)).__name__
        'Renewed'
        """
        name, owner, token = _grant(lease, "renew")
        return self._answer(Renewed, Rejected, "renew", name, owner, in_ms(name, ttl, ttl_ms), now_ms, token)

    def renew_by_owner(
        self, name: str, owner: str, ttl: Seconds | None = None, *, ttl_ms: int | None = None, now_ms: int | None = None
    ) -> Renewed | Rejected:
        """Prolongs whichever lease ``owner`` has now, for a caller that knows only the owner text.

        Two processes that use one owner text would renew each other's leases.
        """
        return self._answer(Renewed, Rejected, "renew", name, owner, in_ms(name, ttl, ttl_ms), now_ms)

    def release(self, lease: Lease, *, now_ms: int | None = None) -> Released | Rejected:
        """Ends this grant early. Owner and token must both match."""
        name, owner, token = _grant(lease, "release")
        return self._answer(Released, Rejected, "release", name, owner, now_ms, token)

    def release_by_owner(self, name: str, owner: str, *, now_ms: int | None = None) -> Released | Rejected:
        """Ends whichever lease ``owner`` has now, for a caller that knows only the owner text."""
        return self._answer(Released, Rejected, "release", name, owner, now_ms)

    def transfer(
        self, lease: Lease, new_owner: str, ttl: Seconds | None = None, *, ttl_ms: int | None = None, now_ms: int | None = None
    ) -> Transferred | Rejected:
        """Hands this grant to a new owner under a new token, in one step. Owner and token must both match."""
        name, owner, token = _grant(lease, "transfer")
        return self._answer(Transferred, Rejected, "transfer", name, owner, new_owner, in_ms(name, ttl, ttl_ms), now_ms, token)

    def transfer_by_owner(
        self, name: str, owner: str, new_owner: str, ttl: Seconds | None = None, *, ttl_ms: int | None = None,
        now_ms: int | None = None,
    ) -> Transferred | Rejected:
        """Hands on whichever lease ``owner`` has now, for a caller that knows only the owner text."""
        return self._answer(Transferred, Rejected, "transfer", name, owner, new_owner, in_ms(name, ttl, ttl_ms), now_ms)

    def break_lease(self, name: str, *, now_ms: int | None = None) -> Broken | Rejected:
        """Ends any holder's live lease and raises the token, for operators."""
        return self._answer(Broken, Rejected, "break", name, now_ms)

    def inspect(self, name: str, *, now_ms: int | None = None) -> Lease | None:
        """Returns the live lease on ``name``, if there is one. Takes no write lock."""
        found = self._row("inspect", name, now_ms)
        return Lease(*found) if found else None

    def owner(self, name: str, *, now_ms: int | None = None) -> str | None:
        """Returns the owner of the live lease on ``name``, if there is one. Takes no write lock."""
        lease = self.inspect(name, now_ms=now_ms)
        return lease.owner if lease else None

    def token(self, name: str) -> int | None:
        """Returns the newest token of ``name``, live or not. Takes no write lock."""
        found = self._row("token", name)
        return int(found[0]) if found else None

    def leases(self, prefix: str = "", *, now_ms: int | None = None) -> list[Lease]:
        """Lists the live leases whose names begin with ``prefix``, by name. Takes no write lock.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> _ = db.claim("jobs/mail", "a", ttl=30), db.claim("jobs/index", "b", ttl=30), db.claim("leader", "a", ttl=30)
        >>> [(lease.name, lease.owner) for lease in db.leases("jobs/")]
        [('jobs/index', 'b'), ('jobs/mail', 'a')]
        """
        return [Lease(*found) for found in self._rows("live_leases", prefix, now_ms)]

    def attach(
        self, lease: Lease, value: None | int | float | str | bytes, *, now_ms: int | None = None
    ) -> Stored | Rejected:
        """Attaches a value to this grant, for others to read: an address, say. It ends with the grant.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> db.attach(db.claim("leader", "a", ttl=30).lease, "10.0.0.7:8080")
        Stored()
        >>> db.value("leader")
        '10.0.0.7:8080'
        """
        name, _, token = _grant(lease, "attach")
        return self._answer(Stored, Rejected, "attach", name, token, value, now_ms)

    def value(self, name: str, *, now_ms: int | None = None) -> None | int | float | str | bytes:
        """Returns the value attached to the live grant of ``name``; None if there is none. Takes no write lock."""
        found: list[tuple[None | int | float | str | bytes]] = self._rows("value", name, now_ms)
        return found[0][0] if found else None

    def limit(
        self, name: str, token: int, progress_within: Seconds | None = None, not_after_ms: int | None = None, *,
        progress_within_ms: int | None = None, now_ms: int | None = None,
    ) -> Stored | Rejected:
        """Limits the live grant of ``name`` under ``token``, in the place of its limits before. They end with the grant.

        From then on a renewal is rejected unless ``progress`` or a checkpoint came within ``progress_within``, and none
        prolongs past ``not_after_ms``, a Unix time. None is no limit. Setting limits counts as progress, and never shortens
        the present lease.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> lease = db.claim("import", "a", ttl_ms=50, now_ms=100).lease
        >>> db.limit("import", lease.token, progress_within_ms=40, not_after_ms=190, now_ms=100)
        Stored()
        >>> db.renew(lease, ttl_ms=50, now_ms=140).reason.name
        'NO_PROGRESS'
        >>> db.progress("import", lease.token, now_ms=145)
        Stored()
        >>> db.renew(lease, ttl_ms=50, now_ms=145).lease.expires_at_ms  # and not 195
        190
        """
        within_ms = None
        if progress_within is not None or progress_within_ms is not None:
            within_ms = in_ms(name, progress_within, progress_within_ms, "progress_within")
        return self._answer(Stored, Rejected, "limit", name, token, within_ms, not_after_ms, now_ms)

    def progress(self, name: str, token: int, *, now_ms: int | None = None) -> Stored | Rejected:
        """Notes that the holder of the live grant of ``name`` under ``token`` has made progress, which its limits may demand.
        Without limits it changes nothing."""
        return self._answer(Stored, Rejected, "progress", name, token, now_ms)

    def request(
        self, name: str, requester: str, within: Seconds | None = None, *, within_ms: int | None = None,
        now_ms: int | None = None,
    ) -> Requested | RequestedBy | Rejected:
        """Asks the live holder of ``name`` to give it up. From ``within`` from now on its renewals are rejected. It never
        shortens the present lease.

        There is one open request per grant. It ends with the grant, by ``withdraw_request``, and lapses when its requester
        does not repeat it within 10 seconds; ``claim_wait`` under the requester's text does, and so does asking again. Use a
        fresh text for each attempt: a lease that carries it is the requester's.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> lease = db.claim("import", "a", ttl_ms=100, now_ms=100).lease
        >>> db.request("import", "b", within_ms=50, now_ms=110)
        Requested(token=1, until_ms=160)
        >>> db.requested("import", now_ms=110)
        RequestInfo(requester='b', until_ms=160, token=1)
        >>> db.renew(lease, ttl_ms=100, now_ms=160).reason.name
        'REQUESTED'
        >>> db.hand_over(lease, ttl_ms=100, now_ms=170).lease.owner
        'b'
        """
        row = self._row("request", name, requester, in_ms(name, within, within_ms, "within"), now_ms)
        told: Requested | RequestedBy | Rejected = answer(row)
        return told

    def withdraw_request(self, name: str, requester: str) -> bool:
        """Withdraws the request of ``requester`` for the newest grant of ``name``. Returns whether there was one."""
        return bool(self._row("withdraw_request", name, requester)[0])

    def requested(self, name: str, *, now_ms: int | None = None) -> RequestInfo | None:
        """Returns the open request for the live grant of ``name``, if there is one. Takes no write lock."""
        found = self._row("requested", name, now_ms)
        return RequestInfo(*found) if found else None

    def hand_over(
        self, lease: Lease, ttl: Seconds | None = None, *, ttl_ms: int | None = None, now_ms: int | None = None
    ) -> Transferred | Rejected:
        """Hands this grant to the requester who has asked for it, under a new token, in one commit. It is rejected if
        nobody has asked. Store a checkpoint before: the successor starts from it."""
        name, owner, token = _grant(lease, "hand_over")
        return self._answer(Transferred, Rejected, "hand_over", name, owner, in_ms(name, ttl, ttl_ms), now_ms, token)

    def hand_over_by_owner(
        self, name: str, owner: str, ttl: Seconds | None = None, *, ttl_ms: int | None = None, now_ms: int | None = None
    ) -> Transferred | Rejected:
        """Hands over whichever lease ``owner`` has now, for a caller that knows only the owner text."""
        return self._answer(Transferred, Rejected, "hand_over", name, owner, in_ms(name, ttl, ttl_ms), now_ms)

    def take_over(
        self, name: str, owner: str, ttl: Seconds | None = None, *, ttl_ms: int | None = None, now_ms: int | None = None
    ) -> TakenOver:
        """Ends any holder's live lease and grants ``name`` to ``owner`` in one commit, for operators. If nobody has the name,
        it is a claim. The old holder works on until it finds out: what both may write to must be fenced by the token.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> old = db.claim("import", "a", ttl=30).lease
        >>> taken = db.take_over("import", "ops", ttl=30)
        >>> taken.lease.token, taken.previous == old
        (2, True)
        """
        rows = self._rows("take_over", name, owner, in_ms(name, ttl, ttl_ms), now_ms)
        lease, *previous = [Lease(*row) for row in rows]
        return TakenOver(lease, previous[0] if previous else None)

    def read(
        self, name: str, reader: str, ttl: Seconds | None = None, *, ttl_ms: int | None = None, now_ms: int | None = None
    ) -> int | None:
        """Grants or prolongs a shared read of ``name`` and returns its version; None while a writer has it.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> version = db.read("config", "web-1", ttl=30)
        >>> [reader.reader for reader in db.readers("config")]
        ['web-1']
        >>> writer = db.claim("config", "admin", ttl=30).lease
        >>> db.drained("config", writer.token), db.unread("config", "web-1"), db.drained("config", writer.token)
        (False, True, True)
        """
        found = self._row("read", name, reader, in_ms(name, ttl, ttl_ms), now_ms)
        return int(found[0]) if found else None

    def unread(self, name: str, reader: str) -> bool:
        """Gives a read up. Returns whether there was one, live or not."""
        return bool(self._row("unread", name, reader)[0])

    def readers(self, name: str, *, now_ms: int | None = None) -> list[Reader]:
        """Lists the live readers of ``name``. Takes no write lock."""
        return [Reader(*row[:2]) for row in self._rows("readers", name, now_ms)]

    def drained(self, name: str, token: int, *, now_ms: int | None = None) -> bool:
        """Checks whether the writer with this token may write: its grant is live and the newest, and nobody reads."""
        return bool(self._row("drained", name, token, now_ms)[0])

    def purge(self, before_ms: int, *, now_ms: int | None = None) -> int:
        """Deletes the rows of names that have not been live since then, and returns how many. Their tokens are never
        granted again. Items of queues stay, also dead ones: ``Queue.discard`` deletes those."""
        return int(self._row("purge", before_ms, now_ms)[0])

    def keep_history(self, rows: int) -> None:
        """Keeps a history of the newest ``rows`` rows in the file from now on; 0 stops it. Every program that writes the
        file adds to it, in the same commit.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> db.keep_history(1000)
        >>> lease = db.claim("report", "a", ttl=30).lease
        >>> [row.kind for row in db.history("report")]
        ['granted']
        """
        self._row("keep_history", rows)

    def history(self, name: str | None = None, *, since_ms: int | None = None) -> list[HistoryRow]:
        """Returns what happened to ``name``, or to all names, queues and pools, the newest first."""
        return [HistoryRow(*row) for row in self._rows("history", name, since_ms)]

    def raise_floor(self, floor: int) -> None:
        """Raises the floor of the file: every token granted from now on, of any name, is larger than ``floor``.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> db.raise_floor(1000)
        >>> db.claim("scheduler", "a", ttl=30).lease.token
        1001
        """
        self._row("raise", floor)

    def raise_name(self, name: str, floor: int) -> None:
        """Raises the token of one name above ``floor``, and ends its lease if it is live: no token up to the floor
        counts any more."""
        self._row("raise", name, floor)

    def restore_fence(self, *, above: int | None = None) -> int:
        """Fences off everything that was granted before this file was restored from a backup, and returns the new floor.

        Call it once, after putting the backup in place and before any program uses it. It ends every lease, and raises
        every token and the floor far above all that can have been granted since the backup was made, and above the token
        ``above``: the largest one that was seen anywhere. Where the system has no boot id it must be given, or this is
        ``LargestTokenNeeded``: there each start of a process takes an epoch.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> db.restore_fence(above=2**48) > 2**48
        True
        """
        return int(self._row("restore_fence", above)[0])

    def hold(
        self,
        name: str,
        ttl: Seconds = 60.0,
        *,
        wait: Seconds = 0.0,
        owner: str | None = None,
        value: Value = None,
        progress_within: Seconds | None = None,
        max_time: Seconds | None = None,
        request: Seconds | None = None,
        on_requested: Callable[[RequestInfo], object] | None = None,
    ) -> Held:
        """Claims ``name`` and keeps it alive in the background until the block ends.

        Waits up to ``wait`` seconds for it; ``HoldTimeout`` if another owner still has it then. A holder whose process
        has ended is taken over at once, on Linux. A forked child is not the holder: ``check()`` raises ``Lost`` there.

        ``value`` is attached in the commit of the claim. With ``progress_within`` the lease is renewed only if
        ``held.progress()`` or a checkpoint came within that time; it ends after ``max_time`` at the latest. With ``request``
        the present holder is asked to give the name up within that time. ``on_requested`` is called in a thread of its own
        when a successor asks this holder for the lease.
        """
        from ._held import Held

        return Held(
            file_of(self, "hold"), self.conn, never, name, ttl, wait=wait, owner=owner, value=value,
            progress_within=progress_within, max_time=max_time, request=request, on_requested=on_requested,
        )

    def queue(self, name: str) -> Queue:
        """Returns the queue called ``name``, on this connection.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> db.queue("mail").send("hello")
        1
        """
        from ._queue import Queue

        return Queue(self.conn, name, self._is_joined)

    def queues(self, *, now_ms: int | None = None) -> list[QueueInfo]:
        """Lists the queues by name, with how many items each has in which state. Looks at every item."""
        from ._queue import QueueInfo

        return [QueueInfo(*row) for row in self._rows("queues", now_ms)]

    def claim_wait(self, name: str, owner: str, ttl: Seconds, wait: Seconds) -> Acquired | Busy:
        """Claims like ``claim``, but waits up to ``wait`` seconds until the name is free. It is not renewed: see ``hold``.

        A release through Litelease wakes it at once, in whatever language. Waiters are not queued. A holder that kept the
        name with ``hold`` and whose process has ended is taken over at once, on Linux.
        """
        return claim_at(file_of(self, "claim_wait"), name, owner, ttl, wait)

    def request_wait(self, name: str, owner: str, ttl: Seconds, within: Seconds, wait: Seconds) -> Acquired | Busy:
        """Waits like ``claim_wait``, and meanwhile asks the present holder to give the name up ``within`` this time: see
        ``request``. Use a fresh owner text for each attempt. The request is withdrawn after ``wait``."""
        return claim_at(file_of(self, "request_wait"), name, owner, ttl, wait, within)

    def close(self) -> None:
        """Releases what was held through this connection, and closes it. In a forked child it does nothing."""
        from . import _library

        if self._session.number is not None:
            _library.end_holds(self._session.number)
        self._session.close()

    def _has_recorded_boot(self) -> bool:
        """Checks whether the present boot is durably recorded."""
        return bool(self._row("is_boot_recorded")[0])

    def _record_boot(self) -> None:
        """Records the present boot, if the file has leases."""
        self._row("record_boot")

    def _begin(self) -> None:
        """Begins a transaction of the caller's with the write lock and, if the file has leases, the boot recorded."""
        self._row("begin")


def open(path: str | os.PathLike[str], *, timeout: Seconds = 10.0) -> Litelease:
    """Opens a database file of its own for leases, and bootstraps it. A ``with`` block, or ``close()``, closes it.

    A new file is in WAL mode, and a power cut loses no grant that was told. Threads may share it. It waits up to ``timeout``
    seconds for the locks of other connections.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, open(f"{folder}/app.sqlite3") as db:
    ...     db.claim("scheduler", "worker-a", ttl=30).lease.token
    1
    """
    conn = OwnConnection(path, timeout=in_seconds(timeout), isolation_level=None, check_same_thread=False)
    try:
        db = Litelease(conn)
        db._row("own")
        db.bootstrap()
        return db
    except BaseException:
        conn.close()
        raise


def _grant(lease: Lease, verb: str) -> tuple[str, str, int]:
    if not isinstance(lease, Lease):
        raise TypeError(
            f"{verb}() needs the lease that claim() returned, got {lease!r}: with a name and an owner, call {verb}_by_owner()"
        )
    return lease.name, lease.owner, lease.token
