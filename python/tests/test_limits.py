"""Limits, requests and handoff: holds that end, and holders that ask each other. With real files and processes."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import litelease
from litelease import (
    InvalidTime,
    InvalidTtl,
    Lease,
    Litelease,
    Lost,
    NotRequested,
    Reason,
    Rejected,
    RequestedBy,
    RequestInfo,
    Stale,
    Stored,
    TimeOverflow,
    aio,
)

TTL = 2.0


@pytest.fixture
def db(tmp_path: Path) -> Litelease:
    return litelease.open(tmp_path / "app.sqlite3")


def lost_reason(held: litelease.Held) -> litelease._types.Loss:
    assert held.lost.wait(60)
    with pytest.raises(Lost) as caught:
        held.check()
    return caught.value.reason


def test_a_hold_without_progress_is_told_so(db: Litelease) -> None:
    with db.hold("import", ttl=2, progress_within=0.2) as held:
        assert lost_reason(held).kind == "NoProgress"
    with db.hold("other", ttl=30, progress_within=10) as held:
        held.progress()
        held.check()


def test_progress_and_checkpoints_keep_a_limited_hold_alive(db: Litelease) -> None:
    with db.hold("import", ttl=2, progress_within=1) as held, db.hold("other", ttl=2, progress_within=1) as other:
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            held.progress()
            assert db.checkpoint("other", other.token, "row")
            other.check()
            time.sleep(0.02)


def test_progress_saves_a_hold_whose_renewal_was_refused(db: Litelease) -> None:
    with db.hold("import", ttl=3, progress_within=0.5) as held:
        while held.trouble() is None:
            held.check()
            time.sleep(0.01)
        held.progress()
        while held.trouble() is not None:
            held.check()
            time.sleep(0.01)


def test_the_trust_of_a_hold_ends_with_its_time_and_not_with_the_ttl(db: Litelease) -> None:
    # The ttl is far longer than the hold may last: a holder that trusts the ttl of its call would go on
    # for a minute.
    with db.hold("import", ttl=60, max_time=3) as held:
        held.check()
        lease = db.inspect("import")
        assert lease is not None and lease.expires_at_ms - time.time_ns() // 1_000_000 <= 3000
        assert held.lease == lease
        assert held.trusted_for() <= 2.7
        assert lost_reason(held).kind == "TimeIsUp"


def test_a_renewal_that_was_cut_prolongs_trust_by_what_was_granted(db: Litelease) -> None:
    with db.hold("import", ttl=TTL, max_time=3.2) as held:
        renewed_until = 0
        while True:
            # Before the check: a hold that is trusted after that was so then, and no other holder may have the name.
            before_ms = time.time_ns() // 1_000_000
            try:
                held.check()
            except Lost as lost:
                assert lost.reason.kind == "TimeIsUp"
                break
            lease = db.inspect("import", now_ms=0)
            assert lease is not None and before_ms < lease.expires_at_ms
            # By the row's clock, trust ends at least the margin before the lease does.
            left_ms = held.lease.expires_at_ms - time.time_ns() // 1_000_000
            assert held.trusted_for() * 1000 <= max(left_ms - 50, 0) + 1
            renewed_until = max(renewed_until, lease.expires_at_ms)
            time.sleep(0.01)
        assert renewed_until > 0 and held.lost.wait(5)


def test_a_renewal_past_the_end_is_refused(db: Litelease) -> None:
    lease = db.claim("import", "a", ttl_ms=100, now_ms=100).lease  # type: ignore[union-attr]
    assert db.limit("import", lease.token, not_after_ms=150, now_ms=100) == Stored()
    renewed = db.renew(lease, ttl_ms=100, now_ms=149)
    assert renewed and renewed.lease.expires_at_ms == 200, "nothing is cut"
    refused = db.renew(lease, ttl_ms=100, now_ms=150)
    assert isinstance(refused, Rejected) and refused.reason is Reason.TIME_IS_UP


def test_a_value_is_there_with_the_grant(db: Litelease) -> None:
    with db.hold("leader", value="10.0.0.7:4000") as held:
        assert db.value("leader") == "10.0.0.7:4000"
        assert db.attach(held.lease, b"\x00\xff") and db.value("leader") == b"\x00\xff"
    assert db.value("leader") is None


HOLDER = """
import sys, litelease
db = litelease.open(sys.argv[1])
with db.hold("import", ttl=30) as held:
    print("held", held.token, flush=True)
    row = 0
    while held.requested() is None:
        row += 1
        held.check()
    assert db.checkpoint("import", held.token, row)
    handed = held.hand_over(30)
    try:
        held.check()
    except litelease.Lost as lost:
        print(lost.reason.kind, handed.token, row, flush=True)
