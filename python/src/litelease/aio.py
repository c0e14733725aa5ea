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
import functools
import inspect
import os
import sqlite3
import threading
from concurrent.futures import CancelledError
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Coroutine, Generic, TypeVar, Union, cast

from ._client import Client as _Client
from ._client_hold import RemoteHeld, RemoteSlot
from ._client_queue import RemoteItem, RemoteQueue
from ._client_ticks import claim_tick, tick_wish
from ._election import Leader
from ._fences import Value
from ._held import Held, HeldSlot, Holding, number_of
from ._leases import Litelease
from ._leases import open as open_file
from ._pools import Pools
from ._scheduler import Scheduler as _Scheduler
from ._connection import Handle
from ._time import Seconds, in_ms, in_seconds
from ._types import Acquired, AlreadyTaken, Busy, InFuture, Lease, LiteleaseError, RequestInfo, TickAcquired
from ._wait import DatabaseFile, claim_at, file_of

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")

__all__ = ["Client", "ClientQueue", "Database", "Scheduler", "campaign", "claim_wait", "hand_over", "hold", "hold_slot", "requested"]

T = TypeVar("T")
C = TypeVar("C")
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
        except GeneratorExit:  # the loop is gone, so no task will ask any more
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
            self._done.exception()  # a cancelled task does not ask for it

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


def _holding(
    make: Callable[Concatenate[str, Union[sqlite3.Connection, None], Stop, P], H], text: str
) -> Callable[Concatenate[Database, P], _Holding[H]]:
    """Makes the function for asyncio that holds what a class of holds does, with its arguments from the name on."""

    def hold(database: Database, /, *values: P.args, **options: P.kwargs) -> _Holding[H]:
        place, told = _Place(database, "hold"), _told(cast(Any, options.pop("on_requested", None)))
        if told is not None:
            options["on_requested"] = told
        return _Holding(lambda stop: make(place.path(), place.conn, stop, *values, **options))

    first, others = next(iter(inspect.signature(hold).parameters.values())), inspect.signature(make).parameters.values()
    hold.__doc__, hold.__signature__ = text, inspect.Signature([first, *list(others)[3:]])  # type: ignore[attr-defined]
    return hold


hold = _holding(
    Held,
    """Holds a name while an ``async with`` block runs; see ``Litelease.hold``. The block gets the ``Held``. ``on_requested`` is
    called by the event loop.""",
)
hold_slot = _holding(
    HeldSlot,
    """Holds a slot of a pool while an ``async with`` block runs; see ``Pools.hold``. The block gets the ``HeldSlot``.""",
)


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
    place, told = _Place(database, "campaign"), _told(on_requested)

    def work(stop: Stop) -> Leader:
        return Leader(
            place.path(), place.conn, stop, name, ttl, value=value, wait=wait, owner=owner,
            progress_within=progress_within, max_time=max_time, request=request, on_requested=told,
        )

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


async def claim_wait(database: Database, name: str, owner: str, ttl: Seconds, wait: Seconds) -> Acquired | Busy:
    """Claims a name and waits for it; see ``Litelease.claim_wait``. What a task is granted that was cancelled is released."""
    place = _Place(database, "claim_wait")

    def work(stop: Stop) -> Acquired | Busy:
        return claim_at(place.path(), name, owner, ttl, wait, stop=stop)

    def undo(answer: Acquired | Busy) -> None:
        if isinstance(answer, Acquired):
            with DatabaseFile(place.path()).opened() as db:
                db.release(answer.lease)

    return await _Work(work, undo).run()


