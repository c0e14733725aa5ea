"""Schedulers: a thread per job, which runs the job once per tick among all processes that have its schedule.

The library waits for a tick, holds it and finishes it on a connection of its own. Jobs use one of their thread's.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import logging
import os
import sqlite3
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any, Callable, Generator, TypeVar, Union

from . import _library
from ._fences import Value
from ._held import LossEvent, kept_ms
from ._leases import Litelease
from ._leases import open as open_file
from ._queue import Finish
from ._time import Seconds, in_ms, in_seconds, now_ms, optional_ms
from ._types import Finished, InvalidAttempts, LiteleaseError, Loss, Lost, StaleTickError
from ._wait import file_of

J = TypeVar("J", bound=Callable[..., Any])
Database = Union[str, "os.PathLike[str]", Litelease]

_log = logging.getLogger("litelease")
_LEFT_OPEN = "a transaction was left open: it was rolled back; write the effect in `with tick.finish() as conn:`"
# The pause after an error of the file that does not pass by itself, such as a clock that was set back.
_TROUBLE_PAUSE = 60.0


def planned_tick(schedule: str, tz: str | None = None) -> int:
    """Returns the tick that is planned for about now, in Unix milliseconds, for a job that another scheduler starts at its time.
    The schedule is a cron line or a period. Processes with one schedule find one tick, also if their clocks differ by seconds.

    >>> planned_tick("15m") % 900_000
    0
    """
    tick_ms: int | None = _library.planned(schedule, tz, now_ms())
    if tick_ms is None:
        raise ValueError(f"{schedule!r} has no tick in the past")
    return tick_ms


@dataclass(frozen=True)
class JobTick:
    """A tick in the hands of a job: the instant that the schedule has planned, the number of this grant among those of the tick,
    the newest one before that was done, and the fencing token."""

    name: str
    tick_ms: int
    attempt: int
    previous_ms: int | None
    token: int
    _native: object = field(repr=False, compare=False)
    _thread: _JobThread = field(repr=False, compare=False)

    @property
    def db(self) -> Litelease:
        """The leases, queues and ticks of the file, on a connection of the job's thread. Leave no transaction open in it."""
        return self._thread.db()

    @property
    def lost(self) -> LossEvent:
        """The event that is set when the tick can no longer be trusted to be this process's."""
        return LossEvent(self._native)

    def check(self) -> None:
        """Raises ``Lost`` once another process may have the tick: stop the work then. Whatever you do, ``finish()`` rolls back
        if another process has it."""
        over = _library.held_check(self._native)
        if over is not None and over[0] != "Settled":
            raise Lost(self.name, Loss(*over))

    @contextlib.contextmanager
    def finish(self) -> Generator[sqlite3.Connection, None, None]:
        """Begins a short transaction for the effect of the job; at the end of the block finishes the tick and commits. If
        another process was granted the name meanwhile, the block is not run, with a ``StaleTickError``."""
        db = self.db
        block = Finish(db, "finish_tick", (self.name, self.token), self._check_answer)
        try:
            try:
                block.begin()
                yield db.conn
                block.end()
                self._thread.is_finished = True
                _library.item_settled(self._native, "done")
            finally:
                block.undo()
        finally:
            block.undo()

    def _check_answer(self, told: object) -> None:
        if not (isinstance(told, Finished) and not told.is_repeated):
            raise StaleTickError(f"{self.name!r}: the grant {self.token} does not have its tick any more: {told!r}")


@dataclass(frozen=True)
class _Job:
    name: str
    function: Callable[..., Any]
    takes_tick: bool
    # What the library gets after the path.
    options: tuple[Any, ...]


