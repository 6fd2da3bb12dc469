"""Analyse a trace once, in its own process, and print the time and memory: `python tracing.py HOW FILE`."""

import json
import resource
import sys
import time


def plain(path):
    """Load the whole file and sum up the GPU's work as users' scripts do: kernels, union of busy times."""
    with open(path) as file:  # noqa: PTH123 - as the scripts do
        events = json.load(file)["traceEvents"]
    totals, busy = {}, []
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            name = event["name"]
            count, total = totals.get(name, (0, 0.0))
            totals[name] = (count + 1, total + event["dur"])
            busy.append((event["ts"], event["ts"] + event["dur"]))
    busy.sort()
    covered, reach = 0.0, float("-inf")
    for start, end in busy:
        covered += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return {"events": len(events), "busy_sec": covered / 1e6}


def ours(path):
    """Do all that `trace` does: streams, gaps with their reasons, graphs, stages, operators."""
    from sglang_instrument.traces.answers import analyse

    analysis = analyse(path).traces[0]
    return {"events": analysis.events, "busy_sec": analysis.use["busy_sec"]}


def main(how, path):
    """Print seconds, without the start of the process and its imports, and the peak of memory in MB."""
    import sglang_instrument.traces.answers  # noqa: F401 - imported before the clock starts

    begun, cpu = time.perf_counter(), time.process_time()
    answer = {"plain": plain, "ours": ours}[how](path)
    spent = {"wall_sec": time.perf_counter() - begun, "cpu_sec": time.process_time() - cpu}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**answer, **spent, "peak_mb": peak}))


if __name__ == "__main__":
    main(*sys.argv[1:])
