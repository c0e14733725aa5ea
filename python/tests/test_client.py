"""The client of the service, against a real server, and through a proxy that loses and delays answers."""

from __future__ import annotations

import asyncio
import gc
import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
import warnings
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest
from service import Proxy, Server

import litelease
from litelease import (
    Acknowledged,
    Acquired,
    AlreadyTaken,
    BegunTick,
    Busy,
    Cancelled,
    Client,
    ExpiredOnArrival,
    Finished,
    First,
    Grant,
    HoldTimeout,
    InFuture,
    InvalidUrl,
    Leased,
    LiteleaseError,
    Lost,
    NoFreeSlot,
    NoSuchPool,
    NotFound,
    NotRequested,
    Reason,
    Rejected,
    Released,
    RemoteSlot,
    Renewed,
    RequestedBy,
    ServerRefused,
    ServerUnreachable,
    StaleReason,
    StaleTick,
    Stored,
    TickChanged,
    TickState,
    Transferred,
    aio,
)
from litelease._client_hold import window
from litelease._client_http import Outcome
from litelease._wait import clock

SOON = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.kill()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    """A server that a test may kill or stop."""
    server = Server(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server.url, server.key)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.address)
    yield proxy
    proxy.close()


@pytest.fixture
def name() -> str:
    return f"test/{uuid.uuid4()}"


def granted(answer: object) -> Grant:
    assert isinstance(answer, Acquired) and isinstance(answer.lease, Grant), answer
    return answer.lease


