"""Times as callers give them: seconds, a ``timedelta``, or whole milliseconds."""

from __future__ import annotations

import datetime
import time
from typing import Union

from ._types import InvalidTtl, TimeOverflow

Seconds = Union[float, datetime.timedelta]
_MAX = 2**63 - 1


def now_ms() -> int:
    """Returns the Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


def in_seconds(given: Seconds) -> float:
    """Converts a number of seconds or a ``timedelta``."""
    seconds = given.total_seconds() if isinstance(given, datetime.timedelta) else given
    if not isinstance(seconds, (int, float)):
        raise TypeError(f"a time must be a number of seconds or a timedelta, got {given!r}")
    if seconds != seconds:
        raise InvalidTtl(f"a time must be a number of seconds, got {seconds}")
    return seconds


def optional_ms(name: str, time: Seconds | None, what: str) -> int | None:
    """Converts a time to whole milliseconds, if there is one."""
    return None if time is None else in_ms(name, time, None, what)


def in_ms(name: str, ttl: Seconds | None, ttl_ms: int | None, what: str = "ttl") -> int:
    """Converts a ttl to whole milliseconds, rounded up, so that a lease never ends early."""
    if (ttl is None) == (ttl_ms is None):
        raise TypeError(f"give either {what} (seconds) or {what}_ms (milliseconds)")
    if ttl_ms is None:
        assert ttl is not None
        ttl = in_seconds(ttl)
        if ttl in (float("inf"), float("-inf")):
            raise InvalidTtl(f"{name!r}: the {what} must be a number of seconds, got {ttl}")
        ttl_ms = -int(-ttl * 1000 // 1)
    elif not isinstance(ttl_ms, int):
        raise TypeError(f"{what}_ms must be a whole number, got {ttl_ms!r}")
    if ttl_ms > _MAX:
        raise TimeOverflow(f"{name!r}: a {what} of {ttl_ms} ms ends after the last representable time: give at most {_MAX} ms")
    return max(ttl_ms, -1)
