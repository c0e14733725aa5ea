"""A lock is never renewed: after ``expire`` seconds another owner can take it while the first one is still working.

Path in, lock out: a lock per dataset in a file that is made when it is first needed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from pathlib import Path
from typing import Callable, Generator, TypeVar

from . import _library
from ._leases import Litelease
from ._time import Seconds
from ._types import Acquired, Busy, CommitUnknown, ForeignLocks, Lease, LiteleaseError, NotBootstrapped, TrackerIsLockedError
from ._wait import inode_of
from ._wal import switch_to_wal

T = TypeVar("T")
_BUSY_TIMEOUT = 10.0
# The kind of owner text that names a lock, which another process may unlock.
_LOCK = 1


class Tracker:
    """Locks by name that are never renewed: after ``expire`` seconds another owner can take the lock while the first one is
    still working, and the first one is not told. Give it far more time than the work can take. For work of unknown length use
    ``Litelease.hold``, which renews and tells when it is lost.

    Making a Tracker creates the parent folders; the first lock creates the file and the table.
    """

    def __init__(self, db_path: str | os.PathLike[str]) -> None:
        # A path that depends on the working directory would lead to another file after a change of
        # that.
        self.db_path = Path(db_path).absolute()
        self.db_path.parent.mkdir(parents=True, exist_ok=True)
        self._thread = threading.local()
        _trackers.add(self)

    def __reduce__(self) -> tuple[type[Tracker], tuple[Path]]:
        return Tracker, (self.db_path,)

    def lock_it(self, name: str, expire: Seconds = 60) -> str:
        """Locks ``name`` and returns a token (32 hex digits) to unlock it with.

        The lock is not renewed: after ``expire`` seconds another owner can take it. Raises ``TrackerIsLockedError`` if another
        owner has it now.
        """
        taken = [_library.identity(_LOCK)]
        try:
            return self._lock(name, taken, expire)
        except BaseException:
            with contextlib.suppress(sqlite3.Error, LiteleaseError):  # what was raised first matters more
                self._give_back(name, taken)
            raise

    def unlock_it(self, name: str, lock_token: str) -> None:
        """Unlocks ``name``. Does nothing if the token is no longer current, because the lock then belongs to
        another owner."""
        if not self.db_path.exists():
            return

        def unlock(opened: _Opened) -> None:
            lease = opened.db.inspect(name)
            # The token is the last word of the owner text, which tells the others who has it.
            if lease is not None and lock_token and lease.owner.rpartition(" ")[2] == lock_token:
                opened.db.release(lease)

        self._use(unlock)

    def import_from(self, path: str | os.PathLike[str]) -> list[str]:
        """Takes over the live locks of sayt2's tracker in the file at ``path``, which may be this tracker's own file, and returns
        their names. Each keeps its token and its end. They are unlocked there, so stop the programs that lock there before.

        Raises ``TrackerIsLockedError`` if a name is locked here, too; then nothing is changed."""
        source = Path(path).absolute()
        if not source.exists():
            raise FileNotFoundError(f"{source} does not exist")
        with contextlib.closing(_connect(self.db_path)) as here:
            db = Litelease(here)
            db.bootstrap()
            is_same = inode_of(source) == inode_of(self.db_path)
            with contextlib.closing(here if is_same else _connect(source)) as there:
                return _move(there, db, is_same)

    @contextlib.contextmanager
    def lock(self, name: str, expire: Seconds = 60) -> Generator[str, None, None]:
        """Locks ``name`` while the block runs, but for no longer than ``expire`` seconds: it is not renewed, and a block that
        takes longer is not told."""
        taken = [_library.identity(_LOCK)]
        try:
            try:
                yield self._lock(name, taken, expire)
            except BaseException:
                with contextlib.suppress(sqlite3.Error, LiteleaseError):
                    self._give_back(name, taken)
                raise
            self._give_back(name, taken)
        finally:
            # Once more, if a signal handler has raised meanwhile. Usually nothing is taken any
            # more.
            with contextlib.suppress(sqlite3.Error, LiteleaseError):
                self._give_back(name, taken)

    def _lock(self, name: str, taken: list[str], expire: Seconds) -> str:
        """Locks a name for the owner in ``taken``, which stays there while it may have it."""
        try:
            answer = self._use(lambda opened: opened.claim(name, taken[0], expire))
        except CommitUnknown:
            raise  # it may be stored
        except (sqlite3.Error, LiteleaseError):
            taken.clear()  # nothing was stored
            raise
        if isinstance(answer, Acquired):
            return taken[0].rpartition(" ")[2]
        taken.clear()
        raise _is_locked(answer.current)

    def _use(self, work: Callable[[_Opened], T]) -> T:
        """Uses the file, which is made if it is missing, and so is the table if it was dropped since."""
        try:
            return work(self._open())
        except NotBootstrapped:
            opened = self._open()
            opened.db.bootstrap()
            return work(opened)

    def _give_back(self, name: str, taken: list[str]) -> None:
        """Unlocks what the owner in ``taken`` has, if it still has it: an owner text is that of one lock only."""
        if not taken or not self.db_path.exists():
            return
        try:
            self._use(lambda opened: opened.db.release_by_owner(name, taken[0]))
        except sqlite3.Error:
            taken.clear()  # it ends by itself, and trying again would wait as long again
            raise
        taken.clear()

    def _open(self) -> _Opened:
        """The file, which is made if it is missing. Each thread keeps it open for the next time, unless it was replaced
        or this is a forked process."""
        opened: _Opened | None = getattr(self._thread, "opened", None)
        if opened is None or opened.db._session.is_inherited or opened.place != inode_of(self.db_path):
            opened = self._thread.opened = None
            opened = self._thread.opened = _Opened(self.db_path)
        return opened


_trackers: weakref.WeakSet[Tracker] = weakref.WeakSet()


def _before_fork() -> None:
    """Closes the files for this thread; the next lock opens them again. Other threads may be using theirs."""
    for tracker in list(_trackers):
        tracker._thread.opened = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)


class _Opened:
    """The file, open as long as something refers to it."""

    def __init__(self, path: Path) -> None:
        # A thread that ends leaves it to whichever collects what it has left.
        connection = _connect(path)
        self.db = Litelease(connection)
        self._path, self._has_foreign_locks = path, bool(self.db._rows("foreign_locks"))
        switch_to_wal(connection, path)
        self.db.bootstrap()
        self.place = inode_of(path)

    def claim(self, name: str, owner: str, expire: Seconds) -> Acquired | Busy:
        """Claims a name, unless another tracker has locks in this file."""
        if self._has_foreign_locks and self.db._rows("foreign_locks"):
            path = str(self._path)
            raise ForeignLocks(
                f"{path} has live locks of sayt2 in its table `locks`: take them over with Tracker.import_from, as in "
                f"Tracker({path!r}).import_from({path!r}), or wait until they are over"
            )
        return self.db.claim(name, owner, expire)

    def __del__(self) -> None:
        if hasattr(self, "db"):
            self.db._session.close()


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)


def _move(there: sqlite3.Connection, here: Litelease, is_same: bool) -> list[str]:
    """Moves the live locks of sayt2's tracker. They are locked here before they are unlocked there."""
    opened = [there] if is_same else [there, here.conn]
    for conn in opened:
        conn.execute("BEGIN IMMEDIATE")
    try:
        locks = Litelease(there)._rows("foreign_locks")
        for name, token, end_ms in locks:
            answer = here.claim(name, token, ttl_ms=end_ms - time.time_ns() // 1_000_000)
            if not isinstance(answer, Acquired):
                raise _is_locked(answer.current)
            there.execute("UPDATE locks SET lock = NULL, lock_at = NULL, expire_at = NULL WHERE name = ?", (name,))
        for conn in reversed(opened):
            conn.execute("COMMIT")
        return [name for name, _, _ in locks]
    finally:
        for conn in opened:
            if conn.in_transaction:
                conn.execute("ROLLBACK")


def _is_locked(lease: Lease) -> TrackerIsLockedError:
    # Without the last word, which is the token that unlocks.
    owner = lease.owner.rpartition(" ")[0] or "another owner"
    return TrackerIsLockedError(lease.name, owner, lease.expires_at_ms)
