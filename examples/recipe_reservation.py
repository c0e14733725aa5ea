"""Reservation: a seat is held for ten minutes, and then sold or free again.

Run: python3 examples/recipe_reservation.py
"""

import litelease

TEN_MINUTES = 600

db = litelease.open("app.sqlite3")
db.conn.execute("CREATE TABLE IF NOT EXISTS orders (seat INTEGER, buyer TEXT)")
seats = litelease.Pools(db.conn)
seats.register("hall 1", 2)

# In the basket. The key makes a repeated click return the same seat.
held = seats.borrow("hall 1", ttl=TEN_MINUTES, key="basket 4711", note="Ada")
if held is None:
    raise SystemExit("sold out")
seat = held.slot.position
print("seat", seat, "is in the basket")

# Paid: the order and the seat are stored together. An expired hold is refused.
with db.conn:
    db.conn.execute("BEGIN IMMEDIATE")
    if not seats.joining().keep("hall 1", held.lease_id):
        raise SystemExit("too late: the seat was given back")
    db.conn.execute("INSERT INTO orders VALUES (?, 'Ada')", (seat,))
print("seat", seat, "is sold")

# For operators: what was sold, and to whom. `return_slot` or `free_kept` ends it.
for slot in seats.slots("hall 1"):
    if slot.is_kept:
        print("kept:", slot.position, slot.note)
