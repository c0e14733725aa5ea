"""A client of ``litelease serve``: the verbs on names, each as one request, or as often as it takes."""

from __future__ import annotations

import contextlib
import os
import random
import time
import urllib.parse
import uuid
from dataclasses import replace
from typing import Any, Callable, Iterator, Mapping

from ._client_hold import Grant, RemoteHeld, RemoteSlot, window
from ._client_http import Outcome, Place, Stop, Transport
from ._client_queue import RemoteQueue
from ._client_ticks import ClientTicks, TickRefusedError, is_of_tick
from ._client_value import from_json, to_json
from ._fences import Value
from ._queue import QueueInfo
from ._time import Seconds, in_ms, in_seconds, now_ms
from ._types import (
    Acquired, BegunTick, Broken, Busy, Checkpoint, ExpiredOnArrival, InvalidUrl, Lease, LiteleaseError, NoFreeSlot, NoSuchPool, Reason,
    Rejected, Released, Renewed, Requested, RequestedBy, RequestInfo, ServerRefused, ServerUnreachable, Stored, Transferred,
)
from ._wait import Stopped, clock, never

# How long one request may take besides the time that it waits for a name.
_PATIENCE = 10.0
# The pause after a first failure, and the longest one.
_PAUSES = 0.025, 1.0


