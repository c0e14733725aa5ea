"""What is held on a server: renewed by a thread of Python's, and trusted as long as the library says.

That thread waits for no answer: each round of renewals has a thread, so that one server does not delay the holds of another.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import queue
import socket
import threading
import uuid
import warnings
import weakref
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Callable

from . import _library
from ._atomic import start_thread
from ._held import NOT_REQUESTED, Holding, LossEvent, loss
from ._time import Seconds
from ._types import (
    BegunTick, Busy, ExpiredOnArrival, HoldTimeout, InvalidTtl, Lease, LiteleaseError, Loss, Lost, NotRequested, Reason, Rejected,
    RequestInfo, ServerRefused, ServerUnreachable,
)
from ._wait import clock, never

if TYPE_CHECKING:
    from ._client import Client

# The shortest and the longest time that one request of the keeper may take.
_PATIENCE = 0.02, 10.0
# How long the end of the interpreter waits for one release.
_LAST_PATIENCE = 1.0
# How many renewals of one round are under way at a time.
_ABREAST = 8
# After a suspend an alarm is late.
_LONGEST_PAUSE = 1.0
_BROKEN = Loss("Broken", Reason.SUPERSEDED.value)


@dataclass(frozen=True)
class Grant(Lease):
    """A lease on a server, with the secret by which it is renewed and released. ``lease_expires_at_ms`` is by the clock of the
    server, in whole seconds: it is for display only."""

    grant: str = field(default="", repr=False)
    tick: BegunTick | None = field(default=None, compare=False)
    """The tick that it runs, if it was claimed with one, or such a lease was transferred."""
    # By the clock of this machine that counts suspend.
    trusted_until: float = field(default=0.0, repr=False, compare=False)

    @property
    def is_trusted(self) -> bool:
        """Whether the client may act on it now: no other client can have been granted the name."""
        return clock() < self.trusted_until


def window(name: str, ttl: float) -> tuple[float, float]:
    """Returns for how long a grant is trusted, and after what time it is renewed."""
    found = _library.window(ttl)
    if found is None:
        raise InvalidTtl(f"{name!r}: a ttl of {ttl} s is too short to be kept alive: give more than 0.1 s")
    return found[0], found[1]


class RemoteHold(Holding):
    """What a lease and a slot that are held on a server have in common."""

    # Until when its release is asked for again; None before it begins.
    _released_until: float | None = None
    _is_returned = _is_handed = False

    def __init__(self, client: Client, name: str, ttl: float, wait: float, stop: Callable[[], bool]) -> None:
        self._client, self.name, self._ttl = client, name, ttl
        window(name, ttl)
        try:
            start = self._acquire(wait, stop)
            self._native = _library.trust_begin(name, self.owner, self.token, ttl, start)
            self.lost = LossEvent(self._native)
            _keeper.add(_Kept(self))
        except BaseException:
            self._give_back()
            raise

    def check(self) -> None:
        """Raises ``Lost`` once the lease can no longer be trusted, and as soon as its release has begun."""
        if self._is_handed:
            raise Lost(self.name, Loss("HandedOver", "it was handed over, or is about to be"))
        super().check()

    def release(self) -> bool:
        """Ends the hold. Returns whether it was still held: a lease that was lost is left alone."""
        if self._released_until is None:
            is_over = self._is_handed or _library.held_check(self._native) is not None
            self._released_until = 0.0 if is_over else self._trusted_until
        _library.held_release(self._native)
        if self._is_returned or self._released_until == 0.0:
            return False
        self._return(max(self._released_until - clock(), 0.0))
        self._is_returned = True
        return True

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self.release()
        except LiteleaseError:
            # What went wrong in the block matters more; the lease ends by itself.
            if error is None:
                raise
        except BaseException:
            self._give_back()
            raise

    @property
    def _trusted_until(self) -> float:
        return _library.trust_until(self._native)

    def _renew(self) -> bool:
        """Sends one renewal. Returns whether it was answered."""
        start, shortest, longest = clock(), *_PATIENCE
        # There is time for a few tries, and none goes on beyond the trust window.
        timeout = min(max(min(self._ttl / 6, self.trusted_for()), shortest), longest)
        try:
            told = self._prolong(timeout)
        except LiteleaseError as error:
            # An access key that was taken back may be given again: the trust window decides.
            self._failed(str(error))
            return isinstance(error, ServerRefused)
        if isinstance(told, Rejected):
            self._settle(start, told)
        else:
            _library.trust_settle(self._native, start, told, None, None, None)
        return True

    def _failed(self, error: str) -> None:
        """Notes that a renewal failed. It is tried again as long as there is trust."""
        _library.trust_settle(self._native, clock(), None, "CannotRenew", None, error)

    def _settle(self, start: float | None, answer: Rejected) -> Loss:
        """Notes that the server has rejected a renewal; or without its start, that the lease is over."""
        reason = _BROKEN if _is_broken(answer) else loss(self.token, answer)
        if not self._is_handed:  # it is the consequence of that
            by = answer.newest if answer.current is None else answer.current.token
            _library.trust_settle(self._native, start, None, reason.kind, by, reason)
        return reason

    def _lose(self, answer: Rejected) -> Lost:
        """Notes that the server says that the lease is over."""
        return Lost(self.name, self._settle(None, answer))

    def _give_back(self) -> None:
        """Gives back what may have been granted, after an exception. What is not released ends by itself."""
        if self._native is not None:
            _library.held_release(self._native)
        if hasattr(self, "token") and not self._is_returned:
            with contextlib.suppress(LiteleaseError):
                self._return(0.0)

    def _acquire(self, wait: float, stop: Callable[[], bool]) -> float:
        """Asks until it is granted, and returns from when on it is trusted."""
        raise NotImplementedError

    def _prolong(self, timeout: float) -> float | Rejected:
        """Renews once, and returns for how many seconds it was granted."""
        raise NotImplementedError

    def _return(self, patience: float) -> None:
        """Gives back what was granted, and asks again for so many seconds."""
        raise NotImplementedError

    def _giver(self) -> Callable[[], object]:
        """Returns what gives back what was granted, without a reference to this object."""
        raise NotImplementedError


class RemoteHeld(RemoteHold):
    """A lease on a server that is kept alive while its block runs. Made by ``Client.hold``."""

    def __init__(
        self, client: Client, name: str, ttl: float, wait: float, owner: str | None, stop: Callable[[], bool] = never
    ) -> None:
        # Not the form of holds in a file: another machine cannot tell whether the process
        # lives.
        self.owner = owner or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}"
        super().__init__(client, name, ttl, wait, stop)

    @property
    def lease(self) -> Grant:
        """The grant as the verbs of the client take it."""
        return replace(self._lease, trusted_until=self._trusted_until)

    def progress(self) -> None:
        """Notes that the work goes on, for a lease with a limit. Raises ``Lost`` like ``check()``."""
        self.check()
        told = self._client.progress(self._lease)
        if isinstance(told, Rejected):
            raise self._lose(told)

    def requested(self) -> RequestInfo | None:
        """Returns the open request for this lease, if a successor asks for it."""
        found = self._client.requested(self.name)
        return found if found is not None and found.token == self.token else None

    def hand_over(self, ttl: Seconds) -> Lease:
        """Hands the lease to the requester who has asked for it, and ends the hold: store a checkpoint before. Returns the
        requester's lease. If nobody has asked it raises ``NotRequested``, and the hold goes on."""
        self.check()
        # From here on the requester may trust it: it stays like this unless it is known that
        # nothing was handed over.
        self._is_handed = True
        try:
            answer = self._client.hand_over(self._lease, ttl)
        except ServerRefused:
            self._is_handed = False
            raise
        if isinstance(answer, Rejected):
            self._is_handed = False
            if answer.reason is Reason.NOT_REQUESTED:
                raise NotRequested(NOT_REQUESTED.format(self.name))
            raise self._lose(answer)
        _library.held_release(self._native)
        return answer.lease

    def _acquire(self, wait: float, stop: Callable[[], bool]) -> float:
        answer = self._client._claim(self.name, self.owner, self._ttl, wait, stop=stop)
        if isinstance(answer, Busy):
            raise HoldTimeout(answer.current)
        assert isinstance(answer.lease, Grant)
        self._lease, self.token = answer.lease, answer.lease.token
        if not self._lease.is_trusted:
            self._return(0.0)
            raise ExpiredOnArrival(self._lease)
        # The trust of a hold that began then ends when it must.
        return self._lease.trusted_until - window(self.name, self._ttl)[0]

    def _prolong(self, timeout: float) -> float | Rejected:
        told = self._client._renew_once(self._lease, self._ttl, timeout)
        return told if isinstance(told, Rejected) else told[1]

    def _return(self, patience: float) -> None:
        self._client._release(self._lease, patience)

    def _giver(self) -> Callable[[], object]:
        client, lease = self._client, self._lease
        return lambda: client._release(lease, 0.0, _LAST_PATIENCE)


