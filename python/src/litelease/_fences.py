"""What stops an old owner: guarded tables, checkpoints and gates.

Guards and what a connection presents to them need the extension in the connection, because the triggers call it.
Checkpoints and gates work in every Python.
"""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING, Any, Callable, TypeVar, Union

from . import _library
from ._session import Session, verb
from ._types import (
    Admitted,
    CannotGuard,
    Checkpoint,
    GuardInfo,
    GuardMissing,
    NotBootstrapped,
    SchemaMismatch,
    Stale,
    Stored,
)
from ._wal import switch_to_wal

_CHECKPOINTS, _GATES = "litelease_checkpoints", "litelease_gates"

Value = Union[None, int, float, str, bytes]
T = TypeVar("T")


class Fences:
    """The verbs of ``Litelease`` that stop an old owner."""

    conn: sqlite3.Connection

    if TYPE_CHECKING:  # what Litelease has
        _session: Session

        def _newest(self, name: str) -> int | None: ...
        def _check(self) -> Any: ...
        def _write(self, work: Callable[[], T], locks: bool = True) -> T: ...
        def _is_there(self, table: str) -> bool: ...
        def _run(self, statement: str, *values: object) -> list[tuple[Any, ...]]: ...
        def _cursor(self) -> sqlite3.Cursor: ...

    @verb
    def guard(self, table: str, name: str, column: str | None = None, *, strict: bool = False) -> None:
        """Guards a table: a write to it must present the newest token of ``name``, or the database refuses it (see
        ``is_stale``). With ``column``, each write presents it there; otherwise the connection does, by
        ``present``. ``strict`` also demands that the lease is live.

        Guarding again in the same way changes nothing, or puts back what a rebuild of the table has dropped.
        """
        self._call("litelease_guard(?1, ?2, ?3, ?4)", table, name, column, int(strict))

    @verb
    def unguard(self, table: str, name: str | None = None) -> int:
        """Removes the guard by ``name`` from a table, or all its guards. Returns how many there were."""
        if name is None:
            return int(self._call("litelease_unguard(?1)", table))
        return int(self._call("litelease_unguard(?1, ?2)", table, name))

    @verb
    def guards(self) -> list[GuardInfo]:
        """Lists all guards, and whether their triggers are intact."""
        rows = self._calling("SELECT * FROM litelease_guards")
        return [
            GuardInfo(table, name, column, bool(strict), state == "intact", refusals or 0)
            for table, name, column, strict, state, refusals in rows
        ]

    @verb
    def present(self, name: str, token: int) -> bool:
        """Presents a token for this connection's writes to tables that ``name`` guards by connection. Returns
        whether it is the newest one; if not, the guards refuse it.

        It is kept with the connection and not undone by a rollback: present a token after the commit of its
        claim.
        """
        return bool(self._call("litelease_present(?1, ?2)", name, token))

    @verb
    def withdraw(self, name: str) -> None:
        """Withdraws the token presented for ``name``, for a connection that goes back to a pool."""
        self._call("litelease_present(?1, NULL)", name)

    @verb
    def checkpoint(self, name: str, token: int, value: Value) -> Stored | Stale:
        """Stores a value as the progress made under a grant, if that is still the newest one of ``name``."""
        _library.check_number("token", token)

        def work() -> Stored | Stale:
            self._check()
            newest = self._newest(name)
            if newest is None or newest != token:
                return Stale(newest)
            if not self._is_there(_CHECKPOINTS):
                self._run("create_checkpoints")
            self._run("checkpoint", name, token, value, _library.now_ms())
            return Stored()

        return self._write(lambda: self._session.whole(work))

    @verb
    def last_checkpoint(self, name: str) -> Checkpoint | None:
        """Returns the latest checkpoint of ``name``, from which a successor continues."""
        self._check()
        rows = self._run("last_checkpoint", name) if self._is_there(_CHECKPOINTS) else []
        return Checkpoint(*rows[0]) if rows else None

    @verb
    def admit(self, name: str, token: int) -> Admitted | Stale:
        """Admits a token unless a larger one was admitted for ``name`` before, and remembers it in this file.

        This is the check for a target whose leases are elsewhere, in a transaction of the target's own file. It
        needs no ``bootstrap``.
        """
        _library.check_number("token", token)

        def work() -> Admitted | Stale:
            if not self._is_there(_GATES):
                self._run("create_gates")
            if token >= 1:
                self._run("admit", name, token)
            rows = self._run("admitted", name)
            newest = rows[0][0] if rows else 0
            return Admitted() if token == newest >= 1 else Stale(newest)

        return self._write(lambda: self._session.whole(work), locks=False)

    def _call(self, call: str, *values: object) -> Any:
        """Calls a function of the extension, which is loaded if it is not there yet."""
        return self._calling(f"SELECT {call}", *values)[0][0]

    def _calling(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            self._cursor().execute("SELECT litelease_version()")
        except sqlite3.OperationalError:
            _library.load_into(self._session, "guarded tables need the extension in every connection that writes to them")
        try:
            return self._cursor().execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            raise _typed(error) from error


class Gate:
    """A check of tokens for a target that is not in the file of the lease: a folder, a device, an interface.

    It remembers the largest token of each name in a SQLite file of its own, durably, and refuses smaller ones. Threads may
    share a gate; a forked process opens its own.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 5.0) -> None:
        from ._leases import Litelease

        connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
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

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def is_stale(error: BaseException) -> bool:
    """Checks whether a guard refused a write because it did not present the newest token."""
    return isinstance(error, sqlite3.IntegrityError) and "stale fencing token" in str(error)


def _typed(error: sqlite3.OperationalError) -> Exception:
    """Converts the error of a SQL function into one of ours. SQLite passes on only its text."""
    text = str(error)
    kinds = {
        "cannot be guarded": CannotGuard,
        "its triggers are gone": GuardMissing,
        "is not as Litelease makes it": SchemaMismatch,
        "no lease table yet": NotBootstrapped,
    }
    for part, kind in kinds.items():
        if part in text:
            return kind(text.split(": ", 1)[-1])
    return error
