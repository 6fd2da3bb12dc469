"""Find steps in which one server got far more conversations than chance explains, and made them wait."""

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.chance import Array, chance_of_one_more, chance_of_so_many
from sglang_instrument.analysis.verdict.evidence.detector import (
    Explained,
    Findings,
    NamedCause,
    Precedence,
    detector,
)
from sglang_instrument.analysis.verdict.evidence.effects import CHANCE_OF_A_STEP, FEWEST_STEPS
from sglang_instrument.analysis.verdict.evidence.finding import Finding, place_of, seconds, where
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence
from sglang_instrument.analysis.verdict.evidence.servers.routed import NOT_PLANTED, in_step_of, lost_by

UNEVEN_SERVERS: Final = NamedCause(
    "uneven-servers",
    "step, run",
    "one server got more conversations than chance explains and 1.3 times the mean time in calls, "
    "[its calls took longer](#servers-and-their-caches), and the router usually shares them out better",
    "look at the router: its policy, its limits of imbalance, the servers that it knows; "
    "`servers LOGS{step} --over-time`",
    not_planted=NOT_PLANTED,
)
_UNEVEN: Final = 1.3  # times the mean time in calls of all servers
_SPREAD: Final = 0.1  # least to assume of the logarithm of the busiest server's share
_CHANCE: Final = 1e-3
_MOST: Final = 0.5  # of the steps: then the finding is of the run
_ALL: Final = 0.95  # of the pairs of conversations go to one server: then groups tell nothing


@detector(UNEVEN_SERVERS, precedence=Precedence.SERVER)
def find_uneven_servers(evidence: Evidence) -> Findings:
    """Yield a finding for each step in which one server got far more conversations, and made them wait.

    The physical fact: the router sent them there. A cache-aware router sends the conversations of a prompt
    together, for they begin alike, so that many of one prompt are one draw; and it may load the servers in
    turn, so that a step is compared with how uneven the others are. Servers that had joined later, or had
    left before, do not count in a step; one that still gets weights has not left.
    """
    if evidence.served.is_empty():
        return
    calls = _shared(evidence).drop_nulls(["server", "call_sec"])
    lives = _lives(evidence, calls)
    homes = _homes(evidence, calls)
    together = _sent_together(homes)
    steps = [(part, _lived(lives, part)) for _, part in calls.group_by(STEP, maintain_order=True)]
    shares = [float(_spent(part)["sec"].max() or 0.0) / float(part["call_sec"].sum()) for part, _ in steps]  # type: ignore[arg-type]
    standing_out = _standing_out(shares)
    # What one step alone got tells nothing of the others.
    whole = [
        in_step_of(homes, part)
        for number, (part, servers) in enumerate(steps)
        if servers == len(lives) and number not in standing_out
    ]
    of_run = _unlikely(pl.concat(whole), len(lives), 1, together) if whole else set()
    answers: dict[str, list[Explained]] = {}
    for number, (part, servers) in enumerate(steps):
        homes_in_step = in_step_of(homes, part)
        busiest, most_sec = _spent(part).row(-1)
        if servers < 2 or most_sec * servers <= _UNEVEN * float(part["call_sec"].sum()):
            continue
        unlikely = _unlikely(homes_in_step, servers, len(evidence.windows), together)
        if busiest in of_run or (busiest in unlikely and number in standing_out):
            of_server = answers.setdefault(str(busiest), [])
            of_server += _uneven(evidence, part, homes_in_step, busiest, servers)
    for of_server in answers.values():
        is_usual = len(of_server) > max(1.0, _MOST * len(steps))
        yield from [_in_most_steps(of_server, len(steps))] if is_usual else of_server


