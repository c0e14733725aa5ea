"""Waiting for a name: what wakes a waiter, in this process and others, and what it does meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Callable, Iterator

import pytest

import litelease
from litelease import Acquired, Busy, Litelease, LiteleaseError, Pools, _library


ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="notifications are Linux's")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.sqlite3"


@pytest.fixture
def db(path: Path) -> Iterator[Litelease]:
    with litelease.open(path) as opened:
        yield opened


def wakeups(path: Path) -> bytes:
    """The word of the wakeup, which every notification changes."""
    return Path(f"{path}-wakeup").read_bytes()[:4]


def command() -> str:
    found = [ROOT / "target" / kind / "litelease" for kind in ("debug", "release")]
    there = next((str(one) for one in found if one.exists()), None) or shutil.which("litelease")
    if there is None:
        pytest.skip("the command litelease is not built")
    return there


def test_a_file_of_its_own_is_opened_with_settings_that_lose_nothing(path: Path) -> None:
    with litelease.open(path) as db:
        assert db.conn.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.conn.execute("PRAGMA synchronous").fetchone() == (2,)
        assert db.claim("x", "a", ttl=30)
        threading.Thread(target=db.release_by_owner, args=("x", "a")).start()
        held = db.hold("y", ttl=3600, wait=5)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        db.conn.execute("SELECT 1")
    with pytest.raises(litelease.Lost):
        held.check()
    with litelease.open(path) as db:
        assert db.owner("y") is None, "closing releases what is held"
    db.close()


def test_a_file_that_is_no_database_is_not_left_open(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, " * 100)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(sqlite3.DatabaseError):
        litelease.open(tmp_path / "text")
    assert len(os.listdir("/proc/self/fd")) <= before


WAITER = """
import sys, time, litelease
with litelease.open(sys.argv[1]) as db:
    print("waits", flush=True)
    assert db.claim_wait("x", "waiter", 30, 60)
    print(time.monotonic(), flush=True)
