"""Sessions: one heartbeat for an identity and all the names that were claimed in it. The library keeps them alive."""

from __future__ import annotations

import os
import sqlite3

from . import _library
from ._held import Holding, kept_ms, number_of
from ._leases import Litelease, open
from ._time import Seconds, in_seconds
from ._wait import file_of


class SessionName(Holding):
    """A name that was claimed in a session. Made by ``Session.claim``; the session keeps it, so you need not refer to it."""

    def __init__(self, session: Session, name: str) -> None:
        self.name = name
        self._take(_library.session_claim(session._native, session._path, name, None), session.name)


class Session(Holding):
    """An identity that one process has at a time, and the names that are claimed in it: one heartbeat renews all, in one
    commit, to the same instant. So everything ends together.

    ``db`` is a ``Litelease`` on a file, or the path of one, which is made if it is missing. ``ttl`` is more than 0.1 s. Raises
    ``HoldTimeout`` if another session has the identity, unless the process of that one has provably ended (Linux). With
    ``replace``, breaks that session and all its names in the same commit: from then on its guarded writes are refused.

    Keep the object: a session that is no longer referred to is closed.

    >>> import tempfile
    >>> db = open(tempfile.mkdtemp() + "/app.sqlite3")
    >>> with Session(db, "worker-7", ttl=30) as session:
    ...     books = session.claim("books")
    ...     books.check()
    ...     db.owner("books") == db.owner("worker-7") == session.owner
    True
    >>> db.owner("books"), db.owner("worker-7")
    (None, None)
    """

    def __init__(
        self, db: Litelease | str | os.PathLike[str], identity: str, ttl: Seconds = 60.0, *, replace: bool = False
    ) -> None:
        # The connection is referred to: the session ends when it is closed.
        self._path, self._conn = place_of(db, "Session")
        self.name, ttl_ms = identity, kept_ms(identity, in_seconds(ttl))
        _library.find_library()
        self._take(_library.session_open(self._path, identity, ttl_ms, replace, number_of(self._conn), None))
        # After the session: one that is dropped releases all names at once.
        self._names: dict[str, SessionName] = {}
        self._most_names = 64

    @property
    def identity(self) -> str:
        """The identity, which is a name like others."""
        return self.name

    @property
    def names(self) -> list[str]:
        """The names that were claimed in the session, and neither released nor lost."""
        return [name.name for name in list(self._names.values()) if _library.held_check(name._native) is None]

    def claim(self, name: str) -> SessionName:
        """Claims a name in the session, without waiting for it, and renews the whole session in the same commit.

        Raises ``HoldTimeout`` if another owner has it, or this session already. If the session can no longer be renewed, nothing
        is written, and everything is ``Lost``.
        """
        if len(self._names) >= self._most_names:
            # What is over is forgotten now and then: a session may live for years.
            for known, held in list(self._names.items()):
                if _library.held_check(held._native) is not None and self._names.get(known) is held:
                    self._names.pop(known, None)
            self._most_names = 64 + 2 * len(self._names)
        claimed = self._names[name] = SessionName(self, name)
        return claimed

    def release(self, name: str | None = None) -> bool:
        """Gives a name up, and leaves the others as they are; without a name, closes the session. Returns whether it was the
        session's."""
        if name is None:
            return super().release()
        held = self._names.get(name)
        return held is not None and held.release()

    def close(self) -> None:
        """Releases the identity and all names in one commit. A session that was lost is left alone."""
        super().release()


def place_of(db: Litelease | str | os.PathLike[str], what: str) -> tuple[str, sqlite3.Connection | None]:
    """Returns the file of a handle, and its connection, with which everything ends; or the file of a path, which is made."""
    if isinstance(db, Litelease):
        return file_of(db, what), db.conn
    with open(db) as opened:
        return file_of(opened, what), None
