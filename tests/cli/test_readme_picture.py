"""The first picture of the README is true: numbers are those of the raw lines, the advice can be pasted."""

import json
import re
from statistics import quantiles

import pytest
from documented import ROOT

from sglang_instrument.cli.main import main
from sglang_instrument.demo.synthetic import write

PICTURE = (ROOT / "README.md").read_text().partition("```text\n")[2].partition("```")[0]


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme") / "logs" / "step-67"
    write(folder)
    return folder


@pytest.fixture(scope="module")
def story(logs):
    """Return requests and durations of each step of the run that the README shows, from its raw lines."""
    requests, seconds = {}, {}
    for path in logs.glob("step_*/worker_*.jsonl"):
        lines = [line for line in path.read_text().splitlines() if '"duration_sec"' in line]
        for event in ("async_rollout_request_complete", "total_step_duration"):
            records = [json.loads(line) for line in lines if f'"{event}"' in line]
            of_event = requests if event.startswith("async") else seconds
            of_event.setdefault(path.parent.name.removeprefix("step_"), []).extend(records)
    return requests, seconds


def test_its_six_columns_hold_what_their_names_say(story):
    requests, seconds = story
    picture = PICTURE.splitlines()
    head, rows = picture[1].split("  "), [line.split() for line in picture[3:8]]
    assert [name.strip() for name in head if name] == [
        *("step", "duration s", "requests", "response tokens", "p99 s", "max s")
    ]
    assert len(rows) == len(requests) == 5
    for step, duration, count, tokens, p99, longest in rows:
        times = sorted(record["duration_sec"] for record in requests[step])
        assert float(duration) == pytest.approx(max(r["duration_sec"] for r in seconds[step]), abs=0.06)
        assert int(count.replace(",", "")) == len(times)
        wrote = sum(record["extra"]["actual_response_tokens"] for record in requests[step])
        assert int(tokens.replace(",", "")) == wrote
        assert float(p99) == pytest.approx(quantiles(times, n=100, method="inclusive")[98], abs=0.06)
        assert float(longest) == pytest.approx(times[-1], abs=0.06)
    steps, workers, of_run = re.match(
        r"logs/step-67: (\d+) steps, (\d+) workers, ([\d,]+) req", picture[0]
    ).groups()
    assert (int(steps), int(workers)) == (5, max(map(len, seconds.values())))
    assert int(of_run.replace(",", "")) == sum(map(len, requests.values()))


def test_its_verdict_and_its_advice_are_those_of_the_command(logs, monkeypatch, capsys):
    monkeypatch.chdir(logs.parents[1])
    assert main(["summary", "logs/step-67"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    words = " ".join(PICTURE[PICTURE.index("verdict:") :].split())
    assert words in printed
