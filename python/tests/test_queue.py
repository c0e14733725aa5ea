"""Queues from Python: the verbs, ``finish``, and what a worker's death or pause leaves behind."""

from __future__ import annotations

import datetime
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from litelease import (
    Acknowledged,
    Cancelled,
    InvalidAttempts,
    InvalidDelay,
    InvalidText,
    InvalidTtl,
    Item,
    ItemState,
    Leased,
    Litelease,
    LiteleaseError,
    NotBootstrapped,
    NotFound,
    NotInTransaction,
    Queue,
    SchemaMismatch,
    StaleReason,
    StaleReceipt,
    StaleReceiptError,
    TimeOverflow,
)


def open_file(path: object = ":memory:") -> Litelease:
    db = Litelease(sqlite3.connect(str(path), timeout=10, isolation_level=None))
    db.bootstrap()
    return db


def received(queue: Queue, now_ms: int | None = None) -> Item:
    item = queue.receive(visibility_ms=60_000 if now_ms is None else 50, now_ms=now_ms)
    assert item is not None
    return item


@pytest.fixture
def mail() -> Queue:
    db = open_file()
    db.conn.execute("CREATE TABLE effects (id)")
    return db.queue("mail")


def effects(queue: Queue) -> list[object]:
    return [id for (id,) in queue.conn.execute("SELECT id FROM effects ORDER BY id")]


@pytest.mark.parametrize("body", [None, 0, -(2**63), 1.5, "", "text \0 🐟", b"", b"\0\xff", "x" * 5_000_000])
def test_a_body_comes_back_as_it_was_sent(mail: Queue, body: object) -> None:
    mail.send(body)  # type: ignore[arg-type]
    item = received(mail)
    assert item.body == body and type(item.body) is type(body)
    found = mail.delivery(item.receipt)
    assert found == item


@pytest.mark.parametrize("name", ["", "x'; DROP TABLE y; --", "a\0b", "🐟", '"'])
def test_a_queue_has_any_name(mail: Queue, name: str) -> None:
    odd = Queue(mail.conn, name)
    odd.send("hello")
    assert mail.receive(30) is None
    assert [info.queue for info in Litelease(mail.conn).queues()] == [name]
    assert received(odd).ack() == Acknowledged()


def test_an_item_and_its_row_are_stored_together_or_not_at_all(mail: Queue) -> None:
    for end, expected in (("ROLLBACK", []), ("COMMIT", [2])):
        mail.conn.execute("BEGIN IMMEDIATE")
        mail.conn.execute("INSERT INTO effects VALUES (2)")
        mail.joining().send("about it")
        mail.conn.execute(end)
        assert len(mail.items()) == len(expected) and effects(mail) == expected
    with pytest.raises(NotInTransaction):
        mail.joining().send("alone")


def test_a_stale_receipt_is_falsy_and_says_why(mail: Queue) -> None:
    mail.send("a", now_ms=100)
    first = received(mail, 100)
    second = received(mail, 150)
    stale = first.ack()
    assert not stale and stale == StaleReceipt(StaleReason.DELIVERED_AGAIN)
    assert second.ack() and mail.ack(second) == StaleReceipt(StaleReason.GONE)
    assert mail.ack("no receipt at all") == StaleReceipt(StaleReason.UNKNOWN)
    assert not mail.extend(second, 30) and not mail.give_back(second) and not mail.bury(second)
    assert mail.delivery(second.receipt) is None


def test_many_are_received_and_acknowledged_in_one_commit(mail: Queue) -> None:
    for body in ("a", "b", "c"):
        mail.send(body)
    assert mail.receive_many(0, 30) == []
    first, second = mail.receive_many(2, datetime.timedelta(seconds=30))
    assert mail.ack_many([first, "7-x", second.receipt]) == [
        Acknowledged(),
        StaleReceipt(StaleReason.UNKNOWN),
        Acknowledged(),
    ]
    assert [item.body for item in mail.receive_many(9, 30)] == ["c"]


