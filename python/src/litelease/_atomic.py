"""What survives an exception between any two bytecodes: calls without bytecodes in between, a lock, the start of a thread."""

from __future__ import annotations

import _thread
import atexit
import collections
import functools
import itertools
import operator
import os
import threading
import time
import weakref
from typing import Any, Callable

_call = operator.methodcaller("__call__")
# One entry for each thread that was started and does not run yet.
_starting: list[bool] = []
# How long the end of the interpreter waits for them.
_PATIENCE = 30.0


def at_once(*steps: Callable[[], object]) -> None:
    """Calls functions that are written in C one after the other, with no bytecode in between: no signal handler and no
    trace function runs there. The first that fails is the last."""
    collections.deque(map(_call, steps), maxlen=0)


def start_thread(work: Callable[[], None], running: list[bool]) -> None:
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


class Reentered(Exception):
    """The thread has this lock already."""


class Mutex:
    """A lock between threads that does not get lost: it is taken together with a record of who took it.

    A taker that was freed, because an exception came each time it was to give the lock back, has it no longer: then its thread
    can take it again. (A ``__del__`` that gives it back would swallow an exception that comes there.)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: list[tuple[weakref.ref[Any], int]] = []

    def take(self, taker: object, timeout: float = -1) -> bool:
        """Waits for the lock, for ever or for some seconds. Returns whether the taker has it now."""
        me = weakref.ref(taker), threading.get_ident()
        for holder, thread in self._holder:
            if thread == me[1]:
                if holder() is not None:
                    raise Reentered
                at_once(self._holder.clear, functools.partial(self._holder.append, me))
                return True
        # Takes the lock and records it, in one C call; records nothing if it was not taken.
        self._holder.extend(itertools.compress((me,), map(self._lock.acquire, (True,), (timeout,))))
        return self.is_held_by(taker)

    def is_held_by(self, taker: object) -> bool:
        """Checks whether the taker has the lock."""
        for holder, _ in self._holder:
            return holder() is taker
        return False

    def give_back(self, taker: object) -> None:
        """Gives the lock back if the taker has it."""
        if self.is_held_by(taker):
            at_once(self._holder.clear, self._lock.release)
