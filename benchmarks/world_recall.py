"""Count how often the verdict is right in worlds of servers behind routers; a part of `recall.py`, too.

Each kind of fault of `sglang_instrument.testing.world` is planted in several worlds at its three sizes; the
same world without it says what it cost. Worlds in which it costs less than a tenth of its steps are not
counted. Right is a finding that says the part and the place that the fault's kind names.

--only NAME the kinds and families whose names contain it, --seeds N so many worlds of each kind and size,
--sizes N the N largest sizes of each kind,
--clean N of each family without a fault, --pairs N worlds with two faults, --hidden the set of other seeds
and sizes, --first N its first seed (100000 unless told), --jobs N processes, --wrong prints what was found
where it was wrong.
"""

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.verdict import findings_of
from sglang_instrument.testing.world.faults import FAULTS
from sglang_instrument.testing.world.faults.fault import Truth, WorldFault
from sglang_instrument.testing.world.play import cost_of, play, walls, write_world
from sglang_instrument.testing.world.rollout.shape import (
    ASYNCHRONOUS,
    DRAINED,
    FAMILIES,
    OVERLAPPED,
    OWN,
    WorldShape,
    draw_shape,
)

FIFTH, TENTH = 0.2, 0.1
BOUNDS: Final = {FIFTH: 0.9, TENTH: 0.75}
#: Which parts of a world a finding's word speaks of. The words are the verdict's, the parts the world's.
PARTS: Final = {
    "engine": {"decode"},
    "standstill": {"standstill"},
    "tool": {"tool", "pool"},
    "reward": {"reward"},
    "late-start": {"start"},
    "always-late": {"start"},
    "blocked-loop": {"loop"},
    "preprocess": {"preprocess"},
    "post-processing": {"postprocess"},
    "environment": {"environment"},
    "weights": {"weights"},
    "long-replies": {"lengths"},
    "uneven-servers": {"routing"},
    "servers-in-turn": {"routing"},
    "cache-lost": {"prefix"},
    "conversations-moved": {"routing", "prefix"},
    "retraction": {"kv", "retraction"},
    "cache-full": {"kv", "retraction", "queue"},
    "queue": {"queue"},
    "slow-update": {"weights"},
    "cold-start": {"cold"},
    "between-steps": {"gap", "trainer"},
    "more-turns": {"turns"},
    "long-prompts": {"prefill", "prompts"},
    "long-drain": {"drain", "weights"},
    "thrown-away": {"filter"},
    "trainer-waits": {"trainer waits"},
    "rollout-waits": {"trainer", "staleness"},
    "staleness-bound": {"staleness"},
    "slow-way": {"network"},
    "late-rewards": {"reward"},
}
#: What an event, or the part of a finding about a server, speaks of besides.
EVENT_PARTS: Final = {
    "engine": {"decode", "standstill", "call"},
    "reply length": {"lengths"},
    "replies": {"lengths"},
    "tool": {"tool"},
    "reward": {"reward"},
    "trainer_reward": {"reward"},
    "trainer_update_actor": {"trainer"},
    "trainer_save_checkpoint": {"checkpoint", "trainer"},
    "trainer_validate": {"validation"},
    "between steps": {"gap", "trainer"},
    "(not recorded)": {"gap", "trainer"},
    "environment_setup": {"environment"},
    "weights_update": {"weights"},
    "decode": {"decode"},
    "prefill": {"prefill"},
    "reading": {"prefix"},
    "queue": {"queue"},
    "network": {"network"},
    "tokenizer": {"tokenizer"},
    "drain": {"drain"},
}


STREAMED: Final = (ASYNCHRONOUS, DRAINED)
#: Seeds between two kinds of faults: each kind has worlds and families of its own.
_BETWEEN_KINDS: Final = 101
#: Findings whose event says what they are of.
BY_EVENT: Final = (
    "between-steps",
    "slow-call",
    "slow-calls",
    "trend",
    "shift",
    "slow-server",
    "slow-trainer",
)


class WorldJob(NamedTuple):
    """A world to make: with faults (by name and size, 0 to 2), or without."""

    family: str
    seed: int
    faults: tuple[tuple[str, int], ...] = ()
    hidden: bool = False


class WorldResult(NamedTuple):
    """What was found in a world.

    Attributes:
        job: Of which it is.
        costs: What share of its steps each fault cost.
        is_first: Whether the first finding is right for one of the faults.
        named: Whether each fault has a right finding.
        findings: The findings in words; of a clean world those that accuse.
        drawn: Whether a clean world is accused by replies alone that chance explains.
    """

    job: WorldJob
    costs: tuple[float, ...]
    is_first: bool
    named: tuple[bool, ...]
    findings: list[str]
    drawn: bool = False