def test_dead_items_are_listed_revived_and_deleted(mail: Queue) -> None:
    mail.set_max_attempts(1)
    mail.send("a", now_ms=100)
    mail.send("b", delay_ms=10, now_ms=100)
    mail.give_back(received(mail, 100), note="no route", now_ms=110)
    assert [(item.id, item.note) for item in mail.dead(now_ms=110)] == [(1, "no route")]
    info = mail.info(now_ms=115)
    assert info and (info.visible, info.dead, info.oldest_ms, info.max_attempts) == (1, 1, 5, 1)
    assert [item.state for item in mail.items(now_ms=105)] == [ItemState.DEAD, ItemState.DELAYED]
    assert mail.redrive(2) == 0 and mail.redrive() == 1 and mail.dead() == []
    assert received(mail).bury() and mail.discard() == 1
    assert Queue(mail.conn, "unknown").info() is None


def test_an_item_that_nobody_works_on_can_be_cancelled(mail: Queue) -> None:
    id = mail.send("a", key="k", now_ms=100)
    assert mail.send("b", key="k", now_ms=100) == id
    item = received(mail, 100)
    leased = mail.cancel("k", now_ms=100)
    assert not leased and leased == Leased(item.deadline_ms)
    assert mail.cancel(id, now_ms=150) == Cancelled()
    assert mail.cancel(id) == NotFound() and not mail.cancel("k")
    assert mail.delete() and not mail.delete()


def test_bad_input_is_a_typed_error_and_stores_nothing(mail: Queue) -> None:
    wrong: list[tuple[type[Exception], object]] = [
        (InvalidDelay, lambda: mail.send("a", delay=-1)),
        (TimeOverflow, lambda: mail.send("a", delay_ms=2**63 - 1)),
        (TimeOverflow, lambda: mail.send("a", delay=1e300)),
        (InvalidText, lambda: mail.send("a", key="")),
        (InvalidText, lambda: mail.send("a", key="x" * 201)),
        (InvalidTtl, lambda: mail.receive(0)),
        (InvalidTtl, lambda: mail.receive(float("nan"))),
        (TypeError, lambda: mail.receive()),
        (TypeError, lambda: mail.receive_many(-1, 30)),
        (InvalidAttempts, lambda: mail.set_max_attempts(-1)),
        (TypeError, lambda: mail.send([])),  # type: ignore[arg-type]
        (TypeError, lambda: mail.send("a", key=7)),  # type: ignore[arg-type]
        (TypeError, lambda: mail.cancel(None)),  # type: ignore[arg-type]
        (TypeError, lambda: mail.ack(7)),  # type: ignore[arg-type]
        (OverflowError, lambda: mail.send(2**63)),
        (TypeError, lambda: Queue(mail.conn, 7).send("a")),  # type: ignore[arg-type]
    ]
    for error, act in wrong:
        with pytest.raises(error):
            act()  # type: ignore[operator]
    assert Litelease(mail.conn).queues() == []
    with pytest.raises(TypeError, match="body must be None, an int, a float, a str or bytes"):
        mail.send({})  # type: ignore[arg-type]
    with pytest.raises(NotBootstrapped):
        Queue(sqlite3.connect(":memory:"), "mail").send("a")
    mail.conn.execute("CREATE TABLE litelease_items (n)")
    with pytest.raises(SchemaMismatch, match="litelease_items"):
        mail.send("a")


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "queues.md").read_text()
    (block,) = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(block, names)
    db = names["db"]
    assert isinstance(db, Litelease)
    assert db.conn.execute("SELECT picture FROM thumbnails").fetchall() == [("a.png",)]
    assert db.queue("thumbnails").items() == []


# finish


def test_the_effect_and_the_acknowledgement_are_one_commit(mail: Queue) -> None:
    id = mail.send("a")
    with received(mail).finish() as conn:
        assert conn is mail.conn and conn.in_transaction
        conn.execute("INSERT INTO effects VALUES (?)", (id,))
    assert effects(mail) == [id] and mail.items() == [] and not mail.conn.in_transaction