"""


def test_a_holder_drains_and_hands_over_to_another_process(db: Litelease, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "app.sqlite3")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held 1\n"
        with db.hold("import", ttl=30, request=60, wait=60) as held:
            assert held.token == 2
            last = db.last_checkpoint("import")
            assert last is not None and last.is_from_predecessor(held.token) and not last.is_from_predecessor(3)
            held.check()
            assert db.owner("import") == held.owner
        assert holder.stdout.readline() == f"HandedOver 2 {last.value}\n"
    assert holder.returncode == 0


def test_a_holder_is_called_when_somebody_asks(db: Litelease) -> None:
    told: list[RequestInfo] = []
    was_told = threading.Event()

    def tell(info: RequestInfo) -> None:
        told.append(info)
        was_told.set()
        raise RuntimeError("a callback that fails does no harm")

    held = db.hold("import", ttl=30, on_requested=tell)
    hook, threading.excepthook = threading.excepthook, lambda _: None
    try:
        assert db.request("import", "b", within=20)
        assert was_told.wait(20)
        assert told == [held.requested()] and told[0].requester == "b" and told[0].token == held.token
        was_told.clear()
        assert db.withdraw_request("import", "b") and held.requested() is None
        assert db.request("import", "c", within=20)
        assert was_told.wait(20) and [info.requester for info in told] == ["b", "c"]
    finally:
        threading.excepthook = hook
        held.release()
    assert held.requested() is None


@pytest.mark.parametrize("what", ["requests", "shards"])
def test_a_locked_file_costs_no_hold_in_another_file(tmp_path: Path, what: str) -> None:
    # What listens waited for the lock of its file for 5 s, and the keeper waited for it.
    other = sqlite3.connect(tmp_path / "other.db", isolation_level=None)
    Litelease(other).bootstrap()
    if what == "requests":
        listening: Any = Litelease(other).hold("import", ttl=60, on_requested=print)
    else:
        listening = litelease.Shards.join(str(tmp_path / "other.db"), "orders", 1, "a", ttl=60)
        assert listening.next(60)
    with listening, litelease.open(tmp_path / "app.db") as db, db.hold("job", ttl=3) as held:
        other.execute("BEGIN EXCLUSIVE")
        for _ in range(2):
            before = db.inspect("job")
            while db.inspect("job") == before:
                held.check()
                time.sleep(0.01)
        other.execute("ROLLBACK")


OPENS = """
import sys, litelease, queue
db = litelease.open(sys.argv[1])
told, opens = queue.Queue(), []
held = [db.hold(f"import {n}", ttl=60, on_requested=told.put) for n in range(3)]
sys.addaudithook(lambda event, _: opens.append(event) if event == "sqlite3.connect" else None)
for n in range(5):
    for hold in held:
        assert db.request(hold.name, f"{n}", within=60)
        assert told.get(timeout=60).requester == f"{n}"
        assert db.withdraw_request(hold.name, f"{n}")
