#!/bin/sh
# Lock: one import at a time, from cron or by hand. Run: sh examples/recipe_lock.sh
set -eu
export LITELEASE_DB=app.sqlite3

# Once, when the table is made: it refuses rows without the newest token of "import".
sqlite3 app.sqlite3 'CREATE TABLE IF NOT EXISTS results (text, token INTEGER)'
litelease guard add results import --column token

# One at a time. A second one waits; with -n it gives up at once.
litelease run import -- sh -c '
  echo "importing under token $LITELEASE_TOKEN"
  sqlite3 app.sqlite3 "INSERT INTO results VALUES (\"first\", $LITELEASE_TOKEN)"
'

# An import that was paused wakes up after another one was granted the name.
old=$(litelease claim import --owner paused --ttl 1m)
litelease lease take-over import --owner next --yes > /dev/null
sqlite3 app.sqlite3 "INSERT INTO results VALUES ('late', $old)" || echo "the late row is refused"
sqlite3 app.sqlite3 'SELECT count(*) FROM results'