def test_a_worker_that_was_replaced_cannot_finish(mail: Queue) -> None:
    mail.send("a", now_ms=100)
    first, second = received(mail, 100), received(mail, 150)
    with pytest.raises(StaleReceiptError, match="delivered again") as stale, first.finish() as conn:
        conn.execute("INSERT INTO effects VALUES (1)")  # never reached
    assert stale.value.reason is StaleReason.DELIVERED_AGAIN
    assert effects(mail) == [] and not mail.conn.in_transaction
    with second.finish():
        pass
    assert mail.items() == []


def test_a_receipt_that_becomes_stale_inside_the_block_rolls_everything_back(mail: Queue) -> None:
    mail.send("a")
    item = received(mail)
    with pytest.raises(StaleReceiptError, match="buried"), item.finish() as conn:
        conn.execute("INSERT INTO effects VALUES (1)")
        mail.bury(item)
    assert effects(mail) == [] and not mail.conn.in_transaction and mail.ack(item)


def test_an_exception_in_the_block_rolls_back_and_goes_on(mail: Queue) -> None:
    mail.send("a")
    item = received(mail)
    with pytest.raises(ZeroDivisionError), item.finish() as conn:
        conn.execute("INSERT INTO effects VALUES (1)")
        raise ZeroDivisionError
    assert effects(mail) == [] and not mail.conn.in_transaction and item.ack()


def test_a_transaction_that_the_block_ends_is_told(mail: Queue) -> None:
    mail.send("a")
    item = received(mail)
    with pytest.raises(LiteleaseError, match="ended inside the block"), item.finish() as conn:
        conn.execute("COMMIT")
    with pytest.raises(LiteleaseError, match="already ended"), item.finish() as conn:
        conn.execute("COMMIT")
        conn.execute("BEGIN")
        conn.execute("INSERT INTO effects VALUES (1)")
    assert effects(mail) == [] and not mail.conn.in_transaction
    with item.finish() as conn:  # a block may change the schema
        conn.execute("CREATE TABLE more (n)")
    assert mail.items() == []


def test_finish_leaves_a_transaction_of_the_callers_alone(mail: Queue) -> None:
    mail.send("a")
    item = received(mail)
    mail.conn.execute("BEGIN")
    mail.conn.execute("INSERT INTO effects VALUES (1)")
    with pytest.raises(LiteleaseError, match="commit yours first"), item.finish():
        pass
    assert mail.conn.in_transaction
    mail.conn.execute("COMMIT")
    assert effects(mail) == [1] and item.ack()


def test_an_item_received_in_a_transaction_can_be_finished_after_its_commit(mail: Queue) -> None:
    mail.send("a")
    mail.conn.execute("BEGIN IMMEDIATE")
    item = received(mail.joining())
    with pytest.raises(LiteleaseError, match="commit yours first"), item.finish():
        pass
    mail.conn.execute("COMMIT")
    with item.finish() as conn:
        conn.execute("INSERT INTO effects VALUES (1)")
    assert effects(mail) == [1] and mail.items() == []


@pytest.mark.parametrize("options", [{}, {"isolation_level": None}, {"isolation_level": "EXCLUSIVE"}])
def test_finish_works_in_every_mode_of_sqlite3(tmp_path: Path, options: dict[str, None]) -> None:
    conn = sqlite3.connect(tmp_path / "db", **options)  # type: ignore[call-overload]
    db = Litelease(conn)
    db.bootstrap()
    conn.execute("CREATE TABLE effects (id)")
    conn.commit()
    mail = db.queue("mail")
    id = mail.send("a")
    with received(mail).finish() as inside:
        inside.execute("INSERT INTO effects VALUES (?)", (id,))
    assert effects(open_file(tmp_path / "db").queue("mail")) == [id]


# Real processes.

