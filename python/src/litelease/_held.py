"""Held leases: handles on the holds of the library, whose thread renews them on a connection of its own.

A handle that is freed ends its hold, also if an exception comes at any moment.
"""

from __future__ import annotations

import itertools
import sqlite3
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from . import _library
from ._atomic import start_thread
from ._fences import Value
from ._connection import Session, session_of
from ._time import Seconds, in_ms, in_seconds, optional_ms
from ._types import HoldTimeout, InvalidTtl, Lease, Loss, Lost, NoFreeSlot, NotRequested, Reason, Rejected, RequestInfo
from ._wait import DatabaseFile, Stopped, as_native

Me = TypeVar("Me", bound="Holding")

NOT_REQUESTED = "{!r}: nobody has asked for the lease: hand it to an owner by name with transfer, or release it"
REPLACED = Loss("FileReplaced", "the database file was moved, deleted or replaced")
# How a hold ends without being lost.
_ENDS = ("Released", "HandedOver", "Settled")
# How often a holder that listens looks for a request. The library has heard of it before.
_LISTEN_EVERY = 0.05
_numbers = itertools.count(1)
# Why a limit refuses to renew a lease that stands.
_LIMITS = {
    Reason.NO_PROGRESS: Loss("NoProgress", "no progress was made within the time that it has"),
    Reason.TIME_IS_UP: Loss("TimeIsUp", "the time that it may be held is up"),
    Reason.REQUESTED: Loss("Requested", "it was requested, and the time to hand it over is up"),
}


def loss(token: int, rejected: Rejected) -> Loss:
    """Returns what a rejection means for a holder that has not released its lease."""
    reason, current, newest = rejected.reason, rejected.current, rejected.newest
    if reason in _LIMITS:
        return _LIMITS[reason]
    kinds = {Reason.RELEASED: "ReleasedElsewhere", Reason.EXPIRED: "Expired", Reason.SUPERSEDED: "Superseded"}
    # The row may know less than the holder: then it is another file, or an older one.
    kind = kinds.get(reason, "FileReplaced")
    if current is not None and current.token != token:
        kind = "Superseded"
    elif reason is Reason.SUPERSEDED and newest == token + 1:
        # A break leaves a token that grew by one, and no owner.
        kind = "Broken"
    return Loss(kind, reason.value)


def number_of(conn: sqlite3.Connection | None) -> int | None:
    """Returns the number by which the library knows the holds of a connection. It ends them when the connection closes."""
    if conn is None:
        return None
    session: Session = session_of(conn)
    conn.total_changes  # raises if it was closed
    if session.number is None:
        number = next(_numbers)
        # SQLite frees it when the connection closes, by any way.
        conn.create_function(f"litelease_closing_{number}", 0, _library.closer(number))  # type: ignore[arg-type]
        session.number = number
    return session.number


def kept_ms(name: str, ttl: float, max_time_ms: int | None = None) -> int:
    """Converts the ttl of what is to be kept alive."""
    ttl_ms, first = in_ms(name, ttl, None), ttl if max_time_ms is None else min(ttl, max_time_ms / 1000)
    if _library.window(first) is None:
        raise InvalidTtl(f"{name!r}: a ttl of {first} s is too short to be kept alive: give more than 0.1 s")
    return ttl_ms


def locked(name: str) -> sqlite3.OperationalError:
    """Says that a name could not be released yet."""
    return sqlite3.OperationalError(f"database is locked: the keeper goes on trying to release {name!r}")