class Client(ClientTicks):
    """Leases on a server. It sends nothing before its first verb. Threads may share it; a forked child may use it, too.

    ``access_key`` is the key as a text, or the path of its file as a ``Path``. Without it the key comes from the file
    ``$LITELEASE_ACCESS_FILE``, or is the one that a server on this machine has made for its own user. ``ca_file`` has the
    certificates that are trusted instead of the system's. An answer that got lost, 502 and 503 are asked for again for
    ``retry_for`` seconds, and then raise ``ServerUnreachable``.

    >>> Client("http://127.0.0.1:7070")
    Client('http://127.0.0.1:7070')
    """

    def __init__(
        self, url: str, access_key: str | os.PathLike[str] | None = None, *, ca_file: str | os.PathLike[str] | None = None,
        retry_for: Seconds = 10.0,
    ) -> None:
        place = Place(url)
        self.url, self._retry_for = place.base, in_seconds(retry_for)
        self._http = Transport(place, place.key(access_key), ca_file)

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    # Claims and what prolongs or ends them.

    def claim(
        self, name: str, owner: str, ttl: Seconds | None = None, *, ttl_ms: int | None = None, min_token: int = 0
    ) -> Acquired | Busy:
        """Grants ``name`` to ``owner`` if nobody has it, under a token larger than ``min_token``. ``Busy`` is falsy. The lease of
        the answer is a ``Grant``, whose ``is_trusted`` says how long to rely on it."""
        return self._claim(name, owner, in_ms(name, ttl, ttl_ms) / 1000, 0.0, min_token)

    def claim_wait(
        self, name: str, owner: str, ttl: Seconds, wait: Seconds, *, note: str | None = None
    ) -> Acquired | Busy:
        """Claims like ``claim``, and waits up to ``wait`` seconds: first come, first served. It is not renewed: see ``hold``.
        ``note`` tells operators meanwhile why this client waits."""
        return self._claim(name, owner, in_ms(name, ttl, None) / 1000, in_seconds(wait), note=note)

    def renew(self, lease: Lease, ttl: Seconds | None = None, *, ttl_ms: int | None = None) -> Renewed | Rejected:
        """Prolongs this grant to at least ``ttl`` from now. It never shortens a lease and never revives one."""
        return self._renew(_grant(lease, "renew"), in_ms(lease.name, ttl, ttl_ms) / 1000)

    def release(self, lease: Lease) -> Released | Rejected:
        """Ends this grant early."""
        return self._release(_grant(lease, "release"), self._retry_for)

    def transfer(
        self, lease: Lease, new_owner: str, ttl: Seconds | None = None, *, ttl_ms: int | None = None
    ) -> Transferred | Rejected:
        """Hands this grant to a new owner under a new token. The new owner gets it by a claim of the name under that text."""
        grant, seconds = _grant(lease, "transfer"), in_ms(lease.name, ttl, ttl_ms) / 1000
        told, was_lost = self._insist("transfer", {"grant": grant.grant, "new_owner": new_owner, "ttl": seconds})
        if told.kind == "done":
            return Transferred(_lease(told.value))
        rejected = _rejected(told.value)
        if was_lost and rejected.current is not None and rejected.current.owner == new_owner:
            return Transferred(rejected.current)  # the answer to the first request got lost
        if was_lost and rejected.reason is Reason.SUPERSEDED:
            # The first request may have been done, and the name handed on since.
            raise ServerUnreachable(
                f"the answer to the transfer of {grant.name!r} was lost, so it may be done or not: inspect() shows who has it"
            )
        return rejected

    def break_lease(self, name: str, *, reason: str | None = None) -> Broken | Rejected:
        """Ends any holder's live lease and raises the token, for operators. The server logs the reason. If its answer gets
        lost, it raises ``ServerUnreachable`` and is not asked again: another owner may have the name by then."""
        body: dict[str, object] = {"name": name} if reason is None else {"name": name, "reason": reason}
        told = self._send_once("break", body)
        return Broken(told.value["owner"], told.value["killed"]) if told.kind == "done" else _rejected(told.value)

    # Looking.

    def inspect(self, name: str) -> Lease | None:
        """Returns the live lease on ``name``, if there is one."""
        found = self._look("leases", name=name)
        return _lease(found) if found["owner"] is not None else None

    def leases(self, prefix: str = "") -> list[Lease]:
        """Lists the live leases whose names begin with ``prefix``, by name."""
        return [_lease(found) for found in self._pages("leases", prefix)]

    def queues(self, prefix: str = "") -> list[QueueInfo]:
        """Lists the queues whose names begin with ``prefix``, with how many items each has."""
        return [RemoteQueue._info(found) for found in self._pages("queues", prefix)]

    # What rides on a grant.

    def attach(self, lease: Lease, value: Value) -> Stored | Rejected:
        """Attaches a value to this grant, for others to read: an address, say. It ends with the grant."""
        return self._store("attach", lease, value=to_json(value))

    def value(self, name: str) -> Value:
        """Returns the value attached to the live grant of ``name``; None if there is none."""
        return from_json(self._look("leases", name=name).get("value"))

    def limit(
        self, lease: Lease, progress_within: Seconds | None = None, max_time: Seconds | None = None
    ) -> Stored | Rejected:
        """Limits this grant, in the place of its limits before: its renewals are rejected unless progress or a checkpoint came
        within ``progress_within`` seconds, and none prolongs past ``max_time`` from now. None is no limit."""
        within, most = (None if time is None else in_seconds(time) for time in (progress_within, max_time))
        return self._store("limit", lease, progress_within=within, max_time=most)

    def progress(self, lease: Lease) -> Stored | Rejected:
        """Notes that the holder of this grant has made progress, which its limits may demand."""
        return self._store("progress", lease)

    def checkpoint(self, lease: Lease, value: Value) -> Stored | Rejected:
        """Stores how far the work has come, for the successor, if this grant is still live."""
        return self._store("checkpoint", lease, value=to_json(value))

    def last_checkpoint(self, name: str) -> Checkpoint | None:
        """Returns the latest checkpoint of ``name``, if there is one. Its time is by the clock of the server."""
        found = self._look("checkpoint", name=name)
        if found["token"] is None:
            return None
        return Checkpoint(found["token"], from_json(found["value"]), found["updated_at_unix"] * 1000)

    # Handoff on request.

    def request(
        self, name: str, requester: str, within: Seconds | None = None, *, within_ms: int | None = None
    ) -> Requested | RequestedBy | Rejected:
        """Asks the live holder of ``name`` to give it up. From ``within`` from now on its renewals are rejected. Wait for it with
        ``claim_wait`` under the requester's text, which must be a fresh one."""
        seconds = in_ms(name, within, within_ms, "within") / 1000
        told, _ = self._insist("request", {"name": name, "requester": requester, "within": seconds})
        if told.kind == "done":
            return Requested(told.value["token"], told.value["until_unix"] * 1000)
        if asked := told.value.get("requested"):
            return RequestedBy(asked["requester"], asked["until_unix"] * 1000)
        return _rejected(told.value)

    def requested(self, name: str) -> RequestInfo | None:
        """Returns the open request for the live grant of ``name``, if there is one."""
        asked = self._look("leases", name=name).get("requested")
        return RequestInfo(asked["requester"], asked["until_unix"] * 1000, asked["token"]) if asked else None

    def hand_over(
        self, lease: Lease, ttl: Seconds | None = None, *, ttl_ms: int | None = None
    ) -> Transferred | Rejected:
        """Hands this grant to the requester who has asked for it, under a new token. It is rejected if nobody has asked. Store a
        checkpoint before: the successor starts from it."""
        grant, seconds = _grant(lease, "hand_over"), in_ms(lease.name, ttl, ttl_ms) / 1000
        told, _ = self._insist("hand-over", {"grant": grant.grant, "ttl": seconds})
        return Transferred(_lease(told.value)) if told.kind == "done" else _rejected(told.value)

    # What is kept alive.

    def hold(self, name: str, ttl: Seconds = 60.0, *, wait: Seconds = 0.0, owner: str | None = None) -> RemoteHeld:
        """Claims ``name`` and keeps it alive in the background until the block ends.

        Waits up to ``wait`` seconds for it; ``HoldTimeout`` if another owner still has it then. ``check()`` raises ``Lost``, and
        ``lost`` is set, before another client can be granted the name. Keep the object: a hold without a reference is
        released, and so is every one when the interpreter ends.
        """
        return RemoteHeld(self, name, in_seconds(ttl), in_seconds(wait), owner)

    def register(self, pool: str, count: int) -> None:
        """Makes a pool of ``count`` slots, or changes how many it has. Its id is a UUID, and a secret."""
        self._repeat("PUT", self._pool(pool), {"count": count})

    def borrow(self, pool: str, ttl: Seconds = 60.0, *, wait: Seconds = 0.0, note: str | None = None) -> RemoteSlot:
        """Borrows a slot of a pool and keeps it alive in the background until the block ends. ``pool`` is the id or the URL of
        the pool.

        Waits up to ``wait`` seconds for a free one; then it raises ``NoFreeSlot``.
        """
        return RemoteSlot(self, pool, in_seconds(ttl), in_seconds(wait), note)

    def queue(self, name: str) -> RemoteQueue:
        """Returns the queue called ``name``. It exists from its first use. If only a receipt is known, the name may be empty: the
        server finds the queue of the receipt."""
        return RemoteQueue(self, name)

    # One request, or as often as it takes.

    def _claim(
        self,
        name: str,
        owner: str,
        ttl: float,
        wait: float,
        min_token: int = 0,
        stop: Stop = never,
        note: str | None = None,
        tick: Mapping[str, object] | None = None,
    ) -> Acquired | Busy:
        body: dict[str, object] = {"name": name, "owner": owner, "ttl": ttl, **(tick or {})}
        if min_token:
            body["min_token"] = min_token
        if note is not None:
            body["note"] = note
        trusted_for, interval = window(name, ttl)
        first, tag = clock(), new_tag()
        try:
            told, _ = self._repeat("POST", "/v1/claim", body, tag, wait, ttl, stop)
            if told.kind == "no" and is_of_tick(told.value):
                raise TickRefusedError(told.value)
            if told.kind == "no":
                return Busy(_lease(told.value["current"]), told.value.get("tick_ms"))
            grant = _granted(told.value, first + trusted_for, ttl)
        except TickRefusedError:
            raise
        except BaseException as error:
            if isinstance(error, Stopped) or not isinstance(error, LiteleaseError):
                self._undo_claim(body, tag)
            raise
        if clock() < first + interval:
            return Acquired(grant)
        # It was waited for, or its answer came late: it is trusted from the start of this renewal
        # on.
        renewed = self._renew(grant, ttl)
        if isinstance(renewed, Rejected):
            raise ExpiredOnArrival(grant)
        return Acquired(renewed.lease)

    def _undo_claim(self, body: dict[str, object], tag: str) -> None:
        """Releases the grant of a claim that was given up before its answer came."""
        with contextlib.suppress(LiteleaseError):
            told = self._http.call("POST", "/v1/claim", tag, body, 1.0)
            if told.kind == "done":
                self._http.call("POST", "/v1/release", new_tag(), {"grant": told.value["grant"]}, 1.0)

    def _renew(self, grant: Grant, ttl: float) -> Renewed | Rejected:
        trusted_for, _ = window(grant.name, ttl)
        end, pauses = clock() + self._retry_for, _pauses()
        while True:
            # Each try is a request of its own: trust begins with the one that was answered.
            start = clock()
            try:
                told = self._renew_once(grant, ttl, _PATIENCE)
            except ServerUnreachable:
                if clock() >= end:
                    raise
                time.sleep(next(pauses))
                continue
            if isinstance(told, Rejected):
                return told
            renewed = _granted(told[0], start + trusted_for, ttl)
            if renewed.trusted_until < grant.trusted_until:
                renewed = _granted(told[0], grant.trusted_until, 0.0)
            return Renewed(replace(renewed, tick=grant.tick))

    def _renew_once(self, grant: Grant, ttl: float, timeout: float) -> tuple[Mapping[str, Any], float] | Rejected:
        """Sends one renewal. Returns its answer, and how many seconds the lease has left."""
        told = self._http.call("POST", "/v1/renew", new_tag(), {"grant": grant.grant, "ttl": ttl}, timeout)
        if told.kind == "no":
            return _rejected(told.value)
        if told.kind == "unknown" or told.value.get("grant") != grant.grant:
            raise self._unreachable(told)
        return told.value, float(told.value["expires_in"])

    def _release(self, grant: Grant, patience: float, timeout: float = _PATIENCE) -> Released | Rejected:
        body, patience = {"grant": grant.grant}, min(patience, self._retry_for)
        told, was_lost = self._repeat("POST", "/v1/release", body, patience=patience, timeout=timeout)
        if told.kind == "done":
            return Released(grant.name, grant.token)
        rejected = _rejected(told.value)
        # If the name has the next token before the lease could end by itself, it was released: a
        # break takes a token, too.
        is_next = rejected.newest == grant.token + 1 and grant.is_trusted
        if was_lost and (rejected.reason is Reason.RELEASED or rejected.reason is Reason.SUPERSEDED and is_next):
            return Released(grant.name, grant.token)
        return rejected

    def _borrow(
        self, pool: str, ttl: float, wait: float, note: str | None, stop: Stop
    ) -> tuple[Mapping[str, Any], float]:
        """Borrows a slot. Returns it, and until when it is trusted."""
        (trusted_for, interval), path, tag = window(pool, ttl), self._pool(pool), new_tag()
        first, body = clock(), {"ttl": ttl} if note is None else {"ttl": ttl, "note": note}
        try:
            told, _ = self._repeat("POST", f"{path}/borrow", body, tag, wait, ttl, stop)
        except Stopped:
            with contextlib.suppress(LiteleaseError):
                told = self._http.call("POST", f"{path}/borrow", tag, body, 1.0)
                if told.kind == "done":
                    self._return_slot(pool, told.value["lease"], 0.0, 1.0)
            raise
        except ServerRefused as error:
            raise NoSuchPool(str(error)) if error.status == 404 else error from None
        if told.kind == "no":
            raise NoFreeSlot(pool)
        start = first
        if clock() >= first + interval:
            start = clock()
            left = self._renew_slot(pool, told.value["lease"], ttl, _PATIENCE)
            if isinstance(left, Rejected):
                raise NoFreeSlot(pool)
        else:
            left = float(told.value["expires_in"])
        return told.value, start + trusted_for + min(left - ttl, 0.0)

    def _renew_slot(self, pool: str, lease: str, ttl: float, timeout: float) -> float | Rejected:
        """Sends one renewal. Returns how many seconds the slot has left."""
        path = f"{self._pool(pool)}/renew"
        told = self._http.call("POST", path, new_tag(), {"lease": lease, "ttl": ttl}, timeout)
        if told.kind == "no":
            return Rejected(Reason.EXPIRED, None, None)
        if told.kind == "unknown" or told.value.get("lease") != lease:
            raise self._unreachable(told)
        left = told.value["expires_in"]
        return ttl if left is None else float(left)  # a slot that was kept has no end

    def _return_slot(self, pool: str, lease: str, patience: float, timeout: float = _PATIENCE) -> None:
        patience = min(patience, self._retry_for)
        self._repeat("POST", f"{self._pool(pool)}/return", {"lease": lease}, patience=patience, timeout=timeout)

    def _store(self, call: str, lease: Lease, **more: object) -> Stored | Rejected:
        told, _ = self._insist(call, {"grant": _grant(lease, call).grant, **more})
        return Stored() if told.kind == "done" else _rejected(told.value)

    def _insist(self, call: str, body: dict[str, object]) -> tuple[Outcome, bool]:
        return self._repeat("POST", f"/v1/{call}", body)

    def _send_once(self, call: str, body: dict[str, object]) -> Outcome:
        """Sends a request that must not be repeated."""
        told = self._http.call("POST", f"/v1/{call}", new_tag(), body, _PATIENCE)
        if told.kind == "unknown":
            raise self._unreachable(told)
        return told

    def _look(self, call: str, **query: str) -> Mapping[str, Any]:
        return self._repeat("GET", f"/v1/{call}?{urllib.parse.urlencode(query)}")[0].value

    def _pages(self, call: str, prefix: str) -> Iterator[Mapping[str, Any]]:
        query = {"prefix": prefix}
        while True:
            page = self._look(call, **query)
            yield from page[call]
            if page["next"] is None:
                return
            query["after"] = page["next"]

    def _repeat(
        self, method: str, path: str, body: dict[str, Any] | None = None, tag: str | None = None, wait: float | None = None,
        ttl: float = _PATIENCE, stop: Stop = never, patience: float | None = None, timeout: float = _PATIENCE,
    ) -> tuple[Outcome, bool]:
        """Sends a request until it is answered, each time under the same key. Returns the answer, and whether the
        answer to an earlier try may have got lost. A call that may ``wait`` is also repeated if the server has let it wait for less."""
        first, pauses, tag = clock(), _pauses(), tag or new_tag()
        end = first + (wait or 0.0) + (self._retry_for if patience is None else patience)
        timeout = min(timeout, max(ttl, 1.0))  # an answer that comes later is worth nothing
        was_lost = False
        while True:
            left = max(first + wait - clock(), 0.0) if wait is not None else 0.0
            sent = body if wait is None or body is None else {**body, "wait": left}
            told = self._http.call(method, path, tag, sent, left + timeout, stop)
            now = clock()
            is_final = now >= first + (wait or 0.0) and _is_answer(path, told) or is_of_tick(told.value)
            if told.kind == "done" or told.kind == "no" and is_final:
                return told, was_lost
            was_lost = was_lost or told.is_lost
            if now >= end:
                raise self._unreachable(told)
            _sleep(next(pauses), stop)

    def _unreachable(self, told: Outcome) -> ServerUnreachable:
        why = told.why or told.value.get("error") or "its answer cannot be understood"
        return ServerUnreachable(f"{self.url} cannot be reached: {why}: does `litelease serve` run there?")

    def _pool(self, pool: str) -> str:
        """Returns the path of a pool, by its id or its URL."""
        id = pool
        if "://" in pool:
            base, _, id = pool.partition("/l/")
            if Place(base).base != self.url:
                raise InvalidUrl(f"the pool is on another server than {self.url}: make a Client for that one")
        try:
            return f"/l/{uuid.UUID(id.rstrip('/'))}"
        except ValueError:
            raise NoSuchPool("the id of a pool on a server is a UUID; its URL is http://HOST/l/UUID") from None


