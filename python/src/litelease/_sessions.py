"""Sessions: one heartbeat for an identity and all the names that were claimed in it.

The library decides and writes; here are the thread that keeps sessions alive, and how long each name is trusted.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Callable, Generator, Sequence, TypeVar

from . import _library
from ._hold import _LATE, _LIMITS, _REPLACED, Hold, loss
from ._identity import identity as new_owner
from ._keeper import Keeper, begun
from ._leases import Litelease, open
from ._time import Seconds, in_ms, in_seconds
from ._types import HoldTimeout, Lease, LiteleaseError, Loss, Lost, Reason, Rejected, answer
from ._wait import clock, file_of, never

T = TypeVar("T")
Rows = Sequence["tuple[Any, ...]"]
# How long a session waits for a lock on the file, in short steps: its heartbeat comes between them.
PATIENCE = 5.0
_STEP = 0.05
# How long the keeper waits for a claim that is under way.
_TURN = 1.0


class SessionName:
    """A name that was claimed in a session. Made by ``Session.claim``; the session keeps it, so nobody else need refer to it."""

    def __init__(self, session: SessionHold, name: str, token: int) -> None:
        self.name, self.owner, self.token = name, session.owner, token
        self.lost = threading.Event()
        self._session = weakref.ref(session)
        self._pid = os.getpid()
        self._reasons: list[Loss] = []
        self.was_given_up = False
        self._trouble: Loss | None = None
        self._trusted_until = session._trusted_until

    def check(self) -> None:
        """Raises ``Lost`` once the name or its session can no longer be trusted."""
        if os.getpid() != self._pid:
            raise Lost(self.name, Loss("Forked", "this is a forked process: the hold belongs to its parent"))
        session = self._session()
        self._look(clock())
        if self._reasons:
            if session is not None and session._kept is not None:
                session._kept.tell()
            raise Lost(self.name, self._reasons[0])

    def release(self) -> bool:
        """Gives this name up, and leaves the others as they are. Returns whether it was still the session's."""
        session = self._session()
        return session is not None and session.give_up(self)

    def __enter__(self) -> SessionName:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except (sqlite3.Error, LiteleaseError):
            if error is None:
                raise

    def _look(self, now: float) -> bool:
        """Checks whether it is trusted at ``now``; once it is not, it is lost for good."""
        session = self._session()
        if self._reasons:
            return False
        if session is None:
            self._reasons.append(_over("it was dropped"))
        elif session._is_released:
            self._reasons.append(_over("it was closed"))
        elif not session._look(now):
            self._reasons.append(_over(session._reasons[0]))
        elif now >= self._trusted_until:
            self._reasons.append(self._trouble or _LATE)
        return not self._reasons

    def _answered(self, session: SessionHold, start: float, row: tuple[Any, ...]) -> None:
        """Notes the answer to a renewal begun at ``start``. A late answer does not prolong trust."""
        if row[0] == "Rejected":
            self._reasons.append(loss(self.token, answer(row)))
        elif not self._look(clock()):
            return
        elif row[0] == "Refused":
            self._trouble = _LIMITS[Reason[row[1]]]
        else:
            self._trusted_until, self._trouble = session.end_of(start, row[5]), None


class Session:
    """An identity that one process has at a time, and the names that are claimed in it: one heartbeat renews all, in one
    commit, to the same instant. So everything ends together.

    ``db`` is a ``Litelease`` on a file, or the path of one, which is made if it is missing. ``ttl`` is more than 0.1 s. Raises
    ``HoldTimeout`` if another session has the identity, unless the process of that one has provably ended (Linux). With
    ``replace``, breaks that session and all its names in the same commit: from then on its guarded writes are refused.

    Keep the object: a session that nobody refers to any more is closed.

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
        path, conn = place_of(db, "Session")
        self._hold = SessionHold(path, identity, in_seconds(ttl), replace, conn)

    @property
    def identity(self) -> str:
        """The identity, which is a name like others."""
        return self._hold.name

    @property
    def owner(self) -> str:
        """The owner text of the identity and of every name, which is unique to this session."""
        return self._hold.owner

    @property
    def token(self) -> int:
        """The fencing token of the identity."""
        return self._hold.token

    @property
    def lost(self) -> threading.Event:
        """The event that is set when the session is lost."""
        return self._hold.lost

    @property
    def names(self) -> list[str]:
        """The names that were claimed in the session, and neither released nor lost."""
        now = clock()
        return [name.name for name in list(self._hold.names.values()) if name._look(now)]

    def claim(self, name: str) -> SessionName:
        """Claims a name in the session, without waiting for it, and renews the whole session in the same commit.

        Raises ``HoldTimeout`` if somebody else has it, or this session already. If the session can no longer be renewed, nothing
        is written, and everything is ``Lost``.
        """
        return self._hold.claim(name)

    def release(self, name: str) -> bool:
        """Gives a name up, and leaves the others as they are. Returns whether it was the session's."""
        held = self._hold.names.get(name)
        return held is not None and held.release()

    def check(self) -> None:
        """Raises ``Lost`` once the session can no longer be trusted. Then ``check`` of every name does, too."""
        self._hold.check()

    def close(self) -> None:
        """Releases the identity and all names in one commit. A session that was lost is left alone."""
        self._hold.release()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hold.__exit__(kind, error, trace)


