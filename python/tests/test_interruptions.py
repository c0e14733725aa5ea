"""An exception at any moment: between any two lines of every verb, any two bytecodes of what cleans up, any two instructions
of SQLite's. Afterwards no transaction is open, nothing is locked, and what was told is what is stored.

``LITELEASE_THOROUGH=1`` goes through every bytecode of everything.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
import traceback
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Iterator

import pytest

import litelease
from litelease import (
    Acquired,
    Cached,
    Gate,
    Lease,
    Litelease,
    LiteleaseError,
    Lost,
    Pools,
    Queue,
    Session,
    SessionName,
    ShardAssigned,
    ShardRequested,
    Shards,
    SingleWriter,
    Tracker,
)
from litelease._library import identity

IS_THOROUGH = bool(os.environ.get("LITELEASE_THOROUGH"))
CAN_LOAD = hasattr(sqlite3.Connection, "enable_load_extension")
SOURCE = str(Path(litelease.__file__).parent)
# What takes and gives back. In critical cases an exception comes before every bytecode of it.
CRITICAL_FILES = {"_atomic.py", "_connection.py", "_writer.py"}


class Interrupted(BaseException):
    """What a handler of a signal raises."""


class Tracer:
    """Raises at the event of a number: before a line, or before a bytecode of everything or of a critical file."""

    def __init__(self, number: int, *, is_critical: bool = False, is_fine: bool = IS_THOROUGH) -> None:
        self.number, self.seen, self._is_critical, self._is_fine = number, 0, is_critical, is_fine

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        file = frame.f_code.co_filename
        is_ours = file.startswith(SOURCE) or os.path.basename(file) in ("contextlib.py", "threading.py")
        if not is_ours or frame.f_code.co_name == "__del__":
            return None
        is_fine = self._is_fine or self._is_critical and os.path.basename(file) in CRITICAL_FILES
        frame.f_trace_opcodes = is_fine
        if event == ("opcode" if is_fine else "line"):
            self.seen += 1
            if self.seen == self.number:
                raise Interrupted
        return self


@contextlib.contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder where a sync costs nothing, if there is one."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


@dataclass
class Case:
    """What is done to a file, and what it needs before."""

    act: Callable[[Litelease], object]
    prepare: Callable[[Litelease], object] = lambda db: None
    bootstraps: bool = True
    mode: str = "wal"


def claimed(db: Litelease) -> None:
    db.claim("x", "a", 3600)


def dead() -> Lease:
    """The lease of ``claimed``. Only its owner and token count."""
    return Lease("x", "a", 1, 0)


def claimed_strongly(db: Litelease) -> None:
    """Leaves no mark, so that the next grant has to."""
    db.conn.execute("PRAGMA synchronous = FULL")
    claimed(db)


def over(db: Litelease) -> None:
    db.claim("x", "a", ttl_ms=1, now_ms=1)
    db.claim("y", "a", ttl_ms=1, now_ms=1)


def at_the_end(db: Litelease) -> None:
    db.raise_name("x", 2**63 - 2)


def requested(db: Litelease) -> None:
    claimed(db)
    db.request("x", "b", 60)


def with_pool(db: Litelease) -> None:
    Pools(db.conn).register("p", 2)


def sent(db: Litelease) -> None:
    db.queue("q").send("body", key="k")
    db.conn.execute("CREATE TABLE effects (n)")


def delivered(db: Litelease) -> None:
    sent(db)
    RECEIPTS["q"] = received(db).receipt


def buried(db: Litelease) -> None:
    delivered(db)
    db.queue("q").bury(RECEIPTS["q"])


def received(db: Litelease) -> litelease.Item:
    item = db.queue("q").receive(3600)
    assert item is not None
    return item


def finish(db: Litelease) -> None:
    item = db.queue("q").delivery(RECEIPTS["q"])
    assert item is not None
    with item.finish() as conn:
        conn.execute("INSERT INTO effects VALUES (1)")


# The receipt in the file that copies are made of.
RECEIPTS: dict[str, str] = {}


def with_slot(db: Litelease) -> None:
    with_pool(db)
    Pools(db.conn).borrow("p", 3600, key="k")


def guarded(db: Litelease) -> None:
    db.conn.execute("CREATE TABLE t (n)")
    db.guard("t", "x")


CASES = {
    "bootstrap": Case(lambda db: db.bootstrap(), bootstraps=False),
    "bootstrap again": Case(lambda db: db.bootstrap(), claimed_strongly),
    "bootstrap in DELETE": Case(lambda db: db.bootstrap(), bootstraps=False, mode="delete"),
    "claim": Case(lambda db: db.claim("x", "a", 3600)),
    "claim with a mark": Case(lambda db: db.claim("y", "a", 3600), claimed_strongly, mode="delete"),
    "claim what is taken": Case(lambda db: db.claim("x", "b", 3600), claimed),
    "claim what is exhausted": Case(lambda db: db.claim("x", "b", 3600), at_the_end),
    "claim_from_dead": Case(lambda db: db._claim_from_dead("x", "b", 3600, dead=dead()), claimed),
    "renew": Case(lambda db: db.renew_by_owner("x", "a", 7200), claimed),
    "release": Case(lambda db: db.release_by_owner("x", "a"), claimed),
    "transfer": Case(lambda db: db.transfer_by_owner("x", "a", "b", 3600), claimed),
    "break_lease": Case(lambda db: db.break_lease("x"), claimed),
    "inspect": Case(lambda db: db.inspect("x"), claimed),
    "owner": Case(lambda db: db.owner("x"), claimed),
    "token": Case(lambda db: db.token("x"), claimed),
    "purge": Case(lambda db: db.purge(10), over),
    "raise_floor": Case(lambda db: db.raise_floor(1000), claimed),
    "raise_floor too low": Case(lambda db: db.raise_floor(-1), claimed),
    "raise_name": Case(lambda db: db.raise_name("x", 1000), claimed),
    "restore_fence": Case(lambda db: db.restore_fence(), claimed),
    "checkpoint": Case(lambda db: db.checkpoint("x", 1, "v"), claimed),
    "last_checkpoint": Case(lambda db: db.last_checkpoint("x"), claimed),
    "admit": Case(lambda db: db.admit("x", 7)),
    "Pools.register": Case(lambda db: Pools(db.conn).register("p", 2)),
    "Pools.borrow": Case(lambda db: Pools(db.conn).borrow("p", 3600), with_pool),
    "Pools.slots": Case(lambda db: Pools(db.conn).slots("p"), with_pool),
    "Pools.keep": Case(lambda db: Pools(db.conn).keep("p", Pools(db.conn).borrow("p", 3600, key="k").lease_id), with_slot),  # type: ignore[union-attr]
    "attach": Case(lambda db: db.attach(dead(), "v"), claimed),
    "value": Case(lambda db: db.value("x"), claimed),
    "read": Case(lambda db: db.read("y", "r", 3600)),
    "unread": Case(lambda db: db.unread("y", "r"), lambda db: db.read("y", "r", 3600)),
    "drained": Case(lambda db: db.drained("x", 1), claimed),
    "claim_wait": Case(lambda db: db.claim_wait("x", "a", 3600, 0)),
    "Pools.delete": Case(lambda db: Pools(db.conn).delete("p"), with_pool),
    "Queue.set_max_attempts": Case(lambda db: db.queue("q").set_max_attempts(3)),
    "Queue.send": Case(lambda db: db.queue("q").send("body", key="k")),
    "Queue.receive": Case(lambda db: db.queue("q").receive(3600), sent),
    "Queue.ack": Case(lambda db: db.queue("q").ack(RECEIPTS["q"]), delivered),
    "Queue.extend": Case(lambda db: db.queue("q").extend(RECEIPTS["q"], 7200), delivered),
    "Queue.give_back": Case(lambda db: db.queue("q").give_back(RECEIPTS["q"], note="n"), delivered),
    "Queue.bury": Case(lambda db: db.queue("q").bury(RECEIPTS["q"]), delivered),
    "Queue.redrive": Case(lambda db: db.queue("q").redrive(), buried),
    "Queue.cancel": Case(lambda db: db.queue("q").cancel("k"), sent),
    "Queue.info": Case(lambda db: db.queue("q").info(), sent),
    "Queue.delete": Case(lambda db: db.queue("q").delete(), sent),
    "leases": Case(lambda db: db.leases(), claimed),
    "limit": Case(lambda db: db.limit("x", 1, progress_within=60), claimed),
    "progress": Case(lambda db: db.progress("x", 1), claimed),
    "request": Case(lambda db: db.request("x", "b", 60), claimed),
    "withdraw_request": Case(lambda db: db.withdraw_request("x", "b"), requested),
    "requested": Case(lambda db: db.requested("x"), requested),
    "hand_over": Case(lambda db: db.hand_over(dead(), 3600), requested),
    "take_over": Case(lambda db: db.take_over("x", "b", 3600), claimed),
    "leader": Case(lambda db: db._row("leader", "x"), claimed),
}
NEEDS_LOADING = {
    "load": Case(lambda db: litelease.load(db.conn)),
    "guard": Case(lambda db: db.guard("t", "x"), lambda db: db.conn.execute("CREATE TABLE t (n)")),
    "guards": Case(lambda db: db.guards(), guarded),
    "unguard": Case(lambda db: db.unguard("t"), guarded),
    "present": Case(lambda db: db.present("x", 1), claimed),
    "withdraw": Case(lambda db: db.withdraw("x"), claimed),
}
if CAN_LOAD:
    CASES |= NEEDS_LOADING

TABLES = {
    "litelease_resources": "name, owner, token",
    "litelease_checkpoints": "name, token, value",
    "litelease_gates": "*",
    "litelease_pools": "count(*)",
    "litelease_pool_slots": "count(*)",
    "litelease_guards": "count(*)",
    "litelease_queue_names": "name, max_attempts",
    "litelease_queue_items": "id, attempts, ended, note, deadline_ms - sent_at_ms > 5000000",
    "effects": "*",
    "litelease_kept_slots": "count(*)",
    "litelease_reads": "name, reader",
    "litelease_values": "*",
    "litelease_limits": "name, token, progress_within_ms",
    "litelease_requests": "name, token, requester",
}


def stored(path: Path) -> dict[str, list[Any]]:
    """What another connection finds. The mark may be left by a verb that does nothing else."""
    with contextlib.closing(sqlite3.connect(path, timeout=0)) as other:
        found = {}
        for table, columns in TABLES.items():
            with contextlib.suppress(sqlite3.OperationalError):
                found[table] = sorted(other.execute(f"SELECT {columns} FROM {table}").fetchall(), key=repr)
        return {table: rows for table, rows in found.items() if rows and rows != [(0,)]}


def can_write(path: Path) -> bool:
    with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
        return True


def settings(conn: sqlite3.Connection) -> tuple[object, ...]:
    names = ("synchronous", "journal_mode", "busy_timeout", "query_only")
    return tuple(conn.execute(f"PRAGMA {name}").fetchone()[0] for name in names)


def can_load(conn: sqlite3.Connection) -> bool:
    with pytest.raises(sqlite3.OperationalError) as refused:
        conn.execute("SELECT load_extension('nothing')")
    return "not authorized" not in str(refused.value) and "no such function" not in str(refused.value)


class Bench:
    """Copies of one prepared file, each with a name of its own: what a process remembers of a file goes by its path."""

    def __init__(self, folder: Path, case: Case) -> None:
        self._folder, self._case, self._count = folder, case, 0
        self._template = folder / "template"
        db = self._open(self._template)
        if case.bootstraps:
            db.bootstrap()
        case.prepare(db)
        db.conn.commit()
        db.conn.close()

    def fresh(self) -> tuple[Path, Litelease]:
        self._count += 1
        path = self._folder / str(self._count)
        shutil.copy(self._template, path)
        return path, self._open(path)

    def _open(self, path: Path) -> Litelease:
        conn = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
        conn.execute(f"PRAGMA journal_mode = {self._case.mode}")
        conn.execute("PRAGMA synchronous = NORMAL")
        return Litelease(conn)


def attempt(act: Callable[[], object], tracer: Any) -> tuple[bool, object]:
    """Whether it was interrupted, and what it answered or raised by itself."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    sys.settrace(tracer)
    try:
        return False, act()
    except Interrupted as interrupted:
        sys.settrace(None)
        return True, interrupted  # with its frames, so that nothing is freed with them
    except LiteleaseError as error:
        sys.settrace(None)
        return False, type(error)
    finally:
        sys.settrace(None)
        sys.unraisablehook = hook


