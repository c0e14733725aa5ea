"""Pools of numbered slots, through the extension."""

from __future__ import annotations

import sqlite3
from typing import Any

from . import _library
from ._leases import _in_ms
from ._session import call, session_of, verb
from ._types import (
    Borrowed,
    ExpiredOnArrival,
    InvalidCount,
    InvalidText,
    InvalidTtl,
    LeaseInfo,
    NoSuchPool,
    NotBootstrapped,
    SchemaMismatch,
    Slot,
    TimeOverflow,
    TokenExhausted,
)

# An error of ours is a plain one to SQLite; its words tell which.
_ERRORS = {
    "there is no such pool": NoSuchPool,
    "a pool has 0 to": InvalidCount,
    "of a borrow has": InvalidText,
    "the ttl must be at least": InvalidTtl,
    "ends after the last representable time": TimeOverflow,
    "no larger token exists": TokenExhausted,
    "no lease table yet": NotBootstrapped,
    "is not as Litelease makes it": SchemaMismatch,
}


class Pools:
    """Numbered slots in the main database of a ``sqlite3`` connection.

    It needs the extension in the connection, and loads it if it is not there yet; a Python that cannot load
    extensions gets a ``sqlite3.NotSupportedError`` that says so. ``ttl`` is in seconds, or in whole milliseconds as ``ttl_ms``.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.conn = connection
        self._session = session_of(connection)
        self._is_joined = False
        call(self._session, None, self._load)

    def joining(self) -> Pools:
        """Returns the same verbs for use inside transactions of yours only: each raises ``NotInTransaction`` if none is open."""
        joined = Pools(self.conn)
        joined._is_joined = True
        return joined

    @verb
    def register(self, id: str, count: int) -> None:
        """Makes a pool of ``count`` slots, or changes how many it has. If it gets smaller, borrowers keep their slots."""
        self._call("litelease_pool(?, ?)", id, count)

    @verb
    def borrow(
        self,
        id: str,
        ttl: float | None = None,
        *,
        ttl_ms: int | None = None,
        now_ms: int | None = None,
        note: str | None = None,
        key: str | None = None,
    ) -> Borrowed | None:
        """Borrows the lowest free slot, if there is one. While the lease of an earlier borrow with the same ``key``
        lives, that one is the answer again."""
        ttl_ms = _in_ms("a slot", ttl, ttl_ms)
        lease = self._call("litelease_borrow(?, ?, ?, ?, ?)", id, ttl_ms, now_ms, note, key)
        if lease is None:
            return None
        slot = self._slot(id, lease)
        if slot is None:
            raise ExpiredOnArrival(LeaseInfo("a slot", "", 0, 0))  # and somebody else has it already
        return Borrowed(lease, slot)

    @verb
    def slot(self, id: str, lease: str) -> Slot | None:
        """Returns the slot of a lease, also after its expiry. Returns None once it was returned or lent again."""
        return self._slot(id, lease)

    @verb
    def return_slot(self, id: str, lease: str, *, now_ms: int | None = None) -> bool:
        """Returns a slot to its pool. The answer is whether the borrower still had it; returning twice is harmless."""
        return bool(self._call("litelease_return(?, ?, ?)", id, lease, now_ms))

    @verb
    def renew(
        self,
        id: str,
        lease: str,
        ttl: float | None = None,
        *,
        ttl_ms: int | None = None,
        now_ms: int | None = None,
    ) -> Slot | None:
        """Prolongs a live lease on a slot under the same token. Returns None if the lease is over."""
        ttl_ms = _in_ms("a slot", ttl, ttl_ms)
        token = self._call("litelease_pool_renew(?, ?, ?, ?)", id, lease, ttl_ms, now_ms)
        return None if token is None else self._slot(id, lease)

    @verb
    def slots(self, id: str, *, now_ms: int | None = None) -> list[Slot]:
        """Lists the slots that are lent out, by position."""
        rows = self._ask("SELECT position, token, expires_at_ms, note FROM litelease_slots(?, ?)", id, now_ms)
        return [Slot(*row) for row in rows]

    @verb
    def delete(self, id: str) -> bool:
        """Deletes a pool and ends its leases. Returns whether there was such a pool. Its tokens are
        never given again."""
        return bool(self._call("litelease_pool_delete(?)", id))

    def _load(self) -> None:
        try:
            self._session.cursor().execute("SELECT litelease_version()")
        except sqlite3.OperationalError:
            _library.load_into(self._session, "pools need the extension")

    def _slot(self, id: str, lease: str) -> Slot | None:
        rows = self._ask("SELECT position, token, expires_at_ms FROM litelease_slot(?, ?)", id, lease)
        return Slot(*rows[0]) if rows else None

    def _call(self, call: str, *values: object) -> Any:
        return self._ask(f"SELECT {call}", *values)[0][0]

    def _ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._session.cursor().execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            for words, kind in _ERRORS.items():
                if words in str(error):
                    raise kind(str(error)) from error
            raise
