"""What survives an exception between any two bytecodes: calls without bytecodes in between, the start of a thread."""

from __future__ import annotations

import _thread
import atexit
import collections
import functools
import operator
import os
import time
from typing import Callable

_call = operator.methodcaller("__call__")
# One entry for each thread that was started and does not run yet.
_starting: list[bool] = []
# How long the end of the interpreter waits for them.
_PATIENCE = 30.0


def at_once(*steps: Callable[[], object]) -> None:
    """Calls functions that are written in C one after the other, with no bytecode in between: no signal handler and no
    trace function runs there. The first that fails is the last."""
    collections.deque(map(_call, steps), maxlen=0)


def start_thread(work: Callable[[], object], running: list[bool]) -> None:
    """Starts a thread, with a record that it runs. ``Thread.start`` waits for the new thread with a condition variable, and
    an exception in there becomes another one, or keeps the thread from starting."""

    def begin() -> None:
        _starting.pop()
        work()

    try:
        at_once(
            functools.partial(running.append, True),
            functools.partial(_starting.append, True),
            functools.partial(_thread.start_new_thread, begin, ()),
        )
    except RuntimeError:
        at_once(running.clear, _starting.pop)
        raise


def _wait_for_starting() -> None:
    """Waits until every thread that was started runs. The interpreter frees the state of its threads when it ends, and one
    that begins after that uses it all the same: before Python 3.13 the process crashes."""
    deadline = time.monotonic() + _PATIENCE
    while _starting and time.monotonic() < deadline:
        time.sleep(0.001)


atexit.register(_wait_for_starting)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_starting.clear)  # they are not there
