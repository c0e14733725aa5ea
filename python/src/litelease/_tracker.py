"""Path in, lock out: a lock per dataset in a file that is made when it is first needed."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Iterator

from ._identity import identity
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

    def lock_it(self, name: str, expire: float = 60) -> str:
        """Locks ``name`` and answers a token (32 hex digits) to unlock it with.

        Raises ``TrackerIsLockedError`` if somebody else has it.
        """
        owner = identity()
        with self._open() as db:
            answer = db.claim(name, owner, expire)
        if isinstance(answer, Acquired):
            return owner.rpartition(" ")[2]
        current = answer.current
        raise TrackerIsLockedError(name, current.owner, current.lease_expires_at_ms)

    def unlock_it(self, name: str, token: str) -> None:
        """Unlocks ``name``. With a token that is no longer current nothing happens: the lock is already somebody
        else's."""
        if not self.db_path.exists():
            return
        with self._open() as db:
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

    @contextlib.contextmanager
    def _open(self) -> Iterator[Litelease]:
        connection = sqlite3.connect(self.db_path, timeout=_BUSY_TIMEOUT, isolation_level=None)
        try:
            switch_to_wal(connection, self.db_path)
            db = Litelease(connection)
            db.bootstrap()
            yield db
        finally:
            connection.close()
