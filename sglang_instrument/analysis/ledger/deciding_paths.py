"""Place the critical paths of workers on one clock, and tell which worker decided how long a step took.

Up to each barrier, the worker that arrives there last decides; after the last barrier, the one that ends
last. Where workers do not meet at the same barriers, the one that ends last decides alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest, with_texts
from sglang_instrument.analysis.ledger.flows import flows_of, lead_of_begins
from sglang_instrument.analysis.ledger.intervals import clipped, one_at_a_time, sec_between, without
from sglang_instrument.analysis.ledger.piece_cuts import STEP as STEP
from sglang_instrument.analysis.ledger.piece_cuts import STEP_OF_WORKER as STEP_OF_WORKER
from sglang_instrument.analysis.ledger.piece_cuts import (
    blocked_apart,
    engine_apart,
    microseconds,
    with_segment,
)
from sglang_instrument.analysis.run.clocks import clock_table, numbered_barriers
from sglang_instrument.analysis.timing.group_ids import assign_group_ids

#: The parts of a step, in the order in which it meets them.
PARTS: Final = (
    *("late start", "preprocess", "waiting for own requests", "engine", "tool", "interaction"),
    *("environment", "reward", "blocked loop", "postprocess", "barrier", "broadcast", "cache", "weights"),
    *("other", "between steps", "unaccounted"),
)
#: The parts of phases, and of events that belong elsewhere; other phases are parts of the same name.
PART_OF_PHASE: Final = {
    "generate": "engine",
    **dict.fromkeys(("step", "request", "turn", "loop"), "unaccounted"),
}
PART_OF_EVENT: Final = {"request_wait": "waiting for own requests"}
#: Rows of paths that are cut into pieces at once, in about 50 MB.
MOST_PIECES: Final = 100_000


@dataclass(frozen=True, eq=False)
class Paths:
    """The critical paths of the workers of a run on one clock. Each table is computed once.

    The clock is that of the median worker, by the barriers that workers leave together. A worker that never
    left one with another counts as usually beginning its steps with the others: `flows.lead_of_begins`.

    Attributes:
        digest: Of the run.
        call_times: What the engine's own logs tell of engine calls, if there are such logs: step, validate,
            worker, request_id; called_us, call_sec: as the caller logged them; queue_sec, prefill_sec,
            transfer_sec, decode_sec, null where not known.
    """

    digest: Digest
    call_times: pl.DataFrame | None = None

    @staticmethod
    def of(run: "Digest | Paths") -> "Paths":
        """Return the paths of a digest; paths as they are."""
        return run if isinstance(run, Paths) else Paths(run)

    @cached_property
    def of_workers(self) -> Digest:
        """The rows of the rollout workers."""
        return self.digest.of_workers()

    @cached_property
    def aligned(self) -> pl.DataFrame:
        """The steps of workers: start_us and end_us on the one clock; ahead_us: of its own; launch."""
        steps = self.of_workers.steps
        steps = steps.group_by(STEP_OF_WORKER).agg(
            pl.col("start_us").min(), pl.col("end_us").max(), pl.col("launch").max()
        )
        offsets = clock_table(self.of_workers).select("worker", ahead_us=microseconds("offset_sec"))
        steps = steps.join(offsets, on="worker", how="left")
        begun = pl.coalesce(
            (pl.col("start_us") - pl.col("ahead_us")).median().over(STEP),
            pl.col("start_us").median().over(STEP),
        )
        steps = steps.with_columns(after_us=pl.col("start_us") - begun)
        lead = lead_of_begins(flows_of(self.digest))
        steps = steps.with_columns(ahead_us=pl.coalesce("ahead_us", lead)).sort(STEP_OF_WORKER)
        ahead = pl.col("ahead_us")
        times = [(pl.col(name) - ahead).alias(name) for name in ("start_us", "end_us")]
        return steps.select(*STEP_OF_WORKER, "launch", ahead, *times)

    @cached_property
    def windows(self) -> pl.DataFrame:
        """When each step was: `step_windows`."""
        steps = self.aligned.group_by(STEP).agg(
            begin_us=pl.col("start_us").min(), done_us=pl.col("end_us").max(), launch=pl.col("launch").max()
        )
        steps = steps.sort("begin_us", *STEP)
        resumed = (pl.col("launch") != pl.col("launch").shift(-1)).fill_null(False)
        begun = pl.when(~resumed).then(pl.col("begin_us").shift(-1))
        steps = steps.with_columns(next_us=pl.max_horizontal("done_us", begun), is_last=begun.is_null())
        overlap = ((pl.col("done_us") - begun) / 1e6).clip(lower_bound=0.0).fill_null(0.0)
        return steps.with_columns(to_next_step_sec=sec_between("begin_us", "next_us"), overlap_sec=overlap)

    @cached_property
    def worker_windows(self) -> pl.DataFrame:
        """`windows`, with start_us and end_us of each worker."""
        return self.aligned.drop("launch").join(self.windows, on=STEP).sort(STEP_OF_WORKER)

    @cached_property
    def barriers(self) -> pl.DataFrame:
        """When workers left each barrier, and how long they waited: `barrier` counts from 0."""
        known = self.aligned.select(*STEP_OF_WORKER, "ahead_us")
        barriers = numbered_barriers(self.of_workers)
        barriers = barriers.join(known, on=STEP_OF_WORKER, maintain_order="left")
        return barriers.select(
            *STEP_OF_WORKER,
            "barrier",
            wait_us=pl.col("end_us") - pl.col("start_us"),
            exit_us=pl.col("end_us") - pl.col("ahead_us"),
        )

    @cached_property
    def pieces(self) -> pl.DataFrame:
        """The critical paths of workers, piece by piece, in the order of time.

        Columns: step, validate, worker; segment: the number of barriers that the worker has already passed;
        part, event, request_id; from_us, to_us: on the one clock; sec. Time in which the event loop was
        blocked is a piece of its own.
        """
        return self._pieces_of(self.of_workers.path)

    @property
    def outside_sums(self) -> pl.DataFrame:
        """The seconds of pieces outside of requests, without barriers, by step, worker, part and event."""
        return self._sum("outside")

    @property
    def deciding_sums(self) -> pl.DataFrame:
        """The seconds of the pieces that decided, by step, worker, part and event."""
        return self._sum("deciding")

    @property
    def deciding_calls(self) -> pl.DataFrame:
        """The deciding pieces of engine calls and tools, without what no sum needs."""
        return self._sum("calls")

    @property
    def waiting_sums(self) -> pl.DataFrame:
        """The seconds of pieces by step, worker, part, event and `waited_for`, in a short run piece by piece.

        waited_for: of a barrier, the worker that came last, unless it is the piece's own.
        """
        return self._sum("waiting")

    def _sum(self, name: str) -> pl.DataFrame:
        """Return one of the four tables above; of a long run, they are kept with categories."""
        if self._is_long:
            return with_texts(self._sums[name])
        if name not in self._short_sums:
            self._short_sums[name] = _SUMS[name](self)
        return self._short_sums[name]

    @cached_property
    def _short_sums(self) -> dict[str, pl.DataFrame]:
        return {}

    @property
    def _is_long(self) -> bool:
        """Whether the run has more pieces than fit into memory well."""
        return len(self.of_workers.path) > MOST_PIECES

    @cached_property
    def _sums(self) -> dict[str, pl.DataFrame]:
        """What the four tables above are, with the pieces of some steps at a time."""
        path = self.of_workers.path
        number = assign_group_ids(path, STEP)[0]
        counts = pl.DataFrame({"number": number}).group_by("number").len().sort("number")
        block_of_row = ((counts["len"].cum_sum() - 1) // MOST_PIECES).gather(number)
        tables: dict[str, list[pl.DataFrame]] = {name: [] for name in _SUMS}
        for number_of_block in block_of_row.unique().sort():
            rows = path.filter(block_of_row == number_of_block)
            # Paths of these steps: the tables that pieces need of them are those of the whole run.
            block = Paths(self.digest, self.call_times)
            for name in ("aligned", "barriers", "segments"):
                vars(block)[name] = getattr(self, name).join(rows, on=STEP, how="semi", maintain_order="left")
            vars(block)["pieces"] = block._pieces_of(rows)
            for name, make in _SUMS.items():
                rows = make(block)
                if name == "waiting":
                    rows = rows.group_by(*STEP_OF_WORKER, "part", "event", "waited_for").agg(
                        pl.col("sec").sum()
                    )
                tables[name].append(rows.cast({pl.String: pl.Categorical}))
        return {name: pl.concat(tables.pop(name)) for name in _SUMS}

    def _pieces_of(self, path: pl.DataFrame) -> pl.DataFrame:
        steps = self.aligned.drop("launch").rename({"start_us": "begin_us", "end_us": "stop_us"})
        path = with_texts(path.drop("role", "turn")).join(steps, on=STEP_OF_WORKER, maintain_order="left")
        ahead = pl.col("ahead_us")
        path = path.select(
            *STEP_OF_WORKER,
            *("source", "request_id", "event", "begin_us", "stop_us", "blocked_sec"),
            part=_part(),
            from_us=pl.col("start_us") - ahead,
            to_us=pl.col("end_us") - ahead,
        )
        path = _known_first(blocked_apart(path))
        path = clipped(path, "begin_us", "stop_us")
        if self.call_times is not None:
            known = self.aligned.select(*STEP_OF_WORKER, "ahead_us")
            calls = self.call_times.join(known, on=STEP_OF_WORKER, maintain_order="left")
            path = engine_apart(path, calls.with_columns(pl.col("called_us") - pl.col("ahead_us")))
        path = with_segment(path, self.barriers)
        columns = ("segment", "part", "event", "request_id", "from_us", "to_us", "sec")
        return path.select(*STEP_OF_WORKER, *columns)

    @cached_property
    def meeting(self) -> pl.DataFrame:
        """The steps in which all workers meet at the same barriers."""
        counts = self.aligned.select(STEP_OF_WORKER).join(
            self.barriers.group_by(STEP_OF_WORKER).len(), on=STEP_OF_WORKER, how="left"
        )
        counts = counts.group_by(STEP).agg(least=pl.col("len").fill_null(0).min(), most=pl.col("len").max())
        return counts.filter(pl.col("least") == pl.col("most")).select(STEP)

    @cached_property
    def segments(self) -> pl.DataFrame:
        """The segments of steps: up to each barrier, and from the last one on.

        Columns: step, validate, segment; worker: the one that decided how long it took; from_us, to_us.
        """
        barriers = self.barriers.join(self.meeting, on=STEP, how="semi")
        last = barriers.sort("wait_us", "worker").group_by(*STEP, "barrier", maintain_order=True).first()
        up_to = last.select(*STEP, segment="barrier", worker="worker", to_us="exit_us")
        after = self.worker_windows.sort("end_us", "worker").group_by(STEP, maintain_order=True).last()
        number = up_to.group_by(STEP).agg(segment=pl.col("segment").max() + 1)
        after = after.join(number, on=STEP, how="left").select(
            *STEP, segment=pl.col("segment").fill_null(0), worker="worker", to_us="end_us"
        )
        limits = self.windows.select(*STEP, "begin_us", "done_us")
        segments = pl.concat([up_to, after]).join(limits, on=STEP).sort(*STEP, "segment")
        reached = pl.min_horizontal("to_us", "done_us").cum_max().over(STEP)
        segments = segments.with_columns(to_us=pl.max_horizontal(reached, "begin_us"))
        begun = pl.col("to_us").shift(1).over(STEP)
        return segments.select(*STEP, "segment", "worker", "to_us", from_us=pl.coalesce(begun, "begin_us"))

    @cached_property
    def deciding_pieces(self) -> pl.DataFrame:
        """The pieces, or what of them lies in segments that their worker decided."""
        cuts = self.segments.select(*STEP_OF_WORKER, cut_from="from_us", cut_to="to_us")
        pieces = self.pieces.drop("segment").join(cuts, on=STEP_OF_WORKER, maintain_order="left")
        return clipped(pieces, "cut_from", "cut_to")


def _outside_sums(paths: Paths) -> pl.DataFrame:
    outside = pl.col("request_id").is_null() & (pl.col("part") != "barrier")
    rows = paths.pieces.filter(outside)
    return rows.group_by(*STEP_OF_WORKER, "part", "event").agg(pl.col("sec").sum())


def _deciding_sums(paths: Paths) -> pl.DataFrame:
    return paths.deciding_pieces.group_by(*STEP_OF_WORKER, "part", "event").agg(pl.col("sec").sum())


def _deciding_calls(paths: Paths) -> pl.DataFrame:
    calls = paths.deciding_pieces.filter(pl.col("part").is_in(["engine", "tool"]))
    return calls.select(*STEP_OF_WORKER, "part", "request_id", "from_us", "sec")


def _with_waits(paths: Paths) -> pl.DataFrame:
    is_last = pl.col("segment") == pl.col("segment").max().over(STEP)  # no barrier ends it
    deciders = paths.segments.filter(~is_last).select(*STEP, "segment", waited_for="worker")
    rows = paths.pieces.filter(pl.col("sec") > 0)
    rows = rows.join(deciders, on=[*STEP, "segment"], how="left", maintain_order="left")
    waits = (pl.col("part") == "barrier") & (pl.col("waited_for") != pl.col("worker"))
    columns = (*STEP_OF_WORKER, "part", "event", "sec")
    return rows.select(*columns, waited_for=pl.when(waits).then("waited_for"))


_SUMS: Final[dict[str, Callable[[Paths], pl.DataFrame]]] = {
    "outside": _outside_sums,
    "deciding": _deciding_sums,
    "calls": _deciding_calls,
    "waiting": _with_waits,
}


def step_windows(run: Digest | Paths) -> pl.DataFrame:
    """Return when each step was, on the clocks as barriers align them, one row per step in the order of time.

    Returns:
        step, validate; begin_us, done_us: from the first worker's begin to the last one's end; launch: as in
        the digest's steps; next_us: the begin of the next step, or `done_us` of the last step of a launch or
        of one that the next overlaps; is_last: whether no step of the launch began after it;
        to_next_step_sec: from begin_us to next_us; overlap_sec: how long the next step had been going on
        before this was done.
    """
    return Paths.of(run).windows


def _known_first(pieces: pl.DataFrame) -> pl.DataFrame:
    """Remove overlaps as `one_at_a_time` does; what any process of a worker did is no unaccounted time of it.

    A program waits for the children that it starts for its rewards.
    """
    is_known = pl.col("part") != "unaccounted"
    several = pieces.group_by(STEP_OF_WORKER).agg(pl.col("source").n_unique()).filter(pl.col("source") > 1)
    shared = pieces.join(several.select(STEP_OF_WORKER), on=STEP_OF_WORKER, how="semi")
    if shared.is_empty():
        return one_at_a_time(pieces, STEP_OF_WORKER)
    alone = pieces.join(several.select(STEP_OF_WORKER), on=STEP_OF_WORKER, how="anti")
    known = one_at_a_time(shared.filter(is_known), STEP_OF_WORKER)
    others = one_at_a_time(shared.filter(~is_known), STEP_OF_WORKER)
    return pl.concat([one_at_a_time(alone, STEP_OF_WORKER), known, without(others, known, STEP_OF_WORKER)])


def _part() -> pl.Expr:
    """Return the part for which a span counts. A call that only contains others has no part."""
    contains = (pl.col("phase") == "generate") & pl.col("request_id").is_null() & pl.col("contains")
    phase = pl.col("phase").replace(PART_OF_PHASE)
    return (
        pl.when(contains)
        .then(pl.lit("unaccounted"))
        .otherwise(pl.col("event").replace_strict(PART_OF_EVENT, default=phase, return_dtype=pl.String))
    )