def _is_answer(path: str, told: Outcome) -> bool:
    """Checks whether a refusal is final. A name may just have come free."""
    return path != "/v1/claim" or told.value.get("current") is not None


def new_tag() -> str:
    """Returns the key of a request, which comes back with its answer."""
    return uuid.uuid4().hex


def _pauses() -> Iterator[float]:
    """Returns growing pauses between tries, each different in every process."""
    pause, longest = _PAUSES
    while True:
        yield pause * random.uniform(0.5, 1.5)
        pause = min(pause * 2, longest)


def _sleep(pause: float, stop: Callable[[], bool]) -> None:
    end = clock() + pause
    while (left := end - clock()) > 0:
        if stop():
            raise Stopped
        time.sleep(left if stop is never else min(left, 0.05))


def _grant(lease: Lease, verb: str) -> Grant:
    if not isinstance(lease, Grant):
        raise TypeError(
            f"{verb}() needs the lease that a claim of this client returned: a server does not accept owner and token alone"
        )
    return lease


def _lease(value: Mapping[str, Any]) -> Lease:
    since_ms = now_ms() - int(value["held_for"] * 1000) if "held_for" in value else None
    return Lease(value["name"], value["owner"], value["token"], value["expires_at_unix"] * 1000, since_ms)


def _granted(value: Mapping[str, Any], until: float, ttl: float) -> Grant:
    """Makes the grant of an answer. What the server has cut off the ttl is cut off the trust."""
    lease = _lease(value)
    until += min(value["expires_in"] - ttl, 0.0)
    tick = BegunTick(**value["tick"]) if "tick" in value else None
    return Grant(**vars(lease), grant=value["grant"], trusted_until=until, tick=tick)


def _rejected(value: Mapping[str, Any]) -> Rejected:
    current = _lease(value["current"]) if value.get("current") else None
    reason = Reason.__members__.get(str(value.get("reason")).upper(), Reason.UNKNOWN_TOKEN)
    return Rejected(reason, current, current.token if current else None)
