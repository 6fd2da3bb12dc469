"""What the router costs is found where it was planted, and nobody is accused where it costs nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clean_shapes import CLEAN_SHAPES
from routed_run import QUIET_SHAPES, RoutedRun

from sglang_instrument.analysis import Finding, findings_of, open_run
from sglang_instrument.testing.synthetic import write_run

CAUSES = {"cache-lost", "conversations-moved", "uneven-servers"}


def found_in(folder: Path) -> list[Finding]:
    return [
        finding
        for finding in findings_of(open_run(folder, cached=False), over=True)
        if finding.cause in CAUSES
    ]


def findings_with(tmp_path: Path, **shape: Any) -> list[Finding]:
    return found_in(RoutedRun(**shape).write(tmp_path / "run"))


def took(folder: Path, step: int) -> float:
    rows = open_run(folder, cached=False).digest.steps.filter(step=step)
    return float(rows["duration_sec"].max())  # type: ignore[arg-type]


def test_a_step_whose_caches_were_flushed_is_named_with_what_it_cost(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"seed": 0, "steps": 5}
    (finding,) = found_in(RoutedRun(**shape, flushed=(3,)).write(tmp_path / "flushed"))
    assert (finding.cause, finding.step, finding.scope) == ("cache-lost", 3, "step")
    RoutedRun(**shape).write(tmp_path / "kept")
    true_sec = took(tmp_path / "flushed", 3) - took(tmp_path / "kept", 3)
    assert finding.lost_sec == pytest.approx(true_sec, rel=0.25)
    assert finding.evidence["share"] < 0.1 < 0.9 < finding.evidence["usual_share"]
    assert "--over-time" in finding.advice


def test_a_collapse_that_lasts_is_named_in_each_step(tmp_path: Path) -> None:
    findings = findings_with(tmp_path, flushed=(4, 5, 6, 7), steps=7)
    assert {(finding.cause, finding.step) for finding in findings} == {
        ("cache-lost", step) for step in (4, 5, 6, 7)
    }


@pytest.mark.parametrize("policy", ["round_robin", "random"])
def test_a_router_that_does_not_know_the_caches_is_named_once(tmp_path: Path, policy: str) -> None:
    (finding,) = findings_with(tmp_path, policy=policy, steps=5)
    assert (finding.cause, finding.scope, finding.step) == ("conversations-moved", "run", None)
    assert finding.evidence["moved"] > 0.3 * finding.evidence["of"]
    assert finding.evidence["tokens"] > 10_000


def test_a_server_that_got_most_conversations_and_made_them_wait_is_named(tmp_path: Path) -> None:
    findings = findings_with(tmp_path, policy="skewed", slots=6, requests=20)
    assert {finding.cause for finding in findings} == {"uneven-servers"}
    assert {finding.evidence["server"] for finding in findings} == {"server_0"}
    assert all(finding.evidence["queue_sec"] > finding.evidence["others_queue_sec"] for finding in findings)


@pytest.mark.parametrize("shape", QUIET_SHAPES, ids=str)
def test_nobody_is_accused_where_routing_costs_nothing(tmp_path: Path, shape: dict[str, Any]) -> None:
    # One run of each shape; benchmarks/test_chances.py tries ten.
    assert findings_with(tmp_path, **shape) == []


@pytest.mark.parametrize("name", ["engine logs", "shared engine", "usual", "one worker"])
def test_clean_shapes_stay_silent(tmp_path: Path, name: str) -> None:
    clean = CLEAN_SHAPES[name](1)
    shape = replace(clean.shape, requests=12)
    assert found_in(write_run(tmp_path / "run", shape, clean.causes)) == []


def test_a_server_that_joins_late_or_leaves_makes_no_other_step_uneven(tmp_path: Path) -> None:
    class Growing(RoutedRun):
        def _route(self, call: dict[str, Any]) -> int:
            self.servers = 2 if call["step"] in (3, 4) else 1
            server = super()._route(call)
            self.servers = 2
            return server

    run = Growing(steps=6, slots=6)
    assert found_in(run.write(tmp_path / "run")) == []
    assert run.truth["server_1"]["calls"] > 0
