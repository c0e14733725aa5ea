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
from ._identity import identity
from ._leases import Litelease
from ._pools import Pools
from ._time import in_ms
from ._types import Busy, CommitUnknown, HoldTimeout, InvalidTtl, LeaseInfo, LiteleaseError, Lost, NoFreeSlot
from ._wait import claiming, clock, never, until

Me = TypeVar("Me", bound="Hold")


class Hold:
    """What a held lease and a held slot have in common.

    A hold is trusted until the start of its last successful renewal + ttl - margin, the margin being a tenth of the
    ttl and at least 50 ms. After that ``check()`` raises ``Lost``, whatever the database would say.

    Keep the object. A hold that nobody refers to any more is released, and so is one whose connection was closed, and
    every one when the interpreter ends. A process that ends without that (``kill -9``, a SIGTERM that nobody handles,
    ``os._exit``) releases nothing: then the lease ends with its ttl, or earlier if a waiter on the same host sees that the
    process is gone.
    """

    name: str
    token: int
    _trouble: str | None = None
    _kept: _keeper.Kept | None = None

    def __init__(
        self, path: str, name: str, ttl: float, wait: float, conn: sqlite3.Connection | None, stop: Callable[[], bool]
    ) -> None:
        window = _library.window(ttl)
        if window is None:
            raise InvalidTtl(f"{name!r}: a hold of {ttl} s could never be trusted: give it more than 0.1 s")
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
            raise Lost(self.name, "this is a forked process: the hold belongs to its parent")
        if self._is_released and not self._reasons:
            raise Lost(self.name, "it was released")
        if self._was_closed():
            self._reasons.append("its connection was closed")
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
            self._reasons.append(self._trouble or "it could not be renewed in time")
        return not self._reasons

    def _renewed(self, start: float) -> None:
        """Notes that a renewal begun at ``start`` succeeded. A late answer does not prolong trust."""
        if self._look(clock()):
            self._trusted_until, self._due, self._trouble = start + self._trusted_for, start + self._interval, None

    def _refused(self, reason: str) -> None:
        """Notes that the row says that the lease is over."""
        self._reasons.append(reason)
        self._tell()

    def _tell(self) -> None:
        """Tells that it is lost. Only the keeper's thread calls it."""
        self.lost.set()

    def _kept_by(self) -> _keeper.Keeper | None:
        """Returns who keeps it alive, if not the keeper of all holds."""
        return None

    def _failed(self, trouble: str) -> None:
        """Notes that a renewal failed. It is tried again as long as there is trust."""
        self._trouble = f"cannot renew: {trouble}"
        self._due = clock() + self._pause
        self._look(clock())

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
        return Litelease(sqlite3.connect(self._path, isolation_level=None, check_same_thread=False))


class Held(Hold):
    """A lease that is kept alive while its block runs. Made by ``Litelease.hold``."""

    def __init__(
        self,
        path: str,
        name: str,
        ttl: float,
        wait: float,
        owner: str | None,
        conn: sqlite3.Connection | None,
        stop: Callable[[], bool] = never,
    ) -> None:
        self._is_unique, self.owner = not owner, owner or identity()
        super().__init__(path, name, ttl, wait, conn, stop)

    def _grant(self) -> tuple[str, str, float, int | None]:
        return self.name, self.owner, self._ttl, self.token

    def _giver(self) -> Callable[[Litelease], object]:
        lease = LeaseInfo(self.name, self.owner, self.token, 0)
        return lambda db: db.release(lease)

    def _attempt(self, db: Litelease) -> Callable[[], tuple[LiteleaseError | None, int | None]]:
        claim = claiming(db, self.name, self.owner, in_ms(self.name, self._ttl, None))

        def attempt() -> tuple[LiteleaseError | None, int | None]:
            answer, taken_until_ms = claim()
            if isinstance(answer, Busy):
                return HoldTimeout(answer.current), taken_until_ms
            self.token = answer.lease.token
            return None, None

        return attempt

    def _undo(self, db: Litelease) -> None:
        if hasattr(self, "token"):
            self._giver()(db)
        elif self._is_unique:  # else the owner text may be another holder's, too
            db.release_by_owner(self.name, self.owner)


class HeldSlot(Hold):
    """A slot of a pool that is kept alive while its block runs. Made by ``Pools.hold``."""

    position: int
    lease_id: str

    def __init__(
        self,
        path: str,
        id: str,
        ttl: float,
        wait: float,
        note: str | None,
        conn: sqlite3.Connection | None,
        stop: Callable[[], bool] = never,
    ) -> None:
        # By its key it is found again if an exception comes before its answer.
        self._note, self._key = note, identity().split()[-1]
        super().__init__(path, id, ttl, wait, conn, stop)

    def _grant(self) -> tuple[str, str, float, int | None]:
        return self.name, self.lease_id, self._ttl, None

    def _giver(self) -> Callable[[Litelease], object]:
        id, lease = self.name, self.lease_id
        return lambda db: Pools(db.conn).return_slot(id, lease)

    def _attempt(self, db: Litelease) -> Callable[[], tuple[LiteleaseError | None, int | None]]:
        pools = Pools(db.conn)

        def attempt() -> tuple[LiteleaseError | None, int | None]:
            lent = pools.borrow(self.name, self._ttl, note=self._note, key=self._key)
            if lent is None:
                taken_until_ms = min((slot.expires_at_ms for slot in pools.slots(self.name)), default=2**62)
                return NoFreeSlot(self.name), taken_until_ms
            self.lease_id, self.position, self.token = lent.lease_id, lent.slot.position, lent.slot.token
            return None, None

        return attempt

    def _undo(self, db: Litelease) -> None:
        if lent := Pools(db.conn).borrow(self.name, self._ttl, key=self._key):
            Pools(db.conn).return_slot(self.name, lent.lease_id)
