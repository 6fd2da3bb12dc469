"""Write a run with planted causes, in the format of a real run, without torch or sglang."""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from sglang_instrument.gc_pause import uncollected
from sglang_instrument.testing.causes.base import Cause
from sglang_instrument.testing.run_shape import PlayedStep, RunShape, play_run
from sglang_instrument.testing.simulation.engine_logs import EngineLogs, name_calls
from sglang_instrument.testing.simulation.log_files import LogFile
from sglang_instrument.testing.simulation.timeline import MAIN, NEVER, Happened
from sglang_instrument.testing.simulation.trainer import trainer_records


def synthetic_run(
    folder: str | Path,
    *,
    causes: Sequence[Cause] = (),
    progress: Callable[[int], object] = lambda step: None,
    **shape: Any,
) -> Path:
    """Write a run of heavy-tailed multi-turn requests with tools; the same arguments give the same bytes.

    Args:
        folder: The experiment's folder; it is created if missing.
        causes: What is planted, such as `SlowEngine(step=3, worker=2, factor=2.0)`.
        progress: Called with the number of each step after it is written.
        **shape: The fields of `RunShape`: `steps`, `workers`, `requests`, `seed` ...

    Returns:
        The folder.
    """
    return write_run(Path(folder), RunShape(**shape), causes, progress)


def write_run(
    folder: Path,
    shape: RunShape,
    causes: Sequence[Cause] = (),
    progress: Callable[[int], object] = lambda step: None,
) -> Path:
    """Write a run of this shape; the other arguments are those of `synthetic_run`."""
    run_id = f"synthetic-{shape.seed}"
    engines = [EngineLogs(folder, rank, ahead, run_id) for rank, ahead in sorted(shape.engine_clocks.items())]
    with uncollected():  # a step makes many small objects, without cycles
        for played in play_run(shape, causes):
            _write_engines(shape, engines, played)
            _write_workers(folder, shape, played, run_id)
            _write_trainer(folder, shape, played, run_id)
            _write_validation(folder, shape, played, run_id)
            progress(played.step)
    for cause in causes:
        cause.damage(folder)
    return folder


def _write_engines(shape: RunShape, engines: list[EngineLogs], played: PlayedStep) -> None:
    for engine in engines:
        of_engine = played.workers if shape.engine.shared else [played.workers[engine.rank]]
        engine.write(chain.from_iterable(worker.calls for worker in of_engine))
        for worker in of_engine:
            name_calls(worker.happened)


def _write_workers(folder: Path, shape: RunShape, played: PlayedStep, run_id: str) -> None:
    for rank, worker in enumerate(played.workers):
        file = LogFile(played.step, rank, shape.clock_skew.get(rank, 0.0), run_id)
        lines = (
            file.reference_lines(worker.happened)
            if shape.reference_format
            else file.lines(worker.happened, played.begin, worker.end, waits=worker.arrival < NEVER)
        )
        _write(folder / f"step_{played.step}" / f"worker_{rank}.jsonl", lines)


def _write_trainer(folder: Path, shape: RunShape, played: PlayedStep, run_id: str) -> None:
    if shape.trainer.recorded and played.done < NEVER:
        records = trainer_records(played.waited, played.done, played.trained[0], played.between_sec)
        file = LogFile(played.step, 0, 0.0, run_id)
        lines = file.lines(records, played.waited, max(record.end for record in records))
        _write(folder / f"step_{played.step}" / "trainer_0.jsonl", lines)


def _write_validation(folder: Path, shape: RunShape, played: PlayedStep, run_id: str) -> None:
    """Write a validation with one engine call for each worker's whole batch."""
    if played.validation is None:
        return
    begin, seconds = played.validation
    leave = begin + max(seconds) + 1e-3
    for rank, sec in enumerate(seconds):
        happened = [
            Happened("engine_async_generate", begin, begin + sec, None, MAIN),
            Happened("barrier", begin + sec + 1e-5, leave, None, MAIN),
        ]
        file = LogFile(played.step, rank, shape.clock_skew.get(rank, 0.0), run_id, validate=True)
        lines = (
            file.reference_lines(happened) if shape.reference_format else file.lines(happened, begin, leave)
        )
        _write(folder / f"validate_{played.step}" / f"worker_{rank}.jsonl", lines)


def _write(path: Path, lines: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lines)