class RemoteSlot(RemoteHold):
    """A slot of a pool on a server that is kept alive while its block runs. Made by ``Client.borrow``."""

    position: int
    lease_id: str

    def __init__(
        self, client: Client, id: str, ttl: float, wait: float, note: str | None, stop: Callable[[], bool] = never
    ) -> None:
        self._note, self.owner = note, ""
        super().__init__(client, id, ttl, wait, stop)

    def _acquire(self, wait: float, stop: Callable[[], bool]) -> float:
        lent, until = self._client._borrow(self.name, self._ttl, wait, self._note, stop)
        self.lease_id, self.position, self.token = lent["lease"], lent["position"], lent["token"]
        return until - window(self.name, self._ttl)[0]

    def _prolong(self, timeout: float) -> float | Rejected:
        return self._client._renew_slot(self.name, self.lease_id, self._ttl, timeout)

    def _return(self, patience: float) -> None:
        self._client._return_slot(self.name, self.lease_id, patience)

    def _giver(self) -> Callable[[], object]:
        client, id, lease = self._client, self.name, self.lease_id
        return lambda: client._return_slot(id, lease, 0.0, _LAST_PATIENCE)


class _Kept:
    """What the keeper knows about a hold, also after the hold itself is gone."""

    def __init__(self, held: RemoteHold) -> None:
        self.name, self.native, self.give_back = held.name, held._native, held._giver()
        self.is_asking = False
        self.held = weakref.ref(held, _keeper.wake)


