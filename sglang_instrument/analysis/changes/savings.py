"""Tell how much time workers and requests save where events take another time."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.steps import STEP_OF_WORKER
from sglang_instrument.analysis.changes.replaying.rules import Factors, Rules
from sglang_instrument.analysis.digests.digest import KINDS
from sglang_instrument.errors import InstrumentError
from sglang_instrument.schema import kind_of

_REQUEST: Final = [*STEP_OF_WORKER, "request_id"]
_CONTAIN_ALL: Final = ("request", "turn", "loop")  # phases of events that contain work of every kind


class Savings:
    """The seconds that events save which `Rules.scale` names.

    Args:
        rules: The changed rules.
        event_times: Of these events, as `Run.event_times` returns them; None if rules scale none.
        roles: Of the workers: others' events do not lengthen their steps.

    Raises:
        InstrumentError: Workers have no such event, or it is part of a kind that is scaled, too.
    """

    def __init__(self, rules: Rules, event_times: pl.DataFrame | None, roles: pl.Series) -> None:
        self._scale = rules.scale
        events = [name for name in rules.scale if name not in KINDS]
        for name in events:
            _refuse_twice(name, [kind for kind in rules.scale if kind in KINDS])
        if not events:
            self._saved = pl.DataFrame(schema=_SAVED)
            return
        if event_times is None:
            raise ValueError(f"{events[0]!r} is no kind of work; pass its times as event_times")
        of_roles = event_times.filter(pl.col("role").is_in(roles.implode()))
        for name in events:
            others = event_times.filter(event=name)["role"].unique().sort().to_list()
            if others and name not in of_roles["event"]:
                raise InstrumentError(
                    f"{name}: only {', '.join(others)} has it; its time is in no worker's step"
                )
        less = 1 - pl.col("event").replace_strict(rules.scale, default=1.0, return_dtype=pl.Float64)
        # A worker may have several files of a step.
        self._saved = of_roles.group_by(*_REQUEST, "event").agg(saved=(pl.col("sec") * less).sum())

    def outside_requests(self) -> pl.DataFrame:
        """Return step, validate, worker, saved: the seconds outside of requests."""
        if self._saved.is_empty():
            return self._saved.select(*STEP_OF_WORKER, "saved")
        outside = self._saved.filter(pl.col("request_id").is_null())
        return outside.group_by(STEP_OF_WORKER).agg(pl.col("saved").sum())

    def factors(self, requests: pl.DataFrame) -> list[Factors]:
        """Return how many times as long the work of each request takes."""
        if not self._scale:
            return [Factors()] * len(requests)
        in_engine = [name for name in self._scale if kind_of(name).phase in KINDS["engine"]]
        of_engine = pl.col("event").is_in(in_engine)
        inside = self._saved.filter(pl.col("request_id").is_not_null())
        saved = inside.group_by(_REQUEST).agg(
            in_engine=pl.col("saved").filter(of_engine).sum(),
            elsewhere=pl.col("saved").filter(~of_engine).sum(),
        )
        rows = requests.join(saved, on=_REQUEST, how="left", maintain_order="left")
        rows = rows.with_columns(pl.col("in_engine", "elsewhere").fill_null(0.0))
        # The kinds that are scaled save first; the events share what the kinds leave outside of the engine.
        outside = pl.col("duration_sec") - pl.col("engine_sec")
        for kind, factor in self._scale.items():
            if kind in KINDS and kind != "engine":
                outside -= pl.col(f"{kind}_sec") * (1 - factor)
        outside = outside.clip(lower_bound=0.0)
        # An event that contains engine calls saves in the engine what it saves beyond the time outside.
        within = pl.min_horizontal("elsewhere", outside)
        engine_saves = pl.col("in_engine") + pl.col("elsewhere") - within
        factors = rows.select(
            engine=self._scale.get("engine", 1.0) - _share(engine_saves, pl.col("engine_sec")),
            others=1 - _share(within, outside),
        )
        return [Factors(max(0.0, engine), max(0.0, others)) for engine, others in factors.iter_rows()]


_SAVED: Final = {
    "step": pl.Int64,
    "validate": pl.Boolean,
    "worker": pl.Int64,
    "request_id": pl.String,
    "event": pl.String,
    "saved": pl.Float64,
}


def _refuse_twice(event: str, kinds: list[str]) -> None:
    """Refuse an event that is part of a kind of work, or contains one, if that kind is scaled, too."""
    phase = kind_of(event).phase
    for kind in kinds:
        if phase in KINDS[kind] or phase in _CONTAIN_ALL:
            raise InstrumentError(f"{event} and {kind} have time in common; scale one of them")


def _share(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    return pl.when(whole > 0).then(part / whole).otherwise(0.0)
