"""Workers of queues: extended in the background, acknowledged or given back."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import AsyncGenerator, Generator

import pytest
from common import until

from litelease import (
    InvalidTtl,
    ItemInfo,
    ItemState,
    Litelease,
    LiteleaseError,
    Lost,
    Queue,
    StaleReceiptError,
    Worker,
    WorkItem,
)


@pytest.fixture
def mail(tmp_path: Path) -> Queue:
    return open_queue(tmp_path)


def open_queue(folder: Path) -> Queue:
    db = Litelease(sqlite3.connect(folder / "db", timeout=10, isolation_level=None, check_same_thread=False))
    db.conn.execute("PRAGMA journal_mode = WAL")
    db.bootstrap()
    db.conn.execute("CREATE TABLE IF NOT EXISTS effects (id)")
    return db.queue("mail")


def only(queue: Queue) -> ItemInfo:
    (item,) = queue.items()
    return item


def test_an_item_is_acknowledged_when_the_body_is_done(mail: Queue) -> None:
    for body in ("a", "b"):
        mail.send(body)
    worker = mail.worker(30, until_empty=True)
    seen = []
    for item in worker:
        item.check()
        assert not mail.conn.in_transaction
        seen.append((item.body, item.attempt, len(mail.items())))
    assert seen == [("a", 1, 2), ("b", 1, 1)]
    assert mail.items() == [] and worker.counts.done == 2


def test_an_item_whose_body_raises_is_given_back_with_backoff(mail: Queue) -> None:
    mail.send("a")
    with pytest.raises(ZeroDivisionError):
        for item in mail.worker(30, first_delay=100, longest_delay=1000):
            item.check()
            raise ZeroDivisionError
    item_now = only(mail)
    assert item_now.state is ItemState.DELAYED and item_now.attempt == 1
    assert item_now.visible_at_ms is not None
    assert 45_000 < item_now.visible_at_ms - time.time() * 1000 <= 100_000


def test_a_body_may_settle_the_item_itself(mail: Queue) -> None:
    for body in ("ack", "give back", "bury", "finish", "by the queue"):
        mail.send(body)
    worker = mail.worker(30, until_empty=True)
    for item in worker:
        if item.body == "ack":
            assert item.ack()
        elif item.body == "give back":
            assert item.give_back(delay=60)
        elif item.body == "bury":
            assert item.bury(note="why")
        elif item.body == "finish":
            with item.finish() as conn:
                conn.execute("INSERT INTO effects VALUES (1)")
        else:
            assert mail.ack(item.receipt)
            continue
        item.check()  # it is no longer this worker's concern
    assert [item.state.value for item in mail.items()] == ["dead", "delayed"]
    counts = worker.counts
    assert (counts.done, counts.given_back, counts.buried, counts.lost) == (3, 1, 1, 0)


def test_an_item_that_died_while_its_body_ran_stays_dead_if_the_body_gives_it_back(mail: Queue) -> None:
    # The last delivery was over: giving back was refused, and the worker acknowledged the item
    # because its body raised nothing. The job was gone.
    mail.set_max_attempts(1)
    mail.send("a")
    worker = mail.worker(visibility=60, until_empty=True)
    for item in worker:
        mail.conn.execute("UPDATE litelease_queue_items SET deadline_ms = 1")
        assert not item.give_back()
        with pytest.raises(Lost):
            item.check()
    assert (worker.counts.done, worker.counts.given_back, worker.counts.lost) == (0, 0, 1)
    assert [dead.id for dead in mail.dead()] == [1]


def test_a_handler_that_raises_does_not_end_the_work(mail: Queue) -> None:
    mail.send("bad")
    mail.send("good")

    def handler(item: WorkItem) -> None:
        if item.body == "bad":
            raise ValueError("no such customer " + "é" * 1000)

    counts = mail.work(handler, first_delay=60, until_empty=True)
    assert (counts.done, counts.given_back) == (1, 1)
    note = only(mail).note
    assert note is not None and note.startswith("ValueError: no such customer é") and len(note.encode()) <= 1000


def test_an_error_that_cannot_say_what_it_is_does_not_end_the_work(mail: Queue) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError("not even this")

    def fails(item: WorkItem) -> None:
        raise Odd

    mail.send("a")
    assert mail.work(fails, until_empty=True).given_back == 1
    assert only(mail).note == "Odd"


def test_a_handler_that_would_do_nothing_is_refused_before_it_gets_an_item(mail: Queue) -> None:
    """An item was acknowledged although its coroutine had never run."""

    async def coroutine(item: WorkItem) -> None: ...

    def generator(item: WorkItem) -> Generator[None, None, None]:
        yield

    async def both(item: WorkItem) -> AsyncGenerator[None, None]:
        yield

    mail.send("a")
    for handler in (coroutine, generator, both, 7, None):
        with pytest.raises(TypeError, match="a function that is done when it returns"):
            mail.work(handler, once=True)  # type: ignore[arg-type]
    assert (only(mail).state, only(mail).attempt) == (ItemState.VISIBLE, 0)


def test_an_exception_that_is_no_error_gives_back_and_goes_on(mail: Queue) -> None:
    mail.send("a")

    def handler(_: WorkItem) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mail.work(handler)
    assert only(mail).note == "the worker was interrupted"


def test_a_transaction_that_was_left_open_is_rolled_back_and_told(mail: Queue) -> None:
    mail.send("a")
    with pytest.raises(LiteleaseError, match="with item.finish"):
        for _ in mail.worker(30):
            mail.conn.execute("BEGIN")
            mail.conn.execute("INSERT INTO effects VALUES (1)")
    assert not mail.conn.in_transaction and only(mail).note == "a transaction was left open"
    mail.send("b")

    def handler(_: WorkItem) -> None:
        mail.conn.execute("BEGIN IMMEDIATE")

    assert mail.work(handler, once=True).given_back == 1
    assert not mail.conn.in_transaction


def test_once_and_stop_end_the_loop_before_the_next_item(mail: Queue) -> None:
    for body in range(3):
        mail.send(body)
    assert [item.body for item in mail.worker(30, once=True)] == [0]
    worker = mail.worker(30)
    for _ in worker:
        worker.stop()
    assert [item.attempt for item in mail.items()] == [0]


def test_a_worker_that_waits_is_stopped_by_another_thread(mail: Queue) -> None:
    worker = mail.worker(30)
    timer = threading.Timer(0.1, worker.stop)
    timer.start()
    start = time.monotonic()
    assert list(worker) == []
    assert time.monotonic() - start < 60


def test_a_worker_waits_for_the_time_of_a_delayed_item(mail: Queue) -> None:
    mail.send("a", delay=1)
    start = time.monotonic()
    assert [item.body for item in mail.worker(30, once=True)] == ["a"]
    assert time.monotonic() - start > 0.9


def test_a_delivery_is_extended_while_the_body_runs(mail: Queue, tmp_path: Path) -> None:
    mail.send("a")
    for item in mail.worker(2, once=True):
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            item.check()
            assert open_queue(tmp_path).receive(30) is None
            time.sleep(0.1)
    assert mail.items() == []


def test_an_item_that_was_taken_away_is_lost(mail: Queue, tmp_path: Path) -> None:
    mail.send("a")
    worker = mail.worker(3, once=True)
    for item in worker:
        assert open_queue(tmp_path).bury(item.receipt)
        assert item.lost.wait(60)
        with pytest.raises(Lost, match="mail item 1.*buried"):
            item.check()
        with pytest.raises(StaleReceiptError, match="buried"), item.finish():
            pass
    assert worker.counts.lost == 1


def test_an_item_is_given_back_when_its_worker_is_gone(mail: Queue) -> None:
    # As after an exception between the moment when it was received and the first line of the body.
    mail.send("a")
    worker = mail.worker(3600)
    native = worker._begin()
    item = worker._next(native)
    assert item is not None
    item.check()
    del item, native
    assert only(mail).state is ItemState.VISIBLE and only(mail).note == "the worker ended"


def test_a_connection_has_one_worker_at_a_time(mail: Queue) -> None:
    # Each took what the other's handler did for its own.
    for body in ("a", "b"):
        mail.send(body)
    for _ in mail.worker(30, once=True):
        with pytest.raises(LiteleaseError, match="another worker runs on this connection"):
            list(mail.worker(30))
    assert [item.body for item in mail.worker(30, once=True)] == ["b"]


def test_an_item_is_lost_with_the_connection_of_its_handler(mail: Queue, tmp_path: Path) -> None:
    mail.send("a")
    worker = mail.worker(3600)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        for item in worker:
            Litelease(mail.conn).close()
            with pytest.raises(Lost):
                item.check()
            assert open_queue(tmp_path).receive(30) is not None
    assert worker.counts.lost == 1


def test_a_worker_says_what_it_needs(mail: Queue) -> None:
    memory = Litelease(sqlite3.connect(":memory:"))
    memory.bootstrap()
    with pytest.raises(LiteleaseError, match="needs a file"):
        memory.queue("mail").worker()
    with pytest.raises(InvalidTtl, match="too short"):
        mail.worker(0.05)
    with pytest.raises(ValueError, match="first_delay"):
        mail.worker(first_delay=10, longest_delay=1)
    mail.conn.execute("BEGIN")
    with pytest.raises(LiteleaseError, match="commit first"):
        mail.worker()


def test_a_worker_of_a_file_that_was_replaced_stops(mail: Queue, tmp_path: Path) -> None:
    worker = mail.worker(30)
    mail.send("a")
    with pytest.raises(LiteleaseError, match="moved"):
        for _ in worker:
            (tmp_path / "db").rename(tmp_path / "elsewhere")
    with pytest.raises(LiteleaseError, match="moved"):
        list(worker)


# Real processes.

SEND = """
import sqlite3, sys
from litelease import Litelease
Litelease(sqlite3.connect(sys.argv[1], timeout=30)).queue("mail").send("from afar")
"""


def test_a_send_in_another_process_wakes_a_worker(mail: Queue, tmp_path: Path) -> None:
    timer = threading.Timer(0.3, subprocess.run, ([sys.executable, "-c", SEND, str(tmp_path / "db")],))
    timer.start()
    start = time.monotonic()
    assert [item.body for item in mail.worker(30, once=True)] == ["from afar"]
    assert time.monotonic() - start < 30
    timer.join()


LEAVES = """
import sqlite3, sys
from litelease import Litelease
mail = Litelease(sqlite3.connect(sys.argv[1], timeout=30)).queue("mail")
items = iter(mail.worker(3600))
item = next(items)
"""


def test_an_interpreter_that_ends_gives_its_items_back(mail: Queue, tmp_path: Path) -> None:
    mail.send("a")
    subprocess.run([sys.executable, "-c", LEAVES, str(tmp_path / "db")], check=True)
    assert only(mail).state is ItemState.VISIBLE and only(mail).note == "the worker ended"


SLOW = """
import sqlite3, sys, time
from litelease import Litelease, StaleReceiptError
mail = Litelease(sqlite3.connect(sys.argv[1], timeout=30)).queue("mail")
for item in mail.worker(2, once=True):
    print("received", flush=True)
    sys.stdin.readline()
    try:
        item.check()
        print("trusted", flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
    try:
        with item.finish() as conn:
            conn.execute("INSERT INTO effects VALUES ('zombie')")
        print("finished", flush=True)
    except StaleReceiptError as error:
        print(error.reason.value, flush=True)
"""


def stop_between_transactions(pid: int, path: str) -> None:
    """Stops a process at a moment when it does not hold SQLite's write lock, which nobody else would ever get."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        conn = sqlite3.connect(path, timeout=0.1, isolation_level=None)
        try:
            conn.execute("BEGIN IMMEDIATE")
            conn.execute("ROLLBACK")
            return
        except sqlite3.OperationalError:
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)
        finally:
            conn.close()


