"""Find samples staler than the trainer allows, and groups whose slowest member makes the others stale."""

from collections.abc import Iterator
from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.asynchronous.fates import USED, logs_consumption
from sglang_instrument.analysis.answers.asynchronous.staleness import group_table, with_staleness
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

_FEWEST: Final = 8  # samples; of fewer, nothing is said of groups
_LEAST_SHARE: Final = 0.5  # of the staleness, that waiting for the group makes
_LEAST_VERSIONS: Final = 0.5  # for a sample, in the mean


def find_stale_samples(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for samples over the limit, and one for groups that wait for many versions."""
    if not logs_consumption(evidence.everything):
        return
    used = with_staleness(evidence.fates.filter(pl.col("fate") == USED))
    yield from _over(used)
    yield from _waiting(used)


def _over(used: pl.DataFrame) -> Iterator[Finding]:
    over = used.filter("over")
    if over.is_empty():
        return
    worst = over.sort("staleness", "used_step", descending=[True, False]).row(0, named=True)
    known = used["over"].count()
    limit = "1 version" if worst["max_staleness"] == 1 else f"{worst['max_staleness']} versions"
    sentence = (
        f"{len(over):,} of {known:,} samples were staler than the trainer allows: up to {worst['staleness']} "
        f"versions in step {worst['used_step']}, allowed: {limit}"
    )
    numbers = {
        "samples": len(over),
        "of": known,
        "staleness": worst["staleness"],
        "max_staleness": worst["max_staleness"],
        "worst_step": worst["used_step"],
        "request_id": worst["request_id"],
    }
    yield Finding("stale-samples", "run", 0.0, sentence, evidence=numbers)


def _waiting(used: pl.DataFrame) -> Iterator[Finding]:
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
    yield Finding("group-wait", "run", 0.0, sentence, evidence=numbers)
