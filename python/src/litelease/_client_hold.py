"""What is held on a server: kept alive by a thread of its own, beside the keeper of the files, which no network may delay.

That thread waits for no answer: each round of renewals has a thread, so that a loss is told in time whatever the server does.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import uuid
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Callable

from . import _library
from ._atomic import start_thread
from ._hold import _NOT_REQUESTED, Hold, loss
from ._keeper import Keeper, Kept
from ._leases import Litelease
from ._time import Seconds
from ._types import (
    Busy,
    ExpiredOnArrival,
    HoldTimeout,
    InvalidTtl,
    Lease,
    LiteleaseError,
    Loss,
    Lost,
    NotRequested,
    Reason,
    Rejected,
    RequestInfo,
    ServerRefused,
    ServerUnreachable,
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
_BROKEN = Loss("Broken", Reason.SUPERSEDED.value)


@dataclass(frozen=True)
class Grant(Lease):
    """A lease on a server, with the secret by which it is renewed and released. ``lease_expires_at_ms`` is by the clock of the
    server, in whole seconds: it is for display only."""

    grant: str = field(repr=False)
    # By the clock of this machine that counts suspend.
    trusted_until: float = field(repr=False, compare=False)

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


class RemoteHold(Hold):
    """What a lease and a slot that are held on a server have in common."""

    def __init__(self, client: Client, name: str, ttl: float, wait: float, stop: Callable[[], bool]) -> None:
        self._client = client
        super().__init__(client.url, name, ttl, wait, None, stop)

    def release(self) -> None:
        """Ends the hold. A lease that was lost is left alone."""
        if os.getpid() != self._pid or self._ended:
            return
        self._is_released = True
        if self._kept is not None:
            self._kept.leave()
        if not self._reasons and not self._is_handed:
            self._return(max(self._trusted_until - clock(), 0.0))
        self._ended = True

    def _renew(self) -> bool:
        """Sends one renewal. Returns whether it was answered."""
        start, shortest, longest = clock(), *_PATIENCE
        # There is time for a few tries, and none goes on beyond the trust window.
        timeout = min(max(min(self._ttl / 6, self._trusted_until - start), shortest), longest)
        try:
            told = self._prolong(timeout)
        except LiteleaseError as error:
            # An access key that was taken back may be given again: the trust window decides.
            self._failed(str(error))
            return isinstance(error, ServerRefused)
        if isinstance(told, Rejected):
            self._rejected(told)
        else:
            self._renewed(start, told if told < self._ttl else None)
        return True

    def _rejected(self, answer: Rejected) -> None:
        if _is_broken(answer):
            return self._refused(_BROKEN)
        super()._rejected(answer)

    def _lose(self, answer: Rejected) -> Lost:
        """Notes that the server says that the lease is over. The keeper's thread sets the event."""
        self._reasons.append(_BROKEN if _is_broken(answer) else loss(self.token, answer))
        if self._kept is not None:
            self._kept.tell()
        return Lost(self.name, self._reasons[0])

    def _kept_by(self) -> Keeper:
        return _remote

    def _give_back(self) -> None:
        self._is_released = True
        if self._kept is not None:
            self._kept.leave()
        if hasattr(self, "token") and not self._ended:
            with contextlib.suppress(LiteleaseError):
                self._return(0.0)

    def _prolong(self, timeout: float) -> float | Rejected:
        """Renews once, and returns for how many seconds it was granted."""
        raise NotImplementedError

    def _return(self, patience: float) -> None:
        """Gives back what was granted, and asks again for so many seconds."""
        raise NotImplementedError


