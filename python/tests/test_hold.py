"""Held leases and the Tracker, with real files, threads and processes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Iterator

import pytest

import litelease

from litelease import Acquired, Busy, CommitUnknown, Litelease, LiteleaseError, Lost, Tracker, TrackerIsLockedError


@pytest.fixture
def db(tmp_path: Path) -> Litelease:
    conn = sqlite3.connect(tmp_path / "app.sqlite3", timeout=10, isolation_level=None)
    conn.execute("PRAGMA journal_mode = WAL")
    opened = Litelease(conn)
    opened.bootstrap()
    return opened


def test_a_hold_is_kept_alive_for_longer_than_its_ttl_and_released_at_the_end(db: Litelease) -> None:
    with db.hold("books", ttl=3) as held:
        assert held.token == 1
        end = time.monotonic() + 4
        while time.monotonic() < end:
            held.check()
            assert db.owner("books") == held.owner
            time.sleep(0.05)
    assert db.owner("books") is None
    assert db.token("books") == 1


def test_a_hold_is_released_when_the_block_fails(db: Litelease) -> None:
    with pytest.raises(ZeroDivisionError):
        with db.hold("books", ttl=30):
            raise ZeroDivisionError
    assert db.owner("books") is None


def test_a_hold_is_over_as_soon_as_its_release_begins(db: Litelease) -> None:
    # check() went on to pass for the rest of the ttl, also while a successor had a newer token.
    with db.hold("books", ttl=30) as first:
        first.check()
    with db.hold("books", ttl=30) as second:
        with pytest.raises(Lost, match="it was released"):
            first.check()
        db.conn.execute("BEGIN IMMEDIATE")  # so the release waits
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            releasing = threads.submit(second.release)
            with pytest.raises(Lost, match="it was released"):
                while not releasing.done():
                    second.check()
            assert not releasing.done()
            db.conn.execute("ROLLBACK")
    assert db.owner("books") is None


class FailsAfterCommit(sqlite3.Connection):
    """Tells once that a commit failed which was stored, as when the disk fails after the write."""

    failures = 1

    def cursor(self, *_: object) -> sqlite3.Cursor:  # type: ignore[override]
        return super().cursor(FailingCursor)


class FailingCursor(sqlite3.Cursor):
    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        done = super().execute(sql, *values)
        if sql == "COMMIT" and FailsAfterCommit.failures:
            FailsAfterCommit.failures -= 1
            raise sqlite3.OperationalError("disk I/O error")
        return done


def test_a_claim_that_may_be_stored_is_given_back(db: Litelease, monkeypatch: pytest.MonkeyPatch) -> None:
    # No program would renew or release it, so the next holder would wait for the whole ttl.
    connect = sqlite3.connect
    with monkeypatch.context() as patched:
        patched.setattr(FailsAfterCommit, "failures", 1)
        patched.setattr(sqlite3, "connect", functools.partial(connect, factory=FailsAfterCommit))
        tracker = Tracker(db.conn.execute("PRAGMA database_list").fetchone()[2])
        with pytest.raises(CommitUnknown, match="disk I/O error"):
            tracker.lock_it("pages")
    assert db.token("pages") == 1 and db.owner("pages") is None


def test_a_second_hold_waits_or_times_out(db: Litelease) -> None:
    with db.hold("books", ttl=30) as first:
        with pytest.raises(TimeoutError, match=first.owner.split()[0]):
            db.hold("books", ttl=30, wait=0.1)
    with db.hold("books", ttl=30, wait=0.1) as second:
        assert second.token == 2 and second.owner != first.owner


def test_a_broken_hold_is_told_and_leaves_its_successor_alone(db: Litelease) -> None:
    with db.hold("books", ttl=3) as held:
        db.break_lease("books")
        assert isinstance(db.claim("books", "successor", 30), Acquired)
        assert held.lost.wait(60)
        # The keeper may read the row between the break and the claim.
        with pytest.raises(Lost, match="superseded by token 3 of successor|broken by an operator"):
            held.check()
    assert db.owner("books") == "successor"


def test_a_hold_that_cannot_renew_is_lost_before_it_expires(db: Litelease) -> None:
    with db.hold("books", ttl=0.5) as held:
        db.conn.execute("BEGIN IMMEDIATE")
        lease = db.inspect("books", now_ms=0)
        assert lease is not None
        with pytest.raises(Lost, match="could not be renewed in time|blocked by a writer"):
            while True:
                before_ms = time.time_ns() // 1_000_000
                held.check()
                assert before_ms < lease.expires_at_ms, "trusted when another holder could have had it"
                time.sleep(0.01)
        db.conn.execute("ROLLBACK")


def test_one_thread_keeps_all_holds_of_a_process(db: Litelease) -> None:
    holds = [db.hold(str(number), ttl=3) for number in range(50)]
    names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    # The system keeps fifteen characters of a name.
    assert names.count("litelease keepe\n") == 1
    end = time.monotonic() + 4
    while time.monotonic() < end:
        for held in holds:
            held.check()
        time.sleep(0.05)
    for held in holds:
        held.release()
    assert all(db.owner(str(number)) is None for number in range(50))


def test_a_file_that_is_replaced_under_a_hold_is_noticed(db: Litelease, tmp_path: Path) -> None:
    with db.hold("books", ttl=3) as held:
        os.rename(tmp_path / "app.sqlite3", tmp_path / "elsewhere")
        assert held.lost.wait(60)
        with pytest.raises(Lost, match="moved, deleted or replaced"):
            held.check()


def test_a_loss_is_told_without_being_asked_for(db: Litelease) -> None:
    with db.hold("books", ttl=3) as held:
        db.conn.execute("BEGIN IMMEDIATE")
        assert held.lost.wait(60)
        with pytest.raises(Lost, match="blocked by a writer: this process .* held the write lock for too long"):
            held.check()
        db.conn.execute("ROLLBACK")


class Foreign:
    """A connection of another library, as pysqlite3 has it."""

    in_transaction = False

    def __init__(self, conn: sqlite3.Connection) -> None:
        self._conn = conn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)


def test_a_connection_of_another_library_holds_nothing(db: Litelease) -> None:
    # A second SQLite library on the same file drops the locks that the first one has.
    other = Litelease(Foreign(db.conn))  # type: ignore[arg-type]
    for hold in (lambda: other.hold("books"), lambda: other.claim_wait("books", "a", 30, 0)):
        with pytest.raises(TypeError, match="two libraries in one process drop each other's locks"):
            hold()
    assert db.token("books") is None


def test_what_cannot_be_held_is_refused(db: Litelease) -> None:
    memory = Litelease(sqlite3.connect(":memory:"))
    memory.bootstrap()
    with pytest.raises(LiteleaseError, match="in memory"):
        memory.hold("books")
    db.conn.execute("BEGIN")
    with pytest.raises(LiteleaseError, match="inside a transaction"):
        db.hold("books")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_is_refused_and_the_parent_unharmed(db: Litelease) -> None:
    with db.hold("books", ttl=30) as held:
        child = os.fork()
        if child == 0:
            try:
                held.check()
            except Lost:
                held.release()  # does nothing here
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        child = os.fork()
        if child == 0:
            # A connection of its own is the child's to use, and so is a hold on it.
            own = Litelease(sqlite3.connect(db.conn.execute("PRAGMA database_list").fetchone()[2]))
            with own.hold("maps", ttl=30) as another:
                another.check()
            os._exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8
        held.check()
        assert db.owner("books") == held.owner


def test_a_tracker_makes_everything_when_it_is_first_needed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "locks.sqlite3"
    tracker = Tracker(path)
    assert path.parent.is_dir() and not path.exists()
    tracker.unlock_it("books", "nothing is locked")
    assert not path.exists()
    token = tracker.lock_it("books")
    assert len(token) == 32 and set(token) <= set("0123456789abcdef")
    with pytest.raises(TrackerIsLockedError) as locked:
        tracker.lock_it("books")
    assert locked.value.name == "books"
    assert f" pid {os.getpid()} " in locked.value.owner
    # It would unlock it.
    assert token not in str(locked.value) + repr(locked.value) + locked.value.owner
    tracker.unlock_it("books", "0" * 32)  # not current: a silent no-op
    with pytest.raises(TrackerIsLockedError):
        tracker.lock_it("books")
    tracker.unlock_it("books", lock_token=token)
    assert tracker.lock_it("books") != token


def test_a_locked_tracker_hides_an_owner_that_is_nothing_but_a_token(tmp_path: Path) -> None:
    tracker, token = Tracker(tmp_path / "locks.sqlite3"), "f" * 32
    with litelease.open(tmp_path / "locks.sqlite3") as db:
        db.claim("books", token, 60)
    with pytest.raises(TrackerIsLockedError) as locked:
        tracker.lock_it("books")
    assert token not in str(locked.value) + repr(locked.value) + locked.value.owner


def test_a_tracker_keeps_its_file_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    tracker = Tracker("locks.sqlite3")
    tracker.lock_it("books")
    monkeypatch.chdir(tmp_path / "other")
    for same in (tracker, pickle.loads(pickle.dumps(tracker))):
        with pytest.raises(TrackerIsLockedError):
            same.lock_it("books")
    assert not (tmp_path / "other" / "locks.sqlite3").exists()


def test_a_tracker_makes_its_table_again_after_it_was_dropped(tmp_path: Path) -> None:
    path = tmp_path / "locks.sqlite3"
    tracker = Tracker(path)
    token = tracker.lock_it("books")

    def drop() -> None:
        with contextlib.closing(sqlite3.connect(path)) as conn:
            conn.execute("DROP TABLE litelease_resources")

    drop()
    assert tracker.lock_it("books") != token
    drop()
    tracker.unlock_it("books", token)
    with tracker.lock("books"):
        drop()
    tracker.lock_it("books")


FOREIGN = """
CREATE TABLE locks (name TEXT PRIMARY KEY, lock TEXT, lock_at TEXT, expire_at TEXT);
INSERT INTO locks VALUES ('free', NULL, NULL, NULL),
  ('over', 'fd3c', '2001-01-01T00:00:00.190501+00:00', '2001-01-01T00:01:00.190501+00:00');
