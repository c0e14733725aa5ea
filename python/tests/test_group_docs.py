"""The Python of the pages about limits, handoff, values and elections, as it stands there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import litelease

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


def test_the_examples_have_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    for name, text in examples().items():
        (tmp_path / f"{name.replace(' ', '_')}.py").write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"), str(tmp_path)]
    package = str(Path(litelease.__file__).parents[1])
    path = {} if "site-packages" in package else {"MYPYPATH": package}
    checked = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **path})
    assert checked.returncode == 0, checked.stdout + checked.stderr
