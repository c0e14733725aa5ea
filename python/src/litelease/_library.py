"""The native library: the SQLite extension, and the verbs as builtin functions that run their statements on the caller's own
connection. Neither rules nor SQL are written in Python."""

from __future__ import annotations

import _sqlite3
import atexit
import builtins
import ctypes
import sqlite3
import sys
from pathlib import Path
from typing import Any, Callable, NoReturn

from . import _types
from ._types import ExpiredOnArrival, Lease, LiteleaseError

# A converter may also make another value that SQLite could have.
_CONVERTERS = (
    "; or a converter has changed it, because one is registered for INTEGER or TEXT: then open a connection without "
    "detect_types for Litelease"
)
# SQLite's primary results by their numbers. Other constants have the same numbers.
_WORDS = (
    "OK ERROR INTERNAL PERM ABORT BUSY LOCKED NOMEM READONLY INTERRUPT IOERR CORRUPT NOTFOUND FULL CANTOPEN PROTOCOL "
    "EMPTY SCHEMA TOOBIG CONSTRAINT MISMATCH MISUSE NOLFS AUTH FORMAT RANGE NOTADB"
)
_PRIMARY = {number: f"SQLITE_{word}" for number, word in enumerate(_WORDS.split())}
_NAMES = {"darwin": "liblitelease_ext.dylib", "win32": "litelease_ext.dll"}


def loadable_path() -> str:
    """Returns the path of the loadable extension that comes with this package."""
    path = Path(__file__).parent / "_lib" / _NAMES.get(sys.platform, "liblitelease_ext.so")
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: install the package with `pip install ./python`")
    return str(path)


def version() -> str:
    """Returns the version of the native library."""
    _library.litelease_version.restype = ctypes.c_char_p
    text: bytes = _library.litelease_version()
    return text.decode()


def _fail(
    kind: str, text: str, cause: BaseException | None, lease: tuple[str, str, int, int] | None, code: int
) -> NoReturn:
    """Raises what the library could not do. SQLite's own errors come as they were raised, or with their code."""
    if lease is not None:
        raise ExpiredOnArrival(Lease(*lease))
    if kind == "Sqlite" and cause is not None:
        raise cause
    if kind in ("SchemaMismatch", "InvalidLeaseRow") and {"INTEGER", "TEXT"} & getattr(sqlite3, "converters", {}).keys():
        text += _CONVERTERS
    error: type[Exception] = getattr(_types, kind, getattr(builtins, kind, getattr(sqlite3, kind, LiteleaseError)))
    raised = error(f"{text}; begin again" if kind == "TransactionEnded" else text)
    if code:
        names = (name for name, value in vars(sqlite3).items() if value == code and name.startswith(_PRIMARY.get(code & 0xFF, "-")))
        raised.sqlite_errorcode, raised.sqlite_errorname = code, next(names, None)  # type: ignore[attr-defined]
    raise raised from cause


def _functions() -> dict[str, Callable[..., Any]]:
    """The functions of the library. It is linked with no Python, so it is given the addresses of what it calls."""
    _library.litelease_python_needs.restype = ctypes.c_char_p
    names = _library.litelease_python_needs().decode().split()
    addresses = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in names]
    init = _library.litelease_python_init
    init.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.py_object, ctypes.py_object]
    init.restype = ctypes.py_object
    classes = (None, str, int, float, bytes, sqlite3.Error, tuple, list, TypeError, ResourceWarning, LiteleaseError)
    made: dict[str, Callable[..., Any]] = init((ctypes.c_void_p * len(names))(*addresses), classes, _fail)
    return made


_library = ctypes.PyDLL(loadable_path())
_made = _functions()

