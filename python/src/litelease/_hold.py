"""Held leases: claimed, kept alive by the keeper of the process, and released at the end.

Only the keeper's thread sets ``lost``: an event has a lock, which an exception from a signal handler could leave taken.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from types import TracebackType

from . import _keeper, _library
from ._identity import identity
from ._keeper import clock
from ._leases import Litelease
from ._types import Acquired, Busy, CommitUnknown, HoldTimeout, InvalidTtl, LeaseInfo, LiteleaseError, Lost

# How often a holder is examined while others wait.
_EXAMINE_EVERY = 0.25


class Held:
    """A lease that is kept alive while its block runs. Made by ``Litelease.hold``.

    A hold is trusted until the start of its last successful renewal + ttl - margin, the margin being a tenth of the
    ttl and at least 50 ms. After that ``check()`` raises ``Lost``, whatever the database would say.

    Keep the object: a hold that nobody refers to any more is released.
    """

    def __init__(self, db: Litelease, name: str, ttl: float, wait: float, owner: str | None) -> None:
        path = db._file()
        if db.conn.in_transaction:
            raise LiteleaseError("hold() inside a transaction would wait on a snapshot for ever: commit first")
        if not path:
            raise LiteleaseError("a database in memory cannot be held: its leases are seen by one connection only")
        window = _library.window(ttl)
        if window is None:
            raise InvalidTtl(f"{name!r}: a hold of {ttl} s could never be trusted: give it more than 0.1 s")
        self.name = name
        self.owner = owner or identity()
        self.lost = threading.Event()
        # Why it is lost: the first of these.
        self._reasons: list[str] = []
        self._ttl = ttl
        self._trusted_for, self._interval, self._pause = window
        self._path, self._pid, self._file = path, os.getpid(), _keeper.file_of(path)
        self._is_unique = not owner
        self._may_be_granted = self._is_released = self._ended = False
        try:
            start = self._acquire(wait)
            self._trusted_until, self._due = start + self._trusted_for, start + self._interval
            self._kept = _keeper.Kept(path, self)
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
            raise Lost(self.name, "this is a forked process: the hold belongs to its parent")
        if self._is_released and not self._reasons:
            raise Lost(self.name, "it was released")
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
                db.release(LeaseInfo(self.name, self.owner, self.token, 0))
            finally:
                db.conn.close()
        self._ended = True

    def __enter__(self) -> Held:
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
            self._reasons.append(self._trouble or "it could not be renewed in time")
        return not self._reasons

    def _renewed(self, start: float) -> None:
        """Notes that a renewal begun at ``start`` succeeded. A late answer does not prolong trust."""
        if self._look(clock()):
            self._trusted_until, self._due, self._trouble = start + self._trusted_for, start + self._interval, None

    def _refused(self, reason: str) -> None:
        """Notes that the row says that the lease is over."""
        self._reasons.append(reason)
        self.lost.set()

    def _failed(self, trouble: str) -> None:
        """Notes that a renewal failed. It is tried again as long as there is trust."""
        self._trouble = f"cannot renew: {trouble}"
        self._due = clock() + self._pause
        self._look(clock())

    def _was_replaced(self) -> bool:
        """Checks whether the file was replaced since the claim."""
        return _keeper.file_of(self._path) != self._file

    _trouble: str | None = None
    _kept: _keeper.Kept | None = None
    token: int

    def _give_back(self) -> None:
        """Releases what may have been granted, after an exception. What is not released ends by itself."""
        self._is_released = True
        if self._kept is not None:
            self._kept.leave()
        if not self._may_be_granted or self._ended:
            return
        token = getattr(self, "token", None)
        if token is None and not self._is_unique:
            return  # the owner text may be another holder's, too
        db = self._open()
        with contextlib.closing(db.conn), contextlib.suppress(sqlite3.Error, LiteleaseError):
            if token is None:
                db.release_by_owner(self.name, self.owner)
            else:
                db.release(LeaseInfo(self.name, self.owner, token, 0))

    def _acquire(self, wait: float) -> float:
        deadline, examine_at = clock() + wait, 0.0
        db = self._open()
        try:
            while True:
                start = clock()
                self._may_be_granted = True
                answer = db.claim(self.name, self.owner, self._ttl)
                if isinstance(answer, Busy) and start >= examine_at:
                    examine_at = start + _EXAMINE_EVERY
                    if _library.is_dead(answer.current.owner):
                        answer = db._claim_from_dead(self.name, self.owner, self._ttl, dead=answer.current)
                if isinstance(answer, Acquired):
                    self.token = answer.lease.token
                    return start
                self._may_be_granted = False
                left = deadline - clock()
                if left <= 0:
                    raise HoldTimeout(answer.current)
                time.sleep(min(left, 0.05))
        finally:
            db.conn.close()

    def _open(self) -> Litelease:
        return Litelease(sqlite3.connect(self._path, isolation_level=None, check_same_thread=False))
