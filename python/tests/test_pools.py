"""Pools of numbered slots, from Python."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest
from common import until

import litelease
from litelease import (
    InvalidCount,
    InvalidText,
    Litelease,
    LiteleaseError,
    Lost,
    NoFreeSlot,
    NoSuchPool,
    NotBootstrapped,
    Pools,
)


def connect(path: object = ":memory:") -> sqlite3.Connection:
    conn = sqlite3.connect(str(path), isolation_level=None)
    Litelease(conn).bootstrap()
    return conn


def test_slots_are_lent_out_and_returned() -> None:
    pools = Pools(connect())
    pools.register("gpu", 2)
    first, second = pools.borrow("gpu", ttl=30, note="nightly import"), pools.borrow("gpu", ttl=30)
    assert first and second and (first.slot.position, second.slot.position) == (0, 1)
    assert pools.borrow("gpu", ttl=30) is None
    assert [slot.note for slot in pools.slots("gpu")] == ["nightly import", None]
    assert pools.return_slot("gpu", first.lease_id) is True
    assert pools.return_slot("gpu", first.lease_id) is False
    renewed = pools.renew("gpu", second.lease_id, ttl=3600)
    assert renewed and renewed.token == second.slot.token and renewed.expires_at_ms > second.slot.expires_at_ms
    assert pools.delete("gpu") is True


def test_errors_are_named() -> None:
    pools = Pools(connect())
    with pytest.raises(NoSuchPool):
        pools.borrow("gpu", ttl=30)
    with pytest.raises(InvalidCount):
        pools.register("gpu", -1)
    pools.register("gpu", 1)
    with pytest.raises(InvalidText):
        pools.borrow("gpu", ttl=30, note="x" * 201)
    with pytest.raises(NotBootstrapped):
        Pools(sqlite3.connect(":memory:")).register("gpu", 1)


def test_a_row_factory_of_the_callers_does_no_harm() -> None:
    conn = connect()
    conn.row_factory = sqlite3.Row
    pools = Pools(conn)
    pools.register("gpu", 1)
    assert pools.borrow("gpu", ttl=30) is not None
    assert conn.row_factory is sqlite3.Row


def test_a_restored_file_is_fenced_with_its_pools(tmp_path: Path) -> None:
    conn = connect(tmp_path / "app.sqlite3")
    pools = Pools(conn)
    pools.register("gpu", 1)
    old = pools.borrow("gpu", ttl=3600)
    assert old is not None
    floor = Litelease(conn).restore_fence()
    assert pools.renew("gpu", old.lease_id, ttl=30) is None
    new = pools.borrow("gpu", ttl=30)
    assert new is not None and new.slot.token == floor + 1


def test_a_held_slot_is_kept_alive_for_longer_than_its_ttl_and_returned_at_the_end(tmp_path: Path) -> None:
    with litelease.open(tmp_path / "app.sqlite3") as db:
        pools = Pools(db.conn)
        pools.register("importers", 2)
        with pools.hold("importers", ttl=2, note="nightly") as first, pools.hold("importers", ttl=2) as second:
            with db.hold("books", ttl=2) as held:  # renewed in the same transaction
                assert (first.position, second.position) == (0, 1) and second.token > first.token
                end = time.monotonic() + 2.5
                while time.monotonic() < end:
                    first.check(), second.check(), held.check()
                    time.sleep(0.02)
            assert [(slot.position, slot.note) for slot in pools.slots("importers")] == [(0, "nightly"), (1, None)]
            with pytest.raises(NoFreeSlot, match="all slots of 'importers' are taken"):
                pools.hold("importers", wait=0.1)
        assert pools.slots("importers") == []
        with pytest.raises(Lost, match="released"):
            first.check()


def test_a_slot_that_is_taken_away_is_lost_and_its_successor_left_alone(tmp_path: Path) -> None:
    with litelease.open(tmp_path / "app.sqlite3") as db:
        pools = Pools(db.conn)
        pools.register("gpu", 1)
        with pools.hold("gpu", ttl=3) as slot:
            assert pools.return_slot("gpu", slot.lease_id)
            successor = pools.borrow("gpu", ttl=30)
            assert slot.lost.wait(60)
            with pytest.raises(Lost, match="broken"):
                slot.check()
        assert successor and pools.slot("gpu", successor.lease_id)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("how", ["released", "dropped"])
def test_a_slot_that_ends_while_another_connection_writes_is_returned_afterwards(tmp_path: Path, how: str) -> None:
    with litelease.open(tmp_path / "app.sqlite3") as db:
        pools = Pools(db.conn)
        pools.register("gpu", 1)
        slot = pools.hold("gpu", ttl=3600)
        with litelease.open(tmp_path / "app.sqlite3") as other:
            other.conn.execute("BEGIN IMMEDIATE")
            if how == "dropped":
                del slot
            else:
                with pytest.raises(sqlite3.OperationalError, match="goes on trying"):
                    slot.release()
            other.conn.execute("ROLLBACK")
        until(lambda: pools.slots("gpu") == [], 30)


def test_a_slot_that_is_freed_by_an_operator_is_lost_long_before_the_next_renewal(tmp_path: Path) -> None:
    with litelease.open(tmp_path / "app.sqlite3") as db:
        pools = Pools(db.conn)
        pools.register("gpu", 1)
        with pools.hold("gpu", ttl=3600) as slot:
            assert pools.return_slot("gpu", slot.lease_id) and slot.lost.wait(60)


def test_a_slot_that_is_returned_wakes_whoever_waits_for_one(tmp_path: Path) -> None:
    with litelease.open(tmp_path / "app.sqlite3") as db:
        pools = Pools(db.conn)
        pools.register("gpu", 1)
        took = []
        for _ in range(3):
            first = pools.hold("gpu", ttl=30)
            timer = threading.Timer(0.7, first.release)
            timer.start()
            with pools.hold("gpu", ttl=30, wait=30) as second:
                timer.join()
                took.append(second.token - first.token)
        assert took == [1, 1, 1]
        pools.delete("gpu")
        with pytest.raises(NoSuchPool):
            pools.hold("gpu", wait=30)
        with pytest.raises(LiteleaseError, match="inside a transaction"), db.conn:
            db.conn.execute("BEGIN")
            pools.hold("gpu")


def test_a_slot_can_be_kept_and_freed_by_an_operator(tmp_path: Path) -> None:
    pools = Pools(connect())
    pools.register("gpu", 2)
    first, second = pools.borrow("gpu", ttl=30), pools.borrow("gpu", ttl=30)
    assert first and second and pools.keep("gpu", first.lease_id) and not pools.keep("gpu", "nobody's")
    assert [slot.is_kept for slot in pools.slots("gpu")] == [True, False]
    assert not pools.free_kept("gpu", 1, second.slot.token), "it is not kept"
    assert pools.free_kept("gpu", 0, first.slot.token) and not pools.free_kept("gpu", 0, first.slot.token)
