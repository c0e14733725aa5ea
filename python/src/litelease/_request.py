"""Requests for a lease: the requester's, which is repeated while it waits, and the ear of a holder."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
import weakref
from typing import TYPE_CHECKING, Callable

from . import _fork, _library
from ._types import Acquired, Busy, LiteleaseError, Requested, RequestInfo, answer

if TYPE_CHECKING:
    from ._hold import Held
    from ._leases import Litelease
    from ._wait import More

# How often a request is repeated: several times before it would lapse.
_REPEAT_EVERY = 3.0
# How long the ear of a holder waits at most before it looks again.
_LONGEST_NAP = 0.5


class Asking:
    """The request of a waiter, while it waits."""

    def __init__(self, db: Litelease, name: str, owner: str, ttl_ms: int, more: More) -> None:
        self._db, self._name, self._owner, self._ttl_ms, self._more = db, name, owner, ttl_ms, more
        # The token of the grant that was asked for last, and when.
        self._asked: int | None = None
        self._asked_at = 0.0

    def follow(self, busy: Busy, now: float) -> Acquired | Busy:
        """Makes or repeats the request, and takes what was handed over: that is granted, whatever the claim was answered.
        Otherwise it is still busy."""
        db, name, owner, current = self._db, self._name, self._owner, busy.current
        if current.owner == owner:
            # Trusted from this renewal on, and not from when it was handed over.
            values = (name, owner, self._ttl_ms, current.token, self._asked, *self._more.rides())
            accepted = db._row("accept_with", *values)
            handed: Acquired | Busy = answer(accepted) if accepted else busy
            return handed
        if self._asked == current.token and now < self._asked_at + _REPEAT_EVERY:
            return busy
        token = self._ask(db.requested(name))
        if token is not None:
            self._asked, self._asked_at = token, now
        return busy

    def _ask(self, found: RequestInfo | None) -> int | None:
        """Returns the token of the grant that is asked for, if it is by this requester."""
        if found is not None and found.requester == self._owner:
            repeated = self._db._row("repeat_request", self._name, self._owner)
            return int(repeated[0]) if repeated else None
        if found is not None or self._more.request_ms is None:
            return None  # somebody else asks, or nobody was asked to ask
        told = self._db.request(self._name, self._owner, within_ms=self._more.request_ms)
        return told.token if isinstance(told, Requested) else None


def withdraw(db: Litelease, name: str, requester: str) -> None:
    """Withdraws the request of a waiter that has given up. If this fails, it lapses by itself."""
    with contextlib.suppress(sqlite3.Error, LiteleaseError):
        db.withdraw_request(name, requester)


class Ear:
    """Tells a holder when somebody asks for its lease, in a thread of its own that ends with the hold."""

    def __init__(self, path: str, held: Held, tell: Callable[[RequestInfo], object]) -> None:
        self._held, self._waiter = weakref.ref(held), _library.waiter(path)
        self._name, self._token, self._tell, self._kept = held.name, held.token, tell, held._kept

    def listen(self) -> None:
        """Listens until the hold is over."""
        told: RequestInfo | None = None
        while self._is_held():
            # What is heard from here on happened after we looked.
            heard, found = _library.heard(self._waiter), told
            try:
                found = self._look()
            except (sqlite3.Error, LiteleaseError):
                time.sleep(_LONGEST_NAP / 10)
            if found != told:
                told = found
                if found is not None and found.token == self._token:
                    # A callback that is slow or fails must not keep the next request from being
                    # heard.
                    name = "litelease request"
                    threading.Thread(target=self._tell, args=(found,), name=name, daemon=True).start()
            self._nap(heard)

    def _look(self) -> RequestInfo | None:
        kept = self._kept
        with _fork.held_off(self):
            return None if kept is None else kept.read(lambda db: db.requested(self._name))

    def _nap(self, heard: int) -> None:
        end = time.monotonic() + _LONGEST_NAP
        while (left := end - time.monotonic()) > 0 and self._is_held():
            if _library.listen(self._waiter, heard, left):
                return

    def _is_held(self) -> bool:
        held = self._held()
        return held is not None and not held._is_released and not held._reasons
