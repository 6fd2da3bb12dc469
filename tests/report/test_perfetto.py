"""A Perfetto trace, parsed with Perfetto's own protobuf classes, has the content of the log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from perfetto_tracks import Track, group_of, parsed

from sglang_instrument.analysis import open_run
from sglang_instrument.cli.main import main
from sglang_instrument.report.perfetto.lanes import Slice, assign_lanes
from sglang_instrument.report.perfetto.packets import Packets
from sglang_instrument.schema import CONTROL_EVENTS
from sglang_instrument.testing import BlockedLoop, Hang, SlowEngine, synthetic_run


def records(folder: Path) -> Iterator[dict[str, Any]]:
    for path in folder.glob("*/*.jsonl"):
        yield from map(json.loads, path.read_text().splitlines())


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs") / "exp"
    return synthetic_run(
        folder,
        steps=3,
        workers=2,
        requests=6,
        validate_every=2,
        causes=[SlowEngine(2, 1, factor=4.0), BlockedLoop(3, 0, at_sec=3.0, seconds=2.0)],
        clock_skew={1: 100.0},
    )


@pytest.fixture(scope="module")
def tracks(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Track]:
    target = tmp_path_factory.mktemp("out") / "run.pftrace"
    assert main(["export", str(logs), "--perfetto", str(target)]) == 0
    return parsed(target)


def test_every_record_is_there_with_its_duration(logs: Path, tracks: dict[int, Track]) -> None:
    logged: dict[str, list[float]] = {}
    moments: Counter[str] = Counter()
    for record in records(logs):
        if "duration_sec" in record:
            logged.setdefault(record["event"], []).append(record["duration_sec"] * 1e6)
        elif record["event"] not in CONTROL_EVENTS:
            moments[record["event"]] += 1
    shown: dict[str, list[float]] = {}
    shown_moments: Counter[str] = Counter()
    for track in tracks.values():
        shown_moments.update(name for name, _ in track.moments)
        for name, start, end, _, _ in track.slices:
            shown.setdefault(name, []).append((end - start) / 1000)
    assert shown_moments == moments
    assert {name: len(times) for name, times in shown.items()} == {
        name: len(times) for name, times in logged.items()
    }
    for name, times in shown.items():  # start and duration were each rounded to microseconds
        assert sorted(times) == pytest.approx(sorted(logged[name]), abs=3.0)


def test_a_request_has_a_track_below_its_worker(logs: Path, tracks: dict[int, Track]) -> None:
    asked = {
        (record["workid"], record["extra"]["request_id"])
        for record in records(logs)
        if record["event"] == "async_rollout_request_complete"
    }
    places = set()
    for track in tracks.values():
        roots = [name for name, _, _, depth, _ in track.slices if depth == 0]
        if "async_rollout_request_complete" in roots:
            assert roots == ["async_rollout_request_complete"]  # the track contains all spans of the request
            places.add((group_of(track, tracks).pid - 1000, track.name))
    assert places == asked


def test_slices_lie_inside_the_slice_that_they_ran_in(tracks: dict[int, Track]) -> None:
    depths: dict[str, set[int]] = {}
    for track in tracks.values():
        for name, _, _, depth, _ in track.slices:
            depths.setdefault(name, set()).add(depth)
    assert depths["async_rollout_request_complete"] == {0}
    assert min(depths["engine_async_generate_actual"]) > min(depths["turn_engine_call"]) > 0
    assert depths["total_step_duration"] == {0}
    assert depths["barrier_wait_duration"] == {1}


def test_turns_of_a_request_are_joined_and_numbered_from_1(logs: Path, tracks: dict[int, Track]) -> None:
    turns = {
        record["extra"]["request_id"]: record["extra"]["turns"]
        for record in records(logs)
        if record["event"] == "async_rollout_request_complete"
    }
    for track in tracks.values():
        if track.name in turns:
            calls = [values["turn"] for name, *_, values in track.slices if name == "turn_engine_call"]
            assert calls == list(range(1, turns[track.name] + 1))
            joined = len(calls) if len(calls) > 1 else 0
            assert [last for _, last in track.flows] == [False] * (joined - 1) + [True] * bool(joined)
            assert len({flow for flow, _ in track.flows}) == bool(joined)


def test_clocks_of_hosts_are_aligned_at_the_barriers(tracks: dict[int, Track]) -> None:
    exits: dict[int, list[int]] = {}
    for track in tracks.values():
        for name, _, end, _, _ in track.slices:
            if name == "barrier_wait_duration":
                exits.setdefault(group_of(track, tracks).pid, []).append(end)
    assert len(exits) == 2
    first, other = (sorted(ends) for ends in exits.values())
    assert first == pytest.approx(other, abs=1e6)  # within a millisecond; the clocks are 100 s apart


def test_workers_of_one_clock_are_not_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = synthetic_run(tmp_path / "exp", steps=2, workers=2, requests=4, clock_skew={1: 0.02})
    assert main(["export", str(folder), "--perfetto", str(tmp_path / "t")]) == 0
    assert "clocks were aligned" not in capsys.readouterr().out
    begins = sorted(
        start // 1000
        for track in parsed(tmp_path / "t").values()
        for name, start, *_ in track.slices
        if name == "total_step_duration"
    )
    logged = [record["start_us"] for record in records(folder) if record["event"] == "total_step_duration"]
    assert begins == sorted(logged)


def test_counters_say_how_many_run_and_how_late_the_loop_was(tracks: dict[int, Track]) -> None:
    flights = [track for track in tracks.values() if track.name == "in flight"]
    assert len(flights) == 2
    for track in flights:
        assert max(value for _, value in track.counts) == 6
        assert track.counts[-1][1] == 0
    (late,) = (track for track in tracks.values() if track.name == "event loop lag")
    assert [value for _, value in late.counts] == [pytest.approx(2000.0), 0.0]
    (held,) = (track for track in tracks.values() if track.name == "event loop blocked")
    assert [name for name, *_ in held.slices] == ["event_loop_block"]


def test_one_step_alone_can_be_written(logs: Path, tmp_path: Path) -> None:
    assert main(["export", str(logs), "--perfetto", str(tmp_path / "2"), "--step", "2"]) == 0
    of_step = [piece for track in parsed(tmp_path / "2").values() for piece in track.slices]
    assert sum(name == "total_step_duration" for name, *_ in of_step) == 2  # workers
    assert main(["export", str(logs), "--perfetto", str(tmp_path / "v"), "--step", "2", "--validate"]) == 0
    names = {track.name: {name for name, *_ in track.slices} for track in parsed(tmp_path / "v").values()}
    assert names["validation"] == {"engine_async_generate", "barrier"}
    assert "steps" not in names


def test_nothing_is_overwritten_and_nothing_unfinished_is_left(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "run.pftrace"
    target.write_text("mine")
    assert main(["export", str(logs), "--perfetto", str(target)]) == 2
    assert "nothing is overwritten" in capsys.readouterr().err
    assert (
        main(["export", str(logs), "--perfetto", str(tmp_path / "x"), "--traces", str(tmp_path / "no")]) == 2
    )
    assert [path.name for path in tmp_path.iterdir()] == ["run.pftrace"]
    assert main(["export", str(logs), "--parquet", str(tmp_path / "p"), "--step", "1"]) == 2
    assert "--step goes with --perfetto" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--parquet", "x"], "--parquet needs LOGS"),
        (["--perfetto", "x"], "--perfetto needs LOGS, the experiment's folder, or --traces DIR"),
        (["--perfetto", "x", "--traces", "y", "--step", "0"], "--step and --validate choose from a run"),
        (["logs", "--perfetto", "x", "--rank", "0"], "--rank goes with --traces"),
        (["logs", "--parquet", "x", "--rank", "0"], "--rank goes with --perfetto"),
    ],
)
def test_contradictory_options_are_refused(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", *arguments]) == 2
    assert error in capsys.readouterr().err


def test_the_newest_run_alone_is_written(logs: Path, tmp_path: Path) -> None:
    run = open_run(logs)
    assert run.health.records == sum(record["event"] not in CONTROL_EVENTS for record in records(logs))


def test_a_span_that_never_ended_has_a_track_up_to_its_last_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = synthetic_run(tmp_path / "exp", steps=2, workers=2, requests=4, causes=[Hang(2, 1)])
    assert main(["export", str(folder), "--perfetto", str(tmp_path / "t")]) == 0
    tracks = parsed(tmp_path / "t")
    hung = {group_of(track, tracks).name: track for track in tracks.values() if track.name == "unended"}
    logged = [
        record for record in records(folder) if record["event"] == "open_spans" and record["workid"] == 1
    ]
    spans = max(logged, key=lambda record: record["timestamp"])["extra"]["spans"]
    below = [track for track in tracks.values() if tracks.get(track.parent) is hung["worker 1"]]
    shown = [piece for track in (hung["worker 1"], *below) for piece in track.slices]
    assert Counter(name for name, *_ in shown) == Counter(span["event"] for span in spans)
    longest = max(end - start for _, start, end, _, _ in shown)
    assert longest / 1e9 == pytest.approx(max(span["age_sec"] for span in spans), abs=1e-5)
    assert all(values["unended"] for *_, values in shown)
    assert "unended" in " ".join(capsys.readouterr().out.split())


def made_slice(number: int, start: int, end: int, parent: int | None = None) -> Slice:
    return Slice(start, end, str(number), "tool", {}, number, parent)


def test_a_slice_concurrent_with_its_siblings_goes_to_another_lane() -> None:
    lanes = assign_lanes(
        [made_slice(0, 0, 100), made_slice(1, 10, 90, 0), made_slice(2, 10, 60, 0), made_slice(3, 20, 30, 2)]
    )
    assert [[piece.number for piece in lane] for lane in lanes] == [[0, 1], [2, 3]]


def test_rounding_errors_are_clipped_and_instants_stay_inside() -> None:
    sticks_out = made_slice(1, 50, 102, 0)
    sticks_out.slack_ns = 3
    lanes = assign_lanes([made_slice(0, 0, 100), sticks_out, made_slice(2, 100, 100, 0)])
    assert [(piece.start_ns, piece.end_ns, piece.depth) for piece in lanes[0]] == [
        (0, 100, 0),
        (50, 100, 1),
        (100, 100, 1),
    ]


def test_a_slice_that_outlasts_its_spawner_keeps_its_length() -> None:
    lanes = assign_lanes([made_slice(0, 0, 100), made_slice(1, 50, 160, 0)])
    assert [[(piece.start_ns, piece.end_ns) for piece in lane] for lane in lanes] == [[(0, 100)], [(50, 160)]]


@pytest.mark.parametrize("value", [0, 1, 127, 128, 2**14 - 1, 2**14, 2**56, 1_795_268_441_915_792_613, -5])
def test_numbers_of_any_size_come_back(tmp_path: Path, value: int) -> None:
    path = tmp_path / "t"
    with path.open("wb") as stream:
        packets = Packets(stream)
        track = packets.counter(packets.process(7, "näme\ud800"), "c", "u")
        packets.count(track, max(value, 0), value)
        packets.flush()
    assert parsed(path)[2].counts == [(max(value, 0), value)]
    assert parsed(path)[1].name == "näme?"
