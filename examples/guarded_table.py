"""A guarded table that refuses a stale writer: python3 examples/guarded_table.py app.sqlite3

It is guarded by connection, so it needs a Python whose sqlite3 can load extensions.
Run `pip install ./python` first.
"""

import sqlite3
import sys

import litelease


def main(path: str) -> None:
    db = litelease.Litelease(sqlite3.connect(path, isolation_level=None))
    db.bootstrap()
    db.conn.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, text)")
    db.guard("orders", "order-writer")

    lease = db.claim("order-writer", "a", ttl=30).lease
    db.present("order-writer", lease.token)
    db.conn.execute("INSERT INTO orders (text) VALUES ('by a')")

    # a is paused, and its lease is handed to b. Then a wakes up.
    successor = db.transfer(lease, "b", ttl=30).lease
    try:
        db.conn.execute("INSERT INTO orders (text) VALUES ('late, by a')")
    except sqlite3.IntegrityError as error:
        assert litelease.is_stale(error)
        print(f"refused: {error}")

    print(db.conn.execute("SELECT count(*) FROM orders").fetchone()[0], "order stored")
    db.release(successor)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "app.sqlite3")