def eventually(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_name_is_claimed_renewed_and_released(client: Client, name: str) -> None:
    lease = granted(client.claim(name, "a", ttl=30))
    assert lease.is_trusted and (lease.name, lease.owner) == (name, "a") and lease.grant not in repr(lease)
    busy = client.claim(name, "b", ttl=30)
    assert isinstance(busy, Busy) and not busy and (busy.current.owner, busy.current.token) == ("a", lease.token)
    renewed = client.renew(lease, ttl=60)
    assert renewed and isinstance(renewed.lease, Grant) and renewed.lease.trusted_until > lease.trusted_until
    seen = client.inspect(name)
    assert seen is not None and seen.owner == "a" and [found.name for found in client.leases(name)] == [name]
    assert client.release(lease) == Released(name, lease.token)
    assert client.renew(lease, ttl=30) == Rejected(Reason.RELEASED, None, None)
    assert client.inspect(name) is None and client.leases(name) == []
    assert granted(client.claim(name, "b", ttl=30, min_token=lease.token + 10)).token > lease.token + 10
    broken = client.break_lease(name)
    assert broken and broken.owner == "b"
    with pytest.raises(TypeError, match="does not accept owner and token alone"):
        client.release(seen)


def test_a_transferred_lease_goes_to_the_claim_of_its_new_owner(client: Client, name: str) -> None:
    lease = granted(client.claim(name, "a", ttl=30))
    handed = client.transfer(lease, "b", ttl=30)
    assert isinstance(handed, Transferred) and handed.lease.token == lease.token + 1
    heir = granted(client.claim(name, "b", ttl=30))
    assert heir.token == handed.lease.token and heir.is_trusted
    refused = client.renew(lease, ttl=30)
    assert isinstance(refused, Rejected) and refused.reason is Reason.SUPERSEDED and client.release(heir)


def test_values_limits_and_checkpoints_ride_on_a_grant(client: Client, name: str) -> None:
    assert client.value(name) is None and client.last_checkpoint(name) is None
    lease = granted(client.claim(name, "a", ttl=30))
    for value in (b"\0\xff", "text", 2**60, 0.5, None):
        assert client.attach(lease, value) == Stored() and client.value(name) == value
        assert client.checkpoint(lease, value) == Stored()
        last = client.last_checkpoint(name)
        assert last is not None and (last.token, last.value) == (lease.token, value)
    assert client.limit(lease, progress_within=0.01) and client.progress(lease)
    time.sleep(0.02)
    late = client.renew(lease, ttl=30)
    assert isinstance(late, Rejected) and late.reason is Reason.NO_PROGRESS
    assert client.limit(lease, max_time=10) and client.renew(lease, ttl=30)
    client.release(lease)
    over = client.attach(lease, 1)
    assert isinstance(over, Rejected) and over.reason is Reason.RELEASED


def test_a_holder_hands_over_to_the_requester_that_waits(client: Client, name: str) -> None:
    with client.hold(name, ttl=30) as held:
        with pytest.raises(NotRequested):
            held.hand_over(30)
        held.check()
        assert client.request(name, "heir", within=20) and held.requested() is not None
        told = client.request(name, "other", within=20)
        assert isinstance(told, RequestedBy) and told.requester == "heir" and not told
        answers: list[object] = []
        waiter = threading.Thread(target=lambda: answers.append(client.claim_wait(name, "heir", 30, 20)))
        waiter.start()
        assert held.hand_over(30).owner == "heir"
        with pytest.raises(Lost) as lost:
            held.check()
        assert lost.value.reason.kind == "HandedOver"
    waiter.join(SOON)
    heir = granted(answers[0])
    assert heir.token == held.token + 1 and heir.is_trusted
    client.release(heir)


def test_a_hold_outlives_its_ttl_and_ends_with_its_block(client: Client, name: str) -> None:
    with client.hold(name, ttl=2) as held:
        first = held.lease.trusted_until
        eventually(lambda: held.lease.trusted_until > first + 1.5)
        held.check()
        with pytest.raises(HoldTimeout, match="is held by"):
            client.hold(name, ttl=30)
    assert client.inspect(name) is None and not held.lost.is_set()
    with pytest.raises(Lost):
        held.check()


def test_a_broken_hold_is_told(client: Client, name: str) -> None:
    with client.hold(name, ttl=3) as held:
        assert client.break_lease(name) and held.lost.wait(SOON)
        with pytest.raises(Lost) as lost:
            held.check()
        assert lost.value.reason.kind == "Broken"


def test_a_hold_is_released_when_it_is_dropped(client: Client, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = client.hold(name, ttl=60)
        held.check()
        del held
        gc.collect()
        eventually(lambda: client.inspect(name) is None)


def test_a_hold_is_released_at_the_end_of_the_interpreter(server: Server, client: Client, name: str) -> None:
    run(server, f"held = client.hold({name!r}, ttl=60); held.check()")
    assert client.inspect(name) is None


def test_a_forked_child_is_not_the_holder_and_may_use_the_client(client: Client, name: str) -> None:
    with client.hold(name, ttl=30) as held:
        child = os.fork()
        if child == 0:
            try:
                held.check()
            except Lost as lost:
                held.release()
                seen = client.inspect(name)
                os._exit(0 if lost.reason.kind == "Forked" and seen is not None and seen.owner == held.owner else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        held.check()
        assert client.renew(held.lease, ttl=30)


def run(server: Server, text: str) -> None:
    assert start(server, text).wait() == 0


def start(server: Server, text: str) -> "subprocess.Popen[bytes]":
    begin = "import os, sys, time, litelease; client = litelease.Client(sys.argv[1])\n"
    environment = {**os.environ, "LITELEASE_ACCESS_FILE": str(server.key)}
    environment["PYTHONPATH"] = str(Path(litelease.__file__).parents[1])
    return subprocess.Popen([sys.executable, "-c", begin + text, server.url], env=environment)


def test_two_processes_never_hold_a_name_at_once(server: Server, tmp_path: Path, name: str) -> None:
    # Each makes a file that must not be there, and writes down its token.
    text = f"""
for _ in range(10):
    with client.hold({name!r}, ttl=10, wait=60) as held:
        inside = os.open({str(tmp_path / "inside")!r}, os.O_CREAT | os.O_EXCL)
        with open({str(tmp_path / "tokens")!r}, "a") as tokens:
            print(held.token, file=tokens)
        held.check()
        os.close(inside)
        os.unlink({str(tmp_path / "inside")!r})
"""
    both = [start(server, text) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    tokens = [int(line) for line in (tmp_path / "tokens").read_text().split()]
    assert len(tokens) == 20 and tokens == sorted(set(tokens))


def test_a_lost_answer_is_asked_for_again_and_nothing_is_granted_twice(
    server: Server, client: Client, proxy: Proxy, name: str
) -> None:
    far = Client(proxy.url, server.key)
    lost: list[str] = []

    def lose(path: str, answer: bytes) -> bytes | None:
        if path in lost:
            return answer
        lost.append(path)
        return None if len(lost) % 2 else answer[: len(answer) - 5]  # cut off, or cut short

    proxy.meddle = lose
    lease = granted(far.claim(name, "a", ttl=30))
    assert lease.is_trusted and far.renew(lease, ttl=30) and far.release(lease) == Released(name, lease.token)
    assert granted(client.claim(name, "b", ttl=30)).token == lease.token + 1
    queue = far.queue(name)
    queue.send("once")
    item = queue.receive(visibility=30)
    assert item is not None and item.attempt == 1 and item.is_trusted and item.ack() == Acknowledged()
    assert client.queue(name).receive(visibility=30) is None and len(lost) == 6


# A release or a transfer that is asked for again, because its answer got lost, may find another owner: it was told that
# it was rejected, although it was done.
def test_a_release_or_transfer_whose_answer_was_lost_is_not_rejected_because_of_a_successor(
    server: Server, client: Client, proxy: Proxy, name: str
) -> None:
    far = Client(proxy.url, server.key)

    def lose(path: str, answer: bytes) -> bytes | None:
        proxy.meddle = lambda path, answer: answer
        client.break_lease(name)
        granted(client.claim(name, "b", ttl=30))
        return None

    lease = granted(far.claim(name, "a", ttl=30))
    proxy.meddle = lose
    assert far.release(lease) == Released(name, lease.token)
    client.break_lease(name)
    lease = granted(far.claim(name, "a", ttl=30))
    proxy.meddle = lose
    with pytest.raises(ServerUnreachable, match="may be done or not"):
        far.transfer(lease, "c", ttl=30)


# A release that never reached the server was told to be done, after an operator's break or the end of the lease: as if
# another client had been granted the name because of it.
@pytest.mark.parametrize("how", ["never sent", "never passed on", "expired"])
def test_a_release_that_did_not_end_the_lease_is_rejected(
    server: Server, client: Client, proxy: Proxy, name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Client(proxy.url, server.key)
    lease = granted(far.claim(name, "a", ttl=0.5 if how == "expired" else 30))
    place, call, port = far._http._place, far._http.call, far._http._place.port
    later: list[Grant] = []

    def succeed() -> None:
        if how != "expired":
            client.break_lease(name)
        later.append(granted(client.claim_wait(name, "b", 30, SOON)))

    def hang_up_once(path: str) -> "bytes | None":
        proxy.stand_in = lambda path: None
        succeed()
        return b""

    def refused_once(*values: Any) -> Outcome:
        told = call(*values)
        if not later:
            assert "refused" in told.why
            succeed()
            place.port = port
        return told

    with socket.socket() as closed:
        if how == "never sent":
            closed.bind(("127.0.0.1", 0))
            place.port = closed.getsockname()[1]
            monkeypatch.setattr(far._http, "call", refused_once)
        else:
            proxy.stand_in = hang_up_once
        told = far.release(lease)
    assert isinstance(told, Rejected) and told.current is not None and told.current.token == later[0].token, told


def test_an_answer_that_comes_after_the_ttl_is_not_trusted(
    server: Server, client: Client, proxy: Proxy, name: str
) -> None:
    far = Client(proxy.url, server.key)
    others: list[Grant] = []

    def late(path: str, answer: bytes) -> bytes | None:
        if path == "/v1/claim":
            others.append(granted(client.claim_wait(name, "b", 30, SOON)))
        return answer

    proxy.meddle = late
    with pytest.raises(ExpiredOnArrival):
        far.claim(name, "a", ttl=0.4)
    client.release(others.pop())
    with pytest.raises(ExpiredOnArrival):
        far.hold(name, ttl=0.3)


def test_a_slot_whose_answer_comes_after_the_ttl_is_not_trusted(server: Server, client: Client, proxy: Proxy) -> None:
    far, pool = Client(proxy.url, server.key), str(uuid.uuid4())
    client.register(pool, 1)
    others: list[RemoteSlot] = []

    def late(path: str, answer: bytes) -> bytes | None:
        if path.endswith("/borrow"):
            others.append(client.borrow(pool, wait=SOON))
        return answer

    proxy.meddle = late
    with pytest.raises(NoFreeSlot):
        far.borrow(pool, ttl=0.3)
    others.pop().release()


def test_a_grant_that_was_waited_for_is_renewed_at_once(server: Server, client: Client, proxy: Proxy, name: str) -> None:
    granted(client.claim(name, "a", ttl=2))
    lease = granted(Client(proxy.url, server.key).claim_wait(name, "b", 3, SOON))
    assert lease.is_trusted and proxy.seen == ["/v1/claim", "/v1/renew"]


def test_a_renewal_is_trusted_from_its_start(server: Server, client: Client, proxy: Proxy, name: str) -> None:
    far = Client(proxy.url, server.key)

    def late(path: str, answer: bytes) -> bytes | None:
        if path == "/v1/renew":
            granted(client.claim_wait(name, "b", 30, SOON))
        return answer

    proxy.meddle = late
    renewed = far.renew(granted(far.claim(name, "a", ttl=2)), ttl=2)
    assert renewed and isinstance(renewed.lease, Grant) and not renewed.lease.is_trusted


def test_a_hold_is_trusted_from_the_start_of_its_renewal(server: Server, proxy: Proxy, name: str) -> None:
    far = Client(proxy.url, server.key)
    came: list[float] = []

    def slow(path: str, answer: bytes) -> bytes | None:
        if path == "/v1/renew":
            came.append(clock())
            time.sleep(0.1)
        return answer

    proxy.meddle = slow
    with far.hold(name, ttl=3) as held:
        first = held.lease.trusted_until
        eventually(lambda: held.lease.trusted_until > first)
        # Nine tenths of the ttl, from before the request came to the server.
        assert held.lease.trusted_until < came[-1] + 2.7


def test_a_holder_whose_renewals_are_not_answered_is_told_before_another_one_is_granted(
    server: Server, client: Client, proxy: Proxy, name: str
) -> None:
    far, is_over = Client(proxy.url, server.key), threading.Event()
    served: list[bytes] = []

    def late(path: str, answer: bytes) -> bytes | None:
        # The first renewals are answered at once, and from then on none is passed on in time.
        served.append(answer)
        if path == "/v1/renew" and len(served) > 2:
            is_over.wait(SOON)
        return answer

    proxy.meddle = late
    with far.hold(name, ttl=2) as held:
        eventually(lambda: len(served) > 2)
        proxy.close()  # and no other connection is made
        other = granted(client.claim_wait(name, "b", 30, SOON))
        with pytest.raises(Lost):
            held.check()
        assert held.lost.wait(SOON) and other.token > held.token
        is_over.set()
    assert client.release(other)


def test_an_outage_shorter_than_the_trust_costs_nothing(own: Server, name: str) -> None:
    client = Client(own.url, own.key)
    with client.hold(name, ttl=10) as held:
        own.kill()
        answers: list[object] = []
        during = threading.Thread(target=lambda: answers.append(client.claim(name + "/other", "a", ttl=30)))
        during.start()
        own.restart()
        during.join(SOON)
        assert granted(answers[0]).is_trusted
        before = held.lease.trusted_until
        eventually(lambda: held.lease.trusted_until > before)
        held.check()
        again = client.inspect(name)
        assert again is not None and again.token == held.token
    assert client.inspect(name) is None


def test_a_server_that_stands_still_longer_than_the_ttl_is_a_loss_told_in_time(own: Server, name: str) -> None:
    first, second = Client(own.url, own.key), Client(own.url, own.key)
    others: list[tuple[object, bool]] = []
    with first.hold(name, ttl=2) as held:

        def wait() -> None:
            answer = second.claim_wait(name, "b", 30, SOON)
            try:
                held.check()
                others.append((answer, False))
            except Lost:
                others.append((answer, True))

        waiter = threading.Thread(target=wait)
        waiter.start()
        with own.stopped():
            assert held.lost.wait(SOON) and not others
            with pytest.raises(Lost) as lost:
                held.check()
            assert lost.value.reason.kind == "CannotRenew"
            time.sleep(max(held.lease.trusted_until + 0.1 - clock(), 0))
        waiter.join(SOON)
        answer, was_told = others[0]
        assert was_told and granted(answer).token > held.token and granted(answer).is_trusted


def test_503_is_tried_again_and_409_is_not(server: Server, client: Client, proxy: Proxy, name: str) -> None:
    far = Client(proxy.url, server.key)
    answers = [b'HTTP/1.1 503 Unavailable\r\nContent-Length: 2\r\n\r\n{}']
    proxy.meddle = lambda path, answer: answers.pop() if answers else answer
    lease = granted(far.claim(name, "a", ttl=30))
    assert proxy.seen == ["/v1/claim"] * 2
    assert isinstance(far.claim(name, "b", ttl=30), Busy) and len(proxy.seen) == 3
    assert far.release(lease) and isinstance(far.release(lease), Rejected) and len(proxy.seen) == 5


def test_an_answer_to_another_request_is_none(server: Server, client: Client, proxy: Proxy, name: str) -> None:
    far = Client(proxy.url, server.key, retry_for=0.1)
    kept: dict[str, bytes] = {}
    proxy.meddle = lambda path, answer: kept.setdefault(path, answer)
    lease = granted(far.claim(name, "a", ttl=30))
    assert far.renew(lease, ttl=30)
    with pytest.raises(ServerUnreachable, match="belongs to another request"):
        far.renew(lease, ttl=30)
    client.break_lease(name)


def test_a_slot_is_kept_alive_and_returned(server: Server, client: Client) -> None:
    pool = str(uuid.uuid4())
    with pytest.raises(NoSuchPool):
        client.borrow(pool)
    client.register(pool, 1)
    with client.borrow(f"{server.url}/l/{pool}", ttl=2, note="import") as slot:
        first = slot._trusted_until
        assert slot.position == 0 and slot.token > 0
        eventually(lambda: slot._trusted_until > first + 1.5)
        slot.check()
        with pytest.raises(NoFreeSlot):
            client.borrow(pool)
    with client.borrow(pool, wait=SOON) as next_one:
        assert next_one.token > slot.token
    with pytest.raises(InvalidUrl, match="another server"):
        client.borrow(f"http://127.0.0.1:1/l/{pool}")
    with pytest.raises(NoSuchPool, match="UUID"):
        client.borrow("gpu")


def test_a_queue_delivers_to_one_worker_at_a_time(client: Client, name: str) -> None:
    queue = client.queue(name)
    assert queue.receive(visibility=30) is None
    first = queue.send(b"\0\xff", key="order 17")
    assert queue.send("again", key="order 17") == first
    item = queue.receive(visibility=30)
    assert item is not None and (item.id, item.body, item.attempt) == (first, b"\0\xff", 1) and item.is_trusted
    assert queue.receive(visibility=30) is None and item.extend(60) and item.receipt not in repr(item)
    assert item.give_back(note="not now") and not item.give_back()
    again = queue.receive(visibility=30, wait=SOON)
    assert again is not None and again.attempt == 2 and again.token > item.token
    stale = item.ack()
    assert not stale and stale.reason is StaleReason.DELIVERED_AGAIN and item.extend(30) is None
    assert again.bury(note="no such address")
    counted = queue.info()
    assert counted is not None and counted.dead == 1 and [found.queue for found in client.queues(name)] == [name]


def test_an_operator_redrives_discards_cancels_and_lists_what_is_in_a_queue(client: Client, name: str) -> None:
    queue = client.queue(name)
    first, second = queue.send("a"), queue.send("b")
    for _ in range(2):
        item = queue.receive(visibility=30)
        assert item is not None and client.queue("").bury(item.receipt, note="no")
    third = queue.send("c", key="order 17", delay=60)
    assert [(item.id, item.state.value) for item in queue.items()] == [
        (first, "dead"),
        (second, "dead"),
        (third, "delayed"),
    ]
    assert [(item.id, item.note, item.visible_at_ms) for item in queue.dead()] == [(first, "no", None), (second, "no", None)]
    assert abs(queue.items()[2].sent_at_ms - time.time() * 1000) < 60_000
    assert (queue.redrive(third), queue.redrive(first, reason="mended"), queue.discard(reason="old")) == (0, 1, 1)
    assert queue.discard(first) == 0
    item = queue.receive(visibility=30)
    assert item is not None and item.id == first
    leased = queue.cancel(first)
    assert isinstance(leased, Leased) and not leased and leased.deadline_ms > time.time() * 1000
    assert queue.cancel("order 17") == Cancelled() and queue.cancel("order 17") == NotFound()
    assert queue.delete() and not queue.delete() and queue.items() == []
    stale = client.queue("").ack(item.receipt)
    assert not stale and stale.reason is StaleReason.GONE


def test_a_client_finds_the_local_key_and_keeps_it_on_this_machine(
    server: Server, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(server.state))
    monkeypatch.delenv("LITELEASE_ACCESS_FILE", raising=False)
    local = Client(server.url.replace("127.0.0.1", "localhost"))
    assert local.release(granted(local.claim(name, "a", ttl=30)))
    monkeypatch.setenv("LITELEASE_ACCESS_FILE", str(tmp_path / "none"))
    with pytest.raises(LiteleaseError, match="the file with the access key cannot be read"):
        Client(server.url)
    monkeypatch.setenv("LITELEASE_ACCESS_FILE", str(server.key))
    assert Client(server.url).leases(name) == []
    for url in ("http://lease.example:7070", "http://127.0.0.1.evil.example", "http://10.0.0.7"):
        with pytest.raises(LiteleaseError, match="in the clear: use https"):
            Client(url)
    for url in ("", "localhost:7070", "ftp://x", "http://", "http://x/v1", "http://u@x", "http://x:y"):
        with pytest.raises(InvalidUrl, match="say http://127.0.0.1:7070"):
            Client(url, "key")


def test_the_local_key_does_not_go_to_a_stranger_at_the_address_of_its_server(
    own: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(own.state))
    monkeypatch.delenv("LITELEASE_ACCESS_FILE", raising=False)
    before = Client(own.url, retry_for=0.2)
    assert before.release(granted(before.claim(name, "a", ttl=30)))
    own.kill()
    heard: list[str] = []

    class Stranger(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(str(self.headers))
            self.send_error(503)

        def log_message(self, *_: object) -> None:
            pass

    host, port = own.address.split(":")
    with http.server.HTTPServer((host, int(port)), Stranger) as stranger:
        thread = threading.Thread(target=stranger.serve_forever)
        thread.start()
        try:
            for client in (before, Client(own.url, retry_for=0.2)):
                with pytest.raises(ServerUnreachable):
                    client.claim(name, "a", ttl=30)
        finally:
            stranger.shutdown()
            thread.join()
    assert not any("authorization" in one.lower() for one in heard), heard


def test_errors_say_what_to_do(server: Server, name: str) -> None:
    with pytest.raises(ServerUnreachable, match="does `litelease serve` run there"):
        Client("http://127.0.0.1:1", "key", retry_for=0.05).claim(name, "a", ttl=30)
    with pytest.raises(ServerRefused, match="`litelease access add` prints a key") as refused:
        Client(server.url, "wrong").claim(name, "a", ttl=30)
    assert refused.value.status == 401 and "wrong" not in str(refused.value)
    with pytest.raises(ServerRefused, match="claim:") as refused:
        Client(server.url, server.add_key("claim:else/*")).claim(name, "a", ttl=30)
    assert refused.value.status == 403
    with pytest.raises(ServerUnreachable, match="use http if the server speaks no TLS"):
        Client(server.url.replace("http", "https"), "key").claim(name, "a", ttl=30)
    with pytest.raises(LiteleaseError, match="0.1 s"):
        Client(server.url, server.key).hold(name, ttl=0.05)


def test_what_is_no_server_of_leases_is_named(name: str) -> None:
    class Other(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None:
            pass

    other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=other.serve_forever, args=(0.02,), daemon=True).start()
    try:
        client = Client(f"http://127.0.0.1:{other.server_port}", "key")
        with pytest.raises(ServerUnreachable, match="is no Litelease server"):
            client.claim(name, "a", ttl=30)
        with pytest.raises(ServerUnreachable, match="501"):
            Client(client.url, "key", retry_for=0.05).inspect(name)
    finally:
        other.shutdown()
        other.server_close()


def test_a_certificate_is_checked(tmp_path: Path, name: str) -> None:
    openssl = shutil.which("openssl")
    assert openssl, "openssl is missing"
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, stderr=subprocess.DEVNULL)
    server = Server(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key))
    try:
        url = server.url.replace("127.0.0.1", "localhost")
        with pytest.raises(ServerUnreachable, match="pass ca_file="):
            Client(url, server.key).claim(name, "a", ttl=30)
        with pytest.raises(ServerUnreachable, match="pass ca_file="):
            Client(server.url, server.key, ca_file=cert).claim(name, "a", ttl=30)  # it is for another name
        with Client(url, server.key, ca_file=cert).hold(name, ttl=2) as held:
            first = held.lease.trusted_until
            eventually(lambda: held.lease.trusted_until > first)
        with pytest.raises(ServerUnreachable):
            Client(server.url.replace("https", "http"), server.key, retry_for=0.05).claim(name, "a", ttl=30)
    finally:
        server.kill()


def test_asyncio_holds_and_a_cancelled_claim_leaves_nothing_behind(server: Server, client: Client, name: str) -> None:
    async def work() -> None:
        far = aio.Client(server.url, server.key)
        async with far.hold(name, ttl=30) as held:
            held.check()
            waiting = asyncio.ensure_future(far.claim_wait(name, "b", 30, SOON))
            while (await asyncio.to_thread(client._look, "leases", name=name))["waiters"] < 1:
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert await far.inspect(name) is None
        lease = granted(await far.claim(name, "c", 30))
        assert await far.attach(lease, 7) and await far.value(name) == 7 and await far.release(lease)
        pool = str(uuid.uuid4())
        await far.register(pool, 1)
        async with far.borrow(pool) as slot:
            assert slot.position == 0
        queue = far.queue(name)
        await queue.send("hello")
        item = await queue.receive(30)
        assert item is not None and await queue.ack(item) == Acknowledged()
        last = await queue.send("last")
        assert [item.id for item in await queue.items()] == [last] and await queue.dead() == []
        assert await queue.redrive() == 0 and await queue.discard() == 0 and not await queue.cancel("nothing")
        assert await queue.cancel(last) and await queue.delete()

    asyncio.run(work())


def test_the_examples_of_the_page_run(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELEASE_ACCESS_FILE", str(server.key))
    page = (Path(__file__).parents[2] / "docs/client.md").read_text()
    blocks = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    assert len(blocks) == 4
    names: dict[str, object] = {"__name__": "example"}
    for block in blocks:
        exec(compile(block.replace("http://127.0.0.1:7070", server.url), "client.md", "exec"), names)


# Answers to calls on pools were believed whichever request they belonged to. A proxy that answered
# a renewal with the answer to an older one prolonged the trust in a slot that another client had by
# then.
def test_a_replayed_answer_prolongs_no_slot(server: Server, client: Client, proxy: Proxy) -> None:
    far, pool = Client(proxy.url, server.key), str(uuid.uuid4())
    client.register(pool, 1)
    kept: list[bytes] = []

    def keep(path: str, answer: bytes) -> bytes | None:
        if path.endswith("/renew"):
            kept.append(answer)
        return answer

    proxy.meddle = keep
    slot = far.borrow(pool, ttl=2)
    eventually(lambda: len(kept) > 0)
    # From now on no renewal reaches the server.
    proxy.stand_in = lambda path: kept[0] if path.endswith("/renew") else None
    with client.borrow(pool, ttl=30, wait=SOON):
        with pytest.raises(Lost):
            slot.check()
        assert slot.lost.wait(SOON)


# A break whose answer got lost was asked for again, and ended the lease of the client that had been granted
# the name meanwhile.
def test_a_break_whose_answer_is_lost_is_not_repeated(server: Server, client: Client, proxy: Proxy, name: str) -> None:
    far = Client(proxy.url, server.key)
    later: list[Grant] = []
    granted(client.claim(name, "a", ttl=30))

    def lose(path: str, answer: bytes) -> bytes | None:
        later.append(granted(client.claim(name, "b", ttl=30)))
        return None

    proxy.meddle = lose
    with pytest.raises(ServerUnreachable):
        far.break_lease(name)
    seen = client.inspect(name)
    assert seen is not None and (seen.owner, seen.token) == ("b", later[0].token) and proxy.seen == ["/v1/break"]


# A client that counted its trust from the answer to a claim, or from a second request after the
# first answer got lost, was not caught: the other tests let so much time pass that the grant is
# renewed before it is trusted.
def test_a_grant_is_trusted_from_the_start_of_its_first_request(
    server: Server, client: Client, proxy: Proxy, name: str
) -> None:
    far, pool = Client(proxy.url, server.key), str(uuid.uuid4())
    client.register(pool, 1)
    done: list[float] = []

    def lose_the_first(path: str, answer: bytes) -> bytes | None:
        done.append(clock())
        if len(done) == 1:
            return None
        time.sleep(0.2)  # the answer is late, too
        return answer

    def begin() -> None:
        done.clear()
        proxy.meddle = lose_the_first

    trusted_for, _ = window(name, 30.0)
    begin()
    lease = granted(far.claim(name, "a", ttl=30))
    assert len(done) == 2 and lease.trusted_until < done[0] + trusted_for
    client.release(lease)
    begin()
    with far.hold(name, ttl=30) as held:
        assert len(done) == 2 and held._trusted_until < done[0] + trusted_for
    begin()
    with far.borrow(pool, ttl=30) as slot:
        assert len(done) == 2 and slot._trusted_until < done[0] + trusted_for


def test_a_tick_is_run_once_among_machines(client: Client, proxy: Proxy, server: Server, name: str) -> None:
    tick_ms = int(time.time() * 1000) - 1000
    far = Client(proxy.url, server.key)
    lost: list[str] = []

    def lose(path: str, answer: bytes) -> bytes | None:
        if len(lost) < 2:
            lost.append(path)
            return None
        return answer

    proxy.meddle = lose
    lease = granted(far.claim_tick(name, "a", 30, tick_ms=tick_ms, attempts=1, schedule="1h"))
    assert lease.tick == BegunTick(tick_ms, 1)
    renewed = far.renew(lease, 30)
    assert isinstance(renewed, Renewed) and granted(Acquired(renewed.lease)).tick == lease.tick
    assert isinstance(client.skip_ticks(name), Busy)
    lost.clear()
    assert far.finish_tick(lease) == Finished()
    assert client.claim_tick(name, "b", 30, tick_ms=tick_ms, wait=SOON) == AlreadyTaken(tick_ms, TickState.DONE)
    found = client.newest_tick(name)
    assert found is not None and (found.done_ms, found.attempts, found.schedule) == (tick_ms, 1, "1h")
    assert client.tick_again(name, reason="once more") == TickChanged(tick_ms, TickState.OPEN)
    assert client.finish_tick(lease) == StaleTick(tick_ms, TickState.OPEN)
    lost.clear()
    assert far.tick(name, tick_ms) == First()
    assert not client.tick(name, tick_ms)
    assert isinstance(client.tick(name, tick_ms + 3_600_000), InFuture)
    assert [info.name for info in client.ticks(name)] == [name]
    assert client.forget_tick(name) == TickChanged(tick_ms, TickState.DONE)
    assert (client.forget_tick(name), client.newest_tick(name)) == (None, None)
    assert client.install_schedule(name, tick_ms, "1h") == TickChanged(tick_ms, TickState.SKIPPED)