new_handle: Callable[[object], object] = _made["session"]
opened: Callable[[Callable[[], object]], object] = _made["opened"]
call: Callable[..., Any] = _made["call"]
identity: Callable[[int], str] = _made["identity"]
is_dead: Callable[[str], bool] = _made["is_dead"]
window: Callable[[float], "tuple[float, float, float] | None"] = _made["window"]
waiter: Callable[[str], object] = _made["waiter"]
generation: Callable[[object], int] = _made["generation"]
time_to_next_read: Callable[[int, float], float] = _made["time_to_next_read"]
listen: Callable[[object, int, float], bool] = _made["listen"]
hold: Callable[..., Any] = _made["hold"]
claim_wait: Callable[..., Any] = _made["claim_wait"]
hold_slot: Callable[..., Any] = _made["hold_slot"]
session_open: Callable[..., Any] = _made["session_open"]
session_claim: Callable[..., Any] = _made["session_claim"]
shards_join: Callable[..., Any] = _made["shards_join"]
shards_next: Callable[[object, float], Any] = _made["shards_next"]
shards_held: Callable[[object], Any] = _made["shards_held"]
shards_check: Callable[[object, int], Any] = _made["shards_check"]
shards_checkpoint: Callable[[object, int, Any], Any] = _made["shards_checkpoint"]
shards_hand_over: Callable[[object, int], Any] = _made["shards_hand_over"]
shards_release: Callable[[object, int], Any] = _made["shards_release"]
shards_leave: Callable[[object], Any] = _made["shards_leave"]
cached_open: Callable[[str, str, int], "tuple[object, str]"] = _made["cached_open"]
cached_trusted_for: Callable[[object, int], float] = _made["cached_trusted_for"]
cached_acquire: Callable[[object], "int | None"] = _made["cached_acquire"]
cached_give_way: Callable[[object], None] = _made["cached_give_way"]
cached_close: Callable[[object], None] = _made["cached_close"]
closer: Callable[[int], object] = _made["closer"]
end_holds: Callable[["int | None"], None] = _made["end_holds"]
held_check: Callable[[object], "tuple[str, str] | None"] = _made["held_check"]
held_state: Callable[[object], "tuple[float, int, tuple[str, str] | None]"] = _made["held_state"]
held_progress: Callable[[object], "tuple[str, str] | None"] = _made["held_progress"]
held_release: Callable[[object], "tuple[str, str] | int"] = _made["held_release"]
_as_method = ctypes.pythonapi.PyInstanceMethod_New
_as_method.argtypes, _as_method.restype = [ctypes.py_object], ctypes.py_object
# For the class of a hold: no bytecode runs where its block ends, before the hold is released.
held_exit: Callable[..., None] = _as_method(_made["held_exit"])
held_hand_over: Callable[[object, int], Any] = _made["held_hand_over"]
held_requested: Callable[[object], "tuple[str, int] | None"] = _made["held_requested"]
event: Callable[[object], object] = _made["event"]
event_check: Callable[[object], "tuple[str, str] | None"] = _made["event_check"]
event_wait: Callable[[object, float], bool] = _made["event_wait"]
clock: Callable[[], float] = _made["clock"]
trust_begin: Callable[[str, str, int, float, float], object] = _made["trust_begin"]
trust_until: Callable[[object], float] = _made["trust_until"]
trust_due: Callable[[object], "float | None"] = _made["trust_due"]
trust_settle: Callable[..., "float | None"] = _made["trust_settle"]
work: Callable[..., object] = _made["work"]
work_next: Callable[[object], Any] = _made["work_next"]
work_end: Callable[[object, "str | None"], str] = _made["work_end"]
work_over: Callable[[object], None] = _made["work_over"]
item_settled: Callable[[object, str], object] = _made["item_settled"]
job: Callable[..., object] = _made["job"]
job_next: Callable[[object], Any] = _made["job_next"]
job_retry: Callable[[object, int], "float | None"] = _made["job_retry"]
job_end: Callable[[object, str], str] = _made["job_end"]
job_stop: Callable[[object], None] = _made["job_stop"]
planned: Callable[[str, "str | None", int], "int | None"] = _made["planned"]
write_lock: Callable[[bytes, bytes, float, float], object] = _made["write_lock"]
write_request: Callable[[object], object] = _made["write_request"]
write_turn: Callable[[object, float], int] = _made["write_turn"]
write_wait: Callable[[object, float], "int | tuple[int, str]"] = _made["write_wait"]
write_has_turn: Callable[[object], int] = _made["write_has_turn"]
write_end: Callable[[object], None] = _made["write_end"]
write_holder: Callable[[bytes], "tuple[tuple[int, str | None] | None, bool]"] = _made["write_holder"]
begin_anew: Callable[[], None] = _made["begin_anew"]


def end_calls() -> None:
    """Waits for the calls of other threads. The runtime itself ends an interpreter that was left alive, late."""
    _made["end_calls"](sys.is_finalizing())


_is_found: list[bool] = []


def find_library() -> None:
    """Finds the SQLite library of this Python's connections, for those that the library opens itself."""
    if _is_found:
        return
    memory = sqlite3.connect(":memory:")
    if hasattr(memory, "enable_load_extension"):
        memory.enable_load_extension(True)
        memory.load_extension(loadable_path())
    memory.close()

    def probe(uri: str) -> None:
        sqlite3.connect(uri, uri=True).close()

    if _made["find_library"](getattr(_sqlite3, "__file__", None), probe):
        _is_found.append(True)


# Before the calls of other threads are ended: what is held is released.
atexit.register(end_holds, None)
# A thread that is inside the library when the interpreter is gone would end the process.
atexit.register(end_calls)
