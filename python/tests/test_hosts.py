"""What the library is in: one SQLite with its locks, the threads and signals of its process, a library that is unloaded."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import litelease

can_load = hasattr(sqlite3.Connection, "enable_load_extension")


def run(script: str, *values: object) -> str:
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, values)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    return done.stdout


def is_let_in(path: Path) -> bool:
    """Writes to the file from another process, which waits for no lock."""
    script = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute('INSERT INTO n VALUES (2)')"
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 or "database is locked" in done.stderr, done
    return done.returncode == 0


@pytest.mark.skipif(importlib.util.find_spec("apsw") is None, reason="needs apsw, which has an SQLite of its own")
@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_the_locks_of_the_caller_stay_while_connections_of_ours_come_and_go(tmp_path: Path, mode: str) -> None:
    import apsw

    path = tmp_path / "app.sqlite3"
    host = sqlite3.connect(path, isolation_level=None)
    host.execute(f"PRAGMA journal_mode = {mode}")
    litelease.Litelease(host).bootstrap()
    host.execute("CREATE TABLE n (id)")
    host.execute("BEGIN IMMEDIATE")
    host.execute("INSERT INTO n VALUES (1)")
    second = litelease.Litelease(sqlite3.connect(path, timeout=0, isolation_level=None))
    for _ in range(10):
        # Nothing is granted meanwhile, but it is tried on new connections of the library's, and they are closed.
        with litelease.Cached(second, "x", lambda conn: 1) as value:
            assert value.get() == 1
        assert not is_let_in(path)
    # Otherwise this proves nothing: a connection of a second library drops the locks of the first when it closes.
    other = apsw.Connection(str(path))
    other.execute("SELECT count(*) FROM n").fetchall()
    other.close()
    assert is_let_in(path)


@pytest.mark.skipif(not hasattr(__import__("signal"), "sigwait"), reason="needs sigwait")
def test_a_signal_goes_to_the_thread_that_waits_for_it(tmp_path: Path) -> None:
    """It was delivered to a thread of the library's, whose default action ended the process."""
    run(
        """
        import os, signal, sys, litelease
        db = litelease.open(sys.argv[1])
        held = db.hold("x", ttl=1)
        value = litelease.Cached(db, "y", lambda conn: 1)
        value.get()
        with litelease.Session(db, "s"), litelease.Shards.join(db, "g", 1, "m"):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
            for _ in range(200):
                os.kill(os.getpid(), signal.SIGUSR1)
                assert signal.sigtimedwait({signal.SIGUSR1}, 10) is not None
        held.check()
        """,
        tmp_path / "app.sqlite3",
    )


SQLITE = ctypes.util.find_library("sqlite3")


@pytest.mark.skipif(not can_load or SQLITE is None, reason="needs the system's SQLite under this Python")
def test_a_library_without_mutexes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "app.sqlite3"
    litelease.open(path).close()
    answer = run(
        """
        import ctypes, sys
        SINGLE_THREAD = 1
        library = ctypes.CDLL(sys.argv[2])
        assert library.sqlite3_config(SINGLE_THREAD) == 0
        import sqlite3, litelease
        db = litelease.Litelease(sqlite3.connect(sys.argv[1], isolation_level=None))
        assert db.claim("y", "a", 30)  # on the connection itself it works
        for hold in (lambda: db.hold("x", ttl=5), lambda: db.claim_wait("x", "a", 5, 1), lambda: litelease.Session(db, "s")):
            try:
                print(hold())
            except Exception as error:
                print(error)
        print(sorted(lease.name for lease in db.leases()))
        """,
        path,
        SQLITE,
    )
    assert answer.count("without mutexes") == 3 and answer.endswith("['y']\n"), answer


UNLOADS = """
import ctypes, os, shutil, sys, time, _ctypes
path, sqlite, extension, folder = sys.argv[1:]
# A copy that nothing else has loaded: so unloading it unloads it.
copy = os.path.join(folder, "libsqlite3-copy.so")
shutil.copyfile(sqlite, copy)
library = ctypes.CDLL(copy)
library.sqlite3_open.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]
library.sqlite3_exec.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
library.sqlite3_enable_load_extension.argtypes = [ctypes.c_void_p, ctypes.c_int]
library.sqlite3_load_extension.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]
library.sqlite3_close.argtypes = [ctypes.c_void_p]
db = ctypes.c_void_p()
assert library.sqlite3_open(path.encode(), ctypes.byref(db)) == 0
assert library.sqlite3_enable_load_extension(db, 1) == 0
assert library.sqlite3_load_extension(db, extension.encode(), None, None) == 0
assert library.sqlite3_exec(db, b"SELECT litelease_hold('x', 300)", None, None, None) == 0
assert library.sqlite3_exec(db, b"SELECT litelease_held('x')", None, None, None) == 0
if sys.argv[0] == "-c" and os.environ.get("CLOSES"):
    assert library.sqlite3_close(db) == 0
_ctypes.dlclose(library._handle)
time.sleep(1)  # a few renewals of the keeper's thread, which is in both libraries
assert "libsqlite3-copy" in open("/proc/self/maps").read()
"""


@pytest.mark.skipif(sys.platform != "linux" or SQLITE is None, reason="needs the system's SQLite")
@pytest.mark.parametrize("closes", ["", "1"])
def test_a_library_that_its_host_unloads_stays(tmp_path: Path, closes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "app.sqlite3"
    litelease.open(path).close()
    found = next((line.split()[-1] for line in run("import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(open('/proc/self/maps').read())", SQLITE).splitlines() if SQLITE in line), None)
    assert found is not None
    monkeypatch.setenv("CLOSES", closes)
    run(UNLOADS, path, found, litelease.loadable_path(), tmp_path)
