"""The verbs on ticks of a client of ``litelease serve``: a scheduled job once, although every machine has the schedule."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, Protocol, TypeVar

from ._client_hold import Grant
from ._client_http import Outcome, Stop
from ._time import Seconds, in_ms, in_seconds, now_ms
from ._types import (
    Acquired, AlreadyTaken, Busy, Finished, First, InFuture, Lease, LiteleaseError, StaleTick, TickAcquired, TickAhead,
    TickChanged, TickHeld, TickInfo, TickState,
)
from ._wait import never

T = TypeVar("T")

class TickRefusedError(Exception):
    """A claim is refused because of its tick: waiting would not help."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        super().__init__(told["reason"])
        self.told = told


class _Requests(Protocol):
    """The requests of a client."""

    def _claim(
        self, name: str, owner: str, ttl: float, wait: float, *, stop: Stop = never,
        tick: Mapping[str, object] | None = None,
    ) -> Acquired | Busy: ...
    def _insist(self, call: str, body: dict[str, object]) -> tuple[Outcome, bool]: ...
    def _send_once(self, call: str, body: dict[str, object]) -> Outcome: ...
    def _look(self, call: str, **query: str) -> Mapping[str, Any]: ...
    def _pages(self, call: str, prefix: str) -> Iterator[Mapping[str, Any]]: ...


class ClientTicks:
    """The verbs on ticks. Times are Unix milliseconds; the clock that judges is the server's."""

    def claim_tick(
        self: _Requests, name: str, owner: str, ttl: Seconds, *, tick_ms: int, wait: Seconds = 0.0,
        attempts: int | None = None, schedule: str | None = None,
    ) -> TickAcquired | Busy | AlreadyTaken | InFuture:
        """Claims ``name`` with a tick, and waits up to ``wait`` seconds for it. ``AlreadyTaken`` comes at once: the tick is done, or
        has had all its grants. Renew the grant as any other, and end it
        with ``finish_tick``: a release leaves the tick to other clients."""
        times, tick = (in_ms(name, ttl, None) / 1000, in_seconds(wait)), tick_wish(tick_ms, attempts, schedule)
        return claim_tick(self, name, owner, times, tick)

    def finish_tick(self: _Requests, lease: Lease, *, failed: bool = False) -> Finished | StaleTick:
        """Makes the tick of a grant final, and ends the grant. It passes as long as no other client was granted the name."""
        if not isinstance(lease, Grant):
            raise TypeError("finish_tick() needs the lease that claim_tick() returned")
        told, _ = self._insist("finish", {"grant": lease.grant, "outcome": "failed" if failed else "done"})
        if told.kind == "done":
            return Finished()
        if told.value.get("reason") not in ("stale_tick", "unknown_grant"):
            raise _error(told.value)
        newest = told.value.get("newest")
        return StaleTick(newest["tick_ms"], TickState(newest["state"])) if newest else StaleTick(None, None)

    def tick(self: _Requests, name: str, tick_ms: int) -> First | AlreadyTaken | InFuture:
        """Begins and finishes a tick in one step: ``First``, which is true, for one of all callers. An effect that follows happens at most once."""
        told, _ = self._insist("tick", {"name": name, "tick_ms": tick_ms})
        return First() if told.kind == "done" else _refused(told.value)

    def skip_ticks(
        self: _Requests, name: str, until_ms: int | None = None, *, breaks: bool = False, reason: str | None = None
    ) -> TickChanged | Busy:
        """Skips every tick up to now, or up to a time: this pauses a schedule, and ends a pause. While a holder is at work on
        such a tick the answer is ``Busy``; with ``breaks`` that holder's lease is ended, and the request is sent only once."""
        body: dict[str, object] = {"name": name, "breaks": breaks, **_given(until_ms=until_ms, reason=reason)}
        told = self._send_once("ticks/skip", body) if breaks else self._insist("ticks/skip", body)[0]
        return _changed(told) or _busy(told)

    def tick_again(self: _Requests, name: str, *, reason: str | None = None) -> TickChanged | Busy | None:
        """Opens the newest tick once more, with all its attempts. None if the name has no tick. It is sent only once."""
        told = self._send_once("ticks/again", {"name": name, **_given(reason=reason)})
        return _changed(told) if told.value.get("reason") == "no_tick" else _changed(told) or _busy(told)

    def forget_tick(self: _Requests, name: str, *, reason: str | None = None) -> TickChanged | Busy | None:
        """Deletes the newest tick of a schedule that is no more. None if the name has no tick. It is sent only once."""
        told = self._send_once("ticks/forget", {"name": name, **_given(reason=reason)})
        return _changed(told) if told.value.get("reason") == "no_tick" else _changed(told) or _busy(told)

    def install_schedule(self: _Requests, name: str, tick_ms: int, schedule: str) -> TickChanged:
        """Counts the newest past tick of a new schedule as skipped, so that installing it runs nothing."""
        told, _ = self._insist("ticks/install", {"name": name, "tick_ms": tick_ms, "schedule": schedule})
        return TickChanged(told.value["tick_ms"], TickState(told.value["state"]))

    def newest_tick(self: _Requests, name: str) -> TickInfo | None:
        """Returns the newest tick of ``name``, if it has one."""
        return next(map(_info, self._look("ticks", name=name)["ticks"]), None)

    def ticks(self: _Requests, prefix: str = "") -> list[TickInfo]:
        """Lists the newest tick of every name that begins with ``prefix``, by name."""
        return [_info(found) for found in self._pages("ticks", prefix)]


