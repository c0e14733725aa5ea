"""Tokens that survive a power cut, a restore and an old backup, through Python's own ``sqlite3``."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import litelease
from litelease import Acquired, FloorTooLow, Lease, Litelease, Rejected, TokenExhausted

EPOCH = 1 << 32


def open_db(path: Path | str, mode: str = "delete", synchronous: int = 2) -> Litelease:
    conn = sqlite3.connect(path)
    conn.execute(f"PRAGMA journal_mode = {mode}")
    conn.execute(f"PRAGMA synchronous = {synchronous}")
    return Litelease(conn)


def tables(db: Litelease) -> list[str]:
    return [name for (name,) in db.conn.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]


def epoch(db: Litelease) -> tuple[int, int]:
    floor, boot = db.conn.execute("SELECT token_floor, boot FROM litelease_meta").fetchone()
    return floor, boot


def reboot(db: Litelease) -> None:
    """Makes the epoch another boot's, as it is after the machine was off."""
    db.conn.execute("UPDATE litelease_meta SET boot = 1")
    db.conn.commit()


def token(db: Litelease, name: str, now_ms: int = 0) -> int:
    claimed = db.claim(name, "a", ttl_ms=50, now_ms=now_ms)
    assert isinstance(claimed, Acquired)
    return claimed.lease.token


@pytest.mark.parametrize("bootstraps", [True, False])
@pytest.mark.parametrize(("mode", "synchronous"), [("delete", 2), ("wal", 1), ("truncate", 1), ("memory", 2), ("wal", 0)])
def test_a_weak_connection_leaves_a_mark_and_its_synchronous_as_it_was(
    tmp_path: Path, mode: str, synchronous: int, bootstraps: bool
) -> None:
    db = open_db(tmp_path / "db", mode, synchronous)
    if bootstraps:
        db.bootstrap()
    else:
        db.conn.execute(DEFINITION)
    assert token(db, "x") == 1
    floor, boot = epoch(db)
    assert floor == 0 and boot > 1
    reboot(db)
    if bootstraps:
        db.bootstrap()
        assert epoch(db) == (EPOCH, boot)
    assert token(db, "x", 50) == EPOCH + 1
    assert token(db, "x", 100) == EPOCH + 2, "once per boot"
    assert epoch(db) == (EPOCH, boot)
    assert db.conn.execute("PRAGMA synchronous").fetchone() == (synchronous,)


STRONG = [("wal", 2), ("truncate", 2), ("persist", 2), ("delete", 3)]


@pytest.mark.parametrize(("mode", "synchronous"), STRONG)
def test_bootstrap_records_the_boot_on_a_strong_connection_too(tmp_path: Path, mode: str, synchronous: int) -> None:
    db = open_db(tmp_path / "db", mode, synchronous)
    db.bootstrap()
    boot = epoch(db)[1]
    assert epoch(db)[0] == 0 and boot > 1
    assert [token(db, "x", now) for now in (0, 50, 100)] == [1, 2, 3]
    reboot(db)
    db.bootstrap()
    assert epoch(db) == (EPOCH, boot)
    assert token(db, "x", 150) == EPOCH + 1
    assert db.conn.execute("PRAGMA synchronous").fetchone() == (synchronous,)
    # A weaker one finds it recorded, inside its transaction too.
    weak = open_db(tmp_path / "db", mode, 1)
    weak.conn.execute("BEGIN IMMEDIATE")
    assert token(weak, "x", 200) == EPOCH + 2
    assert epoch(weak) == (EPOCH, boot)
    weak.conn.commit()


@pytest.mark.parametrize(("mode", "synchronous"), STRONG)
def test_a_strong_claim_outside_a_transaction_records_nothing(tmp_path: Path, mode: str, synchronous: int) -> None:
    db = open_db(tmp_path / "db", mode, synchronous)
    db.conn.execute(DEFINITION)
    assert [token(db, "x", now) for now in (0, 50, 100)] == [1, 2, 3]
    assert tables(db) == ["litelease_resources"]
    # Unless another boot may have lost something.
    open_db(tmp_path / "db", mode, 1).bootstrap()
    assert epoch(db)[0] == 0
    reboot(db)
    assert token(db, "x", 150) == EPOCH + 1


