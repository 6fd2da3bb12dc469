"""Fields of the user's own stand beside their events in the Perfetto trace and in the report."""

import json
import math

import pytest
from browser import browser
from logged import recorded_events
from own_run import record_requests
from perfetto_tracks import parsed

from sglang_instrument import bind, span, uninstall
from sglang_instrument.cli.main import main


@pytest.fixture
def recorded(install):
    folder = install()
    record_requests()
    return folder


@pytest.fixture
def annotated(tmp_path):
    """Return the annotations of each event in the Perfetto trace of a run, in the order of time."""

    def annotations_of(folder):
        target = tmp_path / "run.pftrace"
        assert main(["export", str(folder), "--perfetto", str(target)]) == 0
        events = [
            (start, name, values)
            for track in parsed(target).values()
            for name, start, _, _, values in track.slices
        ]
        return [(name, values) for _, name, values in sorted(events, key=lambda event: event[0])]

    return annotations_of


def test_perfetto_shows_all_fields_of_a_span(recorded, annotated):
    lines = recorded_events(map(json.loads, (recorded / "step_12/worker_0.jsonl").read_text().splitlines()))
    parses = [record["extra"] for record in lines if record["event"] == "parse"]
    shown = [values for name, values in annotated(recorded) if name == "parse"]
    assert [values["tool_calls"] for values in shown] == [fields["tool_calls"] for fields in parses]
    for values, fields in zip(shown, parses, strict=True):
        assert values["turn"] == fields["turn"] + 1
        assert values["parser"] == fields["parser"]
        assert values["flag"] == 1
        assert values['we"ird.na:me'] == 2.5
        assert json.loads(values["nested"]) == fields["nested"]
        assert "nan" not in values  # null: nothing was logged
        assert "request_id" not in values  # it names the track


def test_perfetto_shows_extreme_values(install, annotated):
    folder = install()
    with bind(step=1, request_id="r"), span("parse") as timed:
        timed.add(least=-(2**63), most=2**64, inf=math.inf, text="\x1b[31m" + "y" * 300, empty="", zero=0)
    uninstall()
    [(_, values)] = annotated(folder)
    assert values["least"] == -(2**63)
    assert values["most"] == str(2**64)
    assert "inf" not in values
    assert values["text"].startswith("\x1b[31myyy")
    assert (values["empty"], values["zero"]) == ("", 0)


def test_perfetto_cuts_a_text_of_others_that_is_too_long(recorded, annotated):
    with (recorded / "step_12/worker_0.jsonl").open("a") as file:
        extra = {"long": "y" * 10_000_000, "deep": [[[[1]]]], "request_id": "odd"}
        line = {"timestamp": "2026-11-20T20:15:10+00:00", "event": "odd", "duration_sec": 1.0, "extra": extra}
        file.write(json.dumps({**line, "workid": 0}) + "\n")
    [values] = [values for name, values in annotated(recorded) if name == "odd"]
    assert values == {"long": "y" * 1000 + "...", "deep": "[[[[1]]]]"}


def test_the_report_shows_all_fields_of_a_requests_events(recorded, tmp_path):
    with (recorded / "step_12/worker_0.jsonl").open("a") as file:
        extra = {"request_id": "r7", "<b id=hostile>": "<script>", "long": "y" * 1_000_000}
        line = {"timestamp": "2026-11-20T20:15:10+00:00", "event": "odd", "duration_sec": 0.0, "extra": extra}
        file.write(json.dumps({**line, "workid": 0}) + "\n")
    out = tmp_path / "report.html"
    assert main(["report", str(recorded), "-o", str(out)]) == 0
    with browser(tmp_path / "browser") as page:
        page.open(out, "#step=12&request=r7").draw_all()
        page.do("document.querySelectorAll('#slowest details').forEach(one => { one.open = true })")
        page.until("document.querySelectorAll('#slowest details[open] .waterfall .track').length > 3")
        page.until("!document.getElementById('inspector').hidden")
        for place in ("slowest", "inspector"):
            shown = page.text(place)
            assert "tool_calls = 3, parser = json0" in shown
            assert 'nested = {"a": {"b": [1, null]}}' in shown
            assert "<b id=hostile> = <script>" in shown
            assert "y" * 101 not in shown
        assert page.js("document.getElementById('hostile')") is None
        assert page.complaints() == []
