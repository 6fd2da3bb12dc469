"""Find groups whose slowest member makes the samples of the others stale."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.asynchronous.fates import USED, logs_consumption
from sglang_instrument.analysis.answers.asynchronous.staleness import group_table, with_staleness
from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

GROUP_WAIT: Final = NamedCause(
    "group-wait",
    "run",
    "waiting for the slowest member of their group made samples older by at least half a version in the "
    "mean, and by at least half of their staleness; with at least 8 of them",
    "cap the tokens of the slowest, or let its group end without it: `staleness LOGS{step} --groups`",
    not_planted="the simulated trainer trains on each sample in the step that made it",
)
_FEWEST: Final = 8  # samples; of fewer, nothing is said of groups
_LEAST_SHARE: Final = 0.5  # of the staleness, that waiting for the group makes
_LEAST_VERSIONS: Final = 0.5  # for a sample, in the mean


@detector(GROUP_WAIT)
def find_groups_that_wait(evidence: Evidence) -> Findings:
    """Yield a finding if samples aged by many versions while they waited for their group."""
    if not logs_consumption(evidence.everything):
        return
    used = with_staleness(evidence.fates.filter(pl.col("fate") == USED))
    groups = group_table(used).drop_nulls("versions")
    members = groups["samples"].sum() - len(groups)
    known = used.drop_nulls(["staleness", "group"])
    stale = known["staleness"].sum()
    if members < _FEWEST or not stale:
        return
    aged = (groups["versions"] * (groups["samples"] - 1)).sum()
    share, versions = aged / stale, aged / members
    if share < _LEAST_SHARE or versions < _LEAST_VERSIONS:
        return
    longest = groups.row(0, named=True)
    sentence = (
        f"samples aged by {versions:.1f} versions while they waited for the slowest of their group, "
        f"{share:.0%} of their staleness; group {longest['group']} waited longest, "
        f"{seconds(longest['wait_sec'])}"
    )
    numbers = {
        "versions": versions,
        "share": share,
        "groups": len(groups),
        "wait_sec": longest["wait_sec"],
        "group": longest["group"],
        "worst_step": longest["step"],
    }
    yield Finding(GROUP_WAIT.name, "run", 0.0, sentence, evidence=numbers)
