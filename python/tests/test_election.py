"""Elections: one leader at a time, and everybody knows which. With real files and processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import litelease
from litelease import Election, LeaderInfo, Litelease, LiteleaseError, Lost, Unchanged, Vacant, aio


@pytest.fixture
def db(tmp_path: Path) -> Litelease:
    opened = litelease.open(tmp_path / "app.sqlite3")
    opened.conn.execute("CREATE TABLE decisions (what TEXT, token INTEGER)")
    opened.guard("decisions", "leader", "token")
    return opened


def known(election: Election) -> LeaderInfo:
    found = election.leader()
    assert found is not None
    return found


def test_a_leader_proclaims_and_resigns(db: Litelease) -> None:
    election = Election(db, "leader")
    assert election.leader() is None
    with election.campaign("a:1", ttl=30) as leader:
        assert (known(election).term, known(election).value, known(election).owner) == (leader.term, "a:1", leader.owner)
        with pytest.raises(litelease.HoldTimeout):
            Election(db, "leader").campaign("b:1", ttl=30, wait=0.05)
        for value in ("a:2", 7, 1.5, b"\x00", None):
            leader.proclaim(value)
            assert known(election).value == value
        leader.check()
        leader.resign()
        assert election.leader() is None
        with pytest.raises(Lost, match="it was released"):
            leader.proclaim("late")
        with pytest.raises(Lost, match="it was released"):
            leader.read(lambda conn: None)
    with election.campaign("b:1", ttl=30) as second:
        assert second.term > leader.term


def test_an_observer_sees_the_present_state_first_and_then_the_newest(db: Litelease) -> None:
    election = Election(db, "leader")
    with election.observe() as observer:
        assert observer.next(60) == Vacant() and observer.next(0) == Unchanged()
        leader = election.campaign("a", ttl=6)
        told = next(observer)
        assert isinstance(told, LeaderInfo) and (told.term, told.value) == (leader.term, "a")
        # What is true only between two looks is skipped, and never the newest.
        for value in ("b", "c", "d"):
            leader.proclaim(value)
        assert getattr(observer.next(60), "value", None) == "d"
        # Renewals are no change.
        assert observer.next(2.5) == Unchanged()
        leader.resign()
        second = election.campaign("e", ttl=30)
        told = next(observer)
        assert isinstance(told, LeaderInfo) and (told.term, told.value) == (second.term, "e")
        # The same value under another type is another value.
        second.proclaim(1)
        next(observer)
        second.proclaim(1.0)
        assert isinstance(getattr(observer.next(60), "value", None), float)
        second.release()
        assert next(observer) == Vacant()
    with election.observe() as late:
        assert late.next(0) == Vacant()


def test_an_observer_is_woken_by_each_change_and_ends_with_the_last(db: Litelease) -> None:
    election, seen = Election(db, "leader"), []

    def follow() -> None:
        with election.observe() as observer:
            for state in observer:
                seen.append(state.value if isinstance(state, LeaderInfo) else "vacant")
                if state and seen[-1] == 99:
                    return

    thread = threading.Thread(target=follow)
    with election.campaign(-1, ttl=30) as leader:
        thread.start()
        for value in range(100):
            leader.proclaim(value)
        thread.join(30)
        assert not thread.is_alive(), f"the newest state never came: {seen[-3:]}"
    assert seen == sorted(seen)


def test_an_observer_sees_a_leader_expire_though_nothing_is_written(db: Litelease) -> None:
    election = Election(db, "leader")
    assert db.claim("leader", "a", ttl=2)
    with election.observe() as observer:
        assert isinstance(next(observer), LeaderInfo)
        assert next(observer) == Vacant()


def test_a_leader_reads_in_one_snapshot_under_its_term(db: Litelease) -> None:
    election = Election(db, "leader")
    with election.campaign("a", ttl=30) as leader:
        db.conn.execute("INSERT INTO decisions VALUES ('begin', ?)", (leader.term,))

        def work(conn: sqlite3.Connection) -> list[tuple[str]]:
            before = conn.execute("SELECT what FROM decisions").fetchall()
            db.conn.execute("INSERT INTO decisions VALUES ('meanwhile', ?)", (leader.term,))
            assert conn.execute("SELECT what FROM decisions").fetchall() == before
            return before

        assert leader.read(work) == [("begin",)]
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            leader.read(lambda conn: conn.execute("INSERT INTO decisions VALUES ('lost', 1)"))
        with pytest.raises(LiteleaseError, match="not of one snapshot"):
            leader.read(lambda conn: conn.rollback())
        with pytest.raises(ZeroDivisionError):
            leader.read(lambda conn: 1 / 0)
        db.break_lease("leader")
        with pytest.raises(Lost) as caught:
            leader.read(lambda conn: None)
        assert caught.value.reason.kind == "Broken"
        with pytest.raises(Lost):
            leader.proclaim("late")


LEADER = """
import sqlite3, sys, litelease
db = litelease.open(sys.argv[1])
leader = litelease.Election(db, "leader").campaign("old", ttl=float(sys.argv[2]))
db.conn.execute("INSERT INTO decisions VALUES ('old', ?)", (leader.term,))
print("leads", leader.term, flush=True)
sys.stdin.readline()
refused = []
try:
    db.conn.execute("INSERT INTO decisions VALUES ('zombie', ?)", (leader.term,))
