"""``litelease.open``: the library runs the verbs itself, on the very connection that the caller has."""

from __future__ import annotations

import gc
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Generator

import pytest

import litelease
from litelease import Acquired, Litelease, LiteleaseError


@pytest.fixture
def db(tmp_path: Path) -> Generator[Litelease, None, None]:
    with litelease.open(tmp_path / "app.sqlite3") as opened:
        yield opened


def test_no_statement_of_a_verb_goes_through_python(db: Litelease) -> None:
    assert isinstance(db.claim("x", "a", 30), Acquired)
    db.queue("mail").send("hello")
    assert db._session.cursor is None


def test_verbs_take_part_in_the_transactions_of_the_connection(db: Litelease) -> None:
    db.conn.execute("CREATE TABLE notes (n)")
    for end, token in (("ROLLBACK", None), ("COMMIT", 1)):
        db.conn.execute("BEGIN")
        db.conn.execute("INSERT INTO notes VALUES (1)")
        assert isinstance(db.claim("x", "a", 30), Acquired)
        assert db.conn.in_transaction
        db.conn.execute(end)
        assert db.token("x") == token
    with pytest.raises(litelease.NotInTransaction):
        db.joining().claim("y", "a", 30)


def test_a_statement_of_the_callers_may_be_half_read(db: Litelease) -> None:
    db.conn.execute("CREATE TABLE notes (n)")
    db.conn.executemany("INSERT INTO notes VALUES (?)", [(1,), (2,)])
    rows = db.conn.execute("SELECT n FROM notes")
    assert next(rows) == (1,)
    assert isinstance(db.claim("x", "a", 30), Acquired)
    assert list(rows) == [(2,)]


def test_the_rowid_of_the_caller_stays(db: Litelease) -> None:
    db.conn.execute("CREATE TABLE notes (n)")
    db.conn.execute("INSERT INTO notes (rowid, n) VALUES (77, 1)")
    db.claim("x", "a", 30)
    db.queue("mail").send("hello")
    assert db.conn.execute("SELECT last_insert_rowid()").fetchone() == (77,)