def _standing_out(shares: list[float]) -> set[int]:
    """Return the numbers of the steps whose busiest server has a larger share than in the others."""
    logs = np.log(shares)
    if len(logs) < 2:
        return set(range(len(logs)))
    below_the_median = np.sort(logs)[len(logs) // 2 - 1]  # the median of the others is no less
    high = np.flatnonzero(logs - below_the_median > math.log(_UNEVEN))
    return {int(number) for number in high if _stands_out(logs[number], np.delete(logs, number))}


def _stands_out(log: float, others: Array) -> bool:
    if log - np.median(others) <= math.log(_UNEVEN):
        return False
    if len(others) + 1 < FEWEST_STEPS:
        return True
    chance = chance_of_one_more(np.array([log]), others, _SPREAD)
    return bool(chance[0] * (len(others) + 1) < CHANCE_OF_A_STEP)


def _lives(evidence: Evidence, calls: pl.DataFrame) -> pl.DataFrame:
    """Return from when to when servers had calls or got weights: server, start_us, end_us."""
    updates = evidence.update_windows.select("server", start_us="from_us", end_us="to_us")
    updates = updates.join(calls, on="server", how="semi")
    both = pl.concat([calls.select("server", "start_us", "end_us"), updates])
    return both.group_by("server").agg(pl.col("start_us").min(), pl.col("end_us").max())


def _spent(part: pl.DataFrame) -> pl.DataFrame:
    """Return the seconds in calls of each server of a step, the least first: server, sec."""
    return part.group_by("server").agg(sec=pl.col("call_sec").sum()).sort("sec", "server")


def _homes(evidence: Evidence, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the server of each conversation, with the group of its prompt."""
    homes = calls.group_by(*STEP_OF_WORKER, "request_id").agg(pl.col("server").mode().sort().first())
    groups = evidence.digest.requests.select(*STEP_OF_WORKER, "request_id", "group")
    groups = groups.unique([*STEP_OF_WORKER, "request_id"])
    return homes.join(groups, on=[*STEP_OF_WORKER, "request_id"], how="left", maintain_order="left")


def _sent_together(homes: pl.DataFrame) -> float:
    """Return how many conversations the router sends to one server at a time: 1 if each goes by itself.

    By the correlation within the groups of prompts: how much more often two conversations of a group go to
    one server than two of a step do (the design effect of a sample of clusters).
    """
    grouped = homes.drop_nulls("group")
    pairs = pl.col("count") * (pl.col("count") - 1)
    groups = grouped.group_by(*STEP, "group", "server").len("count")
    sizes = grouped.group_by(*STEP, "group").len("count")
    possible: Any = sizes.select(pairs.sum()).item()
    if not possible:
        return 1.0
    within = float(groups.select(pairs.sum()).item()) / possible
    of_steps = (
        grouped.group_by(*STEP, "server")
        .len("count")
        .group_by(STEP)
        .agg(pairs.sum(), pl.col("count").sum().alias("of"))
    )
    of_all: Any = of_steps.select(pl.col("count").sum() / (pl.col("of") * (pl.col("of") - 1)).sum()).item()
    alike = 1.0 if of_all >= _ALL else min(1.0, max(0.0, (within - of_all) / (1 - of_all)))
    mean: Any = sizes["count"].mean()
    return 1.0 + alike * (float(mean) - 1.0)


def _lived(lives: pl.DataFrame, part: pl.DataFrame) -> int:
    """Return how many servers had calls before the end of a step, and after its begin."""
    return len(
        lives.filter(pl.col("start_us") <= part["end_us"].max(), pl.col("end_us") >= part["start_us"].min())
    )


def _unlikely(homes: pl.DataFrame, servers: int, tries: int, together: float) -> set[str]:
    """Return the servers of which chance does not explain how many conversations they got.

    Args:
        homes: As `_homes` returns them.
        servers: How many servers could have got them.
        tries: How many steps are looked at.
        together: As `_sent_together` returns it.
    """
    draws = round(len(homes) / together)
    counts = homes.group_by("server").len().iter_rows()
    return {
        name
        for name, had in counts
        if chance_of_so_many(round(had / together), draws, 1 / servers) * servers * tries < _CHANCE
    }


def _uneven(
    evidence: Evidence, part: pl.DataFrame, homes: pl.DataFrame, busiest: str, servers: int
) -> Iterator[Explained]:
    had, of = len(homes.filter(server=busiest)), len(homes)
    late = _longer(part, busiest, servers)
    if late["server"].n_unique() == part["server"].n_unique():
        late = _longer_than_usual(evidence, late)
    lost = lost_by(evidence, late)
    if lost is None:
        return
    lost_sec, calls = lost
    row = {name: part[name][0] for name in STEP}
    own_queue, others_queue = _queued(part, busiest)
    waited = ""
    if own_queue is not None and others_queue is not None:
        waited = f", and its calls queued {seconds(own_queue)} ({seconds(others_queue)} elsewhere)"
    sentence = (
        f"{where(row)}: {busiest} got {had} of {of} conversations, of {servers} servers{waited}; "
        f"{seconds(lost_sec)} lost"
    )
    numbers = {
        "server": busiest,
        "conversations": had,
        "of": of,
        "servers": servers,
        "queue_sec": own_queue,
        "others_queue_sec": others_queue,
    }
    finding = Finding(
        UNEVEN_SERVERS.name, "step", lost_sec, sentence, **place_of(row), event="engine", evidence=numbers
    )
    yield Explained(finding, calls)


def _in_most_steps(answers: list[Explained], steps: int) -> Explained:
    """Return one answer for the run instead of those of most of its steps."""
    findings = [answer.finding for answer in answers]
    worst = max(findings, key=lambda finding: finding.lost_sec)
    had, of = (sum(finding.evidence[name] for finding in findings) for name in ("conversations", "of"))
    lost_sec = sum(finding.lost_sec for finding in findings) / len(findings)
    server, servers = worst.evidence["server"], worst.evidence["servers"]
    sentence = (
        f"{server} got {had} of {of} conversations, of {servers} servers, in {len(findings)} of {steps} "
        f"steps; {seconds(lost_sec)} lost a step"
    )
    numbers = {**worst.evidence, "conversations": had, "of": of}
    numbers |= {"steps": len(findings), "worst_step": worst.step}
    finding = Finding(UNEVEN_SERVERS.name, "run", lost_sec, sentence, event="engine", evidence=numbers)
    return Explained(finding, pl.concat([answer.calls for answer in answers], how="diagonal_relaxed"))


def _queued(part: pl.DataFrame, busiest: str) -> tuple[float | None, float | None]:
    """Return how long calls queued at the busiest server, and at the others, on average."""
    queues: Any = part.select(
        own=pl.col("queue_sec").filter(pl.col("server") == busiest).mean(),
        others=pl.col("queue_sec").filter(pl.col("server") != busiest).mean(),
    ).row(0)
    return queues[0], queues[1]


def _longer(part: pl.DataFrame, busiest: str, servers: int) -> pl.DataFrame:
    """Return the calls of the busiest server with what they took longer than on the average server.

    A server without any call in the step would have had no queue.
    """
    queue = part["queue_sec"].is_not_null().any()
    running = pl.col("call_sec") - pl.col("queue_sec").fill_null(0.0)
    rated = part.with_columns(running_sec=running, rate=running / (pl.col("completion_tokens") + 1))
    usual = rated.group_by("server").agg(pl.col("queue_sec").mean(), pl.col("rate").median()).sort("server")
    mean_queue = float(usual["queue_sec"].sum() or 0.0) / servers if queue else 0.0
    mean_rate: Any = usual["rate"].mean()
    rate: Any = usual.filter(server=busiest)["rate"].item()
    slower = max(0.0, 1 - mean_rate / rate) if mean_rate is not None and rate else 0.0
    waited = (pl.col("queue_sec").fill_null(0.0) - mean_queue).clip(lower_bound=0.0)
    late = rated.filter(server=busiest).with_columns(excess_sec=waited + pl.col("running_sec") * slower)
    return late.filter(pl.col("excess_sec") > 0)


def _longer_than_usual(evidence: Evidence, late: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of the only server of a step with what they took longer than calls of this run."""
    call = [*STEP_OF_WORKER, "request_id", "turn"]
    over = (pl.col("sec") - pl.col("usual_sec")).alias("over_sec")
    engine = evidence.calls.filter(kind="engine").select(*call, over).unique(call)
    late = late.join(engine, on=call, how="left", maintain_order="left")
    return late.with_columns(excess_sec=pl.max_horizontal("excess_sec", "over_sec"))


def _shared(evidence: Evidence) -> pl.DataFrame:
    """Return the calls of workers that use several servers; where each has its own, nothing is routed."""
    calls = evidence.served
    several = pl.col("server").drop_nulls().n_unique().over("worker") > 1
    return calls.filter(several)
