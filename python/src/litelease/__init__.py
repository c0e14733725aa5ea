"""Leases with expiry and fencing tokens, in the SQLite file an app already has.

>>> import sqlite3
>>> db = Litelease(sqlite3.connect(":memory:"))
>>> db.bootstrap()
>>> db.claim("scheduler", "worker-a", ttl=30).lease.token
1
"""

from ._fences import Gate, is_stale
from ._hold import Held
from ._leases import Litelease
from ._library import load, loadable_path, version
from ._tracker import Tracker
from ._types import (
    Acquired,
    Admitted,
    Broken,
    Busy,
    CannotGuard,
    Checkpoint,
    CommitUnknown,
    ExpiredOnArrival,
    FloorTooLow,
    GuardInfo,
    GuardMissing,
    InvalidLeaseRow,
    InvalidTtl,
    LeaseInfo,
    LiteleaseError,
    Lost,
    NewerFormat,
    NotBootstrapped,
    Reason,
    Rejected,
    Released,
    Renewed,
    SchemaMismatch,
    Stale,
    Stored,
    TimeOverflow,
    TokenExhausted,
    TrackerIsLockedError,
    Transferred,
    UnexpectedChange,
    WriteLockTimeout,
)
from ._writer import SingleWriter

__all__ = [
    "Acquired",
    "Admitted",
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
    "InvalidLeaseRow",
    "InvalidTtl",
    "LeaseInfo",
    "Litelease",
    "LiteleaseError",
    "Lost",
    "NewerFormat",
    "NotBootstrapped",
    "Reason",
    "Rejected",
    "Released",
    "Renewed",
    "SchemaMismatch",
    "SingleWriter",
    "Stale",
    "Stored",
    "TimeOverflow",
    "TokenExhausted",
    "Tracker",
    "TrackerIsLockedError",
    "Transferred",
    "UnexpectedChange",
    "WriteLockTimeout",
    "is_stale",
    "load",
    "loadable_path",
    "version",
]
