"""The ledger places all workers, and the trainer, on one clock."""

from pathlib import Path

from made_workers import BARRIER, TRAINED, TRAINER, Step, Worker, rows_of, written

from sglang_instrument.analysis import open_run, step_ledger, worker_ledger


def test_clocks_that_differ_change_no_ledger(tmp_path: Path) -> None:
    worker = Worker(0, [[("engine_generate", 9)], [("padding_duration", 3)]])
    slow = Worker(0, [[("preprocessing_duration", 20), ("engine_generate", 9)], [("padding_duration", 3)]])
    steps = [Step({0: worker, 1: slow, 2: worker, 3: worker}, 5, 0, False)] * 3
    written(tmp_path / "even", steps, {})
    written(tmp_path / "skewed", steps, {1: 70, 2: -4000})
    even, skewed = (open_run(tmp_path / name).digest for name in ("even", "skewed"))
    assert rows_of(step_ledger(even)) == rows_of(step_ledger(skewed))
    assert rows_of(worker_ledger(even)) == rows_of(worker_ledger(skewed))
    waits = worker_ledger(skewed).filter(part="barrier", event=BARRIER)
    assert set(waits.select("worker", "waited_for").iter_rows()) == {(0, 1), (1, None), (2, 1), (3, 1)}


def test_without_barriers_clocks_that_differ_are_no_late_start(tmp_path: Path) -> None:
    worker = Worker(0, [[("engine_generate", 9)]])
    steps = [Step({0: worker, 1: worker, 2: worker}, 5, 0, False)] * 3
    written(tmp_path / "even", steps, {})
    written(tmp_path / "skewed", steps, {1: 4000})
    even, skewed = (open_run(tmp_path / name).digest for name in ("even", "skewed"))
    assert rows_of(step_ledger(even)) == rows_of(step_ledger(skewed))
    assert rows_of(worker_ledger(even)) == rows_of(worker_ledger(skewed))


def test_without_barriers_one_step_begun_late_is_a_late_start(tmp_path: Path) -> None:
    worker, late = Worker(0, [[("engine_generate", 9)]]), Worker(6, [[("engine_generate", 9)]])
    steps = [Step({0: worker, 1: middle, 2: worker}, 5, 0, False) for middle in (worker, late, worker)]
    written(tmp_path, steps, {1: 4000})
    spent = rows_of(worker_ledger(open_run(tmp_path).digest))
    assert {key: ticks for key, ticks in spent.items() if key[3] == "late start"} == {
        (1, False, 1, "late start", None): 6
    }


def test_the_trainer_s_clock_is_that_of_the_worker_with_the_lowest_rank(tmp_path: Path) -> None:
    worker = Worker(0, [[("engine_generate", 9)], []])
    steps = [Step({0: worker, 1: worker, 2: worker}, 5, 4, False)] * 3
    written(tmp_path / "even", steps, {})
    written(tmp_path / "skewed", steps, {0: 300, TRAINER: 300})
    even, skewed = (open_run(tmp_path / name).digest for name in ("even", "skewed"))
    assert rows_of(step_ledger(even)) == rows_of(step_ledger(skewed))
    assert rows_of(step_ledger(even))[0, False, None, "between steps", TRAINED] == 4
