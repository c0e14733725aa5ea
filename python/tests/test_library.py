"""The verbs inside the library: what they leave of the caller's connection, of references and of memory, and how they end."""

from __future__ import annotations

import doctest
import gc
import importlib
import os
import resource
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import litelease
from litelease import (
    Acquired,
    Busy,
    HoldTimeout,
    Lease,
    Litelease,
    LiteleaseError,
    Pools,
    Rejected,
    Stale,
)


def fresh(**settings: Any) -> Litelease:
    db = Litelease(sqlite3.connect(":memory:", **settings))
    db.bootstrap()
    return db


def every_verb(db: Litelease) -> None:
    pools = Pools(db.conn)
    db.bootstrap()
    for number in range(2):
        claimed = db.claim("x", "a", 30)
        assert isinstance(claimed, Acquired)
        assert isinstance(db.claim("x", "b", 30), Busy)
        db.ensure("x", "a", 30)
        db.renew(claimed.lease, 60)
        db.checkpoint("x", claimed.lease.token, b"\0")
        db.last_checkpoint("x")
        db.inspect("x"), db.owner("x"), db.token("x"), db.leases(), db.guards()
        db.admit("x", claimed.lease.token)
        pools.register("p", 2 + number)
        lent = pools.borrow("p", 30, note="n", key="k")
        assert lent and pools.slots("p") and pools.renew("p", lent.lease_id, 60)
        assert pools.slot("p", lent.lease_id) and pools.return_slot("p", lent.lease_id)
        assert isinstance(db.renew_by_owner("x", "b", 30), Rejected)
        db.release(claimed.lease)
        db.purge(10**15)
        with pytest.raises(litelease.FloorTooLow):
            db.raise_floor(-1)


@pytest.mark.parametrize("isolation_level", ["", "IMMEDIATE", None])
def test_the_settings_of_the_callers_connection_stay_as_they_are(isolation_level: str | None) -> None:
    def upside_down(text: bytes) -> str:
        return text.decode()[::-1]

    conn = sqlite3.connect(":memory:", isolation_level=isolation_level)  # type: ignore[arg-type]
    db = Litelease(conn)
    for factory in (str, bytes, bytearray, upside_down):
        conn.text_factory = factory
        conn.row_factory = sqlite3.Row
        every_verb(db)
        assert (conn.text_factory, conn.row_factory, conn.isolation_level) == (factory, sqlite3.Row, isolation_level)
        assert not conn.in_transaction
        with pytest.raises(TypeError):
            db.token(7)  # type: ignore[arg-type]
        assert conn.text_factory is factory


def test_no_is_falsy_and_yes_is_true() -> None:
    db = fresh()
    assert db.claim("x", "a", 30) and not db.claim("x", "b", 30)
    assert not db.release_by_owner("x", "b") and db.release_by_owner("x", "a")
    assert not db.checkpoint("x", 7, None) and db.checkpoint("x", 1, None)
    assert db.admit("x", 2) and not db.admit("x", 1)
    assert not Stale(1) and not Busy(Lease("x", "a", 1, 1))


def test_seconds_may_be_a_timedelta(tmp_path: Path) -> None:
    db = fresh()
    claimed = db.claim("x", "a", timedelta(minutes=1), now_ms=0)
    assert isinstance(claimed, Acquired) and claimed.lease.expires_at_ms == 60_000
    pools = Pools(db.conn)
    pools.register("p", 1)
    lent = pools.borrow("p", timedelta(seconds=2), now_ms=0)
    assert lent and lent.slot.expires_at_ms == 2000
    file = Litelease(sqlite3.connect(tmp_path / "db"))
    file.bootstrap()
    with file.hold("x", timedelta(seconds=30), wait=timedelta(seconds=1)) as held:
        held.check()
    tracker = litelease.Tracker(tmp_path / "locks")
    tracker.unlock_it("books", tracker.lock_it("books", timedelta(seconds=30)))


def test_a_busy_hold_says_who_has_it(tmp_path: Path) -> None:
    db = Litelease(sqlite3.connect(tmp_path / "db"))
    db.bootstrap()
    db.claim("x", "somebody", 30)
    with pytest.raises(HoldTimeout, match="'x' is held by somebody") as caught:
        db.hold("x")
    assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, LiteleaseError)
    assert caught.value.current.owner == "somebody"
    with db.hold("y"):
        with pytest.raises(HoldTimeout) as caught:
            db.hold("y")
        assert str(caught.value) == f"'y' is held by {'-'.join(socket.gethostname().split())} pid {os.getpid()} (token 1)"


def test_a_hold_is_lost_once_it_was_released(tmp_path: Path) -> None:
    db = Litelease(sqlite3.connect(tmp_path / "db"))
    db.bootstrap()
    with db.hold("x", 30) as held:
        held.check()
    assert db.claim("x", "successor", 30)
    with pytest.raises(litelease.Lost, match="released"):
        held.check()


def test_live_leases_are_listed_by_prefix() -> None:
    db = fresh()
    for name in ("jobs/b", "jobs/a", "leader", "Jobs/c"):
        db.claim(name, "a", ttl_ms=50, now_ms=100)
    db.release_by_owner("leader", "a", now_ms=110)
    assert [lease.name for lease in db.leases(now_ms=120)] == ["Jobs/c", "jobs/a", "jobs/b"]
    assert db.leases("jobs/", now_ms=120) == [Lease("jobs/a", "a", 1, 150), Lease("jobs/b", "a", 1, 150)]
    assert db.leases(now_ms=150) == []


