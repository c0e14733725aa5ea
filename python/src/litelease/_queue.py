"""Queues: items that are leased to one worker at a time, in the file that the app's data is in."""

from __future__ import annotations

import contextlib
import enum
import functools
import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Generator, Iterable

from . import _library
from ._atomic import at_once
from ._fences import Value
from ._connection import Handle
from ._time import Seconds, in_ms
from ._wait import file_of
from ._types import Acknowledged, Cancelled, Leased, LiteleaseError, NotFound, StaleReceipt, StaleReceiptError, answer

if TYPE_CHECKING:
    from ._scheduler import Scheduler
    from ._worker import Worker, WorkerCounts, WorkItem


class ItemState(enum.Enum):
    """How an item stands."""

    VISIBLE = "visible"
    DELAYED = "delayed"
    LEASED = "leased"
    DEAD = "dead"


@dataclass(frozen=True)
class ItemInfo:
    """An item of a queue, without its body. ``visible_at_ms`` is None if it is dead, or at its last allowed delivery."""

    id: int
    state: ItemState
    attempt: int
    visible_at_ms: int | None
    sent_at_ms: int
    key: str | None
    note: str | None


@dataclass(frozen=True)
class QueueInfo:
    """How many items of a queue are in which state, for how long the oldest visible one has been so, and how often an item
    is delivered before it is dead (0: any number)."""

    queue: str
    visible: int
    delayed: int
    leased: int
    dead: int
    oldest_ms: int | None
    max_attempts: int


class Delivered:
    """What can be done with an item that was delivered, through its queue."""

    queue: Any

    def ack(self) -> Acknowledged | StaleReceipt:
        """Acknowledges the item: it is done, and gone."""
        answer: Acknowledged | StaleReceipt = self.queue.ack(self)
        if answer:
            self._settle("done")
        return answer

    def extend(self, visibility: Seconds | None = None, *, visibility_ms: int | None = None) -> int | None:
        """Prolongs the delivery to at least ``visibility`` from now. Returns its deadline, or None if it is over."""
        deadline_ms: int | None = self.queue.extend(self, visibility, visibility_ms=visibility_ms)
        return deadline_ms

    def give_back(self, *, delay: Seconds = 0, note: str | None = None) -> bool:
        """Makes the item visible again, now or after a delay. Returns whether it was still this worker's."""
        is_given_back: bool = self.queue.give_back(self, delay=delay, note=note)
        # An item that is dead by now stays so: its last receipt would acknowledge it.
        self._settle("given_back" if is_given_back else "lost")
        return is_given_back

    def bury(self, *, note: str | None = None) -> bool:
        """Makes the item dead at once. Returns whether it was still this worker's."""
        is_buried: bool = self.queue.bury(self, note=note)
        if is_buried:
            self._settle("buried")
        return is_buried

    def _settle(self, how: str) -> None:
        """Notes that the item is no longer this worker's concern."""


@dataclass(frozen=True)
class Item(Delivered):
    """An item that was delivered to this worker, until its deadline.

    Dropping it does nothing: the item is delivered again after its deadline. ``receipt`` is what acknowledges, extends, gives
    back or buries it; whoever has it can do so. ``token`` fences effects outside the file: it is larger than that of every
    earlier delivery.
    """

    id: int
    receipt: str = field(repr=False)
    attempt: int
    token: int
    deadline_ms: int
    body: Value = field(repr=False)
    queue: Queue = field(repr=False, compare=False)

    @contextlib.contextmanager
    def finish(self) -> Generator[sqlite3.Connection, None, None]:
        """Begins a short transaction for the effect of this item; at the end of the block acknowledges it and commits.

        So the effect happens at most once, and exactly once if the item is ever acknowledged. If another worker has received
        the item by now, everything is rolled back, with a ``StaleReceiptError``. An exception in the block rolls back, too, and
        goes on. Do the slow work before the block: while it runs, nobody else can write to the file, and what other threads ask
        on this connection waits for up to five seconds.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> _ = db.conn.execute("CREATE TABLE sent (body)")
        >>> _ = db.queue("mail").send("hello")
        >>> with db.queue("mail").receive(visibility=30).finish() as conn:
        ...     _ = conn.execute("INSERT INTO sent VALUES ('hello')")
        >>> db.queue("mail").items()
        []
        """
        block = Finish(self.queue, "finish", (self.receipt,), _check_receipt)
        try:
            try:
                block.begin()
                yield self.queue.conn
                block.end()
                self._settle("done")
            finally:
                block.undo()
        finally:
            block.undo()


