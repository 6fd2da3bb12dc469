"""Read a log once, in its own process with one thread, and print events and CPU time: `foreign.py PATH`."""

import json
import os
import sys
import time
from pathlib import Path


def main(path):
    """Print events, the bytes of the files, and CPU seconds without the start of the process."""
    from sglang_instrument.analysis.executors.local import LocalExecutor
    from sglang_instrument.analysis.foreign.executor import foreign_executor
    from sglang_instrument.analysis.reading.folders import is_run_folder
    from sglang_instrument.analysis.run.digest_of_run import digest_files

    begun = time.process_time()
    executor = LocalExecutor(path, most_processes=1) if is_run_folder(path) else foreign_executor(path)
    files, _ = digest_files(executor, executor.list_files())
    cpu_sec = time.process_time() - begun
    events = sum(sum(file.records) for file in files)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    print(json.dumps({"events": events, "bytes": size, "cpu_sec": cpu_sec}))


if __name__ == "__main__":
    os.environ["POLARS_MAX_THREADS"] = "1"
    main(Path(sys.argv[1]))
