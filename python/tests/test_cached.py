"""Values that are answered from memory: real readers and writers, stopped and killed, and no old answer."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterator

import pytest
from common import path_of, until

import litelease
from litelease import Cached, HoldTimeout, InvalidTtl, Litelease, LiteleaseError, ReadersLeft, TtlTooLong


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Litelease]:
    with litelease.open(tmp_path / "db") as opened:
        opened.conn.executescript("CREATE TABLE config (value INTEGER); INSERT INTO config VALUES (0)")
        yield opened


class Counted:
    """Loads the value, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, conn: sqlite3.Connection) -> int:
        self.count += 1
        value: int = conn.execute("SELECT value FROM config").fetchone()[0]
        return value


def write(cached: Cached[int], value: int, patience: float = 60) -> None:
    cached.write(patience, lambda conn: conn.execute("UPDATE config SET value = ?", (value,)))


def test_a_value_is_answered_from_memory_without_touching_the_file(db: Litelease) -> None:
    load = Counted()
    with Cached(db, "config", load, 30) as value:
        assert value.trusted_for == 0 and value.get() == 0
        assert 20 < value.trusted_for <= 27
        assert [reader.reader for reader in db.readers("config")] == [value.reader]
        # Not through write: no reader is notified, which shows that none reads the file.
        db.conn.execute("UPDATE config SET value = 5")
        assert [value.get() for _ in range(1000)] == [0] * 1000 and load.count == 1
    assert db.readers("config") == []
    with pytest.raises(LiteleaseError, match="closed"):
        value.get()


def test_a_writer_waits_for_readers_that_give_up_at_once_and_all_see_what_it_wrote(db: Litelease) -> None:
    cached = [Cached(path_of(db), "config", Counted(), 300) for _ in range(3)]
    for round in range(1, 6):
        for reader in cached:
            reader.get()
        write(cached[round % 3], round)
        assert [reader.get() for reader in cached] == [round] * 3
    for reader in cached:
        reader.close()
    assert db.readers("config") == []


def test_a_version_that_has_not_changed_needs_no_new_load_and_trust_ends_before_the_ttl(db: Litelease) -> None:
    load, ttl = Counted(), 0.4
    with Cached(db, "config", load, ttl) as value:
        before = time.time_ns() // 1_000_000
        value.get()
        # The row outlives the trust, whatever happens in between.
        (reader,) = db.readers("config")
        assert value.trusted_for * 1000 < reader.expires_at_ms - time.time_ns() // 1_000_000
        assert value.trusted_for <= ttl - 0.05
        until(lambda: value.trusted_for == 0)
        assert time.time_ns() // 1_000_000 < before + ttl * 1000 + 1000
        assert value.get() == 0 and load.count == 1 and value.trusted_for > 0


def test_while_a_writer_has_the_name_values_come_from_the_file(db: Litelease) -> None:
    load = Counted()
    with Cached(db, "config", load, 30) as value:
        value.get()
        lease = db.claim("config", "w", 30)
        assert lease
        until(lambda: db.readers("config") == [])
        db.conn.execute("UPDATE config SET value = 7")
        assert [value.get(), value.get()] == [7, 7] and load.count == 3 and value.trusted_for == 0
        db.release(lease.lease)
        assert [value.get(), value.get()] == [7, 7] and load.count == 4


def test_a_writer_that_is_out_of_patience_has_written_nothing(db: Litelease) -> None:
    with Cached(db, "config", Counted(), 30) as value:
        db.read("config", "web-1", ttl=60)
        with pytest.raises(ReadersLeft) as left:
            write(value, 1, 0.3)
        assert [reader.reader for reader in left.value.readers] == ["web-1"]
        lease = db.claim("config", "w", 30)
        assert lease
        with pytest.raises(HoldTimeout):
            write(value, 1, 0)
        db.release(lease.lease)
        db.unread("config", "web-1")
        with pytest.raises(ZeroDivisionError):
            value.write(30, lambda conn: conn.execute("UPDATE config SET value = 9") and 1 / 0)
        assert value.get() == 0 and db.owner("config") is None
        assert value.write(30, lambda conn: conn.execute("UPDATE config SET value = 9").rowcount) == 1
        assert value.get() == 9


