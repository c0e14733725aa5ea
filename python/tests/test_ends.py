"""How holds end when their process does, or their connection: real processes and signals."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Iterator

import pytest
from common import until

import litelease
from litelease import Litelease, Lost, Pools


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.sqlite3"


@pytest.fixture
def db(path: Path) -> Iterator[Litelease]:
    with litelease.open(path) as opened:
        yield opened


def is_freed(db: Litelease, name: str, seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while db.owner(name) is not None and time.monotonic() < end:
        time.sleep(0.01)
    return db.owner(name) is None


# A process that crashes says where.
HOLDER = """
import faulthandler, multiprocessing, os, signal, sqlite3, sys, threading, time
faulthandler.enable()
import litelease
from litelease import Litelease, Pools

conn = sqlite3.connect(sys.argv[1], isolation_level=None)
db = Litelease(conn)
held = db.hold("x", ttl=3600)
Pools(conn).register("p", 1)
slot = Pools(conn).hold("p", ttl=3600)
session = litelease.Session(sys.argv[1], "worker", ttl=3600)
book = session.claim("book")
member = litelease.Shards.join(db, "orders", 1, "a", ttl=3600)
assert member.next(60).shard == 0
"""

ENDS = {
    "the script ends": ("", 0),
    "an exception": ("raise SystemExit(3)", 3),
    "in another thread": ("""
def work():
    global other
    other = db_of_thread.hold("x2", ttl=3600)
db_of_thread = litelease.open(sys.argv[1])
thread = threading.Thread(target=work, daemon=True)
thread.start()
thread.join()
""", 0),
    # Now and then Python runs a handler only after the next call, if another thread has just begun.
    "SIGTERM with a handler, as gunicorn has it": ("""
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
os.kill(os.getpid(), signal.SIGTERM)
while True: time.sleep(0.1)
""", 0),
    # A job in the background of a shell inherits that it is ignored.
    "SIGINT": ("""
signal.signal(signal.SIGINT, signal.default_int_handler)
os.kill(os.getpid(), signal.SIGINT)
while True: time.sleep(0.1)
""", None),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_process_that_ends_releases_what_it_holds(db: Litelease, path: Path, how: str) -> None:
    script, code = ENDS[how]
    done = subprocess.run([sys.executable, "-W", "error", "-c", HOLDER + script, path], capture_output=True, timeout=60)
    if code is not None:
        assert done.returncode == code and done.stderr == b""
    assert db.token("x") == 1, "it was held"
    assert db.leases() == [] and Pools(db.conn).slots("p") == []


@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL"])
def test_a_process_that_is_killed_releases_nothing_and_a_hold_takes_over(db: Litelease, path: Path, end: str) -> None:
    script = f"os.kill(os.getpid(), signal.{end})\ntime.sleep(60)"
    done = subprocess.run([sys.executable, "-c", HOLDER + script, path], capture_output=True, timeout=60)
    assert done.returncode == -getattr(signal, end)
    assert db.owner("x") is not None and not db.claim("x", "a", ttl=30)
    with db.hold("x", ttl=30, wait=5) as held:  # on Linux it sees that the process is gone
        assert held.token == 2


FORKS = """
child = os.fork()
if child == 0:
    how = sys.argv[2]
    if how == "drop":
        del held, slot, session, book, member
        import gc; gc.collect()
        time.sleep(0.2)
    elif how == "release":
        held.release(), slot.release(), book.release(), session.close(), member.leave()
    elif how == "close":
        db.close()
    elif how == "own":
        own = litelease.open(sys.argv[1]).hold("mine", ttl=3600)
    sys.exit(0)
status = os.waitpid(child, 0)[1]
assert status == 0, f"the child ended with status {status}; what it said stands above"
held.check(), slot.check(), session.check(), book.check(), member.check(0)
assert db.owner("book") == session.owner and db.owner("orders/shard/0") == member.owner
assert db.owner("x") == held.owner and len(Pools(conn).slots("p")) == 1
assert db.owner("mine") is None
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("how", ["nothing", "drop", "release", "close", "own"])
def test_a_forked_child_never_releases_what_its_parent_holds(db: Litelease, path: Path, how: str) -> None:
    done = subprocess.run([sys.executable, "-c", HOLDER + FORKS, path, how], capture_output=True, timeout=60, text=True)
    assert done.returncode == 0, done.stderr
    assert db.leases() == []


