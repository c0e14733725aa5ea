"""Ticks and schedulers: jobs in threads, in several processes, across a fork and in an event loop."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Callable

import pytest

import litelease
from litelease import JobTick, Litelease, Lost, Scheduler, StaleTickError, TickAcquired, TickHeld, TickState, aio


def app(folder: Path) -> Litelease:
    db = litelease.open(folder / "app.sqlite3")
    db.conn.execute("CREATE TABLE effects (tick INTEGER, token INTEGER)")
    return db


def effects(db: Litelease) -> list[int]:
    return [row[0] for row in db.conn.execute("SELECT tick FROM effects ORDER BY rowid")]


def write(tick: JobTick) -> None:
    with tick.finish() as conn:
        conn.execute("INSERT INTO effects VALUES (?, ?)", (tick.tick_ms, tick.token))


def eventually(what: str, is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.005)


def state(db: Litelease, name: str) -> TickState | None:
    info = db.newest_tick(name)
    return info and info.state


def in_order(ticks: list[int], period_ms: int) -> bool:
    return all(after - before == period_ms for before, after in zip(ticks, ticks[1:]))


def test_a_tick_in_a_transaction_is_rolled_back_with_it(tmp_path: Path) -> None:
    db = app(tmp_path)
    db.conn.execute("BEGIN IMMEDIATE")
    assert db.tick("digest", 60_000)
    db.conn.execute("ROLLBACK")
    assert db.tick("digest", 60_000) and not db.tick("digest", 60_000)
    claimed = db.claim_tick("nightly", "a", 30, tick_ms=60_000)
    assert isinstance(claimed, TickAcquired) and claimed.attempt == 1
    with pytest.raises(TickHeld):
        db.tick("nightly", 60_000)
    assert [info.name for info in db.ticks()] == ["digest", "nightly"]


def test_every_tick_has_its_effect_once_and_in_order_among_all_schedulers(tmp_path: Path) -> None:
    db = app(tmp_path)
    schedulers = [Scheduler(tmp_path / "app.sqlite3"), Scheduler(db)]
    for scheduler in schedulers:
        scheduler.every("20ms", each=True, name="rollup")(write)
        scheduler.start()
    eventually("some were run", lambda: len(effects(db)) > 10)
    schedulers[0].stop()
    before = len(effects(db))
    eventually("the other one goes on", lambda: len(effects(db)) > before + 5)
    schedulers[1].stop()
    ticks = effects(db)
    assert in_order(ticks, 20), ticks
    time.sleep(0.05)
    assert effects(db) == ticks


def test_jobs_that_raise_are_repeated_and_then_failed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    db, tokens = app(tmp_path), list[int]()
    scheduler = Scheduler(db)

    @scheduler.cron("0 0 1 1 *", retries=1, at_start=True)
    def flaky(tick: JobTick) -> None:
        tokens.append(tick.token)
        tick.check()
        raise OSError("no disk")

    @scheduler.cron("0 0 1 1 *", at_start=True)
    def careless(tick: JobTick) -> None:
        tick.db.conn.execute("BEGIN IMMEDIATE")
        tick.db.conn.execute("INSERT INTO effects VALUES (1, 1)")

    @scheduler.cron("0 0 1 1 *", at_start=True)
    def late_error(tick: JobTick) -> None:
        write(tick)
        with pytest.raises(StaleTickError), tick.finish():
            raise AssertionError("no effect is repeated")
        raise OSError("the mail was not sent")

    @scheduler.cron("0 0 1 1 *", at_start=True)
    def leaving() -> None:
        sys.exit(3)

    with caplog.at_level(logging.ERROR, "litelease"):
        scheduler.start()
        names = ("flaky", "careless", "late_error", "leaving")
        eventually("they have ended", lambda: all(state(db, name) not in (None, TickState.OPEN) for name in names))
        scheduler.stop()
    assert [state(db, name) for name in names] == [TickState.FAILED, TickState.FAILED, TickState.DONE, TickState.FAILED]
    assert tokens == [1, 1] and len(effects(db)) == 1
    assert "no disk" in caplog.text and "again in" in caplog.text and "left open" in caplog.text


# It claimed and failed every further tick, so other processes never got one.
def test_a_scheduler_whose_event_loop_has_ended_leaves_its_ticks_to_others(tmp_path: Path) -> None:
    db = app(tmp_path)
    scheduler, begun = aio.Scheduler(db), threading.Event()

    @scheduler.every("20ms", name="rollup")
    async def rollup() -> None:
        begun.set()
        await asyncio.sleep(60)

    async def main() -> None:
        scheduler.start()
        while not begun.is_set():
            await asyncio.sleep(0.01)

    asyncio.run(main())
    eventually("its threads have ended", lambda: not any(job.thread.is_alive() for job in scheduler._threads))
    assert state(db, "rollup") is TickState.OPEN and db.inspect("rollup") is None


def test_a_job_whose_time_is_up_loses_its_tick_and_another_process_runs_it(tmp_path: Path) -> None:
    db, seen, go_on = app(tmp_path), list[str](), threading.Event()
    stuck, other = Scheduler(db), Scheduler(db)

    @stuck.cron("0 0 1 1 *", name="job", at_start=True, max_time=0.3)
    def slow(tick: JobTick) -> None:
        if tick.attempt > 1:
            return write(tick)
        go_on.wait(60)
        assert tick.lost.is_set()
        with pytest.raises(Lost):
            tick.check()
        with pytest.raises(StaleTickError):
            write(tick)
        seen.append("refused")

    stuck.start()
    eventually("it is at work", lambda: db.inspect("job"))
    other.cron("0 0 1 1 *", name="job")(write)
    other.start()
    eventually("the other one runs it", lambda: state(db, "job") is TickState.DONE)
    go_on.set()
    eventually("it was refused", lambda: seen)
    stuck.stop()
    other.stop()
    assert len(effects(db)) == 1


def test_a_queue_gets_one_item_per_tick(tmp_path: Path) -> None:
    db = app(tmp_path)
    schedulers = [db.queue("mail").every("digest", "20ms", "hello") for _ in range(2)]
    for scheduler in schedulers:
        scheduler.start()
    eventually("some were sent", lambda: len(db.queue("mail").items()) > 5)
    for scheduler in schedulers:
        scheduler.stop()
    assert len(db.queue("mail").items()) == db.token("digest")


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    db = app(tmp_path)
    scheduler = Scheduler(db)
    for schedule, tz in [("0 25 * * *", None), ("0s", None), ("15m", "Middle/Earth"), ("soon", None)]:
        with pytest.raises(ValueError):
            scheduler.add("x", schedule, write, tz=tz)
    with pytest.raises(litelease.InvalidTtl):
        scheduler.add("x", "15m", write, ttl=0.05)
    with pytest.raises(litelease.InvalidAttempts):
        scheduler.add("x", "15m", write, attempts=0)

    async def coroutine() -> None: ...

    with pytest.raises(TypeError, match="aio"):
        scheduler.add("x", "15m", coroutine)
    with pytest.raises(litelease.LiteleaseError, match="needs a file"):
        Scheduler(Litelease(sqlite3.connect(":memory:")))
    scheduler.every(datetime.timedelta(minutes=15))(write)
    assert litelease.planned_tick("15m") % 900_000 == 0


def test_a_file_that_is_locked_beyond_the_ttl_delays_the_end_of_a_tick(tmp_path: Path) -> None:
    db, locker, go_on = app(tmp_path), litelease.open(tmp_path / "app.sqlite3"), threading.Event()
    scheduler, runs = Scheduler(db), list[int]()

    @scheduler.cron("0 0 1 1 *", ttl=0.3, at_start=True)
    def job() -> None:
        runs.append(1)
        go_on.wait(60)

    scheduler.start()
    eventually("it is at work", lambda: runs)
    locker.conn.execute("BEGIN IMMEDIATE")
    go_on.set()
    eventually("its lease has run out", lambda: db.inspect("job") is None)
    locker.conn.execute("COMMIT")
    eventually("it is finished", lambda: state(db, "job") is TickState.DONE)
    scheduler.stop()
    assert runs == [1]


def test_coroutines_run_in_the_event_loop(tmp_path: Path) -> None:
    db, loops = app(tmp_path), set[object]()

    async def main() -> None:
        scheduler = aio.Scheduler(tmp_path / "app.sqlite3")

        @scheduler.every("20ms", each=True)
        async def rollup(tick: JobTick) -> None:
            loops.add(asyncio.get_running_loop())
            await asyncio.sleep(0.001)
            write(tick)

        running = asyncio.create_task(scheduler.run())
        while len(effects(db)) < 8:
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert loops == {asyncio.get_running_loop()}
        async with scheduler:
            before = len(effects(db))
            while len(effects(db)) < before + 3:
                await asyncio.sleep(0.01)

    asyncio.run(main())
    assert in_order(effects(db), 20)


WORKER = """
    import os, signal, sys, litelease
    scheduler = litelease.Scheduler(sys.argv[1])
    @scheduler.every("20ms", each=True, name="rollup")
    def rollup(tick):
        with tick.finish() as conn:
            conn.execute("INSERT INTO effects VALUES (?, ?)", (tick.tick_ms, os.getpid()))
