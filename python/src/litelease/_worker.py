"""Workers: they receive the items of a queue, extend each delivery while its handler works, and acknowledge it or give it back."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from dataclasses import dataclass, field
from typing import Callable, Generator, Sequence

from . import _keeper, _library
from ._hold import _LATE, Hold
from ._keeper import Keeper, Kept
from ._leases import Litelease
from ._queue import Item, Queue
from ._time import Seconds, in_ms, in_seconds
from ._types import CommitUnknown, ExpiredOnArrival, InvalidTtl, LiteleaseError, Lost, StaleReason, StaleReceipt, answer
from ._wait import clock, file_of

# How long a worker waits at most before it looks for items again.
_LONGEST_NAP = 0.5
# How long it waits when the database is locked, full or broken.
_TROUBLE_PAUSE = 0.25
_MAX_NOTE = 1000
_LEFT_OPEN = (
    "a transaction was left open: it was rolled back, and the item given back; write its effect in `with item.finish() as conn:`"
)


def nap(waiter: object, heard: int, seconds: float, is_stopped: Callable[[], bool]) -> None:
    """Waits until the bell of the file rings, because a process has sent or given back, or something else was freed; at most
    so long."""
    end = clock() + seconds
    while (left := end - clock()) > 0 and not _library.listen(waiter, heard, left) and not is_stopped():
        pass


@dataclass
class WorkerCounts:
    """What became of the items of a worker. Lost ones went to another worker, or will, because they could not be extended."""

    done: int = 0
    given_back: int = 0
    buried: int = 0
    lost: int = 0


@dataclass(frozen=True)
class WorkItem(Item):
    """An item that a worker extends in the background until it is acknowledged, given back or buried."""

    _hold: Delivery = field(repr=False, compare=False)

    @property
    def lost(self) -> threading.Event:
        """The event that is set when the item can no longer be trusted to be this worker's."""
        return self._hold.lost

    def check(self) -> None:
        """Raises ``Lost`` once the item can no longer be trusted to be this worker's: stop working on it then. Whatever you do,
        ``finish()`` rolls back if another worker has the item."""
        if self._hold.settled[:1] == ["lost"]:
            raise Lost(self._hold.name, _LATE)
        if not self._hold.settled:
            self._hold.check()

    def _settle(self, how: str) -> None:
        self._hold.settled.append(how)
        self._hold.release()