def test_one_that_is_dropped_gives_its_read_up(db: Litelease) -> None:
    value = Cached(db, "config", Counted(), 60)
    value.get()
    del value
    gc.collect()
    assert db.readers("config") == []


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_one_that_ends_while_another_connection_writes_gives_its_read_up_afterwards(db: Litelease, how: str) -> None:
    value = Cached(db, "config", Counted(), 3600)
    value.get()
    db.conn.execute("BEGIN IMMEDIATE")
    if how == "closed":
        value.close()
    del value
    gc.collect()
    assert len(db.readers("config")) == 1, "the file is locked"
    db.conn.execute("ROLLBACK")
    # A writer would have waited for an hour.
    until(lambda: db.readers("config") == [])


def test_odd_values_are_refused_and_odd_names_are_names(db: Litelease) -> None:
    with pytest.raises(InvalidTtl):
        Cached(db, "config", Counted(), 0.1)
    with pytest.raises(TtlTooLong):
        Cached(db, "config", Counted(), 3601)
    with pytest.raises(LiteleaseError, match="needs a file"):
        Cached(Litelease(sqlite3.connect(":memory:")), "config", Counted())
    for odd in ("", "a\0b", "x" * 1_000_000):
        with Cached(db, odd, Counted(), 30) as value:
            write(value, len(odd))
            assert value.get() == len(odd)
    with Cached(db, "config", lambda conn: 1 // 0, 30) as broken:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                broken.get()


READER = """
import sys, threading, time, litelease
path, ttl = sys.argv[1:]
load = lambda conn: conn.execute("SELECT value FROM config").fetchone()[0]
with litelease.Cached(path, "config", load, float(ttl)) as value:
    print("reads", flush=True)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    answers = {}
    while not ended.is_set():
        asked = time.clock_gettime_ns(time.CLOCK_MONOTONIC)  # it may be stopped between the answer and any later look
        answers[value.get()] = asked
        time.sleep(0.0005)
for value, asked in answers.items():
    print(value, asked)
"""


def test_no_reader_answers_an_old_value_after_a_commit(db: Litelease) -> None:
    command = [sys.executable, "-c", READER, path_of(db), "0.5"]
    readers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    committed: dict[int, int] = {}
    try:
        for reader in readers:
            assert reader.stdout is not None and reader.stdout.readline() == "reads\n"
        with Cached(db, "config", Counted(), 0.5) as value:
            for round in range(1, 10):
                if round == 6:
                    readers[0].kill()  # it is not waited for
                if round % 3 == 2:
                    stop_between_transactions(db, readers[1].pid)
                write(value, round)
                committed[round] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
                os.kill(readers[1].pid, signal.SIGCONT)
                time.sleep(0.02)
    finally:
        told = [reader.communicate()[0] for reader in readers]
    seen = [(int(line.split()[0]), int(line.split()[1])) for text in told for line in text.splitlines()]
    assert len({answer for answer, _ in seen}) > 1
    for answer, asked in seen:
        # A get that began after the commit of the next value has not answered this one.
        assert answer + 1 not in committed or asked < committed[answer + 1], (answer, asked)


def stop_between_transactions(db: Litelease, pid: int) -> None:
    db.conn.execute("BEGIN IMMEDIATE")
    try:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    finally:
        db.conn.execute("ROLLBACK")


def test_a_forked_child_reads_nothing_from_memory(db: Litelease) -> None:
    with Cached(db, "config", Counted(), 30) as value:
        value.get()
        child = os.fork()
        if child == 0:
            try:
                value.get()
            except LiteleaseError:
                value.close()
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert len(db.readers("config")) == 1 and value.get() == 0
