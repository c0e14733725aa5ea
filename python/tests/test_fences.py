"""Guarded tables, checkpoints and gates, from Python."""

from __future__ import annotations

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
    Admitted,
    CannotGuard,
    Checkpoint,
    Gate,
    GuardInfo,
    GuardMissing,
    Litelease,
    LiteleaseError,
    NotBootstrapped,
    SchemaMismatch,
    Stale,
    Stored,
    Transferred,
    is_stale,
)

LONG = 3600.0
CAN_LOAD = hasattr(sqlite3.Connection, "enable_load_extension")
guards = pytest.mark.skipif(not CAN_LOAD, reason="this Python cannot load extensions")


def fresh(path: object = ":memory:") -> Litelease:
    db = Litelease(sqlite3.connect(str(path), isolation_level=None))
    db.bootstrap()
    return db


def two_grants(db: Litelease, name: str = "writer") -> None:
    assert isinstance(db.claim(name, "a", LONG), Acquired)
    handed = db.transfer_by_owner(name, "a", "b", LONG)
    assert isinstance(handed, Transferred) and handed.lease.token == 2


def refused(db: Litelease, sql: str) -> bool:
    try:
        db.conn.execute(sql)
    except sqlite3.IntegrityError as error:
        assert is_stale(error), error
        return True
    return False


@guards
def test_a_table_guarded_by_connection_takes_the_newest_token_only() -> None:
    db = fresh()
    db.conn.execute("CREATE TABLE orders (id)")
    db.guard("orders", "writer")
    db.guard("orders", "writer")
    two_grants(db)
    insert = "INSERT INTO orders VALUES (1)"
    assert refused(db, insert)
    assert not db.present("writer", 1) and refused(db, insert)
    assert db.present("writer", 2) and not refused(db, insert)
    db.withdraw("writer")
    assert refused(db, insert)
    assert db.guards() == [GuardInfo("orders", "writer", None, False, True, db.guards()[0].refusals)]
    assert db.guards()[0].refusals >= 3
    assert db.unguard("orders", "nobody") == 0 and refused(db, insert)
    assert (db.unguard("orders", "writer"), db.unguard("orders")) == (1, 0)
    assert not refused(db, insert)


@guards
def test_a_strict_guard_wants_a_live_lease() -> None:
    db = fresh()
    db.conn.execute("CREATE TABLE orders (id)")
    db.guard("orders", "writer", strict=True)
    two_grants(db)
    assert db.present("writer", 2)
    assert not refused(db, "INSERT INTO orders VALUES (1)")
    db.release_by_owner("writer", "b")
    assert refused(db, "INSERT INTO orders VALUES (1)")


def test_a_table_guarded_by_column_needs_no_extension_to_write_to(tmp_path: Path) -> None:
    db = fresh(tmp_path / "app.sqlite3")
    db.conn.execute("CREATE TABLE orders (id, lease_token INTEGER)")
    db.guard("orders", "writer", "lease_token")
    two_grants(db)
    plain = Litelease(sqlite3.connect(tmp_path / "app.sqlite3", isolation_level=None))
    assert refused(plain, "INSERT INTO orders VALUES (1, 1)")
    assert refused(plain, "INSERT INTO orders VALUES (1, NULL)")
    assert not refused(plain, "INSERT INTO orders VALUES (1, 2)")
    assert refused(plain, "UPDATE orders SET id = 2")
    assert refused(plain, "DELETE FROM orders")


@guards
def test_errors_come_as_themselves() -> None:
    db = fresh()
    with pytest.raises(CannotGuard, match="no such table"):
        db.guard("orders", "writer")
    db.conn.execute("CREATE TABLE orders (id)")
    with pytest.raises(CannotGuard, match='"nope" does not exist'):
        db.guard("orders", "writer", "nope")
    db.guard("orders", "writer")
    db.conn.execute("DROP TRIGGER litelease_guard_1_insert")
    with pytest.raises(GuardMissing, match="orders"):
        db.present("writer", 1)
    assert not db.guards()[0].is_intact
    db.guard("orders", "writer")
    assert db.guards()[0].is_intact
    with pytest.raises(NotBootstrapped):
        Litelease(sqlite3.connect(":memory:")).guards()
    with pytest.raises(TypeError, match="must be a str, got 7"):
        db.guard("orders", 7)  # type: ignore[arg-type]


