"""Sessions: one heartbeat for many names, in real processes, stopped and killed."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterator

import pytest
from common import path_of, until

import litelease
from litelease import HoldTimeout, InvalidTtl, Litelease, LiteleaseError, Lost, Session, is_stale

NAMES = ["essays", "fiction", "poetry"]
SHORT = 2


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Litelease]:
    with litelease.open(tmp_path / "db") as opened:
        yield opened


def is_lost(held: Session | litelease.SessionName) -> bool:
    try:
        held.check()
    except Lost:
        return True
    return False


def reason(held: Session | litelease.SessionName) -> str:
    with pytest.raises(Lost) as lost:
        held.check()
    return lost.value.reason


def kind(held: litelease.SessionName) -> str:
    with pytest.raises(Lost) as lost:
        held.check()
    return lost.value.reason.kind


def expiries(db: Litelease) -> list[int]:
    return [lease.expires_at_ms for lease in db.leases()]


def test_an_identity_is_busy_until_its_session_is_closed_and_closing_frees_everything(db: Litelease) -> None:
    with Session(db, "worker", 30) as session:
        held = [session.claim(name) for name in NAMES]
        assert session.names == NAMES and {lease.owner for lease in db.leases()} == {session.owner}
        with pytest.raises(HoldTimeout) as busy:
            Session(path_of(db), "worker", 30)
        assert busy.value.current.owner == session.owner
        for name in ("poetry", "worker"):
            with pytest.raises(HoldTimeout):
                session.claim(name)
        assert session.release("essays") and not session.release("essays")
        assert session.names == NAMES[1:] and db.owner("essays") is None
    assert db.leases() == []
    assert reason(held[0]) == "it was released" and kind(held[0]) == "Released" and kind(held[1]) == "SessionOver"
    assert [reason(name) for name in held[1:]] == ["its session is over: it was closed"] * 2
    with pytest.raises(Lost):
        session.claim("other")
    with Session(db, "worker", 30) as again:
        assert again.claim("poetry").token == 2


def test_every_claim_and_every_heartbeat_sets_the_whole_session_to_one_instant(db: Litelease) -> None:
    with Session(db, "worker", SHORT) as session:
        seen: set[int] = set()
        for name in NAMES:
            session.claim(name)
            assert len(set(expiries(db))) == 1
        end = time.monotonic() + 60
        while len(seen) < 4 and time.monotonic() < end:
            (now,) = set(expiries(db))
            seen.add(now)
        assert len(seen) == 4, "three heartbeats"
        session.check()
        assert session.names == NAMES


def test_a_replaced_session_loses_every_name_and_its_guarded_writes_are_refused(db: Litelease) -> None:
    db.conn.execute("CREATE TABLE orders (id, token INTEGER)")
    db.guard("orders", "fiction", column="token")
    session = Session(db, "worker", 30)
    held = [session.claim(name) for name in NAMES]
    db.conn.execute("INSERT INTO orders VALUES (1, ?)", (held[1].token,))
    newer = Session(path_of(db), "worker", 30, replace=True)
    with pytest.raises(sqlite3.Error) as refused:
        db.conn.execute("INSERT INTO orders VALUES (2, ?)", (held[1].token,))
    assert is_stale(refused.value)
    assert [lease.name for lease in db.leases()] == ["worker"]
    with pytest.raises(Lost):
        session.claim("other")
    assert db.token("other") is None
    assert [kind(name) for name in held] == ["Broken"] * 3
    assert all(name.lost.wait(20) for name in held) and session.lost.wait(20) and session.names == []
    session.close()
    newer.check()
    assert db.owner("worker") == newer.owner
    newer.close()


def test_a_session_whose_identity_is_broken_writes_nothing_any_more(db: Litelease) -> None:
    """Each heartbeat renews the identity first, and nothing if that is refused."""
    session = Session(db, "worker", SHORT)
    held = [session.claim(name) for name in NAMES]
    db.break_lease("essays")
    until(lambda: is_lost(held[0]))
    assert held[0].lost.wait(20)
    session.check()
    held[1].check()
    db.break_lease("worker")
    before = db.inspect("poetry")
    assert session.lost.wait(20)
    assert reason(held[0]) == "broken by an operator"
    assert reason(held[2]).startswith("its session is over: ")
    assert db.inspect("poetry") in (before, None), "it was renewed"
    assert reason(session) == "broken by an operator"
    with pytest.raises(Lost):
        session.claim("other")
    assert db.token("other") is None


def test_a_requested_name_is_lost_alone(db: Litelease, tmp_path: Path) -> None:
    with Session(db, "worker", SHORT) as session:
        books, other = session.claim("books"), session.claim("other")
        now_ms = time.time_ns() // 1_000_000
        db.conn.execute(
            "CREATE TABLE litelease_requests (\n  name TEXT PRIMARY KEY,\n  token INTEGER NOT NULL CHECK (token >= 1),\n"
            "  requester TEXT NOT NULL,\n  until_ms INTEGER NOT NULL,\n  repeated_at_ms INTEGER NOT NULL\n)"
        )
        db.conn.execute("INSERT INTO litelease_requests VALUES ('books', 1, 'b', ?, ?)", (now_ms, now_ms + 8_000))
        assert books.lost.wait(20)
        assert "requested" in reason(books)
        session.check()
        other.check()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_session_that_is_dropped_is_closed(db: Litelease) -> None:
    session = Session(db, "worker", 30)
    books = session.claim("books")
    del session
    gc.collect()
    until(lambda: db.leases() == [])
    assert reason(books) == "its session is over: it was closed"


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("how", ["name", "session", "block", "dropped", "connection"])
def test_what_ends_while_another_connection_writes_is_released_afterwards(db: Litelease, how: str) -> None:
    """It was tried for some seconds, or not at all, and then stayed for its ttl."""
    own = litelease.open(path_of(db))
    session = Session(own, "worker", 3600)
    books = session.claim("books")
    db.conn.execute("BEGIN IMMEDIATE")
    try:
        if how == "dropped":
            del session
            gc.collect()
        elif how == "connection":
            own.conn.close()
        else:
            with pytest.raises(sqlite3.OperationalError, match="goes on trying"):
                if how == "name":
                    session.release("books")
                elif how == "session":
                    session.close()
                else:
                    with session:
                        pass
        assert is_lost(books)
    finally:
        db.conn.execute("ROLLBACK")
    until(lambda: [lease.name for lease in db.leases()] == (["worker"] if how == "name" else []), 30)
    own.conn.close()


def test_a_broken_name_and_a_broken_session_are_noticed_long_before_the_next_heartbeat(db: Litelease) -> None:
    with Session(db, "worker", 3600) as session:
        held = [session.claim(name) for name in NAMES]
        db.break_lease("essays")
        assert held[0].lost.wait(60)
        held[1].check()
        db.break_lease("worker")
        assert held[2].lost.wait(60) and session.lost.wait(60)


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 1_000_000, "é\u2028"])
def test_odd_names_are_names(db: Litelease, name: str) -> None:
    with Session(db, "worker/" + name, 30) as session:
        session.claim(name).check()
        assert session.names == [name]
    assert db.leases() == []


def test_odd_sessions_are_refused(db: Litelease) -> None:
    with pytest.raises(InvalidTtl):
        Session(db, "worker", 0.1)
    with pytest.raises(TypeError):
        Session(db, 5, 30)  # type: ignore[arg-type]
    memory = Litelease(sqlite3.connect(":memory:"))
    with pytest.raises(LiteleaseError, match="needs a file"):
        Session(memory, "worker", 30)
    db.conn.execute("CREATE TABLE litelease_sessions (x)")
    with Session(db, "worker", 30) as session:
        with pytest.raises(litelease.SchemaMismatch, match="litelease_sessions"):
            session.claim("books")
        assert db.owner("books") is None
        session.check()


PROCESS = """
import sqlite3, sys, litelease
path, ttl, *names = sys.argv[1:]
db = litelease.open(path)
with litelease.Session(db, "worker", float(ttl)) as session:
    held = [session.claim(name) for name in names]
    print("open", flush=True)
    for line in sys.stdin:
        trusted = written = 0
        for name in held:
            try:
                name.check()
                trusted += 1
            except litelease.Lost:
                pass
            try:  # in any case: the file must refuse what is not trusted any more
                db.conn.execute(f"INSERT INTO of_{name.name} VALUES (1, ?)", (name.token,))
                written += 1
            except sqlite3.IntegrityError:
                pass
        print("trusted", trusted, "written", written, flush=True)
