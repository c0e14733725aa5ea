"""Shards: the members of a group share a number of leases evenly, and move them when members come and go.

A member is a session, so its shards end together. What it claims, requests and gives up is decided and done by the library.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from typing import Any, Iterator, Union

from . import _library
from ._held import kept_ms, locked, number_of
from ._leases import Litelease
from ._sessions import place_of
from ._time import Seconds, in_ms, in_seconds
from ._types import Checkpoint, HoldTimeout, Lease, Loss, Lost, ShardCount


@dataclass(frozen=True)
class ShardAssigned:
    """The shard is this member's, under this token. Go on from the last checkpoint, whichever member stored it."""

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

    def __init__(self, group: str, count: int, native: object, owner: str) -> None:
        """Use ``Shards.join``."""
        self.group, self.count, self.owner, self._native = group, count, owner, native

    @staticmethod
    def join(
        db: Litelease | str | os.PathLike[str], group: str, count: int, id: str, ttl: Seconds = 10.0, *, drain: Seconds = 30.0
    ) -> Shards:
        """Joins a group of members that share ``count`` shards. The member is a session under ``GROUP/member/ID``, and shard
        number k is the lease ``GROUP/shard/k``. Others get ``drain`` seconds to finish their work on a shard that this one needs.

        Raises ``HoldTimeout`` if another process is this member, ``ShardCount`` if a live member has joined with another count,
        and ``InvalidShards`` if group or id is empty or contains a slash, or there is no shard.
        """
        (path, conn), times = place_of(db, "Shards.join"), (kept_ms(group, in_seconds(ttl)), in_ms(group, drain, None, "drain"))
        _library.find_library()
        joined = _library.shards_join(path, group, count, id, *times, number_of(conn), None)
        if isinstance(joined, int):
            raise ShardCount(group, joined)
        if len(joined) == 3:
            raise HoldTimeout(Lease(f"{group}/member/{id}", *joined))
        return Shards(group, count, *joined)

    @property
    def held(self) -> list[int]:
        """The shards that are this member's, by number."""
        held = _library.shards_held(self._native)
        return [] if isinstance(held, tuple) else held

    def next(self, timeout: Seconds | None = None) -> ShardEvent | None:
        """Waits for the next event, for at most ``timeout`` seconds; then returns None. Once the member is lost, and all events
        were returned, raises ``Lost``."""
        event = _answer(_library.shards_next(self._native, float("inf") if timeout is None else in_seconds(timeout)))
        if event is None:
            return None
        shard, what = event
        if isinstance(what, int):
            return ShardRequested(shard, what)
        if len(what) == 3:
            return ShardLost(shard, Loss(*what[:2]))
        return ShardAssigned(shard, what[0], Checkpoint(*what[1]) if what[1] else None)

    def __iter__(self) -> Iterator[ShardEvent]:
        while (event := self.next()) is not None:
            yield event

    def check(self, shard: int) -> None:
        """Raises ``Lost`` if a shard is not this member's, or can no longer be trusted to be."""
        _answer(_library.shards_check(self._native, shard))

    def checkpoint(self, shard: int, value: None | int | float | str | bytes) -> None:
        """Stores a checkpoint of a shard under its token: where the next member goes on. Raises ``Lost`` if the shard is no
        longer this member's."""
        _answer(_library.shards_checkpoint(self._native, shard, value))

    def hand_over(self, shard: int) -> bool:
        """Hands a shard over to the member that has requested it, in one commit. Returns whether one had. Store the last
        checkpoint before: from the call on the shard is not trusted, unless there was no request."""
        return bool(_answer(_library.shards_hand_over(self._native, shard)))

    def release(self, shard: int) -> bool:
        """Gives a shard up, for whichever member comes first: it may be this one again. Returns whether it was this member's."""
        _answer(_library.shards_release(self._native, shard))
        return True

    def leave(self) -> None:
        """Leaves the group: releases the member and all its shards in one commit. A member that was lost is left alone."""
        lost = _library.shards_leave(self._native)
        if lost is not None and lost[1] in ("BlockedByWriter", "CannotRenew"):
            raise locked(lost[0])

    close = leave

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self.leave()
        except sqlite3.Error:
            # What went wrong in the block matters more; the keeper goes on trying.
            if error is None:
                raise
        finally:
            _library.shards_leave(self._native)  # if an exception has come before


def _answer(answer: tuple[Any, ...] | int | None) -> Any:
    """Returns an answer of the library. Raises ``Lost`` if it is the name, the kind and the text of a loss."""
    if isinstance(answer, tuple) and len(answer) == 3:
        raise Lost(answer[0], Loss(*answer[1:]))
    return answer