def test_in_a_strong_transaction_the_mark_stays_unsure_until_it_is_confirmed(tmp_path: Path) -> None:
    db = open_db(tmp_path / "db", "wal", 2)
    db.bootstrap()
    reboot(db)
    db.conn.execute("BEGIN IMMEDIATE")
    assert token(db, "x") == EPOCH + 1
    db.conn.commit()
    assert epoch(db)[0] == EPOCH and epoch(db)[1] < 0
    db.bootstrap()
    assert epoch(db)[0] == EPOCH and epoch(db)[1] > 1


@pytest.mark.parametrize("synchronous", [1, 2])
def test_a_grant_that_crosses_into_the_next_epoch_records_it(tmp_path: Path, synchronous: int) -> None:
    verbs = {
        "claim": lambda db: db.claim("x", "b", ttl_ms=50, now_ms=100),
        "transfer": lambda db: db.transfer_by_owner("x", "a", "b", ttl_ms=50, now_ms=10),
        "break": lambda db: db.break_lease("x", now_ms=10),
        "raise_name": lambda db: db.raise_name("x", EPOCH),
        "raise_floor": lambda db: (db.raise_floor(EPOCH), db.claim("x", "b", ttl_ms=50, now_ms=100)),
        "min_token": lambda db: db.claim("x", "b", ttl_ms=50, now_ms=100, min_token=EPOCH),
    }
    for verb, call in verbs.items():
        db = open_db(tmp_path / verb, "wal", synchronous)
        db.bootstrap()
        boot = epoch(db)[1]
        db.claim("x", "a", ttl_ms=50, now_ms=0, min_token=EPOCH - 2)
        assert db.token("x") == EPOCH - 1 and epoch(db) == (0, boot), verb
        call(db)
        assert (db.token("x") or 0) > EPOCH, verb
        assert epoch(db) == (EPOCH, boot), f"{verb}: durably"


def test_in_a_transaction_the_mark_is_part_of_it_and_made_sure_later(tmp_path: Path) -> None:
    db = open_db(tmp_path / "db")
    db.conn.execute(DEFINITION)
    db.conn.execute("BEGIN IMMEDIATE")
    assert token(db, "x") == 1
    assert epoch(db)[1] < 0, "it may still get lost"
    db.conn.rollback()
    assert tables(db) == ["litelease_resources"]
    db.conn.execute("BEGIN IMMEDIATE")
    assert token(db, "x") == 1
    db.conn.commit()
    assert epoch(db)[1] < 0
    assert token(db, "y") == 1
    assert epoch(db)[1] > 0


def test_a_mark_that_cannot_be_left_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    db = open_db(tmp_path / "db")
    db.conn.execute(DEFINITION)
    other = sqlite3.connect(tmp_path / "db")
    other.execute("BEGIN IMMEDIATE")
    db.conn.execute("PRAGMA busy_timeout = 0")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        db.claim("x", "a", ttl=30)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        db.bootstrap()
    assert db.conn.execute("PRAGMA synchronous").fetchone() == (2,)
    assert not db.conn.in_transaction
    other.rollback()
    assert token(db, "x") == 1


def test_a_read_only_connection_bootstraps_without_a_mark(tmp_path: Path) -> None:
    open_db(tmp_path / "db").conn.execute(DEFINITION)
    db = Litelease(sqlite3.connect(f"file:{tmp_path / 'db'}?mode=ro", uri=True))
    db.bootstrap()
    assert tables(db) == ["litelease_resources"]
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        db.restore_fence()


def test_raising_the_floor() -> None:
    db = open_db(":memory:")
    db.bootstrap()
    db.raise_floor(0)
    assert tables(db) == ["litelease_resources"], "nothing to raise"
    db.raise_floor(41)
    assert token(db, "x") == 42
    for lower in (40, -1, -(2**63)):
        with pytest.raises(FloorTooLow, match="41 already"):
            db.raise_floor(lower)
    with pytest.raises(TokenExhausted):
        db.raise_floor(2**63 - 1)
    for wrong in (2**63, 1.5, "7", None):
        with pytest.raises((OverflowError, TypeError)):
            db.raise_floor(wrong)  # type: ignore[arg-type]
    assert epoch(db) == (41, 0)


