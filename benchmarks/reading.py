"""Read a run once, in its own process, and print the time and memory: `python reading.py HOW FOLDER`."""

import json
import resource
import sys
import time
from pathlib import Path


def plain(folder):
    """Decode every line into a dict, as each of the reference's eight scripts does for itself."""
    lines = 0
    for path in Path(folder).rglob("*.jsonl"):
        with path.open() as file:
            for line in file:
                json.loads(line)
                lines += 1
    return lines


def summary(folder, cached=False):
    """Compute all that `summary` shows."""
    from sglang_instrument.analysis.answers.engine.call_times import paths_of
    from sglang_instrument.analysis.answers.steps import step_table, worker_table
    from sglang_instrument.analysis.ledger.ledger import step_ledger, worker_ledger
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.analysis.verdict.verdict import judge

    run = Run.open(folder, cached=cached)
    step_table(run.digest)
    worker_table(run.digest)
    paths = paths_of(run)
    step_ledger(paths)
    worker_ledger(paths)
    judge(run, over=False, paths=paths)
    return run.health.records


def from_cache(folder):
    """Compute the same from the cache."""
    return summary(folder, cached=True)


def staleness(folder, cached=False):
    """Compute all that `staleness` shows."""
    from sglang_instrument.analysis.answers.asynchronous.fates import sample_fates
    from sglang_instrument.analysis.answers.asynchronous.staleness import (
        group_table,
        load_table,
        staleness_table,
    )
    from sglang_instrument.analysis.run.opening import Run

    run = Run.open(folder, cached=cached)
    fates = sample_fates(run.digest)
    assert len(staleness_table(fates)) == len(load_table(run.digest, fates)) > 0
    staleness_table(fates, by_worker=True)
    assert len(group_table(fates))
    return run.health.records


def waste(folder, cached=False):
    """Compute all that `waste` shows."""
    from sglang_instrument.analysis.answers.asynchronous.fates import sample_fates
    from sglang_instrument.analysis.answers.asynchronous.waste import totals, waste_table, with_engine_tokens
    from sglang_instrument.analysis.run.opening import Run

    run = Run.open(folder, cached=cached)
    fates = with_engine_tokens(run, sample_fates(run.digest))
    assert totals(waste_table(fates, run.digest))["used"] > 0
    return run.health.records


HOW = {
    "plain": plain,
    "summary": summary,
    "from_cache": from_cache,
    "staleness": staleness,
    "waste": waste,
    "staleness_from_cache": lambda folder: staleness(folder, cached=True),
    "waste_from_cache": lambda folder: waste(folder, cached=True),
}


def main(how, folder):
    """Print seconds and CPU seconds, without the start and the imports, and the peak of memory in MB."""
    from sglang_instrument.cli.polars_start import start_polars

    start_polars()  # as each command does
    import sglang_instrument.analysis.run.opening
    import sglang_instrument.analysis.verdict.verdict  # noqa: F401 - imported before the clock starts

    begun, imported = time.perf_counter(), time.process_time()
    lines = HOW[how](folder)
    wall_sec = time.perf_counter() - begun
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_sec = sum(usage.ru_utime + usage.ru_stime for usage in used) - imported
    peak_mb = max(usage.ru_maxrss for usage in used) / 1024
    print(json.dumps({"lines": lines, "wall_sec": wall_sec, "cpu_sec": cpu_sec, "peak_mb": peak_mb}))


if __name__ == "__main__":
    main(*sys.argv[1:])
