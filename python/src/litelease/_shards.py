"""Shards: the members of a group share a number of leases evenly, and move them when members come and go.

A member is a session, so its shards end together. What it claims, requests and gives up is decided by the library, in the
transaction that does it. A thread looks and passes events on.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Generator, Iterator, Union

from . import _fork, _library
from ._leases import Litelease
from ._sessions import Rows, SessionHold, SessionName, place_of
from ._time import Seconds, in_ms, in_seconds
from ._types import Checkpoint, LiteleaseError, Loss, Lost, Stale, Transferred, answer
from ._wait import clock, nap

# How often open requests are repeated: several times before they would lapse.
_REPEAT_EVERY = 3.0
# The shortest and the longest time between two looks.
_PAUSE = 0.01
_SLOW_POLL = 0.25


class InvalidShards(LiteleaseError):
    """A group of shards, or a member, that cannot be. Nothing was written."""


class ShardCount(LiteleaseError):
    """Live members of the group share another number of shards, which is ``count``. Nothing was written."""

    def __init__(self, group: str, count: int) -> None:
        super().__init__(
            f"the members of {group!r} share {count} shards: join with that count, or let all of them leave"
        )
        self.group, self.count = group, count


@dataclass(frozen=True)
class ShardAssigned:
    """The shard is this member's, under this token. Go on from the last checkpoint, whoever stored it."""

    shard: int
    token: int
    checkpoint: Checkpoint | None


@dataclass(frozen=True)
class ShardRequested:
    """Another member needs the shard: finish, store a checkpoint, and ``hand_over``. From ``until_ms`` (Unix time) on it is not
    renewed any more."""

    shard: int
    until_ms: int


@dataclass(frozen=True)
class ShardLost:
    """The shard is no longer this member's: stop."""

    shard: int
    reason: Loss


ShardEvent = Union[ShardAssigned, ShardRequested, ShardLost]


class Shards:
    """A member of a group that shares shards. Made by ``Shards.join``. Iterating over it waits for events without end.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/app.sqlite3"
    >>> with Shards.join(path, "orders", 2, "worker-7", ttl=10) as shards:
    ...     for _ in range(2):
    ...         event = shards.next(timeout=60)
    ...         shards.checkpoint(event.shard, 17)
    ...         print(event)
    ShardAssigned(shard=0, token=1, checkpoint=None)
    ShardAssigned(shard=1, token=1, checkpoint=None)
    """

    def __init__(
        self, group: str, count: int, session: SessionHold, drain_ms: int
    ) -> None:
        """Use ``Shards.join``."""
        self.group, self.count = group, count
        self._work = _Work(group, count, session, drain_ms)
        self._session = session
        # None says that there may be something else to tell.
        self._events: queue.SimpleQueue[ShardEvent | None] = self._work.events
        threading.Thread(target=self._work.run, name="litelease shards", daemon=True).start()

    @staticmethod
    def join(
        db: Litelease | str | os.PathLike[str],
        group: str,
        count: int,
        id: str,
        ttl: Seconds = 10.0,
        *,
        drain: Seconds = 30.0,
    ) -> Shards:
        """Joins a group of members that share ``count`` shards. The member is a session under ``GROUP/member/ID``, and shard
        number k is the lease ``GROUP/shard/k``. Others get ``drain`` seconds to finish their work on a shard that this one needs.

        Raises ``HoldTimeout`` if another process is this member, ``ShardCount`` if a live member has joined with another count,
        and ``InvalidShards`` if group or id is empty or contains a slash, or there is no shard.
        """
        path, conn = place_of(db, "Shards.join")
        drain_ms = in_ms(group, drain, None, "drain")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as checking:
            told = Litelease(checking)._row("shard_member", group, count, id)
        if told[0] == "Error":
            raise InvalidShards(told[2])
        session = SessionHold(path, told[1], in_seconds(ttl), False, conn)
        try:
            no = session.change(lambda _: None, "shard_join", group, count)
            if no:
                raise ShardCount(group, int(no[0][1]))
            return Shards(group, count, session, drain_ms)
        except BaseException:
            session.release()
            raise

    @property
    def owner(self) -> str:
        """The owner text of the member and of its shards."""
        return self._session.owner

    @property
    def held(self) -> list[int]:
        """The shards that are this member's, by number."""
        return sorted(shard for shard, name in list(self._work.held.items()) if not name._reasons)

    def next(self, timeout: Seconds | None = None) -> ShardEvent | None:
        """Waits for the next event, for at most ``timeout`` seconds; then returns None. Once the member is lost, and all events
        were returned, raises ``Lost``."""
        deadline = None if timeout is None else clock() + in_seconds(timeout)
        while True:
            over = self._work.over
            left = 0.0 if over is not None else 1.0 if deadline is None else max(0.0, min(1.0, deadline - clock()))
            try:
                event = self._events.get(timeout=left) if left else self._events.get_nowait()
            except queue.Empty:
                if over is not None:
                    raise Lost(over.name, over.reason) from None
                if deadline is not None and clock() >= deadline:
                    return None
                continue
            if event is not None:
                return event

    def __iter__(self) -> Iterator[ShardEvent]:
        while (event := self.next()) is not None:
            yield event

    def check(self, shard: int) -> None:
        """Raises ``Lost`` if a shard is not this member's, or can no longer be trusted to be."""
        self._name(shard).check()

    def checkpoint(self, shard: int, value: None | int | float | str | bytes) -> None:
        """Stores a checkpoint of a shard under its token: where the next member goes on. Raises ``Lost`` if the shard is no
        longer this member's."""
        name = self._name(shard)
        name.check()
        with self._work.using() as db:
            told = db.checkpoint(name.name, name.token, value)
        if isinstance(told, Stale):
            raise Lost(name.name, Loss("Superseded", "superseded by a newer token"))

    def hand_over(self, shard: int) -> bool:
        """Hands a shard over to the member that has requested it, in one commit. Returns whether one had. Store the last
        checkpoint before."""
        name = self._name(shard)
        ttl_ms = in_ms(name.name, self._session._ttl, None)

        def hand_over(db: Litelease) -> bool:
            told = answer(db._row("hand_over_shard", name.name, name.owner, ttl_ms, None, name.token))
            return isinstance(told, Transferred)

        return self._end(shard, name, self._session.end_name(name, hand_over))

    def release(self, shard: int) -> bool:
        """Gives a shard up, for whichever member comes first: it may be this one again. Returns whether it was this member's."""
        name = self._name(shard)
        return self._end(shard, name, name.release())

    def leave(self) -> None:
        """Leaves the group: releases the member and all its shards in one commit."""
        if os.getpid() != self._session._pid:
            return
        self._work.is_stopped = True
        self._session.release()

    close = leave

    def __enter__(self) -> Shards:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.leave()
        except (sqlite3.Error, LiteleaseError):
            # What went wrong in the block matters more; the leases end by themselves.
            if error is None:
                raise

    def __del__(self) -> None:
        work = getattr(self, "_work", None)
        if work is not None:
            work.is_stopped = True  # and then nobody refers to the session any more, so the keeper releases it

    def _name(self, shard: int) -> SessionName:
        name = self._work.held.get(shard)
        if name is None:
            raise Lost(f"{self.group}/shard/{shard}", Loss("ReleasedElsewhere", "it is not this member's"))
        return name

    def _end(self, shard: int, name: SessionName, has_ended: bool) -> bool:
        if has_ended and self._work.held.get(shard) is name:
            self._work.held.pop(shard, None)
            self._work.told.pop(shard, None)
        return has_ended