def claim_tick(
    client: _Requests, name: str, owner: str, times: tuple[float, float], tick: Mapping[str, object], stop: Stop = never
) -> TickAcquired | Busy | AlreadyTaken | InFuture:
    """Claims a name with a tick. ``times`` are the ttl and how long to wait."""
    try:
        told = client._claim(name, owner, *times, stop=stop, tick=tick)
    except TickRefusedError as refused:
        return _refused(refused.told)
    begun = told.lease.tick if isinstance(told, Acquired) and isinstance(told.lease, Grant) else None
    if isinstance(told, Busy) or begun is None:
        assert isinstance(told, Busy), "the server has granted no tick"
        return told
    return TickAcquired(told.lease, begun.attempt, begun.previous_ms, begun.passed_ms)


def tick_wish(tick_ms: int, attempts: int | None, schedule: str | None) -> dict[str, object]:
    return {"tick_ms": tick_ms, **_given(attempts=attempts), **_given(schedule=schedule)}


def is_of_tick(told: Mapping[str, Any]) -> bool:
    """Checks whether a refusal is final because of a tick."""
    return told.get("reason") in ("already_taken", "in_future", "tick_ahead")


def _given(**fields: T | None) -> dict[str, T]:
    return {name: value for name, value in fields.items() if value is not None}


def _refused(told: Mapping[str, Any]) -> AlreadyTaken | InFuture:
    if told.get("reason") == "already_taken":
        return AlreadyTaken(told["newest"]["tick_ms"], TickState(told["newest"]["state"]))
    if told.get("reason") == "in_future":
        return InFuture(told["now_ms"])
    raise _error(told)


def _changed(told: Outcome) -> TickChanged | None:
    return TickChanged(told.value["tick_ms"], TickState(told.value["state"])) if told.kind == "done" else None


def _busy(told: Outcome) -> Busy:
    current = told.value.get("current")
    if not current:
        raise _error(told.value)
    expires_at_ms = current["expires_at_unix"] * 1000
    lease = Lease(current["name"], current["owner"], current["token"], expires_at_ms)
    return Busy(lease, told.value.get("tick_ms"))


_ERRORS: Mapping[str, Callable[[str], LiteleaseError]] = {
    "tick_ahead": TickAhead,
    "tick_held": TickHeld,
}


def _error(told: Mapping[str, Any]) -> LiteleaseError:
    text = told.get("error") or "the server has refused it"
    return _ERRORS.get(told.get("reason", ""), LiteleaseError)(text)


def _info(told: Mapping[str, Any]) -> TickInfo:
    left = told["expires_in"]
    return TickInfo(
        told["name"], told["tick_ms"], TickState(told["state"]), told["done_ms"], told["attempt"], told["attempts"], told["owner"],
        told["token"], told["began_ms"], told["ended_ms"], None if left is None else now_ms() + int(left * 1000),
        told["schedule"],
    )