"""
LIVE = """
INSERT INTO locks VALUES ('books', 'f85db2c073d04199868b5f6e4f404da9', '2026-01-01T00:00:00.190501+00:00',
  '2199-01-01T00:01:00.190501+00:00')
"""


@pytest.mark.parametrize("is_same", [True, False])
def test_a_tracker_takes_over_the_live_locks_of_another_tracker(tmp_path: Path, is_same: bool) -> None:
    theirs = tmp_path / "locks.sqlite3"
    path = theirs if is_same else tmp_path / "ours.sqlite3"
    with contextlib.closing(sqlite3.connect(theirs)) as conn:
        conn.executescript(FOREIGN)
        if is_same:
            Tracker(path).lock_it("pages")  # nothing is live
        conn.executescript(LIVE)
    tracker = Tracker(path)
    if is_same:
        for name in ("books", "maps"):
            with pytest.raises(litelease.ForeignLocks, match=r"Tracker\.import_from"):
                tracker.lock_it(name)
    assert tracker.import_from(theirs) == ["books"]
    with pytest.raises(TrackerIsLockedError) as locked:
        tracker.lock_it("books")
    assert locked.value.until.year == 2199
    tracker.lock_it("maps")
    tracker.unlock_it("books", "f85db2c073d04199868b5f6e4f404da9")
    tracker.lock_it("books")
    assert tracker.import_from(theirs) == []


def test_a_tracker_takes_over_nothing_if_a_name_is_locked_here(tmp_path: Path) -> None:
    theirs, tracker = tmp_path / "locks.sqlite3", Tracker(tmp_path / "ours.sqlite3")
    with contextlib.closing(sqlite3.connect(theirs)) as conn:
        conn.executescript(FOREIGN + LIVE)
        conn.execute("INSERT INTO locks SELECT 'atlas', 'a', lock_at, expire_at FROM locks WHERE name = 'books'")
        conn.commit()
        tracker.lock_it("books")
        with pytest.raises(TrackerIsLockedError):
            tracker.import_from(theirs)
        assert conn.execute("SELECT count(*) FROM locks WHERE lock IS NOT NULL").fetchone() == (3,)
    tracker.lock_it("atlas")
    with pytest.raises(FileNotFoundError):
        tracker.import_from(tmp_path / "missing")


def test_a_tracker_follows_a_file_that_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "locks.sqlite3"
    tracker = Tracker(path)
    tracker.lock_it("books")
    for file in tmp_path.iterdir():
        file.unlink()
    tracker.lock_it("books")
    with pytest.raises(TrackerIsLockedError):
        Tracker(path).lock_it("books")


def test_a_tracker_goes_with_its_process_and_its_threads(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path / "locks.sqlite3")
    token = tracker.lock_it("books")
    if (child := os.fork()) == 0:
        try:
            tracker.lock_it("pages")
            tracker.unlock_it("books", token)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        threads.submit(tracker.lock_it, "books").result()
    copy = pickle.loads(pickle.dumps(tracker))
    for name in ("books", "pages"):
        with pytest.raises(TrackerIsLockedError):
            copy.lock_it(name)


def test_a_tracker_lock_is_a_block_and_ends_after_its_time(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path / "locks.sqlite3")
    with tracker.lock("books", expire=60):
        with pytest.raises(TrackerIsLockedError, match="'books' is locked by"):
            with tracker.lock("books"):
                pass
    with pytest.raises(ZeroDivisionError):
        with tracker.lock("books"):
            raise ZeroDivisionError
    old = tracker.lock_it("books", expire=0.5)
    time.sleep(0.55)
    new = tracker.lock_it("books")
    tracker.unlock_it("books", old)
    with pytest.raises(TrackerIsLockedError):
        tracker.lock_it("books")
    tracker.unlock_it("books", new)


RACER = """
import sys
from litelease import Tracker, TrackerIsLockedError
try:
    print("won", Tracker(sys.argv[1]).lock_it("books"))
