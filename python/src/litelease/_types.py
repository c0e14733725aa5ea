"""What the verbs answer, and what can go wrong. "No" is an answer; an error is a surprise."""

from __future__ import annotations

import datetime
import enum
import re
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Lease:
    """One grant of a name: who has it, under which token, until when."""

    name: str
    owner: str
    token: int
    expires_at_ms: int
    since_ms: int | None = field(default=None, compare=False)
    """When the grant began, where it was looked up: renewals do not change it."""


class Reason(enum.Enum):
    """Why a verb was rejected: the first of these that fits."""

    NEVER_CLAIMED = "never claimed"
    HELD_BY = "held by another owner"
    SUPERSEDED = "superseded by a newer token"
    UNKNOWN_TOKEN = "unknown token"
    RELEASED = "released"
    EXPIRED = "expired"
    NO_PROGRESS = "no progress"
    TIME_IS_UP = "time is up"
    REQUESTED = "requested"
    NOT_REQUESTED = "not requested"


class _Yes:
    """An answer that is true. Type checkers know it."""

    def __bool__(self) -> Literal[True]:
        return True


class _No:
    """An answer that is falsy."""

    def __bool__(self) -> Literal[False]:
        return False


@dataclass(frozen=True)
class Acquired(_Yes):
    """The name is the caller's until the lease expires."""

    lease: Lease


@dataclass(frozen=True)
class Busy(_No):
    """The name has a live owner. It may even be the same owner text. It is falsy. ``tick_ms`` is the tick that it runs, where a
    tick was claimed and it runs one."""

    current: Lease
    tick_ms: int | None = field(default=None, repr=False)


class TickState(enum.Enum):
    """The state of a tick. Every state but the first is final."""

    OPEN = "open"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class TickAcquired(Acquired):
    """The tick is the caller's, under this grant: the number of it among those of the tick, the newest tick before that was
    done, and an older one that was open and is not run any more."""

    attempt: int
    previous_ms: int | None
    passed_ms: int | None


@dataclass(frozen=True)
class First(_Yes):
    """The tick is the caller's, and done."""


@dataclass(frozen=True)
class AlreadyTaken(_No):
    """The tick is taken: this is the newest one of the name. It is falsy."""

    tick_ms: int
    state: TickState


@dataclass(frozen=True)
class InFuture(_No):
    """The tick is more than a minute ahead of the clock, which says this. It is falsy."""

    now_ms: int


@dataclass(frozen=True)
class Finished(_Yes):
    """The tick is final, and its grant has ended. ``is_repeated``: it was before, so no effect may be repeated."""

    is_repeated: bool = False


@dataclass(frozen=True)
class StaleTick(_No):
    """The grant does not have its tick any more. This is the newest one of the name. It is falsy."""

    tick_ms: int | None
    state: TickState | None


@dataclass(frozen=True)
class TickChanged(_Yes):
    """An operator has changed the ticks of a name: this is the newest one now, or was."""

    tick_ms: int
    state: TickState


@dataclass(frozen=True)
class TickInfo:
    """The newest tick of a name: its state, the newest one that was done, how often it was granted and may be, by whom, and the
    expiry of the live lease of a holder that is at work on it."""

    name: str
    tick_ms: int
    state: TickState
    done_ms: int | None
    attempt: int
    attempts: int
    owner: str | None
    token: int | None
    began_ms: int
    ended_ms: int | None
    expires_at_ms: int | None
    schedule: str | None


@dataclass(frozen=True)
class BegunTick:
    """The tick of a grant: which attempt this is, the newest one before that was done, and an older one that is not run any
    more."""

    tick_ms: int
    attempt: int
    previous_ms: int | None = None
    passed_ms: int | None = None


@dataclass(frozen=True)
class Renewed(_Yes):
    """The same grant, with its new expiry."""

    lease: Lease


@dataclass(frozen=True)
class Released(_Yes):
    """The name is free; the next grant gets a larger token."""

    name: str
    token: int


@dataclass(frozen=True)
class Transferred(_Yes):
    """The new owner's grant; the old owner's token is superseded."""

    lease: Lease


@dataclass(frozen=True)
class Broken(_Yes):
    """The name is free, and the broken holder's token is superseded."""

    owner: str
    token: int


@dataclass(frozen=True)
class Rejected(_No):
    """Nothing was changed; it is falsy. ``newest`` is the newest token of the name, if it was ever claimed."""

    reason: Reason
    current: Lease | None
    newest: int | None


@dataclass(frozen=True)
class GuardInfo:
    """A guard as it is right now. If it is not intact, the table stands open: guard it again."""

    table: str
    name: str
    column: str | None
    strict: bool
    is_intact: bool
    refusals: int


