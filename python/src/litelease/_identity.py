"""Owner texts that no two holds share, and that tell which process it was: the same as the Rust crate's."""

from __future__ import annotations

import os
import secrets
import socket
import time


def identity() -> str:
    """``HOST pid 4711 start 8473 0193…``; the last word is unique to one acquisition and starts with its time."""
    host = "-".join(socket.gethostname().split()) or "localhost"
    start = _start_of(os.getpid())
    started = "" if start is None else f"start {start} "
    return f"{host} pid {os.getpid()} {started}{unique()}"


def unique() -> str:
    """32 hex digits that are never given twice: the time in milliseconds, and 80 random bits."""
    now_ms = time.time_ns() // 1_000_000
    return f"{now_ms & (1 << 48) - 1:012x}{secrets.randbits(80):020x}"


def _start_of(pid: int) -> int | None:
    """When a process started, in the kernel's ticks since boot, where the system tells."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return int(stat.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
