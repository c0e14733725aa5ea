"""A real ``litelease serve`` for tests, and a proxy before it that meddles with its answers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Callable

ROOT = Path(__file__).parents[2]
COMMAND = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "litelease"


class Server:
    """A server on a file of its own, with its keys in a folder of its own."""

    def __init__(self, folder: Path, *flags: str, listen: str = "127.0.0.1:0") -> None:
        assert COMMAND.exists(), f"{COMMAND} is missing: cargo build --locked -p litelease-cli"
        self.db, self.state, self._flags = folder / "pools.sqlite3", folder / "state", flags
        self._start(listen)

    def _start(self, listen: str) -> None:
        command = [str(COMMAND), "serve", "--listen", listen, "--db", str(self.db), *self._flags]
        with open(self.db.with_suffix(".log"), "ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "XDG_STATE_HOME": str(self.state)}
            )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip().replace("listening at ", "")
        assert self.url, self.db.with_suffix(".log").read_text()
        self.address = self.url.split("://")[1]

    @property
    def key(self) -> Path:
        """The file of the local key."""
        return self.state / "litelease/access" / self.address

    def add_key(self, *allow: str) -> str:
        """Makes a key that allows this."""
        command = [str(COMMAND), "access", "add", "-".join(allow).replace(":", "-").replace("*", "all"), "--db", str(self.db)]
        for scope in allow:
            command += ["--allow", scope]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def restart(self) -> None:
        """Starts it again at the same address, after a kill."""
        self._start(self.address)

    @contextlib.contextmanager
    def stopped(self):  # type: ignore[no-untyped-def]
        """Stops the process while the block runs. No other process uses its file, so none waits for its lock."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


# What becomes of the answer to a request to this path: None closes the connection instead.
Meddle = Callable[[str, bytes], "bytes | None"]


class Proxy:
    """Passes on one request per connection, and what `meddle` makes of its answer."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._server, self._listener = (host, int(port)), socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.meddle: Meddle = lambda path, answer: answer
        # What is answered to a request to this path without passing it on; None passes it on.
        self.stand_in: Callable[[str], "bytes | None"] = lambda path: None
        # The path of each request.
        self.seen: list[str] = []
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            asked = _message(client)
            path = asked.split(b" ")[1].decode()
            self.seen.append(path)
            answer = self.stand_in(path)
            if answer is None:
                with socket.create_connection(self._server) as server:
                    server.sendall(asked)
                    answer = self.meddle(path, _message(server))
            if answer is not None:
                client.sendall(answer.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))


def _message(sock: socket.socket) -> bytes:
    """Reads a head and the body that it announces."""
    read = b""
    while b"\r\n\r\n" not in read:
        if not (more := sock.recv(65536)):
            raise OSError("hung up")
        read += more
    head, _, body = read.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    while len(body) < int(lengths[0] if lengths else 0):
        if not (more := sock.recv(65536)):
            raise OSError("hung up")
        body += more
    return head + b"\r\n\r\n" + body
