"""Connections that threads share, verbs that demand a transaction, and connections that are never outside one."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Callable

import pytest

import litelease
from litelease import Acquired, AutocommitOff, Busy, Gate, Litelease, LiteleaseError, NotInTransaction, Pools


def shared(path: Path) -> Litelease:
    db = Litelease(sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False))
    db.conn.execute("PRAGMA journal_mode = WAL")
    db.conn.execute("PRAGMA synchronous = NORMAL")
    db.bootstrap()
    return db


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Does it in some threads at once, and fails with the first that fails."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_threads_that_share_a_connection_are_told_no_token_twice(tmp_path: Path) -> None:
    # Verbs joined each other's transactions: one was told of a grant that another one rolled back.
    db = shared(tmp_path / "db")
    other = sqlite3.connect(tmp_path / "db", timeout=30)
    told: list[int] = []
    end = time.monotonic() + 60

    def work(number: int) -> None:
        mine = Litelease(db.conn)  # another handle on the same connection, with the same lock
        while len(told) < 300 and time.monotonic() < end:
            if number == 0:
                with pytest.raises(litelease.FloorTooLow):
                    mine.raise_name("x", -5)  # is rolled back
                continue
            claimed = mine.claim("x", str(number), 30)
            if isinstance(claimed, Acquired):
                told.append(claimed.lease.token)
                assert isinstance(mine.release(claimed.lease), litelease.Released)

    in_threads(4, work)
    assert len(told) == len(set(told)) > 10
    assert max(told) == other.execute("SELECT token FROM litelease_resources").fetchone()[0]
    assert not db.conn.in_transaction
    assert db.conn.execute("PRAGMA synchronous").fetchone() == (1,)


def test_pools_share_the_lock_of_the_connection(tmp_path: Path) -> None:
    db = shared(tmp_path / "db")
    pools = Pools(db.conn)
    pools.register("p", 2)
    told: list[int] = []
    end = time.monotonic() + 60

    def work(number: int) -> None:
        while len(told) < 100 and time.monotonic() < end:
            if number < 2:
                with pytest.raises(litelease.FloorTooLow):
                    db.raise_name("x", -5)  # is rolled back, and no slot with it
            elif borrowed := pools.borrow("p", 30):
                told.append(borrowed.slot.token)
                assert pools.return_slot("p", borrowed.lease_id)

    in_threads(4, work)
    assert len(told) == len(set(told)) > 10


def test_a_finish_block_keeps_the_verbs_of_other_threads_out(tmp_path: Path) -> None:
    # A claim of another thread took part in the transaction of the block. Its token was told, rolled
    # back with the block, and told again to the next owner.
    db = shared(tmp_path / "db")
    db.queue("mail").send("a")
    item = db.queue("mail").receive(30)
    assert item is not None
    told: list[object] = []
    thread = threading.Thread(target=lambda: told.append(db.claim("x", "other", 30)))
    with pytest.raises(ZeroDivisionError), item.finish():
        thread.start()
        thread.join(0.3)
        assert isinstance(db.claim("x", "mine", 30), Acquired)  # its own thread's verbs take part
        raise ZeroDivisionError
    thread.join()
    assert told == [Acquired(litelease.Lease("x", "other", 1, db.inspect("x").expires_at_ms))]  # type: ignore[union-attr]


def test_a_thread_that_waits_for_a_finish_block_is_refused_in_the_end(tmp_path: Path) -> None:
    db = shared(tmp_path / "db")
    db.queue("mail").send("a")
    item = db.queue("mail").receive(30)
    assert item is not None
    refused: list[BaseException] = []

    def claim() -> None:
        try:
            db.claim("x", "a", 30)
        except sqlite3.OperationalError as error:
            refused.append(error)

    with item.finish():
        thread = threading.Thread(target=claim)
        thread.start()
        thread.join()
    assert len(refused) == 1 and "another thread has a finish() block open" in str(refused[0])
    assert db.token("x") is None and db.queue("mail").items() == []


def test_a_finish_block_may_be_ended_by_another_thread(tmp_path: Path) -> None:
    db = shared(tmp_path / "db")
    db.queue("mail").send("a")
    item = db.queue("mail").receive(30)
    assert item is not None
    block = item.finish()
    block.__enter__()
    thread = threading.Thread(target=block.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert db.queue("mail").items() == [] and isinstance(db.claim("x", "a", 30), Acquired)


def test_a_worker_leaves_the_verbs_of_other_threads_alone(tmp_path: Path) -> None:
    # It asked whether its handler had left a transaction open while another thread was in the middle
    # of a verb, took that one's transaction for it, and rolled it back.
    db = shared(tmp_path / "db")
    db.queue("mail").send("a")
    worker_thread, is_inside, told = threading.get_ident(), threading.Event(), []

    def progress() -> bool:
        if threading.get_ident() != worker_thread and db.conn.in_transaction and not is_inside.is_set():
            is_inside.set()
            time.sleep(0.3)
        return False

    for _ in db.queue("mail").worker(30, once=True):
        db.conn.set_progress_handler(progress, 1)
        thread = threading.Thread(target=lambda: told.append(db.claim("x", "a", 30)))
        thread.start()
        assert is_inside.wait(30)
    thread.join()
    db.conn.set_progress_handler(None, 1)
    (claimed,) = told
    assert isinstance(claimed, Acquired) and db.inspect("x") == claimed.lease
    assert db.queue("mail").items() == []


def test_threads_may_share_a_gate(tmp_path: Path) -> None:
    with Gate(tmp_path / "gate", timeout=30) as gate:
        admitted: list[int] = []

        def work(number: int) -> None:
            for token in range(number + 1, 200, 4):
                if gate.admit("x", token) == litelease.Admitted():
                    admitted.append(token)

        in_threads(4, work)
        assert max(admitted) == 199
        assert gate.admit("x", 198) == litelease.Stale(199)


def test_what_a_call_owes_is_remembered_although_it_had_to_wait_for_another_thread(tmp_path: Path) -> None:
    # The call that it had waited for had taken it off the list of those in debt. Once its handle
    # was gone, no handle knew of the open transaction, and the next handle joined it: a grant that
    # was never committed.
    shared(tmp_path / "db").conn.close()
    main = threading.get_ident()
    for number in range(5):
        db = Litelease(sqlite3.connect(tmp_path / "db", isolation_level=None, check_same_thread=False))
        conn, is_in_call = db.conn, threading.Event()

        def progress(is_in_call: threading.Event = is_in_call) -> bool:
            if threading.get_ident() != main and not is_in_call.is_set():
                is_in_call.set()
                time.sleep(0.02)
            return False

        def forbid(action: int, what: str | None, *_: object) -> int:
            is_write = action == sqlite3.SQLITE_INSERT and what == "litelease_resources"
            is_rollback = action == sqlite3.SQLITE_TRANSACTION and what == "ROLLBACK"
            return sqlite3.SQLITE_DENY if is_write or is_rollback else sqlite3.SQLITE_OK

        conn.set_progress_handler(progress, 1)
        conn.set_authorizer(forbid)
        thread = threading.Thread(target=db.token, args=("x",))
        thread.start()
        assert is_in_call.wait(10)
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            db.claim("x", "refused", 30)
        thread.join()
        conn.set_progress_handler(None, 1)
        conn.set_authorizer(None)
        assert conn.in_transaction
        del db, thread
        gc.collect()
        with pytest.raises(LiteleaseError, match="begin again"):
            Litelease(conn).claim(f"next {number}", "a", 30)
        assert not conn.in_transaction
        assert isinstance(Litelease(conn).claim(f"next {number}", "a", 30), Acquired)
        assert Litelease(conn).token("x") is None
        conn.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_connection_is_refused_in_a_forked_child(tmp_path: Path) -> None:
    db = shared(tmp_path / "db")
    if (child := os.fork()) == 0:
        try:
            db.claim("x", "child", 30)
        except LiteleaseError as error:
            os._exit(7 if "forked" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert isinstance(db.claim("x", "parent", 30), Acquired)


def test_a_joined_handle_demands_a_transaction(tmp_path: Path) -> None:
    db = shared(tmp_path / "db")
    db.conn.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY ON CONFLICT ROLLBACK)")
    joined = db.joining()
    db.conn.execute("BEGIN IMMEDIATE")
    assert isinstance(joined.claim("x", "a", 30), Acquired)
    db.conn.execute("INSERT INTO jobs VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError):
        db.conn.execute("INSERT INTO jobs VALUES (1)")
    # SQLite has ended the transaction. A plain handle would store this by itself.
    with pytest.raises(NotInTransaction, match="no transaction is open"):
        joined.claim("y", "a", 30)
    assert db.token("x") is None and db.token("y") is None
    calls: list[Callable[[], object]] = [
        joined.bootstrap,
        lambda: joined._claim_from_dead("x", "b", 30, dead=litelease.Lease("x", "a", 1, 0)),
        lambda: joined.renew(litelease.Lease("x", "a", 1, 0), 30),
        lambda: joined.release(litelease.Lease("x", "a", 1, 0)),
        lambda: joined.transfer(litelease.Lease("x", "a", 1, 0), "b", 30),
        lambda: joined.renew_by_owner("x", "a", 30),
        lambda: joined.release_by_owner("x", "a"),
        lambda: joined.transfer_by_owner("x", "a", "b", 30),
        lambda: joined.break_lease("x"),
        lambda: joined.inspect("x"),
        lambda: joined.owner("x"),
        lambda: joined.token("x"),
        lambda: joined.purge(0),
        lambda: joined.raise_floor(5),
        lambda: joined.raise_name("x", 5),
        joined.restore_fence,
        lambda: joined.checkpoint("x", 1, None),
        lambda: joined.last_checkpoint("x"),
        lambda: joined.admit("x", 1),
        lambda: joined.guard("jobs", "x"),
        lambda: joined.unguard("jobs"),
        joined.guards,
        lambda: joined.present("x", 1),
        lambda: joined.withdraw("x"),
    ]
    for call in calls:
        with pytest.raises(NotInTransaction):
            call()
    with pytest.raises(LiteleaseError, match="hold"):
        joined.hold("x")
    with pytest.raises(NotInTransaction):
        Pools(db.conn).joining().register("p", 1)
    db.conn.execute("SAVEPOINT a")
    assert isinstance(joined.claim("x", "a", 30), Acquired)
    db.conn.execute("RELEASE a")
    assert db.token("x") == 1


def connect_without_autocommit(path: Path) -> sqlite3.Connection:
    if hasattr(sqlite3.Connection, "autocommit"):
        return sqlite3.connect(path, autocommit=False)  # type: ignore[call-overload,no-any-return]

    class AlwaysInside(sqlite3.Connection):
        """As of Python 3.12."""

        autocommit = False

        def commit(self) -> None:
            super().commit()
            self.execute("BEGIN")

    conn = sqlite3.connect(path, isolation_level=None, factory=AlwaysInside)
    conn.execute("BEGIN")
    return conn


def test_a_connection_without_autocommit_is_told_that_nothing_would_be_stored(tmp_path: Path) -> None:
    # It is always inside a transaction, so a claim would be told and never stored.
    conn = connect_without_autocommit(tmp_path / "db")
    db = Litelease(conn)
    plain = Litelease(sqlite3.connect(tmp_path / "db"))
    plain.bootstrap()
    for call in (db.bootstrap, lambda: db.claim("x", "a", 30), lambda: db.owner("x"), lambda: db.hold("x")):
        with pytest.raises(AutocommitOff, match="autocommit=False.*joining"):
            call()
    assert plain.token("x") is None
    joined = db.joining()
    assert isinstance(joined.claim("x", "a", 30), Acquired)
    conn.commit()
    assert isinstance(plain.claim("x", "b", 30), Busy)


def test_a_connection_with_autocommit_rolls_back(tmp_path: Path) -> None:
    # There conn.rollback() does nothing.
    if not hasattr(sqlite3.Connection, "autocommit"):
        pytest.skip("this Python has no autocommit")
    db = Litelease(sqlite3.connect(tmp_path / "db", autocommit=True))  # type: ignore[call-overload]
    db.bootstrap()
    with pytest.raises(litelease.FloorTooLow):
        db.raise_floor(-1)
    assert not db.conn.in_transaction
    assert isinstance(db.claim("x", "a", 30), Acquired)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers on this system")
def test_a_signal_handler_can_stop_waiting_for_the_call_of_another_thread(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stopped

    db = shared(tmp_path / "db")
    main, is_in_call, may_go_on = threading.get_ident(), threading.Event(), threading.Event()

    def progress() -> bool:
        if threading.get_ident() != main and not is_in_call.is_set():
            is_in_call.set()
            may_go_on.wait(60)
        return False

    db.conn.set_progress_handler(progress, 1)
    thread = threading.Thread(target=db.claim, args=("x", "a", 30))
    thread.start()
    assert is_in_call.wait(60)
    handler = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(Stopped):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            db.claim("y", "a", 30)
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert thread.is_alive()
    may_go_on.set()
    # It has left the queue, so no thread waits for it.
    assert isinstance(db.claim("y", "a", 30), Acquired)
    thread.join()
    db.conn.set_progress_handler(None, 1)
    assert db.token("x") == 1


ENDS_ANOTHER_INTERPRETER = """
import sqlite3, sys, threading, litelease
try:
    import _interpreters as interpreters
    settings = ("legacy",)
except ImportError:
    import _xxsubinterpreters as interpreters
    settings = ()
db = litelease.Litelease(sqlite3.connect(sys.argv[1], check_same_thread=False))
db.bootstrap()
other = interpreters.create(*settings)
interpreters.run_string(other, f"import sys; sys.path[:] = {sys.path!r}; import litelease")
interpreters.destroy(other)
thread = threading.Thread(target=db.claim, args=("x", "a", 30))
thread.start()
thread.join()
print(db.token("x"))
"""


@pytest.mark.skipif(
    not any(map(importlib.util.find_spec, ("_interpreters", "_xxsubinterpreters"))), reason="no interpreters inside this one"
)
def test_an_interpreter_that_ends_does_not_end_the_calls_of_others(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS_ANOTHER_INTERPRETER, str(tmp_path / "db")], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "1\n", done.stderr