class Finish:
    """The transaction of one ``finish`` block, begun and ended by the verbs of this name.

    A signal handler can raise anywhere, in ``undo`` too. So what was begun is recorded by the call that begins it, and ``undo``
    is called twice.
    """

    def __init__(self, handle: Handle, verb: str, values: tuple[object, ...], check: Callable[[Any], None]) -> None:
        self._handle, self._verb, self._values, self._passes = handle, verb, values, check
        self._begun: list[list[tuple[Any, ...]]] = []
        self._ended: list[list[tuple[Any, ...]]] = []

    def begin(self) -> None:
        self._begun.extend(self._called(f"begin_{self._verb}"))
        self._check(answer(self._begun[0][0]))

    def end(self) -> None:
        if self._handle._session.is_inherited:
            self._begun.clear()  # the transaction is the parent's
            return
        if not self._handle.conn.in_transaction:
            raise LiteleaseError(
                "the transaction was ended inside the block, as executescript() and `with conn:` do it: what was written before "
                "that is stored, and the item is not acknowledged"
            )
        end = self._called(f"end_{self._verb}")
        at_once(functools.partial(self._ended.extend, end), self._begun.clear)
        self._check(answer(self._ended[0][0]))

    def undo(self) -> None:
        """Rolls back what was begun and not ended. Calling it twice is harmless."""
        if self._begun and not self._handle._session.is_inherited:
            with contextlib.suppress(sqlite3.Error, LiteleaseError):  # what was raised in the block matters more
                undo = functools.partial(_library.call, self._handle._session, None, "undo_finish")
                at_once(undo, self._begun.clear)

    def _called(self, verb: str) -> Any:
        """Returns an iterator that calls a verb: no bytecode runs between the call and the record of it."""
        values = ((value,) for value in (self._handle._session, False, verb, *self._values))
        return map(_library.call, *values)

    def _check(self, answer: Any) -> None:
        try:
            self._passes(answer)
        except LiteleaseError:
            self._begun.clear()
            raise


def _check_receipt(answer: Acknowledged | StaleReceipt) -> None:
    if isinstance(answer, StaleReceipt):
        raise StaleReceiptError(answer.reason)


