"""Delivery: background jobs, each paid once. Run: python3 examples/recipe_delivery.py"""

import litelease

db = litelease.open("app.sqlite3")
db.conn.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")
db.conn.execute("CREATE TABLE IF NOT EXISTS paid (invoice, reference)")
payments = db.queue("payments")

# Send in the transaction of the order: both are stored, or neither is.
with db.conn:
    db.conn.execute("BEGIN IMMEDIATE")
    order = db.conn.execute("INSERT INTO orders DEFAULT VALUES").lastrowid
    payments.joining().send(f"invoice {order}", key=f"order {order}")

# Each item goes to one worker at a time, and is extended while the loop's body runs.
for item in payments.worker(visibility=30, until_empty=True):
    bank_reference = f"ref-{item.id}"  # the slow work, with no transaction open
    with item.finish() as conn:  # effect and acknowledgement: one commit, refused if it is late
        conn.execute("INSERT INTO paid VALUES (?, ?)", (item.body, bank_reference))
    print(item.body, "is paid at attempt", item.attempt)