class _Work:
    """What the thread of a member does. It has no reference to the member, so that one that is dropped ends it."""

    def __init__(self, group: str, count: int, session: SessionHold, drain_ms: int) -> None:
        self._group, self._count, self._session, self._drain_ms = group, count, session, drain_ms
        self.held: dict[int, SessionName] = {}
        # The requests that were passed on, by shard.
        self.told: dict[int, int] = {}
        self.events: queue.SimpleQueue[ShardEvent | None] = queue.SimpleQueue()
        self.over: Lost | None = None
        self.is_stopped = False
        self._changed_at: float | None = None

    @contextlib.contextmanager
    def using(self) -> Generator[Litelease, None, None]:
        conn = sqlite3.connect(self._session._path, isolation_level=None, check_same_thread=False)
        try:
            yield Litelease(conn)
        finally:
            conn.close()

    def run(self) -> None:
        """Keeps the member's share, until it leaves or is lost."""
        path, pid = self._session._path, os.getpid()
        waiter, longest = _library.waiter(path), min(_SLOW_POLL, self._session._ttl / 4)
        while not self.is_stopped and os.getpid() == pid:
            heard = _library.heard(waiter)
            try:
                with _fork.held_off(self):
                    self._step()
            except Lost as lost:
                self._end_all(lost)
                return
            except (sqlite3.Error, LiteleaseError):
                pass  # the keeper goes on, and the trust window decides
            nap(waiter, heard, longest, lambda: self.is_stopped)
            threading.Event().wait(_PAUSE)

    def _step(self) -> None:
        if self.is_stopped:
            return
        self._session.check()
        self._notice_losses()
        since = float("inf") if self._changed_at is None else clock() - self._changed_at
        # A look that takes no write lock: members must not wake one another for ever.
        kept, values = self._session._kept, (self._group, self._count, self._session.owner, int(since >= _REPEAT_EVERY))
        rows = kept.read(lambda db: db._rows("shard_look", *values, *self.held)) if kept is not None else None
        if rows is None:
            return
        for shard, until_ms in rows[1:]:
            if shard in self.held and self.told.get(shard) != until_ms:
                self.told[shard] = until_ms
                self.events.put(ShardRequested(shard, until_ms))
        if rows[0][0] or since >= self._session._ttl / 4:
            self._changed_at = clock()
            # It tries again soon, and others must not wait for this one.
            self._session.change(self._assign, "shard_step", self._group, self._count, self._drain_ms, patience=0.0)

    def _assign(self, granted: Rows) -> None:
        for shard, name, _, token, _, *checkpoint in granted:
            held = self._session.names[name] = self.held[shard] = SessionName(self._session, name, token)
            self.told.pop(shard, None)
            self.events.put(ShardAssigned(shard, held.token, Checkpoint(*checkpoint) if checkpoint else None))

    def _notice_losses(self) -> None:
        for shard, name in list(self.held.items()):
            # What was released or handed over is no longer among the session's names.
            if not name._look(clock()) and self.held.get(shard) is name:
                self._lose(shard, name)

    def _lose(self, shard: int, name: SessionName) -> None:
        self.held.pop(shard, None)
        self.told.pop(shard, None)
        if not name.was_given_up:
            self.events.put(ShardLost(shard, name._reasons[0]))

    def _end_all(self, lost: Lost) -> None:
        for shard, name in sorted(self.held.items()):
            name._look(clock())
            self._lose(shard, name)
        self.over = lost
        self.events.put(None)


