"""Put together what goes wrong, causes before their consequences."""

from collections.abc import Iterator

from sglang_instrument.live.counting.counts import StepKey
from sglang_instrument.live.problems.deaths import deaths
from sglang_instrument.live.problems.hangs import hangs
from sglang_instrument.live.problems.moment import Now, problem_of
from sglang_instrument.live.problems.problem import Problem
from sglang_instrument.live.problems.silence import silences


def standstills(now: Now, step: StepKey | None) -> list[Problem]:
    """Return what died or hangs: a process that is gone, one that cannot speak, a blocked loop, a span.

    Each of them may be the cause of the later ones. Of the same kind, the oldest comes first.
    """
    dead = sorted(deaths(now, step), key=lambda problem: problem.since_us)
    return [*dead, *silences(now, step), *hangs(now, step)]


def losses(now: Now) -> Iterator[Problem]:
    """Yield the processes that lost records, and lines that are torn."""
    for key, process in now.counts.processes.items():
        if process.lost:
            yield problem_of("loss", now.at_us, key, process.step, f"{process.lost:,} records were lost")
    if now.counts.rejects.torn:  # one a process that was killed
        sentence = f"torn lines in the log: {now.counts.rejects.torn:,}"
        yield Problem("loss", now.at_us, None, None, sentence)
