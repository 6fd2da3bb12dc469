"""Measure `sql` over many spans in Parquet, and what `export --parquet` makes of a log."""

import json
import os
import subprocess
import sys
import time

import polars as pl
from rounds import ROUNDS, Spread, save, table

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.dataset.export import export_dataset
from sglang_instrument.testing import synthetic_run

ROUNDS = min(ROUNDS, 7)
EVENTS = int(os.environ.get("BENCH_EVENTS", "20000000"))
STEPS = 20  # that are made; the others are links to their files
BOUND_SEC = 2.0
P99 = """select step, quantile_cont(duration_sec, 0.99) as p99_sec from spans
where event = 'tool_execution' and not validate group by step order by step"""


def repeated(dataset, events):
    """Link the parts under new names, as of further steps, until there are so many; return how many spans."""
    made = pl.scan_parquet(dataset / "parts/*/records.parquet").select(pl.len()).collect().item()
    index = json.loads((dataset / "index.json").read_text())
    parts = list(index["parts"])
    times = max(1, round(events / made))
    for number in range(1, times):
        for position, part in enumerate(parts):
            copy = {**part, "name": f"{number:08x}{position:08x}"}
            copy["files"] = [[moved(path, number), *state] for path, *state in part["files"]]
            folder, old = (dataset / "parts" / of["name"] for of in (copy, part))
            folder.mkdir()
            for path in old.glob("*.parquet"):
                (folder / path.name).hardlink_to(path)
            files = json.loads((old / "files.json").read_text())
            files["files"] = [{**file, "path": moved(file["path"], number)} for file in files["files"]]
            (folder / "files.json").write_text(json.dumps(files))
            index["parts"].append(copy)
    (dataset / "index.json").write_text(json.dumps(index))
    return made * times


def moved(path, number):
    """Return the path of a log file under the number of a later step."""
    folder, _, name = path.partition("/")
    kind, _, step = folder.partition("_")
    return f"{kind}_{int(step) + number * STEPS}/{name}"


def test_p99_by_step_over_a_large_dataset(tmp_path, show):
    logs = synthetic_run(tmp_path / "exp", steps=min(STEPS, max(1, EVENTS // 13_400)), workers=8, requests=64)
    run, dataset = open_run(logs), tmp_path / "dataset"
    begun = time.perf_counter()
    written = export_dataset(run, dataset)
    export_sec = time.perf_counter() - begun
    text = sum(file.size for file in run.files)
    parquet = sum(path.stat().st_size for path in dataset.glob("parts/*/*"))
    spans = repeated(dataset, EVENTS)
    opened, times, cpu = open_run(dataset), [], []
    for _ in range(ROUNDS):
        begun, cpu_begun = time.perf_counter(), time.process_time()
        answer = opened.sql(P99)
        times.append(time.perf_counter() - begun)
        cpu.append(time.process_time() - cpu_begun)
    assert answer["step"].to_list() == run.steps
    begun = time.perf_counter()
    command = [sys.executable, "-m", "sglang_instrument.cli.main", "sql", str(dataset), P99, "--csv"]
    subprocess.run(command, check=True, capture_output=True)
    command_sec = time.perf_counter() - begun
    asked, used = Spread.of(times), Spread.of(cpu)
    rows = [
        (
            "p99 of tool_execution by step, s",
            f"{asked.median:.2f}",
            f"{asked.low:.2f} .. {asked.high:.2f}",
            BOUND_SEC,
        ),
        ("CPU seconds of it", f"{used.median:.2f}", f"{used.low:.2f} .. {used.high:.2f}", ""),
        ("the whole command, s", f"{command_sec:.2f}", "", ""),
        ("export, us a span", f"{export_sec / written.rows * 1e6:.2f}", "", ""),
        ("bytes of the parts, of the log's", f"{parquet / text:.3f}", "", ""),
    ]
    title = f"{spans:,} spans in {len(list(dataset.glob('parts/*'))):,} parts"
    show(table(title, ("", "median", "quartiles", "bound"), rows))
    save("sql", rows, times=times, spans=spans)
    assert asked.median <= BOUND_SEC
