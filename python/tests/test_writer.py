"""One writer at a time, from Python, with real processes."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import litelease
from litelease import LiteleaseError, SingleWriter, WriteLockTimeout

CHILD = """
import sys, litelease
writer = litelease.SingleWriter(sys.argv[1], timeout=120)
for n in range(int(sys.argv[2])):
    with writer.write() as conn:
        conn.execute("INSERT INTO notes VALUES (?)", (n,))
"""

HOLDER = """
import os, sys, time, litelease
writer = litelease.SingleWriter(sys.argv[1], timeout=120)
with writer.write() as conn:
    conn.execute("INSERT INTO notes VALUES ('killed')")
    if sys.argv[2] == "fork" and os.fork() == 0:
        time.sleep(60)
    print("locked", flush=True)
    time.sleep(60)
"""


def with_notes(path: Path, **options: float) -> SingleWriter:
    writer = SingleWriter(path, timeout=120)
    with writer.write() as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS notes (n)")
    return writer


def count(writer: SingleWriter) -> int:
    (rows,) = writer.reader().execute("SELECT count(*) FROM notes").fetchone()
    return int(rows)


def test_five_processes_of_ten_writes_leave_fifty_rows(tmp_path: Path) -> None:
    writer = with_notes(tmp_path / "data.db")
    children = [subprocess.Popen([sys.executable, "-c", CHILD, tmp_path / "data.db", "10"]) for _ in range(5)]
    assert all(child.wait() == 0 for child in children)
    assert count(writer) == 50


def hold(path: Path, how: str) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path, how], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert holder.stdout and holder.stdout.readline() == "locked\n"
    return holder


def test_a_killed_holder_frees_the_lock_and_a_timeout_names_it(tmp_path: Path) -> None:
    writer = with_notes(tmp_path / "data.db")
    holder = hold(tmp_path / "data.db", "plain")
    writer.timeout = 0.05
    threads = len(os.listdir("/proc/self/task"))
    for _ in range(20):  # one waiting thread at most
        with pytest.raises(WriteLockTimeout, match=f"after 50ms; holder: pid:{holder.pid} since 2.*stuck$"):
            with writer.write():
                pass
    assert len(os.listdir("/proc/self/task")) <= threads + 1
    holder.kill()
    holder.wait()
    writer.timeout = 60
    with writer.write() as conn:
        conn.execute("INSERT INTO notes VALUES (1)")
    assert count(writer) == 1


def test_a_forked_child_keeps_the_lock_of_its_dead_parent_and_that_is_told(tmp_path: Path) -> None:
    writer = with_notes(tmp_path / "data.db")
    holder = hold(tmp_path / "data.db", "fork")
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    writer.timeout = 0.05
    gone = f"holder pid {holder.pid} is gone, a process it forked still holds the lock"
    with pytest.raises(WriteLockTimeout, match=gone):
        with writer.write():
            pass
    os.killpg(holder.pid, signal.SIGKILL)
    writer.timeout = 60
    with writer.write():
        pass


FORKS = """
import os, sys, litelease
writer = litelease.SingleWriter(sys.argv[1], timeout=120)
with writer.write() as conn:
    conn.execute("INSERT INTO notes VALUES ('parent')")
    child = os.fork()
    if child == 0:
        sys.exit(0)  # leaves the block
    os.waitpid(child, 0)
    other = litelease.SingleWriter(sys.argv[1], timeout=0.05)
    try:
        with other.write():
            print("two inside")
    except litelease.WriteLockTimeout:
        print("still held")
    print(other.reader().execute("SELECT count(*) FROM notes").fetchone()[0])