except TrackerIsLockedError as locked:
    print("lost", *locked.owner.split()[1:3])
"""


def test_processes_that_race_on_a_fresh_file_have_one_winner_and_know_it(tmp_path: Path) -> None:
    for attempt in range(3):
        path = str(tmp_path / str(attempt) / "locks.sqlite3")
        racers = [
            subprocess.Popen([sys.executable, "-c", RACER, path], stdout=subprocess.PIPE, text=True)
            for _ in range(8)
        ]
        unsorted = [racer.communicate()[0].split() for racer in racers]
        answers = sorted(unsorted)
        assert [answer[0] for answer in answers] == ["lost"] * 7 + ["won"], answers
        winner = [racer.pid for racer, told in zip(racers, unsorted) if told[0] == "won"]
        assert {answer[2] for answer in answers[:7]} == {str(winner[0])}, "the rest are told who"


WRITER = """
import sqlite3, sys, threading
conn = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
conn.execute("CREATE TABLE loops (n)")
ends = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ends.set()), daemon=True).start()
print("writes", flush=True)
while not ends.is_set():
    conn.execute("INSERT OR REPLACE INTO loops (rowid, n) VALUES (1, random())")
"""


@pytest.mark.parametrize("how", ["hold", "session"])
def test_a_program_that_writes_in_a_loop_does_not_make_a_short_hold_lost(tmp_path: Path, how: str) -> None:
    # With a rollback journal the file is free for some microseconds between two commits. The keeper
    # looked at it a few times per twentieth of the ttl, and never found it free.
    path = tmp_path / "app.sqlite3"
    db = Litelease(sqlite3.connect(path, timeout=60, isolation_level=None))
    db.bootstrap()
    held: Any = db.hold("books", ttl=5.0) if how == "hold" else litelease.Session(db, "books", ttl=5.0)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdin is not None and writer.stdout is not None
    try:
        assert writer.stdout.readline() == "writes\n"
        before = db.inspect("books")
        while db.inspect("books") == before:
            held.check()
            time.sleep(0.01)
    finally:
        writer.communicate()
    assert writer.returncode == 0


HOLDER = """
import sqlite3, sys, time
from litelease import Litelease
db = Litelease(sqlite3.connect(sys.argv[1], isolation_level=None))
with db.hold("books", ttl=60.0, owner=sys.argv[2] if sys.argv[2:] else None):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_a_holder_that_is_killed_is_succeeded_at_once_and_a_stopped_one_is_not(db: Litelease, tmp_path: Path) -> None:
    with start_holder(tmp_path) as holder:
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            db.hold("books", ttl=30, wait=0.8)
        holder.kill()
        assert isinstance(db.claim("books", "b", 30), Busy), "plain claims wait"
        with db.hold("books", ttl=30, wait=20) as held:
            assert held.token == 2


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_a_dead_holder_with_an_owner_text_of_its_own_is_not_judged(db: Litelease, tmp_path: Path) -> None:
    with start_holder(tmp_path, "worker-a") as holder:
        holder.kill()
        holder.wait()
        with pytest.raises(TimeoutError):
            db.hold("books", ttl=30, wait=0.8)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_that_a_dead_holder_has_forked_is_not_the_holder(db: Litelease) -> None:
    told, telling = os.pipe()
    go_on, stop = os.pipe()
    if (parent := os.fork()) == 0:
        own = Litelease(sqlite3.connect(db.conn.execute("PRAGMA database_list").fetchone()[2], isolation_level=None))
        held = own.hold("books", ttl=60)
        if os.fork() == 0:
            try:
                held.check()
            except Lost:
                os.close(stop)
                os.write(telling, b"lost")
                os.read(go_on, 1)
            os._exit(0)
        time.sleep(60)
        os._exit(0)
    os.close(telling)
    assert os.read(told, 9) == b"lost"
    with pytest.raises(TimeoutError):
        db.hold("books", ttl=30)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    with db.hold("books", ttl=30, wait=20) as held:  # while the child lives on
        assert held.token == 2
    os.close(stop)