@dataclass(frozen=True)
class Reader:
    """A live reader of a name, and when a writer no longer waits for it."""

    reader: str
    expires_at_ms: int


@dataclass(frozen=True)
class Slot:
    """A slot of a pool that is lent out: its position, the fencing token, when it is free again, and a note."""

    position: int
    token: int
    expires_at_ms: int
    note: str | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it never expires, because the borrower keeps it."""
        return self.expires_at_ms == 2**63 - 1

    @staticmethod
    def listed(position: int, token: int, expires_at_ms: int | None, note: str | None = None) -> Slot:
        return Slot(position, token, 2**63 - 1 if expires_at_ms is None else expires_at_ms, note)


@dataclass(frozen=True)
class Borrowed:
    """A slot that was borrowed, and the UUID by which it is returned and renewed."""

    lease_id: str
    slot: Slot


@dataclass(frozen=True)
class Checkpoint:
    """The latest checkpoint of a name: the grant it was stored under, its value and when."""

    token: int
    value: None | int | float | str | bytes
    updated_at_ms: int

    def is_from_predecessor(self, own_token: int) -> bool:
        """Checks whether the grant right before yours stored it. If not, it is not known what was done since: a grant in
        between may have stored none.

        >>> Checkpoint(7, "row 17", 0).is_from_predecessor(8)
        True
        """
        return self.token + 1 == own_token


@dataclass(frozen=True)
class Stored(_Yes):
    """The checkpoint, the value, the limits or the progress is stored."""


@dataclass(frozen=True)
class Admitted(_Yes):
    """No larger token was admitted before."""


@dataclass(frozen=True)
class Stale(_No):
    """Nothing was changed: a newer token exists. It is falsy. ``newest`` is that one, or None or 0 if there is none."""

    newest: int | None


class StaleReason(enum.Enum):
    """Why a receipt does not pass."""

    DELIVERED_AGAIN = "delivered again"
    GIVEN_BACK = "given back"
    BURIED = "buried"
    REDRIVEN = "redriven"
    RESTORED = "restored"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Acknowledged(_Yes):
    """The item is done, and gone."""


@dataclass(frozen=True)
class StaleReceipt(_No):
    """Nothing was changed: the item is no longer this worker's. It is falsy."""

    reason: StaleReason


@dataclass(frozen=True)
class Cancelled(_Yes):
    """The item is gone."""


@dataclass(frozen=True)
class Leased(_No):
    """Nothing was changed: a worker has the item until this deadline. It is falsy."""

    deadline_ms: int


@dataclass(frozen=True)
class NotFound(_No):
    """The queue has no such item. It is falsy."""


@dataclass(frozen=True)
class Requested(_Yes):
    """The holder of the grant under this token is asked to give it up. Its renewals are refused from ``until_ms`` on."""

    token: int
    until_ms: int


@dataclass(frozen=True)
class RequestedBy(_No):
    """Nothing was changed: another requester was first. It is falsy."""

    requester: str
    until_ms: int


@dataclass(frozen=True)
class RequestInfo:
    """An open request for a live grant: who asks, from when on renewals are refused, and the token of that grant."""

    requester: str
    until_ms: int
    token: int


@dataclass(frozen=True)
class TakenOver(_Yes):
    """The new grant, and the live one that it has ended, if there was one."""

    lease: Lease
    previous: Lease | None


@dataclass(frozen=True)
class HistoryRow:
    """What happened to a name, a queue or a pool, in the word ``kind``. The row of a grant that ended has ``since_ms``,
    when it had begun; a row by an operator has the name of the access key as ``actor``."""

    id: int
    at_ms: int
    kind: str
    object: str
    name: str
    owner: str | None
    token: int | None
    since_ms: int | None
    number: int | None
    result: int | None
    actor: str | None
    note: str | None


@dataclass(frozen=True)
class LeaderInfo:
    """The leader of an election as others see it. ``value`` is what it has proclaimed last."""

    term: int
    owner: str
    value: None | int | float | str | bytes
    expires_at_ms: int


@dataclass(frozen=True)
class Vacant(_No):
    """Nobody leads. It is falsy."""


@dataclass(frozen=True)
class Unchanged(_No):
    """Nothing has changed in that time. It is falsy."""


class Loss(str):
    """Why a hold is lost: a text, whose ``kind`` is the name of the case, such as ``NoProgress``.

    >>> Loss("NoProgress", "no progress was made").kind
    'NoProgress'
    """

    kind: str

    def __new__(cls, kind: str, text: str) -> Loss:
        loss = super().__new__(cls, text)
        loss.kind = kind
        return loss

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return self.kind, str(self)


