"""Reads scenario files. The grammar is in scenarios/README.md."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
POOL_VERBS = {"pool", "resize", "borrow", "return", "renew slot", "keep", "delete", "slots"}
QUEUE_VERBS = {"queue", "send", "receive", "delivery", "ack", "extend", "give back", "bury", "redrive", "discard"}
QUEUE_VERBS |= {"cancel", "items", "delete queue", "fence"}
CONNECTION_VERBS = {"begin", "commit", "rollback", "savepoint", "rollback to", "release savepoint", "conn"}


@dataclass
class Step:
    place: str
    text: str
    now_ms: int
    verb: str
    words: dict[str, str]
    answer: str

    def number(self, key: str) -> int | None:
        return int(self.words[key]) if key in self.words else None


TICK_VERBS = ("tick", "finish", "skip", "again", "forget", "ticks")


class Word(str):
    """A word that was quoted is never a keyword."""

    quoted = False


def files() -> list[Path]:
    found = sorted((ROOT / "scenarios").glob("*.lease"))
    if outside := os.environ.get("LITELEASE_SCENARIOS"):
        more = sorted((ROOT / outside).glob("*.lease"))
        assert more, f"no *.lease file in {outside}"
        found += more
    assert len(found) >= 25
    return found


def shown(text: str) -> str:
    plain = text and not text.startswith(('"', "#")) and text != "->" and not re.search(r"[\s\x00-\x1f\x7f]", text)
    return text if plain else json.dumps(text, ensure_ascii=False)


def read(path: Path) -> list[Step]:
    steps: list[Step] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = split(line)
        if words:
            before = steps[-1].now_ms if steps else 0
            steps.append(parse(words, before, f"{path.name}:{number}", line.strip()))
    return steps


def split(line: str) -> list[Word]:
    words, rest = [], line.strip()
    while rest and not rest.startswith("#"):
        if rest.startswith('"'):
            text, end = json.JSONDecoder().raw_decode(rest)
            word = Word(text)
            word.quoted = True
        else:
            end = len(re.match(r"\S+", rest).group())  # type: ignore[union-attr]
            word = Word(rest[:end])
        words.append(word)
        rest = rest[end:].strip()
    return words


def parse(words: list[Word], now_ms: int, place: str, text: str) -> Step:
    arrow = next((i for i, word in enumerate(words) if word == "->" and not word.quoted), len(words))
    asked, answer = words[:arrow], " ".join(shown(word) for word in words[arrow + 1 :])

    def takes(keyword: str) -> bool:
        there = bool(asked) and asked[0] == keyword and not asked[0].quoted
        if there:
            del asked[0]
        return there

    if takes("at"):
        now_ms = int(asked.pop(0))
    verb = str(asked.pop(0))
    found: dict[str, str] = {}
    if verb == "rollback" and takes("to"):
        verb = "rollback to"
    if verb == "renew" and takes("slot"):
        verb = "renew slot"
    if verb == "release" and takes("savepoint"):
        verb = "release savepoint"
    if verb == "give" and takes("back"):
        verb = "give back"
    if verb == "delete" and takes("queue"):
        verb = "delete queue"
    if verb in ("hand", "take") and takes("over"):
        verb += " over"
    if verb == "begin":
        found["immediate"] = "1" if takes("immediate") else ""
    if verb == "purge":
        takes("before")
        found["before"] = asked.pop(0)
    elif verb not in ("begin", "commit", "rollback", "fence"):
        found["name"] = asked.pop(0)
    if verb in ("claim", "ensure", "renew", "release", "transfer", "hand over", "take over"):
        found["owner"] = asked.pop(0)
    if verb in ("read", "unread"):
        found["reader"] = asked.pop(0)
    if verb in ("request", "withdraw"):
        found["requester"] = asked.pop(0)
    if verb in ("borrow", "return", "renew slot", "keep"):
        found["lease"] = asked.pop(0)
    if verb == "send":
        found["body"] = asked.pop(0)
    if verb == "receive":
        found["receipt"] = asked.pop(0)
    if verb == "transfer":
        takes("to")
        found["new_owner"] = asked.pop(0)
    if verb == "tick":
        found["tick"] = asked.pop(0)
    labels = "tick count ttl from above token attempts visibility delay id key note value within progress until"
    for label in labels.split():
        if takes(label):
            if label == "from":
                verb = "claim from dead"
                takes("dead")
            found[label] = asked.pop(0)
    found.update({flag: "1" for flag in ("done", "failed", "break") if takes(flag)})
    assert not asked, f"{place}: unexpected {asked}"
    return Step(place, text, now_ms, verb, found, answer or "ok")
