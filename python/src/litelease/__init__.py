"""Leases with expiry and fencing tokens, in the SQLite file an app already has.

>>> import sqlite3
>>> db = Litelease(sqlite3.connect(":memory:"))
>>> db.bootstrap()
>>> db.claim("scheduler", "worker-a", ttl=30).lease.token
1
"""

from ._hold import Held
from ._leases import Litelease
from ._library import load, loadable_path, version
from ._tracker import Tracker
from ._types import (
    Acquired,
    Broken,
    Busy,
    CommitUnknown,
    ExpiredOnArrival,
    FloorTooLow,
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
    TimeOverflow,
    TokenExhausted,
    TrackerIsLockedError,
    Transferred,
    UnexpectedChange,
)

__all__ = [
    "Acquired",
    "Broken",
    "Busy",
    "CommitUnknown",
    "ExpiredOnArrival",
    "FloorTooLow",
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
    "TimeOverflow",
    "TokenExhausted",
    "Tracker",
    "TrackerIsLockedError",
    "Transferred",
    "UnexpectedChange",
    "load",
    "loadable_path",
    "version",
]
