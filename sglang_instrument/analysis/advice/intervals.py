"""Say how sure a simulated saving is: by how it differs from step to step, and how far replays are off."""

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Final, NamedTuple

from scipy.special import stdtrit

#: The share of promises that hold in what comes after.
CONFIDENCE: Final = 0.8
_NORMAL: Final = 1.2816  # both tails of 20 %


class Saving(NamedTuple):
    """Seconds that a step saves on average, and the 80 % interval for as many steps of other prompts."""

    sec: float
    low: float
    high: float


def saving_of(per_step: Sequence[float], model_error: float = 0.0) -> Saving | None:
    """Return the mean saving of a step with its interval; None with fewer than two steps.

    The steps that come are as many as those recorded, and scatter as they do. What the replay is off is
    independent of that.

    Args:
        per_step: The seconds that each recorded step saves.
        model_error: Standard deviation of what the replay is off, as a share of the saving.
    """
    if len(per_step) < 2:
        return None
    middle, count = mean(per_step), len(per_step)
    by_chance = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * stdev(per_step) * math.sqrt(2 / count)
    reach = math.hypot(by_chance, _NORMAL * model_error * middle)
    return Saving(middle, middle - reach, middle + reach)
