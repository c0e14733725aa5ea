"""Only one of many may do the work: claim, work, renew, release.

    python3 examples/basic_claim.py [FILE]

Run from the folder of the project, after `make build-ext`, with a Python whose sqlite3 can load extensions.
"""

import os
import sqlite3
import sys

file = sys.argv[1] if len(sys.argv) > 1 else "app.sqlite3"
owner = f"process-{os.getpid()}"

db = sqlite3.connect(file, isolation_level=None)
db.enable_load_extension(True)
db.load_extension("./target/release/liblitelease_ext")
db.enable_load_extension(False)


def ask(sql, *values):
    return db.execute(sql, values).fetchone()[0]


ask("SELECT litelease_bootstrap()")
token = ask("SELECT litelease_claim('nightly-report', ?, 30000)", owner)
if token is None:
    print(ask("SELECT litelease_owner('nightly-report')"), "is already at it")
    sys.exit()
print("works under token", token)

for page in 1, 2, 3:
    print("page", page)
    # Renew while there is work, and stop as soon as another owner has the name.
    if ask("SELECT litelease_renew('nightly-report', ?, 30000, NULL, ?)", owner, token) is None:
        print("lost the lease")
        sys.exit()

ask("SELECT litelease_release('nightly-report', ?, NULL, ?)", owner, token)
print("done")
