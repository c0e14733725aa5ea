"""Queues on a server: items that are leased to one worker at a time, on any machine."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Iterator, Mapping

from ._client_hold import window
from ._client_http import Outcome, Stop
from ._client_value import from_json, to_json
from ._fences import Value
from ._queue import Delivered, ItemInfo, ItemState, QueueInfo
from ._time import Seconds, in_ms, in_seconds, now_ms
from ._types import Acknowledged, Cancelled, Leased, NotFound, StaleReceipt, StaleReason
from ._wait import clock, never

if TYPE_CHECKING:
    from ._client import Client


@dataclass
class RemoteItem(Delivered):
    """An item that was delivered to this worker. Dropping it does nothing: it is delivered again after its time. A client with its
    ``receipt`` can acknowledge it. ``token`` is larger than that of every earlier delivery."""

    id: int
    receipt: str = field(repr=False)
    attempt: int
    token: int
    deadline_ms: int
    body: Value = field(repr=False)
    queue: RemoteQueue = field(repr=False, compare=False)
    trusted_until: float = field(repr=False, compare=False)

    @property
    def is_trusted(self) -> bool:
        """Whether no other worker can have received it. False after a long wait, until it is extended."""
        return clock() < self.trusted_until


class RemoteQueue:
    """A queue on a server. Made by ``Client.queue``."""

    def __init__(self, client: Client, name: str) -> None:
        self.name, self._client = name, client

    def __repr__(self) -> str:
        return f"RemoteQueue({self.name!r})"

    def send(self, body: Value, *, delay: Seconds = 0, key: str | None = None) -> int:
        """Sends an item, and returns its id. A lost answer is asked for again, and nothing is sent twice. While an item with
        the same ``key`` is neither acknowledged nor dead, its id is the answer, and nothing is sent."""
        more = {} if key is None else {"key": key}
        told, _ = self._ask("send", body=to_json(body), delay=in_seconds(delay), **more)
        return int(told.value["id"])

    def receive(
        self, visibility: Seconds | None = None, wait: Seconds = 0.0, *, visibility_ms: int | None = None
    ) -> RemoteItem | None:
        """Receives the item that was visible longest, and waits for one for up to ``wait`` seconds: first come, first served. No
        other worker gets it within ``visibility``."""
        return self._receive(in_ms(self.name, visibility, visibility_ms, "visibility") / 1000, in_seconds(wait))

    def ack(self, receipt: str | RemoteItem) -> Acknowledged | StaleReceipt:
        """Acknowledges an item: it is done, and gone. ``StaleReceipt`` is falsy, and says why not."""
        told, _ = self._ask("ack", receipt=_receipt(receipt))
        if told.kind == "done":
            return Acknowledged()
        return StaleReceipt(StaleReason.__members__.get(str(told.value.get("reason")).upper(), StaleReason.UNKNOWN))

    def extend(
        self, receipt: str | RemoteItem, visibility: Seconds | None = None, *, visibility_ms: int | None = None
    ) -> int | None:
        """Prolongs a live delivery to at least ``visibility`` from now. Returns its deadline by the clock of the server, or None
        if it is over: it is never revived."""
        seconds, start = in_ms(self.name, visibility, visibility_ms, "visibility") / 1000, clock()
        trusted_for, _ = window(self.name, seconds)
        told, _ = self._ask("extend", receipt=_receipt(receipt), visibility=seconds)
        if told.kind == "no":
            return None
        if isinstance(receipt, RemoteItem):
            end = start + trusted_for + min(told.value["expires_in"] - seconds, 0.0)
            receipt.trusted_until = max(receipt.trusted_until, end)
        return int(told.value["expires_at_unix"]) * 1000

    def give_back(self, receipt: str | RemoteItem, *, delay: Seconds = 0, note: str | None = None) -> bool:
        """Makes an item visible again, now or after a delay; at its last allowed attempt it is dead instead. ``note`` is a text
        for operators of at most 1,000 bytes. Returns whether the receipt passed and the item was not dead already."""
        return self._end("give-back", "given_back", receipt, note, delay=in_seconds(delay))

    def bury(self, receipt: str | RemoteItem, *, note: str | None = None) -> bool:
        """Makes an item dead at once. Returns whether the receipt passed."""
        return self._end("bury", "buried", receipt, note)

    def redrive(self, id: int | None = None, *, reason: str | None = None) -> int:
        """Revives the dead items, or one of them, and returns how many. One whose key another item uses by now stays dead.
        This, ``discard``, ``cancel`` and ``delete`` need the scope ``operate``. The server logs the reason."""
        return self._count("redrive", "redriven", id, reason)

    def discard(self, id: int | None = None, *, reason: str | None = None) -> int:
        """Deletes the dead items, or one of them, and returns how many. The server logs the reason."""
        return self._count("discard", "discarded", id, reason)

    def cancel(self, id_or_key: int | str) -> Cancelled | Leased | NotFound:
        """Removes an item that nobody is working on. ``Leased`` and ``NotFound`` are falsy."""
        told, _ = self._ask("cancel", **{"key" if isinstance(id_or_key, str) else "id": id_or_key})
        if told.kind == "done":
            return Cancelled()
        if told.value.get("reason") == "leased":
            return Leased(now_ms() + int(told.value["expires_in"] * 1000))
        return NotFound()

    def delete(self) -> bool:
        """Deletes the queue with everything in it. Returns whether there was one."""
        told, _ = self._ask("delete")
        return bool(told.value["deleted"])

    def items(self) -> list[ItemInfo]:
        """Lists the items without their bodies, the dead ones first and then in the order of their delivery. Their times are
        by the clock of this machine. They are read in pages: an item that moves meanwhile may be in it twice, or not at all."""
        return list(self._items())

    def dead(self) -> list[ItemInfo]:
        """Lists the dead items, without their bodies."""
        # Behind the dead ones, and those at their last delivery, come the others.
        last = itertools.takewhile(lambda item: item.visible_at_ms is None, self._items())
        return [item for item in last if item.state is ItemState.DEAD]

    def info(self) -> QueueInfo | None:
        """Returns how the queue stands, if there is one."""
        found = self._client._look("queues", queue=self.name)["queues"]
        return self._info(found[0]) if found else None

    def _count(self, call: str, word: str, id: int | None, reason: str | None) -> int:
        body = {"id": id, "reason": reason}
        told, _ = self._ask(call, **{name: value for name, value in body.items() if value is not None})
        return int(told.value[word])

    def _items(self) -> Iterator[ItemInfo]:
        query = {"queue": self.name, "limit": "500"}
        while True:
            page, at_ms = self._client._look("queue/items", **query), now_ms()
            for found in page["items"]:
                left, state = found["visible_in"], ItemState(found["state"])
                visible_at_ms = None if left is None else at_ms + int(left * 1000)
                sent_at_ms, texts = at_ms - int(found["age"] * 1000), (found["key"], found["note"])
                yield ItemInfo(found["id"], state, found["attempt"], visible_at_ms, sent_at_ms, *texts)
            if page["next"] is None:
                return
            query["after"] = page["next"]

    def _receive(self, visibility: float, wait: float, stop: Stop = never) -> RemoteItem | None:
        trusted_for, _ = window(self.name, visibility)
        first, body = clock(), {"queue": self.name, "visibility": visibility}
        told, _ = self._client._repeat("POST", "/v1/queue/receive", body, wait=wait, ttl=visibility, stop=stop)
        found = told.value.get("item")
        if found is None:
            return None
        # It was delivered after the first request was sent, so this is safe.
        end = first + trusted_for + min(found["expires_in"] - visibility, 0.0)
        numbers = found["attempt"], found["token"], found["expires_at_unix"] * 1000
        return RemoteItem(found["id"], found["receipt"], *numbers, from_json(found["body"]), self, end)

    def _end(self, call: str, word: str, receipt: str | RemoteItem, note: str | None, **more: object) -> bool:
        if note is not None:
            more["note"] = note
        told, was_lost = self._ask(call, receipt=_receipt(receipt), **more)
        # The answer to the first request may have been lost.
        return told.kind == "done" or was_lost and told.value.get("reason") == word

    def _ask(self, call: str, **body: object) -> tuple[Outcome, bool]:
        # The server knows the queue of a receipt, where the client does not.
        named = {} if not self.name and "receipt" in body else {"queue": self.name}
        return self._client._insist(f"queue/{call}", {**named, **body})

    @staticmethod
    def _info(found: Mapping[str, Any]) -> QueueInfo:
        oldest_ms = None if found["oldest"] is None else int(found["oldest"] * 1000)
        states = {state: found[state] for state in ("visible", "delayed", "leased", "dead")}
        return QueueInfo(queue=found["queue"], oldest_ms=oldest_ms, max_attempts=found["max_attempts"], **states)


def _receipt(receipt: str | RemoteItem) -> str:
    return receipt.receipt if isinstance(receipt, RemoteItem) else receipt
