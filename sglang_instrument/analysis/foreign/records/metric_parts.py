"""Place the parts of steps of which a trainer logged only how long each took: verl's `timing_s/NAME`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

_TIMING: Final = "timing_s/"
_STEP: Final = "step"
#: Our event for parts that other trainers have, too; any other part keeps its name.
_EVENTS: Final = {
    "gen": "trainer_generate",
    "reward": "trainer_reward",
    "old_log_prob": "trainer_old_log_prob",
    "ref": "trainer_ref_log_prob",
    "RefPolicy": "trainer_ref_log_prob",
    "values": "trainer_values",
    "adv": "trainer_advantage",
    "update_critic": "trainer_update_critic",
    "update_actor": "trainer_update_actor",
    "save_checkpoint": "trainer_save_checkpoint",
    "update_weights": "weights_update",
    "testing": "trainer_validate",
}
#: Parts within another one: what the rollout measured itself.
_WITHIN: Final = {"generate_sequences": "gen", "reshard": "gen"}
_AGENTS: Final = "agent_loop/"
_SLOWEST: Final = f"{_AGENTS}slowest/"
_STATISTIC: Final = re.compile(r"/(?:min|max|mean|avg|std|median|sum|count|ratio|p\d{1,2}|topk?[^/]*)$")
_LONGEST_SEC: Final = 1e8
_LONGEST_NAME: Final = 200
_CLOSE_US: Final = 50_000  # parts that are so much longer than their step follow one another all the same
_ROW: Final = {
    "event": pl.String,
    "step": pl.Int64,
    "start_us": pl.Int64,
    "end_us": pl.Int64,
    "task": pl.Int64,
}
_Row = tuple[str, int, int, int | None, int]


@dataclass
class StepTimes:
    """How long a step and its parts took.

    Attributes:
        parts: Microseconds of each part, in the order in which they were logged, which is that of their ends.
        slowest: What verl tells of the slowest sample, by its own name.
        left_out: Names of times that are no parts: statistics, and values that are no times.
    """

    parts: dict[str, int] = field(default_factory=dict)
    slowest: dict[str, float] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of a line; what was logged again counts as it was logged last."""
        for name, value in metrics.items():
            if not name.startswith(_TIMING):
                continue
            part = name.removeprefix(_TIMING)[:_LONGEST_NAME]
            is_number = type(value) in (int, float) and abs(value) < _LONGEST_SEC
            if part.startswith(_SLOWEST) and is_number:
                self.slowest[part.removeprefix(_SLOWEST)] = float(value)
            elif part.startswith(_AGENTS) or _STATISTIC.search(part) or not is_number or value < 0:
                self.left_out.add(part)
            else:
                self.parts[part] = int(value * 1e6)

    @property
    def outer(self) -> list[str]:
        """The parts that follow one another."""
        return [part for part in self.parts if part != _STEP and _WITHIN.get(part) not in self.parts]

    @property
    def duration_us(self) -> int:
        """How long the step took: as logged, but long enough for parts that are hardly longer together."""
        parts_us = sum(self.parts[part] for part in self.outer)
        step_us = self.parts.get(_STEP) or parts_us
        return parts_us if step_us < parts_us <= step_us + _CLOSE_US else step_us

    @property
    def before_generation_us(self) -> int:
        """How long the parts before the rollout took."""
        outer = self.outer
        return sum(self.parts[part] for part in outer[: outer.index("gen")]) if "gen" in outer else 0


def one_after_the_other(steps: Mapping[int, StepTimes], end_us: int) -> list[int]:
    """Return when each step began, if they followed one another and the last one ended at `end_us`."""
    begin_us = end_us - sum(step.duration_us for step in steps.values())
    begins = []
    for step in steps.values():
        begins.append(begin_us)
        begin_us += step.duration_us
    return begins


def step_rows(steps: Mapping[int, StepTimes], begins_us: Sequence[int]) -> pl.DataFrame:
    """Return a span for each step and part, and an instant event for each slowest sample."""
    rows: list[_Row] = []
    slowest: list[dict[str, Any]] = []
    for (number, step), begin_us in zip(steps.items(), begins_us, strict=True):
        rows += _rows(number, step, begin_us)
        if step.slowest:
            columns = {_column(name): value for name, value in step.slowest.items()}
            place = {"event": "slowest_sample", "step": number, "task": 0}
            slowest.append({**columns, **place, "start_us": begin_us + step.duration_us})
    frames = [pl.DataFrame(rows, schema=_ROW, orient="row")]
    frames += [pl.DataFrame(slowest)] if slowest else []
    return pl.concat(frames, how="diagonal_relaxed").with_columns(role=pl.lit("trainer"))


def _column(name: str) -> str:
    return f"slowest_{re.sub(r'[^a-z0-9]+', '_', name.lower()).strip('_')}"


def _rows(number: int, step: StepTimes, begin_us: int) -> Iterator[_Row]:
    """Yield a step and its parts; one for which no time is left overlaps others, in a task of its own."""
    end_us = begin_us + step.duration_us
    yield "trainer_step", number, begin_us, end_us, 0
    now_us = begin_us
    begins: dict[str, int] = {}
    for position, part in enumerate(step.outer, 1):
        lasted_us = step.parts[part]
        fits = now_us + lasted_us <= end_us
        begins[part] = now_us if fits else max(begin_us, end_us - lasted_us)
        yield _EVENTS.get(part, part), number, begins[part], begins[part] + lasted_us, 0 if fits else position
        now_us += lasted_us if fits else 0
    within = dict(begins)
    for part, outer in _WITHIN.items():
        if part in step.parts and outer in within:
            start_us = within[outer]
            stop_us = min(start_us + step.parts[part], begins[outer] + step.parts[outer])
            within[outer] = stop_us
            yield _EVENTS.get(part, part), number, start_us, stop_us, 0