def test_other_connections_are_told_what_to_pass() -> None:
    aio = type("Connection", (), {"__module__": "aiosqlite.core", "in_transaction": False})
    django = type("DatabaseWrapper", (), {"__module__": "django.db.backends.sqlite3.base"})
    with pytest.raises(TypeError, match="aiosqlite.*sqlite3.connect"):
        Litelease(aio())
    with pytest.raises(TypeError, match="Django.*connection.connection"):
        Pools(django())
    with pytest.raises(TypeError, match="needs a sqlite3.Connection"):
        litelease.load("app.db")  # type: ignore[arg-type]


@pytest.mark.parametrize("path", sorted(Path(litelease.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_the_examples_in_the_package_run(path: Path) -> None:
    module = importlib.import_module("litelease" if path.stem == "__init__" else f"litelease.{path.stem}")
    assert doctest.testmod(module, extraglobs={"sqlite3": sqlite3, "Litelease": Litelease}).failed == 0


def test_only_public_names_are_offered() -> None:
    assert litelease.__version__ == litelease.version()
    for name in litelease.__all__:
        assert hasattr(litelease, name)
    kinds = [getattr(litelease, name) for name in ("Litelease", "Pools", "Held", "Gate")]
    public = {name for kind in kinds for name in dir(kind) if not name.startswith("_")}
    assert not public & {"look", "renewed", "refused", "failed", "was_replaced", "settle", "due"}


def test_sqlites_errors_come_as_they_were_raised(tmp_path: Path) -> None:
    db = Litelease(sqlite3.connect(tmp_path / "db", timeout=0, isolation_level=None))
    db.bootstrap()
    other = sqlite3.connect(tmp_path / "db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError) as caught:
        db.claim("x", "a", 30)
    assert str(caught.value) == "database is locked" and caught.value.__cause__ is None
    other.execute("ROLLBACK")
    db.conn.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        db.claim("x", "a", 30)
    threads: list[BaseException] = []

    def elsewhere() -> None:
        try:
            foreign.claim("x", "a", 30)
        except BaseException as error:
            threads.append(error)

    foreign = fresh()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert isinstance(threads[0], sqlite3.ProgrammingError) and "created in a thread" in str(threads[0])


def test_a_callback_that_raises_is_an_error_of_sqlite_and_leaves_nothing_behind(tmp_path: Path) -> None:
    db = Litelease(sqlite3.connect(tmp_path / "db", isolation_level=None))
    db.bootstrap()

    def refuse(*_: object) -> int:
        raise KeyboardInterrupt

    db.conn.set_authorizer(refuse)
    with pytest.raises(sqlite3.DatabaseError):
        db.claim("x", "a", 30)
    db.conn.set_authorizer(None)
    assert not db.conn.in_transaction
    assert db.claim("x", "a", 30)


def memory() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc here")
def test_no_verb_leaks_references_or_memory() -> None:
    db = fresh(isolation_level=None)

    def round_trip() -> None:
        every_verb(db)
        every_verb(fresh())
        for wrong in (lambda: db.claim("x", 7, 30), lambda: db.claim("x", "a", ttl_ms=2**70), lambda: db.raise_floor(-5)):
            with pytest.raises((TypeError, LiteleaseError, OverflowError)):
                wrong()

    counted: list[object] = [None, str, db.conn, db._session, db._session.handle, "execute", (), 1]
    for _ in range(20):
        round_trip()
    gc.collect()
    before, references = memory(), [sys.getrefcount(one) for one in counted]
    for _ in range(200):
        round_trip()
    gc.collect()
    after = [sys.getrefcount(one) for one in counted]
    assert all(abs(now - then) < 50 for now, then in zip(after, references)), (references, after)
    assert memory() - before < 4_000_000


def test_a_connection_is_freed_with_its_last_handle(tmp_path: Path) -> None:
    class Watched(sqlite3.Connection):
        pass

    def used(refers_to_itself: bool) -> weakref.ref[Watched]:
        conn = sqlite3.connect(tmp_path / "db", factory=Watched)
        db = Litelease(conn)
        db.bootstrap()
        if refers_to_itself:
            conn.db = db  # type: ignore[attr-defined]
        return weakref.ref(conn)

    for conn in (used(False), used(True)):
        gc.collect()  # a connection refers to itself anyway, by its statements
        assert conn() is None


ENDS = """
import sqlite3, sys, threading, time, litelease
path, how = sys.argv[1:]
conn = sqlite3.connect(path, timeout=1, isolation_level=None, check_same_thread=False)
db = litelease.Litelease(conn)
db.bootstrap()
other = sqlite3.connect(path, isolation_level=None)

def work():
    if how == "waits for a lock":
        db.claim("x", "a", 30)
    while True:
        db.claim("x", "a", 30)
        db.release_by_owner("x", "a")

if how == "waits for a lock":
    other.execute("BEGIN IMMEDIATE")
if how == "holds":
    held = db.hold("y", ttl=0.2)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
print("ends")
"""


@pytest.mark.parametrize("how", ["works", "waits for a lock", "holds"])
def test_an_interpreter_ends_while_other_threads_are_in_a_verb(tmp_path: Path, how: str) -> None:
    # A thread that comes back to an interpreter which is gone is ended on the spot, and that would
    # abort the process.
    for _ in range(3):
        start = time.monotonic()
        done = subprocess.run([sys.executable, "-c", ENDS, str(tmp_path / "db"), how], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
        assert time.monotonic() - start < 20
    assert fresh_after(tmp_path / "db")


def fresh_after(path: Path) -> bool:
    """The file is whole, and what was told is what is there."""
    db = Litelease(sqlite3.connect(path))
    return db.conn.execute("PRAGMA integrity_check").fetchone() == ("ok",) and bool(db.claim("after", "a", 30))
