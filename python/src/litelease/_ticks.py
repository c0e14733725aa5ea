"""Ticks: the instants that a schedule plans, each run once, although every process has the schedule."""

from __future__ import annotations

import sqlite3  # pyright: ignore[reportUnusedImport]  # the examples use it
from typing import Any

from ._connection import Handle
from ._time import Seconds, in_ms
from ._types import (
    AlreadyTaken, Busy, Finished, First, InFuture, Lease, StaleTick, TickAcquired, TickChanged, TickInfo, TickState, answer,
)


class Ticks(Handle):
    """The verbs on ticks of ``Litelease``."""

    def tick(self, name: str, tick_ms: int, *, now_ms: int | None = None) -> First | AlreadyTaken | InFuture:
        """Begins and finishes a tick in one step: ``First``, which is true, for exactly one of all callers. In a transaction
        the tick is part of it, so what else is written there happens once per tick, exactly.

        >>> import litelease
        >>> db = litelease.Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> [bool(db.tick("digest", 86_400_000)) for _worker in range(3)]
        [True, False, False]
        """
        told: First | AlreadyTaken | InFuture = answer(self._row("tick", name, tick_ms, now_ms))
        return told

    def claim_tick(
        self, name: str, owner: str, ttl: Seconds | None = None, *, tick_ms: int, attempts: int | None = None,
        ttl_ms: int | None = None, now_ms: int | None = None, schedule: str | None = None,
    ) -> TickAcquired | Busy | AlreadyTaken | InFuture:
        """Grants a tick to ``owner``, unless it is taken or the name has a live lease. Finish it with ``finish_tick``. One that
        is open although its holder is gone is granted again, ``attempts`` times in all: 5, or what the most careful claimant
        gives.

        >>> import litelease
        >>> db = litelease.Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> claimed = db.claim_tick("nightly", "a", ttl=30, tick_ms=60_000)
        >>> db.finish_tick(claimed.lease)
        Finished(is_repeated=False)
        >>> db.claim_tick("nightly", "b", ttl=30, tick_ms=60_000)
        AlreadyTaken(tick_ms=60000, state=<TickState.DONE: 'done'>)
        """
        values = (name, owner, in_ms(name, ttl, ttl_ms), tick_ms, attempts, now_ms, schedule)
        told: TickAcquired | Busy | AlreadyTaken | InFuture = answer(self._row("claim_tick", *values))
        return told

    def finish_tick(self, lease: Lease, *, failed: bool = False, now_ms: int | None = None) -> Finished | StaleTick:
        """Makes the tick of a grant final, and ends the grant. It passes as long as no newer token of the name exists, expired
        or not."""
        if not hasattr(lease, "token"):
            raise TypeError(f"finish_tick() needs the lease that claim_tick() returned, got {lease!r}")
        return self._answer(Finished, StaleTick, "finish_tick", lease.name, lease.token, int(failed), now_ms)

    def skip_ticks(
        self, name: str, until_ms: int | None = None, *, breaks: bool = False, now_ms: int | None = None
    ) -> TickChanged | Busy:
        """Skips every tick up to now, or up to ``until_ms``: it pauses a schedule, ends a pause, and cures ``TickAhead``. While
        a holder is at work on such a tick it is ``Busy``; with ``breaks`` it ends that holder's lease in the same commit."""
        return self._answer(TickChanged, Busy, "tick_skip", name, until_ms, int(breaks), now_ms)

    def tick_again(self, name: str, *, now_ms: int | None = None) -> TickChanged | Busy | None:
        """Opens the newest tick once more, with all its attempts. None if the name never had one."""
        told: TickChanged | Busy | None = answer(self._row("tick_again", name, now_ms))
        return told

    def forget_tick(self, name: str, *, now_ms: int | None = None) -> TickChanged | Busy | None:
        """Deletes the newest tick of a schedule that is no more. None if the name never had one."""
        told: TickChanged | Busy | None = answer(self._row("tick_forget", name, now_ms))
        return told

    def newest_tick(self, name: str, *, now_ms: int | None = None) -> TickInfo | None:
        """Returns the newest tick of ``name``, if it has one. Takes no write lock."""
        return next((info for info in self.ticks(now_ms=now_ms) if info.name == name), None)

    def ticks(self, *, now_ms: int | None = None) -> list[TickInfo]:
        """Lists the newest tick of every name, by name. Takes no write lock."""
        rows: list[tuple[Any, ...]] = self._rows("ticks", now_ms)
        return [TickInfo(row[0], row[1], TickState(row[2]), *row[3:]) for row in rows]
