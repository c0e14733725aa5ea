"""Helpers that several test files share."""

from __future__ import annotations

import time
from typing import Callable

from litelease import Litelease


def path_of(db: Litelease) -> str:
    """Returns the path of the file that is open."""
    path: str = db.conn.execute("PRAGMA database_list").fetchone()[2]
    return path


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Waits until the condition holds, and fails after some seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