def test_raising_a_name_supersedes_its_holder() -> None:
    db = open_db(":memory:")
    db.bootstrap()
    db.claim("x", "a", ttl=30)
    db.raise_name("x", 100)
    assert db.owner("x") is None and db.token("x") == 101
    renewed = db.renew(Lease("x", "a", 1, 0), ttl=30)
    assert isinstance(renewed, Rejected) and renewed.newest == 101
    with pytest.raises(FloorTooLow):
        db.raise_name("x", 100)
    with pytest.raises(TokenExhausted):
        db.raise_name("x", 2**63 - 1)
    db.raise_name("new", 7)
    assert token(db, "new") == 9 and token(db, "other") == 1


def test_an_interrupt_at_any_step_leaves_no_transaction_and_no_setting_behind(tmp_path: Path) -> None:
    """One that came during BEGIN once left the transaction open, and the next claim joined it."""
    for step in range(1, 8_000, 11):
        conn = sqlite3.connect(tmp_path / f"{step}.db", isolation_level=None)
        conn.execute("PRAGMA synchronous = NORMAL")
        db, left = Litelease(conn), [step]

        def count() -> int:
            left[0] -= 1
            return left[0] == 0

        conn.set_progress_handler(count, 1)
        try:
            db.bootstrap()
            db.claim("x", "a", ttl=30)
        except (sqlite3.OperationalError, litelease.LiteleaseError):
            pass
        conn.set_progress_handler(None, 1)
        assert not conn.in_transaction, step
        assert conn.execute("PRAGMA synchronous").fetchone() == (1,), step
        conn.close()
        if left[0] > 0:
            return
    assert False, "it was always interrupted"


needs_mount = pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs the right to mount")


def start(boot: Path | str, program: str, *words: object) -> subprocess.Popen[str]:
    """Starts a program in a boot of its own: with this file in place of the system's boot id."""
    script = f'mount --bind "{boot}" /proc/sys/kernel/random/boot_id && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", program, *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate("")
    if "mount" in err:
        pytest.skip("cannot mount here")
    assert process.returncode == 0, err
    return out


@needs_mount
@pytest.mark.parametrize("transaction", [False, True])
def test_where_boots_cannot_be_told_apart_each_process_begins_an_epoch(tmp_path: Path, transaction: bool) -> None:
    begin, end = ("conn.execute('BEGIN')", "conn.execute('COMMIT')") if transaction else ("db.bootstrap()", "")
    program = (
        "import sqlite3, sys, litelease; conn = sqlite3.connect(sys.argv[1], isolation_level=None);"
        f"conn.execute('PRAGMA synchronous = NORMAL'); db = litelease.Litelease(conn); {begin};"
        "print(db.claim('x', 'a', ttl_ms=1, now_ms=int(sys.argv[2])).lease.token,"
        f"db.claim('x', 'a', ttl_ms=1, now_ms=int(sys.argv[2]) + 10).lease.token); {end}"
    )
    sqlite3.connect(tmp_path / "db").execute(DEFINITION)
    tokens = []
    for at in (1_000, 2_000, 3_000):
        tokens += [int(word) for word in finish(start("/dev/null", program, tmp_path / "db", at)).split()]
    assert tokens == [1, 2, EPOCH + 1, EPOCH + 2, 2 * EPOCH + 1, 2 * EPOCH + 2]


@needs_mount
def test_where_boots_cannot_be_told_apart_a_fence_wants_the_largest_token(tmp_path: Path) -> None:
    program = (
        "import sqlite3, sys, litelease; db = litelease.Litelease(sqlite3.connect(sys.argv[1])); db.bootstrap()\n"
        "try: db.restore_fence()\n"
        "except litelease.LargestTokenNeeded as error: print(error)\n"
        "print(db.restore_fence(above=2**50))\n"
        "memory = litelease.Litelease(sqlite3.connect(':memory:')); memory.bootstrap(); memory.restore_fence()"
    )
    reason, floor = finish(start("/dev/null", program, tmp_path / "db")).splitlines()
    assert "restore_fence(above=token)" in reason
    assert 2**50 < int(floor) < 2**53


