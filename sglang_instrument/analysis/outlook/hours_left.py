"""Forecast, as each step ends, how long the training will go on: from when its steps began."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from sglang_instrument.analysis.changes.statistics import first_is_cold
from sglang_instrument.analysis.outlook.trend import FEWEST, seconds_left
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.settings.main_settings import total_steps
from sglang_instrument.analysis.settings.recorded import settings_of_run

_SHARES: Final = {"left_hours": 0.5, "left_hours_low": 0.1, "left_hours_high": 0.9}
_MOST_STEPS: Final = 2_000  # whose beginnings are kept


class TrainingLeft:
    """When the training steps of a launch began, and how many it has."""

    def __init__(self) -> None:
        self._begins: dict[int, int] = {}
        self._total: int | None = None

    def scalars(self, run: Run, row: Mapping[str, Any]) -> dict[str, float]:
        """Return the hours from the end of a step to that of the training: the median, and an 80 % interval.

        Empty while fewer than five steps are complete, and where no setting says how many there are.

        Args:
            run: The run, or some steps of it.
            row: The step's row of `step_table`.
        """
        step, start_us = row["step"], row["start_us"]
        if row["validate"] or step is None or start_us is None:
            return {}
        if any(known >= step and begin != start_us for known, begin in self._begins.items()):
            self._begins.clear()  # the training began again
        self._begins[step] = start_us
        while len(self._begins) > _MOST_STEPS:
            del self._begins[next(iter(self._begins))]
        known = sorted(self._begins)
        seconds = [
            (self._begins[after] - self._begins[before]) / 1e6
            for before, after in pairwise(known)
            if after == before + 1
        ]
        if len(seconds) > FEWEST and first_is_cold(seconds):
            del seconds[0]
        if len(seconds) < FEWEST:
            return {}
        if self._total is None:
            self._total = total_steps(settings_of_run(run))
        left = None if self._total is None else self._total - step + (known[0] > 0)  # with this step
        if left is None or left <= 0:
            return {}
        of_step = row["duration_sec"] or 0.0
        hours = [max(0.0, sec - of_step) / 3600 for sec in seconds_left(seconds, left, [*_SHARES.values()])]
        return dict(zip(_SHARES, hours, strict=True))