@pytest.mark.skipif(CAN_LOAD, reason="this Python can load extensions")
def test_a_python_that_cannot_load_the_extension_says_what_needs_it() -> None:
    db = fresh()
    db.conn.execute("CREATE TABLE orders (id, lease_token INTEGER)")
    for call in (lambda: db.guard("orders", "n"), lambda: db.present("n", 1), lambda: db.withdraw("n")):
        with pytest.raises(sqlite3.NotSupportedError, match="guard by connection needs the extension.*by a column instead"):
            call()
    db.guard("orders", "n", "lease_token")
    assert [(guard.table, guard.column, guard.is_intact) for guard in db.guards()] == [("orders", "lease_token", True)]
    assert db.unguard("orders") == 1 and db.guards() == []


def test_a_late_checkpoint_is_refused_and_the_successor_reads_the_last() -> None:
    db = fresh()
    assert db.last_checkpoint("writer") is None
    assert db.checkpoint("writer", 1, "x") == Stale(None)
    two_grants(db)
    for value in ("row 4711", 7, 1.5, b"\0\xff", None):
        assert db.checkpoint("writer", 2, value) == Stored()
        last = db.last_checkpoint("writer")
        assert isinstance(last, Checkpoint) and (last.token, last.value) == (2, value)
    assert db.checkpoint("writer", 1, "late") == Stale(2)
    assert db.checkpoint("writer", 3, "early") == Stale(2)
    assert not db.conn.in_transaction


def test_a_checkpoint_waits_for_the_write_lock_before_it_looks(tmp_path: Path) -> None:
    db, other = fresh(tmp_path / "app.sqlite3"), fresh(tmp_path / "app.sqlite3")
    two_grants(db)
    other.conn.execute("BEGIN IMMEDIATE")
    assert isinstance(other.transfer_by_owner("writer", "b", "c", LONG), Transferred)
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(fresh(tmp_path / "app.sqlite3").checkpoint("writer", 2, "x")))
    thread.start()
    time.sleep(0.1)
    other.conn.execute("COMMIT")
    thread.join()
    assert done == [Stale(3)]


def test_a_refusal_is_told_from_other_errors() -> None:
    db = fresh()
    db.conn.execute("CREATE TABLE t (x UNIQUE)")
    db.conn.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError) as error:
        db.conn.execute("INSERT INTO t VALUES (1)")
    assert not is_stale(error.value)


def test_tokens_are_numbers() -> None:
    db = fresh()
    for call in (db.checkpoint, lambda name, token, _: db.admit(name, token)):
        with pytest.raises(TypeError, match="token must be a whole number"):
            call("x", "7", None)
        with pytest.raises(OverflowError):
            call("x", 2**63, None)


def test_a_checkpoint_joins_the_transaction_of_its_caller() -> None:
    db = fresh()
    two_grants(db)
    db.conn.execute("BEGIN")
    assert db.checkpoint("writer", 2, "x") == Stored()
    db.conn.execute("ROLLBACK")
    assert db.last_checkpoint("writer") is None


def test_a_gate_remembers_the_largest_token(tmp_path: Path) -> None:
    with Gate(tmp_path / "gate.sqlite3") as gate:
        assert gate._file.conn.execute("PRAGMA synchronous").fetchone() == (2,)
        assert gate.admit("printer", 0) == Stale(0)
        assert gate.admit("printer", 7) == Admitted()
        assert gate.admit("printer", 7) == Admitted()
    again = (
        "import sys, litelease; gate = litelease.Gate(sys.argv[1]);"
        "print(gate.admit('printer', 6), gate.admit('printer', 8), gate.admit('other', 1), gate.admit('printer', -1))"
    )
    told = subprocess.run([sys.executable, "-c", again, tmp_path / "gate.sqlite3"], capture_output=True, text=True)
    assert told.stdout.strip() == "Stale(newest=7) Admitted() Admitted() Stale(newest=8)", told.stderr
    with pytest.raises(LiteleaseError, match="journal mode stays memory"):
        Gate(":memory:")
    with Gate(tmp_path / "gate.sqlite3") as gate, pytest.raises(OverflowError):
        gate.admit("printer", 2**63)


def test_a_gate_can_be_in_the_transaction_of_its_target() -> None:
    target = Litelease(sqlite3.connect(":memory:", isolation_level=None))
    target.conn.execute("BEGIN")
    assert target.admit("import", 7) == Admitted()
    target.conn.execute("ROLLBACK")
    assert target.admit("import", 6) == Admitted()
    target.conn.execute("DROP TABLE litelease_gates")
    target.conn.execute("CREATE TABLE litelease_gates (name, token)")
    with pytest.raises(SchemaMismatch, match="litelease_gates"):
        target.admit("import", 7)


def test_the_module_lists_what_it_has() -> None:
    assert all(hasattr(litelease, name) for name in litelease.__all__)