"""


def test_a_forked_child_that_leaves_the_block_ends_neither_lock_nor_transaction(tmp_path: Path) -> None:
    writer = with_notes(tmp_path / "data.db")
    done = subprocess.run([sys.executable, "-c", FORKS, tmp_path / "data.db"], capture_output=True, text=True)
    assert done.stdout == "still held\n0\n", done.stderr
    assert count(writer) == 1


def test_a_signal_while_waiting_leaves_no_lock_behind(tmp_path: Path) -> None:
    writer = with_notes(tmp_path / "data.db")
    holder = hold(tmp_path / "data.db", "plain")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            with writer.write():
                pass
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - start < 5, "and not at the deadline, which is two minutes"
    holder.kill()
    holder.wait()
    other = SingleWriter(tmp_path / "data.db", timeout=60)
    for each in (other, writer, other):
        with each.write() as conn:
            conn.execute("INSERT INTO notes VALUES (1)")
    assert count(writer) == 3


def test_handlers_and_other_threads_run_while_the_lock_is_waited_for(tmp_path: Path) -> None:
    writer = with_notes(tmp_path / "data.db")
    holder = hold(tmp_path / "data.db", "plain")
    handled: list[float] = []
    counted = [0]
    is_over = threading.Event()

    def count_up() -> None:
        while not is_over.is_set():
            counted[0] += 1
            time.sleep(0.001)

    def handle(*_: object) -> None:
        handled.append(counted[0])
        if len(handled) == 5:
            holder.kill()

    thread = threading.Thread(target=count_up)
    thread.start()
    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with writer.write() as conn:  # the handler lets it in
            conn.execute("INSERT INTO notes VALUES (1)")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        is_over.set()
        thread.join()
        holder.wait()
    assert len(handled) >= 5
    # The thread has gone on between each two of them.
    assert all(later - earlier > 2 for earlier, later in zip(handled[:4], handled[1:5])), handled


def test_a_block_that_could_not_be_ended_gives_the_lock_back_when_it_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, other = with_notes(tmp_path / "data.db"), SingleWriter(tmp_path / "data.db", timeout=30)
    raised: list[str] = []

    def interrupted(name: str) -> Any:
        def raises(self: object) -> None:
            raised.append(name)
            raise Signal

        return raises

    with monkeypatch.context() as patch:
        patch.setattr(litelease.Litelease, "_begin", interrupted("begin"))
        patch.setattr(litelease._writer._Block, "end", interrupted("end"))
        try:
            with writer.write():
                pass
        except Signal:
            pass
    assert raised == ["begin", "end", "end"]
    with other.write() as conn:
        conn.execute("INSERT INTO notes VALUES (1)")
    with writer.write() as conn:
        conn.execute("INSERT INTO notes VALUES (2)")
    assert count(writer) == 2


def test_a_transaction_that_is_ended_inside_the_block_is_told(tmp_path: Path) -> None:
    writer = with_notes(tmp_path / "data.db")
    with pytest.raises(LiteleaseError, match="ended inside the block"):
        with writer.write() as conn:
            conn.executescript("INSERT INTO notes VALUES (1)")
    with writer.write() as conn:
        conn.execute("INSERT INTO notes VALUES (2)")
    assert count(writer) == 2


def test_an_error_inside_rolls_back_and_unlocks(tmp_path: Path) -> None:
    writer = with_notes(tmp_path / "data.db")
    with pytest.raises(ZeroDivisionError):
        with writer.write() as conn:
            conn.execute("INSERT INTO notes VALUES (1)")
            1 / 0
    with writer.write():
        with pytest.raises(LiteleaseError, match="already holds"):
            with writer.write():
                pass
    assert count(writer) == 0


def test_threads_are_served_one_after_the_other(tmp_path: Path) -> None:
    writer = with_notes(tmp_path / "data.db")

    def work() -> None:
        for n in range(20):
            with writer.write() as conn:
                conn.execute("INSERT INTO notes VALUES (?)", (n,))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(writer) == 80


def test_what_is_no_lock_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    with_notes(tmp_path / "data.db")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "dir").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name, what in (("link", "a symbolic link"), ("dir", "a folder"), ("fifo", "a FIFO"), ("/dev/null", "a device")):
        writer = SingleWriter(tmp_path / "data.db", lock_path=tmp_path / name)
        with pytest.raises(LiteleaseError, match=what):
            with writer.write():
                pass
    assert victim.read_text() == "precious"


def test_a_writer_keeps_its_lock_file_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    writer = SingleWriter("data.db", lock_path="data.lock")
    monkeypatch.chdir(tmp_path / "other")
    with writer.write() as conn:
        conn.execute("CREATE TABLE notes (n)")
    assert (tmp_path / "data.lock").exists() and not (tmp_path / "other" / "data.lock").exists()


def test_settings_are_verified(tmp_path: Path) -> None:
    with pytest.raises(LiteleaseError, match="needs a file"):
        SingleWriter(":memory:")
    with pytest.raises(ValueError, match="synchronous"):
        SingleWriter(tmp_path / "data.db", synchronous="SOMETIMES")
    writer = SingleWriter(tmp_path / "data.db", synchronous="FULL")
    with writer.write() as conn:
        assert conn.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert conn.execute("PRAGMA synchronous").fetchone() == (2,)
    with pytest.raises(sqlite3.OperationalError):
        writer.reader().execute("CREATE TABLE t (x)")
    writer.close()


def has_head(path: Path) -> bool:
    """Whether somebody is the head of the queue, which is the same for all languages."""
    try:
        with open(f"{path}.lock.queue") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


def is_stopped(pid: int) -> bool:
    """Whether all its threads are."""
    return all(stat.read_text().rsplit(")")[-1].split()[0] == "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat"))


def test_a_head_of_the_queue_that_is_stopped_shuts_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    writer = with_notes(path)
    assert not Path(f"{path}.lock.queue").exists(), "nobody has waited"
    with writer.write():
        head = subprocess.Popen([sys.executable, "-c", CHILD, path, "10"])
        while not has_head(path):
            assert head.poll() is None
        os.kill(head.pid, signal.SIGSTOP)
        while not is_stopped(head.pid):  # until then it may still be given the lock, and keep it
            time.sleep(0.001)
    for _ in range(5):  # far sooner than at the deadline, which is two minutes for each
        time.sleep(0.002)
        with writer.write() as conn:
            conn.execute("INSERT INTO notes VALUES (1)")
    assert has_head(path)
    os.kill(head.pid, signal.SIGCONT)
    assert head.wait() == 0
    assert count(writer) == 15


def test_a_queue_that_cannot_be_used_costs_manners_and_not_the_lock(tmp_path: Path) -> None:
    writer = with_notes(tmp_path / "data.db")
    (tmp_path / "data.db.lock.queue").mkdir()
    children = [subprocess.Popen([sys.executable, "-c", CHILD, tmp_path / "data.db", "100"]) for _ in range(4)]
    assert all(child.wait() == 0 for child in children)
    assert count(writer) == 400


class Signal(Exception):
    """What a handler of a signal raises."""


def test_a_signal_between_any_two_lines_loses_no_lock(tmp_path: Path) -> None:
    # A descriptor that nobody knew any more kept the lock for as long as its process lived.
    path = tmp_path / "data.db"
    other = with_notes(path)
    writers: list[SingleWriter] = []  # they stay, so that nothing is freed with them
    lines = 0

    def is_let_in() -> bool:
        """Waits for a write, into which an exception comes before the line of that number."""
        seen = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal seen
            if not frame.f_code.co_filename.endswith(("_writer.py")):
                return None
            seen += event == "line"
            if seen == lines:
                raise Signal
            return trace

        writer = SingleWriter(path, timeout=60)
        writers.append(writer)
        with open(f"{path}.lock", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            unlock = threading.Timer(0.005, lambda: fcntl.flock(file, fcntl.LOCK_UN))
            unlock.start()
            try:
                sys.settrace(trace)
                with writer.write():
                    sys.settrace(None)
                return True
            except Signal:
                return False
            finally:
                sys.settrace(None)
                unlock.join()

    other.timeout = 10
    is_through = False
    while not is_through:
        lines += 1
        is_through = is_let_in()
        with other.write() as conn:
            conn.execute("INSERT INTO notes VALUES (1)")
    assert lines > 12
    assert count(other) == lines


def access(path: Path) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_mode & 0o777, found.st_gid


def wait_in_the_queue(path: Path) -> None:
    """Makes the file of the queue, too."""
    writer = SingleWriter(path, timeout=30)
    with open(f"{path}.lock", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        def unlock() -> None:
            while not os.path.lexists(f"{path}.lock.queue"):
                time.sleep(0.001)
            time.sleep(0.05)
            fcntl.flock(file, fcntl.LOCK_UN)

        thread = threading.Thread(target=unlock)
        thread.start()
        with writer.write():
            pass
        thread.join()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [(0o600, 0o600), (0o640, 0o600), (0o644, 0o600), (0o660, 0o660), (0o664, 0o660), (0o666, 0o666)],
)
def test_only_users_who_may_write_the_database_can_open_its_side_files(
    tmp_path: Path, mode: int, expected: int
) -> None:
    # A user who may write the database could not lock it: the umask of whoever came first decided.
    path = tmp_path / "data.db"
    sqlite3.connect(path).close()
    path.touch()
    os.chmod(path, mode)
    group = 54321 if os.geteuid() == 0 else os.getgid()
    os.chown(path, -1, group)
    before = os.umask(0o077)
    try:
        with_notes(path)
        wait_in_the_queue(path)
    finally:
        os.umask(before)
    for name in ("data.db.lock", "data.db.lock.queue"):
        assert access(tmp_path / name) == (expected, group), name
    # The database is shared with others later on.
    os.chmod(path, 0o666)
    with_notes(path)
    assert access(tmp_path / "data.db.lock")[0] == 0o666


ANOTHER_USER = """
import os, sys, litelease
os.setgroups([54321]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2])); os.umask(0o022)
writer = litelease.SingleWriter(sys.argv[1], timeout=30)
with writer.write() as conn:
    conn.execute("INSERT INTO notes VALUES (1)")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")