class LiteleaseError(Exception):
    """The base of all errors of this package. SQLite's own come as themselves."""


class InvalidTtl(LiteleaseError):
    """The ttl is zero or negative. Nothing was written."""


class TtlTooLong(LiteleaseError):
    """A read would be granted for more than an hour, for which a writer would have to wait. Nothing was written."""


class InvalidTime(LiteleaseError):
    """A time other than a ttl is zero or negative; the text names it. Nothing was written."""


class NotRequested(LiteleaseError):
    """Nobody has asked for the lease that was to be handed over. It goes on."""


class TimeOverflow(LiteleaseError):
    """The lease would end beyond 64 bits of milliseconds. Nothing was written."""


class TokenExhausted(LiteleaseError):
    """No larger token exists. Nothing was written."""


class LargestTokenNeeded(LiteleaseError):
    """A restored file is to be fenced where the system has no boot id: pass the largest token that was seen."""


class FloorTooLow(LiteleaseError):
    """A floor was to be raised to less than it is. Nothing was written."""


class NoSuchPool(LiteleaseError):
    """There is no pool of this id: it was never registered, or it was deleted."""


class InvalidCount(LiteleaseError):
    """A pool has 0 to 1,000,000 slots."""


class InvalidShards(LiteleaseError):
    """A group of shards, or a member, that cannot be. Nothing was written."""


class ShardCount(LiteleaseError):
    """Live members of the group share another number of shards, which is ``count``. Nothing was written."""

    def __init__(self, group: str, count: int) -> None:
        super().__init__(f"the members of {group!r} share {count} shards: join with that count, or let all of them leave")
        self.group, self.count = group, count


class InvalidText(LiteleaseError):
    """The note or the key of a borrow is too short or too long."""


class InvalidDelay(LiteleaseError):
    """The delay of an item is negative. Nothing was written."""


class InvalidAttempts(LiteleaseError):
    """A queue allows 0 (any number) to 1,000,000,000 attempts."""


class StaleReceiptError(LiteleaseError):
    """An item was to be finished by a worker that no longer has it. Everything was rolled back."""

    def __init__(self, reason: StaleReason) -> None:
        super().__init__(f"stale receipt: {reason.value}; everything was rolled back")
        self.reason = reason


class TickAhead(LiteleaseError):
    """The newest tick of a name is more than a minute ahead of the clock, which was set back: correct it, or skip."""


class TickHeld(LiteleaseError):
    """A tick was to be begun and finished at once while a holder is at work on one."""


class StaleTickError(LiteleaseError):
    """The grant does not have its tick any more. What was written in the block was rolled back."""


class NotBootstrapped(LiteleaseError):
    """The database has no lease table yet: call ``bootstrap()``."""


class NotInTransaction(LiteleaseError):
    """A verb that must be part of a transaction of the caller's was called while none was open. Nothing was written."""


class AutocommitOff(LiteleaseError):
    """The connection was opened with ``autocommit=False``, so it is always inside a transaction. Nothing was written."""


class SchemaMismatch(LiteleaseError):
    """A table of ours is not as it should be; the text names the first difference."""


class NewerFormat(LiteleaseError):
    """A newer version of Litelease wrote this file."""


class CannotGuard(LiteleaseError):
    """The table cannot be guarded as was asked; the text says why and what to do. Nothing was changed."""


class GuardMissing(LiteleaseError):
    """The table was guarded, and its triggers are gone or changed: guard it again, or unguard it."""


class InvalidLeaseRow(LiteleaseError):
    """The stored row of this name is not valid. It is never repaired or used."""


class UnexpectedChange(LiteleaseError):
    """A write changed another number of rows than it must: something interferes."""


class CommitUnknown(LiteleaseError):
    """COMMIT failed, so it is unknown whether the change was stored. It is not a grant."""


class InvalidUrl(LiteleaseError):
    """The text is no URL of a server. Nothing was sent."""


class ServerUnreachable(LiteleaseError, ConnectionError):
    """The server could not be asked, or its answer is not known; the text says why. What was asked for may have happened."""


class ServerRefused(LiteleaseError):
    """The server refuses the request, and trying again does not help. ``status`` is its HTTP status: 401 for a missing or
    wrong access key, 403 for one that does not allow it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class ExpiredOnArrival(LiteleaseError):
    """The lease was stored, and over before it could be returned."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(
            f"the lease on {lease.name!r} (token {lease.token}) was over before it could be returned: claim again with a longer ttl"
        )
        self.lease = lease


