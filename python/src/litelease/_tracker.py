"""A lock is never renewed: after ``expire`` seconds another owner can take it while the first one is still working.

Path in, lock out: a lock per dataset in a file that is made when it is first needed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from pathlib import Path
from typing import Generator

from ._identity import LOCK, identity
from ._keeper import file_of
from ._leases import Litelease
from ._time import Seconds
from ._types import Acquired, CommitUnknown, LiteleaseError, TrackerIsLockedError
from ._wal import switch_to_wal

_BUSY_TIMEOUT = 10.0


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

    def __reduce__(self) -> tuple[type[Tracker], tuple[Path]]:
        return Tracker, (self.db_path,)

    def lock_it(self, name: str, expire: Seconds = 60) -> str:
        """Locks ``name`` and returns a token (32 hex digits) to unlock it with.

        The lock is not renewed: after ``expire`` seconds another owner can take it. Raises ``TrackerIsLockedError`` if another
        owner has it now.
        """
        taken = [identity(LOCK)]
        try:
            return self._lock(name, taken, expire)
        except BaseException:
            with contextlib.suppress(sqlite3.Error, LiteleaseError):  # what was raised first matters more
                self._give_back(name, taken)
            raise

    def unlock_it(self, name: str, token: str) -> None:
        """Unlocks ``name``. Does nothing if the token is no longer current, because the lock then belongs to
        another owner."""
        if not self.db_path.exists():
            return
        db = self._open()
        lease = db.inspect(name)
        # The token is the last word of the owner text, which tells the others who has it.
        if lease is not None and token and lease.owner.rpartition(" ")[2] == token:
            db.release(lease)

    @contextlib.contextmanager
    def lock(self, name: str, expire: Seconds = 60) -> Generator[str, None, None]:
        """Locks ``name`` while the block runs, but for no longer than ``expire`` seconds: it is not renewed, and a block that
        takes longer is not told."""
        taken = [identity(LOCK)]
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
            answer = self._open().claim(name, taken[0], expire)
        except CommitUnknown:
            raise  # it may be stored
        except (sqlite3.Error, LiteleaseError):
            taken.clear()  # nothing was stored
            raise
        if isinstance(answer, Acquired):
            return taken[0].rpartition(" ")[2]
        taken.clear()
        raise TrackerIsLockedError(name, answer.current.owner, answer.current.lease_expires_at_ms)

    def _give_back(self, name: str, taken: list[str]) -> None:
        """Unlocks what the owner in ``taken`` has, if it still has it: an owner text is that of one lock only."""
        if not taken or not self.db_path.exists():
            return
        try:
            self._open().release_by_owner(name, taken[0])
        except sqlite3.Error:
            taken.clear()  # it ends by itself, and trying again would wait as long again
            raise
        taken.clear()

    def _open(self) -> Litelease:
        """The file, which is made if it is missing. Each thread keeps it open for the next time, unless it was replaced
        or this is a forked process."""
        opened: _Opened | None = getattr(self._thread, "opened", None)
        if opened is None or opened.db._session.is_inherited or opened.place != file_of(self.db_path):
            opened = self._thread.opened = None
            opened = self._thread.opened = _Opened(self.db_path)
        return opened.db


class _Opened:
    """The file, open until nobody refers to it."""

    def __init__(self, path: Path) -> None:
        # A thread that ends leaves it to whichever collects what it has left.
        connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
        self.db = Litelease(connection)
        switch_to_wal(connection, path)
        self.db.bootstrap()
        self.place = file_of(path)

    def __del__(self) -> None:
        if hasattr(self, "db"):
            self.db._session.close()