class _JobThread:
    """The thread of one job, from the start of its scheduler until it is stopped."""

    def __init__(self, scheduler: Scheduler, job: _Job) -> None:
        self._scheduler, self._job, self.is_finished = scheduler, job, False
        self._db: Litelease | None = None
        self.native = _library.job(scheduler.path, *job.options)
        self.thread = threading.Thread(target=self._run, name=f"litelease {job.name}", daemon=True)

    def db(self) -> Litelease:
        self._db = self._db or open_file(self._scheduler.path)
        return self._db

    def _run(self) -> None:
        stopped = self._scheduler._stopped
        try:
            while not stopped.is_set():
                try:
                    found = _library.job_next(self.native)
                    if found is None:
                        return
                    tick_ms, attempt, previous_ms, token, held = found
                    self._work(JobTick(self._job.name, tick_ms, attempt, previous_ms, token, held, self))
                except (sqlite3.Error, LiteleaseError) as error:
                    if stopped.is_set():
                        return
                    _log.error("the job %r waits: %s", self._job.name, error)
                    stopped.wait(_TROUBLE_PAUSE)
        finally:
            if stopped.is_set():
                # It releases a tick that was left to others, and begins none.
                with contextlib.suppress(sqlite3.Error, LiteleaseError):
                    _library.job_next(self.native)
            if self._db is not None:
                self._db.close()

    def _work(self, tick: JobTick) -> None:
        how, failures, self.is_finished = "left", 0, False
        try:
            while how == "left":
                try:
                    self._scheduler._call(self._job.function, (tick,) if self._job.takes_tick else ())
                    if self._is_left_open():
                        raise LiteleaseError(_LEFT_OPEN)
                    how = "done"
                except BaseException as error:  # sys.exit() in a job ends the job alone
                    self._is_left_open()
                    if self._scheduler._is_over(error):
                        self._scheduler._begin_to_stop()
                        break  # left to other processes
                    failures += 1
                    delay = None if self.is_finished else _library.job_retry(self.native, failures)
                    again = "" if delay is None else f"; again in {delay:.1f} s"
                    _log.error("the job %r has failed for the tick %s%s", tick.name, tick.tick_ms, again, exc_info=error)
                    if delay is None:
                        how = "failed"
                    elif self._scheduler._stopped.wait(delay):
                        break  # left to other processes
        finally:
            ended = _library.job_end(self.native, "finished" if self.is_finished else how)
            if how == "done" and ended == "left":
                _log.error("the job %r was done, but another process was granted the tick %s meanwhile", tick.name, tick.tick_ms)

    def _is_left_open(self) -> bool:
        """Rolls back what the job has left open. It would block everybody."""
        return self._db is not None and bool(_library.call(self._db._session, None, "tidy")[0][0])


