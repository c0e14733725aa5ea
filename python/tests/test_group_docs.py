"""The Python of the pages about limits, handoff, values and elections, as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def examples() -> dict[str, str]:
    found = {}
    for page in ("limits", "handoff", "values", "elections"):
        blocks = (DOCS / f"{page}.md").read_text().split("```python\n")[1:]
        found.update({f"{page} {number}": block.split("```")[0] for number, block in enumerate(blocks, 1)})
    assert {name.split()[0] for name in found} == {"limits", "handoff", "values", "elections"}
    return found


@pytest.mark.parametrize("name", examples())
def test_an_example_runs(name: str) -> None:
    exec(compile(examples()[name], name, "exec"), {"__name__": "example"})
