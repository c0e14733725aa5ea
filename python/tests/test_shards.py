"""Shards: members that come, go, stop and die share them evenly, and no checkpoint goes back."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Iterator

import pytest
from common import path_of, until

import litelease
from litelease import (
    HoldTimeout,
    InvalidShards,
    Litelease,
    Lost,
    ShardAssigned,
    ShardCount,
    ShardLost,
    ShardRequested,
    Shards,
)

# The worker of the proofs in Rust: where it was built, it is one of the members.
WORKER = Path(__file__).parents[2] / "target" / "debug" / "worker"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Litelease]:
    with litelease.open(tmp_path / "db") as opened:
        yield opened


def shares(db: Litelease) -> Counter[str]:
    return Counter(lease.owner for lease in db.leases("orders/shard/"))


def test_a_member_that_joins_gets_its_share_when_the_others_have_finished(db: Litelease) -> None:
    with Shards.join(db, "orders", 5, "a", 30) as a:
        for shard in range(5):
            assert a.next(30) == ShardAssigned(shard, 1, None)
            a.checkpoint(shard, 10 + shard)
        with Shards.join(path_of(db), "orders", 5, "b", 30) as b:
            moved = []
            for _ in range(2):
                event = a.next(30)
                assert isinstance(event, ShardRequested) and event.until_ms > time.time() * 1000
                a.check(event.shard)
                a.checkpoint(event.shard, 20 + event.shard)
                assert a.hand_over(event.shard)
                with pytest.raises(Lost):
                    a.checkpoint(event.shard, 0)
                got = b.next(30)
                assert isinstance(got, ShardAssigned) and got.checkpoint is not None
                assert (got.shard, got.token, got.checkpoint.token) == (event.shard, 2, 1)
                assert got.checkpoint.value == 20 + event.shard
                moved.append(event.shard)
            # Nothing moves while the members stay the same.
            assert a.next(0.3) is None and b.next(0) is None
            assert b.held == sorted(moved) and sorted(shares(db).values()) == [2, 3]
            assert not a.hand_over(a.held[0])
            a.leave()
            assert all(isinstance(b.next(30), ShardAssigned) for _ in range(3))
            # A released shard is claimed again by the first member that comes.
            assert b.release(0)
            again = b.next(30)
            assert isinstance(again, ShardAssigned) and again.shard == 0
    assert db.leases() == []


def test_a_shard_that_is_handed_over_ends_with_the_session_of_its_new_member(db: Litelease) -> None:
    def end(name: str) -> int:
        lease = db.inspect(name)
        assert lease is not None
        return lease.expires_at_ms

    with Shards.join(db, "orders", 2, "a", 3600) as a:
        assert all(isinstance(a.next(30), ShardAssigned) for _ in range(2))
        with Shards.join(path_of(db), "orders", 2, "b", 30) as b:
            event = a.next(30)
            assert isinstance(event, ShardRequested)
            assert a.hand_over(event.shard)
            # The session may be renewed meanwhile, and then so is the shard.
            assert end(f"orders/shard/{event.shard}") <= end("orders/member/b")
            assert isinstance(b.next(30), ShardAssigned)
            assert end(f"orders/shard/{event.shard}") <= end("orders/member/b")


def test_a_member_that_is_lost_is_told_so_for_every_shard(db: Litelease) -> None:
    a = Shards.join(db, "orders", 2, "a", 3)
    assert all(isinstance(a.next(30), ShardAssigned) for _ in range(2))
    db.break_lease("orders/member/a")
    events = []
    with pytest.raises(Lost):
        for event in a:
            events.append(event)
    assert [(type(event), event.shard) for event in events] == [(ShardLost, 0), (ShardLost, 1)]
    with pytest.raises(Lost):
        a.checkpoint(0, 1)


def test_a_shard_that_is_broken_is_lost_before_it_is_assigned_again(db: Litelease) -> None:
    """The member claimed it again, and went on as if it had never been away."""
    with Shards.join(db, "orders", 1, "a", 3600) as a:
        assert a.next(30) == ShardAssigned(0, 1, None)
        for token in (3, 5):
            db.break_lease("orders/shard/0")
            lost, assigned = a.next(60), a.next(60)
            assert isinstance(lost, ShardLost) and lost.reason.kind in ("Broken", "Superseded")
            assert assigned == ShardAssigned(0, token, None)


@pytest.mark.parametrize("how", ["leaves", "is dropped"])
def test_a_member_that_leaves_while_another_connection_writes_is_gone_afterwards(db: Litelease, how: str) -> None:
    a = Shards.join(path_of(db), "orders", 2, "a", 3600)
    assert all(isinstance(a.next(30), ShardAssigned) for _ in range(2))
    db.conn.execute("BEGIN IMMEDIATE")
    try:
        if how == "leaves":
            with pytest.raises(sqlite3.OperationalError, match="goes on trying"):
                a.leave()
        else:
            del a
    finally:
        db.conn.execute("ROLLBACK")
    until(lambda: db.leases() == [], 30)


def test_a_member_ends_with_its_connection(db: Litelease) -> None:
    own = litelease.open(path_of(db))
    a = Shards.join(own, "orders", 1, "a", 3600)
    assert isinstance(a.next(30), ShardAssigned)
    own.conn.close()
    with pytest.raises(Lost):
        a.check(0)
    assert db.leases() == []


def test_a_forked_child_is_not_the_member(db: Litelease) -> None:
    with Shards.join(db, "orders", 1, "a", 3600) as a:
        assert isinstance(a.next(30), ShardAssigned)
        if (child := os.fork()) == 0:
            lost = 0
            for call in (lambda: a.check(0), lambda: a.checkpoint(0, 1), lambda: a.next(0), lambda: a.hand_over(0)):
                try:
                    call()
                except Lost:
                    lost += 1
            a.leave()
            del a
            os._exit(lost)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        a.check(0)
        a.checkpoint(0, 2)


def test_a_member_that_ignores_a_request_loses_that_shard_and_keeps_the_others(db: Litelease) -> None:
    with Shards.join(db, "orders", 2, "a", 0.9) as a:
        assert all(isinstance(a.next(30), ShardAssigned) for _ in range(2))
        with Shards.join(db, "orders", 2, "b", 0.9, drain=0.3) as b:
            asked, lost = a.next(30), a.next(30)
            assert isinstance(asked, ShardRequested) and isinstance(lost, ShardLost) and asked.shard == lost.shard
            assert "requested" in lost.reason
            got = b.next(30)
            assert isinstance(got, ShardAssigned) and got.shard == lost.shard
            a.check(1 - lost.shard)


def test_another_count_is_refused_while_a_member_lives_and_odd_names_always(db: Litelease) -> None:
    with Shards.join(db, "orders", 2, "a", 30):
        with pytest.raises(ShardCount) as refused:
            Shards.join(db, "orders", 3, "b", 30)
        assert (refused.value.group, refused.value.count) == ("orders", 2)
        assert "join with that count" in str(refused.value)
        assert db.owner("orders/member/b") is None
        with pytest.raises(HoldTimeout):
            Shards.join(db, "orders", 2, "a", 30)
    for group, count, id in [("a/b", 1, "a"), ("a", 1, "a/b"), ("", 1, "a"), ("a", 1, ""), ("a", 0, "a"), ("a", -1, "a")]:
        with pytest.raises(InvalidShards):
            Shards.join(db, group, count, id)
    with pytest.raises(TypeError):
        Shards.join(db, "orders", "two", "a")  # type: ignore[arg-type]
    assert db.leases() == []
    for odd in ("a\0b", "x" * 1_000_000, "é "):
        with Shards.join(db, odd, 1, odd, 30) as member:
            assert member.next(30) == ShardAssigned(0, 1, None)
            member.checkpoint(0, odd)
    Shards.join(db, "orders", 3, "b", 30).leave()


MEMBER = """
import sys, litelease
path, group, count, id = sys.argv[1:]
while True:
    try:
        with litelease.Shards.join(path, group, int(count), id, 0.8) as shards:
            work = {}
            while True:
                while (event := shards.next(0.002)) is not None:
                    if isinstance(event, litelease.ShardAssigned):
                        work[event.shard] = event.token, event.checkpoint.value if event.checkpoint else 0
                    elif isinstance(event, litelease.ShardLost):
                        work.pop(event.shard, None)
                    elif event.shard in work:
                        try:
                            if shards.hand_over(event.shard):
                                del work[event.shard]
                        except litelease.LiteleaseError:
                            pass
                for shard, (token, value) in work.items():
                    try:
                        shards.checkpoint(shard, value + 1)
                    except litelease.Lost:
                        continue  # an event will tell
                    work[shard] = token, value + 1
                    print(shard, token, value + 1, flush=True)
    except (litelease.Lost, litelease.HoldTimeout):
        pass
