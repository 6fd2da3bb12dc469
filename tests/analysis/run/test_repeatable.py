"""Answers are equal to the byte, whatever the batches, and in whatever order polars returns groups."""

import random
from pathlib import Path

import polars as pl
import pytest
from polars.dataframe.group_by import GroupBy
from worlds import small_world

from sglang_instrument.analysis.executors.local import list_files
from sglang_instrument.analysis.run.batch_job import BatchJob
from sglang_instrument.cli.main import main
from sglang_instrument.testing import SlowEngine, synthetic_run
from sglang_instrument.testing.world.play import write_world

QUESTIONS = (
    *(
        "summary",
        "summary --step 3",
        "summary --validate",
        "events",
        "events --step 2",
        "requests",
        "workers",
    ),
    *("staleness --by-worker --groups", "waste"),
    *("turns", "lengths", "gaps", "check", "whatif --max-tokens 600", "whatif --scale tool_execution=0.5"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_run(
        tmp_path_factory.mktemp("run") / "exp",
        steps=5,
        workers=3,
        requests=6,
        validate_every=2,
        engine_clocks={0: 0.0, 1: 0.001, 2: 0.0},
        causes=[SlowEngine(step=3, worker=2, factor=2.0)],
    )


@pytest.mark.parametrize("tables", ["digest", "events", "paths", "times"])
def test_the_rows_of_a_file_do_not_depend_on_the_other_files_of_its_batch(folder: Path, tables: str) -> None:
    files = list_files(folder)
    job = BatchJob(tables, ("tool_execution", "turn_engine_call"))
    read, together = job.run(folder, files)
    alone = [job.run(folder, [file]) for file in files]
    assert [file for files, _ in alone for file in files] == read
    for name, whole in together.items():
        sources = 0
        for (file,), tables_of_file in alone:
            numbers = range(sources, sources := sources + len(file.runs))
            rows = tables_of_file[name].with_columns(pl.col("source") + numbers.start)
            assert rows.equals(whole.filter(pl.col("source").is_in(list(numbers)))), (name, file.path)


@pytest.fixture(scope="module")
def trainers_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose trainer logs what it does between steps."""
    return write_world(tmp_path_factory.mktemp("world") / "exp", small_world("over-sampling"))


def _answers(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    answers = {}
    for asked in QUESTIONS:
        command, *options = asked.split()
        main([command, str(folder), *options, "--json"])
        answers[asked] = capsys.readouterr().out
    return answers


@pytest.mark.parametrize("run", ["folder", "trainers_run"])
def test_answers_do_not_depend_on_the_order_in_which_polars_returns_groups_and_matches(
    run: str,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = request.getfixturevalue(run)
    expected = _answers(folder, capsys)
    lot = random.Random(1)
    agg, join, unique = GroupBy.agg, pl.DataFrame.join, pl.DataFrame.unique

    def shuffled(table: pl.DataFrame) -> pl.DataFrame:
        return table.sample(fraction=1.0, shuffle=True, seed=lot.randrange(2**31))

    def any_agg(self, *columns, **named):
        table = agg(self, *columns, **named)
        return table if self.maintain_order else shuffled(table)

    def any_join(self, *others, **how):
        table = join(self, *others, **how)
        return table if how.get("maintain_order") or how.get("how", "inner") != "inner" else shuffled(table)

    def any_unique(self, *columns, **how):
        table = unique(self, *columns, **how)
        return table if how.get("maintain_order") else shuffled(table)

    monkeypatch.setattr(GroupBy, "agg", any_agg)
    monkeypatch.setattr(pl.DataFrame, "join", any_join)
    monkeypatch.setattr(pl.DataFrame, "unique", any_unique)
    assert _answers(folder, capsys) == expected