class Worker:
    """An iterable of items to work on. Made by ``Queue.worker``; one loop at a time.

    >>> import tempfile
    >>> db = Litelease(sqlite3.connect(tempfile.mkdtemp() + "/app.sqlite3"))
    >>> db.bootstrap()
    >>> _ = db.queue("mail").send("hello")
    >>> for item in db.queue("mail").worker(visibility=30, until_empty=True):
    ...     item.check()
    ...     print(item.body, item.attempt)
    hello 1
    """

    def __init__(
        self,
        queue: Queue,
        visibility: Seconds,
        first_delay: Seconds,
        longest_delay: Seconds,
        once: bool,
        until_empty: bool,
    ) -> None:
        path = file_of(queue, "worker")
        self._ttl = in_seconds(visibility)
        window = _library.window(self._ttl)
        if window is None:
            raise InvalidTtl(f"{queue.name!r}: the visibility is too short to be extended: give more than 0.1 s")
        self._window = window
        self._visibility_ms = in_ms(queue.name, visibility, None, "visibility")
        self._first_ms = in_ms(queue.name, first_delay, None, "first_delay")
        self._longest_ms = in_ms(queue.name, longest_delay, None, "longest_delay")
        if not 0 <= self._first_ms <= self._longest_ms:
            raise ValueError("first_delay must be 0 or more, and not longer than longest_delay")
        self.queue, self.counts = queue, WorkerCounts()
        self._path, self._file = path, _keeper.file_of(path)
        self._waiter = _library.waiter(path)
        self._once, self._until_empty = once, until_empty
        self._is_stopped = False

    def stop(self) -> None:
        """Ends the loop before the next item. Any thread and any signal handler may call it."""
        self._is_stopped = True

    def run(self, handler: Callable[[WorkItem], object]) -> WorkerCounts:
        """Calls ``handler`` with each item. If it raises an ``Exception``, the item is given back with the error as its note, and
        the work goes on. Any other exception, such as ``KeyboardInterrupt``, gives the item back and goes on its way.

        >>> import tempfile
        >>> db = Litelease(sqlite3.connect(tempfile.mkdtemp() + "/app.sqlite3"))
        >>> db.bootstrap()
        >>> _ = db.queue("mail").send("hello")
        >>> db.queue("mail").work(lambda item: 1 / 0, once=True)
        WorkerCounts(done=0, given_back=1, buried=0, lost=0)
        >>> db.queue("mail").items()[0].note
        'ZeroDivisionError: division by zero'
        """
        while (item := self._next()) is not None:
            note: str | None = "the worker was interrupted"
            try:
                note = _call(handler, item)
            finally:
                self._end(item, note)
        return self.counts

    def __iter__(self) -> Generator[WorkItem, None, None]:
        while (item := self._next()) is not None:
            note: str | None = "the loop was left"
            try:
                yield item
                note = None
            finally:
                is_left_open = self._end(item, note)
            if is_left_open:
                raise LiteleaseError(_LEFT_OPEN)

    def _next(self) -> WorkItem | None:
        """Waits for an item. None if there is none to be waited for."""
        while not self._is_stopped:
            if _keeper.file_of(self._path) != self._file:
                raise LiteleaseError(f"{self._path} was moved, deleted or replaced: open it again")
            try:
                # What is heard from here on happened after we looked.
                heard, start = _library.heard(self._waiter), clock()
                item, nap_s = self._look()
            except (sqlite3.OperationalError, CommitUnknown, ExpiredOnArrival) as error:
                if not _may_pass(error):
                    raise
                time.sleep(_TROUBLE_PAUSE)
                continue
            if item is not None:
                self._is_stopped = self._once
                return self._keep(item, start)
            if nap_s > 0:
                if self._until_empty:
                    return None
                nap(self._waiter, heard, min(nap_s, _LONGEST_NAP), lambda: self._is_stopped)
        return None

    def _look(self) -> tuple[Item | None, float]:
        """Receives an item, or tells for how many seconds there is none."""
        # Asked without the write lock: an idle worker must not be in anybody's way.
        visible_at_ms = self.queue.next_visible()
        if visible_at_ms is None:
            return None, _LONGEST_NAP
        left_ms = visible_at_ms - time.time_ns() // 1_000_000
        if left_ms > 0:
            return None, left_ms / 1000
        return self.queue.receive(visibility_ms=self._visibility_ms), 0.0

    def _keep(self, item: Item, start: float) -> WorkItem:
        hold = Delivery(self.queue, item, self._ttl, self._window, self._path, start)
        made = WorkItem(item.id, item.receipt, item.attempt, item.token, item.deadline_ms, item.body, item.queue, hold)
        hold.begin()
        return made

    def _end(self, item: WorkItem, note: str | None) -> bool:
        """Acknowledges an item, or gives it back with a note. Returns whether its handler has left a transaction open."""
        is_left_open = not self.queue._session.is_inherited and self._tidy()
        if is_left_open:
            note = note or "a transaction was left open"
        settled = item._hold.settled
        try:
            if not settled:
                settled.append(self._insist(item, note))
        finally:
            item._hold.release()
        name = settled[0].replace(" ", "_")
        setattr(self.counts, name, getattr(self.counts, name) + 1)
        return is_left_open

    def _tidy(self) -> bool:
        """Rolls back what a handler has left open. It would block everybody, and what is in it was never finished."""
        while True:
            try:
                return bool(_library.call(self.queue._session, None, "tidy")[0][0])
            except sqlite3.OperationalError as error:
                if not _may_pass(error):  # a finish block of another thread
                    raise

    def _insist(self, item: WorkItem, note: str | None) -> str:
        """Tries as long as the item may be this worker's."""
        while True:
            try:
                return self._settle(item, note)
            except (sqlite3.OperationalError, CommitUnknown) as error:
                if not _may_pass(error):
                    raise
            if not item._hold._look(clock()):
                return "lost"
            time.sleep(_TROUBLE_PAUSE)

    def _settle(self, item: WorkItem, note: str | None) -> str:
        if note is None:
            told = self.queue.ack(item)
            # Gone: acknowledged in another way, or by an attempt whose answer was lost.
            return "lost" if isinstance(told, StaleReceipt) and told.reason is not StaleReason.GONE else "done"
        values = (item.receipt, self._first_ms, self._longest_ms, item.attempt, item.token, _cut(note))
        return "given back" if self.queue._row("give_back_failed", *values)[0] else "lost"