class LossEvent:
    """Tells from any thread whether a hold is lost, like a ``threading.Event``. It keeps no hold alive."""

    def __init__(self, native: object) -> None:
        self._event = _library.event(native)

    def is_set(self) -> bool:
        """Checks whether it is lost."""
        over = _library.event_check(self._event)
        return over is not None and over[0] not in _ENDS

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is lost, for at most ``timeout`` seconds. Returns whether it is."""
        return bool(_library.event_wait(self._event, float("inf") if timeout is None else timeout))


class Holding:
    """What the library keeps alive, by its handle."""

    name: str
    owner: str
    token: int
    lost: LossEvent
    _native: object = None

    def _take(self, answer: Any, whose: str = "") -> None:
        """Takes over what the library has granted; raises ``HoldTimeout`` if it has not, and ``Lost`` if ``whose`` is."""
        if answer is None:
            raise Stopped
        if len(answer) == 3:
            raise HoldTimeout(Lease(self.name, *answer))
        if len(answer) == 2:
            raise Lost(whose, Loss(*answer))
        self._native, self.owner, self.token, self._first_expiry_ms = answer
        self.lost = LossEvent(self._native)

    @property
    def lease(self) -> Lease:
        """The grant as the verbs take it, with the expiry of the last renewal."""
        expires_at_ms = _library.held_state(self._native)[1]
        return Lease(self.name, self.owner, self.token, expires_at_ms or self._first_expiry_ms)

    def check(self) -> None:
        """Raises ``Lost`` once the lease can no longer be trusted, and as soon as its release has begun."""
        over = _library.held_check(self._native)
        if over is not None:
            raise Lost(self.name, Loss(*over))

    def trusted_for(self) -> float:
        """Returns for how many seconds the lease can be trusted from now on if no further renewal succeeds."""
        return _library.held_state(self._native)[0]

    def trouble(self) -> Loss | None:
        """Returns why the last renewal failed, if it did. The lease is not lost yet: the keeper keeps trying."""
        trouble = _library.held_state(self._native)[2]
        return None if trouble is None else Loss(*trouble)

    def release(self) -> bool:
        """Ends the hold. Returns whether it was still held: a lease that was lost is left alone. If the file is locked for long,
        it raises, and the keeper goes on trying."""
        answer = _library.held_release(self._native)
        if isinstance(answer, tuple):
            raise locked(self.name)
        return bool(answer)

    def __enter__(self: Me) -> Me:
        return self

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None: ...

    else:
        __exit__ = _library.held_exit


class Held(Holding):
    """A lease that is kept alive while its block runs. Made by ``Litelease.hold``.

    A hold is trusted until the start of its last successful renewal + what was granted - margin, the margin being a tenth
    of what was granted and at least 50 ms. After that ``check()`` raises ``Lost``, whatever the database would say. ``lost`` is
    an event that is set then.

    Keep the object. A hold that is no longer referred to is released, and so is one whose connection was closed (with a
    cursor that was left half-read, SQLite closes it when that is freed), and every one when the interpreter ends. A process that ends without that (``kill -9``, a SIGTERM without a handler,
    ``os._exit``) releases nothing: then the lease ends with its ttl, or earlier if a waiter on the same host sees that the
    process is gone.
    """

    def __init__(
        self,
        path: str,
        conn: sqlite3.Connection | None,
        stop: Callable[[], bool],
        name: str,
        ttl: Seconds = 60.0,
        *,
        wait: Seconds = 0.0,
        owner: str | None = None,
        value: Value = None,
        progress_within: Seconds | None = None,
        max_time: Seconds | None = None,
        request: Seconds | None = None,
        on_requested: Callable[[RequestInfo], object] | None = None,
    ) -> None:
        _library.find_library()
        # The connection is referred to: the hold ends when it is closed.
        self.name, self._file, self._conn = name, DatabaseFile(path), conn
        times = ((progress_within, "progress_within"), (max_time, "max_time"), (request, "request"))
        limits = [optional_ms(name, time, what) for time, what in times]
        # What is granted ends with the limit, too.
        ttl_ms = kept_ms(name, in_seconds(ttl), limits[1])
        self._take(_library.hold(path, name, ttl_ms, in_seconds(wait), owner or None, value, *limits, number_of(conn), as_native(stop)))
        if on_requested is not None:
            start_thread(_Listener(self, on_requested).listen, [])

    def progress(self) -> None:
        """Notes that the work goes on, for a hold with ``progress_within``. Raises ``Lost`` like ``check()``. It writes
        nothing itself: the keeper stores it with its next renewal."""
        over = _library.held_progress(self._native)
        if over is not None:
            raise Lost(self.name, Loss(*over))

    def requested(self) -> RequestInfo | None:
        """Returns the open request for this lease, if there is one. Reads the file, and takes no lock."""
        over = _library.held_check(self._native)
        if over is not None and over[0] in ("Forked", *_ENDS) or self._file.was_replaced():
            return None
        with self._file.opened() as db:
            found = db.requested(self.name)
        return found if found is not None and found.token == self.token else None

    def hand_over(self, ttl: Seconds) -> Lease:
        """Hands the lease to the requester who has asked for it, in one commit, and ends the hold: store a checkpoint before.
        Returns the requester's grant. Without a request it raises ``NotRequested``, and the hold goes on."""
        ttl_ms = in_ms(self.name, ttl, None)
        if ttl_ms <= 0:
            raise InvalidTtl(f"{self.name!r}: the ttl must be at least 1 ms, got {ttl_ms} ms")
        answer = _library.held_hand_over(self._native, ttl_ms)
        if len(answer) == 3:
            return Lease(self.name, *answer)
        if answer[0] == "NotRequested":
            raise NotRequested(NOT_REQUESTED.format(self.name))
        raise Lost(self.name, Loss(*answer))


class HeldSlot(Holding):
    """A slot of a pool that is kept alive while its block runs. Made by ``Pools.hold``. Keep the object, as that of a
    ``Held``."""

    position: int
    lease_id: str

    def __init__(
        self, path: str, conn: sqlite3.Connection | None, stop: Callable[[], bool], id: str, ttl: Seconds = 60.0, *,
        wait: Seconds = 0.0, note: str | None = None,
    ) -> None:
        _library.find_library()
        self.name, self._conn = id, conn
        held = _library.hold_slot(path, id, kept_ms(id, in_seconds(ttl)), in_seconds(wait), note, number_of(conn), as_native(stop))
        if held == 0:
            raise NoFreeSlot(id)
        if held is None:
            raise Stopped
        native, self.lease_id, token, expires_at_ms, self.position = held
        self._take((native, f"slot {self.position}", token, expires_at_ms))


class _Listener:
    """Tells a holder when a successor asks for its lease, in a thread of its own that ends with the hold."""

    def __init__(self, held: Held, tell: Callable[[RequestInfo], object]) -> None:
        self._held, self._token, self._tell = weakref.ref(held), held.token, tell

    def listen(self) -> None:
        """Listens until the hold is over."""
        told: tuple[str, int] | None = None
        while (held := self._held()) is not None and _library.held_check(held._native) is None:
            event, found = held.lost, _library.held_requested(held._native)
            del held
            if found != told:
                told = found
                if found is not None:
                    # A callback that is slow or fails must not keep the next request from being heard.
                    info, name = RequestInfo(found[0], found[1], self._token), "litelease request"
                    threading.Thread(target=self._tell, args=(info,), name=name, daemon=True).start()
            _library.event_wait(event._event, _LISTEN_EVERY)