# Registered before litelease, so it is called after whatever litelease does at the end.
STARTS_LATE = """
import _thread, atexit, os, sys, time
begun = []
atexit.register(lambda: begun or os._exit(1))
start = _thread.start_new_thread
def start_late(work, values):
    def begin():
        time.sleep(0.1)
        begun.append(True)
        work(*values)
    return start(begin, ())
_thread.start_new_thread = start_late
import litelease
held = litelease.open(sys.argv[1]).hold("x", ttl=3600, on_requested=print)
"""


def test_a_process_that_ends_waits_for_a_listener_that_has_not_begun(path: Path) -> None:
    # A thread that began after the interpreter had freed its state crashed the process. It took a
    # busy machine, and a process that ended right after its first hold.
    done = subprocess.run([sys.executable, "-c", STARTS_LATE, path], capture_output=True, timeout=60, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_hold_that_is_dropped_is_released(db: Litelease, path: Path) -> None:
    db.hold("x", ttl=3600)
    gc.collect()
    assert is_freed(db, "x") and db.token("x") == 1
    with pytest.warns(ResourceWarning, match="was garbage-collected") as told:
        db.hold("x", ttl=3600)
        gc.collect()
        assert is_freed(db, "x")
        until(lambda: len(told) > 0)


def test_a_hold_ends_with_its_connection(db: Litelease, path: Path) -> None:
    conn = sqlite3.connect(path)
    other = Litelease(conn)
    held = other.hold("x", ttl=3600)
    held.check()
    conn.close()
    with pytest.raises(Lost, match="its connection was closed"):
        held.check()
    assert is_freed(db, "x") and held.lost.wait(60)
    held.release()
    # Nobody asks: the keeper sees it within a second.
    conn = sqlite3.connect(path)
    quiet = Litelease(conn).hold("x", ttl=3600)
    conn.close()
    assert quiet.lost.wait(60) and is_freed(db, "x")


def test_a_hold_outlives_the_names_of_what_it_was_made_with(db: Litelease, path: Path) -> None:
    held = Litelease(sqlite3.connect(path)).hold("x", ttl=2)
    gc.collect()
    for _ in range(50):
        time.sleep(0.05)
        held.check()
    assert db.owner("x") == held.owner
    held.release()


def test_a_file_that_stays_locked_does_not_keep_the_interpreter_from_ending(db: Litelease, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        words = [sys.executable, "-c", HOLDER + "print('held', flush=True); sys.stdin.readline()", str(path)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdin is not None and holder.stdout is not None and holder.stdout.readline() == "held\n"
            other.execute("BEGIN IMMEDIATE")
            holder.stdin.write("\n")
            holder.stdin.flush()
            assert holder.wait(20) == 0
        other.execute("ROLLBACK")
    assert db.owner("x") is not None


# Daemon threads go on until the interpreter is gone. One that comes back to Python inside the
# library then would be ended in the middle of it, and the process would abort.
DAEMONS = """
import sys, threading, time, litelease
def work(number):
    db = litelease.open(sys.argv[1])
    while True:
        try:
            with db.hold(f"x{number % 3}", ttl=60, wait=1) as held:
                held.check()
            db.claim("plain", "a", ttl=60)
        except Exception:
            pass
for number in range(12):
    threading.Thread(target=work, args=(number,), daemon=True).start()
time.sleep(0.5)
"""


def test_daemon_threads_that_go_on_do_not_abort_the_end_of_the_interpreter(path: Path) -> None:
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", DAEMONS, path], capture_output=True, timeout=60, text=True)
        assert done.returncode == 0, done


def test_a_grant_that_comes_after_its_connection_was_closed_is_released(db: Litelease, path: Path) -> None:
    first, other = db.hold("x", ttl=60), litelease.open(path)
    held: list[litelease.Held] = []
    waiter = threading.Thread(target=lambda: held.append(other.hold("x", ttl=60, wait=60)))
    waiter.start()
    time.sleep(0.3)  # let it wait
    other.conn.close()
    first.release()
    waiter.join()
    with pytest.raises(Lost, match="its connection was closed"):
        held[0].check()
    assert is_freed(db, "x")


@pytest.mark.parametrize("how", ["release", "close"])
def test_a_hold_that_ends_during_a_handover_does_not_come_back(db: Litelease, path: Path, how: str) -> None:
    other = litelease.open(path)
    held, writer = db.hold("x", ttl=60), sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    errors: list[BaseException] = []

    def give() -> None:
        try:
            held.hand_over(60)
        except litelease.LiteleaseError as error:
            errors.append(error)

    giver = threading.Thread(target=give)
    giver.start()
    time.sleep(0.3)  # let it wait for the file
    held.release() if how == "release" else db.conn.close()
    writer.execute("ROLLBACK")
    giver.join()
    assert len(errors) == 1
    with pytest.raises(Lost):
        held.check()
    assert is_freed(other, "x")


def test_waiting_for_the_loss_of_a_hold_does_not_keep_it(db: Litelease, path: Path) -> None:
    lost = litelease.open(path).hold("x", ttl=60).lost
    threading.Thread(target=lost.wait, daemon=True).start()
    gc.collect()
    assert is_freed(db, "x")
    assert not lost.is_set(), "it was released"


def test_ctrl_c_ends_a_release_that_waits_for_a_locked_file(db: Litelease, path: Path) -> None:
    held, writer = db.hold("x", ttl=60), sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    handled: list[float] = []

    def handler(*_: object) -> None:
        handled.append(time.monotonic())
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    begin = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            held.release()
    finally:
        signal.signal(signal.SIGALRM, before)
        writer.execute("ROLLBACK")
    # By itself the release would try for 5 seconds.
    assert handled[0] < begin + 4
    assert is_freed(db, "x"), "the keeper releases it"


FORKS_IN_A_HANDLER = """
import os, signal, sys, time, litelease
db, children = litelease.open(sys.argv[1]), []
first = db.hold("x", ttl=60)
def handler(*_):
    children.append(os.fork())
    if children[-1] == 0:
        sys.exit(0)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    litelease.open(sys.argv[1]).hold("x", ttl=60, wait=0.6)
except litelease.HoldTimeout:
    pass
begin = time.monotonic()
os.waitpid(children[0], 0)
# At its end the child would have waited 30 seconds for a call that was its parent's.
sys.exit(time.monotonic() - begin > 20)
"""


def test_a_child_that_is_forked_inside_a_wait_ends_at_once(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKS_IN_A_HANDLER, path], capture_output=True, timeout=60, text=True)
    assert done.returncode == 0, done


SUB_INTERPRETER = """
import sys, litelease, _xxsubinterpreters as interpreters
db = litelease.open(sys.argv[1])
held = db.hold("x", ttl=60)
code = f"import sys; sys.path[:] = {sys.path!r}; import litelease; held = litelease.open({sys.argv[1]!r}).hold('y', ttl=60)"
inner = interpreters.create()
interpreters.run_string(inner, code)
assert db.owner("y") is not None
interpreters.destroy(inner)
held.check()
assert db.owner("y") is None
"""


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the module has another name elsewhere")
def test_the_end_of_a_sub_interpreter_ends_its_own_holds_alone(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SUB_INTERPRETER, path], capture_output=True, timeout=60, text=True)
    assert done.returncode == 0, done


LEFT_ALIVE = """
import sys, litelease, _xxsubinterpreters as interpreters
code = f"import sys; sys.path[:] = {sys.path!r}; import litelease; db = litelease.open({sys.argv[1]!r}); db.claim('x', 'a', 60)"
code += "; held = db.hold('y', ttl=60)" if sys.argv[2] == "held" else "; db.hold('y', ttl=60).release(); db.close()"
left = interpreters.create()
interpreters.run_string(left, code)
"""


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the module has another name elsewhere")
@pytest.mark.parametrize("how", ["held", "closed"])
def test_a_sub_interpreter_that_is_left_alive_does_not_abort_the_process(db: Litelease, path: Path, how: str) -> None:
    command = [sys.executable, "-c", LEFT_ALIVE, path, how]
    done = subprocess.run(command, capture_output=True, timeout=60, text=True)
    assert done.returncode == 0, done
    assert is_freed(db, "y")


def test_a_time_that_is_no_number_is_refused(db: Litelease) -> None:
    for wait in (float("nan"), -float("nan")):
        with pytest.raises(litelease.InvalidTtl, match="a number of seconds"):
            db.hold("x", ttl=60, wait=wait)
    assert db.owner("x") is None
