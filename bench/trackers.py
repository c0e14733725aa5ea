"""What locking and unlocking a name costs with our Tracker and with that of sayt2, each on a file of its own.

Prints two lists of microseconds of CPU time, one number per round, as JSON.

    python bench/trackers.py FOLDER
"""

import json
import sys
import time
from pathlib import Path

import litelease
from sayt2.tracker import Tracker as Other

ROUNDS, CALLS = 11, 100

folder = Path(sys.argv[1])
trackers = [litelease.Tracker(folder / "ours.sqlite3"), Other(folder / "theirs.sqlite3")]


def cost(tracker) -> float:
    start = time.process_time()
    for _ in range(CALLS):
        tracker.unlock_it("x", tracker.lock_it("x", 60))
    return (time.process_time() - start) * 1e6 / CALLS


for tracker in trackers:
    cost(tracker)  # the first time makes the tables
times: list[list[float]] = [[], []]
for _ in range(ROUNDS):
    for tracker, known in zip(trackers, times):
        known.append(cost(tracker))
print(json.dumps(times))
