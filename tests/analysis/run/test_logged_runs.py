"""Runs that share a folder: which one is shown, and how an older one is opened."""

from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.answers.events import event_table
from sglang_instrument.analysis.answers.requests import request_table
from sglang_instrument.errors import LogError
from sglang_instrument.testing import synthetic_run

LATER_SEC = 3600.0


def launched_again(folder: Path, first_step: int) -> Path:
    """Write run synthetic-1 of four steps, and, an hour later, synthetic-2 of two steps."""
    synthetic_run(folder, steps=4, workers=2, requests=4, seed=1)
    later = {"clock_skew": {0: LATER_SEC, 1: LATER_SEC}, "first_step": first_step}
    new = synthetic_run(folder.with_name("new"), steps=2, workers=2, requests=4, seed=2, **later)
    for path in new.rglob("*.jsonl"):
        with (folder / path.relative_to(new)).open("ab") as stream:
            stream.write(path.read_bytes())
    return folder


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder in which a second run began at step 1 again."""
    return launched_again(tmp_path / "exp", first_step=1)


def test_a_run_that_begins_again_is_shown_without_later_steps_of_older_runs(shared: Path) -> None:
    run = open_run(shared)
    assert run.name == f"{shared} (run synthetic-2, the newest of 2)"
    assert run.steps == [1, 2]
    assert list(run.health.older) == ["synthetic-1"]


def test_a_run_that_goes_on_is_shown_with_the_steps_before_it(tmp_path: Path) -> None:
    folder = launched_again(tmp_path / "exp", first_step=2)
    run = open_run(folder)
    assert run.name == f"{folder} (run synthetic-2, the newest of 2; 1 step is of older runs)"
    assert run.steps == [1, 2, 3]
    assert run.health.runs == ["synthetic-1", "synthetic-2"]


def test_records_without_a_step_do_not_replace_the_steps_of_older_runs(tmp_path: Path) -> None:
    folder = launched_again(tmp_path / "exp", first_step=3)
    (folder / "step_0").mkdir()
    lines = (folder / "step_4/worker_0.jsonl").read_bytes().splitlines()
    header = next(line for line in lines if b"log_opened" in line and b"synthetic-2" in line)
    unbound = header.replace(b'"extra":{', b'"extra":{"step_bound":false,')
    (folder / "step_0/worker_0.jsonl").write_bytes(unbound + b"\n")
    assert open_run(folder).steps == [1, 2, 3, 4]


def test_a_resumed_trainer_replaces_no_step_before_its_own_first_though_its_workers_name_one(
    tmp_path: Path,
) -> None:
    folder = launched_again(tmp_path / "exp", first_step=3)
    lines = (folder / "step_4/worker_0.jsonl").read_bytes().splitlines(keepends=True)
    begin = next(
        number for number, line in enumerate(lines) if b"log_opened" in line and b"synthetic-2" in line
    )
    again = lines[begin].replace(b'"extra":{', b'"extra":{"step_bound":true,')
    with (folder / "step_1/worker_0.jsonl").open("ab") as stream:  # its worker knows no version yet
        stream.write(again)
    assert open_run(folder).health.runs == ["synthetic-2"]
    (folder / "step_3/trainer_0.jsonl").write_bytes(lines[begin])
    run = open_run(folder)
    assert run.steps == [1, 2, 3, 4]
    assert run.health.runs == ["synthetic-1", "synthetic-2"]


def test_the_name_of_a_folder_of_one_run_is_its_path(tmp_path: Path) -> None:
    folder = synthetic_run(tmp_path / "exp", steps=1, workers=1, requests=2)
    assert open_run(folder).name == str(folder)


@pytest.mark.parametrize("run_id", ["synthetic-1", "synthetic-2"])
def test_a_run_id_opens_that_run_as_if_it_were_alone_in_its_folder(
    shared: Path, tmp_path: Path, run_id: str
) -> None:
    seed = int(run_id[-1])
    skew = {0: LATER_SEC, 1: LATER_SEC} if seed == 2 else {}
    steps = {1: 4, 2: 2}[seed]
    alone = open_run(
        synthetic_run(tmp_path / "alone", steps=steps, workers=2, requests=4, seed=seed, clock_skew=skew)
    )
    opened = open_run(shared.with_name(f"exp@{run_id}"))
    assert opened.name == f"{shared} (run {run_id})"
    for name, table in opened.digest.tables().items():
        expected = alone.digest.tables()[name]
        assert_frame_equal(table.drop("source"), expected.drop("source"))
    assert_frame_equal(event_table(opened.spans), event_table(alone.spans))
    assert open_run(opened.logs).name == opened.name
    assert (opened.health.runs, opened.health.older) == ([run_id], {})
    assert opened.health.records == alone.health.records


def test_the_begin_of_a_run_id_will_do_if_only_one_run_begins_so(shared: Path) -> None:
    with pytest.raises(LogError, match="2 runs begin with 'syn'; its newest runs: synthetic-1, synthetic-2"):
        open_run(shared.with_name("exp@syn"))
    with pytest.raises(LogError, match="no run '2026'; its newest runs: synthetic-1, synthetic-2"):
        open_run(shared.with_name("exp@2026"))
    other = shared / "step_9/worker_0.jsonl"
    other.parent.mkdir()
    other.write_bytes((shared / "step_1/worker_0.jsonl").read_bytes().replace(b"synthetic-1", b"other-7"))
    assert open_run(shared.with_name("exp@oth")).run_id == "other-7"


def test_a_folder_whose_name_holds_an_at_sign_is_that_folder(tmp_path: Path) -> None:
    synthetic_run(tmp_path / "exp", steps=1, workers=1, requests=2, seed=1)
    folder = synthetic_run(tmp_path / "exp@synthetic-1", steps=2, workers=1, requests=2, seed=2)
    assert open_run(folder).steps == [1, 2]


def test_a_large_run_opens_an_older_run_from_the_cache_of_all(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang_instrument.analysis.store.homes._WORTHWHILE_BYTES", 0)
    newest = request_table(open_run(shared).digest)
    for _ in range(2):  # made, then cached
        older = request_table(open_run(shared.with_name("exp@synthetic-1")).digest)
        assert len(older) == 4 * 2 * 4
        assert request_table(open_run(shared).digest).equals(newest)