def test_a_worker_stopped_past_its_deadline_neither_trusts_itself_nor_finishes(mail: Queue, tmp_path: Path) -> None:
    mail.send("a")
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", SLOW, str(tmp_path / "db")]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        assert worker.stdout.readline() == "received\n"
        time.sleep(2.2)
        assert mail.receive(30) is None  # extended
        stop_between_transactions(worker.pid, str(tmp_path / "db"))
        counts = mail.work(lambda item: mail.conn.execute("INSERT INTO effects VALUES ('successor')"), once=True)
        assert counts.done == 1
        os.kill(worker.pid, signal.SIGCONT)
        told = worker.communicate("\n", timeout=30)[0].split("\n")
    assert told[0] == "Lost" and told[1] == "gone"
    assert mail.conn.execute("SELECT * FROM effects").fetchall() == [("successor",)]


def test_a_worker_that_was_killed_is_replaced_after_its_deadline(mail: Queue, tmp_path: Path) -> None:
    mail.send("a")
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path / "db")], stdin=pipe, stdout=pipe, text=True) as worker:
        assert worker.stdout is not None and worker.stdout.readline() == "received\n"
        worker.kill()
    for item in mail.worker(30, once=True):
        assert item.attempt == 2
    assert mail.items() == []


def test_a_signal_handler_can_stop_a_worker_and_so_can_an_exception_from_it(mail: Queue) -> None:
    mail.send("a")
    worker = mail.worker(30)
    handler = signal.signal(signal.SIGALRM, lambda *_: worker.stop())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        assert [item.body for item in worker] == ["a"]
    finally:
        signal.signal(signal.SIGALRM, handler)


