"""The Python of docs/fencing.md, as it stands there."""

from __future__ import annotations

import hashlib
import http.server
import re
import sys
import threading
from pathlib import Path
from typing import Any, Iterator

import pytest

import litelease

DOCUMENT = Path(__file__).parents[2] / "docs" / "fencing.md"


def block(words: str) -> dict[str, Any]:
    found = re.search(rf"```python {words}\n(.*?)\n```", DOCUMENT.read_text(), re.DOTALL)
    assert found, words
    names: dict[str, Any] = {}
    exec(found[1], names)
    return names


class Store(http.server.BaseHTTPRequestHandler):
    """A store of objects with conditional puts, as S3 has them."""

    objects: dict[str, tuple[bytes, str]] = {}
    lock = threading.Lock()
    meddle: Any = None

    def answer(self, status: int, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        with self.lock:
            found = self.objects.get(self.path)
        if found is None:
            return self.answer(404)
        self.answer(200, ("ETag", etag(found)), ("x-amz-meta-litelease-token", found[1]))

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if (meddle := Store.meddle) is not None:
            Store.meddle = None
            meddle()
        with self.lock:
            found = self.objects.get(self.path)
            unchanged = self.headers["If-Match"] == etag(found) if found else self.headers["If-None-Match"] == "*"
            if unchanged:
                self.objects[self.path] = (body, self.headers["x-amz-meta-litelease-token"])
        self.answer(200 if unchanged else 412)

    def log_message(self, *_: object) -> None:
        pass


def etag(found: tuple[bytes, str]) -> str:
    return '"' + hashlib.sha256(repr(found).encode()).hexdigest() + '"'


@pytest.fixture
def address() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
    Store.objects.clear()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/object"
    server.shutdown()
    server.server_close()


def test_a_conditional_put_refuses_an_old_token(address: str) -> None:
    put = block("conditional-put")["put"]
    assert put(address, b"seven", 7) and put(address, b"eight", 8) and put(address, b"again", 8)
    assert not put(address, b"late", 7)
    assert Store.objects["/object"] == (b"again", "8")


def test_a_put_that_lost_a_race_looks_again(address: str) -> None:
    put = block("conditional-put")["put"]
    # Between the look of the old owner and its put, the new one writes.
    Store.meddle = lambda: Store.objects.update({"/object": (b"new", "9")})
    assert not put(address, b"late", 8)
    assert Store.objects["/object"] == (b"new", "9")


@pytest.mark.skipif(sys.version_info < (3, 10), reason="it has a match statement")
def test_a_service_checks_the_header(tmp_path: Path) -> None:
    check = block("http-header")["check"]
    with litelease.Gate(tmp_path / "gate.sqlite3") as gate:
        told = [
            check(gate, "import", {"Litelease-Token": token})
            for token in ("7", "8", "7", "", "-1", "7.0", "²", "9" * 30, str(2**63), str(2**63 - 1))
        ]
    assert told == [200, 200, 409, 400, 400, 400, 400, 400, 400, 200]
    assert check(None, "import", {}) == 400
