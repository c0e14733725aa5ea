"""Fencing token: every target of the work refuses an old owner.

Run: python3 examples/recipe_fencing_token.py
"""

import sqlite3
from pathlib import Path

import litelease

db = litelease.open("app.sqlite3")
db.conn.execute("CREATE TABLE IF NOT EXISTS results (text, token INTEGER)")
# Target 1, a table in the same file: the database compares, in the transaction of the write.
db.guard("results", "import", column="token")
# Target 2, a folder: a gate beside it remembers the newest token that came by.
gate = litelease.Gate("gate.sqlite3")


def publish(text: str, token: int) -> None:
    try:
        with db.conn:
            db.conn.execute("INSERT INTO results VALUES (?, ?)", (text, token))
    except sqlite3.IntegrityError as error:
        if not litelease.is_stale(error):
            raise
        print("the table refuses token", token)
    if gate.admit("import", token):
        Path("results.txt").write_text(text)
    else:
        print("the gate refuses token", token)


old = db.claim("import", "worker-a", ttl=30)
if not old:
    raise SystemExit(f"{old.current.owner} imports")
publish("first", old.lease.token)
# worker-a is paused, the name is given to worker-b, and worker-a wakes up.
new = db.transfer(old.lease, "worker-b", ttl=30)
if new:
    publish("second", new.lease.token)
    publish("late", old.lease.token)
    print(Path("results.txt").read_text())
    db.release(new.lease)