#: Grants that a power cut takes: their transactions are not synced. Each comes after the boot was
#: recorded.
WEAK_GRANTS = {
    "claim": (
        "strong = connect(2); Litelease(strong).bootstrap(); weak = connect(1)",
        "weak.execute('BEGIN'); print(Litelease(weak).claim('x', 'a', 30).lease.token); weak.execute('COMMIT')",
    ),
    "pragma": (
        "conn = connect(2); Litelease(conn).bootstrap(); conn.execute('PRAGMA synchronous = NORMAL')",
        "conn.execute('BEGIN'); print(Litelease(conn).claim('x', 'a', 30).lease.token); conn.execute('COMMIT')",
    ),
    "single writer": (
        "writer = litelease.SingleWriter(path)",
        "with writer.write() as conn: print(Litelease(conn).claim('x', 'a', 30).lease.token)",
    ),
    "borrow": (
        "strong = connect(2); Litelease(strong).bootstrap(); weak = connect(1); pools = Pools(weak)",
        "weak.execute('BEGIN'); print(pools.borrow('p', 30).slot.token); weak.execute('COMMIT')",
    ),
}


@needs_mount
@pytest.mark.parametrize("kind", WEAK_GRANTS)
def test_no_token_comes_back_after_a_power_cut_where_strengths_differ(tmp_path: Path, kind: str) -> None:
    """A file is strong in one connection and weak in another. The power goes after the weak one's commit, which is lost:
    what is left is the file as it was when the last sync was over. Three boots, and each must be granted something new."""
    if kind == "borrow" and not hasattr(sqlite3.Connection, "enable_load_extension"):
        pytest.skip("pools need the extension")
    record, grant = WEAK_GRANTS[kind]
    program = f"""
import os, sqlite3, sys, litelease
from litelease import Litelease, Pools
path = sys.argv[1]
def connect(synchronous):
    conn = sqlite3.connect(path, isolation_level=None)
    conn.execute(f"PRAGMA synchronous = {{synchronous}}")
    return conn
{record}
print("recorded", flush=True)
sys.stdin.readline()
{grant}
sys.stdout.flush()
os._exit(0)  # closing the last connection would sync
"""
    # A file in which nothing is recorded yet.
    file = tmp_path / "db"
    conn = sqlite3.connect(file)
    conn.execute("PRAGMA journal_mode = WAL")
    conn.execute(DEFINITION)
    if kind == "borrow":
        litelease.Pools(conn).register("p", 9)
    conn.close()
    tokens = []
    for boot in (1, 2, 3):
        boot_id = tmp_path / f"boot {boot}"
        boot_id.write_text(f"731ed0c9-e8c4-44bb-b46b-dbc4e317397{boot}\n")
        process = start(boot_id, program, file)
        assert process.stdout is not None
        if process.stdout.readline() != "recorded\n":
            finish(process)
        safe = {end: (tmp_path / f"db{end}").read_bytes() for end in ("", "-wal")}
        tokens.append(int(finish(process)))
        (tmp_path / "db-shm").unlink()
        for end, content in safe.items():
            (tmp_path / f"db{end}").write_bytes(content)
    assert tokens == sorted(set(tokens)), "a token came back"


def test_a_restored_backup_is_fenced(tmp_path: Path) -> None:
    db = open_db(tmp_path / "db")
    db.bootstrap()
    old = db.claim("x", "a", ttl=3600)
    assert isinstance(old, Acquired)
    shutil.copy(tmp_path / "db", tmp_path / "backup")
    seen = db.claim("y", "a", ttl=30, min_token=3 * EPOCH)
    assert isinstance(seen, Acquired)

    restored = open_db(tmp_path / "backup")
    floor = restored.restore_fence()
    assert seen.lease.token < floor < 2**53
    assert restored.owner("x") is None and restored.token("x") == floor
    assert isinstance(restored.renew(old.lease, ttl=30), Rejected)
    assert token(restored, "x") == floor + 1 and token(restored, "y") == floor + 1


