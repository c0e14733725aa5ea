"""The verbs on connections of every kind, and what they refuse."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import litelease
from litelease import (
    Acquired,
    Busy,
    ExpiredOnArrival,
    InvalidLeaseRow,
    InvalidTtl,
    Litelease,
    NewerFormat,
    NotBootstrapped,
    Rejected,
    Released,
    Renewed,
    SchemaMismatch,
    TimeOverflow,
    UnexpectedChange,
)

LONG = 3600.0


def fresh(**options: object) -> Litelease:
    db = Litelease(sqlite3.connect(":memory:", **options))  # type: ignore[arg-type]
    db.bootstrap()
    return db


def life_cycle(db: Litelease) -> None:
    claimed = db.claim("x", "a", LONG)
    assert isinstance(claimed, Acquired) and claimed.lease.token == 1
    assert isinstance(db.claim("x", "b", LONG), Busy)
    assert isinstance(db.renew(claimed.lease, 2 * LONG), Renewed)
    assert db.owner("x") == "a" and db.token("x") == 1
    assert db.release(claimed.lease) == Released("x", 1)
    again = db.claim("x", "b", LONG)
    assert isinstance(again, Acquired) and again.lease.token == 2


def test_a_renewal_by_name_and_owner_is_told_its_verb() -> None:
    db = fresh()
    lease = db.claim("x", "a", LONG).lease
    for verb, call in {
        "renew": lambda: db.renew("x", "a", LONG),  # type: ignore[arg-type,misc]
        "release": lambda: db.release("x"),  # type: ignore[arg-type]
        "transfer": lambda: db.transfer("x", "a", "b"),  # type: ignore[arg-type]
    }.items():
        with pytest.raises(TypeError, match=f"{verb}_by_owner|positional"):
            call()
    assert db.inspect("x") == lease
    old, new = lease, db.transfer(lease, "a", LONG).lease
    assert isinstance(db.renew(old, LONG), Rejected) and isinstance(db.release(old), Rejected)
    assert isinstance(db.renew_by_owner("x", "a", LONG), Renewed)
    assert db.release(new) == Released("x", 2)


@pytest.mark.parametrize("isolation_level", [None, "", "DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
def test_every_isolation_level_works_and_leaves_no_transaction_open(isolation_level: str | None) -> None:
    db = fresh(isolation_level=isolation_level)
    life_cycle(db)
    assert not db.conn.in_transaction
    assert db.conn.isolation_level == isolation_level


@pytest.mark.parametrize("is_joined", [False, True])
@pytest.mark.parametrize("isolation_level", [None, ""])
def test_last_insert_rowid_is_the_callers(isolation_level: str | None, is_joined: bool) -> None:
    """An order was booked under the rowid of a row of ours: the verbs that insert changed it."""
    db = fresh(isolation_level=isolation_level)
    conn = db.conn
    conn.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    lease = db.claim("x", "a", LONG).lease
    pools, jobs = litelease.Pools(conn), db.queue("jobs")
    verbs = {
        "claim": lambda: db.claim("y", "a", LONG),
        "ensure": lambda: db.ensure("z", "a", LONG),
        "attach": lambda: db.attach(lease, "value"),
        "limit": lambda: db.limit("x", lease.token, progress_within=LONG),
        "request": lambda: db.request("x", "b", LONG),
        "read": lambda: db.read("r", "b", LONG),
        "raise_name": lambda: db.raise_name("n", 7),
        "register": lambda: pools.register("00000000-0000-4000-8000-000000000001", 3),
        "borrow": lambda: pools.borrow("00000000-0000-4000-8000-000000000001", LONG),
        "set_max_attempts": lambda: jobs.set_max_attempts(3),
        "send": lambda: jobs.send("body", key="k"),
        "receive": lambda: jobs.receive(LONG),
        "busy": lambda: db.claim("x", "b", LONG),
        "release": lambda: db.release(lease),
    }
    for rowid, (name, verb) in enumerate(verbs.items(), 4711):
        if is_joined:
            conn.execute("BEGIN IMMEDIATE")
        conn.execute("INSERT INTO orders VALUES (?)", (rowid,))
        if not is_joined:
            conn.commit()
        verb()
        assert conn.in_transaction == is_joined, name
        if is_joined and rowid % 3 == 0:
            conn.rollback()
        elif is_joined:
            conn.commit()
        assert conn.execute("SELECT last_insert_rowid()").fetchone() == (rowid,), name


def test_row_and_text_factories_are_the_callers() -> None:
    for row_factory in (sqlite3.Row, lambda cursor, row: {"row": row}):
        for text_factory in (str, bytes, lambda data: data.decode()):
            db = fresh()
            db.conn.row_factory, db.conn.text_factory = row_factory, text_factory
            life_cycle(db)
            assert db.conn.row_factory is row_factory and db.conn.text_factory is text_factory


def test_a_claim_joins_the_callers_transaction_and_disappears_with_it() -> None:
    for isolation_level in (None, ""):
        db = fresh(isolation_level=isolation_level)
        db.conn.execute("CREATE TABLE work (id)")
        with pytest.raises(ZeroDivisionError):
            with db.conn:
                db.conn.execute("BEGIN IMMEDIATE")
                db.conn.execute("INSERT INTO work VALUES (1)")
                assert isinstance(db.claim("x", "a", LONG), Acquired)
                assert db.conn.in_transaction
                raise ZeroDivisionError
        if isolation_level is None and db.conn.in_transaction:
            db.conn.rollback()
        assert db.token("x") is None
        with db.conn:
            db.conn.execute("INSERT INTO work VALUES (1)") if isolation_level == "" else db.conn.execute("BEGIN IMMEDIATE")
            assert isinstance(db.claim("x", "a", LONG), Acquired)
        if db.conn.in_transaction:
            db.conn.commit()
        assert db.owner("x") == "a"


def test_a_failed_verb_leaves_no_transaction_open_and_nothing_written() -> None:
    db = fresh()
    for failing in (
        lambda: db.claim("x", "a", 0),
        lambda: db.claim("x", "a", -1.5),
        lambda: db.claim("x", "a", float("nan")),
        lambda: db.claim("x", "a", ttl_ms=0),
    ):
        with pytest.raises(InvalidTtl):
            failing()
    with pytest.raises(TimeOverflow):
        db.claim("x", "a", 1e30)
    with pytest.raises(TimeOverflow):
        db.claim("x", "a", ttl_ms=2**63 - 1)
    with pytest.raises(OverflowError, match="now_ms"):
        db.claim("x", "a", LONG, now_ms=2**63)
    with pytest.raises(TypeError, match="either ttl"):
        db.claim("x", "a")
    with pytest.raises(TypeError, match="must be a str"):
        db.claim("x", 7, LONG)  # type: ignore[arg-type]
    assert not db.conn.in_transaction and db.token("x") is None
    brief = db.claim("x", "a", 0.0001, now_ms=100)
    assert isinstance(brief, Acquired) and brief.lease.expires_at_ms == 101, "rounded up"


def test_a_table_that_sqlite_respelled_is_ours_and_a_difference_names_the_column() -> None:
    db = fresh()
    db.claim("old", "a", ttl_ms=50, now_ms=100)
    db.purge(200, now_ms=200)
    for table in ("litelease_resources", "litelease_meta"):
        db.conn.execute(f"ALTER TABLE {table} RENAME TO away")
        db.conn.execute(f"ALTER TABLE away RENAME TO {table}")
    db.conn.execute("ALTER TABLE litelease_resources RENAME COLUMN owner TO who")
    db.conn.execute('ALTER TABLE litelease_resources RENAME COLUMN who TO "owner"')
    ((sql,),) = db.conn.execute("SELECT sql FROM sqlite_schema WHERE name = 'litelease_resources'").fetchall()
    assert sql.startswith('CREATE TABLE "litelease_resources"') and '"owner" TEXT' in sql
    assert isinstance(db.claim("x", "a", LONG), Acquired)
    db.conn.execute("ALTER TABLE litelease_resources ADD COLUMN notes TEXT")
    with pytest.raises(SchemaMismatch, match="is not as Litelease makes it: it is .* notes TEXT.*, and should be"):
        db.claim("x", "a", LONG)


def test_a_missing_or_foreign_table_is_named() -> None:
    db = Litelease(sqlite3.connect(":memory:"))
    for verb in (lambda: db.claim("x", "a", 1), lambda: db.owner("x"), lambda: db.purge(0)):
        with pytest.raises(NotBootstrapped, match=r"bootstrap\(\)"):
            verb()
    db.conn.execute("CREATE TABLE litelease_resources (name TEXT PRIMARY KEY, owner BLOB)")
    with pytest.raises(SchemaMismatch, match="owner BLOB.*, and should be .CREATE TABLE litelease_resources"):
        db.bootstrap()
    for intruder, kind in (
        ("CREATE TRIGGER t BEFORE INSERT ON litelease_resources BEGIN SELECT RAISE(IGNORE); END", "trigger"),
        ("CREATE UNIQUE INDEX i ON litelease_resources (owner)", "unique index"),
    ):
        db = fresh()
        db.conn.execute(intruder)
        with pytest.raises(SchemaMismatch, match=f"a {kind} that is not ours"):
            db.claim("x", "a", LONG)
    db = fresh()
    db.claim("x", "a", ttl_ms=50, now_ms=100)
    assert db.purge(200, now_ms=200) == 1
    db.conn.execute("UPDATE litelease_meta SET format = 7")
    with pytest.raises(NewerFormat, match="format 7"):
        db.claim("x", "a", LONG)


@pytest.mark.parametrize("damage", ["token = 0", "token = 'x'", "owner = NULL", "owner = x'61'", "lease_expires_at_ms = 1.5"])
def test_an_invalid_row_is_reported_and_left_alone(damage: str) -> None:
    db = fresh(isolation_level=None)
    db.claim("x", "a", ttl_ms=50, now_ms=100)
    db.conn.execute("PRAGMA ignore_check_constraints = 1")
    db.conn.execute(f"UPDATE litelease_resources SET {damage}")
    for verb in (
        lambda: db.claim("x", "b", LONG),
        lambda: db.renew_by_owner("x", "a", LONG),
        lambda: db.release_by_owner("x", "a"),
        lambda: db.inspect("x"),
        lambda: db.token("x"),
        lambda: db.purge(900, now_ms=900),
    ):
        with pytest.raises(InvalidLeaseRow):
            verb()
    assert not db.conn.in_transaction


def test_a_swallowed_write_is_an_error_and_not_a_grant() -> None:
    db = fresh(isolation_level=None)
    db.conn.execute("CREATE TRIGGER t BEFORE INSERT ON litelease_resources BEGIN SELECT RAISE(IGNORE); END")
    db.conn.execute("PRAGMA writable_schema = ON")
    db.conn.execute("UPDATE sqlite_schema SET tbl_name = 'elsewhere' WHERE name = 't'")
    with pytest.raises(UnexpectedChange):
        db.claim("x", "a", LONG)
    assert not db.conn.in_transaction


def test_sqlites_own_errors_come_as_themselves(tmp_path: Path) -> None:
    file = tmp_path / "app.sqlite3"
    writer = Litelease(sqlite3.connect(file, isolation_level=None))
    writer.conn.execute("PRAGMA journal_mode = WAL")
    writer.bootstrap()
    writer.claim("live", "a", LONG)
    db = Litelease(sqlite3.connect(file, timeout=0))
    writer.conn.execute("BEGIN IMMEDIATE")
    assert isinstance(db.claim("live", "b", LONG), Busy), "without the write lock"
    with pytest.raises(sqlite3.OperationalError, match="database is locked"):
        db.claim("free", "b", LONG)
    assert not db.conn.in_transaction
    writer.conn.execute("ROLLBACK")
    read_only = Litelease(sqlite3.connect(f"file:{file}?mode=ro", uri=True))
    assert read_only.owner("live") == "a"
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        read_only.claim("free", "b", LONG)


def test_the_clock_is_read_after_the_write_lock_is_held(tmp_path: Path) -> None:
    file = tmp_path / "app.sqlite3"
    writer = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    db = Litelease(sqlite3.connect(file, timeout=60))
    db.bootstrap()
    writer.execute("BEGIN IMMEDIATE")
    before_ms = time.time_ns() // 1_000_000
    timer = threading.Timer(0.4, lambda: writer.execute("COMMIT"))
    timer.start()
    claimed = db.claim("x", "a", 2)
    timer.join()
    assert isinstance(claimed, Acquired)
    assert claimed.lease.expires_at_ms >= before_ms + 400 + 2000


def test_a_grant_that_is_over_when_it_arrives_is_not_reported_as_acquired() -> None:
    db = fresh(isolation_level=None)
    # A statement trace that is slow makes the commit slow.
    db.conn.set_trace_callback(lambda sql: time.sleep(0.03) if sql.startswith("COMMIT") else None)
    with pytest.raises(ExpiredOnArrival) as caught:
        db.claim("x", "a", 0.01)
    assert caught.value.lease.token == 1


@pytest.mark.parametrize("name", ["", " ", "a'b\"c", "nul\0byte", "🦀", "cafe\u0301", "x" * (1 << 20)])
def test_odd_text_comes_back_as_it_was(name: str) -> None:
    db = fresh()
    assert isinstance(db.claim(name, name, LONG), Acquired)
    assert db.owner(name) == name
    assert isinstance(db.release_by_owner(name, name), Released)


RACER = """
import sqlite3, sys
from litelease import Acquired, Litelease
db = Litelease(sqlite3.connect(sys.argv[1], timeout=60))
db.bootstrap()
print(isinstance(db.claim("x", sys.argv[2], 3600), Acquired))
"""


def test_processes_that_race_on_a_fresh_file_have_one_winner(tmp_path: Path) -> None:
    for attempt in range(3):
        file = str(tmp_path / f"{attempt}.sqlite3")
        start = [sys.executable, "-c", RACER, file]
        racers = [subprocess.Popen([*start, str(n)], stdout=subprocess.PIPE, text=True) for n in range(8)]
        answers = [racer.communicate()[0].strip() for racer in racers]
        assert sorted(answers) == ["False"] * 7 + ["True"]


def test_loading_works_or_says_what_to_do_instead() -> None:
    conn = sqlite3.connect(":memory:")
    if not hasattr(conn, "enable_load_extension"):
        with pytest.raises(sqlite3.NotSupportedError, match="Tracker instead"):
            litelease.load(conn)
        return
    litelease.load(conn)
    litelease.load(conn)
    assert conn.execute("SELECT litelease_bootstrap()").fetchone() == (1,)
    assert conn.execute("SELECT litelease_claim('x', 'a', 30000)").fetchone() == (1,)
    # Both ways see the same leases.
    assert Litelease(conn).owner("x") == "a"
    assert isinstance(Litelease(conn).claim("x", "b", 30), Busy)
    with pytest.raises(sqlite3.OperationalError):  # loading is not left allowed
        conn.execute("SELECT load_extension('x')")
    conn.close()


def test_names_and_owners_are_text() -> None:
    db = fresh()
    for wrong in (None, b"x", 5, 5.5, True):
        with pytest.raises(TypeError):
            db.claim(wrong, "a", LONG)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            db.token(wrong)  # type: ignore[arg-type]
        if wrong is not None:
            with pytest.raises(TypeError):
                db.claim("x", wrong, LONG)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        db.claim("x", None, LONG)  # type: ignore[arg-type]
    assert db.conn.execute("SELECT count(*) FROM litelease_resources").fetchone() == (0,)


def examples() -> list[str]:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    return [block.split("```")[0] for block in readme.split("```python\n")[1:]]


def test_the_documents_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = examples()
    assert len(blocks) == 10 and ".hold(" in blocks[0]
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    can_load = hasattr(sqlite3.Connection, "enable_load_extension")
    for block in blocks:
        if can_load or "guard(" not in block:
            exec(block, names)
    db = names["db"]
    assert isinstance(db, Litelease) and not db.conn.in_transaction, "everything is stored"


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_the_documents_examples_have_the_right_types(tmp_path: Path, checker: str) -> None:
    pytest.importorskip(checker)
    package = str(Path(litelease.__file__).parents[1])
    (tmp_path / "readme.py").write_text("\n".join(examples()))
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "extraPaths": [package]}))
    words = {"mypy": ["--strict", "readme.py"], "pyright": ["--pythonpath", sys.executable]}[checker]
    path = {} if "site-packages" in package else {"MYPYPATH": package}
    run = [sys.executable, "-m", checker, *words]
    done = subprocess.run(run, cwd=tmp_path, env={**os.environ, **path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not hasattr(sqlite3.Connection, "enable_load_extension"), reason="cannot load extensions")
def test_two_sqlite_libraries_in_one_process_do_not_disturb_each_other(tmp_path: Path) -> None:
    apsw = pytest.importorskip("apsw")
    for _ in range(3):
        ours = sqlite3.connect(tmp_path / "ours.sqlite3", isolation_level=None)
        litelease.load(ours)
        other = apsw.Connection(str(tmp_path / "other.sqlite3"))
        other.enable_load_extension(True)
        other.load_extension(litelease.loadable_path())
        for ask in (lambda sql: ours.execute(sql).fetchone(), lambda sql: next(other.execute(sql))):
            assert ask("SELECT litelease_bootstrap()") == (1,)
            token = ask("SELECT litelease_claim('x', 'a', 30000)")[0]
            assert ask("SELECT litelease_owner('x')") == ("a",)
            assert ask("SELECT owner, token FROM litelease_leases") == ("a", token)
            assert ask("SELECT litelease_release('x', 'a')") == (1,)
        ours.close()
        assert next(other.execute("SELECT litelease_claim('y', 'b', 30000)"))[0] is not None
        assert next(other.execute("SELECT litelease_release('y', 'b')")) == (1,)
        other.close()


@pytest.mark.skipif(not hasattr(sqlite3.Connection, "enable_load_extension"), reason="cannot load extensions")
def test_a_statement_that_would_delay_the_commit_means_no_grant(tmp_path: Path) -> None:
    conn = sqlite3.connect(tmp_path / "app.sqlite3", isolation_level=None)
    litelease.load(conn)
    conn.execute("SELECT litelease_bootstrap()").fetchone()
    running = conn.execute("PRAGMA journal_mode")
    with pytest.raises(sqlite3.OperationalError, match="another statement of this connection is running"):
        conn.execute("SELECT litelease_claim('x', 'a', 30000)").fetchone()
    running.fetchall()
    assert conn.execute("SELECT litelease_claim('x', 'a', 30000)").fetchone() == (1,)


_BAD = "CREATE TRIGGER bad BEFORE UPDATE ON litelease_resources BEGIN SELECT RAISE(IGNORE); END"


def test_a_schema_that_was_right_is_looked_at_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "leases.sqlite3"
    db, other = Litelease(sqlite3.connect(path, isolation_level=None)), sqlite3.connect(path, isolation_level=None)
    db.bootstrap()
    db.claim("x", "a", ttl=60)
    for connection, sql in ((other, _BAD), (db.conn, _BAD.replace("TRIGGER", "TEMP TRIGGER"))):
        connection.execute(sql)
        with pytest.raises(SchemaMismatch):
            db.release_by_owner("x", "a")
        connection.execute("DROP TRIGGER bad")
        assert db.owner("x") == "a"


def test_what_was_right_in_a_transaction_that_was_rolled_back_does_not_count() -> None:
    # Its number is given again, to another schema.
    db = Litelease(sqlite3.connect(":memory:", isolation_level=None))
    db.bootstrap()
    db.conn.execute("BEGIN")
    db.conn.execute("CREATE TABLE harmless (x)")
    db.claim("x", "a", ttl=60)
    db.conn.execute("ROLLBACK")
    db.conn.execute(_BAD)
    with pytest.raises(SchemaMismatch):
        db.claim("x", "a", ttl=60)