def test_a_locked_file_is_the_error_that_sqlite3_has(db: Litelease, tmp_path: Path) -> None:
    db.conn.execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(tmp_path / "app.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="database is locked") as caught:
        db.claim("x", "a", 30)
    assert getattr(caught.value, "sqlite_errorcode") == 5
    assert getattr(caught.value, "sqlite_errorname") in ("SQLITE_BUSY", None)
    other.execute("ROLLBACK")
    assert isinstance(db.claim("x", "a", 30), Acquired)
    other.close()


@pytest.mark.parametrize("close", [Litelease.close, lambda db: db.conn.close(), lambda db: sqlite3.Connection.close(db.conn)])
def test_a_closed_connection_is_refused_and_closed_indeed(close: object, tmp_path: Path) -> None:
    db = litelease.open(tmp_path / "app.sqlite3")
    assert isinstance(db.claim("x", "a", 30), Acquired)
    close(db)  # type: ignore[operator]
    for _ in range(2):
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            db.claim("y", "a", 30)
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            Litelease(db.conn).token("x")
    del db
    # SQLite deletes the log with the last connection.
    gc.collect()
    assert not (tmp_path / "app.sqlite3-wal").exists()


def test_a_connection_that_is_dropped_is_closed(tmp_path: Path) -> None:
    db = litelease.open(tmp_path / "app.sqlite3")
    db.claim("x", "a", 30)
    conn = db.conn
    del db
    assert Litelease(conn).token("x") == 1
    del conn
    gc.collect()  # sqlite3's own cache of statements refers to it
    assert not (tmp_path / "app.sqlite3-wal").exists()


def test_a_close_waits_for_the_verb_of_another_thread(db: Litelease) -> None:
    is_inside, may_go_on = threading.Event(), threading.Event()
    told: list[object] = []

    def progress() -> bool:
        if threading.current_thread() is thread and not is_inside.is_set():
            is_inside.set()
            may_go_on.wait(30)
        return False

    thread = threading.Thread(target=lambda: told.append(db.claim("x", "a", 30)))
    db.conn.set_progress_handler(progress, 1)
    thread.start()
    assert is_inside.wait(30)
    closing = threading.Thread(target=db.conn.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    may_go_on.set()
    thread.join()
    closing.join()
    assert isinstance(told[0], Acquired)


def test_the_functions_and_guards_need_no_loading(db: Litelease) -> None:
    db.conn.execute("CREATE TABLE notes (n)")
    db.guard("notes", "x")
    with pytest.raises(sqlite3.Error, match="x"):
        db.conn.execute("INSERT INTO notes VALUES (1)")
    claimed = db.claim("x", "a", 30)
    assert isinstance(claimed, Acquired) and db.present("x", claimed.lease.token)
    db.conn.execute("INSERT INTO notes VALUES (1)")
    litelease.load(db.conn)
    assert db.conn.execute("SELECT litelease_owner('x')").fetchone() == ("a",)


def test_a_forked_child_leaves_it_alone(db: Litelease) -> None:
    if (child := os.fork()) == 0:
        try:
            db.claim("x", "child", 30)
        except LiteleaseError as error:
            db.conn.close()
            os._exit(7 if "forked" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert isinstance(db.claim("x", "parent", 30), Acquired)


ENDS = """
import litelease, sys
db = litelease.open(sys.argv[1])
db.claim("x", "a", 30)
also = litelease.Litelease(db.conn)
"""


def test_an_interpreter_may_end_with_it_open(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ENDS, str(tmp_path / "db")], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_connection_is_opened_once(db: Litelease) -> None:
    db.close()
    with pytest.raises(LiteleaseError, match="opened before"):
        db.conn.__init__(":memory:")  # type: ignore[misc]
    with pytest.raises(sqlite3.ProgrammingError):
        db.claim("x", "a", 30)


AUDITED = """
import litelease, sqlite3, sys
others, is_watching = [], [False]
def hook(event, _):
    if event == sys.argv[2] and is_watching[0]:
        is_watching[0] = False
        others.append(sqlite3.connect(":memory:"))
sys.addaudithook(hook)
litelease.open(sys.argv[1]).close()
is_watching[0] = True
db = litelease.open(sys.argv[1])
db.claim("x", "a", 30)
assert len(others) == 1
assert others[0].execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,), "the verbs went to the hook's"
assert sqlite3.connect(sys.argv[1]).execute("SELECT owner FROM litelease_resources").fetchone() == ("a",)
"""


@pytest.mark.parametrize("event", ["sqlite3.connect", "sqlite3.connect/handle"])
def test_a_connection_that_an_audit_hook_opens_meanwhile_is_not_taken_for_it(event: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", AUDITED, str(tmp_path / "db"), event]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_an_interrupt_before_any_instruction_leaves_no_hold_of_sql(db: Litelease) -> None:
    litelease.load(db.conn)
    tried = 0
    for verb, before in (("hold", None), ("unhold", "hold")):
        sql = {"hold": "SELECT litelease_hold('x', 60000)", "unhold": "SELECT litelease_unhold('x')"}
        for number in range(1, 1000):
            if before:
                db.conn.execute(sql[before]).fetchone()
            left = [number]

            def stop() -> bool:
                left[0] -= 1
                return left[0] == 0

            db.conn.set_progress_handler(stop, 1)
            try:
                db.conn.execute(sql[verb]).fetchone()
                break
            except sqlite3.OperationalError as error:
                assert "interrupted" in str(error)
                tried += 1
            finally:
                db.conn.set_progress_handler(None, 0)
            # What was not told is not held: the next call of either is told what is so.
            assert db.conn.execute(sql["hold"]).fetchone() == (db.token("x"),)
            assert db.conn.execute(sql["unhold"]).fetchone() == (1,)
            assert db.owner("x") is None
        db.conn.execute(sql["unhold"]).fetchone()
    assert tried > 5
