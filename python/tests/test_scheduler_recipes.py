"""The recipes of docs/cron-on-several-machines.md with the programs that they are for: gunicorn, uvicorn, APScheduler."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import litelease
from test_ticks import app, effects, eventually, in_order

PAGE = Path(__file__).parents[2] / "docs" / "cron-on-several-machines.md"
JOBS = """
    import os, litelease
    from litelease import aio
    FILE = os.environ["APP_DB"]
    scheduler = SCHEDULER(FILE)

    @scheduler.every("50ms", each=True, name="rollup")
    DEF rollup(tick):
        with tick.finish() as conn:
            conn.execute("INSERT INTO effects VALUES (?, ?)", (tick.tick_ms, os.getpid()))
"""


def block(language: str, first: str) -> str:
    """Returns the block of the page that begins with this line."""
    blocks = re.findall(rf"```{language}\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    return next(found for found in blocks if found.startswith(first)) + "\n"


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(textwrap.dedent(text))


def run(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "APP_DB": str(folder / "app.sqlite3")}
    with open(folder / "log", "ab") as log:
        return subprocess.Popen([sys.executable, *words], cwd=folder, env=environment, stdout=log, stderr=log)


def processes(db: litelease.Litelease) -> set[int]:
    return {row[0] for row in db.conn.execute("SELECT token FROM effects")}


def test_the_program_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    # Its last line may stop a job before its schedule is installed.
    start, stop = block("python", "import litelease").split("scheduler.start()\n")
    exec(start + "scheduler.start()\n", names)
    with litelease.open("app.sqlite3") as db:
        eventually("both are installed", lambda: [info.name for info in db.ticks()] == ["nightly", "sync"])
    exec(stop, names)


def test_four_workers_of_gunicorn_run_each_tick_once(tmp_path: Path) -> None:
    pytest.importorskip("gunicorn")
    db = app(tmp_path)
    program(tmp_path, "jobs.py", JOBS.replace("SCHEDULER", "litelease.Scheduler").replace("DEF", "def"))
    program(tmp_path, "web.py", "def app(environ, start):\n    start('200 OK', [])\n    return [b'ok']\n")
    program(tmp_path, "gunicorn.conf.py", block("python", "# gunicorn.conf.py"))
    web = run(tmp_path, "-m", "gunicorn", "-w", "4", "-b", f"unix:{tmp_path}/socket", "web:app")
    try:
        eventually("ticks are run", lambda: len(effects(db)) > 5)
        # The worker that ran the last tick is killed, and gunicorn starts another one.
        for _ in range(2):
            os.kill(db.conn.execute("SELECT token FROM effects ORDER BY rowid DESC").fetchone()[0], signal.SIGKILL)
            before = len(effects(db))
            eventually("the others go on", lambda: len(effects(db)) > before + 5)
    finally:
        web.send_signal(signal.SIGTERM)
        assert web.wait(60) == 0, (tmp_path / "log").read_text()
    assert in_order(effects(db), 50), effects(db)
    assert len(processes(db)) > 1


def test_two_workers_of_uvicorn_run_each_tick_once(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    db = app(tmp_path)
    program(tmp_path, "jobs.py", JOBS.replace("SCHEDULER", "aio.Scheduler").replace("DEF", "async def"))
    program(tmp_path, "web.py", block("python", "# web.py"))
    web = run(tmp_path, "-m", "uvicorn", "--workers", "2", "--uds", f"{tmp_path}/socket", "web:app")
    try:
        eventually("ticks are run", lambda: len(effects(db)) > 20)
    finally:
        web.send_signal(signal.SIGTERM)
        web.wait(60)
    assert in_order(effects(db), 50), (effects(db), (tmp_path / "log").read_text())


def test_two_programs_with_apscheduler_run_each_tick_once(tmp_path: Path) -> None:
    pytest.importorskip("apscheduler")
    db = app(tmp_path)
    program(tmp_path, "jobs.py", """
        import litelease, os, time
        from apscheduler.schedulers.background import BackgroundScheduler
        FILE = os.environ["APP_DB"]

        def report():
            with litelease.open(FILE) as db:
                db.conn.execute("BEGIN IMMEDIATE")
                tick_ms = litelease.planned_tick("200ms")
                if db.tick("report", tick_ms):
                    db.conn.execute("INSERT INTO effects VALUES (?, ?)", (tick_ms, os.getpid()))
                db.conn.execute("COMMIT")

        scheduler = BackgroundScheduler()
        scheduler.add_job(report, "interval", seconds=0.2)
        scheduler.start()
        time.sleep(3)
        scheduler.shutdown()
    """)
    both = [run(tmp_path, "jobs.py") for _ in range(2)]
    assert [program.wait(60) for program in both] == [0, 0], (tmp_path / "log").read_text()
    ticks = effects(db)
    assert len(ticks) > 3 and len(ticks) == len(set(ticks)), ticks
