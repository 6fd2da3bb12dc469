"""Tell which files hold records outside of any step: they lie in the folder of a step, and are none.

What nobody bound to a step is written to step 0, and a trainer without a number yet says step -1. Other
trainers count their real steps from 0, so the number alone does not tell.
"""

from collections.abc import Sequence

import polars as pl

from sglang_instrument.analysis.digest import Digest
from sglang_instrument.analysis.files import File, controls_of
from sglang_instrument.schema import LOG_OPENED, STEP_CLOSED


def outside(files: Sequence[File]) -> set[str]:
    """Return the paths of files whose records belong to no step.

    Versions before `step_bound` do not say it: there, step 0 is one if any of its files was closed as a step.
    Files without a header are of the reference, which is told its steps.
    """
    closed = {file.folder for file, _ in controls_of(files, STEP_CLOSED)}
    headers, found = _headers(files), set()
    for file in files:
        step = None if file.place is None else file.place.step
        said = headers.get(file.path, [True])
        old = set(said) == {None} and file.folder not in closed
        if step is not None and (step < 0 or (step == 0 and (old or _is_unbound(said)))):
            found.add(file.path)
    return found


def unbound(files: Sequence[File]) -> set[str]:
    """Return the paths of files whose writer says that their records belong to no step."""
    return {path for path, said in _headers(files).items() if _is_unbound(said)}


def of_steps(files: Sequence[File], digest: Digest) -> Digest:
    """Return the rows of a digest that belong to a step; all of them, where none of the workers' does."""
    paths = outside(files)
    sources = [file.path for file in files for _ in file.runs]
    left_out = [number for number, path in enumerate(sources) if path in paths]
    if not left_out:
        return digest
    kept = digest.filter(~pl.col("source").is_in(left_out))
    ranked, roles = kept.steps["role"], digest.of_workers().steps["role"]
    return kept if ranked.is_in(roles.unique().implode()).any() else digest


def _is_unbound(said: Sequence[bool | None]) -> bool:
    return False in said and True not in said


def _headers(files: Sequence[File]) -> dict[str, list[bool | None]]:
    """Return what the headers of each file say of its step: whether one was bound."""
    headers: dict[str, list[bool | None]] = {}
    for file, opened in controls_of(files, LOG_OPENED):
        headers.setdefault(file.path, []).append(opened.extra.step_bound)
    return headers