"""


def wait_for_wakeup(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not Path(f"{path}-wakeup").exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(0.1)


def test_a_release_wakes_a_waiter_in_another_process_at_once(db: Litelease, path: Path) -> None:
    took: list[float] = []
    # A busy machine may be late now and then. A waiter that only looks every 500 ms would be as
    # quick as that once in five times.
    while len(took) < 12 and sum(time < 0.1 for time in took) < 5:
        lease = db.claim_wait("x", "a", 30, 30)
        assert isinstance(lease, Acquired)
        with subprocess.Popen([sys.executable, "-c", WAITER, path], stdout=subprocess.PIPE, text=True) as waiter:
            assert waiter.stdout is not None and waiter.stdout.readline() == "waits\n"
            wait_for_wakeup(path)
            before = time.monotonic()
            assert db.release(lease.lease)
            took.append(float(waiter.stdout.readline()) - before)
        db.break_lease("x")
    assert sum(time < 0.1 for time in took) == 5, took


def test_what_frees_rings_and_what_does_not_keeps_silent(db: Litelease, path: Path) -> None:
    db.claim("busy", "somebody", ttl=3600)
    assert isinstance(db.claim_wait("busy", "waiter", 30, 0.05), Busy)  # makes the wakeup
    pools = Pools(db.conn)
    frees: dict[str, Callable[[], object]] = {
        "release": lambda: db.release_by_owner("x", "a"),
        "break": lambda: db.break_lease("x"),
        "return": lambda: pools.return_slot("p", lent.lease_id),
        "unread": lambda: db.unread("r", "reader"),
    }
    pools.register("p", 1)
    for what, free in frees.items():
        before = wakeups(path)
        db.claim("x", "a", ttl=30)
        db.renew_by_owner("x", "a", ttl=60)
        db.read("r", "reader", ttl=30)
        lent = pools.borrow("p", ttl=30) or lent
        assert wakeups(path) == before, "a claim frees nothing"
        assert free()
        assert wakeups(path) != before, what
        before = wakeups(path)
        assert not free() and wakeups(path) == before, f"{what} that does nothing"
    db.claim("x", "a", ttl=30)
    before = wakeups(path)
    db.conn.execute("BEGIN IMMEDIATE")
    db.release_by_owner("x", "a")
    assert wakeups(path) == before, "nothing is free before the commit"
    db.conn.execute("COMMIT")
    db.token("x")
    assert wakeups(path) != before


def test_a_ring_between_looking_and_listening_is_not_lost(db: Litelease, path: Path) -> None:
    # A busy machine may be late now and then. The slow poll comes after 500 ms.
    assert any(woken_after(path) < 0.3 for _ in range(10)), "it slept until the slow poll"


def woken_after(path: Path) -> float:
    waiter = _library.waiter(str(path))
    generation = _library.generation(waiter)
    Path(f"{path}-wakeup").write_bytes(os.urandom(64))  # after the rows were read
    before = time.monotonic()
    _library.listen(waiter, generation, 0.5)
    return time.monotonic() - before


def test_a_release_from_python_wakes_a_waiter_in_rust(db: Litelease, path: Path) -> None:
    lease = db.claim("x", "a", ttl=3600)
    assert isinstance(lease, Acquired)
    words = [command(), "run", "--db", str(path), "--wait", "60s", "x", "--", "echo", "runs"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as run:
        wait_for_wakeup(path)  # which it has made, and waits on
        before = wakeups(path)
        assert db.release(lease.lease) and wakeups(path) != before
        assert run.stdout is not None and run.stdout.readline() == "runs\n"
    assert run.returncode == 0


def test_a_release_from_rust_wakes_a_waiter_in_python(db: Litelease, path: Path) -> None:
    words = [command(), "run", "--db", str(path), "x", "--", "sh", "-c", "echo runs; read line"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin is not None and run.stdout is not None and run.stdout.readline() == "runs\n"
        assert isinstance(db.claim_wait("x", "a", 30, 0.05), Busy)  # makes the wakeup
        before = wakeups(path)
        threading.Timer(0.3, lambda: (run.stdin.write("\n"), run.stdin.flush())).start()  # type: ignore[union-attr]
        assert isinstance(db.claim_wait("x", "a", 30, 60), Acquired)
    assert run.returncode == 0 and wakeups(path) != before


def test_a_signal_handler_runs_while_its_thread_waits(db: Litelease) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    db.claim("x", "a", ttl=3600)
    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        for wait in (lambda: db.claim_wait("x", "b", 30, 60), lambda: db.hold("x", ttl=30, wait=60)):
            before = time.monotonic()
            with pytest.raises(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                wait()
            assert time.monotonic() - before < 30
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert db.owner("x") == "a"


def test_other_threads_work_while_one_waits_and_the_rows_are_left_in_peace(db: Litelease, path: Path) -> None:
    db.claim("x", "a", ttl=3600)
    asked: list[str] = []
    with litelease.open(path) as other:
        other.conn.set_trace_callback(lambda sql: asked.append(sql))
        answers: list[object] = []
        waits = threading.Thread(target=lambda: answers.append(other.claim_wait("x", "b", 30, 2)))
        waits.start()
        count = 0
        while waits.is_alive():
            time.sleep(0.001)
            count += 1
        waits.join()
        assert isinstance(answers[0], Busy) and not answers[0]
        other.conn.set_trace_callback(None)
    looks = [sql for sql in asked if "litelease_resources" in sql and sql.startswith("SELECT")]
    assert len(looks) <= 16, "every 500 ms, twice at the start and once at the end"
    assert count > 20


def test_waiting_in_vain_is_refused_at_once(db: Litelease) -> None:
    with pytest.raises(LiteleaseError, match="in memory"):
        memory = Litelease(sqlite3.connect(":memory:"))
        memory.bootstrap()
        memory.claim_wait("x", "a", 30, 60)
    db.conn.execute("BEGIN")
    with pytest.raises(LiteleaseError, match="inside a transaction"):
        db.claim_wait("x", "a", 30, 60)
    with pytest.raises(LiteleaseError, match="inside a transaction"):
        db.joining().claim_wait("x", "a", 30, 60)


def test_a_waiter_in_a_forked_child_is_woken_too(db: Litelease, path: Path) -> None:
    lease = db.claim("x", "a", ttl=3600)
    assert isinstance(lease, Acquired)
    assert isinstance(db.claim_wait("x", "b", 30, 0.05), Busy)  # starts the thread that watches files
    if (child := os.fork()) == 0:
        try:
            own = litelease.open(path)
            begin = time.monotonic()
            ok = bool(own.claim_wait("x", "child", 30, 20)) and time.monotonic() - begin < 10
            os._exit(0 if ok else 1)
        finally:
            os._exit(2)
    time.sleep(0.5)
    db.release(lease.lease)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