@pytest.fixture
def elsewhere() -> Callable[..., Any]:
    """Calls in another thread, which must not have to wait."""

    def call(function: Callable[..., object], *values: object) -> object:
        answers: list[object] = []
        thread = threading.Thread(target=lambda: answers.append(function(*values)), daemon=True)
        thread.start()
        thread.join(timeout=30)
        assert answers, "another thread waits for ever, or has failed"
        return answers[0]

    return call


def is_inside_python_itself(error: object) -> bool:
    """Whether it came before Python called us at the end of a block, or after. Then its frames hold what is to be ended."""
    if not isinstance(error, BaseException):
        return True
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not files[-2].startswith(SOURCE)  # the last one is the tracer's


@pytest.mark.parametrize("name", CASES)
def test_an_exception_at_any_moment_leaves_nothing_behind(name: str, elsewhere: Callable[..., Any]) -> None:
    case = CASES[name]
    with quick_folder() as folder:
        bench = Bench(folder, case)
        path, db = bench.fresh()
        before = stored(path)
        _, answer = attempt(lambda: case.act(db), None)
        after = stored(path)
        for number in range(1, 100_000):
            path, db = bench.fresh()
            was = settings(db.conn)
            tracer = Tracer(number, is_fine=True)
            is_interrupted, told = attempt(lambda: case.act(db), tracer)
            where = f"{name}, event {number}"
            assert not db.conn.in_transaction, where
            assert can_write(path), where
            assert settings(db.conn) == was, where
            assert not (CAN_LOAD and can_load(db.conn)), where
            assert (found := stored(path)) in (before, after), where
            if not is_interrupted:
                assert found == after and type(told) is type(answer), where
            if case.bootstraps:
                assert elsewhere(db.token, "nobody's") is None, where
            else:
                elsewhere(db.bootstrap)
            assert isinstance(db.claim("next", "n", 3600), Acquired), where
            assert settings(db.conn) == was and not db.conn.in_transaction, where
            db.conn.close()
            path.unlink()
            if tracer.seen < number:
                break
        assert number > 15