except sqlite3.IntegrityError as error:
    refused.append(f"write {litelease.is_stale(error)}")
for verb in (lambda: leader.read(lambda conn: 1), leader.check, lambda: leader.proclaim("zombie")):
    try:
        verb()
        refused.append("passed")
    except litelease.Lost as lost:
        refused.append("lost")
print(refused, flush=True)
leader.resign()
"""


def stop_between_transactions(pid: int, path: Path) -> None:
    """Stops a process, but not inside a transaction: that would block the others."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
                other.execute("ROLLBACK")
                return
            except sqlite3.OperationalError:
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.01)


def test_a_leader_that_wakes_up_late_is_refused_everywhere(db: Litelease, tmp_path: Path) -> None:
    path = tmp_path / "app.sqlite3"
    command = [sys.executable, "-c", LEADER, str(path), "3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as old:
        assert old.stdin is not None and old.stdout is not None
        assert old.stdout.readline() == "leads 1\n"
        stop_between_transactions(old.pid, path)
        try:
            election = Election(db, "leader")
            with election.campaign("new", ttl=30, wait=60) as leader:
                db.conn.execute("INSERT INTO decisions VALUES ('new', ?)", (leader.term,))
                os.kill(old.pid, signal.SIGCONT)
                old.stdin.write("\n")
                old.stdin.flush()
                assert old.stdout.readline() == "['write True', 'lost', 'lost', 'lost']\n"
                old.wait(30)
                assert (known(election).term, known(election).value) == (leader.term, "new")
                leader.check()
                assert leader.read(lambda conn: conn.execute("SELECT what FROM decisions").fetchall()) == [("old",), ("new",)]
        finally:
            old.kill()


def test_a_leader_in_another_file_is_none_of_this_one(db: Litelease, tmp_path: Path) -> None:
    election, path = Election(db, "leader"), tmp_path / "app.sqlite3"
    leader = election.campaign("a", ttl=30)
    path.rename(tmp_path / "moved")
    with pytest.raises(LiteleaseError, match="was moved, deleted or replaced"):
        election.leader()
    with pytest.raises(Lost) as caught:
        leader.read(lambda conn: None)
    assert caught.value.reason.kind == "FileReplaced" and not path.exists()
    with pytest.raises(LiteleaseError, match="needs a file"):
        Election(Litelease(sqlite3.connect(":memory:")), "leader")


def test_a_campaign_with_asyncio(db: Litelease) -> None:
    async def run() -> None:
        async with aio.campaign(db, "leader", "a", ttl=30) as leader:
            assert known(Election(db, "leader")).term == leader.term

    asyncio.run(run())
    assert Election(db, "leader").leader() is None
