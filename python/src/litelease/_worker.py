"""Workers: they receive the items of a queue, extend each delivery while its handler works, and acknowledge it or give it back.

The library does that on a connection of its own. Handlers and ``finish`` blocks use the caller's.
"""

from __future__ import annotations

import inspect
import sqlite3
from dataclasses import dataclass, field
from typing import Callable, Generator

from . import _library
from ._held import LossEvent, number_of
from ._queue import Item, Queue
from ._time import Seconds, in_ms, in_seconds
from ._types import InvalidTtl, LiteleaseError, Loss, Lost
from ._wait import DatabaseFile, file_of

_LEFT_OPEN = (
    "a transaction was left open: it was rolled back, and the item given back; write its effect in `with item.finish() as conn:`"
)


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

    _native: object = field(repr=False, compare=False)

    @property
    def lost(self) -> LossEvent:
        """The event that is set when the item can no longer be trusted to be this worker's."""
        return LossEvent(self._native)

    def check(self) -> None:
        """Raises ``Lost`` once the item can no longer be trusted to be this worker's: stop working on it then. Whatever you do,
        ``finish()`` rolls back if another worker has the item."""
        over = _library.held_check(self._native)
        if over is not None and over[0] != "Settled":
            raise Lost(f"{self.queue.name} item {self.id}", Loss(*over))

    def _settle(self, how: str) -> None:
        _library.item_settled(self._native, how)


class Worker:
    """An iterable of items to work on. Made by ``Queue.worker``; one loop at a time.

    >>> import litelease, tempfile
    >>> db = litelease.open(tempfile.mkdtemp() + "/app.sqlite3")
    >>> _ = db.queue("mail").send("hello")
    >>> for item in db.queue("mail").worker(visibility=30, until_empty=True):
    ...     item.check()
    ...     print(item.body, item.attempt)
    hello 1
    """

    def __init__(
        self, queue: Queue, visibility: Seconds, first_delay: Seconds, longest_delay: Seconds, once: bool, until_empty: bool
    ) -> None:
        path = file_of(queue, "worker")
        _library.find_library()
        if _library.window(in_seconds(visibility)) is None:
            raise InvalidTtl(f"{queue.name!r}: the visibility is too short to be extended: give more than 0.1 s")
        times = ((visibility, "visibility"), (first_delay, "first_delay"), (longest_delay, "longest_delay"))
        self._times = tuple(in_ms(queue.name, time, None, what) for time, what in times)
        if not 0 <= self._times[1] <= self._times[2]:
            raise ValueError("first_delay must be 0 or more, and not longer than longest_delay")
        self.queue, self.counts = queue, WorkerCounts()
        self._file, self._ends = DatabaseFile(path), (once, until_empty)
        self._is_stopped = False

    def stop(self) -> None:
        """Ends the loop before the next item. Any thread and any signal handler may call it."""
        self._is_stopped = True

    def run(self, handler: Callable[[WorkItem], object]) -> WorkerCounts:
        """Calls ``handler`` with each item. If it raises an ``Exception``, the item is given back with the error as its note, and
        the work goes on. Any other exception, such as ``KeyboardInterrupt``, gives the item back and goes on its way.

        >>> import litelease, tempfile
        >>> db = litelease.open(tempfile.mkdtemp() + "/app.sqlite3")
        >>> _ = db.queue("mail").send("hello")
        >>> db.queue("mail").work(lambda item: 1 / 0, once=True)
        WorkerCounts(done=0, given_back=1, buried=0, lost=0)
        >>> db.queue("mail").items()[0].note
        'ZeroDivisionError: division by zero'
        """
        odd = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if not callable(handler) or any(is_odd(handler) for is_odd in odd):
            raise TypeError(f"the handler must be a function that is done when it returns, got {handler!r}")
        native = self._begin()
        try:
            while (item := self._next(native)) is not None:
                note: str | None = "the worker was interrupted"
                try:
                    note = _call(handler, item)
                finally:
                    self._end(native, note)
            return self.counts
        finally:
            _library.work_over(native)

    def __iter__(self) -> Generator[WorkItem, None, None]:
        native = self._begin()
        try:
            while (item := self._next(native)) is not None:
                note: str | None = "the loop was left"
                try:
                    yield item
                    note = None
                finally:
                    is_left_open = self._end(native, note)
                if is_left_open:
                    raise LiteleaseError(_LEFT_OPEN)
        finally:
            _library.work_over(native)

    def _begin(self) -> object:
        """Begins the work. It ends when what this returns is freed, at the latest."""
        queue = self.queue
        self._file.check()
        number = number_of(queue.conn)
        return _library.work(queue._session, self._file.path, queue.name, *self._times, *self._ends, number, lambda: self._is_stopped)

    def _next(self, native: object) -> WorkItem | None:
        """Waits for an item. None if there is none to be waited for."""
        self.queue.conn.total_changes  # raises if it was closed
        found = _library.work_next(native)
        if found is None:
            return None
        id, receipt, attempt, token, deadline_ms, body, delivery = found
        return WorkItem(id, receipt, attempt, token, deadline_ms, body, self.queue, delivery)

    def _end(self, native: object, note: str | None) -> bool:
        """Acknowledges an item, or gives it back with a note. Returns whether its handler has left a transaction open."""
        is_left_open = not self.queue._session.is_inherited and self._tidy()
        if is_left_open:
            note = note or "a transaction was left open"
        how = _library.work_end(native, note and note.encode(errors="replace").decode())
        setattr(self.counts, how, getattr(self.counts, how) + 1)
        return is_left_open

    def _tidy(self) -> bool:
        """Rolls back what a handler has left open. It would block everybody, and what is in it was never finished."""
        while True:
            try:
                return bool(_library.call(self.queue._session, None, "tidy")[0][0])
            except sqlite3.ProgrammingError:
                return False  # the handler has closed it
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):  # a finish block of another thread
                    raise


def _call(handler: Callable[[WorkItem], object], item: WorkItem) -> str | None:
    """Calls a handler, and returns its error as a text."""
    try:
        handler(item)
    except Exception as error:
        kind = type(error).__name__
        try:
            return f"{kind}: {error}"
        except Exception:  # it cannot even say what it is
            return kind
    return None
