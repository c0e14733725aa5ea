"""Path in, lock out: a lock per dataset in a file that is made when it is first needed."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from pathlib import Path
from typing import Iterator

from ._identity import LOCK, identity
from ._leases import Litelease
from ._types import Acquired, TrackerIsLockedError
from ._wal import switch_to_wal

_BUSY_TIMEOUT = 10.0


class Tracker:
    """Locks by name in a file of their own. They are never renewed: each ends after its ``expire`` seconds.

    Making a Tracker makes the parent folders; the first lock makes the file and the table.
    """

    def __init__(self, db_path: str | os.PathLike[str]) -> None:
        self.db_path = Path(db_path)
        self.db_path.parent.mkdir(parents=True, exist_ok=True)
        self._thread = threading.local()

    def __reduce__(self) -> tuple[type[Tracker], tuple[Path]]:
        return Tracker, (self.db_path,)

    def lock_it(self, name: str, expire: float = 60) -> str:
        """Locks ``name`` and answers a token (32 hex digits) to unlock it with.

        Raises ``TrackerIsLockedError`` if somebody else has it.
        """
        owner = identity(LOCK)
        answer = self._open().claim(name, owner, expire)
        if isinstance(answer, Acquired):
            return owner.rpartition(" ")[2]
        current = answer.current
        raise TrackerIsLockedError(name, current.owner, current.lease_expires_at_ms)

    def unlock_it(self, name: str, token: str) -> None:
        """Unlocks ``name``. With a token that is no longer current nothing happens: the lock is already somebody
        else's."""
        if not self.db_path.exists():
            return
        db = self._open()
        lease = db.inspect(name)
        # The token is the last word of the owner text, which tells the others who has it.
        if lease is not None and token and lease.owner.rpartition(" ")[2] == token:
            db.release(name, lease.owner, token=lease.token)

    @contextlib.contextmanager
    def lock(self, name: str, expire: float = 60) -> Iterator[str]:
        """Locks ``name`` while the block runs."""
        token = self.lock_it(name, expire)
        try:
            yield token
        finally:
            self.unlock_it(name, token)

    def _open(self) -> Litelease:
        """The file, which is made if it is missing. Each thread keeps it open for the next time, unless it was replaced
        or this is a forked process."""
        opened: _Opened | None = getattr(self._thread, "opened", None)
        if opened is None or opened.place != _place(self.db_path):
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
        self.place = _place(path)

    def __del__(self) -> None:
        if hasattr(self, "db"):
            self.db.conn.close()


def _place(path: Path) -> tuple[int, int, int] | None:
    """Which file is at a path, for which process."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, os.getpid()