class SessionHold(Hold):
    """A session as the keeper knows it: the hold of its identity, and its names."""

    def __init__(self, path: str, name: str, ttl: float, replace: bool, conn: sqlite3.Connection | None) -> None:
        self.owner, self._replaces = new_owner(), replace
        # Also what is released when nobody refers to the session any more.
        self.names: dict[str, SessionName] = {}
        # Names that were lost, until the keeper has set their events.
        self._to_tell: list[SessionName] = []
        # Held while a transaction of the session is under way.
        self._lock = threading.RLock()
        super().__init__(path, name, ttl, 0.0, conn, never)

    def live(self) -> list[SessionName]:
        """Returns the names that are not lost, and forgets those that were lost alone: closing releases all others. Whoever
        calls it has the lock."""
        now = clock()
        for name in list(self.names.values()):
            if not name._look(now) and not self._is_released and not self._reasons:
                self._to_tell.append(name)
                self.names.pop(name.name, None)
        return list(self.names.values())

    def end_of(self, start: float, granted_ms: int) -> float:
        """Returns until when a renewal is trusted that began at ``start``: it may be granted less than the ttl."""
        return start + self._trusted_for - max(0.0, self._ttl - granted_ms / 1000)

    def claim(self, name: str) -> SessionName:
        made: list[SessionName] = []

        def keep(rest: Rows) -> None:
            made.append(SessionName(self, name, rest[-1][3]))
            self.names[name] = made[0]

        try:
            no = self.change(keep, "session_claim", name, None, None)
            if no and _library.is_dead(no[0][2]):
                no = self.change(keep, "session_claim", name, no[0][2], no[0][3])
        except (sqlite3.Error, LiteleaseError):
            raise
        except BaseException:
            # It may be granted, and nobody would renew or release it.
            if name not in self.names and name != self.name and os.getpid() == self._pid:
                with contextlib.suppress(sqlite3.Error, LiteleaseError), self._briefly_opened() as db:
                    db.release_by_owner(name, self.owner)
            raise
        if no:
            raise HoldTimeout(Lease(*no[0][1:]))
        made[0].check()
        return made[0]

    def give_up(self, name: SessionName) -> bool:
        """Releases one name."""
        return self.end_name(name, lambda db: bool(db.release(Lease(name.name, name.owner, name.token, 0))))

    def end_name(self, name: SessionName, how: Callable[[Litelease], bool]) -> bool:
        """Ends one name in a transaction of its own, while none of the session is under way. Returns what ``how`` does: whether
        it has ended the name. If not, the session keeps it."""
        if os.getpid() != self._pid or self.names.get(name.name) is not name or self._was_replaced():
            return False

        def attempt() -> bool:
            with self._lock, self._briefly_opened() as db:
                ended = how(db)
                if ended:
                    name.was_given_up = True
                    name._reasons.append(Loss("Released", "it was released"))
                    self.names.pop(name.name, None)
                return ended

        return patiently(attempt)

    def change(self, keep: Callable[[Rows], None], verb: str, *values: object, patience: float = PATIENCE) -> Rows:
        """Calls a verb that renews the whole session, and gives ``keep`` the rows that come after those. Returns the rows of an
        answer that says no."""

        def attempt() -> Rows:
            self.check()  # in a forked process nobody would give the lock back
            with self._lock:
                self.check()
                if self._was_replaced():
                    raise Lost(self.name, _REPLACED)
                with self._briefly_opened() as db:
                    return self._beat(db, keep, verb, *values)

        return patiently(attempt, patience)

    def heartbeat(self, db: Litelease) -> object:
        """Renews the session for the keeper. Returns the answer as the keeper knows it."""
        if not self._lock.acquire(timeout=_TURN):
            return LiteleaseError("a claim in this session is under way")
        try:
            if not self._is_released:
                with begun(db.conn, [self]):
                    self._beat(db, None, "session_beat")
            while self._to_tell:
                self._to_tell.pop().lost.set()
            return None
        except Lost:
            return Rejected(Reason.EXPIRED, None, None)  # told already
        except (sqlite3.Error, LiteleaseError) as error:
            return LiteleaseError(str(error))
        finally:
            self._lock.release()

    def _beat(self, db: Litelease, keep: Callable[[Rows], None] | None, verb: str, *values: object) -> Rows:
        names, start = self.live(), clock()
        grants = [value for name in names for value in (name.name, name.token)]
        rows = db._rows(verb, *values, *self._identity(), *grants)
        if rows[0][0] in ("Busy", "Count"):
            return rows
        if self._was_replaced():
            # It may be stored in a file that nobody else opens any more.
            self._lose_all(names, (), _REPLACED)
        identity, answers = rows[0], rows[1 : 1 + len(names)]
        if identity[0] == "Refused":
            raise LiteleaseError(Reason[identity[1]].value)
        if identity[0] == "Rejected":
            self._lose_all(names, answers, loss(self.token, answer(identity)))
        if self._look(clock()):
            self._trusted_until, self._trouble = self.end_of(start, identity[5]), None
            self._due = start + self._interval
        for name, row in zip(names, answers):
            name._answered(self, start, row)
            if name._trouble is not None:
                # Its loss is told in time.
                self._due = min(self._due, max(name._trusted_until, clock() + self._pause))
        if len(self.live()) < len(names) and self._kept is not None:
            self._due = clock()  # the keeper tells
            self._kept.tell()
        if keep is not None:
            keep(rows[1 + len(names) :])
        return ()

    def _lose_all(self, names: list[SessionName], answers: Rows, reason: Loss) -> None:
        """Ends trust in everything."""
        for name, row in zip(names, answers):
            name._reasons.append(loss(name.token, answer(row)) if row[0] == "Rejected" else _over(reason))
        self._reasons.append(reason)
        if self._kept is not None:
            self._kept.tell()
        raise Lost(self.name, self._reasons[0])

    def release(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            super().release()

    @contextlib.contextmanager
    def _briefly_opened(self) -> Generator[Litelease, None, None]:
        conn = sqlite3.connect(self._path, timeout=_STEP, isolation_level=None, check_same_thread=False)
        try:
            yield Litelease(conn)
        finally:
            conn.close()

    # What the keeper calls.

    def _renewed(self, start: float, granted: float | None = None) -> None:
        pass  # noted by the heartbeat, with what was granted

    def _tell(self) -> None:
        super()._tell()
        for name in [*self.names.values(), *self._to_tell]:
            name._look(clock())
            name.lost.set()

    def _kept_by(self) -> Keeper:
        return _sessions

    def _identity(self) -> tuple[str, str, int, int]:
        return self.name, self.owner, self.token, in_ms(self.name, self._ttl, None)

    def _giver(self) -> Callable[[Litelease], object]:
        identity, names = self._identity(), self.names

        def give_back(db: Litelease) -> None:
            grants = [value for name in names.values() for value in (name.name, name.token)]
            db._row("session_close", *identity, *grants)

        return give_back

    # What is granted.

    def _acquire(self, wait: float, stop: Callable[[], bool]) -> float:
        ttl_ms = in_ms(self.name, self._ttl, None)

        def attempt(*dead: object) -> tuple[float, tuple[Any, ...]]:
            with self._briefly_opened() as db:
                self._may_be_granted, start = True, clock()
                row = db._row("session_open", self.name, self.owner, ttl_ms, int(self._replaces), *dead)
                self._may_be_granted = row[0] == "Acquired"
                return start, row

        start, row = patiently(attempt)
        if row[0] == "Busy" and _library.is_dead(row[2]):
            dead = row[2], row[3]
            start, row = patiently(lambda: attempt(*dead))
        if row[0] == "Busy":
            raise HoldTimeout(Lease(*row[1:]))
        self.token = row[3]
        if self._was_replaced():
            raise LiteleaseError(f"{self._path}: {_REPLACED}: open it again")
        return start

    def _undo(self, db: Litelease) -> None:
        if hasattr(self, "token"):
            self._giver()(db)
        else:
            db.release_by_owner(self.name, self.owner)


class Sessions(Keeper):
    """Keeps the sessions of a process alive."""

    thread_name = "litelease sessions"

    def _ask(self, db: Litelease, batch: list[Hold]) -> Sequence[object]:
        return [held.heartbeat(db) if isinstance(held, SessionHold) else None for held in batch]


_sessions = Sessions()


def _begin_anew() -> None:
    """In a forked child the thread is not there, and the sessions are the parent's."""
    global _sessions
    _sessions = Sessions()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def place_of(db: Litelease | str | os.PathLike[str], what: str) -> tuple[str, sqlite3.Connection | None]:
    """Returns the file of a handle, and its connection, with which everything ends; or the file of a path, which is made."""
    if isinstance(db, Litelease):
        return file_of(db, what), db.conn
    with open(db) as opened:
        return file_of(opened, what), None


def _over(reason: str) -> Loss:
    return Loss("SessionOver", f"its session is over: {reason}")


def patiently(attempt: Callable[[], T], patience: float = PATIENCE) -> T:
    """Tries again while the file is locked, for a while."""
    deadline = clock() + patience
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or clock() >= deadline:
                raise
        time.sleep(0.005)
