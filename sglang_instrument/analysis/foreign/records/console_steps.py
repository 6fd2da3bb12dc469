"""Read the line that verl prints for each step: "step:12 - timing_s/gen:21.3 - timing_s/step:54.1 - ..."."""

import re
from collections.abc import Iterable
from typing import Final

from sglang_instrument.analysis.foreign.records.metric_parts import StepTimes

MARK: Final = b"timing_s/"
#: `concat_dict_to_str` in verl's `utils/logger/aggregate_logger.py` prints it.
PATTERN: Final = r"\bstep: ?(-?\d{1,9}) - .*timing_s/"
_LINE: Final = re.compile(PATTERN)
_PAIR: Final = re.compile(
    r"(timing_s/[\w./@-]{1,200}): ?(?:np\.\w{1,20}\()?"
    r"(-?\d{1,15}(?:\.\d{1,25})?(?:[eE][+-]?\d{1,3})?)\)?(?= -|\s|$)"
)


def console_steps(lines: Iterable[str]) -> dict[int, StepTimes]:
    """Return what lines say of steps, by their number, in the order in which steps were printed first."""
    steps: dict[int, StepTimes] = {}
    for line in lines:
        number = step_number(line)
        if number is not None:
            metrics = {name: float(value) for name, value in _PAIR.findall(line)}
            steps.setdefault(number, StepTimes()).add(metrics)
    return {number: step for number, step in steps.items() if step.parts}


def step_number(line: str) -> int | None:
    """Return the number of the step of a line; None if the line is none of a step."""
    match = _LINE.search(line)
    return None if match is None else int(match[1])