def savepoints_are_gone(conn: sqlite3.Connection) -> bool:
    try:
        conn.execute("RELEASE litelease_savepoint_1")
    except sqlite3.OperationalError as error:
        return "no such savepoint" in str(error)
    return False


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("claim", "COMMIT"),
        ("claim", "ROLLBACK"),
        ("purge", "COMMIT"),
        ("restore_fence", "ROLLBACK"),
        ("restore_fence", "COMMIT"),
        ("checkpoint", "COMMIT"),
        ("raise_floor too low", "COMMIT"),
    ],
)
def test_in_a_transaction_of_the_callers_it_stays_theirs(name: str, end: str) -> None:
    case = CASES[name]
    with quick_folder() as folder:
        bench = Bench(folder, case)
        path, db = bench.fresh()
        before = stored(path)
        attempt(lambda: case.act(db), None)
        after = stored(path)
        for number in range(1, 100_000):
            path, db = bench.fresh()
            was = settings(db.conn)
            db.conn.execute("BEGIN IMMEDIATE")
            db.conn.execute("CREATE TABLE mine (n)")
            tracer = Tracer(number, is_fine=True)
            is_interrupted, _ = attempt(lambda: case.act(db.joining()), tracer)
            where = f"{name}, event {number}"
            assert db.conn.in_transaction, where
            assert savepoints_are_gone(db.conn), where
            db.conn.execute(end)
            assert settings(db.conn) == was, where
            if end == "ROLLBACK":
                assert stored(path) == before, where
            else:
                assert stored(path) in (before, after) and db.conn.execute("SELECT * FROM mine").fetchall() == []
                assert is_interrupted or stored(path) == after, where
            assert isinstance(db.claim("next", "n", 3600), Acquired), where
            db.conn.close()
            path.unlink()
            if tracer.seen < number:
                break
        assert number > 20


