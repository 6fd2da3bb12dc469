"""The result of a forecast. It stands alone, so that snapshots import no numpy."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Forecast:
    """When the step in progress ends.

    Attributes:
        low_sec, high_sec: It ends within these times from now, in 8 of 10 steps.
        decides: The worker and the request that most probably end last; None if none is open.
        decides_share: How probable that is.
        will_not_end: Worker and request of those that have left the range of all that ended. The interval and
            `decides` are those of the others.
    """

    low_sec: float
    high_sec: float
    decides: tuple[int, str] | None
    decides_share: float
    will_not_end: tuple[tuple[int, str], ...]

    @property
    def is_stuck(self) -> bool:
        """Whether only requests that will not end are open: then the interval has no meaning."""
        return bool(self.will_not_end) and self.decides is None
