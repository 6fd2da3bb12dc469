"""Run one variant in its own process: run one round for each line on stdin, and print the result as JSON.

python child.py SUBJECT VARIANT FOLDER
"""

import importlib
import json
import os
import sys
from pathlib import Path

import sglang_instrument


def main(subject, variant, folder):
    """Run one round for each line of stdin."""
    run = importlib.import_module(subject).VARIANTS[variant]
    instrumented = variant not in ("nothing", "reference", "json.dumps")
    if instrumented:
        tables = str(Path(__file__).parent / "tables")
        sglang_instrument.install(log_dir=folder, experiment="run", patches=tables, trainers="benchmarks")
    for _ in sys.stdin:
        answer = run(folder)
        if instrumented and not sglang_instrument.flush(30):
            raise SystemExit("the disk is too slow")
        forget_lines(folder)
        print(json.dumps(answer), flush=True)


def forget_lines(folder):
    """Empty the logs, so that the next round writes to memory that was in use before."""
    for path in Path(folder).rglob("*.jsonl"):
        os.truncate(path, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
