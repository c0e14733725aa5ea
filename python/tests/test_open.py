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
