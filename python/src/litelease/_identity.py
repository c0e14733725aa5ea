"""Owner texts that no two holds share, and that tell which process it was: made by the library."""

from __future__ import annotations

import os
import secrets
import socket
import time

from . import _library

HOLD, LOCK = range(2)


def identity(kind: int = HOLD) -> str:
    """``HOST pid 4711 start 8473 … hold 0193…``; the last word is unique to one acquisition and starts with its time."""
    if made := _library.identity(kind):
        return made
    host = "-".join(socket.gethostname().split()) or "localhost"
    now_ms = time.time_ns() // 1_000_000
    return f"{host} pid {os.getpid()} {now_ms & (1 << 48) - 1:012x}{secrets.randbits(80):020x}"