class _Keeper:
    """Renews what a process holds on servers, by a thread that is started with the first hold.

    A thread that changes the dictionary wakes this one through a queue. Both do that in C, without a lock that an exception from a
    signal handler could leave taken.
    """

    def __init__(self) -> None:
        self._kept: dict[_Kept, None] = {}
        changed: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._changed, self.wake = changed, changed.put
        self._running: list[bool] = []
        self._runner: threading.Thread | None = None
        self._pid = os.getpid()

    def add(self, kept: _Kept) -> None:
        self._kept[kept] = None
        if not self._running:
            # By the first hold: multiprocessing forgets what was registered before a fork. First
            # the calls of other threads end, else one that waits would be granted what is released,
            # and would keep it.
            atexit.register(self.end)
            atexit.register(_library.end_calls)
            start_thread(self._run, self._running)
        self.wake(None)

    def _run(self) -> None:
        me = self._runner = threading.current_thread()
        me.name = "litelease client"
        try:
            while self._runner is me:  # else two threads have started one each
                pause = self._begin_rounds()
                with contextlib.suppress(queue.Empty):
                    self._changed.get(timeout=pause)
                    while True:
                        self._changed.get_nowait()
        finally:
            if self._runner is me:
                self._running.clear()

    def _begin_rounds(self) -> float | None:
        """Begins to renew what is due. Returns for how long nothing else is."""
        pause, batch = _LONGEST_PAUSE, list[_Kept]()
        for kept in list(self._kept):
            left = _library.trust_due(kept.native)
            if left is None or kept.held() is None:
                self._kept.pop(kept, None)
                if left is not None:
                    self._drop(kept)
            elif left > 0:
                pause = min(pause, left)
            elif not kept.is_asking:
                kept.is_asking = True
                batch.append(kept)
        for number in range(min(len(batch), _ABREAST)):
            start_thread(functools.partial(self._round, batch[number::_ABREAST]), [])
        return pause if self._kept else None

    def _round(self, batch: list[_Kept]) -> None:
        is_answered = True
        for kept in batch:
            held = kept.held()
            if held is not None and is_answered:
                is_answered = held._renew()
            elif held is not None:
                # A server that does not answer one request in time will not answer the next one.
                held._failed("the server did not answer a renewal in time")
            kept.is_asking = False
            del held
        self.wake(None)

    def _drop(self, kept: _Kept) -> None:
        """Releases a hold that was dropped."""
        _library.held_release(kept.native)
        start_thread(functools.partial(_quietly, kept), [])
        with contextlib.suppress(ResourceWarning):
            text = f"the hold on {kept.name!r} was garbage-collected, so it is released: keep what hold() and borrow() return"
            warnings.warn(text, ResourceWarning)

    def end(self) -> None:
        """Releases everything when the interpreter ends, unless the server does not answer."""
        for kept in list(self._kept) if os.getpid() == self._pid else ():
            if _library.held_check(kept.native) is None:
                _library.held_release(kept.native)
                if not _quietly(kept):
                    return


def _is_broken(answer: Rejected) -> bool:
    """Checks whether the lease was broken, which raises the token and leaves the name free."""
    return answer.reason is Reason.SUPERSEDED and answer.current is None


def _quietly(kept: _Kept) -> bool:
    """Gives back what was granted. Returns whether the server was there. If not, it ends by itself."""
    try:
        kept.give_back()
    except ServerUnreachable:
        return False
    except LiteleaseError:
        pass
    return True


_keeper = _Keeper()


def _begin_anew() -> None:
    """In a forked child the thread is not there, and the holds are the parent's."""
    global _keeper
    _keeper = _Keeper()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