"""


class Member:
    def __init__(self, db: Litelease, id: str, folder: Path, is_rust: bool = False) -> None:
        path = path_of(db)
        own = [str(WORKER), "shards", path, "orders", "6", id, "800"]
        command = own if is_rust else [sys.executable, "-c", MEMBER, path, "orders", "6", id]
        self.told = folder / f"{id}.txt"
        with self.told.open("w") as told:
            self.child = subprocess.Popen(command, stdout=told)

    def stop(self, db: Litelease) -> None:
        """Stops it while it is in no transaction: otherwise no process could write."""
        db.conn.execute("BEGIN IMMEDIATE")
        try:
            os.kill(self.child.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self.child.pid, os.WSTOPPED | os.WNOWAIT)
        finally:
            db.conn.execute("ROLLBACK")

    def end(self) -> list[tuple[int, int, int]]:
        """Kills it, and returns what it has stored: shard, token and value."""
        self.child.kill()
        self.child.wait()
        lines = [line.split() for line in self.told.read_text().splitlines()]
        return [(int(line[0]), int(line[1]), int(line[2])) for line in lines if len(line) == 3]


def test_members_are_killed_and_stopped_and_no_checkpoint_goes_back(db: Litelease, tmp_path: Path) -> None:
    members = [Member(db, id, tmp_path, id == "c" and WORKER.exists()) for id in "abc"]
    stored: list[tuple[int, int, int]] = []
    try:
        until(lambda: sorted(shares(db).values()) == [2, 2, 2])
        # One is killed; the other two share what it had.
        members[0].child.kill()
        members[0].child.wait()
        until(lambda: sorted(shares(db).values()) == [3, 3])
        # One is stopped past its ttl, and goes on when others have its shards.
        owners = set(shares(db))
        members[1].stop(db)
        until(lambda: list(shares(db).values()) == [6] and set(shares(db)) < owners)
        os.kill(members[1].child.pid, signal.SIGCONT)
        until(lambda: sorted(shares(db).values()) == [3, 3])
    finally:
        for member in members:
            stored += member.end()
    assert len(stored) > 50
    for shard in range(6):
        of_shard = sorted((token, value) for number, token, value in stored if number == shard)
        values = [value for _, value in of_shard]
        # In the order of the tokens, each goes on exactly where the one before has ended.
        assert values == sorted(values) and len(set(values)) == len(values), of_shard
        last = db.last_checkpoint(f"orders/shard/{shard}")
        assert last is not None and isinstance(last.value, int) and last.value >= values[-1]


@pytest.mark.parametrize("call", ["hand_over", "checkpoint", "release", "leave"])
def test_ctrl_c_ends_a_call_that_waits_for_a_locked_file(db: Litelease, call: str) -> None:
    shards, writer = Shards.join(db, "orders", 1, "a", ttl=60), sqlite3.connect(path_of(db), isolation_level=None)
    assert isinstance(shards.next(30), ShardAssigned)
    writer.execute("BEGIN IMMEDIATE")
    handled: list[float] = []

    def handler(*_: object) -> None:
        handled.append(time.monotonic())
        raise KeyboardInterrupt

    before, begin = signal.signal(signal.SIGALRM, handler), time.monotonic()
    values = {"checkpoint": (0, 17), "leave": ()}.get(call, (0,))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            getattr(shards, call)(*values)
    finally:
        signal.signal(signal.SIGALRM, before)
        writer.execute("ROLLBACK")
    # By itself the call would try for 5 seconds.
    assert handled[0] < begin + 4
    if call in ("hand_over", "checkpoint"):
        shards.checkpoint(0, 18)
        shards.leave()
    until(lambda: db.owner("orders/shard/0") is None or call == "release")