class Delivery(Hold):
    """A delivery as the keeper knows it: a hold whose owner is the receipt and whose ttl is the visibility."""

    def __init__(
        self, queue: Queue, item: Item, ttl: float, window: tuple[float, float, float], path: str, start: float
    ) -> None:
        self.name, self.token, self._receipt = f"{queue.name} item {item.id}", item.token, item.receipt
        self.lost = threading.Event()
        # What became of the item.
        self.settled: list[str] = []
        self._reasons: list[str] = []
        self._ttl = ttl
        self._trusted_for, self._interval, self._pause = window
        self._path, self._pid, self._file, self._conn = path, os.getpid(), _keeper.file_of(path), queue.conn
        self._is_released = self._ended = False
        self._trusted_until, self._due = start + self._trusted_for, start + self._interval

    def begin(self) -> None:
        """Has the keeper extend it."""
        self._kept = Kept(self._path, self, _deliveries)
        self._kept.keep()

    def release(self) -> None:
        """Stops extending it. Its worker ends the delivery itself."""
        self._is_released = True
        if self._kept is not None and os.getpid() == self._pid:
            self._kept.leave()

    def _grant(self) -> tuple[str, str, float, int | None]:
        return self.name, self._receipt, self._ttl, None

    def _giver(self) -> Callable[[Litelease], object]:
        receipt = self._receipt
        return lambda db: db.queue("").give_back(receipt, note="the worker ended")


class Deliveries(Keeper):
    """Extends the deliveries of a process."""

    thread_name = "litelease deliveries"

    def _ask(self, db: Litelease, batch: list[Hold]) -> Sequence[object]:
        grants = [held._grant() for held in batch]
        values = [value for name, receipt, ttl, _ in grants for value in (receipt, in_ms(name, ttl, None))]
        with _keeper.begun(db.conn, batch):
            rows = db._rows("extend_all", *values)
        return [None if row[0] == "Extended" else answer(row) for row in rows]

    def _drop(self, kept: Kept, held: Hold | None) -> None:
        """An item that nobody refers to any more is delivered again after its deadline."""
        self._kept.pop(kept, None)
        if held is not None:
            held._refused("its connection was closed")


_deliveries = Deliveries()


def _begin_anew() -> None:
    """In a forked child the thread is not there, and the deliveries are the parent's."""
    global _deliveries
    _deliveries = Deliveries()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def _call(handler: Callable[[WorkItem], object], item: WorkItem) -> str | None:
    """Calls a handler, and returns its error as a text."""
    try:
        handler(item)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _may_pass(error: Exception) -> bool:
    """Checks whether trying again can help."""
    return isinstance(error, LiteleaseError) or any(words in str(error) for words in ("locked", "disk is full", "disk I/O"))


def _cut(note: str) -> str:
    return note.encode(errors="replace")[:_MAX_NOTE].decode(errors="ignore").replace("\0", " ")