@contextlib.contextmanager
def start_holder(folder: Path, *owner: str) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", HOLDER, str(folder / "app.sqlite3"), *owner]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        try:
            yield holder
        finally:
            holder.kill()


def open_in(folder: Path) -> Litelease:
    db = Litelease(sqlite3.connect(folder / "app.sqlite3", isolation_level=None))
    db.bootstrap()
    return db


def test_a_hold_that_could_never_be_trusted_is_refused(tmp_path: Path) -> None:
    db = open_in(tmp_path)
    for ttl in (0.05, 0.1, 0, -1, float("nan")):
        with pytest.raises(litelease.InvalidTtl):
            db.hold("x", ttl=ttl)
    assert db.token("x") is None


def test_what_went_wrong_in_the_block_is_told_and_not_the_release(tmp_path: Path) -> None:
    db, other = open_in(tmp_path), open_in(tmp_path)
    with pytest.raises(ValueError):
        with db.hold("x", ttl=30):
            other.conn.execute("BEGIN IMMEDIATE")
            raise ValueError
    other.conn.execute("ROLLBACK")


def test_a_file_that_was_deleted_is_not_made_by_the_release(tmp_path: Path) -> None:
    file = tmp_path / "app.sqlite3"
    with contextlib.closing(sqlite3.connect(file)) as conn:
        db = Litelease(conn)
        db.bootstrap()
        with pytest.raises(ZeroDivisionError), db.hold("books", ttl=30):
            file.unlink()
            raise ZeroDivisionError
    assert not file.exists()


def test_a_damaged_row_is_its_own_trouble_only(tmp_path: Path) -> None:
    db = open_in(tmp_path)
    with db.hold("good", ttl=3) as good, db.hold("bad", ttl=3):
        db.conn.execute("PRAGMA ignore_check_constraints = ON")
        db.conn.execute("UPDATE litelease_resources SET token = 'x' WHERE name = 'bad'")
        time.sleep(3.2)
        good.check()
        db.conn.execute("DELETE FROM litelease_resources WHERE name = 'bad'")
