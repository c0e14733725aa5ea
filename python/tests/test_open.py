"""``litelease.open``: the library runs the verbs itself, on the very connection that the caller has."""

from __future__ import annotations

import datetime
import gc
import inspect
import itertools
import os
import random
import re
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Generator

import pytest

import litelease
from litelease import Acquired, Cached, Election, Lease, Litelease, LiteleaseError, Pools, Session, Shards


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


# What a caller without a type checker may pass.
ODD: list[object] = [
    None, 0, 1, -1, 2**62, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 1.5, float("nan"), float("inf"), "", "x", "a\0b", "\ud800", b"x",
    bytearray(b"x"), True, (), [], {}, object(), datetime.timedelta(days=-1), datetime.timedelta.max, "x" * 100_000, type, len,
]  # fmt: skip
USUAL: dict[str, list[Any]] = {
    "name": ["x", "y"], "owner": ["a", "b"], "new_owner": ["b"], "ttl": [30], "ttl_ms": [5000], "now_ms": [100, 10**12], "token": [1, 2],
    "id": ["p"], "lease": [Lease("x", "a", 1, 5)], "body": ["hi"], "visibility": [30], "count": [1], "receipt": ["1"], "value": [1],
    "requester": ["c"], "within": [3], "reader": ["r"], "table": ["t"],
}  # fmt: skip
# They wait, have a file of their own, or need a Python that can load extensions.
OTHERS = {"hold", "claim_wait", "request_wait", "close", "joining", "queue", "worker", "work", "guard", "present", "withdraw", "conn"}


def verbs_of(db: Litelease) -> dict[str, Callable[..., Any]]:
    handles = {"leases": db, "pools": Pools(db.conn), "queue": db.queue("q"), "joined": db.joining()}
    return {
        f"{kind}.{verb}": getattr(handle, verb)
        for kind, handle in handles.items()
        for verb in dir(handle)
        if not verb.startswith("_") and verb not in OTHERS and callable(getattr(handle, verb))
    }


def told(verb: Callable[..., Any], given: dict[str, Any]) -> str:
    try:
        answer = repr(verb(**given))
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    # Receipts, tokens after a fence, times of this moment, and the names of the files.
    return re.sub(r"oldest_ms=\d+|token is \d+|receipt='[^']*'|[0-9a-f]{8}-[0-9a-f-]{27}|\d{13,}|0x[0-9a-f]+|own\.db|theirs\.db", "_", answer)


def test_whatever_is_passed_is_answered_as_on_a_connection_of_the_callers(tmp_path: Path) -> None:
    """One table of verbs: by the library's own statements or through Python's, answers and errors are the same."""
    own = litelease.open(tmp_path / "own.db")
    theirs = Litelease(sqlite3.connect(tmp_path / "theirs.db", isolation_level=None))
    theirs.bootstrap()
    for db in (own, theirs):
        db.conn.execute("CREATE TABLE t (id)")
        Pools(db.conn).register("p", 2)
    verbs, dice, kinds = list(zip(verbs_of(own).items(), verbs_of(theirs).values())), random.Random(32), set[str]()
    for _ in range(3000):
        (name, verb), other = dice.choice(verbs)
        given = {
            parameter: dice.choice(USUAL[parameter] if parameter in USUAL and dice.random() < 0.6 else ODD)
            for parameter, known in inspect.signature(verb).parameters.items()
            if known.default is known.empty or parameter == "now_ms" or dice.random() < 0.4
        }
        if "now_ms" in given and given["now_ms"] is None:
            given["now_ms"] = 100  # the clock would be read twice
        answers = told(verb, given), told(other, given)
        assert answers[0] == answers[1], (name, given)
        assert not own.conn.in_transaction and not theirs.conn.in_transaction, (name, given)
        kinds.add(answers[0].partition(":")[0])
    assert not kinds & {"AssertionError", "AttributeError", "KeyError", "IndexError", "RuntimeError", "SystemError"}, kinds
    assert {"TypeError", "InvalidTtl", "OverflowError", "NotInTransaction", "NoSuchPool", "UnicodeEncodeError"} <= kinds
    own.close()