@pytest.mark.parametrize("stays", [False, True], ids=["once", "until it is over"])
@pytest.mark.parametrize("name", ["bootstrap", "claim with a mark", "release", "purge", "restore_fence", "admit"])
def test_an_interrupt_inside_sqlite_leaves_nothing_behind(name: str, stays: bool) -> None:
    # While a statement of the caller's runs on, SQLite stays interrupted and does nothing more, not
    # even a rollback.
    case = CASES[name]
    with quick_folder() as folder:
        bench = Bench(folder, case)
        path, db = bench.fresh()
        before = stored(path)
        case.act(db)
        after = stored(path)
        for number in range(1, 100_000, 1 if IS_THOROUGH else 3):
            path, db = bench.fresh()
            was = settings(db.conn)
            calls = 0

            def progress() -> bool:
                nonlocal calls
                calls += 1
                return calls >= number if stays else calls == number

            db.conn.set_progress_handler(progress, 1)
            raised: BaseException | None = None
            try:
                case.act(db)
            except BaseException as error:
                raised = error
            db.conn.set_progress_handler(None, 1)
            where = f"{name}, instruction {number}"
            assert raised is None or isinstance(raised, (sqlite3.OperationalError, LiteleaseError)), where
            if not stays:
                assert not db.conn.in_transaction and settings(db.conn) == was, where
            else:
                try:
                    db.bootstrap()  # makes up for it
                except LiteleaseError as error:
                    # A transaction that could not even be marked as ours: the caller may have begun
                    # another one.
                    assert "begin again" in str(error), where
            assert not db.conn.in_transaction, where
            assert settings(db.conn) == was, where
            assert can_write(path), where
            assert stored(path) in (before, after) and (raised or stored(path) == after), where
            db.bootstrap()
            assert isinstance(db.claim("next", "n", 3600), Acquired), where
            db.conn.close()
            path.unlink()
            if calls < number:
                break
        assert number > 20