def server_of(finding: Finding) -> int | None:
    """Return the number of the server that a finding names: "server_1", or its process "scheduler_1_tp0"."""
    number = re.search(r"[_ ](\d+)", str(finding.evidence.get("server", "")))
    return int(number[1]) if number else None


def parts_of(finding: Finding) -> set[str]:
    """Return the parts of a world that a finding speaks of."""
    parts = set(PARTS.get(finding.cause, {finding.cause}))
    if finding.cause in BY_EVENT:
        parts |= EVENT_PARTS.get(finding.event or "", set())
    return parts


def is_right(finding: Finding, truth: Truth, family: str) -> bool:
    """Return whether a finding says the part and the place of a fault."""
    if not parts_of(finding) & truth.parts:
        return False
    near = {step + more for step in truth.steps for more in ((-1, 0, 1) if family in OVERLAPPED else (0,))}
    if finding.step not in near and (truth.step_is_named or finding.step is not None):
        return False
    server = server_of(finding)
    if family == OWN and truth.server is not None:
        return truth.server in (server, finding.worker)
    if truth.server is not None:
        return server == truth.server
    if truth.worker is not None:
        return finding.worker == truth.worker
    # Where groups flow to the workers, a request may be of any of them.
    is_any = truth.may_name == -1 or (truth.may_name is not None and family in STREAMED)
    return server is None and (is_any or finding.worker in (None, truth.may_name))


def accuses(finding: Finding) -> bool:
    """Return whether a finding names a worker, a server, a request or a step as the cause of lost time."""
    places = (finding.worker, finding.step, finding.request_id, server_of(finding))
    return finding.lost_sec > 0 and any(place is not None for place in places)


def in_words(finding: Finding) -> str:
    """Return a finding in few words."""
    server = f", server {server_of(finding)}" if server_of(finding) is not None else ""
    place = f"step {finding.step}, worker {finding.worker}{server}, {finding.event}"
    return f"{finding.cause} ({place}; {finding.lost_sec:.1f} s)"


def run_world(job: WorldJob) -> WorldResult:
    """Make a world, and judge what is found in it."""
    shape = draw_shape(job.family, job.seed, hidden=job.hidden)
    for name, _ in job.faults:
        shape = FAULTS[name].needs(shape)
    if not job.faults:
        return _clean(job, shape)
    usual = walls(play(shape))
    faults = [_fault(name, size, shape, usual) for name, size in job.faults]
    stage = play(shape, faults)
    costs = tuple(
        cost_of(usual, walls(stage if len(faults) == 1 else play(shape, [fault])), fault).share
        for fault in faults
    )
    if min(costs) < TENTH:
        return WorldResult(job, costs, False, (), [])
    with tempfile.TemporaryDirectory() as folder:
        findings = found_in(write_world(Path(folder) / "run", stage))
    right = [[is_right(finding, fault.truth, job.family) for finding in findings] for fault in faults]
    first = bool(findings) and any(of_fault[0] for of_fault in right)
    return WorldResult(job, costs, first, tuple(map(any, right)), [in_words(finding) for finding in findings])


def found_in(folder: Path) -> list[Finding]:
    """Return the findings in a run that is over."""
    return findings_of(open_run(folder, cached=False), over=True)


def _fault(name: str, size: int, shape: WorldShape, usual: dict[int, float]) -> WorldFault:
    return WorldFault(name, FAULTS[name], FAULTS[name].sizes[size], shape, usual)


def _clean(job: WorldJob, shape: WorldShape) -> WorldResult:
    with tempfile.TemporaryDirectory() as folder:
        findings = found_in(write_world(Path(folder) / "run", play(shape)))
    accused = [finding for finding in findings if accuses(finding)]
    drawn = bool(accused) and all(finding.evidence.get("drawn", False) for finding in accused)
    return WorldResult(job, (), not accused, (), [in_words(finding) for finding in accused], drawn)


def world_jobs(
    only: str, seeds: int, sizes: int, clean: int, pairs: int, hidden: bool, first: int | None = None
) -> list[WorldJob]:
    """Return the worlds to make."""
    if first is None:
        first = 100_000 if hidden else 0
    jobs = []
    for place, (name, kind) in enumerate(FAULTS.items()):
        if only in name:
            for seed in range(seeds):
                for size in range(len(set(kind.sizes)))[-sizes:]:
                    number = first + _BETWEEN_KINDS * place + 7 * seed + size
                    jobs.append(
                        WorldJob(kind.families[number % len(kind.families)], number, ((name, size),), hidden)
                    )
    jobs += [
        WorldJob(family, first + 50_000 + seed, (), hidden)
        for family in FAMILIES
        for seed in range(clean)
        if only in family
    ]
    if only in "two faults":
        jobs += list(_pairs(first, pairs, hidden))
    return jobs


