"""Runs of every clean shape are whole, and look as their names say."""

from dataclasses import replace
from pathlib import Path

import pytest
from clean_shapes import CLEAN_SHAPES, CleanRun

from sglang_instrument.analysis import open_run
from sglang_instrument.cli.main import main
from sglang_instrument.testing.synthetic import write_run


def small(name: str, seed: int = 0) -> CleanRun:
    """A run of the shape, with fewer steps and requests."""
    clean = CLEAN_SHAPES[name](seed)
    return replace(clean, shape=replace(clean.shape, steps=3, requests=4))


@pytest.mark.parametrize("name", CLEAN_SHAPES)
def test_check_finds_nothing_wrong_with_a_clean_run_whose_files_are_whole(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean = small(name)
    write_run(tmp_path / "run", clean.shape, clean.causes)
    assert main(["check", str(tmp_path / "run")]) == int(not clean.is_whole), capsys.readouterr().out


@pytest.mark.parametrize("name", CLEAN_SHAPES)
def test_the_same_seed_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    written = []
    for folder in ("a", "b"):
        clean = small(name)
        write_run(tmp_path / folder, clean.shape, clean.causes)
        written.append(
            {
                path.relative_to(tmp_path / folder): path.read_bytes()
                for path in (tmp_path / folder).rglob("*.jsonl")
            }
        )
    assert written[0] == written[1]


def test_rollouts_overlap_training(tmp_path: Path) -> None:
    clean = small("overlap")
    spans = open_run(write_run(tmp_path, clean.shape)).spans
    trained = spans.filter(role="trainer", step=1, event="trainer_update_actor")
    rollout = spans.filter(role="worker", step=2, event="total_step_duration")
    assert rollout["start_us"].min() < trained["start_us"].item()


def test_requests_queue_at_a_full_engine(tmp_path: Path) -> None:
    from sglang_instrument.analysis.answers.engine.join import engine_request_table

    shape = replace(CLEAN_SHAPES["engine logs"](0).shape, steps=1)
    requests = engine_request_table(open_run(write_run(tmp_path, shape)))
    assert requests["queue_sec"].max() > 1.0
    assert requests["prefill_sec"].min() > 0


def test_the_references_format_has_no_keys_of_ours(tmp_path: Path) -> None:
    clean = small("reference's format")
    run = open_run(write_run(tmp_path, clean.shape))
    assert run.health.headerless == run.health.files
    assert run.health.local_times == run.health.records
    text = (tmp_path / "step_1" / "worker_0.jsonl").read_text()
    assert not any(key in text for key in ("start_us", '"task"', "spawned_by", "log_opened"))
