"""Puts, pops and finishes messages of litequeue for some seconds, and prints how many.

    python bench/litequeue_rate.py FILE SECONDS [make]
"""

import sqlite3
import sys
import time

from litequeue import LiteQueue

BODY = '{"to": "alice@example.org", "template": "welcome"}'

conn = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=20)
conn.execute("PRAGMA journal_mode = WAL")
queue = LiteQueue(conn)
# As durable as the others. It must come after the queue, which may choose for itself.
conn.execute("PRAGMA synchronous = FULL")


def cycle() -> None:
    queue.put(BODY)
    queue.done(queue.pop().message_id)


if "make" in sys.argv:
    cycle()
else:
    items, end = 0, time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        cycle()
        items += 1
    print(items)
