"""One request to a server and its answer, and which access key goes with it. An answer to another request is none."""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import ipaddress
import json
import os
import selectors
import socket
import stat
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Literal, Mapping, NamedTuple

from ._types import InvalidUrl, LiteleaseError, ServerRefused, ServerUnreachable
from ._wait import Stopped, clock, never

if TYPE_CHECKING:
    import ssl

Stop = Callable[[], bool]
# The part of a key file before the key, if it has one.
_HEADER = "Authorization: Bearer "
# The largest answer that is read: an item of 1 MiB whose every byte is escaped, and more.
_LONGEST_ANSWER = 8 * 1024 * 1024
# How many connections are kept for the next requests.
_MOST_IDLE = 8
# How often a waiter that can be stopped looks whether it is.
_NAP = 0.05
_NO_KEY = "; pass access_key=, or the path of its file in LITELEASE_ACCESS_FILE: `litelease access add` prints a key"
_NO_SCOPE = "; `litelease access add NAME --allow SCOPE:PATTERN` makes a key that allows it"


class Place:
    """The address of a server: a scheme, a host and a port."""

    def __init__(self, url: str) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = parts = None
        strange = parts is None or parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None
        if parts is None or strange or not host or parts.scheme not in ("http", "https"):
            raise InvalidUrl(f"{url!r} is no URL of a server: say http://127.0.0.1:7070 or https://HOST")
        self.is_https = parts.scheme == "https"
        self.host, self.port = host, port or (443 if self.is_https else 80)
        # `localhost` is the IPv4 loopback address, whatever a resolver says.
        address = "127.0.0.1" if host == "localhost" else host
        self.loopback = _loopback(address)
        if self.loopback and not self.is_https:
            self.host = address  # a certificate is for the name
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.base = f"{parts.scheme}://{shown}:{self.port}"
        # The socket of the server whose local key was found. The key goes nowhere else: while the server is down, any
        # program may listen at its address.
        self.socket: Path | None = None

    def key(self, access_key: str | os.PathLike[str] | None) -> str | None:
        """Finds the access key: the one given, as a text or as the path of its file; in ``$LITELEASE_ACCESS_FILE``; or the
        local one that a server has left for its own user at this very address."""
        key = self._found(access_key)
        if key is not None and not self.is_https and not self.loopback:
            raise LiteleaseError("the access key would go over the network in the clear: use https")
        if key is not None and not (key.isascii() and key.isprintable() and key):
            raise LiteleaseError("the access key must be one line of ASCII, as `litelease access add` prints it")
        return key

    def _found(self, given: str | os.PathLike[str] | None) -> str | None:
        if isinstance(given, str):
            return _bare(given)
        path = given or os.environ.get("LITELEASE_ACCESS_FILE")
        if path:
            try:
                return _bare(Path(path).read_text())
            except (OSError, ValueError) as error:
                raise LiteleaseError(f"the file with the access key cannot be read: {error}") from None
        if self.loopback and (state := _state_folder()):
            folder, name = state / "litelease/access", f"{self.loopback}:{self.port}"
            try:
                key, opened = _bare((folder / name).read_text()), folder / f"{name}.sock"
                if self.is_https:
                    return key  # the certificate says whether it is the server
                if stat.S_ISSOCK(opened.lstat().st_mode) and not folder.stat().st_mode & 0o022:
                    self.socket = opened
                    return key
            except (OSError, ValueError):
                pass  # then the server says that it needs one
        return None


def _loopback(address: str) -> str | None:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return None
    shown = f"[{found}]" if found.version == 6 else str(found)
    return shown if found.is_loopback else None


def _state_folder() -> Path | None:
    state, home = os.environ.get("XDG_STATE_HOME", ""), os.environ.get("HOME", "")
    if os.path.isabs(state):
        return Path(state)
    return Path(home, ".local/state") if os.path.isabs(home) else None


def _bare(key: str) -> str:
    key = key.strip()
    return key[len(_HEADER) :] if key.startswith(_HEADER) else key


class Outcome(NamedTuple):
    """What became of a request. ``unknown`` means that the answer is not known, or that trying again may help."""

    kind: Literal["done", "no", "unknown"]
    value: Mapping[str, Any] = {}
    why: str = ""
    # Whether the request may have been done all the same.
    is_lost: bool = False


