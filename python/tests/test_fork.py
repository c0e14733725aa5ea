"""What a forked child inherits does no harm: neither to its parent nor to itself."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import litelease
import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

# A child is given a minute, then it is taken for one that hangs.
COMMON = """
import os, signal, sqlite3, sys, threading, time, litelease

def ends(child, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"
"""


def run(script: str, *values: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", COMMON + script, *map(str, values)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SPILLS = """
how, path = sys.argv[1:]
row = "INSERT INTO notes VALUES (hex(randomblob(500)))"
if how == "writer":
    writer = litelease.SingleWriter(path)
    with writer.write() as conn:
        conn.execute("CREATE TABLE notes (text)")
    block = writer.write()
    conn = block.__enter__()
else:
    conn = sqlite3.connect(path, isolation_level=None)
    conn.execute("PRAGMA journal_mode = WAL")
    conn.execute("CREATE TABLE notes (text)")
    db = litelease.Litelease(conn)
    conn.execute("BEGIN IMMEDIATE")
for _ in range(8000):
    conn.execute(row)
child = os.fork()
if child == 0:
    if how == "writer":
        writer.close()
    grandchild = os.fork()
    if grandchild:
        assert ends(grandchild) == 0
    sys.exit(0)  # frees everything
assert ends(child) == 0
conn.execute(row)
if how == "writer":
    block.__exit__(None, None, None)
else:
    conn.execute("COMMIT")
"""


@pytest.mark.parametrize("how", ["writer", "caller's connection"])
def test_a_child_that_ends_leaves_the_transaction_of_its_parent_whole(tmp_path: Path, how: str) -> None:
    # The transaction is larger than the cache, so it is in the log already. A child that closed the
    # connection rolled back in the memory that it shares with its parent, whose commit then
    # destroyed the file.
    run(SPILLS, how, tmp_path / "data.db")
    conn = sqlite3.connect(tmp_path / "data.db")
    assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert conn.execute("SELECT count(*) FROM notes").fetchone() == (8001,)


TRACKERS = """
tracker = litelease.Tracker(sys.argv[1])

def work(name):
    while True:
        tracker.unlock_it(name, tracker.lock_it(name))

for name in "abc":
    threading.Thread(target=work, args=(name,), daemon=True).start()
time.sleep(0.3)
for _ in range(200):
    child = os.fork()
    if child == 0:
        os._exit(0)
    status = ends(child)
    assert status == 0, status
os._exit(0)
"""


def test_a_fork_while_other_threads_use_a_tracker_does_not_hang(tmp_path: Path) -> None:
    # Python frees what belongs to the other threads before the child runs. To close a connection
    # there waits for its mutex, and the thread that has it does not exist.
    run(TRACKERS, tmp_path / "locks.db")


HOLDS = """
path, mode = sys.argv[1:]
conn = sqlite3.connect(path)
conn.execute(f"PRAGMA journal_mode = {mode}")
db = litelease.Litelease(conn)
db.bootstrap()
with db.hold("books", ttl=0.2) as held:
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        child = os.fork()
        if child == 0:
            own = litelease.Litelease(sqlite3.connect(path, timeout=5))
            own.claim("maps", "child", 30)
            os._exit(0)
        status = ends(child)
        assert status == 0, status
os._exit(0)
"""


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_what_the_keeper_does_at_a_fork_is_not_in_the_way_of_the_child(tmp_path: Path, mode: str) -> None:
    # What the keeper had locked at the fork stayed locked in the child, where no thread unlocks it.
    run(HOLDS, tmp_path / "data.db", mode)


COMMITS = """
how, path = sys.argv[1:]
if how == "session":
    kept = litelease.Session(path, "x", ttl=60)
elif how == "member":
    kept = litelease.Shards.join(path, "x", 1, "x", ttl=60)
elif how == "hold":
    conn = sqlite3.connect(path)
    kept = litelease.Litelease(conn).hold("x", ttl=60)
elif how == "requested hold":
    conn = sqlite3.connect(path)
    kept = litelease.Litelease(conn).hold("x", ttl=60, on_requested=print)
    kept.requested()
else:
    kept = litelease.Tracker(path)
    kept.lock_it("x")
(from_child, to_parent), (from_parent, to_child) = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    conn = sqlite3.connect(path, timeout=60, isolation_level=None)
    for row in range(21):
        conn.execute("INSERT INTO notes VALUES (?)", (row,))
        if row == 0:
            os.write(to_parent, b".")
            os.read(from_parent, 1)
    os._exit(0)
os.read(from_child, 1)
kept.unlock_it("x", "") if how == "tracker" else kept.close() if how in ("session", "member") else kept.release()
del kept
is_open = lambda: any(os.path.realpath(f"/proc/self/fd/{fd}") == path for fd in os.listdir("/proc/self/fd"))
if how.endswith("hold"):
    conn.close()
deadline = time.monotonic() + 60
while is_open() and time.monotonic() < deadline:
    time.sleep(0.001)
assert not is_open()
os.write(to_child, b".")
assert ends(child, 60) == 0
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("how", ["session", "member", "hold", "requested hold", "tracker"])
def test_what_a_child_commits_stays_when_its_parent_closes_the_file(tmp_path: Path, how: str) -> None:
    # The connections that the package keeps open for itself were open at the fork. SQLite's list of
    # open files was copied, its locks were not: the child took no lock, and the parent's close
    # deleted the log under it.
    path = tmp_path / "data.db"
    conn = sqlite3.connect(path)
    conn.execute("PRAGMA journal_mode = WAL")
    conn.execute("CREATE TABLE notes (row)")
    litelease.Litelease(conn).bootstrap()
    conn.close()
    run(COMMITS, how, path)
    assert sqlite3.connect(path).execute("SELECT count(*) FROM notes").fetchone() == (21,)


FIRST_TWICE = """
libc = __import__("ctypes").CDLL(None, use_errno=True)
NEW_PID_NAMESPACE = 0x20000000
if libc.unshare(NEW_PID_NAMESPACE) != 0:
    sys.exit(77)
if (child := os.fork()) == 0:
    assert os.getpid() == 1
    held = litelease.open(sys.argv[1]).hold("x", ttl=60)
    libc.unshare(NEW_PID_NAMESPACE)  # after the keeper has its thread: none can be started from here on
    if (child := os.fork()) == 0:
        assert os.getpid() == 1
        try:
            held.check()
        except litelease.Lost as lost:
            os._exit(7 if lost.reason.kind == "Forked" else 1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    held.check()
    os._exit(code)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
def test_a_child_with_the_id_of_its_parent_has_no_hold_of_it(tmp_path: Path) -> None:
    """Both are the first process of their namespaces."""
    command = [sys.executable, "-c", COMMON + FIRST_TWICE, str(tmp_path / "db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode == 77:
        pytest.skip("no namespaces for this user")
    assert done.returncode == 7, done.stderr