class RemoteHeld(RemoteHold):
    """A lease on a server that is kept alive while its block runs. Made by ``Client.hold``."""

    def __init__(
        self, client: Client, name: str, ttl: float, wait: float, owner: str | None, stop: Callable[[], bool] = never
    ) -> None:
        # Not the form of holds in a file: on another machine nobody can tell whether the process
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
        """Returns the open request for this lease, if somebody asks for it."""
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
                raise NotRequested(_NOT_REQUESTED.format(self.name))
            raise self._lose(answer)
        self._is_released = self._ended = True
        if self._kept is not None:
            self._kept.leave()
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
        return self._lease.trusted_until - self._trusted_for

    def _prolong(self, timeout: float) -> float | Rejected:
        told = self._client._renew_once(self._lease, self._ttl, timeout)
        return told if isinstance(told, Rejected) else told[1]

    def _return(self, patience: float) -> None:
        self._client._release(self._lease, patience)

    def _giver(self) -> Callable[[Litelease], object]:
        client, lease = self._client, self._lease
        return lambda _: client._release(lease, 0.0, _LAST_PATIENCE)


class RemoteSlot(RemoteHold):
    """A slot of a pool on a server that is kept alive while its block runs. Made by ``Client.borrow``."""

    position: int
    lease_id: str

    def __init__(
        self, client: Client, id: str, ttl: float, wait: float, note: str | None, stop: Callable[[], bool] = never
    ) -> None:
        self._note = note
        super().__init__(client, id, ttl, wait, stop)

    def _acquire(self, wait: float, stop: Callable[[], bool]) -> float:
        lent, until = self._client._borrow(self.name, self._ttl, wait, self._note, stop)
        self.lease_id, self.position, self.token = lent["lease"], lent["position"], lent["token"]
        return until - self._trusted_for

    def _prolong(self, timeout: float) -> float | Rejected:
        return self._client._renew_slot(self.name, self.lease_id, self._ttl, timeout)

    def _return(self, patience: float) -> None:
        self._client._return_slot(self.name, self.lease_id, patience)

    def _giver(self) -> Callable[[Litelease], object]:
        client, id, lease = self._client, self.name, self.lease_id
        return lambda _: client._return_slot(id, lease, 0.0, _LAST_PATIENCE)


class Remote(Keeper):
    """Keeps alive what a process holds on servers."""

    thread_name = "litelease client"

    def _renew(self, path: str, batch: list[Hold]) -> None:
        for held in batch:
            held._due = float("inf")  # until its renewal is answered
        for number in range(min(len(batch), _ABREAST)):
            start_thread(functools.partial(self._round, batch[number::_ABREAST]), [])
        batch.clear()

    def _round(self, batch: list[Hold]) -> None:
        is_answered = True
        for held in batch:
            if isinstance(held, RemoteHold) and is_answered:
                is_answered = held._renew()
            else:
                # A server that does not answer one request in time will not answer the next one.
                held._failed("the server did not answer a renewal in time")
        self.wake(None)

    def _drop(self, kept: Kept, held: Hold | None) -> None:
        """Releases a hold that nobody refers to any more."""
        self._kept.pop(kept, None)

        def give_back() -> None:
            _quietly(kept)

        start_thread(give_back, [])
        with contextlib.suppress(ResourceWarning):
            text = f"the hold on {kept.name!r} was garbage-collected, so it is released: keep what hold() and borrow() return"
            warnings.warn(text, ResourceWarning)

    def end(self, connection: object = None) -> None:
        """Releases everything when the interpreter ends, unless the server does not answer."""
        if os.getpid() != self._pid or connection is not None:
            return
        for kept in list(self._kept):
            held = kept.held()
            self.remove(kept)
            if held is not None:
                held._is_released = held._ended = True
            if not _quietly(kept):
                return


def _is_broken(answer: Rejected) -> bool:
    """Checks whether the lease was broken, which raises the token and leaves the name free."""
    return answer.reason is Reason.SUPERSEDED and answer.current is None


def _quietly(kept: Kept) -> bool:
    """Gives back what was granted. Returns whether the server was there. If not, it ends by itself."""
    try:
        kept.give_back(None)  # type: ignore[arg-type]
    except ServerUnreachable:
        return False
    except LiteleaseError:
        pass
    return True


_remote = Remote()


def _begin_anew() -> None:
    """In a forked child the thread is not there, and the holds are the parent's."""
    global _remote
    _remote = Remote()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