class Queue(Handle):
    """A queue in the main database of a ``sqlite3`` connection. It exists from its first use; its name is any text.

    An item goes to one worker at a time. It is hidden until a deadline, which the worker can extend; it is gone when the worker
    acknowledges it, and is delivered again if no worker does. Sending joins an open transaction, so an item and the row that it
    is about are stored together or not at all. Times are in seconds or a ``timedelta``, or in whole milliseconds where the
    argument ends in ``_ms``.

    >>> db = Litelease(sqlite3.connect(":memory:"))
    >>> db.bootstrap()
    >>> mail = Queue(db.conn, "mail")
    >>> mail.send("hello")
    1
    >>> item = mail.receive(visibility=30)
    >>> item.body, item.attempt
    ('hello', 1)
    >>> item.ack()
    Acknowledged()
    >>> item.ack()
    StaleReceipt(reason=<StaleReason.GONE: 'gone'>)
    """

    def __init__(self, connection: sqlite3.Connection, name: str, is_joined: bool = False) -> None:
        super().__init__(connection, is_joined)
        self.name = name

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    def joining(self) -> Queue:
        """Returns the same verbs for use inside transactions of yours only: each raises ``NotInTransaction`` if none is open."""
        return Queue(self.conn, self.name, True)

    def set_max_attempts(self, max_attempts: int) -> None:
        """Sets how often an item is delivered before it is dead: 20 unless set, 0 for any number. Deliveries under way keep the
        limit that they were made with."""
        self._row("queue", self.name, max_attempts)

    def send(
        self, body: Value, *, delay: Seconds | None = None, delay_ms: int | None = None, key: str | None = None,
        now_ms: int | None = None,
    ) -> int:
        """Sends an item, and returns its id. The body is any SQLite value: None, an int, a float, a str or bytes.

        While an item of the queue with the same ``key`` (1 to 200 bytes) is neither acknowledged nor dead, this returns the id
        of that one and changes nothing.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> [db.queue("mail").send("hello", key="order 17", delay=60) for _ in range(2)]
        [1, 1]
        """
        return int(self._row("send", self.name, body, _delay(self.name, delay, delay_ms), key, now_ms)[0])

    def receive(
        self, visibility: Seconds | None = None, *, visibility_ms: int | None = None, now_ms: int | None = None
    ) -> Item | None:
        """Receives the item that was visible longest, if there is one. No other worker gets it within ``visibility``.

        Inside a transaction, begin to work only after COMMIT: after a rollback the receipt is stale.
        """
        items = self.receive_many(1, visibility, visibility_ms=visibility_ms, now_ms=now_ms)
        return items[0] if items else None

    def receive_many(
        self, count: int, visibility: Seconds | None = None, *, visibility_ms: int | None = None, now_ms: int | None = None
    ) -> list[Item]:
        """Receives up to ``count`` items in one commit.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> mail = db.queue("mail")
        >>> mail.send("a"), mail.send("b")
        (1, 2)
        >>> items = mail.receive_many(10, visibility=30)
        >>> [item.body for item in items]
        ['a', 'b']
        >>> mail.ack_many(items)
        [Acknowledged(), Acknowledged()]
        """
        visibility_ms = in_ms(self.name, visibility, visibility_ms, "visibility")
        return [self._item(*row) for row in self._rows("receive_many", self.name, visibility_ms, count, now_ms)]

    def delivery(self, receipt: str) -> Item | None:
        """Returns the item of a receipt, for a program that has only the text. None if the receipt is stale."""
        found = self._row("delivery", receipt)
        return self._item(found[0], receipt, *found[1:]) if found else None

    def ack(self, receipt: str | Item) -> Acknowledged | StaleReceipt:
        """Acknowledges an item: it is done, and gone. ``StaleReceipt`` is falsy, and says why not.

        Tokens decide, not clocks: the newest receipt passes even after its deadline, if nobody received the item since.
        """
        return self._answer(Acknowledged, StaleReceipt, "ack_many", _receipt(receipt))

    def ack_many(self, receipts: Iterable[str | Item]) -> list[Acknowledged | StaleReceipt]:
        """Acknowledges items in one commit. One that is stale does not keep the others from passing."""
        return [answer(row) for row in self._rows("ack_many", *map(_receipt, receipts))]

    def extend(
        self, receipt: str | Item, visibility: Seconds | None = None, *, visibility_ms: int | None = None,
        now_ms: int | None = None,
    ) -> int | None:
        """Prolongs a live delivery to at least ``visibility`` from now, and returns its deadline. None if it is over: it is never
        revived."""
        visibility_ms = in_ms(self.name, visibility, visibility_ms, "visibility")
        extended = self._row("extend", _receipt(receipt), visibility_ms, now_ms)
        return int(extended[0]) if extended else None

    def give_back(
        self, receipt: str | Item, *, delay: Seconds | None = None, delay_ms: int | None = None, note: str | None = None,
        now_ms: int | None = None,
    ) -> bool:
        """Makes an item visible again, now or after a delay; at its last allowed attempt it is dead instead. ``note`` is a text
        for operators of at most 1,000 bytes. Returns whether the receipt passed and the item was not dead already."""
        return bool(self._row("give_back", _receipt(receipt), _delay(self.name, delay, delay_ms), note, now_ms)[0])

    def bury(self, receipt: str | Item, *, note: str | None = None, now_ms: int | None = None) -> bool:
        """Makes an item dead at once. Returns whether the receipt passed."""
        return bool(self._row("bury", _receipt(receipt), note, now_ms)[0])

    def redrive(self, id: int | None = None, *, now_ms: int | None = None) -> int:
        """Revives the dead items, or one of them, and returns how many. One whose key another item uses by now stays dead.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> mail = db.queue("mail")
        >>> _ = mail.send("hello")
        >>> mail.receive(visibility=30).bury(note="no such customer")
        True
        >>> [(item.id, item.note) for item in mail.dead()]
        [(1, 'no such customer')]
        >>> mail.redrive()
        1
        """
        return int(self._row("redrive", self.name, id, now_ms)[0])

    def discard(self, id: int | None = None, *, now_ms: int | None = None) -> int:
        """Deletes the dead items, or one of them, and returns how many."""
        return int(self._row("discard", self.name, id, now_ms)[0])

    def cancel(self, id_or_key: int | str, *, now_ms: int | None = None) -> Cancelled | Leased | NotFound:
        """Removes an item that nobody is working on. ``Leased`` and ``NotFound`` are falsy.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> _ = db.queue("mail").send("hello", key="order 17")
        >>> db.queue("mail").cancel("order 17")
        Cancelled()
        """
        cancelled: Cancelled | Leased | NotFound = answer(self._row("cancel", self.name, id_or_key, now_ms))
        return cancelled

    def delete(self) -> bool:
        """Deletes the queue with everything in it. Returns whether there was one."""
        return bool(self._row("queue_delete", self.name)[0])

    def info(self, *, now_ms: int | None = None) -> QueueInfo | None:
        """Returns how the queue stands, if there is one. Looks at every item, and takes no write lock."""
        found = self._row("queue_info", self.name, now_ms)
        return QueueInfo(*found) if found else None

    def next_visible(self) -> int | None:
        """Returns when the next item is visible, or since when it has been, in Unix milliseconds. Takes no write lock."""
        found = self._row("next_visible", self.name)
        return int(found[0]) if found else None

    def items(self, *, now_ms: int | None = None) -> list[ItemInfo]:
        """Lists the items without their bodies, the dead ones first and then in the order of their delivery."""
        return [ItemInfo(row[0], ItemState(row[1]), *row[2:]) for row in self._rows("items", self.name, now_ms)]

    def dead(self, *, now_ms: int | None = None) -> list[ItemInfo]:
        """Lists the dead items, without their bodies."""
        return [item for item in self.items(now_ms=now_ms) if item.state is ItemState.DEAD]

    def worker(
        self, visibility: Seconds = 30.0, *, first_delay: Seconds = 1.0, longest_delay: Seconds = 3600.0, once: bool = False,
        until_empty: bool = False,
    ) -> Worker:
        """Returns an iterable of items to work on, each extended in the background while the loop's body runs.

        An item is acknowledged when the body is done, unless the body did something else with it. If the loop is left, by an
        exception or by ``break``, the item is given back, hidden for ``first_delay`` and twice as long after each further
        attempt, up to ``longest_delay``, less up to a half. ``once`` stops after one item, ``until_empty`` when nothing is
        visible, and ``Worker.stop()`` before the next item.
        """
        from ._worker import Worker

        return Worker(self, visibility, first_delay, longest_delay, once, until_empty)

    def work(
        self, handler: Callable[[WorkItem], object], visibility: Seconds = 30.0, *, first_delay: Seconds = 1.0,
        longest_delay: Seconds = 3600.0, once: bool = False, until_empty: bool = False,
    ) -> WorkerCounts:
        """Calls ``handler`` with each item, like ``worker(...).run(handler)``. If it raises, the item is given back with the
        error as its note, and the work goes on."""
        worker = self.worker(
            visibility, first_delay=first_delay, longest_delay=longest_delay, once=once, until_empty=until_empty
        )
        return worker.run(handler)

    def every(self, name: str, schedule: str, body: Value, *, tz: str | None = None) -> Scheduler:
        """Returns a scheduler that sends an item at each tick of a schedule, in the commit of the tick: one per tick, exactly,
        however many processes have the schedule. Start it."""
        from ._scheduler import Scheduler

        scheduler = Scheduler(file_of(self, "every"))
        scheduler.send(name, schedule, self.name, body, tz=tz)
        return scheduler

    def _item(self, id: int, receipt: str, attempt: int, token: int, deadline_ms: int, body: Value) -> Item:
        return Item(id, receipt, attempt, token, deadline_ms, body, self)


def _receipt(given: str | Item) -> str:
    return given.receipt if isinstance(given, Item) else given


def _delay(name: str, delay: Seconds | None, delay_ms: int | None) -> int:
    return 0 if delay is None and delay_ms is None else in_ms(name, delay, delay_ms, "delay")
