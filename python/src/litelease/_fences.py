"""What stops an old owner: guarded tables, checkpoints and gates.

A guard by connection needs the extension in every connection that writes to the table, because its triggers call it.
Everything else works in every Python.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Union

from ._connection import Closing, Handle, load_if_missing
from ._time import Seconds, in_seconds
from ._types import Admitted, Checkpoint, GuardInfo, Stale, Stored
from ._wal import switch_to_wal

Value = Union[None, int, float, str, bytes]

_BY_CONNECTION = (
    "a guard by connection needs the extension in every connection that writes to the table; guard it by a column instead"
)


class Fences(Handle):
    """The verbs of ``Litelease`` that stop an old owner."""

    def guard(self, table: str, name: str, column: str | None = None, *, strict: bool = False) -> None:
        """Guards a table: a write to it must present the newest token of ``name``, or the database refuses it (see
        ``is_stale``). With ``column``, each write presents it there; otherwise the connection does, by
        ``present``. ``strict`` also demands that the lease is live.

        Guarding again in the same way changes nothing, or puts back what a rebuild of the table has dropped.
        """
        if column is None:
            load_if_missing(self._session, self._is_joined, _BY_CONNECTION)
        self._row("guard", table, name, column, int(strict))

    def unguard(self, table: str, name: str | None = None) -> int:
        """Removes the guard by ``name`` from a table, or all its guards. Returns how many there were."""
        return int(self._row("unguard", table, name)[0])

    def guards(self) -> list[GuardInfo]:
        """Lists all guards, and whether their triggers are intact."""
        return [
            GuardInfo(table, name, column, bool(strict), state == "intact", refusals or 0)
            for table, name, column, strict, state, refusals in self._rows("guards")
        ]

    def present(self, name: str, token: int) -> bool:
        """Presents a token for this connection's writes to tables that ``name`` guards by connection. Returns
        whether it is the newest one; if not, the guards refuse it.

        It is kept with the connection and not undone by a rollback: present a token after the commit of its
        claim.
        """
        load_if_missing(self._session, self._is_joined, _BY_CONNECTION)
        return bool(self._row("present", name, token)[0])

    def withdraw(self, name: str) -> None:
        """Withdraws the token presented for ``name``, for a connection that goes back to a pool."""
        load_if_missing(self._session, self._is_joined, _BY_CONNECTION)
        self._row("present", name, None)

    def checkpoint(self, name: str, token: int, value: Value, *, now_ms: int | None = None) -> Stored | Stale:
        """Stores a value as the progress made under a grant, if that is still the newest one of ``name``."""
        return self._answer(Stored, Stale, "checkpoint", name, token, value, now_ms)

    def last_checkpoint(self, name: str) -> Checkpoint | None:
        """Returns the latest checkpoint of ``name``, from which a successor continues."""
        found = self._row("checkpoint_get", name)
        return Checkpoint(found[1], found[0], found[2]) if found else None

    def admit(self, name: str, token: int) -> Admitted | Stale:
        """Admits a token unless a larger one was admitted for ``name`` before, and remembers it in this file.

        This is the check for a target whose leases are elsewhere, in a transaction of the target's own file. It
        needs no ``bootstrap``.
        """
        return self._answer(Admitted, Stale, "admit", name, token)


class Gate(Closing):
    """A check of tokens for a target that is not in the file of the lease: a folder, a device, an interface.

    It remembers the largest token of each name in a SQLite file of its own, durably, and refuses smaller ones. Threads may
    share a gate; a forked process opens its own.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: Seconds = 5.0) -> None:
        from ._leases import Litelease

        connection = sqlite3.connect(path, timeout=in_seconds(timeout), isolation_level=None, check_same_thread=False)
        try:
            switch_to_wal(connection, path)
        except BaseException:
            connection.close()
            raise
        self._file = Litelease(connection)

    def admit(self, name: str, token: int) -> Admitted | Stale:
        """Admits a token unless a larger one was admitted for ``name`` before, and remembers it."""
        return self._file.admit(name, token)

    def close(self) -> None:
        """Closes the file. Does nothing in a forked child."""
        self._file._session.close()


def is_stale(error: BaseException) -> bool:
    """Checks whether a guard refused a write because it did not present the newest token."""
    return isinstance(error, sqlite3.IntegrityError) and "stale fencing token" in str(error)
