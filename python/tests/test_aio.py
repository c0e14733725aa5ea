"""asyncio: nothing blocks the loop, and a task that is cancelled at any moment leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, AsyncIterator, Callable, Coroutine, Iterator

import pytest

import litelease
from litelease import Acquired, Busy, HoldTimeout, Litelease, Lost, NoFreeSlot, Pools, aio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.sqlite3"


@pytest.fixture
def db(path: Path) -> Iterator[Litelease]:
    with litelease.open(path) as opened:
        yield opened


@contextlib.asynccontextmanager
async def never_blocked(longest: float = 3) -> AsyncIterator[None]:
    """The loop goes on all the time."""
    slowest = 0.0

    async def tick() -> None:
        nonlocal slowest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            slowest = max(slowest, time.monotonic() - before)

    ticking = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticking.cancel()
    assert slowest < longest


def test_a_name_is_held_while_the_block_runs(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite3"

    async def main() -> None:
        async with never_blocked(), aio.hold(path, "x", ttl=3) as held:
            for _ in range(20):
                await asyncio.sleep(0.05)
                held.check()
            with pytest.raises(HoldTimeout):
                async with aio.hold(str(path), "x", wait=0.1):
                    pass
            answer = await aio.claim_wait(path, "x", "b", 30, 0.1)
            assert isinstance(answer, Busy) and answer.current.token == held.token == 1
        with pytest.raises(Lost, match="released"):
            held.check()
        assert await aio.claim_wait(path, "x", "b", 30, 0)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["path", "connection", "handle", "pools"])
def test_what_is_opened_already_can_be_used(db: Litelease, path: Path, how: str) -> None:
    given: Any = {"path": path, "connection": db.conn, "handle": db, "pools": Pools(db.conn)}[how]
    Pools(db.conn).register("p", 1)

    async def main() -> None:
        async with aio.hold(given, "x") as held, aio.hold_slot(given, "p", note="mine") as slot:
            held.check(), slot.check()
            assert db.owner("x") == held.owner and slot.position == 0
            with pytest.raises(NoFreeSlot, match="all slots of 'p' are taken"):
                async with aio.hold_slot(given, "p", wait=0.05):
                    pass

    asyncio.run(main())
    assert db.leases() == [] and Pools(db.conn).slots("p") == []
    with pytest.raises(TypeError):
        aio.hold(7, "x")  # type: ignore[arg-type]


def test_the_loop_goes_on_while_the_file_is_locked(db: Litelease, path: Path) -> None:
    async def main() -> None:
        db.conn.execute("BEGIN IMMEDIATE")
        async with never_blocked():
            claims = asyncio.create_task(aio.claim_wait(path, "x", "a", 30, 5))
            await asyncio.sleep(1)
            assert not claims.done()
            db.conn.execute("ROLLBACK")
            assert await claims

    asyncio.run(main())


def test_many_wait_at_once(db: Litelease, path: Path) -> None:
    async def work() -> None:
        async with aio.hold(path, "x", ttl=30, wait=60) as held:
            held.check()

    async def main() -> None:
        async with never_blocked(10):
            await asyncio.gather(*(work() for _ in range(60)))

    asyncio.run(main())
    assert db.token("x") == 60 and db.owner("x") is None


async def held_for_a_moment(path: Path) -> None:
    async with aio.hold(path, "x", ttl=3600, wait=5) as held:
        await asyncio.sleep(0.002)
        held.check()


async def slot_for_a_moment(path: Path) -> None:
    async with aio.hold_slot(path, "p", ttl=3600, wait=5):
        await asyncio.sleep(0.002)


async def claimed(path: Path) -> None:
    answer = await aio.claim_wait(path, "x", "a", 3600, 5)
    with litelease.open(path) as db:  # without an await in between
        assert isinstance(answer, Acquired) and db.release(answer.lease)


ACTS: list[Callable[[Path], Coroutine[Any, Any, None]]] = [held_for_a_moment, slot_for_a_moment, claimed]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("is_taken", [False, True])
def test_a_task_that_is_cancelled_at_any_moment_leaves_nothing_behind(
    db: Litelease, path: Path, act: Callable[[Path], Coroutine[Any, Any, None]], is_taken: bool
) -> None:
    pools = Pools(db.conn)
    pools.register("p", 1)
    rng = random.Random(1)

    async def main() -> tuple[int, int]:
        cancelled = through = 0
        begin = time.monotonic()
        await act(path)
        usual = time.monotonic() - begin
        for number in range(25):
            if is_taken:
                assert isinstance(other := db.claim("x", "other", ttl=3600), Acquired) and (lent := pools.borrow("p", 3600))
            task = asyncio.create_task(act(path))
            if number > 2:
                await asyncio.sleep(rng.random() * usual * 1.5)
            else:
                for _ in range(number):
                    await asyncio.sleep(0)
            if is_taken:  # so that it is cancelled while it is granted
                db.release(other.lease)
                pools.return_slot("p", lent.lease_id)
                await asyncio.sleep(rng.random() * usual if number > 2 else 0)
            for _ in range(1 + number % 2):
                task.cancel()
                await asyncio.sleep(0)
            try:
                await task
                through += 1
            except asyncio.CancelledError:
                cancelled += 1
            assert db.owner("x") is None and pools.slots("p") == [], number
        return cancelled, through

    cancelled, _ = asyncio.run(main())
    assert cancelled >= 3, "at least those that are cancelled before they can be granted"


def test_a_cancelled_waiter_is_gone_soon(db: Litelease, path: Path) -> None:
    db.claim("x", "other", ttl=3600)

    async def main() -> None:
        for waits in (aio.claim_wait(path, "x", "a", 30, 3600), held_for_a_moment(path)):
            task = asyncio.create_task(waits)  # type: ignore[arg-type]
            await asyncio.sleep(0.3)
            task.cancel()
            before = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - before < 30
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(aio.claim_wait(path, "x", "a", 30, 3600), 0.1)

    asyncio.run(main())
    assert db.owner("x") == "other"


ENDS = """
import asyncio, sys, threading
from litelease import aio

async def main():
    async def holds():
        async with aio.hold(sys.argv[1], "x", ttl=3600):
            waits = asyncio.create_task(aio.claim_wait(sys.argv[1], "x", "b", 3600, 3600))
            is_held.set()
            await asyncio.sleep(3600)
    is_held = asyncio.Event()
    task = asyncio.create_task(holds())
    await is_held.wait()
    await asyncio.sleep(0.2)
    if sys.argv[2] == "exit":
        sys.exit(0)

if sys.argv[2] == "abandon":
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())  # and never again
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["return", "exit", "abandon"])
def test_a_loop_that_ends_leaves_nothing_behind(db: Litelease, path: Path, how: str) -> None:
    done = subprocess.run([sys.executable, "-c", ENDS, path, how], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert db.owner("x") is None
    # The one that waited may have been granted it just before it was cancelled, and has given it
    # back.
    assert db.token("x") in (1, 2)