def test_users_who_may_write_the_database_can_share_a_writer(tmp_path: Path) -> None:
    if not os.access(sys.executable, os.X_OK) or any(not folder.stat().st_mode & 0o001 for folder in Path(sys.executable).resolve().parents):
        pytest.skip("other users cannot run this Python")
    folder = Path("/tmp") / f"litelease-test-{os.getpid()}"
    folder.mkdir()
    try:
        os.chown(folder, 0, 54321)
        folder.chmod(0o2770)
        path = folder / "data.db"
        path.touch()
        os.chown(path, 0, 54321)
        path.chmod(0o660)
        writer = with_notes(path)
        for suffix in ("-wal", "-shm"):  # SQLite itself gives them the mode and the owner of the database
            assert os.stat(f"{path}{suffix}").st_gid == 54321
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        for user in ("54322", "54323", "54322"):
            done = subprocess.run(
                [sys.executable, "-c", ANOTHER_USER, path, user], capture_output=True, text=True, env=environment
            )
            if "No module named" in done.stderr or "can't open" in done.stderr:
                pytest.skip("other users cannot read this package")
            assert done.returncode == 0, done.stderr
        assert count(writer) == 3
        stranger = "import os, sys; os.setgroups([]); os.setgid(9); os.setuid(54329); open(sys.argv[1])"
        for name in ("data.db.lock", "data.db"):
            done = subprocess.run([sys.executable, "-c", stranger, folder / name], capture_output=True, text=True)
            assert "PermissionError" in done.stderr
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


