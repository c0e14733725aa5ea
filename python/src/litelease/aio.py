"""Holds and waiting claims for asyncio, on plain ``sqlite3``.

Nothing here blocks the event loop: each operation runs in a thread of its own, with a connection of its own. (The threads of
the loop's executor are few, and claims that wait for long would take them all.) So a hold can be made from a path, or from
a connection that any thread uses; of the latter only its path is used, and the hold ends when it is closed.

Everything can be cancelled at every ``await``. A task that is cancelled ends once its thread has given back what it may have
been granted: within 50 ms, or as long as SQLite waits for a lock on the file. So a name is free when the task is done.

    async with aio.hold("app.sqlite3", "books", ttl=60, wait=5) as held:
        held.check()
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from types import TracebackType
from typing import Callable, Generator, Generic, TypeVar, Union

from ._client import Client as _Client
from ._client_hold import RemoteHeld, RemoteSlot
from ._client_queue import RemoteItem, RemoteQueue
from ._election import Leader
from ._fences import Value
from ._held import Held, HeldSlot, Holding, number_of
from ._leases import Litelease
from ._leases import open as open_file
from ._pools import Pools
from ._queue import ItemInfo, QueueInfo
from ._session import Handle
from ._time import Seconds, in_ms, in_seconds
from ._types import (
    Acknowledged,
    Acquired,
    Broken,
    Busy,
    Cancelled,
    Checkpoint,
    Leased,
    Lease,
    LiteleaseError,
    NotFound,
    Rejected,
    Released,
    Renewed,
    Requested,
    RequestedBy,
    RequestInfo,
    StaleReceipt,
    Stored,
    Transferred,
)
from ._wait import More, claim_at, file_of

__all__ = ["Client", "ClientQueue", "Database", "campaign", "claim_wait", "hand_over", "hold", "hold_slot", "requested"]

T = TypeVar("T")
H = TypeVar("H", bound=Holding)
Stop = Callable[[], bool]
# A path, which is bootstrapped; or what has been opened.
Database = Union[str, "os.PathLike[str]", sqlite3.Connection, Litelease, Pools]


class _Place:
    """A file, and the connection by which it was named. A file that is named by its path is bootstrapped."""

    def __init__(self, database: Database, verb: str) -> None:
        self.conn: sqlite3.Connection | None = None
        self._is_ready = not isinstance(database, (str, os.PathLike))
        if isinstance(database, (str, os.PathLike)):
            self._path = os.path.abspath(database)
        else:
            handle = database if isinstance(database, Handle) else Litelease(database)
            self._path, self.conn = file_of(handle, verb), handle.conn
            number_of(self.conn)  # in the thread that the connection belongs to

    def path(self) -> str:
        """Returns the path of the file, which is bootstrapped then."""
        if not self._is_ready:
            open_file(self._path).close()
            self._is_ready = True
        return self._path

    @contextlib.contextmanager
    def opened(self) -> Generator[Litelease, None, None]:
        """Opens a connection for the thread that calls it."""
        with contextlib.closing(sqlite3.connect(self.path(), isolation_level=None, check_same_thread=False)) as conn:
            yield Litelease(conn)


class _Work(Generic[T]):
    """Something that a thread does for a task, and what undoes it if the task is cancelled."""

    def __init__(self, work: Callable[[Stop], T], undo: Callable[[T], object] | None = None) -> None:
        self._work, self._undo = work, undo
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[T] = self._loop.create_future()
        self._stopped = threading.Event()

    async def run(self) -> T:
        threading.Thread(target=self._in_thread, name="litelease aio", daemon=True).start()
        try:
            return await asyncio.shield(self._done)
        except asyncio.CancelledError:
            self._stopped.set()
            await self._settled()
            raise
        except GeneratorExit:  # the loop is gone, and nobody will ask any more
            self._stopped.set()
            if self._done.done():
                self._take_back(self._done)
            raise

    def _in_thread(self) -> None:
        try:
            result = self._work(self._stopped.is_set)
        except BaseException as error:
            self._tell(self._fail, error)
        else:
            if not self._tell(self._succeed, result):
                self._undone(result)

    def _tell(self, tell: Callable[..., object], value: object) -> bool:
        """Tells the loop, unless it is closed."""
        try:
            self._loop.call_soon_threadsafe(tell, value)
            return True
        except RuntimeError:
            return False

    def _succeed(self, result: T) -> None:
        if not self._done.done():
            self._done.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # nobody asks for it if the task was cancelled

    def _undone(self, result: T) -> None:
        if self._undo is not None:
            with contextlib.suppress(sqlite3.Error, LiteleaseError):
                self._undo(result)

    def _take_back(self, done: asyncio.Future[T]) -> None:
        if not done.cancelled() and done.exception() is None:
            threading.Thread(target=self._undone, args=(done.result(),), daemon=True).start()

    async def _settled(self) -> None:
        """Waits until the thread is done and what it was granted is given back, however often the task is cancelled."""
        await _surely(self._done)
        if self._undo is not None and self._done.exception() is None:
            again = _Work[None](lambda _: self._undone(self._done.result()))
            threading.Thread(target=again._in_thread, name="litelease aio", daemon=True).start()
            await _surely(again._done)


async def _surely(done: asyncio.Future[T]) -> None:
    while not done.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([done])


class _Holding(Generic[H]):
    """An ``async with`` block that holds. Made by ``hold`` and ``hold_slot``."""

    def __init__(self, hold: Callable[[Stop], H]) -> None:
        self._hold = hold
        self._held: H | None = None

    async def __aenter__(self) -> H:
        self._held = await _Work(self._hold, lambda held: held.release()).run()
        return self._held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, self._held = self._held, None
        if held is not None:
            await _Work(lambda _: held.__exit__(kind, error, trace)).run()


def hold(
    database: Database,
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
) -> _Holding[Held]:
    """Holds a name while an ``async with`` block runs; see ``Litelease.hold``. The block gets the ``Held``. ``on_requested`` is
    called by the event loop."""
    place, more, told = _Place(database, "hold"), More.of(name, value, progress_within, max_time, request), _told(on_requested)

    def work(stop: Stop) -> Held:
        return Held(place.path(), name, in_seconds(ttl), in_seconds(wait), owner, place.conn, stop, more, told)

    return _Holding(work)


def campaign(
    database: Database,
    name: str,
    value: Value,
    ttl: Seconds = 60.0,
    *,
    wait: Seconds = 0.0,
    owner: str | None = None,
    progress_within: Seconds | None = None,
    max_time: Seconds | None = None,
    request: Seconds | None = None,
    on_requested: Callable[[RequestInfo], object] | None = None,
) -> _Holding[Leader]:
    """Leads an election while an ``async with`` block runs; see ``Election.campaign``. The block gets the ``Leader``."""
    place, more, told = _Place(database, "campaign"), More.of(name, value, progress_within, max_time, request), _told(on_requested)

    def work(stop: Stop) -> Leader:
        return Leader(place.path(), name, in_seconds(ttl), in_seconds(wait), owner, place.conn, stop, more, told)

    return _Holding(work)


async def requested(held: Held) -> RequestInfo | None:
    """Returns the open request for a held lease; see ``Held.requested``."""
    return await _Work(lambda _: held.requested()).run()


async def hand_over(held: Held, ttl: Seconds) -> Lease:
    """Hands a held lease to the requester who has asked for it; see ``Held.hand_over``."""
    return await _Work(lambda _: held.hand_over(ttl)).run()


def _told(tell: Callable[[RequestInfo], object] | None) -> Callable[[RequestInfo], object] | None:
    """Returns what has the event loop tell a holder of a request."""
    if tell is None:
        return None
    loop, callback = asyncio.get_running_loop(), tell

    def told(info: RequestInfo) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(callback, info)

    return told


def hold_slot(
    database: Database, id: str, ttl: Seconds = 60.0, *, wait: Seconds = 0.0, note: str | None = None
) -> _Holding[HeldSlot]:
    """Holds a slot of a pool while an ``async with`` block runs; see ``Pools.hold``. The block gets the ``HeldSlot``."""
    place = _Place(database, "hold")

    def work(stop: Stop) -> HeldSlot:
        return HeldSlot(place.path(), id, in_seconds(ttl), in_seconds(wait), note, place.conn, stop)

    return _Holding(work)


async def claim_wait(database: Database, name: str, owner: str, ttl: Seconds, wait: Seconds) -> Acquired | Busy:
    """Claims a name and waits for it; see ``Litelease.claim_wait``. What a task is granted that was cancelled is released."""
    place = _Place(database, "claim_wait")

    def work(stop: Stop) -> Acquired | Busy:
        return claim_at(place.path(), name, owner, ttl, wait, stop=stop)

    def undo(answer: Acquired | Busy) -> None:
        if isinstance(answer, Acquired):
            with place.opened() as db:
                db.release(answer.lease)

    return await _Work(work, undo).run()


class Client:
    """A client of ``litelease serve`` for asyncio; see ``litelease.Client``, which is its ``sync``. A claim, a hold and a receive
    that are cancelled while they wait give back what they were granted."""

    def __init__(
        self,
        url: str,
        access_key: str | os.PathLike[str] | None = None,
        *,
        ca_file: str | os.PathLike[str] | None = None,
        retry_for: Seconds = 10.0,
    ) -> None:
        self.sync = _Client(url, access_key, ca_file=ca_file, retry_for=retry_for)

    async def claim(self, name: str, owner: str, ttl: Seconds) -> Acquired | Busy:
        """See ``litelease.Client.claim``."""
        return await self.claim_wait(name, owner, ttl, 0.0)

    async def claim_wait(self, name: str, owner: str, ttl: Seconds, wait: Seconds) -> Acquired | Busy:
        """See ``litelease.Client.claim_wait``."""
        ttl_s, wait_s = in_ms(name, ttl, None) / 1000, in_seconds(wait)

        def work(stop: Stop) -> Acquired | Busy:
            return self.sync._claim(name, owner, ttl_s, wait_s, stop=stop)

        return await _Work(work, lambda told: self.sync.release(told.lease) if isinstance(told, Acquired) else None).run()

    async def renew(self, lease: Lease, ttl: Seconds) -> Renewed | Rejected:
        """See ``litelease.Client.renew``."""
        return await _in_thread(lambda: self.sync.renew(lease, ttl))

    async def release(self, lease: Lease) -> Released | Rejected:
        """See ``litelease.Client.release``."""
        return await _in_thread(lambda: self.sync.release(lease))

    async def transfer(self, lease: Lease, new_owner: str, ttl: Seconds) -> Transferred | Rejected:
        """See ``litelease.Client.transfer``."""
        return await _in_thread(lambda: self.sync.transfer(lease, new_owner, ttl))

    async def break_lease(self, name: str) -> Broken | Rejected:
        """See ``litelease.Client.break_lease``."""
        return await _in_thread(lambda: self.sync.break_lease(name))

    async def inspect(self, name: str) -> Lease | None:
        """See ``litelease.Client.inspect``."""
        return await _in_thread(lambda: self.sync.inspect(name))

    async def leases(self, prefix: str = "") -> list[Lease]:
        """See ``litelease.Client.leases``."""
        return await _in_thread(lambda: self.sync.leases(prefix))

    async def queues(self, prefix: str = "") -> list[QueueInfo]:
        """See ``litelease.Client.queues``."""
        return await _in_thread(lambda: self.sync.queues(prefix))

    async def attach(self, lease: Lease, value: Value) -> Stored | Rejected:
        """See ``litelease.Client.attach``."""
        return await _in_thread(lambda: self.sync.attach(lease, value))

    async def value(self, name: str) -> Value:
        """See ``litelease.Client.value``."""
        return await _in_thread(lambda: self.sync.value(name))

    async def limit(
        self, lease: Lease, progress_within: Seconds | None = None, max_time: Seconds | None = None
    ) -> Stored | Rejected:
        """See ``litelease.Client.limit``."""
        return await _in_thread(lambda: self.sync.limit(lease, progress_within, max_time))

    async def progress(self, lease: Lease) -> Stored | Rejected:
        """See ``litelease.Client.progress``."""
        return await _in_thread(lambda: self.sync.progress(lease))

    async def checkpoint(self, lease: Lease, value: Value) -> Stored | Rejected:
        """See ``litelease.Client.checkpoint``."""
        return await _in_thread(lambda: self.sync.checkpoint(lease, value))

    async def last_checkpoint(self, name: str) -> Checkpoint | None:
        """See ``litelease.Client.last_checkpoint``."""
        return await _in_thread(lambda: self.sync.last_checkpoint(name))

    async def request(self, name: str, requester: str, within: Seconds) -> Requested | RequestedBy | Rejected:
        """See ``litelease.Client.request``."""
        return await _in_thread(lambda: self.sync.request(name, requester, within))

    async def requested(self, name: str) -> RequestInfo | None:
        """See ``litelease.Client.requested``."""
        return await _in_thread(lambda: self.sync.requested(name))

    async def hand_over(self, lease: Lease, ttl: Seconds) -> Transferred | Rejected:
        """See ``litelease.Client.hand_over``."""
        return await _in_thread(lambda: self.sync.hand_over(lease, ttl))

    def hold(self, name: str, ttl: Seconds = 60.0, *, wait: Seconds = 0.0, owner: str | None = None) -> _Holding[RemoteHeld]:
        """Holds a name while an ``async with`` block runs; see ``litelease.Client.hold``. The block gets the ``RemoteHeld``."""
        return _Holding(lambda stop: RemoteHeld(self.sync, name, in_seconds(ttl), in_seconds(wait), owner, stop))

    async def register(self, pool: str, count: int) -> None:
        """See ``litelease.Client.register``."""
        await _in_thread(lambda: self.sync.register(pool, count))

    def borrow(
        self, pool: str, ttl: Seconds = 60.0, *, wait: Seconds = 0.0, note: str | None = None
    ) -> _Holding[RemoteSlot]:
        """Borrows a slot while an ``async with`` block runs; see ``litelease.Client.borrow``. The block gets the ``RemoteSlot``."""
        return _Holding(lambda stop: RemoteSlot(self.sync, pool, in_seconds(ttl), in_seconds(wait), note, stop))

    def queue(self, name: str) -> ClientQueue:
        """Returns the queue called ``name``."""
        return ClientQueue(self.sync.queue(name))


class ClientQueue:
    """A queue on a server, for asyncio; see ``litelease.RemoteQueue``, which is its ``sync``."""

    def __init__(self, queue: RemoteQueue) -> None:
        self.sync = queue

    async def send(self, body: Value, *, delay: Seconds = 0, key: str | None = None) -> int:
        """See ``litelease.RemoteQueue.send``."""
        return await _in_thread(lambda: self.sync.send(body, delay=delay, key=key))

    async def receive(self, visibility: Seconds, wait: Seconds = 0.0) -> RemoteItem | None:
        """See ``litelease.RemoteQueue.receive``. What a task receives that was cancelled is given back."""
        visibility_s, wait_s = in_ms(self.sync.name, visibility, None, "visibility") / 1000, in_seconds(wait)

        def work(stop: Stop) -> RemoteItem | None:
            return self.sync._receive(visibility_s, wait_s, stop)

        return await _Work(work, lambda item: item.give_back() if item is not None else None).run()

    async def ack(self, receipt: str | RemoteItem) -> Acknowledged | StaleReceipt:
        """See ``litelease.RemoteQueue.ack``."""
        return await _in_thread(lambda: self.sync.ack(receipt))

    async def extend(self, receipt: str | RemoteItem, visibility: Seconds) -> int | None:
        """See ``litelease.RemoteQueue.extend``."""
        return await _in_thread(lambda: self.sync.extend(receipt, visibility))

    async def give_back(self, receipt: str | RemoteItem, *, delay: Seconds = 0, note: str | None = None) -> bool:
        """See ``litelease.RemoteQueue.give_back``."""
        return await _in_thread(lambda: self.sync.give_back(receipt, delay=delay, note=note))

    async def bury(self, receipt: str | RemoteItem, *, note: str | None = None) -> bool:
        """See ``litelease.RemoteQueue.bury``."""
        return await _in_thread(lambda: self.sync.bury(receipt, note=note))

    async def redrive(self, id: int | None = None) -> int:
        """See ``litelease.RemoteQueue.redrive``."""
        return await _in_thread(lambda: self.sync.redrive(id))

    async def discard(self, id: int | None = None) -> int:
        """See ``litelease.RemoteQueue.discard``."""
        return await _in_thread(lambda: self.sync.discard(id))

    async def cancel(self, id_or_key: int | str) -> Cancelled | Leased | NotFound:
        """See ``litelease.RemoteQueue.cancel``."""
        return await _in_thread(lambda: self.sync.cancel(id_or_key))

    async def delete(self) -> bool:
        """See ``litelease.RemoteQueue.delete``."""
        return await _in_thread(lambda: self.sync.delete())

    async def items(self) -> list[ItemInfo]:
        """See ``litelease.RemoteQueue.items``."""
        return await _in_thread(lambda: self.sync.items())

    async def dead(self) -> list[ItemInfo]:
        """See ``litelease.RemoteQueue.dead``."""
        return await _in_thread(lambda: self.sync.dead())

    async def info(self) -> QueueInfo | None:
        """See ``litelease.RemoteQueue.info``."""
        return await _in_thread(lambda: self.sync.info())


async def _in_thread(verb: Callable[[], T]) -> T:
    return await _Work(lambda _: verb()).run()
