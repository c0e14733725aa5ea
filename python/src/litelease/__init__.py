"""Leases with expiry and fencing tokens, in the SQLite file an app already has.

>>> import sqlite3
>>> db = Litelease(sqlite3.connect(":memory:"))
>>> db.bootstrap()
>>> db.claim("scheduler", "worker-a", ttl=30).lease.token
1
"""

from typing import TYPE_CHECKING

from ._cached import Cached, ReadersLeft
from ._election import Election, Leader, Observer
from ._fences import Gate, is_stale
from ._held import Held, HeldSlot
from ._leases import Litelease, open
from ._library import loadable_path, version
from ._pools import Pools
from ._queue import Item, ItemInfo, ItemState, Queue, QueueInfo
from ._connection import load
from ._scheduler import JobTick, Scheduler, planned_tick
from ._sessions import Session, SessionName
from ._shards import ShardAssigned, ShardEvent, ShardLost, ShardRequested, Shards
from ._tracker import Tracker
from ._types import (
    Acknowledged, Acquired, Admitted, AlreadyTaken, AutocommitOff, BegunTick, Borrowed, Broken, Busy, Cancelled, CannotGuard, Checkpoint,
    CommitUnknown, ExpiredOnArrival, Finished, First, ForeignLocks, FloorTooLow, GuardInfo, GuardMissing, HistoryRow, HoldTimeout,
    InvalidAttempts,
    InFuture, InvalidCount, InvalidDelay, InvalidLeaseRow, InvalidText, InvalidShards, InvalidTime, InvalidTtl, InvalidUrl,
    LargestTokenNeeded, LeaderInfo, Leased, Lease, LiteleaseError, Loss, Lost, NewerFormat, NoFreeSlot, NoSuchPool,
    NotBootstrapped, NotFound, NotInTransaction, NotRequested, Reader, Reason, Rejected, Released, Renewed, Requested,
    RequestedBy, RequestInfo, SchemaMismatch, ServerRefused, ServerUnreachable, ShardCount, Slot, Stale, StaleReason,
    StaleReceipt, StaleReceiptError, StaleTick, StaleTickError, Stored, TakenOver, TickAcquired, TickAhead, TickChanged,
    TickHeld, TickInfo, TickState, TimeOverflow, TokenExhausted, TrackerIsLockedError, Transferred,
    TtlTooLong, Unchanged, UnexpectedChange, Vacant, WriteLockTimeout,
)
from ._worker import Worker, WorkerCounts, WorkItem
from ._writer import SingleWriter

if TYPE_CHECKING:
    from ._client import Client
    from ._client_hold import Grant, RemoteHeld, RemoteSlot
    from ._client_queue import RemoteItem, RemoteQueue
else:

    def __getattr__(name: str) -> object:
        """Imports the client of the service when it is first used. Programs that use a file need not wait for it."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import _client, _client_hold, _client_queue

        found = {**vars(_client_queue), **vars(_client_hold), **vars(_client)}[name]
        globals()[name] = found
        return found


__version__ = version()

__all__ = [
    "Acknowledged", "Acquired", "Admitted", "AlreadyTaken", "AutocommitOff", "BegunTick", "Borrowed", "Broken", "Busy", "Cached",
    "Cancelled", "CannotGuard", "Checkpoint", "Client", "CommitUnknown", "Election", "ExpiredOnArrival", "Finished", "First",
    "FloorTooLow", "ForeignLocks", "Gate", "Grant", "GuardInfo", "GuardMissing", "Held", "HeldSlot", "HistoryRow", "HoldTimeout",
    "InFuture",
    "InvalidAttempts", "InvalidCount", "InvalidDelay", "InvalidLeaseRow", "InvalidShards", "InvalidText", "InvalidTime",
    "InvalidTtl", "InvalidUrl", "Item", "ItemInfo", "ItemState", "JobTick", "LargestTokenNeeded", "Leader", "LeaderInfo",
    "Lease", "Leased", "Litelease", "LiteleaseError", "Loss", "Lost", "NewerFormat", "NoFreeSlot", "NoSuchPool",
    "NotBootstrapped", "NotFound", "NotInTransaction", "NotRequested", "Observer", "Pools", "Queue", "QueueInfo", "Reader",
    "ReadersLeft", "Reason", "Rejected", "Released", "RemoteHeld", "RemoteItem", "RemoteQueue", "RemoteSlot", "Renewed",
    "RequestInfo", "Requested", "RequestedBy", "Scheduler", "SchemaMismatch", "ServerRefused", "ServerUnreachable", "Session",
    "SessionName", "ShardAssigned", "ShardCount", "ShardEvent", "ShardLost", "ShardRequested", "Shards", "SingleWriter",
    "Slot", "Stale", "StaleReason", "StaleReceipt", "StaleReceiptError", "StaleTick", "StaleTickError", "Stored", "TakenOver",
    "TickAcquired", "TickAhead", "TickChanged", "TickHeld", "TickInfo", "TickState", "TimeOverflow", "TokenExhausted",
    "Tracker", "TrackerIsLockedError", "Transferred", "TtlTooLong", "Unchanged", "UnexpectedChange", "Vacant", "WorkItem",
    "Worker", "WorkerCounts", "WriteLockTimeout", "__version__", "is_stale", "load", "loadable_path", "open", "planned_tick",
    "version",
]
