"""One variant in a process of its own: for each line on stdin it runs one round, and answers with JSON.

python child.py SUBJECT VARIANT FOLDER
"""

import importlib
import json
import os
import sys
from pathlib import Path

import sglang_instrument


def main(subject, variant, folder):
    """Answer each request for a round until stdin ends."""
    run = importlib.import_module(subject).VARIANTS[variant]
    instrumented = variant not in ("nothing", "reference", "json.dumps")
    if instrumented:
        tables = str(Path(__file__).parent / "tables")
        sglang_instrument.install(log_dir=folder, experiment="run", patches=tables, trainers="benchmarks")
    for _ in sys.stdin:
        answer = run(folder)
        if instrumented and not sglang_instrument.flush(30):
            raise SystemExit("the disk does not keep up")
        forget_lines(folder)
        print(json.dumps(answer), flush=True)


def forget_lines(folder):
    """Empty the logs, so that the next round writes to memory that was in use before."""
    for path in Path(folder).rglob("*.jsonl"):
        os.truncate(path, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
