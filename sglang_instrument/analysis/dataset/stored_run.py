"""Keep in a dataset what `open_run` needs to answer from it: the digest, and what the processes are."""

from pathlib import Path
from typing import Final

from sglang_instrument.analysis.answers.call_times import call_times
from sglang_instrument.analysis.answers.engine_requests import cached_engine_requests, called_requests
from sglang_instrument.analysis.answers.join import callers, engine_request_table, has_engine_logs
from sglang_instrument.analysis.answers.round_trips import round_trip_table
from sglang_instrument.analysis.answers.routing.samples import logged_samples
from sglang_instrument.analysis.answers.routing.server_calls import server_calls
from sglang_instrument.analysis.reading.processes_of_run import REACHED
from sglang_instrument.analysis.run.digest_of_run import store_digest
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.regular_files import read_regular
from sglang_instrument.safe_files.folder import SafeFolder

_MOST_BYTES: Final = 16 * 2**20  # a process with thousands of patches describes itself in less than 1 MiB


def store_run(run: Run, target: Path) -> None:
    """Write the digest and the processes' descriptions of a run into its dataset."""
    tables = {}
    calls = call_times(run)
    if has_engine_logs(run) and calls is not None:
        tables = {
            "call_times": calls,
            "callers": callers(run, run.files),
            "called_requests": called_requests(run),
            "engine_requests": cached_engine_requests(run),
            "placed_requests": engine_request_table(run),
            "round_trips": round_trip_table(run),
        }
    routed = server_calls(run)
    if len(routed):
        tables |= {"server_calls": routed, "server_samples": logged_samples(run)}
    store_digest(target, run.files, run.everything, tables)
    _copy_descriptions(run.home / "processes", SafeFolder(target, ("processes",)))


def _copy_descriptions(source: Path, target: SafeFolder) -> None:
    """Copy what the processes said of themselves, and leave out what cannot be read."""
    for path in (*source.glob("[!.]*.json"), *source.glob(f"{REACHED}/[!.]*.json")):
        try:
            content = read_regular(path, _MOST_BYTES)
        except OSError:  # `status` of the log reports it
            continue
        folder, name = target.split(path.relative_to(source).as_posix())
        folder.write(name, content)
