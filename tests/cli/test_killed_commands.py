"""A command that is killed before any change of a file loses nothing, and goes on when it is started again.

`KILL_POINTS=0` in the environment tries all points of each command, some hundred; the default is a few.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from alike import differs
from killed import Commands

from sglang_instrument.testing import synthetic_run

POINTS = int(os.environ.get("KILL_POINTS", "3"))
LARGE = {
    "sglang_instrument.analysis.store.homes:_WORTHWHILE_BYTES": 1,
    "sglang_instrument.analysis.long_runs.pieces:MOST_FILES": 8,
}
PRUNE = ("--keep-steps", "3", "--keep-slowest", "1", "--yes")

Words = tuple[str | Path, ...]


@dataclass
class World:
    """A folder with a run `exp`, its copy in a storage `bucket`, and what a command wrote there."""

    folder: Path
    commands: Commands

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def json(self, *words: str | Path) -> Any:
        ended = self.commands.run(*words, "--json")
        assert ended.code == 0, ended.said
        return json.loads(ended.printed)


@dataclass
class Case:
    """A command; what must hold after it was killed; what must be the same after it ran again."""

    words: Callable[[World], Words]
    killed: Callable[[World], object] = lambda world: None
    after: Callable[[World], Any] = lambda world: None


def summary(world: World) -> Any:
    return world.json("summary", world / "exp")


def files_of(folder: Path) -> dict[str, str]:
    """Return the hash of each file, without what is ours."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def old_or_whole(name: str, end: str) -> Callable[[World], None]:
    """Return a check that a file is as it was before the command, or complete."""

    def check(world: World) -> None:
        text = (world / name).read_text()
        assert text == "old" or text.endswith(end), text[-100:]

    return check


def rows_of(world: World) -> Any:
    counts = "union all ".join(
        f"select '{name}' as name, count(*) as n from {name} " for name in ("spans", "requests", "steps")
    )
    assert not list((world / "dataset").rglob("*.draft"))
    return sorted(list(row.values()) for row in world.json("sql", world / "dataset", counts)["rows"])


CASES = {
    "summary": Case(lambda world: ("summary", world / "exp"), summary, summary),
    "summary by day": Case(
        lambda world: ("summary", world / "exp", "--by", "day"),
        after=lambda world: world.json("summary", world / "exp", "--by", "day")["periods"],
    ),
    "sql": Case(
        lambda world: ("sql", world / "exp", "select count(*) from spans"),
        after=lambda world: world.json("sql", world / "exp", "select count(*) as n from spans")["rows"],
    ),
    "report": Case(
        lambda world: ("report", world / "exp", "-o", world / "report.html", "--force", "--spans", "0"),
        old_or_whole("report.html", "</html>"),
    ),
    "export otlp": Case(
        lambda world: ("export", world / "exp", "--otlp", world / "otlp.jsonl", "--force"),
        old_or_whole("otlp.jsonl", "}\n"),
        lambda world: files_of(world.folder)["otlp.jsonl"],
    ),
    "export parquet": Case(
        lambda world: ("export", world / "exp", "--parquet", world / "dataset"), after=rows_of
    ),
    "prune": Case(
        lambda world: ("prune", world / "exp", *PRUNE),
        summary,
        lambda world: (summary(world), files_of(world / "exp")),
    ),
    "collect": Case(
        lambda world: ("collect", f"file://{world / 'bucket'}", "-o", world / "here"),
        after=lambda world: files_of(world / "here"),
    ),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("killed")
    with Commands(LARGE, {"XDG_CACHE_HOME": str(folder / "world/home")}) as commands:
        template = World(folder / "template", commands)
        run = synthetic_run(template / "exp", steps=12, workers=1, requests=2, seed=4)
        for path in run.rglob("*"):
            os.utime(path, (time.time() - 7200,) * 2)
        uploaded = commands.run("collect", run, "--to", f"file://{template / 'bucket'}")
        assert uploaded.code == 0, uploaded.said
        for name in ("report.html", "otlp.jsonl"):
            (template / name).write_text("old")
        yield World(folder / "world", commands)


def begin(world: World) -> None:
    """Let the world be as it was before any command."""
    shutil.rmtree(world.folder, ignore_errors=True)
    shutil.copytree(world.folder.parent / "template", world.folder)


@pytest.fixture(scope="module")
def before(world: World) -> Any:
    """What `summary` says before any command."""
    begin(world)
    return summary(world)


@pytest.mark.parametrize("name", CASES)
def test_a_killed_command_loses_nothing_and_goes_on(name: str, world: World, before: Any) -> None:
    case = CASES[name]
    begin(world)
    ended = world.commands.run(*case.words(world))
    assert ended.code == 0, ended.said
    expected = json.loads(json.dumps(case.after(world)))
    logs = files_of(world / "exp")
    for point in points_of(ended.changes):
        begin(world)
        assert world.commands.run(*case.words(world), kill_at=point).code == -9
        answer = case.killed(world)
        assert answer is None or differs(answer, before) == "", point
        again = world.commands.run(*case.words(world))
        assert again.code == 0, (point, again.said)
        assert differs(json.loads(json.dumps(case.after(world))), expected) == "", point
        assert files_of(world / "exp") == logs, point


def points_of(changes: int) -> list[int]:
    """Return before which changes to kill: all; or the last, and some before, in equal distances.

    A command that is killed before its first change has done nothing.
    """
    assert changes > 2
    if POINTS == 0:
        return list(range(1, changes + 1))
    return sorted({2 + round(number * (changes - 2) / (POINTS - 1)) for number in range(POINTS)})
