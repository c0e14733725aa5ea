"""What is held: claimed or borrowed, kept alive by the keeper of the process, and given back at the end.

Only the keeper's thread sets ``lost``: an event has a lock, which an exception from a signal handler could leave taken.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from types import TracebackType
from typing import Callable, TypeVar

from . import _keeper, _library
from ._leases import Litelease
from ._time import in_ms
from ._types import CommitUnknown, InvalidTtl, LiteleaseError, Loss, Lost, Reason, Rejected
from ._wait import clock, until

Me = TypeVar("Me", bound="Hold")

_NOT_REQUESTED = "{!r}: nobody has asked for the lease: hand it to an owner by name with transfer, or release it"
# How long before the end of trust a locked file is tried every millisecond, and then more often.
_HURRY = 10.0
_LATE = Loss("Expired", "it could not be renewed in time")
_CLOSED = Loss("Closed", "its connection was closed")
_REPLACED = Loss("FileReplaced", "the database file was moved, deleted or replaced")
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
        # A token that grew by one without anybody having it is what a break leaves behind.
        kind = "Broken"
    return Loss(kind, reason.value)


class Hold:
    """What a held lease and a held slot have in common.

    A hold is trusted until the start of its last successful renewal + what was granted - margin, the margin being a tenth
    of what was granted and at least 50 ms. After that ``check()`` raises ``Lost``, whatever the database would say.

    Keep the object. A hold that nobody refers to any more is released, and so is one whose connection was closed, and
    every one when the interpreter ends. A process that ends without that (``kill -9``, a SIGTERM that nobody handles,
    ``os._exit``) releases nothing: then the lease ends with its ttl, or earlier if a waiter on the same host sees that the
    process is gone.
    """

    name: str
    token: int
    _trouble: str | None = None
    _kept: _keeper.Kept | None = None
    _expires_at_ms = 0
    # Whether a limit has cut the last renewal.
    _is_cut = False
    # When the holder made progress last, what of that the keeper has passed on, and what is stored.
    _progress_at = _passed_on = _stored = 0.0
    # Whether the lease was handed over, or is about to be.
    _is_handed = False

    def __init__(
        self, path: str, name: str, ttl: float, wait: float, conn: sqlite3.Connection | None, stop: Callable[[], bool]
    ) -> None:
        in_ms(name, ttl, None)  # or it is too long
        window = _library.window(ttl)
        if window is None:
            raise InvalidTtl(f"{name!r}: a ttl of {ttl} s is too short to be kept alive: give more than 0.1 s")
        self.name = name
        self.lost = threading.Event()
        # Why it is lost: the first of these.
        self._reasons: list[str] = []
        self._ttl = ttl
        self._trusted_for, self._interval, self._pause = window
        self._path, self._pid, self._file, self._conn = path, os.getpid(), _keeper.file_of(path), conn
        self._may_be_granted = self._is_released = self._ended = False
        try:
            start = self._acquire(wait, stop)
            self._trusted_until, self._due = start + self._trusted_for, start + self._interval
            self._kept = _keeper.Kept(path, self, self._kept_by())
            self._kept.keep()
        except CommitUnknown:
            # It may be granted all the same, and nobody would renew or release it.
            with contextlib.suppress(sqlite3.Error, LiteleaseError):
                self._give_back()
            raise
        except (sqlite3.Error, LiteleaseError):
            raise  # nothing was granted
        except BaseException:
            self._give_back()
            raise

    def check(self) -> None:
        """Raises ``Lost`` once the lease can no longer be trusted, and as soon as its release has begun."""
        if os.getpid() != self._pid:
            raise Lost(self.name, Loss("Forked", "this is a forked process: the hold belongs to its parent"))
        if self._is_handed:
            raise Lost(self.name, Loss("HandedOver", "it was handed over, or is about to be"))
        if self._is_released and not self._reasons:
            raise Lost(self.name, Loss("Released", "it was released"))
        if self._was_closed():
            self._reasons.append(_CLOSED)
        self._look(clock())
        if self._reasons:
            if self._kept is not None:
                self._kept.tell()
            raise Lost(self.name, self._reasons[0])

    def release(self) -> None:
        """Ends the hold. A lease that was lost is left alone."""
        if os.getpid() != self._pid or self._ended:
            return
        self._is_released = True
        if self._kept is not None:
            self._kept.leave()
        if not self._reasons and not self._was_replaced():  # opening a file that was deleted would make it
            db = self._open()
            try:
                self._giver()(db)
            finally:
                db.conn.close()
        self._ended = True

    def __enter__(self: Me) -> Me:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except (sqlite3.Error, LiteleaseError):
            # What went wrong in the block matters more; the lease ends by itself.
            if error is None:
                raise
        except BaseException:
            self._give_back()
            raise

    # What the keeper calls.

    def _look(self, now: float) -> bool:
        """Checks whether it is still trusted at ``now``; once it is not, it is lost for good."""
        if not self._reasons and now >= self._trusted_until:
            self._reasons.append(self._trouble or (_LIMITS[Reason.TIME_IS_UP] if self._is_cut else _LATE))
        return not self._reasons

    def _renewed(self, start: float, granted: float | None = None) -> None:
        """Notes that a renewal begun at ``start`` succeeded. A late answer does not prolong trust. ``granted`` is for how
        many seconds, if that is less than was asked for."""
        self._stored = self._passed_on
        if self._look(clock()):
            self._trusted_until = max(self._trusted_until, self._trusted_end(start, granted))
            self._due, self._trouble, self._is_cut = start + self._interval, None, granted is not None

    def _trusted_end(self, start: float, granted: float | None) -> float:
        """Returns until when a grant of so many seconds is trusted."""
        if granted is None:
            return start + self._trusted_for
        return start + min(granted - max(granted / 10, 0.05), self._trusted_for)

    def _refused(self, reason: str) -> None:
        """Notes that the row says that the lease is over."""
        if self._is_handed or self._is_released:
            self._due = clock() + self._pause  # it is the consequence of that
            return
        self._reasons.append(reason)
        self._tell()

    def _tell(self) -> None:
        """Tells that it is lost. Only the keeper's thread calls it."""
        self.lost.set()

    def _kept_by(self) -> _keeper.Keeper | None:
        """Returns who keeps it alive, if not the keeper of all holds."""
        return None

    def _rejected(self, answer: Rejected) -> None:
        """Notes that a renewal was rejected. If by a limit, the lease stands, and it is tried again as long as there is
        trust."""
        self._stored = self._passed_on
        if answer.reason not in _LIMITS:
            return self._refused(loss(self.token, answer))
        self._trouble, self._due = _LIMITS[answer.reason], clock() + self._pause
        self._look(clock())

    def _failed(self, trouble: str, is_locked: bool = False) -> None:
        """Notes that a renewal failed. It is tried again as long as there is trust."""
        self._trouble = Loss("CannotRenew", f"cannot renew: {trouble}")
        now = clock()
        self._due = now + (self._locked_pause(self._trusted_until - now) if is_locked else self._pause)
        self._look(now)

    def _is_in_haste(self, now: float) -> bool:
        """Checks whether little time is left, after a renewal that failed."""
        return self._trouble is not None and self._look(now) and self._locked_pause(self._trusted_until - now) < 0.001

    def _locked_pause(self, left: float) -> float:
        """Returns how long after a renewal that found the file locked the next one is tried, if the lease is trusted for
        ``left`` more seconds. A program that writes in a loop leaves the file free for some microseconds at a time, and to try
        so often for as long as there is trust would use a part of a core."""
        if left <= min(self._trusted_for / 4, 0.25):
            return 0.00002
        if left <= min(self._trusted_for / 2, 1.0):
            return 0.0001
        return min(self._pause, max(left - _HURRY, 0.001))

    def _unstored_progress_ms(self, now: float) -> int | None:
        """Returns how long ago the holder made progress that is not stored yet."""
        at = self._passed_on = self._progress_at
        return None if at == self._stored else int((now - at) * 1000)

    def _was_replaced(self) -> bool:
        """Checks whether the file was replaced since the claim."""
        return _keeper.file_of(self._path) != self._file

    def _was_closed(self) -> bool:
        """Checks whether the connection was closed that it was made with."""
        try:
            return self._conn is not None and self._conn.total_changes < 0
        except sqlite3.ProgrammingError:
            return True

    def _grant(self) -> tuple[str, str, float, int | None]:
        """Returns what is renewed: name, owner, ttl and token of a lease; pool, lease, ttl and None of a slot."""
        raise NotImplementedError

    def _giver(self) -> Callable[[Litelease], object]:
        """Returns what gives back what was granted, without a reference to this object."""
        raise NotImplementedError

    # What is granted.

    def _attempt(self, db: Litelease) -> Callable[[], tuple[LiteleaseError | None, int | None]]:
        """Returns an attempt that answers the error of a timeout."""
        raise NotImplementedError

    def _undo(self, db: Litelease) -> None:
        """Gives back what may have been granted."""
        raise NotImplementedError

    def _acquire(self, wait: float, stop: Callable[[], bool]) -> float:
        db = self._open()
        try:
            attempt = self._attempt(db)

            def noted() -> tuple[LiteleaseError | None, int | None]:
                self._may_be_granted = True
                error, taken_until_ms = attempt()
                self._may_be_granted = error is None
                return error, taken_until_ms

            error, start = until(self._path, wait, noted, stop)
            if error is not None:
                raise error
            return start
        finally:
            db.conn.close()

    def _give_back(self) -> None:
        """Releases what may have been granted, after an exception. What is not released ends by itself."""
        self._is_released = True
        if self._kept is not None:
            self._kept.leave()
        if self._may_be_granted and not self._ended:
            db = self._open()
            with contextlib.closing(db.conn), contextlib.suppress(sqlite3.Error, LiteleaseError):
                self._undo(db)

    def _open(self) -> Litelease:
        return self._connected(self._path)

    @staticmethod
    def _connected(path: str) -> Litelease:
        return Litelease(sqlite3.connect(path, isolation_level=None, check_same_thread=False))
