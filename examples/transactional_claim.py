"""The claim and the work it allows, committed together or not at all.

    python3 examples/transactional_claim.py [FILE]

Run from the folder of the project, after `make build-ext`, with a Python whose sqlite3 can load extensions.
"""

import sqlite3
import sys

file = sys.argv[1] if len(sys.argv) > 1 else "app.sqlite3"
db = sqlite3.connect(file, isolation_level=None)
db.enable_load_extension(True)
db.load_extension("./target/release/liblitelease_ext")
db.enable_load_extension(False)
db.execute("SELECT litelease_bootstrap()")
db.execute("CREATE TABLE IF NOT EXISTS batches (id INTEGER PRIMARY KEY, token INTEGER NOT NULL)")

# BEGIN IMMEDIATE, so that the busy timeout applies and the transaction can write to its end.
db.execute("BEGIN IMMEDIATE")
(token,) = db.execute("SELECT litelease_claim('import', 'importer-1', 30000)").fetchone()
if token is None:
    db.execute("ROLLBACK")
    print("somebody else imports")
    sys.exit()
batch = db.execute("INSERT INTO batches (token) VALUES (?)", (token,)).lastrowid
db.execute("COMMIT")  # only now is the token ours
print("batch", batch, "is ours, under token", token)

# The last write checks, in its own transaction, that there is no newer grant.
db.execute("BEGIN IMMEDIATE")
(newest,) = db.execute("SELECT litelease_token('import')").fetchone()
if newest == token:
    db.execute("SELECT litelease_release('import', 'importer-1', NULL, ?)", (token,))
    db.execute("COMMIT")
    print("batch", batch, "is done")
else:
    db.execute("ROLLBACK")
    print("superseded: another process has taken over, and nothing was written")
