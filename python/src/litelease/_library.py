"""The native library: the SQLite extension, and the host API, which asks the rule without loading the extension."""

from __future__ import annotations

import ctypes
import functools
import sqlite3
import sys
import time
from pathlib import Path

from ._session import Session, call, session_of

_NAMES = {"darwin": "liblitelease_ext.dylib", "win32": "litelease_ext.dll"}


def loadable_path() -> str:
    """Returns the path of the loadable extension that comes with this package."""
    path = Path(__file__).parent / "_lib" / _NAMES.get(sys.platform, "liblitelease_ext.so")
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: install the package with `pip install ./python`")
    return str(path)


def now_ms() -> int:
    """Returns the system clock's Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


def load(connection: sqlite3.Connection, why: str = "") -> None:
    """Loads the extension into a connection, so that its statements can call ``litelease_claim`` and the rest.

    Many Pythons are built without ``enable_load_extension``; there this is an error, while ``Litelease``,
    ``hold`` and ``Tracker`` work all the same.
    """
    session = session_of(connection)
    call(session, None, lambda: load_into(session, why))


def load_into(session: Session, why: str = "") -> None:
    """The same, inside a call on the session."""
    connection = session.conn
    if not hasattr(connection, "enable_load_extension"):
        raise sqlite3.NotSupportedError(
            "this Python's sqlite3 cannot load extensions (it was built without enable_load_extension; "
            "Debian's and python.org's can): "
            + (why or "use litelease.Litelease(conn), hold() or Tracker instead, which work without it")
        )
    session.load(loadable_path())


class _Text(ctypes.Structure):
    _fields_ = [("start", ctypes.c_char_p), ("length", ctypes.c_size_t)]


class _Question(ctypes.Structure):
    _fields_ = [
        ("verb", ctypes.c_int),
        ("has_row", ctypes.c_int),
        ("has_expiry", ctypes.c_int),
        ("has_token", ctypes.c_int),
        ("stored_token", ctypes.c_int64),
        ("stored_expires_at_ms", ctypes.c_int64),
        ("ttl_ms", ctypes.c_int64),
        ("now_ms", ctypes.c_int64),
        ("token", ctypes.c_int64),
        ("floor", ctypes.c_int64),
        ("stored_owner", _Text),
        ("owner", _Text),
        ("new_owner", _Text),
    ]


class Decision(ctypes.Structure):
    """What the rule answers."""

    _fields_ = [
        ("outcome", ctypes.c_int),
        ("reason", ctypes.c_int),
        ("writes", ctypes.c_int),
        ("has_owner", ctypes.c_int),
        ("token", ctypes.c_int64),
        ("expires_at_ms", ctypes.c_int64),
    ]

    outcome: int
    reason: int
    writes: int
    has_owner: int
    token: int
    expires_at_ms: int


class _EpochQuestion(ctypes.Structure):
    _fields_ = [
        ("wish", ctypes.c_int),
        ("is_own", ctypes.c_int),
        ("number", ctypes.c_int64),
        ("floor", ctypes.c_int64),
        ("boot", ctypes.c_int64),
        ("synchronous", ctypes.c_int64),
        ("file", _Text),
        ("journal_mode", _Text),
    ]


class Epoch(ctypes.Structure):
    """The epoch to store."""

    _fields_ = [
        ("writes", ctypes.c_int),
        ("may_lose_commits", ctypes.c_int),
        ("floor", ctypes.c_int64),
        ("boot", ctypes.c_int64),
    ]

    writes: int
    may_lose_commits: int
    floor: int
    boot: int


@functools.lru_cache(maxsize=None)
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(loadable_path())
    library.litelease_host_version.restype = ctypes.c_char_p
    library.litelease_host_decide.argtypes = [ctypes.POINTER(_Question), ctypes.POINTER(Decision)]
    library.litelease_host_epoch.argtypes = [ctypes.POINTER(_EpochQuestion), ctypes.POINTER(Epoch)]
    library.litelease_host_epoch_covers.argtypes = [ctypes.c_int64] * 3
    library.litelease_host_needs_largest_token.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    library.litelease_host_needs_largest_token.restype = ctypes.c_size_t
    library.litelease_host_epoch_recorded.argtypes = [_Text, ctypes.c_int64]
    library.litelease_host_epoch_recorded.restype = None
    library.litelease_host_statement.argtypes = [_Text, ctypes.c_char_p, ctypes.c_size_t]
    library.litelease_host_statement.restype = ctypes.c_size_t
    library.litelease_host_difference.argtypes = [_Text, _Text, _Text, ctypes.c_char_p, ctypes.c_size_t]
    library.litelease_host_difference.restype = ctypes.c_size_t
    library.litelease_host_identity.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
    library.litelease_host_identity.restype = ctypes.c_size_t
    library.litelease_host_is_dead.argtypes = [_Text]
    return library


def version() -> str:
    """Returns the version of the native library."""
    text: bytes = _library().litelease_host_version()
    return text.decode()


@functools.lru_cache(maxsize=None)
def statement(name: str) -> str:
    """Returns a statement by its name. The library has the SQL."""
    out = ctypes.create_string_buffer(4096)
    length: int = _library().litelease_host_statement(_text(name), out, len(out))
    if not 0 < length <= len(out):
        raise LookupError(f"the library has no statement {name!r}")
    return out.raw[:length].decode()


def difference(table: str, kind: str, sql: str) -> str | None:
    """Returns the first difference between a stored table and ours, if there is one."""
    out = ctypes.create_string_buffer(4096)
    length: int = _library().litelease_host_difference(_text(table), _text(kind), _text(sql), out, len(out))
    return out.raw[: min(length, len(out))].decode(errors="replace") if length else None


def identity(kind: int) -> str:
    """Returns a new owner text for this process (0 for a hold, 1 for a lock), or an empty one where the system has none."""
    out = ctypes.create_string_buffer(1024)
    length: int = _library().litelease_host_identity(kind, out, len(out))
    return out.raw[:length].decode() if length <= len(out) else ""


def is_dead(owner: str) -> bool:
    """Checks whether the process that an owner text names was the holder, and has provably ended."""
    return bool(_library().litelease_host_is_dead(_text(owner)))


def check_number(what: str, number: object) -> None:
    """Checks that a number is an integer that fits into SQLite's."""
    if not isinstance(number, int):
        raise TypeError(f"{what} must be a whole number, got {number!r}")
    if not -(2**63) <= number < 2**63:
        raise OverflowError(f"{what} must be a whole number of at most 64 bits, got {number!r}")


