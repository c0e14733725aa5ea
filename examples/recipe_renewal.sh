#!/bin/sh
# Renewal: a job that is stuck, or runs too long, loses its lease. Run: sh examples/recipe_renewal.sh
set -eu
export LITELEASE_DB=app.sqlite3

# Renewed in the background, but only while pages come (within 5 minutes each), and for 2 hours at most.
litelease run --ttl 30s --progress-within 5m --max-time 2h crawl -- sh -c '
  for page in 1 2 3; do
    echo "page $page"
    litelease -q lease progress    # fails once the lease is lost
  done
'

# A job that says nothing is ended before another owner can be granted the name.
code=0
litelease -q run --ttl 2s --progress-within 1s crawl -- sleep 60 || code=$?
echo "stuck: exit code $code"
