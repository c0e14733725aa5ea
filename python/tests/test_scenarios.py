"""Every scenario file, played on the verbs and on the SQL functions where they can be loaded."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import scenario
from scenario import Step, shown

import litelease
from litelease import (
    Acknowledged,
    Acquired,
    AlreadyTaken,
    Broken,
    Busy,
    Cancelled,
    Finished,
    First,
    InFuture,
    Item,
    ItemInfo,
    Leased,
    Lease,
    Litelease,
    LiteleaseError,
    Pools,
    Queue,
    Reason,
    Rejected,
    Released,
    Renewed,
    Requested,
    RequestedBy,
    Slot,
    Stale,
    StaleTick,
    Stored,
    TickAcquired,
    TickChanged,
    Transferred,
)
from litelease._connection import OwnConnection

CAN_LOAD = hasattr(sqlite3.Connection, "enable_load_extension")


class Player:
    """Connections to one file in WAL mode, which do not wait for locks."""

    def __init__(self, folder: Path, factory: type[sqlite3.Connection] = sqlite3.Connection) -> None:
        self.factory, self.file = factory, folder / "scenario.sqlite3"
        self.connections: dict[str, sqlite3.Connection] = {}
        self.receipts: dict[str, str] = {}  # by what the scenario calls them
        self.lent: dict[str, str] = {}  # the UUIDs of leases on slots, by what the scenario calls them
        self.connect("main")
        Litelease(self.current).bootstrap()

    def connect(self, name: str) -> None:
        if name not in self.connections:
            conn = sqlite3.connect(self.file, timeout=0, isolation_level=None, factory=self.factory)
            assert conn.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
            self.set_up(conn)
            self.connections[name] = conn
        self.current = self.connections[name]

    def set_up(self, conn: sqlite3.Connection) -> None:
        pass

    def play(self, step: Step) -> str:
        name = step.words.get("name", "")
        quoted = '"' + name.replace('"', '""') + '"'
        statements = {
            "begin": "BEGIN IMMEDIATE" if step.words.get("immediate") else "BEGIN",
            "commit": "COMMIT",
            "rollback": "ROLLBACK",
            "savepoint": f"SAVEPOINT {quoted}",
            "rollback to": f"ROLLBACK TO {quoted}",
            "release savepoint": f"RELEASE {quoted}",
        }
        try:
            if step.verb == "conn":
                self.connect(name)
                return "ok"
            if step.verb in statements:
                self.current.execute(statements[step.verb])
                return "ok"
            if step.verb in scenario.POOL_VERBS:
                return self.pools(step, name)
            if step.verb in scenario.QUEUE_VERBS:
                return self.queues(step, name)
            return self.perform(step, name)
        except sqlite3.Error as error:
            return f"error {getattr(error, 'sqlite_errorname', None) or by_its_words(error)}"
        except LiteleaseError as error:
            return f"error {type(error).__name__}"

    def perform(self, step: Step, name: str) -> str:
        raise NotImplementedError

    def pools(self, step: Step, name: str) -> str:
        """The same for both players."""
        pools, now, ttl = Pools(self.current), step.now_ms, step.number("ttl")
        label = step.words.get("lease", "")
        lease = self.lent.get(label, label)
        if step.verb in ("pool", "resize"):
            count = step.number("count") or 0
            pools.register(name, count)
            return f"pool of {count} with {len(pools.slots(name, now_ms=now))} in use"
        if step.verb == "borrow":
            borrowed = pools.borrow(name, ttl_ms=ttl, now_ms=now, key=step.words.get("key"))
            if borrowed:
                self.lent[label] = borrowed.lease_id
            return slots([borrowed.slot] if borrowed else [])
        if step.verb == "return":
            return "returned" if pools.return_slot(name, lease, now_ms=now) else "none"
        if step.verb == "renew slot":
            renewed = pools.renew(name, lease, ttl_ms=ttl, now_ms=now)
            return slots([renewed] if renewed else [])
        if step.verb == "keep":
            return "kept" if pools.keep(name, lease, now_ms=now) else "none"
        if step.verb == "delete":
            return "deleted" if pools.delete(name) else "none"
        return slots(pools.slots(name, now_ms=now))

    def queues(self, step: Step, name: str) -> str:
        """The verbs of the package on queues. The name of a verb on a delivery is that of its receipt."""
        queue, now, words = Queue(self.current, name), step.now_ms, step.words
        receipt, note = self.receipts.get(name, name), words.get("note")
        visibility, delay, id = step.number("visibility"), step.number("delay"), step.number("id")
        if step.verb == "queue":
            attempts = step.number("attempts")
            if attempts is not None:
                queue.set_max_attempts(attempts)
            info = queue.info(now_ms=now)
            return f"attempts {info.max_attempts if info else 20}"
        if step.verb == "send":
            return f"sent {queue.send(words['body'], delay_ms=delay, key=words.get('key'), now_ms=now)}"
        if step.verb == "receive":
            item = queue.receive(visibility_ms=visibility, now_ms=now)
            if item:
                self.receipts[words["receipt"]] = item.receipt
            return delivered(item)
        if step.verb == "delivery":
            return delivered(queue.delivery(receipt))
        if step.verb == "ack":
            answer = queue.ack(receipt)
            return "acknowledged" if isinstance(answer, Acknowledged) else f"stale {answer.reason.value}"
        if step.verb == "extend":
            deadline_ms = queue.extend(receipt, visibility_ms=visibility, now_ms=now)
            return "none" if deadline_ms is None else f"until {deadline_ms}"
        if step.verb == "give back":
            return "given back" if queue.give_back(receipt, delay_ms=delay, note=note, now_ms=now) else "none"
        if step.verb == "bury":
            return "buried" if queue.bury(receipt, note=note, now_ms=now) else "none"
        if step.verb == "redrive":
            return str(queue.redrive(id, now_ms=now))
        if step.verb == "discard":
            return str(queue.discard(id, now_ms=now))
        if step.verb == "cancel":
            told = queue.cancel(words["key"] if id is None else id, now_ms=now)
            return "cancelled" if isinstance(told, Cancelled) else "leased" if isinstance(told, Leased) else "none"
        if step.verb == "delete queue":
            return "deleted" if queue.delete() else "none"
        if step.verb == "fence":
            Litelease(self.current).restore_fence(above=0)
            return "ok"
        return " ".join(map(listed, queue.items(now_ms=now))) or "none"


class Verbs(Player):
    """The verbs of the package."""

    def ticks(self, db: Litelease, step: Step, name: str) -> str:
        now, words, tick_ms = step.now_ms, step.words, step.number("tick")
        if step.verb == "ticks":
            info = db.newest_tick(name, now_ms=now)
            if info is None:
                return "none"
            previous = "" if info.done_ms is None else f" previous {info.done_ms}"
            return f"tick {info.tick_ms} {info.state.value} attempt {info.attempt} of {info.attempts}{previous}"
        if step.verb == "claim":
            assert tick_ms is not None
            attempts, ttl = step.number("attempts"), step.number("ttl")
            return ticked(db.claim_tick(name, words["owner"], ttl_ms=ttl, tick_ms=tick_ms, attempts=attempts, now_ms=now))
        if step.verb == "tick":
            assert tick_ms is not None
            return ticked(db.tick(name, tick_ms, now_ms=now))
        if step.verb == "finish":
            lease = Lease(name, "", step.number("token") or 0, 0)
            return ticked(db.finish_tick(lease, failed="failed" in words, now_ms=now))
        if step.verb == "skip":
            return ticked(db.skip_ticks(name, step.number("until"), breaks="break" in words, now_ms=now))
        if step.verb == "again":
            return ticked(db.tick_again(name, now_ms=now))
        told = ticked(db.forget_tick(name, now_ms=now))
        return "forgotten" if told.startswith("newest") else told

    def perform(self, step: Step, name: str) -> str:
        db, now, words = Litelease(self.current), step.now_ms, step.words
        if step.verb in scenario.TICK_VERBS or "tick" in words:
            return self.ticks(db, step, name)
        owner, ttl, token = words.get("owner", ""), step.number("ttl"), step.number("token")
        if step.verb == "claim":
            return told(db.claim(name, owner, ttl_ms=ttl, now_ms=now, min_token=step.number("above") or 0))
        if step.verb == "ensure":
            return told(db.ensure(name, owner, ttl_ms=ttl, now_ms=now))
        if step.verb == "claim from dead":
            dead = Lease(name, words["from"], token or 0, 0)
            return told(db._claim_from_dead(name, owner, dead=dead, ttl_ms=ttl, now_ms=now))
        if step.verb == "renew":
            if token is None:
                return told(db.renew_by_owner(name, owner, ttl_ms=ttl, now_ms=now))
            return told(db.renew(Lease(name, owner, token, 0), ttl_ms=ttl, now_ms=now))
        if step.verb == "release":
            if token is None:
                return told(db.release_by_owner(name, owner, now_ms=now))
            return told(db.release(Lease(name, owner, token, 0), now_ms=now))
        if step.verb == "transfer":
            new_owner = words["new_owner"]
            if token is None:
                return told(db.transfer_by_owner(name, owner, new_owner, ttl_ms=ttl, now_ms=now))
            return told(db.transfer(Lease(name, owner, token, 0), new_owner, ttl_ms=ttl, now_ms=now))
        if step.verb == "break":
            return told(db.break_lease(name, now_ms=now))
        if step.verb == "purge":
            return str(db.purge(int(words["before"]), now_ms=now))
        if step.verb == "inspect":
            lease = db.inspect(name, now_ms=now)
            return f"held {shown(lease.owner)} {grant(lease)}" if lease else "none"
        if step.verb == "since":
            lease = db.inspect(name, now_ms=now)
            return f"since {lease.since_ms}" if lease else "none"
        if step.verb == "owner":
            found = db.owner(name, now_ms=now)
            return "none" if found is None else f"owner {shown(found)}"
        if step.verb == "attach":
            return told(db.attach(Lease(name, "", token or 0, 0), words["value"], now_ms=now))
        if step.verb == "value":
            return valued(db.value(name, now_ms=now))
        if step.verb == "limit":
            until, within = step.number("until"), step.number("progress")
            return told(db.limit(name, token or 0, progress_within_ms=within, not_after_ms=until, now_ms=now))
        if step.verb == "progress":
            return told(db.progress(name, token or 0, now_ms=now))
        if step.verb == "checkpoint":
            stored = db.checkpoint(name, token or 0, words["value"], now_ms=now)
            return "stored" if stored else told(stored)
        if step.verb == "request":
            return told(db.request(name, words["requester"], within_ms=step.number("within"), now_ms=now))
        if step.verb == "withdraw":
            return "withdrawn" if db.withdraw_request(name, words["requester"]) else "none"
        if step.verb == "requested":
            open_request = db.requested(name, now_ms=now)
            if open_request is None:
                return "none"
            return asked(open_request.requester, open_request.until_ms, open_request.token)
        if step.verb == "hand over":
            if token is None:
                return told(db.hand_over_by_owner(name, owner, ttl_ms=ttl, now_ms=now))
            return told(db.hand_over(Lease(name, owner, token, 0), ttl_ms=ttl, now_ms=now))
        if step.verb == "take over":
            before, taken = db.inspect(name, now_ms=now), db.take_over(name, owner, ttl_ms=ttl, now_ms=now)
            assert taken.previous == before, step.place
            return told(Acquired(taken.lease))
        if step.verb == "read":
            return versioned(db.read(name, words["reader"], ttl_ms=ttl, now_ms=now))
        if step.verb == "unread":
            return "unread" if db.unread(name, words["reader"]) else "none"
        if step.verb == "drained":
            return "drained" if db.drained(name, token or 0, now_ms=now) else "not drained"
        assert step.verb == "token", step.verb
        newest = db.token(name)
        return "none" if newest is None else str(newest)


class Functions(Player):
    """The SQL functions. They do not tell why something was rejected."""

    def set_up(self, conn: sqlite3.Connection) -> None:
        litelease.load(conn)

    def ask(self, sql: str, *values: object) -> tuple[object, ...] | None:
        return self.current.execute(sql, values).fetchone()  # type: ignore[no-any-return]

    def call(self, verb: str, *values: object) -> object:
        row = self.ask(f"SELECT litelease_{verb}({', '.join('?' * len(values))})", *values)
        assert row is not None
        return row[0]

    def lease(self, name: str, now: int) -> tuple[object, ...] | None:
        sql = "SELECT owner, token, expires_at_ms FROM litelease_leases(?) WHERE name = ? AND state = 'live'"
        return self.ask(sql, now, name)

    def perform(self, step: Step, name: str) -> str:
        now, words = step.now_ms, step.words
        owner, ttl = words.get("owner", ""), step.number("ttl")
        options = [value for key in ("above", "token") if (value := step.number(key)) is not None]
        if step.verb in ("claim", "ensure"):
            token = self.call(step.verb, name, owner, ttl, now, *options)
            lease = self.lease(name, now) or ("nobody", 0, 0)
            if token is None:
                return f"busy {shown(str(lease[0]))} {lease[1]} until {lease[2]}"
            return f"acquired {token} until {lease[2]}"
        if step.verb in ("renew", "transfer"):
            new_owner = [words["new_owner"]] if step.verb == "transfer" else []
            token = self.call(step.verb, name, owner, *new_owner, ttl, now, *options)
            lease = self.lease(name, now) or ("nobody", 0, 0)
            return "rejected" if token is None else f"{PAST[step.verb]} {token} until {lease[2]}"
        if step.verb == "release":
            done = self.call("release", name, owner, now, *options)
            return f"released {self.call('token', name)}" if done else "rejected"
        if step.verb == "break":
            killed = self.call("break", name, now)
            return "rejected" if killed is None else f"broken {killed}"
        if step.verb == "purge":
            return str(self.call("purge", int(words["before"]), now))
        if step.verb == "inspect":
            held = self.lease(name, now)
            return f"held {shown(str(held[0]))} {held[1]} until {held[2]}" if held else "none"
        if step.verb == "since":
            found = self.ask("SELECT since_ms FROM litelease_leases(?2) WHERE name = ?1 AND state = 'live'", name, now)
            return f"since {found[0]}" if found else "none"
        if step.verb == "attach":
            return "done" if self.call("attach", name, *options, words["value"], now) else "rejected"
        if step.verb == "value":
            return valued(self.call("value", name, now))
        if step.verb == "limit":
            limits = step.number("progress"), step.number("until")
            return "done" if self.call("limit", name, *options, *limits, now) else "rejected"
        if step.verb == "progress":
            return "done" if self.call("progress", name, *options, now) else "rejected"
        if step.verb == "checkpoint":
            return "stored" if self.call("checkpoint", name, *options, words["value"], now) else "rejected"
        if step.verb == "request":
            until_ms = self.call("request", name, words["requester"], step.number("within"), now)
            found = self.ask("SELECT requester, until_ms FROM litelease_requested(?, ?)", name, now)
            if until_ms is not None:
                return f"requested until {until_ms}"
            return asked(*found) if found else "rejected"
        if step.verb == "withdraw":
            return "withdrawn" if self.call("withdraw_request", name, words["requester"]) else "none"
        if step.verb == "requested":
            found = self.ask("SELECT requester, until_ms, token FROM litelease_requested(?, ?)", name, now)
            return asked(*found) if found else "none"
        if step.verb in ("hand over", "take over"):
            token = self.call(step.verb.replace(" ", "_"), name, owner, ttl, now, *options)
            lease = self.lease(name, now) or ("nobody", 0, 0)
            return "rejected" if token is None else f"{PAST[step.verb]} {token} until {lease[2]}"
        if step.verb == "read":
            return versioned(self.call("read", name, words["reader"], ttl, now))
        if step.verb == "unread":
            return "unread" if self.call("unread", name, words["reader"]) else "none"
        if step.verb == "drained":
            return "drained" if self.call("drained", name, *options, now) else "not drained"
        found = self.call("owner", name, now) if step.verb == "owner" else self.call("token", name)
        if found is None:
            return "none"
        return f"owner {shown(str(found))}" if step.verb == "owner" else str(found)


PAST = {"renew": "renewed", "transfer": "transferred", "hand over": "transferred", "take over": "acquired"}


def slots(found: list[Slot]) -> str:
    ends = [(s, "kept" if s.is_kept else f"until {s.expires_at_ms}") for s in found]
    return " ".join(f"slot {s.position} token {s.token} {end}" for s, end in ends) or "none"


def valued(value: object) -> str:
    return "none" if value is None else f"value {shown(str(value))}"


def asked(requester: object, until_ms: object, token: object = None) -> str:
    of_grant = "" if token is None else f" token {token}"
    return f"requested by {shown(str(requester))} until {until_ms}{of_grant}"


def versioned(version: object) -> str:
    return "none" if version is None else f"version {version}"


def delivered(item: Item | None) -> str:
    if item is None:
        return "none"
    until = f"attempt {item.attempt} token {item.token} until {item.deadline_ms}"
    return f"item {item.id} {until} body {shown(str(item.body))}"


def listed(item: ItemInfo) -> str:
    key = "" if item.key is None else f" key {shown(item.key)}"
    note = "" if item.note is None else f" note {shown(item.note)}"
    return f"item {item.id} {item.state.value} attempt {item.attempt}{key}{note}"


def ticked(answer: object) -> str:
    if isinstance(answer, TickAcquired):
        previous = "" if answer.previous_ms is None else f" previous {answer.previous_ms}"
        return f"acquired {grant(answer.lease)} attempt {answer.attempt}{previous}"
    if isinstance(answer, Busy):
        return told(answer) + ("" if answer.tick_ms is None else f" runs {answer.tick_ms}")
    if isinstance(answer, (AlreadyTaken, TickChanged)):
        return f"{'taken' if isinstance(answer, AlreadyTaken) else 'newest'} {answer.tick_ms} {answer.state.value}"
    if isinstance(answer, Finished):
        return "finished before" if answer.is_repeated else "finished"
    if isinstance(answer, StaleTick):
        return "error StaleTick"
    return {First: "first", InFuture: "in future"}.get(type(answer), "none")


def told(answer: object) -> str:
    if isinstance(answer, Stored):
        return "done"
    if isinstance(answer, Stale):
        return f"rejected superseded by {answer.newest}"
    if isinstance(answer, Requested):
        return f"requested until {answer.until_ms}"
    if isinstance(answer, RequestedBy):
        return asked(answer.requester, answer.until_ms)
    if isinstance(answer, Acquired):
        return f"acquired {grant(answer.lease)}"
    if isinstance(answer, Busy):
        return f"busy {shown(answer.current.owner)} {grant(answer.current)}"
    if isinstance(answer, Renewed):
        return f"renewed {grant(answer.lease)}"
    if isinstance(answer, Released):
        return f"released {answer.token}"
    if isinstance(answer, Transferred):
        return f"transferred {grant(answer.lease)}"
    if isinstance(answer, Broken):
        return f"broken {answer.token}"
    assert isinstance(answer, Rejected)
    if answer.reason is Reason.HELD_BY:
        assert answer.current is not None
        return f"rejected held by {shown(answer.current.owner)} {answer.current.token}"
    if answer.reason is Reason.SUPERSEDED:
        return f"rejected superseded by {answer.newest}"
    return f"rejected {answer.reason.value}"


def grant(lease: Lease) -> str:
    return f"{lease.token} until {lease.expires_at_ms}"


def by_its_words(error: sqlite3.Error) -> str:
    """Python 3.10 and older do not name the code."""
    return "SQLITE_BUSY" if "locked" in str(error) else str(error)


def by_function_words(answer: str, error: str) -> bool:
    words = {
        "error InvalidTtl": "the ttl must be at least 1 ms",
        "error TimeOverflow": "ends after the last representable time",
        "error TokenExhausted": "no larger token exists",
        "error InvalidTime": "must be at least 1 ms",
        "error TtlTooLong": "the ttl of a read is at most",
    }
    return answer in words and words[answer] in error


# Whether a transaction has read yet is not told by Python's sqlite3, so there the verbs ask for the
# lock first.
LOCKS_FIRST = {"stale_snapshot.lease": 'at 110  claim live c ttl 50             -> busy a 1 until 1000'}


@pytest.mark.parametrize("factory", [sqlite3.Connection, OwnConnection])
@pytest.mark.parametrize("path", scenario.files(), ids=lambda path: path.stem)
def test_the_verbs_play_every_scenario(path: Path, factory: type[sqlite3.Connection], tmp_path: Path) -> None:
    steps = scenario.read(path)
    player = Verbs(tmp_path, factory)
    for step in steps:
        answer = player.play(step)
        if LOCKS_FIRST.get(path.name) == step.text and factory is sqlite3.Connection:
            assert answer == "error SQLITE_BUSY_SNAPSHOT", step.place
            continue
        assert answer == step.answer, f"{step.place}: {step.text}"


@pytest.mark.skipif(not CAN_LOAD, reason="this Python's sqlite3 cannot load extensions")
@pytest.mark.parametrize("path", scenario.files(), ids=lambda path: path.stem)
def test_the_sql_functions_play_every_scenario(path: Path, tmp_path: Path) -> None:
    player = Functions(tmp_path)
    for step in scenario.read(path):
        if step.verb == "claim from dead":
            return  # SQL has no such function, and the rest of the file depends on it
        if step.verb in scenario.TICK_VERBS or "tick" in step.words:
            return  # `make test-rust` plays these
        try:
            answer = player.play(step)
        except sqlite3.Error as error:  # pragma: no cover
            raise AssertionError(step.place) from error
        if answer == "error SQLITE_ERROR":
            # An error of ours is a plain one to SQLite; its words tell which.
            with pytest.raises(sqlite3.OperationalError) as caught:
                player.perform(step, step.words.get("name", ""))
            assert by_function_words(step.answer, str(caught.value)), f"{step.place}: {caught.value}"
            continue
        if answer == "rejected":
            assert step.answer.startswith("rejected "), f"{step.place}: {step.text}"
            continue
        assert answer == step.answer, f"{step.place}: {step.text}"
