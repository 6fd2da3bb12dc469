"""Propose to begin more samples than a step needs, and to drop those that come last."""

from collections.abc import Iterator
from statistics import mean
from typing import Final

import polars as pl

from sglang_instrument.analysis.advice.evidence.change import Change
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever

_SHARES: Final = (0.1, 0.2, 0.3)
_ENOUGH: Final = 0.8  # of what the best share saves
_WORTH: Final = 0.5  # of the share of the samples that is thrown away, as a share of the step
_EARLY: Final = 0.3  # of the time of a rollout, in which a batch begins
_MOST_BEGUN: Final = 0.9  # of the requests: then a step is a batch
_MOST_ABORTED: Final = 0.01  # of the requests: where more are, the trainer over-samples already


@lever("over-sampling", "simulated", model_error=0.3, drops_samples=True)
def oversampling(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield the smallest share of more samples that saves most of what the best one saves.

    None where a step would save less than half as large a share as is thrown away: that is no gain.
    """
    if not _is_begun_at_once(grounds) or _aborted_share(grounds) > _MOST_ABORTED:
        return
    changes = [Change(more_requests=share) for share in _SHARES]
    saved = [grounds.playback.saved(change) for change in changes]
    if not all(saved):
        return
    best = max(map(mean, saved))
    place = next(number for number, each in enumerate(saved) if mean(each) >= _ENOUGH * best or best <= 0)
    share = _SHARES[place]
    if mean(saved[place]) < _WORTH * share / (1 + share) * grounds.playback.step_sec:
        return
    setting = grounds.setting("over-sampling")
    yield ProposedChange(
        setting.name,
        setting.value,
        f"{100 * share:.0f} % more than a step needs",
        costs=f"{100 * share / (1 + share):.0f} % of the samples are thrown away, the longest first",
        rests_on="a replay with more requests like the recorded ones; a step ends when enough are done",
        command="lengths LOGS --caps samples",
        change=changes[place],
        per_step=saved[place],
        not_recorded=setting.not_recorded,
    )


def _is_begun_at_once(grounds: Grounds) -> bool:
    """Return whether the requests of a step begin together: a rollout of batches, no stream of samples."""
    begun, ended = pl.col("start_us"), pl.col("end_us").max().over("step")
    first = begun.min().over("step")
    early = grounds.requests.select(begun - first <= _EARLY * (ended - first)).to_series()
    return bool(len(early)) and float(early.mean() or 0.0) > _MOST_BEGUN  # type: ignore[arg-type]


def _aborted_share(grounds: Grounds) -> float:
    aborted = grounds.requests.filter((pl.col("finish_reason") == "abort") | pl.col("error").is_not_null())
    return len(aborted) / max(1, len(grounds.requests))