class Lost(LiteleaseError):
    """A held lease can no longer be trusted. ``reason.kind`` is the name of the case."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the lease on {name!r} is lost: {reason}")
        self.name = name
        self.reason = reason if isinstance(reason, Loss) else Loss("Expired", reason)


class HoldTimeout(LiteleaseError, TimeoutError):
    """Another owner had the name all the time. ``current`` is its lease."""

    def __init__(self, current: Lease) -> None:
        # Host and process, without the parts that only programs compare.
        process = re.match(r"\S+ pid \d+(?= )", current.owner)
        super().__init__(f"{current.name!r} is held by {process.group() if process else current.owner} (token {current.token})")
        self.current = current


class NoFreeSlot(LiteleaseError, TimeoutError):
    """All slots of the pool were lent out all the time."""

    def __init__(self, id: str) -> None:
        super().__init__(f"all slots of {id!r} are taken: wait longer, or register more of them")
        self.id = id


class WriteLockTimeout(LiteleaseError, TimeoutError):
    """Another process held the write lock all the time. ``holder`` is its process and since when, as far as that is known: a
    process that has not signed the lock file, such as flock(1), has no time. ``is_gone`` says that the process has ended, and
    that one which it forked holds the lock."""

    def __init__(self, timeout: float, holder: tuple[int, str | None] | None, is_gone: bool = False) -> None:
        after = f"write lock timeout after {round(timeout * 1000)}ms"
        if holder is None:
            text = "holder: unknown; try again or check which process has the lock file open"
        elif holder[1] is None:
            text = (
                f"holder: unknown, for it has not signed the lock file; the system names pid {holder[0]}; try again or check "
                "what that process does"
            )
        elif is_gone:
            text = f"holder pid {holder[0]} is gone, a process it forked still holds the lock; end that one"
        else:
            text = (
                f"holder: pid:{holder[0]} since {holder[1]}; try again or check if holder process is stuck"
            )
        super().__init__(f"{after}; {text}")
        self.holder = holder
        self.is_gone = is_gone


class TrackerIsLockedError(LiteleaseError):
    """Another owner has the lock. ``owner`` tells who, without the token that unlocks it."""

    def __init__(self, name: str, owner: str, until_ms: int) -> None:
        until = datetime.datetime.fromtimestamp(until_ms / 1000, datetime.timezone.utc)
        super().__init__(f"{name!r} is locked by {owner} until {until:%Y-%m-%d %H:%M:%S} UTC")
        self.name = name
        self.owner = owner
        self.until = until


class ForeignLocks(LiteleaseError):
    """The file of a ``Tracker`` has live locks of sayt2's tracker."""


def answer(row: tuple[Any, ...]) -> Any:
    """Gives the answer of a verb its class: the row begins with the case."""
    case, values = row[0], row[1:]
    if case in _WITH_LEASE:
        return _WITH_LEASE[case](Lease(*values))
    if case == "Rejected":
        reason, newest, *current = values
        return Rejected(Reason[reason], Lease(*current) if current else None, newest)
    if case in _OF_TICKS:
        return _OF_TICKS[case](*values)
    if case == "Busy":
        return Busy(Lease(*values[:4]), *values[4:])
    if case == "StaleReceipt":
        return StaleReceipt(StaleReason(values[0]))
    if case == "Error":
        kind, text = values
        error: type[LiteleaseError] = globals().get(kind, LiteleaseError)
        return LiteleaseError(text) if error is ExpiredOnArrival else error(text)
    return _OTHERS[case](*values)


def _acquired(*values: Any) -> Acquired:
    lease = Lease(*values[:4])
    return TickAcquired(lease, *values[4:]) if values[4:] else Acquired(lease)


def _stale(*newest: Any) -> Stale | StaleTick:
    return Stale(*newest) if len(newest) == 1 else _newest(StaleTick)(*newest)


def _newest(kind: Any) -> Any:
    def made(tick_ms: int | None, state: str | None) -> Any:
        return kind(tick_ms, None if state is None else TickState(state))

    return made


def _nothing() -> None:
    return None


def _repeated() -> Finished:
    return Finished(True)


_WITH_LEASE: dict[str, Any] = {kind.__name__: kind for kind in (Renewed, Transferred)}
_OF_TICKS: dict[str, Any] = {
    "Acquired": _acquired,
    "First": First,
    "InFuture": InFuture,
    "AlreadyTaken": _newest(AlreadyTaken),
    "Finished": Finished,
    "Repeated": _repeated,
    "Stale": _stale,
    "Changed": _newest(TickChanged),
    "Unknown": _nothing,
}
_OTHERS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (Released, Broken, Stored, Admitted, Stale, Acknowledged, Cancelled, Leased, NotFound, Requested, RequestedBy)
}
_OTHERS["Done"] = Stored