def test_a_debt_never_costs_the_caller_a_transaction_of_their_own() -> None:
    with quick_folder() as folder:
        for number in range(1, 1000, 1 if IS_THOROUGH else 2):
            db = Litelease(sqlite3.connect(folder / "db", isolation_level=None))
            db.bootstrap()
            calls = 0

            def progress() -> bool:
                nonlocal calls
                calls += 1
                return calls >= number

            db.conn.set_progress_handler(progress, 1)
            with contextlib.suppress(sqlite3.OperationalError, LiteleaseError):
                db.raise_name("x", number)
            db.conn.set_progress_handler(None, 1)
            was_open = db.conn.in_transaction
            if was_open:
                db.conn.execute("ROLLBACK")  # the caller tidies up by hand
            db.conn.execute("BEGIN IMMEDIATE")
            db.conn.execute("CREATE TABLE mine (n)")
            try:
                db.joining().token("x")
            except LiteleaseError as error:
                # It was interrupted between BEGIN and the savepoint that tells it from others.
                assert "begin again" in str(error) and was_open
                continue
            db.conn.execute("COMMIT")
            assert db.conn.execute("SELECT count(*) FROM mine").fetchone() == (0,)
            db.conn.execute("DROP TABLE mine")
            if calls < number:
                break
            db.conn.close()
        assert number > 20


def test_a_call_from_a_callback_joins_nothing(tmp_path: Path) -> None:
    # It would be part of a transaction that may be rolled back.
    db = Litelease(sqlite3.connect(tmp_path / "db", isolation_level=None))
    db.bootstrap()
    answers: list[object] = []

    def inside() -> bool:
        if db.conn.in_transaction and not answers:
            try:
                answers.append(db.claim("y", "handler", 30))
            except LiteleaseError as error:
                answers.append(str(error))
        return False

    db.conn.set_progress_handler(inside, 1)
    assert isinstance(db.claim("x", "a", 30), Acquired)
    db.conn.set_progress_handler(None, 1)
    assert len(answers) == 1 and "signal handler" in str(answers[0])
    assert isinstance(db.claim("y", "handler", 30), Acquired)


@pytest.mark.parametrize("ending", ["passes", "is stale", "raises"])
def test_a_finish_is_over_after_an_exception_at_any_moment(ending: str, elsewhere: Callable[..., Any]) -> None:
    def act(db: Litelease) -> None:
        if ending == "passes":
            finish(db)
        elif ending == "raises":
            item = db.queue("q").delivery(RECEIPTS["q"])
            assert item is not None
            with contextlib.suppress(ZeroDivisionError), item.finish() as conn:
                conn.execute("INSERT INTO effects VALUES (1)")
                raise ZeroDivisionError
        else:
            stale = litelease.Item(1, "1-00000000-0000-4000-8000-000000000000", 1, 1, 0, None, Queue(db.conn, "q"))
            with stale.finish() as conn:
                conn.execute("INSERT INTO effects VALUES (1)")

    def look(path: Path) -> tuple[int, int]:
        with contextlib.closing(sqlite3.connect(path)) as other:
            sql = "SELECT (SELECT count(*) FROM effects), (SELECT count(*) FROM litelease_queue_items)"
            return other.execute(sql).fetchone()  # type: ignore[no-any-return]

    with quick_folder() as folder:
        bench = Bench(folder, Case(act, delivered))
        for number in range(1, 100_000):
            path, db = bench.fresh()
            tracer = Tracer(number, is_fine=True)
            is_interrupted, told = attempt(lambda: act(db), tracer)
            where = f"{ending}, event {number}"
            if is_inside_python_itself(told):
                del told
            assert not db.conn.in_transaction, where
            assert can_write(path), where
            # The effect and the acknowledgement, or neither.
            assert look(path) in ([(0, 1), (1, 0)] if ending == "passes" else [(0, 1)]), where
            assert is_interrupted or look(path) == ((1, 0) if ending == "passes" else (0, 1)), where
            elsewhere(db.queue("q").next_visible)
            if look(path) == (0, 1):
                finish(db)
            assert look(path) == (1, 0), where
            db.conn.close()
            path.unlink()
            if tracer.seen < number:
                break
        assert number > 50


# What has files and threads of its own.


def test_a_tracker_is_unlocked_after_an_exception_at_any_moment() -> None:
    def with_lock(tracker: Tracker) -> None:
        with tracker.lock("books"):
            pass

    def locks(tracker: Tracker) -> None:
        tracker.unlock_it("books", tracker.lock_it("books"))

    for act in (with_lock, locks):
        with quick_folder() as folder:
            for number in range(1, 100_000):
                tracker = Tracker(folder / "locks")
                tracer = Tracer(number)
                is_interrupted = attempt(lambda: act(tracker), tracer)[0]
                assert can_write(folder / "locks"), number
                # Not unlock_it: what is to be undone by another call that is interrupted stays
                # until it is over.
                if act is with_lock or not is_interrupted:
                    tracker.unlock_it("books", Tracker(folder / "locks").lock_it("books"))
                else:
                    (folder / "locks").unlink()
                if tracer.seen < number:
                    break
            assert number > 50