print(len(opens))
"""


def test_a_holder_that_listens_does_not_open_the_file_again_and_again(tmp_path: Path) -> None:
    # As root, SQLite changes the owner of the log that it opens. That woke all that watch the file,
    # which opened it again: hundreds of times a second, although nothing happened.
    told = subprocess.run([sys.executable, "-c", OPENS, str(tmp_path / "db")], stdout=subprocess.PIPE, text=True, check=True)
    assert int(told.stdout) <= 1


def test_a_holder_that_listens_makes_no_file_in_place_of_one_that_was_moved(db: Litelease, tmp_path: Path) -> None:
    held = db.hold("import", ttl=4, on_requested=print)
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in tmp_path.glob("app.sqlite3*"):
        file.rename(moved / file.name)
    assert lost_reason(held).kind == "FileReplaced"
    assert [file.name for file in tmp_path.iterdir()] == ["moved"]


def test_a_holder_that_ignores_a_request_is_out_and_told_why(db: Litelease) -> None:
    with db.hold("import", ttl=2) as held:
        with db.hold("import", ttl=30, request=0.1, wait=30) as successor:
            assert successor.token == 2
            assert lost_reason(held).kind == "Requested"


def test_a_waiter_that_gives_up_withdraws_its_request(db: Litelease) -> None:
    with db.hold("import", ttl=30) as held:
        with pytest.raises(litelease.HoldTimeout):
            db.hold("import", ttl=30, request=20, wait=0.05)
        assert held.requested() is None
        assert not db.request_wait("import", "b", 30, 20, 0.05)
        assert held.requested() is None


def test_claim_wait_takes_what_was_handed_to_its_owner(db: Litelease) -> None:
    lease = db.claim("import", "a", 30).lease  # type: ignore[union-attr]
    assert db.request("import", "b", within=20)
    assert isinstance(db.request("import", "c", within=20), RequestedBy)
    assert db.hand_over(lease, 30)
    answer = db.claim_wait("import", "b", 30, 0)
    assert answer and answer.lease.token == 2
    assert not db.claim_wait("import", "b", 30, 0), "it is answered once"


def test_nothing_is_handed_over_that_nobody_asked_for(db: Litelease) -> None:
    with db.hold("import", ttl=30) as held:
        with pytest.raises(NotRequested, match="'import': nobody has asked"):
            held.hand_over(30)
        assert db.request("import", "b", within=20)
        with pytest.raises(InvalidTtl):
            held.hand_over(0)
        held.check()  # it goes on
        db.break_lease("import")
        with pytest.raises(Lost) as caught:
            held.hand_over(30)
        assert caught.value.reason.kind == "Broken"
        with pytest.raises(Lost, match="broken by an operator"):
            held.check()


def test_a_loss_can_be_sent_to_another_process() -> None:
    loss = pickle.loads(pickle.dumps(litelease.Loss("NoProgress", "stuck")))
    assert (loss, loss.kind) == ("stuck", "NoProgress")


def test_odd_input_is_refused_and_nothing_is_written(db: Litelease) -> None:
    big, odd = "x" * 1_000_000, "nul \0 and \U0001f600"
    for name in (big, odd, ""):
        lease = db.claim(name, odd, 30).lease  # type: ignore[union-attr]
        assert db.limit(name, lease.token, progress_within=60) and db.progress(name, lease.token)
        assert db.request(name, big, within=20)
        found = db.requested(name)
        assert found is not None and found.requester == big
        handed = db.hand_over(lease, 30)
        assert handed and handed.lease.owner == big and db.take_over(name, odd, 30).previous == handed.lease
    unknown: list[object] = [
        db.limit("nobody", 1, progress_within=1),
        db.progress("nobody", 1),
        db.request("nobody", "b", within=1),
        db.hand_over(Lease("nobody", "a", 1, 0), 30),
        db.progress("", 1),  # an old token
        db.progress("", 99),
        db.checkpoint("", 1, "late"),
    ]
    assert not any(unknown) and isinstance(unknown[-1], Stale)
    reasons = [answer.reason.name for answer in unknown[:-1] if isinstance(answer, Rejected)]
    assert reasons == ["NEVER_CLAIMED"] * 4 + ["SUPERSEDED", "UNKNOWN_TOKEN"]
    assert db.requested("nobody") is None and not db.withdraw_request("nobody", "b")
    with pytest.raises(InvalidTime, match="within must be at least 1 ms"):
        db.request("", "b", within=0)
    with pytest.raises(InvalidTime, match="progress_within must be at least 1 ms"):
        db.limit("", 3, progress_within_ms=0)
    with pytest.raises(TimeOverflow, match=str(2**63 - 1)):
        db.hold("x", ttl=1e300)
    with pytest.raises(TimeOverflow, match=str(2**63 - 1)):
        db.take_over("x", "a", ttl=1e300)
    with pytest.raises(InvalidTtl, match="more than 0.1 s"):
        db.hold("x", ttl=60, max_time=0)
    with pytest.raises(OverflowError, match="at most 64 bits"):
        db.progress("x", 2**64)
    with pytest.raises(TypeError, match="must be a str"):
        db.request("x", b"b", within=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="value must be None, an int"):
        db.hold("x", ttl=60, value=object())  # type: ignore[arg-type]
    assert db.inspect("x") is None


def test_the_same_with_asyncio(db: Litelease, tmp_path: Path) -> None:
    async def run() -> tuple[int, str]:
        asked: asyncio.Future[RequestInfo] = asyncio.get_running_loop().create_future()
        async with aio.hold(db, "import", ttl=30, progress_within=30, value="a", on_requested=asked.set_result) as held:
            held.progress()

            async def successor() -> tuple[int, str]:
                async with aio.hold(tmp_path / "app.sqlite3", "import", ttl=30, request=20, wait=60, value="b") as next_one:
                    return next_one.token, str(db.value("import"))

            waiting = asyncio.create_task(successor())
            info = await asked
            assert await aio.requested(held) == info
            await aio.hand_over(held, 30)
            return await waiting

    assert asyncio.run(run()) == (2, "b")
    assert db.inspect("import") is None


@contextlib.contextmanager
def converter(kind: str, convert: object) -> "contextlib.AbstractContextManager[None]":  # type: ignore[misc]
    before = dict(sqlite3.converters)  # type: ignore[attr-defined]
    sqlite3.register_converter(kind, convert)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sqlite3.converters.clear()  # type: ignore[attr-defined]
        sqlite3.converters.update(before)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("convert", "error"), [(lambda text: object(), TypeError), (lambda text: "x", litelease.LiteleaseError)]
)
def test_a_converter_of_the_callers_is_named(tmp_path: Path, convert: object, error: type[Exception]) -> None:
    with converter("INTEGER", convert), contextlib.closing(
        sqlite3.connect(tmp_path / "app.sqlite3", detect_types=sqlite3.PARSE_DECLTYPES, isolation_level=None)
    ) as conn:
        db = Litelease(conn)
        with pytest.raises(error, match="without detect_types for Litelease"):
            db.bootstrap()
            db.claim("x", "a", 30)
            db.inspect("x")
            db.claim("x", "b", 30)
        assert not conn.in_transaction


class DictCursor(sqlite3.Cursor):
    def fetchall(self) -> list[dict[str, object]]:  # type: ignore[override]
        return [dict(enumerate(row)) for row in super().fetchall()]  # type: ignore[misc]


class NoList(sqlite3.Cursor):
    def fetchall(self) -> tuple[object, ...]:  # type: ignore[override]
        return tuple(super().fetchall())


@pytest.mark.parametrize("kind", [DictCursor, NoList])
def test_a_cursor_with_other_rows_is_refused(tmp_path: Path, kind: type[sqlite3.Cursor]) -> None:
    class Connection(sqlite3.Connection):
        def cursor(self, *_: object) -> sqlite3.Cursor:  # type: ignore[override]
            return super().cursor(kind)

    with contextlib.closing(sqlite3.connect(tmp_path / "app.sqlite3", factory=Connection, isolation_level=None)) as conn:
        with pytest.raises(TypeError, match="other rows than tuples"):
            Litelease(conn).bootstrap()
        assert not conn.in_transaction
