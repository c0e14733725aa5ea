"""Pools of numbered slots, from Python."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from litelease import InvalidCount, InvalidText, Litelease, NoSuchPool, NotBootstrapped, Pools


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