@pytest.mark.parametrize("suffix", [".lock", ".lock.queue"])
@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "fifo"])
def test_no_side_file_is_ever_followed_or_waited_for(tmp_path: Path, suffix: str, kind: str) -> None:
    path = tmp_path / "data.db"
    with_notes(path)
    side, victim = Path(f"{path}{suffix}"), tmp_path / "victim"
    side.unlink(missing_ok=True)
    if kind == "link":
        victim.write_text("precious")
        os.chmod(victim, 0o604)
        side.symlink_to(victim)
    elif kind == "dangling":
        side.symlink_to(victim)
    elif kind == "folder":
        side.mkdir()
    else:
        os.mkfifo(side)
    if suffix == ".lock":
        with pytest.raises(LiteleaseError, match="left alone"):
            with SingleWriter(path).write():
                pass
        assert SingleWriter(path).holder() is None
    else:
        wait_in_the_queue(path)  # without manners
    if kind == "link":
        assert victim.read_text() == "precious" and access(victim)[0] == 0o604
    assert kind == "link" or not victim.exists()


def test_who_asks_for_the_holder_makes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    writer = with_notes(path)
    Path(f"{path}.lock").unlink()
    assert writer.holder() is None
    assert not Path(f"{path}.lock").exists()


def test_a_holder_that_has_not_signed_the_lock_file_is_unknown_and_the_system_names_it(tmp_path: Path) -> None:
    # flock(1) was once taken for a child of the holder before it.
    path = tmp_path / "data.db"
    writer = with_notes(path)
    signer = hold(path, "plain")
    signer.kill()
    signer.wait()
    flock = subprocess.Popen(["flock", "--no-fork", f"{path}.lock", "sleep", "60"])
    try:
        while writer.holder() is None:
            time.sleep(0.005)
        assert writer.holder() == (flock.pid, None)
        writer.timeout = 0.0
        unsigned = f"holder: unknown, for it has not signed the lock file; the system names pid {flock.pid};"
        with pytest.raises(WriteLockTimeout, match=unsigned) as raised:
            with writer.write():
                pass
        assert (raised.value.holder, raised.value.is_gone) == ((flock.pid, None), False)
    finally:
        flock.kill()
        flock.wait()
    assert writer.holder() is None


def test_a_writer_that_polls_waits_without_the_queue_and_runs_signal_handlers(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    with_notes(path)
    for bad in [(0.0, 1.0), (2.0, 1.0)]:
        with pytest.raises(ValueError, match="the first and the longest pause"):
            SingleWriter(path, poll=bad)
    # Pauses that are longer than the time between two looks at signals.
    for poll in [(0.001, 0.002), (0.2, 0.2)]:
        writer = SingleWriter(path, timeout=60, poll=poll)
        holder = hold(path, "plain")
        handled: list[int] = []

        def handle(number: int, frame: FrameType | None, holder: subprocess.Popen[str] = holder) -> None:
            handled.append(number)
            holder.kill()

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
            with writer.write() as conn:
                conn.execute("INSERT INTO notes VALUES (1)")
        finally:
            signal.signal(signal.SIGUSR1, before)
            holder.kill()
            holder.wait()
        assert handled == [signal.SIGUSR1]
    assert not Path(f"{path}.lock.queue").exists()