def decide(
    verb: int,
    *,
    row: tuple[str | None, int, int | None] | None,
    owner: str | None = None,
    new_owner: str | None = None,
    ttl_ms: int = 0,
    now_ms: int,
    token: int | None = None,
    floor: int = 0,
) -> tuple[int, Decision]:
    """Asks the rule about a stored row (owner, token, expiry). Returns 0 and the decision, or why it refuses."""
    for what, number in (("ttl_ms", ttl_ms), ("now_ms", now_ms), ("token", token or 0), ("min_token", floor)):
        check_number(what, number)
    stored_owner, stored_token, expiry = row if row is not None else (None, 0, None)
    question = _Question(
        verb=verb,
        has_row=row is not None,
        has_expiry=expiry is not None,
        has_token=token is not None,
        stored_token=stored_token,
        stored_expires_at_ms=expiry or 0,
        ttl_ms=ttl_ms,
        now_ms=now_ms,
        token=token or 0,
        floor=floor,
        stored_owner=_text(stored_owner),
        owner=_text(owner),
        new_owner=_text(new_owner),
    )
    decision = Decision()
    code: int = _library().litelease_host_decide(ctypes.byref(question), ctypes.byref(decision))
    return code, decision


def epoch_covers(floor: int, boot: int, token: int) -> bool:
    """Checks whether a token may be granted with this epoch, as far as the stored epoch alone tells."""
    return bool(_library().litelease_host_epoch_covers(floor, boot, token))


def epoch(
    wish: int, number: int, *, stored: tuple[int, int], file: str, journal_mode: str, synchronous: int, is_own: bool
) -> tuple[int, Epoch]:
    """Asks which epoch a file needs (0 to grant a token, 1 to raise the floor, 2 to fence a restored file, 3 to record the
    present boot).

    ``stored`` is its floor and boot. Answers 0 and the epoch, or why it refuses.
    """
    if not isinstance(number, int) or not -(2**63) <= number < 2**63:
        raise OverflowError(f"a floor must be a whole number of at most 64 bits, got {number!r}")
    question = _EpochQuestion(
        wish=wish,
        is_own=is_own,
        number=number,
        floor=stored[0],
        boot=stored[1],
        synchronous=synchronous,
        file=_text(file),
        journal_mode=_text(journal_mode),
    )
    answer = Epoch()
    code: int = _library().litelease_host_epoch(ctypes.byref(question), ctypes.byref(answer))
    return code, answer


def needs_largest_token() -> str | None:
    """Returns why a restored file cannot be fenced without a token that was seen elsewhere; ``None`` if it can be."""
    out = ctypes.create_string_buffer(4096)
    length: int = _library().litelease_host_needs_largest_token(out, len(out))
    return out.raw[: min(length, len(out))].decode() if length else None


def epoch_recorded(file: str, floor: int) -> None:
    """Notes that this process has recorded its epoch in a file."""
    _library().litelease_host_epoch_recorded(_text(file), floor)


def _text(text: str | None) -> _Text:
    if text is None:
        return _Text(None, 0)
    if not isinstance(text, str):
        raise TypeError(f"names and owners are str, got {text!r}")
    encoded = text.encode()
    return _Text(encoded, len(encoded))