def test_a_gate_is_open_after_an_exception_at_any_moment() -> None:
    def admits(path: Path) -> None:
        with Gate(path) as gate:
            gate.admit("x", 2)
            gate.admit("x", 1)

    with quick_folder() as folder:
        for number in range(1, 100_000):
            path = folder / f"gate {number}"
            tracer = Tracer(number)
            told = attempt(lambda: admits(path), tracer)
            assert can_write(path), number
            with Gate(path, timeout=0.0) as gate:
                assert gate.admit("x", 3) == litelease.Admitted()
                assert gate.admit("x", 2) == litelease.Stale(3)
            del told
            if tracer.seen < number:
                break
        assert number > 50


@pytest.mark.parametrize("takes_over", [False, True])
def test_a_hold_is_over_after_an_exception_at_any_moment(takes_over: bool) -> None:
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    gone = identity(0).replace(f" pid {os.getpid()} ", f" pid {child} ")

    def holds(db: Litelease) -> None:
        with db.hold("books", ttl=3600) as held:
            held.check()

    with quick_folder() as folder:
        db = Litelease(sqlite3.connect(folder / "db", isolation_level=None))
        db.conn.execute("PRAGMA journal_mode = WAL")
        db.bootstrap()
        for number in range(1, 100_000):
            if takes_over:
                assert isinstance(db.claim("books", gone, 3600), Acquired)
            tracer = Tracer(number)
            told = attempt(lambda: holds(db), tracer)
            del told
            assert can_write_soon(folder / "db"), number
            # The keeper may have to do it, once the frames of the exception are gone.
            with db.hold("books", ttl=3600, wait=5) as held:
                held.check()
            if tracer.seen < number:
                break
        assert number > 30


def test_a_block_that_is_left_at_any_moment_has_released_its_hold_although_its_variable_stays() -> None:
    with quick_folder() as folder:
        db = Litelease(sqlite3.connect(folder / "db", isolation_level=None))
        db.conn.execute("PRAGMA journal_mode = WAL")
        db.bootstrap()
        for number in range(1, 100_000):
            kept: list[litelease.Held] = []

            def holds() -> None:
                with db.hold("books", ttl=3600) as held:
                    kept.append(held)

            tracer = Tracer(number, is_fine=True)
            told = attempt(holds, tracer)
            assert not kept or db.owner("books") is None, number
            del told
            if tracer.seen < number:
                break
        assert number > 30


def test_nobody_trusts_what_was_handed_over_after_an_exception_at_any_moment() -> None:
    with quick_folder() as folder:
        db = Litelease(sqlite3.connect(folder / "db", isolation_level=None))
        db.conn.execute("PRAGMA journal_mode = WAL")
        db.bootstrap()
        outcomes = set()
        for number in range(1, 100_000):
            held = db.hold("books", ttl=3600, value="v", request=60)
            assert db.request("books", "b", 60)
            tracer = Tracer(number)
            was_interrupted, told = attempt(lambda: held.hand_over(3600), tracer)
            del told
            is_handed = db.owner("books") == "b"
            outcomes.add((was_interrupted, is_handed))
            if is_handed:
                with pytest.raises(Lost):
                    held.check()
            held.release()
            assert can_write_soon(folder / "db"), number
            db.break_lease("books")
            if tracer.seen < number:
                break
        assert outcomes == {(True, False), (True, True), (False, True)}


@pytest.mark.parametrize("how", ["name.release", "session.release", "session.claim", "session.close", "with"])
def test_no_name_of_a_session_has_two_believers_after_an_exception_at_any_moment(how: str) -> None:
    """A release that was interrupted after its commit left a name that its session trusted until the next heartbeat."""

    def ends(session: Session, name: SessionName) -> None:
        if how == "name.release":
            name.release()
        elif how == "session.release":
            session.release("books")
        elif how == "session.claim":
            session.claim("more")
        elif how == "session.close":
            session.close()
        else:
            with session, session.claim("more"):
                pass

    with quick_folder() as folder, litelease.open(folder / "db") as db:
        for number in range(1, 100_000):
            session = Session(db, "worker", 3600, replace=True)
            books = session.claim("books")
            tracer = Tracer(number, is_fine=True)
            was_interrupted, told = attempt(lambda: ends(session, books), tracer)
            del told
            believed = [name for name, held in (("worker", session), ("books", books)) if is_trusted(held)]
            assert all(db.owner(name) == session.owner for name in believed), number
            assert set(session.names) <= {lease.name for lease in db.leases()}, number
            assert (db.owner("more") is not None) == ("more" in session.names), number
            assert was_interrupted or how == "session.claim" or not is_trusted(books), number
            session.close()
            assert db.leases() == [] and can_write_soon(folder / "db"), number
            if tracer.seen < number:
                break
        assert number > 5