class Transport:
    """Sends requests to one server. Threads may share it; each request has a connection of its own meanwhile."""

    def __init__(self, place: Place, key: str | None, ca_file: str | os.PathLike[str] | None) -> None:
        self.base, self._place, self._key = place.base, place, key
        self._tls = _trusting(ca_file) if place.is_https else None
        self._idle: list[http.client.HTTPConnection] = []
        self._pid = os.getpid()

    def __del__(self) -> None:
        for connection in getattr(self, "_idle", []):
            connection.close()

    def call(
        self, method: str, path: str, tag: str, body: object = None, timeout: float = 10.0, stop: Stop = never
    ) -> Outcome:
        """Sends a request, and waits for its answer for at most ``timeout`` seconds. ``tag`` must come back with the answer:
        so an answer to another request, which a proxy has kept, is not taken for this one's."""
        headers, payload = {"Idempotency-Key": tag}, None
        if body is not None:
            headers["Content-Type"], payload = "application/json", json.dumps(body).encode()
        if self._key is not None and path.startswith("/v1/"):
            headers["Authorization"] = f"Bearer {self._key}"
        sent: list[bool] = []
        try:
            status, echoed, text = self._send(method, path, payload, headers, clock() + timeout, stop, sent)
        except http.client.BadStatusLine as error:
            if isinstance(error, ConnectionError):
                return Outcome("unknown", why="the server closed the connection", is_lost=True)
            raise ServerUnreachable(f"{self.base}: the answer is not HTTP: if the server uses TLS, write https") from None
        except (OSError, http.client.HTTPException) as error:
            if self._tls is not None and (trouble := _tls_trouble(error)):
                raise ServerUnreachable(f"{self.base}: {trouble}") from None
            return Outcome("unknown", why=str(error) or type(error).__name__, is_lost=bool(sent))
        return self._outcome(status, text, echoed == tag)

    def _send(
        self, method: str, path: str, payload: bytes | None, headers: dict[str, str], deadline: float, stop: Stop,
        sent: list[bool],
    ) -> tuple[int, str | None, bytes]:
        """Returns the status, the key and the text of the answer. ``sent`` gets an entry before anything is sent."""
        if stop():
            raise Stopped
        connection = self._connection(deadline - clock())
        is_done = False
        try:
            connection.response_class = functools.partial(_Response, deadline=deadline, stop=stop)  # type: ignore
            if connection.sock is None:
                connection.connect()
            sent.append(True)
            connection.request(method, path, payload, headers)
            response = connection.getresponse()
            length, text = response.length, response.read(_LONGEST_ANSWER)
            if length is not None and len(text) < length:
                raise http.client.IncompleteRead(text, length - len(text))
            is_done = response.isclosed() and connection.sock is not None
            return response.status, response.headers["Idempotency-Key"], text
        finally:
            if is_done and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
            else:
                connection.close()

    def _connection(self, left: float) -> http.client.HTTPConnection:
        """Returns an idle connection, or a new one that is made by its first request."""
        if self._pid != os.getpid():
            self._idle, self._pid = [], os.getpid()  # they are the parent's
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if _is_quiet(connection):
                connection.sock.settimeout(max(left, 0.001))
                return connection
            connection.close()
        host, port, timeout = self._place.host, self._place.port, max(min(left, 10.0), 0.001)
        if self._place.socket is not None:
            return _LocalConnection(self._place.socket, host, port, timeout)
        if self._tls is None:
            return http.client.HTTPConnection(host, port, timeout=timeout)
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)

    def _outcome(self, status: int, text: bytes, is_ours: bool) -> Outcome:
        value: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            found = json.loads(text)
            value = found if isinstance(found, dict) else value  # pyright: ignore[reportUnknownVariableType]
        error = str(value.get("error") or "")
        if status in (200, 409) and not value:
            raise ServerUnreachable(f"{self.base} is no Litelease server")
        if status in (200, 409) and not is_ours:
            return Outcome("unknown", why="the answer belongs to another request", is_lost=True)
        if status in (200, 409):
            return Outcome("done" if status == 200 else "no", value)
        # Too many wait, a proxy in between, the database, a shutdown.
        if status in (408, 429) or status >= 500:
            # A proxy does not know what the server has done.
            return Outcome("unknown", why=f"{status}: {error or 'no reason was given'}", is_lost=status in (502, 504))
        if not error:
            raise ServerRefused(status, f"{self.base} is no Litelease server")
        hint = {401: _NO_KEY, 403: _NO_SCOPE}.get(status, "")
        raise ServerRefused(status, f"{self.base} refuses it ({status}): {error}{hint}")


class _LocalConnection(http.client.HTTPConnection):
    """A connection through the socket that a server has left for its own user."""

    def __init__(self, path: Path, host: str, port: int, timeout: float) -> None:
        super().__init__(host, port, timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _trusting(ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext:
    """Trusts the system's certificates, or those in the file and no other."""
    import ssl  # some Pythons have none

    return ssl.create_default_context(cafile=ca_file)


def _tls_trouble(error: Exception) -> str | None:
    """Says why there is no TLS connection, if trying again does not help."""
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        told = error.verify_message
        return f"the certificate is not trusted ({told}): pass ca_file= with the CA that has signed it"
    passing = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
    if not isinstance(error, ssl.SSLError) or isinstance(error, passing) or "timed out" in str(error):
        return None
    return f"no TLS connection ({error.reason or error}): use http if the server speaks no TLS"


class _Response(http.client.HTTPResponse):
    """An answer that must be there by a deadline, however slowly it comes."""

    def __init__(self, sock: socket.socket, *args: Any, deadline: float, stop: Stop, **others: Any) -> None:
        super().__init__(sock, *args, **others)
        self.fp = io.BufferedReader(_Bounded(sock, self.fp, deadline, stop))


class _Bounded(io.RawIOBase):
    def __init__(self, sock: socket.socket, opened: io.BufferedIOBase, deadline: float, stop: Stop) -> None:
        # While `opened` is open, the socket is, too, even if the connection was closed.
        self._sock, self._opened, self._deadline, self._stop = sock, opened, deadline, stop

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._opened.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while True:
            left = self._deadline - clock()
            if self._stop():
                raise Stopped
            if left <= 0:
                raise socket.timeout("no answer in time")
            self._sock.settimeout(left if self._stop is never else min(left, _NAP))
            try:
                return self._sock.recv_into(buffer)
            except socket.timeout:
                pass


def _is_quiet(connection: http.client.HTTPConnection) -> bool:
    """Checks whether the server has neither hung up nor sent what nobody has asked for."""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(connection.sock, selectors.EVENT_READ)
            return not selector.select(0)
    except (OSError, ValueError):
        return False
