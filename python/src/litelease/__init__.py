"""Leases with expiry and fencing tokens, in the SQLite file an app already has.

>>> import sqlite3
>>> db = Litelease(sqlite3.connect(":memory:"))
>>> db.bootstrap()
>>> db.claim("scheduler", "worker-a", ttl=30).lease.token
1
"""

from ._fences import Gate, is_stale
from ._hold import Held, HeldSlot
from ._leases import Litelease, open
from ._library import loadable_path, version
from ._pools import Pools
from ._session import load
from ._tracker import Tracker
from ._types import (
    Acquired,
    Admitted,
    AutocommitOff,
    Borrowed,
    Broken,
    Busy,
    CannotGuard,
    Checkpoint,
    CommitUnknown,
    ExpiredOnArrival,
    FloorTooLow,
    GuardInfo,
    GuardMissing,
    HoldTimeout,
    InvalidCount,
    InvalidLeaseRow,
    InvalidText,
    InvalidTtl,
    LargestTokenNeeded,
    LeaseInfo,
    LiteleaseError,
    Lost,
    NewerFormat,
    NoFreeSlot,
    NoSuchPool,
    NotBootstrapped,
    NotInTransaction,
    Reader,
    Reason,
    Rejected,
    Released,
    Renewed,
    SchemaMismatch,
    Slot,
    Stale,
    Stored,
    TimeOverflow,
    TokenExhausted,
    TrackerIsLockedError,
    Transferred,
    TtlTooLong,
    UnexpectedChange,
    WriteLockTimeout,
)
from ._writer import SingleWriter

__version__ = version()

__all__ = [
    "Acquired",
    "Admitted",
    "AutocommitOff",
    "Borrowed",
    "Broken",
    "Busy",
    "CannotGuard",
    "Checkpoint",
    "CommitUnknown",
    "ExpiredOnArrival",
    "FloorTooLow",
    "Gate",
    "GuardInfo",
    "GuardMissing",
    "Held",
    "HeldSlot",
    "HoldTimeout",
    "InvalidCount",
    "InvalidLeaseRow",
    "InvalidText",
    "InvalidTtl",
    "LargestTokenNeeded",
    "LeaseInfo",
    "Litelease",
    "LiteleaseError",
    "Lost",
    "NewerFormat",
    "NoFreeSlot",
    "NoSuchPool",
    "NotBootstrapped",
    "NotInTransaction",
    "Pools",
    "Reader",
    "Reason",
    "Rejected",
    "Released",
    "Renewed",
    "SchemaMismatch",
    "SingleWriter",
    "Slot",
    "Stale",
    "Stored",
    "TimeOverflow",
    "TokenExhausted",
    "Tracker",
    "TrackerIsLockedError",
    "Transferred",
    "TtlTooLong",
    "UnexpectedChange",
    "WriteLockTimeout",
    "__version__",
    "is_stale",
    "load",
    "loadable_path",
    "open",
    "version",
]