@pytest.mark.parametrize("how", ["release", "hand_over"])
def test_no_shard_has_two_believers_after_an_exception_at_any_moment(how: str) -> None:
    def gives_up(a: Shards, shard: int) -> None:
        a.hand_over(shard) if how == "hand_over" else a.release(shard)

    with quick_folder() as folder, litelease.open(folder / "db") as db:
        for number in range(1, 100_000):
            with Shards.join(db, f"group {number}", 2, "a", 3600) as a:
                assert all(isinstance(a.next(30), ShardAssigned) for _ in range(2))
                with Shards.join(db, f"group {number}", 2, "b", 3600):
                    asked = a.next(30)
                    assert isinstance(asked, ShardRequested)
                    tracer = Tracer(number, is_fine=True)
                    was_interrupted, told = attempt(lambda: gives_up(a, asked.shard), tracer)
                    del told
                    # Trusted, and then stored: never the other way round.
                    trusted = is_trusted_shard(a, asked.shard)
                    assert not trusted or db.owner(f"group {number}/shard/{asked.shard}") == a.owner, number
                    assert was_interrupted or not trusted or how == "release", number
            if tracer.seen < number:
                break
        assert number > 5


@pytest.mark.parametrize("how", ["get", "with", "close"])
def test_no_reader_keeps_a_writer_waiting_after_an_exception_at_any_moment(how: str) -> None:
    """A read whose grant was not noted stayed for its ttl, and every writer waited for it."""

    def load(conn: sqlite3.Connection) -> int:
        value: int = conn.execute("PRAGMA user_version").fetchone()[0]
        return value

    def reads(value: Cached[int]) -> None:
        if how == "get":
            value.get()
        elif how == "close":
            value.close()
        else:
            with value:
                value.get()

    with quick_folder() as folder, litelease.open(folder / "db") as db:
        writing = Cached(db, "config", load, 3600)
        for number in range(1, 100_000):
            value = Cached(db, "config", load, 3600)
            if how == "close":
                value.get()
            tracer = Tracer(number, is_fine=True)
            _, told = attempt(lambda: reads(value), tracer)
            del told
            writing.write(10, lambda conn: conn.execute(f"PRAGMA user_version = {number}"))
            with contextlib.suppress(LiteleaseError):  # it is closed
                assert value.get() == number
            value.close()
            assert db.readers("config") == [] and can_write_soon(folder / "db"), number
            if tracer.seen < number:
                break
        assert number > 3


def is_trusted(held: Session | SessionName) -> bool:
    try:
        held.check()
    except Lost:
        return False
    return True


def is_trusted_shard(shards: Shards, shard: int) -> bool:
    try:
        shards.check(shard)
    except Lost:
        return False
    return True


def test_a_held_slot_is_returned_after_an_exception_at_any_moment() -> None:
    def holds(pools: Pools) -> None:
        with pools.hold("p", ttl=3600) as slot:
            slot.check()

    with quick_folder() as folder:
        conn = sqlite3.connect(folder / "db", isolation_level=None)
        conn.execute("PRAGMA journal_mode = WAL")
        Litelease(conn).bootstrap()
        pools = Pools(conn)
        pools.register("p", 1)
        for number in range(1, 100_000):
            tracer = Tracer(number)
            told = attempt(lambda: holds(pools), tracer)
            del told
            assert can_write_soon(folder / "db"), number
            with pools.hold("p", ttl=3600, wait=5) as slot:
                slot.check()
            if tracer.seen < number:
                break
        assert number > 50


def can_write_soon(path: Path) -> bool:
    """The keeper may be writing."""
    with contextlib.closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
    return True


