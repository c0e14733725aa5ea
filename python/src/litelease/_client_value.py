"""Values as the service takes and gives them: bytes travel as base64."""

from __future__ import annotations

import base64
from typing import Any

from ._fences import Value


def to_json(value: Value) -> object:
    """Writes a value that SQLite can store."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return int(value) if isinstance(value, bool) else value


def from_json(value: Any) -> Value:
    """Reads a value of an answer."""
    if value is None or isinstance(value, (int, float, str)):
        return value
    return base64.b64decode(value["base64"])