class Scheduler:
    """Jobs and their schedules. Every process that has a schedule starts a scheduler, and each tick is run by one of them.

    Each job has a thread of its own, and works under a lease that is renewed in the background; if its process dies, another
    one runs the tick. Two runs of one job never overlap, and several ticks that were missed are one run. The first start runs
    nothing. A job that raises has failed, after ``retries`` repetitions; the log ``litelease`` has the exception. A fork takes no
    thread along: start the scheduler in each worker. The threads do not keep the process alive; ``stop()`` waits for them.

    >>> import litelease, tempfile
    >>> scheduler = litelease.Scheduler(tempfile.mkdtemp() + "/app.sqlite3")
    >>> @scheduler.cron("0 3 * * *", tz="Europe/Berlin", retries=2)
    ... def nightly(tick):
    ...     with tick.finish() as conn:  # the effect and the end of the tick are one commit
    ...         conn.execute("INSERT INTO reports VALUES (?)", (tick.tick_ms,))
    >>> @scheduler.every("15m")
    ... def sync():
    ...     pass
    >>> scheduler.start()
    >>> scheduler.stop()
    """

    _may_be_coroutine = False

    def __init__(self, database: Database) -> None:
        is_path = isinstance(database, (str, os.PathLike))
        self.path = os.path.abspath(database) if is_path else file_of(database, "Scheduler")  # type: ignore[arg-type]
        self._is_own = is_path
        self._jobs: list[_Job] = []
        self._threads: list[_JobThread] = []
        self._pid, self._stopped = os.getpid(), threading.Event()

    def every(self, period: str | Seconds, **options: Any) -> Callable[[J], J]:
        """Runs the decorated function every so often: at the multiples of a period since 1970. See ``add`` for the options."""
        return self._decorator(period if isinstance(period, str) else f"{in_ms('every', period, None, 'period')}ms", options)

    def cron(self, line: str, **options: Any) -> Callable[[J], J]:
        """Runs the decorated function by a cron line. See ``add`` for the options."""
        return self._decorator(line, options)

    def add(
        self, name: str, schedule: str, job: Callable[..., Any], *, tz: str | None = None, late: Seconds | None = None,
        each: bool = False, attempts: int = 5, at_most_once: bool = False, retries: int = 0, ttl: Seconds = 30.0,
        max_time: Seconds | None = None, at_start: bool = False,
    ) -> None:
        """Adds a job, which is called with the tick if it takes an argument. The schedule is a cron line, or a period such as
        ``15m``; its zone ``tz`` is UTC unless it is named. A tick that is ``late`` is not begun; ``each`` runs every one that was
        missed, in order. A tick is granted ``attempts`` times at most, if its holders die. ``retries`` repeat a job that raises,
        under one grant. After ``max_time`` the tick is lost. ``at_start`` runs the last past tick at the first start."""
        if not callable(job) or (inspect.iscoroutinefunction(job) and not self._may_be_coroutine):
            raise TypeError(f"a job is a function that is done when it returns, got {job!r}; aio.Scheduler takes coroutines")
        if self._threads and self._pid == os.getpid():
            raise LiteleaseError("the scheduler has been started: add its jobs before")
        _library.planned(schedule, tz, 0)  # raises ValueError
        if attempts < 1 or retries < 0:
            raise InvalidAttempts(f"{name!r}: attempts must be at least 1 and retries at least 0")
        max_ms = optional_ms(name, max_time, "max_time")
        times = kept_ms(name, in_seconds(ttl), max_ms), max_ms
        attempts = 1 if at_most_once else attempts
        options = (name, schedule, tz, optional_ms(name, late, "late"), each, at_start, attempts, retries, *times)
        self._jobs.append(_Job(name, job, _takes_tick(job), options))

    def send(self, name: str, schedule: str, queue: str, body: Value, *, tz: str | None = None, **options: Any) -> None:
        """Adds a job that sends an item to a queue in the commit of each tick: see ``Queue.every``."""

        def send(tick: JobTick) -> None:
            with tick.finish():
                tick.db.queue(queue).send(body)

        self.add(name, schedule, send, tz=tz, **options)

    def start(self) -> None:
        """Starts the threads of the jobs. In a process that was forked since, it starts new ones."""
        if self._pid != os.getpid():
            self._threads = []
        if self._threads:
            return
        _library.find_library()
        if self._is_own:
            open_file(self.path).close()
        self._pid, self._stopped = os.getpid(), threading.Event()
        self._threads = [_JobThread(self, job) for job in self._jobs]
        _running.add(self)
        for job in self._threads:
            job.thread.start()

    def stop(self) -> None:
        """Begins no further tick, and waits for the jobs under way. In a process that was forked since the start it does
        nothing."""
        self._begin_to_stop()
        if self._pid == os.getpid():
            for job in self._threads:
                if job.thread is not threading.current_thread():
                    job.thread.join()
            self._threads = []

    def run(self) -> None:
        """Runs the jobs until ``stop()`` is called, by a job or another thread, or an exception comes, such as
        ``KeyboardInterrupt``."""
        self.start()
        try:
            # A signal may reach another thread, and an endless wait would not end by it.
            while not self._stopped.wait(0.5):
                pass
        finally:
            self.stop()

    def _begin_to_stop(self) -> None:
        if self._pid == os.getpid():
            self._stopped.set()
            for job in self._threads:
                _library.job_stop(job.native)

    def _call(self, function: Callable[..., Any], given: tuple[Any, ...]) -> None:
        function(*given)

    def _is_over(self, error: BaseException) -> bool:
        """Checks whether jobs can be run no more."""
        return False

    def _decorator(self, schedule: str, options: dict[str, Any]) -> Callable[[J], J]:
        def decorate(function: J) -> J:
            given: dict[str, Any] = {"name": getattr(function, "__name__", "job"), **options}
            self.add(given.pop("name"), schedule, function, **given)
            return function

        return decorate


def _takes_tick(job: Callable[..., Any]) -> bool:
    try:
        given = inspect.signature(job).parameters.values()
    except ValueError:  # it is written in C
        return False
    return any(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL) for one in given)


# A thread that waits for its next tick would delay the end of the interpreter.
_running: weakref.WeakSet[Scheduler] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for scheduler in list(_running):
        scheduler._begin_to_stop()