def test_workers_share_a_queue_and_each_item_is_done_once(tmp_path: Path) -> None:
    mail = open_queue(tmp_path)
    ids = [mail.send(n) for n in range(60)]
    workers: list[Worker] = []

    def run() -> None:
        queue = open_queue(tmp_path)
        worker = queue.worker(30)
        workers.append(worker)
        for item in worker:
            with item.finish() as conn:
                conn.execute("INSERT INTO effects VALUES (?)", (item.id,))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: not mail.items())
    for worker in workers:
        worker.stop()
    for thread in threads:
        thread.join()
    assert [id for (id,) in mail.conn.execute("SELECT id FROM effects ORDER BY id")] == ids


def test_an_exception_that_is_kept_keeps_no_worker(mail: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its traceback refers to the frames of the worker. The item that was received stayed its, and the connection, too."""
    mail.send("a")
    kept: list[KeyboardInterrupt] = []

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for body in ("run", "iterate"):
        worker = mail.worker(3600, once=True)
        # As after a signal between the moment when it was received and the first line of the body.
        monkeypatch.setattr("litelease._worker.WorkItem", interrupted)
        try:
            worker.run(interrupted) if body == "run" else list(worker)
        except KeyboardInterrupt as error:
            kept.append(error)
        assert only(mail).state is ItemState.VISIBLE
    monkeypatch.undo()
    assert len(kept) == 2
    assert [item.body for item in mail.worker(30, once=True)] == ["a"]