class Scheduler(_Scheduler):
    """A scheduler whose jobs may be coroutine functions, which run in the event loop: see ``litelease.Scheduler``. A job that is
    a plain function runs in its thread. ``tick.finish()`` waits for the file's write lock in the loop: keep other writers short.

        async with aio.Scheduler("app.sqlite3") as scheduler: ...
    """

    _may_be_coroutine = True
    _loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Starts the threads of the jobs, from a coroutine."""
        self._loop = asyncio.get_running_loop()
        super().start()

    async def stop(self) -> None:  # type: ignore[override]
        """Begins no further tick, and waits for the jobs under way."""
        self._begin_to_stop()
        await _Work(lambda _: _Scheduler.stop(self)).run()

    async def run(self) -> None:  # type: ignore[override]
        """Runs the jobs until it is cancelled, or ``stop()`` is called."""
        async with self:
            await _Work(lambda stop: self._wait(stop)).run()

    def _wait(self, stop: Stop) -> None:
        while not stop() and not self._stopped.wait(0.05):
            pass

    async def __aenter__(self) -> Scheduler:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _call(self, function: Callable[..., Any], given: tuple[Any, ...]) -> None:
        if not inspect.iscoroutinefunction(function):
            function(*given)
        elif self._loop.is_closed():
            raise RuntimeError("the event loop of the scheduler has ended")
        else:
            asyncio.run_coroutine_threadsafe(function(*given), self._loop).result()

    def _is_over(self, error: BaseException) -> bool:
        return isinstance(error, CancelledError) or self._loop.is_closed()


class _Beside(Generic[C]):
    """The methods of a client for asyncio, which call those of ``sync`` in threads."""

    def __init__(self, sync: C) -> None:
        self.sync = sync


def _verb(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[_Beside[C], P], Coroutine[Any, Any, T]]:
    """Makes the method for asyncio of a method of ``sync``."""

    @functools.wraps(method)
    async def verb(self: _Beside[C], /, *values: P.args, **options: P.kwargs) -> T:
        return await _Work(lambda _: method(self.sync, *values, **options)).run()

    return verb


class Client(_Beside[_Client]):
    """A client of ``litelease serve`` for asyncio: the methods are those of ``litelease.Client``, which is its ``sync``. A claim,
    a hold and a receive that are cancelled while they wait give back what they were granted."""

    def __init__(
        self, url: str, access_key: str | os.PathLike[str] | None = None, *, ca_file: str | os.PathLike[str] | None = None,
        retry_for: Seconds = 10.0,
    ) -> None:
        super().__init__(_Client(url, access_key, ca_file=ca_file, retry_for=retry_for))

    async def claim(self, name: str, owner: str, ttl: Seconds) -> Acquired | Busy:
        """See ``litelease.Client.claim``."""
        return await self.claim_wait(name, owner, ttl, 0.0)

    async def claim_wait(self, name: str, owner: str, ttl: Seconds, wait: Seconds) -> Acquired | Busy:
        """See ``litelease.Client.claim_wait``."""
        ttl_s, wait_s = in_ms(name, ttl, None) / 1000, in_seconds(wait)

        def work(stop: Stop) -> Acquired | Busy:
            return self.sync._claim(name, owner, ttl_s, wait_s, stop=stop)

        return await _Work(work, lambda told: self.sync.release(told.lease) if isinstance(told, Acquired) else None).run()

    async def claim_tick(
        self, name: str, owner: str, ttl: Seconds, *, tick_ms: int, wait: Seconds = 0.0, attempts: int | None = None,
        schedule: str | None = None,
    ) -> TickAcquired | Busy | AlreadyTaken | InFuture:
        """See ``litelease.Client.claim_tick``."""
        times, tick = (in_ms(name, ttl, None) / 1000, in_seconds(wait)), tick_wish(tick_ms, attempts, schedule)

        def work(stop: Stop) -> TickAcquired | Busy | AlreadyTaken | InFuture:
            return claim_tick(self.sync, name, owner, times, tick, stop)

        return await _Work(work, lambda told: self.sync.release(told.lease) if isinstance(told, Acquired) else None).run()

    finish_tick = _verb(_Client.finish_tick)
    tick = _verb(_Client.tick)
    skip_ticks = _verb(_Client.skip_ticks)
    tick_again = _verb(_Client.tick_again)
    forget_tick = _verb(_Client.forget_tick)
    install_schedule = _verb(_Client.install_schedule)
    newest_tick = _verb(_Client.newest_tick)
    ticks = _verb(_Client.ticks)
    renew = _verb(_Client.renew)
    release = _verb(_Client.release)
    transfer = _verb(_Client.transfer)
    break_lease = _verb(_Client.break_lease)
    inspect = _verb(_Client.inspect)
    leases = _verb(_Client.leases)
    queues = _verb(_Client.queues)
    attach = _verb(_Client.attach)
    value = _verb(_Client.value)
    limit = _verb(_Client.limit)
    progress = _verb(_Client.progress)
    checkpoint = _verb(_Client.checkpoint)
    last_checkpoint = _verb(_Client.last_checkpoint)
    request = _verb(_Client.request)
    requested = _verb(_Client.requested)
    hand_over = _verb(_Client.hand_over)
    register = _verb(_Client.register)

    def hold(self, name: str, ttl: Seconds = 60.0, *, wait: Seconds = 0.0, owner: str | None = None) -> _Holding[RemoteHeld]:
        """Holds a name while an ``async with`` block runs; see ``litelease.Client.hold``. The block gets the ``RemoteHeld``."""
        return _Holding(lambda stop: RemoteHeld(self.sync, name, in_seconds(ttl), in_seconds(wait), owner, stop))

    def borrow(
        self, pool: str, ttl: Seconds = 60.0, *, wait: Seconds = 0.0, note: str | None = None
    ) -> _Holding[RemoteSlot]:
        """Borrows a slot while an ``async with`` block runs; see ``litelease.Client.borrow``. The block gets the ``RemoteSlot``."""
        return _Holding(lambda stop: RemoteSlot(self.sync, pool, in_seconds(ttl), in_seconds(wait), note, stop))

    def queue(self, name: str) -> ClientQueue:
        """Returns the queue called ``name``."""
        return ClientQueue(self.sync.queue(name))


class ClientQueue(_Beside[RemoteQueue]):
    """A queue on a server, for asyncio: the methods are those of ``litelease.RemoteQueue``, which is its ``sync``."""

    async def receive(self, visibility: Seconds, wait: Seconds = 0.0) -> RemoteItem | None:
        """See ``litelease.RemoteQueue.receive``. What a task receives that was cancelled is given back."""
        visibility_s, wait_s = in_ms(self.sync.name, visibility, None, "visibility") / 1000, in_seconds(wait)

        def work(stop: Stop) -> RemoteItem | None:
            return self.sync._receive(visibility_s, wait_s, stop)

        return await _Work(work, lambda item: item.give_back() if item is not None else None).run()

    send = _verb(RemoteQueue.send)
    ack = _verb(RemoteQueue.ack)
    extend = _verb(RemoteQueue.extend)
    give_back = _verb(RemoteQueue.give_back)
    bury = _verb(RemoteQueue.bury)
    redrive = _verb(RemoteQueue.redrive)
    discard = _verb(RemoteQueue.discard)
    cancel = _verb(RemoteQueue.cancel)
    delete = _verb(RemoteQueue.delete)
    items = _verb(RemoteQueue.items)
    dead = _verb(RemoteQueue.dead)
    info = _verb(RemoteQueue.info)
