"""Switching a file to the write-ahead log, which some processes may be doing at once."""

from __future__ import annotations

import sqlite3
import time

from ._types import LiteleaseError


def switch_to_wal(connection: sqlite3.Connection, path: object) -> None:
    """Switches to WAL, so that readers are never in the way, and to FULL, so that a power cut takes no commit.

    While another process does the same to a new file, SQLite says "locked" at once, whatever the timeout is.
    """
    (timeout_ms,) = connection.execute("PRAGMA busy_timeout").fetchone()
    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
            time.sleep(0.005)
    if mode != "wal":
        # SQLite says so nowhere else: what cannot be switched stays as it is.
        raise LiteleaseError(f"{path} cannot be used: its journal mode stays {mode} instead of wal")
    connection.execute("PRAGMA synchronous = FULL")