def seconds_users(db: Litelease) -> list[Callable[[], object]]:
    """What opens the file a second time."""
    return [
        lambda: db.hold("x", ttl=5),
        lambda: db.claim_wait("x", "a", 5, 0.1),
        lambda: db.queue("q").worker(5),
        lambda: Election(db, "x"),
        lambda: Session(db, "x"),
        lambda: Shards.join(db, "g", 1, "m"),
        lambda: Cached(db, "x", lambda conn: 1),
    ]


@pytest.mark.parametrize("kind", ["own", "caller's"])
@pytest.mark.parametrize("how", ["moved", "replaced"])
def test_a_file_that_was_replaced_is_not_opened_a_second_time(tmp_path: Path, kind: str, how: str) -> None:
    """The lease was taken in the file that had come in its place, where the connection itself was still in the old one."""
    path = tmp_path / "app.sqlite3"
    litelease.open(path).close()
    db = litelease.open(path) if kind == "own" else Litelease(sqlite3.connect(path, isolation_level=None))
    db.hold("warm", ttl=5).release()
    os.rename(path, tmp_path / "elsewhere")
    if how == "replaced":
        litelease.open(path).close()
    for use in seconds_users(db):
        with pytest.raises(LiteleaseError, match="app.sqlite3 was moved, deleted or replaced: open it again"):
            use()
    assert path.exists() == (how == "replaced")
    if how == "replaced":
        assert litelease.open(path).leases() == []


@pytest.mark.parametrize("kind", ["own", "caller's"])
def test_a_connection_that_keeps_its_locks_has_no_second_one(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "app.sqlite3"
    litelease.open(path).close()
    db = litelease.open(path) if kind == "own" else Litelease(sqlite3.connect(path, isolation_level=None))
    db.conn.execute("PRAGMA locking_mode = EXCLUSIVE")
    for use in seconds_users(db):
        with pytest.raises(LiteleaseError, match="locking_mode = EXCLUSIVE"):
            use()
    assert isinstance(db.claim("x", "a", 5), Acquired)


def test_odd_names_of_files_are_names_or_refused(tmp_path: Path) -> None:
    os.chdir(tmp_path)
    for name in ("a?b#c%20.db", "é.db", " ", "line\nbreak.db", b"bytes.db", Path("path.db")):
        with litelease.open(name) as db, db.hold("x", ttl=5) as held:
            held.check()
            assert os.path.exists(name)
    for name in (5, None, object()):
        with pytest.raises(TypeError):
            litelease.open(name)  # type: ignore[arg-type]
    for name in ("", ":memory:"):
        with litelease.open(name) as db, pytest.raises(LiteleaseError, match="needs a file"):
            db.hold("x", ttl=5)
    with litelease.open("\udcff.db") as db, pytest.raises(LiteleaseError, match="UTF-8"):
        db.hold("x", ttl=5)
    for missing in ("no/folder.db", ".", "x" * 300):
        with pytest.raises(sqlite3.OperationalError):
            litelease.open(missing)
    with litelease.open("times.db", timeout=datetime.timedelta(seconds=1)) as db:
        assert isinstance(db.claim("x", "a", datetime.timedelta(seconds=5)), Acquired)
        for wrong in ("5", b"5", [], None):
            with pytest.raises(TypeError):
                db.hold("y", wrong)  # type: ignore[arg-type]


def test_whatever_is_closed_meanwhile_is_told_so(tmp_path: Path) -> None:
    """Threads are inside the verbs, and in between, when the connection closes."""
    for close, number in itertools.product([Litelease.close, lambda db: sqlite3.Connection.close(db.conn)], range(8)):
        path, told = tmp_path / f"{number}.db", []
        db = litelease.open(path)

        def work(db: Litelease = db, told: list[BaseException] = told) -> None:
            try:
                while True:
                    db.ensure("x", "a", 30), db.queue("q").send("y"), db.leases()
            except BaseException as error:
                told.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.002 * number)
        close(db)
        for thread in threads:
            thread.join(20)
        assert [type(error) for error in told] == [sqlite3.ProgrammingError] * 4, told
        with litelease.open(path) as again:
            assert again.conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_campaign_on_a_closed_connection_is_refused(db: Litelease) -> None:
    election = Election(db, "leader")
    with election.campaign(1, ttl=5):
        pass
    db.close()
    with pytest.raises(sqlite3.ProgrammingError):
        election.campaign(1, ttl=5)
