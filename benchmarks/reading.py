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
    from sglang_instrument.analysis.answers.call_times import paths_of
    from sglang_instrument.analysis.answers.steps import step_table, worker_table
    from sglang_instrument.analysis.ledger.ledger import step_ledger, worker_ledger
    from sglang_instrument.analysis.run.opening import open_run
    from sglang_instrument.analysis.verdict.verdict import verdict_of

    run = open_run(folder, cached=cached)
    step_table(run.digest)
    worker_table(run.digest)
    paths = paths_of(run)
    step_ledger(paths)
    worker_ledger(paths)
    verdict_of(run, over=False)
    return run.health.records


def from_cache(folder):
    """Compute the same from the cache."""
    return summary(folder, cached=True)


def main(how, folder):
    """Print seconds, without the start of the process and its imports, and the peak of memory in MB."""
    import sglang_instrument.analysis.run.opening
    import sglang_instrument.analysis.verdict.verdict  # noqa: F401 - imported before the clock starts

    begun = time.perf_counter()
    lines = {"plain": plain, "summary": summary, "from_cache": from_cache}[how](folder)
    wall_sec = time.perf_counter() - begun
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps({"lines": lines, "wall_sec": wall_sec, "peak_mb": max(peaks) / 1024}))


if __name__ == "__main__":
    main(*sys.argv[1:])