"""


def worker(folder: Path, script: str) -> subprocess.Popen[bytes]:
    program = textwrap.dedent(WORKER) + textwrap.dedent(script)
    return subprocess.Popen([sys.executable, "-c", program, str(folder / "app.sqlite3")], stderr=subprocess.PIPE)


def test_a_scheduler_of_before_a_fork_goes_on_in_the_parent_and_the_child_starts_its_own(tmp_path: Path) -> None:
    db = app(tmp_path)
    forks = worker(tmp_path, """
        scheduler.start()
        import time; time.sleep(0.2)
        if os.fork() == 0:
            scheduler.stop()  # the threads are not there, and this does not wait for them
            scheduler.start()
        time.sleep(1)
        scheduler.stop()
    """)
    assert forks.wait(60) == 0, forks.stderr and forks.stderr.read()
    eventually("the child has ended, too", lambda: db.inspect("rollup") is None)
    ticks = effects(db)
    assert len(ticks) > 5 and in_order(ticks, 20), ticks


def test_processes_that_are_killed_and_stopped_leave_no_tick_out_and_run_none_twice(tmp_path: Path) -> None:
    db = app(tmp_path)
    run = [worker(tmp_path, "scheduler.run()") for _ in range(3)]
    for round in range(4):
        before = len(effects(db))
        eventually("ticks are run", lambda: len(effects(db)) > before + 10)
        run[round % 3].send_signal(signal.SIGKILL)
        run[round % 3].wait()
        run[round % 3] = worker(tmp_path, "scheduler.run()")
    for process in run:
        process.send_signal(signal.SIGINT)
    for process in run:
        process.communicate(timeout=60)
    assert in_order(effects(db), 20), effects(db)


def other_clock(shift: str) -> dict[str, str]:
    """Variables that let a program see a wall clock that is wrong by this."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found or shift == "0s":
        return {}
    return {"LD_PRELOAD": str(found[0]), "FAKETIME": shift, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}