"""


class Process:
    def __init__(self, db: Litelease, ttl: float) -> None:
        command = [sys.executable, "-c", PROCESS, path_of(db), str(ttl), *NAMES]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.line() == "open"

    def line(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()

    def write(self) -> str:
        assert self.child.stdin is not None
        self.child.stdin.write("write\n")
        self.child.stdin.flush()
        return self.line()

    def stop(self, db: Litelease) -> None:
        """Stops it while it is in no transaction: otherwise no process could write."""
        db.conn.execute("BEGIN IMMEDIATE")
        try:
            os.kill(self.child.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self.child.pid, os.WSTOPPED | os.WNOWAIT)
        finally:
            db.conn.execute("ROLLBACK")

    def end(self) -> None:
        self.child.kill()
        self.child.communicate()


def guarded(db: Litelease) -> None:
    for name in NAMES:
        db.conn.execute(f"CREATE TABLE of_{name} (n, token INTEGER)")
        db.guard(f"of_{name}", name, column="token")


@pytest.mark.parametrize("replaces", [False, True])
def test_a_stopped_process_finds_every_name_lost_and_every_guarded_write_refused(db: Litelease, replaces: bool) -> None:
    guarded(db)
    old = Process(db, SHORT)
    try:
        assert old.write() == "trusted 3 written 3"
        old.stop(db)
        if not replaces:
            until(lambda: db.leases() == [])
        with Session(db, "worker", 30, replace=replaces) as session:
            held = [session.claim(name) for name in NAMES]
            before = expiries(db)
            os.kill(old.child.pid, signal.SIGCONT)
            until(lambda: old.write() == "trusted 0 written 0")
            assert expiries(db) == before, "it has renewed something"
            for name in held:
                name.check()
    finally:
        old.end()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux proves that a process has ended")
def test_a_killed_process_is_replaced_at_once_with_all_its_names(db: Litelease) -> None:
    guarded(db)
    old = Process(db, 600)
    old.end()
    with Session(db, "worker", 30) as session:
        assert [db.token(name) for name in NAMES] == [2, 2, 2]
        assert [session.claim(name).token for name in NAMES] == [3, 3, 3]
    third = Process(db, 600)
    third.end()
    # Without a new session, others take the names one by one.
    with Session(db, "other", 30) as other:
        assert other.claim("poetry").token == 5


def test_a_forked_child_is_not_the_session(db: Litelease) -> None:
    with Session(db, "worker", 30) as session:
        books = session.claim("books")
        child = os.fork()
        if child == 0:
            told = 0
            for call in (session.check, books.check, lambda: session.claim("more")):
                try:
                    call()
                except Lost:
                    told += 1
            session.close()
            os._exit(told)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        session.check()
        assert db.owner("more") is None and db.owner("books") == session.owner