FINISH = """
import os, sqlite3, sys, time
from litelease import Litelease, StaleReceiptError
file, visibility, where = sys.argv[1], float(sys.argv[2]), sys.argv[3]
mail = Litelease(sqlite3.connect(file, timeout=30)).queue("mail")
while (item := mail.receive(visibility)) is not None:
    def tell(here):
        if here == where:
            print(item.id, flush=True)
            if where != "outside":
                time.sleep(60)
            else:
                sys.stdin.readline()
    tell("outside")
    try:
        with item.finish() as conn:
            conn.execute("INSERT INTO effects VALUES (?)", (item.id,))
            tell("inside")
        print("finished", item.id, flush=True)
    except StaleReceiptError as error:
        print(error.reason.value, flush=True)
        break
"""


def start(program: str, *words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_worker_killed_in_the_middle_of_finish_has_done_nothing(tmp_path: Path) -> None:
    db = open_file(tmp_path / "db")
    db.conn.execute("CREATE TABLE effects (id)")
    mail = db.queue("mail")
    ids = [mail.send("a") for _ in range(3)]
    with start(FINISH, tmp_path / "db", 0.5, "inside") as worker:
        assert line(worker) == str(ids[0])
        worker.kill()
    assert effects(mail) == [] and len(mail.items()) == 3
    time.sleep(0.6)
    with start(FINISH, tmp_path / "db", 30, "nowhere") as successor:
        assert successor.wait(30) == 0
    assert effects(mail) == ids and mail.items() == []


def test_a_worker_stopped_past_its_deadline_cannot_finish(tmp_path: Path) -> None:
    db = open_file(tmp_path / "db")
    db.conn.execute("CREATE TABLE effects (id)")
    mail = db.queue("mail")
    id = mail.send("a")
    with start(FINISH, tmp_path / "db", 0.3, "outside") as worker:
        assert line(worker) == str(id)
        worker.send_signal(signal.SIGSTOP)
        time.sleep(0.4)
        with start(FINISH, tmp_path / "db", 30, "nowhere") as successor:
            assert line(successor) == f"finished {id}"
            assert successor.wait(30) == 0
        worker.send_signal(signal.SIGCONT)
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
        assert line(worker) == "gone"
        assert worker.wait(30) == 0
    assert effects(mail) == [id]


ALL = """
import sqlite3, sys, time
from litelease import Litelease, StaleReceiptError
mail = Litelease(sqlite3.connect(sys.argv[1], timeout=30)).queue("mail")
for item in mail.worker(0.5, until_empty=False):
    try:
        with item.finish() as conn:
            conn.execute("INSERT INTO effects VALUES (?)", (item.id,))
    except StaleReceiptError:
        pass
"""


def test_each_effect_happens_once_although_workers_are_killed(tmp_path: Path) -> None:
    db = open_file(tmp_path / "db")
    db.conn.execute("PRAGMA journal_mode = WAL")
    db.conn.execute("CREATE TABLE effects (id)")
    mail = db.queue("mail")
    mail.set_max_attempts(0)
    db.conn.execute("BEGIN IMMEDIATE")
    ids = [mail.send(number) for number in range(500)]
    db.conn.execute("COMMIT")
    workers = [start(ALL, tmp_path / "db") for _ in range(2)]
    try:
        deadline = time.monotonic() + 60
        kills = 0
        while len(effects(mail)) < len(ids):
            assert time.monotonic() < deadline
            time.sleep(0.02)
            if len(effects(mail)) > 100 * (kills + 1):
                workers[kills % 2].kill()
                workers[kills % 2].communicate()
                workers[kills % 2] = start(ALL, tmp_path / "db")
                kills += 1
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert kills >= 2 and effects(mail) == ids and mail.items() == []


def test_a_forked_child_cannot_finish_for_its_parent(tmp_path: Path) -> None:
    db = open_file(tmp_path / "db")
    mail = db.queue("mail")
    mail.send("a")
    item = received(mail)
    if (child := os.fork()) == 0:
        try:
            with item.finish():
                pass
        except LiteleaseError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert item.ack()
