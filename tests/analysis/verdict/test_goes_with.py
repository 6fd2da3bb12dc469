"""A field that goes with time is named as that; one that mirrors the reply, the step or nothing is not."""

import json
from dataclasses import replace
from random import Random

import numpy as np
import polars as pl
import pytest
from test_slow_servers import even

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict.detectors.goes_with import _rank_correlation
from sglang_instrument.analysis.verdict.verdict import findings_of
from sglang_instrument.testing.world.play import play, write_world
from sglang_instrument.testing.world.rollout.plans import ToolShape
from sglang_instrument.testing.world.rollout.shape import ROUTED


@pytest.fixture(scope="module")
def stage():
    shape = even(ROUTED, validate_every=0)
    tools = (ToolShape("search", 5.0, 0.9),)
    return play(replace(shape, work=replace(shape.work, tools=tools, go_on_share=0.8)))


def findings_with(stage, folder, value_of):
    """Return what goes with a field of the tools' spans; `value_of` makes it of a line and a generator."""
    write_world(folder, stage)
    random = Random(7)
    for path in sorted(folder.glob("step_*/worker_*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line["event"] == "tool_execution":
                line["extra"]["rows"] = value_of(line, random)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    findings = findings_of(open_run(folder, cached=False), over=True)
    return [finding for finding in findings if finding.cause == "goes-with"]


def test_a_field_that_the_time_of_tools_goes_with_is_named_with_what_it_rests_on(stage, tmp_path):
    def rows(line, random):
        return round(100 * line["duration_sec"] * random.lognormvariate(0.0, 0.4))

    (finding,) = findings_with(stage, tmp_path, rows)
    assert (finding.event, finding.evidence["field"], finding.scope) == ("tool_execution", "rows", "run")
    assert finding.evidence["correlation"] > 0.7
    assert f"{finding.evidence['spans']:,} spans" in finding.sentence
    assert "goes with its field rows" in finding.sentence
    assert "cause" not in finding.sentence
    assert finding.advice.endswith("--fields rows`")
    assert (finding.step, finding.worker, finding.request_id) == (None, None, None)


@pytest.mark.parametrize(
    "rows",
    [
        lambda line, random: random.randrange(1000),
        lambda line, random: 1000 * line["step"] + random.randrange(100),
        lambda line, random: line["start_us"] % 10**9 // 1000,
        lambda line, random: round(1000 * line["duration_sec"]),  # the time itself, in milliseconds
        lambda line, random: line["extra"]["turn"],
    ],
    ids=["noise", "grows with the step", "the time of day", "its own time", "its turn"],
)
def test_a_field_that_tells_nothing_of_the_work_is_not_named(stage, tmp_path, rows):
    assert findings_with(stage, tmp_path, rows) == []


def test_a_field_that_mirrors_the_length_of_the_reply_goes_with_nothing():
    random = np.random.default_rng(3)
    tokens = random.lognormal(5, 1, 600)
    spans = pl.DataFrame(
        {
            "step": np.repeat([1, 2, 3], 200),
            "validate": False,
            "tools": "search",
            "turn": random.integers(0, 3, 600),
            "start_us": random.integers(0, 10**8, 600),
            "response_tokens": tokens,
            "sec": tokens * random.lognormal(0, 0.3, 600),
            "value": tokens * random.lognormal(0, 0.3, 600),
        }
    )
    alike = ["step", "validate", "tools"]
    r, _ = _rank_correlation(spans, alike)
    assert abs(r) < 0.3
    free, _ = _rank_correlation(spans.with_columns(response_tokens=0), alike)
    assert free > 0.7