@pytest.mark.parametrize("waits", [False, True])
def test_a_single_writer_is_free_after_an_exception_at_any_moment(waits: bool, elsewhere: Callable[..., Any]) -> None:
    def writes(writer: SingleWriter, n: int) -> None:
        with writer.write() as conn:
            conn.execute("INSERT INTO notes VALUES (?)", (n,))

    with quick_folder() as folder:
        path = folder / "db"
        writer, other = SingleWriter(path), SingleWriter(path, timeout=30)
        with other.write() as conn:
            conn.execute("CREATE TABLE notes (n)")
        for number in range(1, 100_000):
            tracer = Tracer(number, is_critical=not waits)
            writer.timeout = 30
            with contextlib.ExitStack() as until:
                if waits:
                    file = until.enter_context(open(f"{path}.lock", "rb"))
                    fcntl.flock(file, fcntl.LOCK_EX)
                    unlock = threading.Timer(0.003, fcntl.flock, (file, fcntl.LOCK_UN))
                    unlock.start()
                    until.callback(unlock.join)
                told = attempt(lambda: writes(writer, number), tracer)
            is_interrupted = told[0]
            if is_inside_python_itself(told[1]):
                del told
            assert not writer._conn.in_transaction, number
            other.timeout = 30 if waits else 0  # another thread of this process may still be in the queue
            elsewhere(writes, other, -1)
            # The same writer, here and in another thread.
            writer.timeout = 30 if waits else 0
            writes(writer, -2)
            elsewhere(writes, writer, -3)
            found = [n for (n,) in writer.reader().execute("SELECT n FROM notes WHERE n IN (-1, -2, -3, ?)", (number,))]
            assert found in ([-1, -2, -3], [number, -1, -2, -3]), number
            assert is_interrupted or number in found
            writes_nothing(writer)
            if tracer.seen < number:
                break
        assert number > 50


def writes_nothing(writer: SingleWriter) -> None:
    with writer.write() as conn:
        conn.execute("DELETE FROM notes")


def test_no_bytecode_of_ours_runs_where_an_object_is_freed() -> None:
    # Python swallows what a signal's handler raises there: a Ctrl-C in 400 was lost.
    seen: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith((SOURCE, os.path.dirname(weakref.__file__))):
            seen.append(frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name)

    with quick_folder() as folder:
        db: Any = Litelease(sqlite3.connect(folder / "db", isolation_level=None))
        db.conn.execute("PRAGMA journal_mode = WAL")
        db.bootstrap()
        db.queue("q").send("a")
        held = db.hold("x", 30)
        held.release()
        item = db.queue("q").receive(30)
        with item.finish():
            pass
        sys.setprofile(profile)
        try:
            held = None
            item = None
            db = None
        finally:
            sys.setprofile(None)
    assert seen == []


def test_real_signals_leave_nothing_behind(elsewhere: Callable[..., Any]) -> None:
    # The signal may reach another thread first, and its handler run when the call is over: then it
    # is too late.
    armed: list[bool] = []

    def interrupt(*_: object) -> None:
        if armed:
            raise Interrupted

    def writes(writer: SingleWriter) -> None:
        with writer.write() as conn:
            conn.execute("INSERT INTO notes VALUES (1)")

    rng = random.Random(1)
    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        with quick_folder() as folder:
            conn = sqlite3.connect(folder / "db", timeout=5, isolation_level=None, check_same_thread=False)
            conn.execute("PRAGMA journal_mode = WAL")
            conn.execute("PRAGMA synchronous = NORMAL")
            db, gate, writer = Litelease(conn), Gate(folder / "gate"), SingleWriter(folder / "notes", timeout=30)
            db.bootstrap()
            with writer.write() as notes:
                notes.execute("CREATE TABLE notes (n)")
            acts: list[Callable[[], object]] = [
                lambda: db.claim("x", "a", 30),
                lambda: db.release_by_owner("x", "a"),
                lambda: db.restore_fence() if rng.random() < 0.01 else db.purge(0),
                lambda: gate.admit("x", 1),
                lambda: writes(writer),
            ]
            told: list[int] = []
            interrupted = 0
            takes = {}
            for act in acts:
                takes[act] = 0.0
                for _ in range(20):
                    start = time.monotonic()
                    act()
                    takes[act] = max(takes[act], time.monotonic() - start)
            begin = time.monotonic()
            end, deadline = begin + (20 if IS_THOROUGH else 0), begin + 60
            while time.monotonic() < (end if interrupted > 200 and len(told) > 10 else deadline):
                act = rng.choice(acts)
                try:
                    try:
                        armed.append(True)
                        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, takes[act] * 1.3))
                        answer = act()
                        if isinstance(answer, Acquired):
                            told.append(answer.lease.token)
                    finally:
                        armed.clear()
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupted:
                    interrupted += 1
                assert not conn.in_transaction and not gate._file.conn.in_transaction
                assert conn.execute("PRAGMA synchronous").fetchone() == (1,)
                if interrupted % 20 == 0:
                    for file in ("db", "gate", "notes"):
                        assert can_write(folder / file)
                    elsewhere(db.token, "x")
                    elsewhere(writes, writer)
            assert interrupted > 200
            assert len(told) == len(set(told)) > 10
    finally:
        signal.signal(signal.SIGALRM, handler)
