"""What a lease verb costs from Python through the extension, next to a plain UPDATE from Python.

Prints the ratios of CPU times, one for each of the interleaved rounds, as JSON.

    python3 bench/python_cost.py target/release/liblitelease_ext
"""

import json
import sqlite3
import sys
import time

ROUNDS, CALLS = 15, 2000

db = sqlite3.connect(":memory:", isolation_level=None)
db.enable_load_extension(True)
db.load_extension(sys.argv[1])
db.execute("SELECT litelease_bootstrap()")
db.execute("SELECT litelease_claim('raw', 'a', 3600000)")


def raw() -> None:
    update = "UPDATE litelease_resources SET owner = ?, lease_expires_at_ms = ?, updated_at_ms = ? WHERE name = ?"
    for number in range(3 * CALLS):
        db.execute(update, ("a", 1_900_000_000_000 + number, number, "raw"))


def ours() -> None:
    for _ in range(CALLS):
        (token,) = db.execute("SELECT litelease_claim('x', 'a', ?)", (3_600_000,)).fetchone()
        db.execute("SELECT litelease_renew('x', 'a', ?, NULL, ?)", (7_200_000, token)).fetchone()
        db.execute("SELECT litelease_release('x', 'a', NULL, ?)", (token,)).fetchone()


def cost(work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


print(json.dumps([cost(ours) / cost(raw) for _ in range(ROUNDS)]))