def _pairs(first: int, pairs: int, hidden: bool) -> Iterator[WorldJob]:
    random = Random(f"pairs/{first}")
    for number in range(pairs):
        while True:
            first_name, other = random.sample(sorted(FAULTS), 2)
            families = set(FAULTS[first_name].families) & set(FAULTS[other].families)
            if families and not FAULTS[first_name].parts & FAULTS[other].parts:
                break
        yield WorldJob(random.choice(sorted(families)), first + number, ((first_name, 2), (other, 2)), hidden)


def print_worlds(results: Sequence[WorldResult], console: Console) -> bool:
    """Print how often the first finding was right, by kind and cost; return whether all bounds hold."""
    single = [result for result in results if len(result.costs) == 1 and result.costs[0] >= TENTH]
    table = Table(
        "fault", "10 % to 20 %", "20 % and more", "anywhere", title="second world: the first finding is right"
    )
    for name in FAULTS:
        of_kind = [result for result in single if result.job.faults[0][0] == name]
        small = [result for result in of_kind if result.costs[0] < FIFTH]
        large = [result for result in of_kind if result.costs[0] >= FIFTH]
        anywhere = f"{sum(result.named[0] for result in of_kind)}/{len(of_kind)}"
        if of_kind:
            table.add_row(name, _share(small), _share(large), anywhere)
    console.print(table)
    large = [result for result in single if result.costs[0] >= FIFTH]
    small = [result for result in single if result.costs[0] < FIFTH]
    servers = [result for result in large if result.job.faults[0][0].startswith("server:")]
    overlapped = [result for result in large if result.job.family in OVERLAPPED]
    two = [result for result in results if len(result.costs) == 2 and min(result.costs) >= FIFTH]
    clean = [result for result in results if not result.job.faults]
    accused = [result for result in clean if not result.is_first]
    both = sum(all(result.named) for result in two)
    lines = [
        ("a fifth of a step and more", _share(large), 0.9, _rate(large)),
        ("a tenth to a fifth", _share(small), 0.75, _rate(small)),
        ("one server behind a router, a fifth and more", _share(servers), 0.9, _rate(servers)),
        ("asynchronous and one step off, a fifth and more", _share(overlapped), 0.85, _rate(overlapped)),
        ("two faults, both named", f"{both}/{len(two)}", 0.9, both / len(two) if two else 1.0),
    ]
    for words, counts, bound, rate in lines:
        console.print(f"{words}: {counts}, {rate:.0%} (bound {bound:.0%})")
    drawn = sum(result.drawn for result in accused)
    console.print(
        f"clean worlds that accuse: {len(accused)} of {len(clean)}, {drawn} of them by drawn replies alone"
    )
    by_family = {family: [result for result in clean if result.job.family == family] for family in FAMILIES}
    for family, of_family in by_family.items():
        wrong = [result for result in of_family if not result.is_first]
        causes = sorted({words.partition(" ")[0] for result in wrong for words in result.findings})
        console.print(f"  {family}: {len(wrong)} of {len(of_family)} {', '.join(causes)}")
    return all(rate >= bound for _, _, bound, rate in lines) and len(accused) <= 0.02 * len(clean)


def _share(results: Sequence[WorldResult]) -> str:
    return f"{sum(result.is_first for result in results)}/{len(results)}" if results else ""


def _rate(results: Sequence[WorldResult]) -> float:
    return sum(result.is_first for result in results) / len(results) if results else 1.0


def print_wrong(results: Sequence[WorldResult], console: Console) -> None:
    """Print what was found where it was wrong."""
    for result in results:
        if (result.is_first and all(result.named)) or (result.costs and min(result.costs) < TENTH):
            continue
        costs = " ".join(f"{cost:.0%}" for cost in result.costs)
        named = result.named or (True,) * len(result.job.faults)
        names = " + ".join(
            f"{name} ({size}){'' if right else ' NOT NAMED'}"
            for (name, size), right in zip(result.job.faults, named, strict=True)
        )
        console.print(
            f"{result.job.family} {result.job.seed} {names} {costs}: {result.findings[:4]}", soft_wrap=True
        )


def main(argv: list[str] | None = None) -> int:
    """Make the worlds, print the tables, and return 1 if a bound is not met."""
    from recall import results_of

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAME")
    parser.add_argument("--seeds", type=int, default=1, metavar="N")
    parser.add_argument("--sizes", type=int, default=3, metavar="N")
    parser.add_argument("--clean", type=int, default=10, metavar="N")
    parser.add_argument("--pairs", type=int, default=20, metavar="N")
    parser.add_argument("--hidden", action="store_true")
    parser.add_argument("--first", type=int, metavar="N")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--wrong", action="store_true")
    args = parser.parse_args(argv)
    jobs = world_jobs(args.only, args.seeds, args.sizes, args.clean, args.pairs, args.hidden, args.first)
    results = results_of(run_world, jobs, args.jobs)
    console = Console(width=120)
    holds = print_worlds(results, console)
    if args.wrong:
        print_wrong(results, console)
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main())