def test_a_fence_is_above_the_token_that_was_seen(tmp_path: Path) -> None:
    db = open_db(tmp_path / "db")
    db.bootstrap()
    assert db.restore_fence(above=2**50 + 17) == 2**50 + 2**46
    for wrong in (2**63, 1.5, "7"):
        with pytest.raises((OverflowError, TypeError)):
            db.restore_fence(above=wrong)  # type: ignore[arg-type]
    with pytest.raises(TokenExhausted):
        db.restore_fence(above=2**63 - 1)


def test_a_single_writer_records_the_boot_by_itself(tmp_path: Path) -> None:
    db = open_db(tmp_path / "db", "wal")
    db.conn.execute(DEFINITION)
    writer = litelease.SingleWriter(tmp_path / "db")
    assert epoch(db)[0] == 0 and epoch(db)[1] > 1, "when it is opened"
    reboot(db)
    with litelease.SingleWriter(tmp_path / "db").write() as conn:
        assert token(Litelease(conn), "x") == EPOCH + 1
    writer.close()
    # Leases that are made inside a write are recorded before the next one.
    writer = litelease.SingleWriter(tmp_path / "new")
    with writer.write() as conn:
        Litelease(conn).bootstrap()
    other = Litelease(sqlite3.connect(tmp_path / "new"))
    assert tables(other) == ["litelease_resources"]
    with writer.write():
        assert epoch(other)[1] > 1, "in a commit of its own"


def test_a_single_writer_looks_at_the_record_each_time(tmp_path: Path) -> None:
    db = open_db(tmp_path / "db", "wal", 1)
    db.bootstrap()
    writer = litelease.SingleWriter(tmp_path / "db")
    for round in (1, 2):
        # A transaction of another program's crosses into a later epoch, which puts the record at
        # risk.
        db.conn.execute("BEGIN IMMEDIATE")
        db.claim("x", "a", ttl_ms=50, now_ms=1000 * round, min_token=round * EPOCH)
        db.conn.commit()
        assert epoch(db)[1] < 0
        with writer.write() as conn:
            assert epoch(db)[0] == round * EPOCH and epoch(db)[1] > 0, "in a commit of its own"
    db.conn.executescript("DROP TABLE litelease_meta; DROP TABLE litelease_resources")
    with writer.write():
        assert tables(db) == []


def test_a_boot_that_cannot_be_recorded_for_query_only_is_an_error(tmp_path: Path) -> None:
    db = open_db(tmp_path / "db", "wal", 1)
    db.conn.execute(DEFINITION)
    db.conn.execute("PRAGMA query_only = ON")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        db.bootstrap()
    db.conn.execute("PRAGMA query_only = OFF")
    db.bootstrap()
    assert epoch(db)[1] > 1
    reboot(db)
    Litelease(sqlite3.connect(f"file:{tmp_path / 'db'}?mode=ro", uri=True)).bootstrap()
    assert epoch(db)[1] == 1, "nobody can be granted anything through a connection that was opened for reading"


def test_a_token_seen_elsewhere_raises_the_epoch_of_the_file() -> None:
    db = open_db(":memory:")
    db.bootstrap()
    db.claim("x", "a", ttl=30, min_token=5 * EPOCH + 7)
    assert db.token("x") == 5 * EPOCH + 8
    assert token(db, "y") == 5 * EPOCH + 1


DEFINITION = """CREATE TABLE litelease_resources (
  name TEXT PRIMARY KEY,
  owner TEXT,
  token INTEGER NOT NULL CHECK (token >= 1),
  lease_expires_at_ms INTEGER,
  created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL,
  CHECK (
    (owner IS NULL AND lease_expires_at_ms IS NULL)
    OR (owner IS NOT NULL AND lease_expires_at_ms IS NOT NULL)
  )
)"""