def in_ms(text: str) -> int:
    """A date of RFC 3339, as commands find it."""
    second, _, fraction = text.rstrip("Z").partition(".")
    whole = datetime.datetime.fromisoformat(second + "+00:00").timestamp()
    return int(whole) * 1000 + int((fraction + "000")[:3])


STRESSED = """
    import random, select
    scheduler = litelease.Scheduler(sys.argv[1])
    @scheduler.every("20ms", each=True, name="rollup", ttl=0.5, attempts=1000)
    def rollup(tick):
        select.select([], [], [], random.uniform(0, 0.03))  # time.sleep() fails where faketime shifts the clock
        with tick.finish() as conn:
            conn.execute("INSERT INTO effects VALUES (?, ?)", (tick.tick_ms, os.getpid()))
    scheduler.run()
"""


def test_no_effect_comes_twice_and_no_tick_is_lost_whatever_happens_to_processes_with_other_clocks(tmp_path: Path) -> None:
    """Programs in Python write their effect in `finish`; commands, which cannot, may repeat theirs after a crash."""
    command = Path(__file__).parents[2] / "target" / "debug" / "litelease"
    dice, db = random.Random(int(os.environ.get("LITELEASE_SEED", "1"))), app(tmp_path)
    script = f"echo $LITELEASE_TICK >> {tmp_path}/commands"
    words = ["every", "20ms", "--each", "--ttl", "500ms", "--attempts", "1000", "rollup", "--", "sh", "-c", script]
    run_every = [str(command), "--quiet", "--db", str(tmp_path / "app.sqlite3"), *words]
    run_python = [sys.executable, "-c", textwrap.dedent(WORKER) + textwrap.dedent(STRESSED), str(tmp_path / "app.sqlite3")]

    def start(number: int) -> subprocess.Popen[bytes]:
        program = run_every if number % 4 == 3 and command.exists() else run_python
        environment = {**os.environ, **other_clock(("0s", "+5s", "-5s", "0s")[number % 4])}
        return subprocess.Popen(program, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    count = int(os.environ.get("LITELEASE_STRESS_PROCESSES", "4"))
    running = [start(number) for number in range(count)]
    end = time.monotonic() + float(os.environ.get("LITELEASE_STRESS_SECONDS", "5"))
    while time.monotonic() < end:
        time.sleep(dice.uniform(0.5, 1.5))
        number = dice.randrange(count)
        if dice.random() < 0.5:
            running[number].kill()
            running[number].wait()
            running[number] = start(number)
        else:
            running[number].send_signal(signal.SIGSTOP)
            time.sleep(dice.uniform(0.6, 1.2))  # past the ttl
            running[number].send_signal(signal.SIGCONT)
    for process in running:
        process.send_signal(signal.SIGINT)
    for process in running:
        process.wait(60)
    eventually("the last run has ended", lambda: db.inspect("rollup") is None)
    ticks, log = effects(db), tmp_path / "commands"
    by_commands = {in_ms(line) for line in log.read_text().split()} if log.exists() else set[int]()
    assert len(ticks) == len(set(ticks)), "an effect came twice"
    info = db.newest_tick("rollup")
    assert info is not None and info.done_ms is not None and ticks
    all_ticks = set(ticks) | by_commands
    lost = set(range(min(all_ticks), info.done_ms + 1, 20)) - all_ticks
    print(f"{len(ticks)} ticks of programs, {len(by_commands)} of commands")
    assert not lost, f"{len(lost)} of {len(all_ticks)} ticks were lost: {sorted(lost)[:5]}"


def test_a_program_ends_although_its_scheduler_waits_for_hours(tmp_path: Path) -> None:
    app(tmp_path).close()
    ended = worker(tmp_path, """
        scheduler = litelease.Scheduler(sys.argv[1])
        scheduler.cron("0 0 1 1 *", name="yearly")(rollup)
        scheduler.start()
    """)
    assert ended.wait(20) == 0, ended.stderr and ended.stderr.read()
    os.stat(tmp_path / "app.sqlite3")
