"""What a method of the Python package costs on an opened file, next to a plain UPDATE on the same connection.

Prints the ratios of CPU times, one for each of the interleaved rounds, as JSON: of a file that `litelease.open` has opened, and
of a connection of the caller's, whose statements go through Python's sqlite3 one by one.

    python bench/python_methods.py FOLDER
"""

import json
import sqlite3
import sys
import time
from pathlib import Path

import litelease

ROUNDS, CALLS = 15, 1000

path = Path(sys.argv[1]) / "methods.sqlite3"
own = litelease.open(path)
hosted = litelease.Litelease(sqlite3.connect(path, isolation_level=None))
for db in (own, hosted):
    db.conn.execute("PRAGMA synchronous = NORMAL")
own.claim("raw", "a", ttl=3600)


def raw() -> None:
    update = "UPDATE litelease_resources SET owner = ?, lease_expires_at_ms = ?, updated_at_ms = ? WHERE name = ?"
    for number in range(3 * CALLS):
        own.conn.execute(update, ("a", 1_900_000_000_000 + number, number, "raw"))


def methods(db: litelease.Litelease) -> None:
    for _ in range(CALLS):
        lease = db.claim("x", "a", ttl=3600).lease
        lease = db.renew(lease, ttl=7200).lease
        db.release(lease)


def cost(work, *values: object) -> float:
    start = time.process_time()
    work(*values)
    return time.process_time() - start


for db in (own, hosted):
    cost(methods, db)
rounds = [(cost(raw), cost(methods, own), cost(methods, hosted)) for _ in range(ROUNDS)]
print(json.dumps([[ours / plain for plain, ours, _ in rounds], [ours / plain for plain, _, ours in rounds]]))
