"""Pools of numbered slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._connection import Handle
from ._time import Seconds, in_ms
from ._types import Borrowed, Slot
from ._wait import file_of, never

if TYPE_CHECKING:
    from ._held import HeldSlot


class Pools(Handle):
    """Numbered slots in the main database of a ``sqlite3`` connection.

    ``ttl`` is in seconds or a ``timedelta``, or in whole milliseconds as ``ttl_ms``.
    """

    def joining(self) -> Pools:
        """Returns the same verbs for use inside transactions of yours only: each raises ``NotInTransaction`` if none is open."""
        return Pools(self.conn, True)

    def register(self, id: str, count: int) -> None:
        """Makes a pool of ``count`` slots, or changes how many it has. If it gets smaller, borrowers keep their slots."""
        self._row("pool", id, count)

    def borrow(
        self, id: str, ttl: Seconds | None = None, *, ttl_ms: int | None = None, now_ms: int | None = None,
        note: str | None = None, key: str | None = None,
    ) -> Borrowed | None:
        """Borrows the lowest free slot, if there is one. While the lease of an earlier borrow with the same ``key``
        lives, that one is the answer again."""
        lent = self._row("borrow", id, in_ms("a slot", ttl, ttl_ms), now_ms, note, key)
        return Borrowed(lent[0], Slot(*lent[1:])) if lent else None

    def slot(self, id: str, lease: str) -> Slot | None:
        """Returns the slot of a lease, also after its expiry. Returns None once it was returned or lent again."""
        found = self._row("slot", id, lease)
        return Slot.listed(*found) if found else None

    def return_slot(self, id: str, lease: str, *, now_ms: int | None = None) -> bool:
        """Returns a slot to its pool. The answer is whether the borrower still had it; returning twice is harmless."""
        return bool(self._row("return", id, lease, now_ms)[0])

    def renew(
        self, id: str, lease: str, ttl: Seconds | None = None, *, ttl_ms: int | None = None, now_ms: int | None = None
    ) -> Slot | None:
        """Prolongs a live lease on a slot under the same token. Returns None if the lease is over."""
        found = self._row("pool_renew", id, lease, in_ms("a slot", ttl, ttl_ms), now_ms)
        return Slot(*found) if found else None

    def keep(self, id: str, lease: str, *, now_ms: int | None = None) -> bool:
        """Turns a live lease on a slot into one that never expires. Returns whether it was live. ``return_slot`` ends it."""
        return bool(self._row("keep", id, lease, now_ms)[0])

    def free_kept(self, id: str, position: int, token: int) -> bool:
        """Frees a kept slot that ``slots`` has shown, for operators. Returns whether it was kept under this token."""
        return bool(self._row("free_kept", id, position, token)[0])

    def hold(self, id: str, ttl: Seconds = 60.0, *, wait: Seconds = 0.0, note: str | None = None) -> HeldSlot:
        """Borrows a slot and keeps it alive in the background until the block ends.

        Waits up to ``wait`` seconds for a free one; then it raises ``NoFreeSlot``.
        """
        from ._held import HeldSlot

        return HeldSlot(file_of(self, "hold"), self.conn, never, id, ttl, wait=wait, note=note)

    def slots(self, id: str, *, now_ms: int | None = None) -> list[Slot]:
        """Lists the slots that are lent out, by position."""
        return [Slot.listed(row[0], row[1], row[2], row[4]) for row in self._rows("slots", id, now_ms)]

    def delete(self, id: str) -> bool:
        """Deletes a pool and ends its leases. Returns whether there was such a pool. Its tokens are
        never given again."""
        return bool(self._row("pool_delete", id)[0])
