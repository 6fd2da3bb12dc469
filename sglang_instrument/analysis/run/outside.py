"""Find files whose records belong to no step, although they are in the folder of one.

Records without a bound step are written to step 0; a trainer without a step number yet reports step -1. Other
trainers number their real steps from 0, so the number alone does not tell.
"""

from collections.abc import Sequence

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.reading.files import File, controls_of
from sglang_instrument.analysis.reading.folders import ROLE_OF_REQUESTS
from sglang_instrument.schema import LOG_OPENED, STEP_CLOSED


def paths_outside_steps(files: Sequence[File]) -> set[str]:
    """Return the paths of files whose records belong to no step.

    Logs of versions before `step_bound` do not tell: there, step 0 is a real step if any of its files was
    closed as a step. Files without a header come from the reference, which always knows its step.
    """
    closed = {file.folder for file, _ in controls_of(files, STEP_CLOSED)}
    headers, outside = _headers(files), set()
    for file in files:
        step = None if file.place is None else file.place.step
        bound = headers.get(file.path, [True])
        old = set(bound) == {None} and file.folder not in closed
        if step is not None and (step < 0 or (step == 0 and (old or _is_unbound(bound)))):
            outside.add(file.path)
    return outside


def unbound_paths(files: Sequence[File]) -> set[str]:
    """Return the paths of files whose header says that their records belong to no step."""
    return {path for path, bound in _headers(files).items() if _is_unbound(bound)}


def only_in_steps(files: Sequence[File], digest: Digest) -> Digest:
    """Return the rows of a digest that belong to a step; all rows if the workers have no others."""
    paths = paths_outside_steps(files)
    sources = [file.path for file in files for _ in file.runs]
    left_out = [number for number, path in enumerate(sources) if path in paths]
    if not left_out:
        return digest
    inside = digest.filter(~pl.col("source").is_in(left_out))
    roles = set(digest.steps["role"])
    roles = {ROLE_OF_REQUESTS} & roles or roles
    return digest if roles.isdisjoint(inside.steps["role"]) else inside


def _is_unbound(bound: Sequence[bool | None]) -> bool:
    return False in bound and True not in bound


def _headers(files: Sequence[File]) -> dict[str, list[bool | None]]:
    """Return the `step_bound` of each header of each file: whether a step was bound."""
    headers: dict[str, list[bool | None]] = {}
    for file, opened in controls_of(files, LOG_OPENED):
        headers.setdefault(file.path, []).append(opened.extra.step_bound)
    return headers
