"""What a trainer prints of its steps: every part counts, and servers' lines beside it get its steps."""

import json
import os

import polars as pl
import pytest
from server_lines import begin, decode, prefill

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict.verdict import judge
from sglang_instrument.cli.main import main

NOON = 1767614400.0  # 2026-01-05 12:00 UTC
FIRST, LAST, SLOW = 1, 12, 7


def timings(step, part, usual=3.0):
    """The parts of a step, of which one takes 63 s in step 7; as verl orders them: inner ones end first."""
    odd = 63.0 if step == SLOW else usual + step / 100
    parts = {
        "start_profile": 0.0,
        "generate_sequences": 18.5,
        "reshard": 0.5,
        "gen": 20.0 + step / 50,
        "agent_loop/generate_sequences/mean": 8.0,
        "agent_loop/slowest/response_length": 1024,
        "agent_loop/num_preempted/max": -1,
        "old_log_prob": 5.0,
        "update_actor": 20.0,
        part: odd,
        "stop_profile": 1e-05,
    }
    outer = ("start_profile", "gen", "old_log_prob", "update_actor", part, "stop_profile")
    return parts | {"step": sum(parts[name] for name in outer)}


def written(folder, part, form):
    """Write twelve steps in one of the forms; the file was last changed at noon."""
    path = folder / ("experiment.jsonl" if form == "file" else "driver.log")
    lines = []
    for step in range(FIRST, LAST + 1):
        metrics = {f"timing_s/{name}": value for name, value in timings(step, part).items()}
        if form == "file":
            lines.append(json.dumps({"step": step, "data": {"actor/loss": 0.1, **metrics}}))
            continue
        value = "np.float64({})" if form == "numpy" else "{}"
        pairs = [f"{name}:{value.format(number)}" for name, number in metrics.items()]
        ray = "" if form == "plain" else "\x1b[36m(TaskRunner pid=1, ip=10.0.0.1)\x1b[0m "
        lines.append(f"{ray}step:{step} - actor/entropy:0.3 - {' - '.join(pairs)} - perf/throughput:12.3")
    path.write_text("\n".join(lines) + "\n")
    os.utime(path, (NOON, NOON))
    return path


@pytest.mark.parametrize("part", ["sync_rollout_weights", "wait_for_enough_samples", "a_part_of_tomorrow"])
@pytest.mark.parametrize("form", ["file", "plain", "ray", "numpy"])
def test_the_part_that_took_long_is_named_whatever_its_name(tmp_path, part, form):
    run = open_run(written(tmp_path, part, form))
    verdict = judge(run)
    assert run.steps == list(range(FIRST, LAST + 1))
    assert f"step {SLOW}: {part} took" in verdict.sentence
    assert verdict.findings[0].lost_sec == pytest.approx(60, abs=1)


def test_parts_lie_within_their_step_and_inner_ones_within_theirs(tmp_path):
    rows = open_run(written(tmp_path, "param_sync", "file")).executor.log.rows.filter(step=SLOW)
    spans = {row["event"]: (row["start_us"], row["end_us"]) for row in rows.to_dicts()}
    step, generated = spans["trainer_step"], spans["trainer_generate"]
    for name, (start, end) in spans.items():
        assert step[0] <= start <= end <= step[1], name
    for name in ("generate_sequences", "reshard"):
        assert generated[0] <= spans[name][0] <= spans[name][1] <= generated[1]
    assert step[1] - step[0] == pytest.approx(1e6 * timings(SLOW, "param_sync")["step"], abs=10)
    assert "agent_loop/generate_sequences/mean" not in spans
    slowest = rows.filter(event="slowest_sample")
    assert slowest["slowest_response_length"].to_list() == [1024]


def test_parts_that_overlap_keep_their_durations_and_their_step_its_own(tmp_path):
    path = tmp_path / "experiment.jsonl"
    data = {"timing_s/gen": 30.0, "timing_s/update_actor": 25.0, "timing_s/step": 40.0}
    path.write_text(json.dumps({"step": 1, "data": data}) + "\n")
    rows = open_run(path).executor.log.rows
    seconds = dict(rows.select(pl.col("event").cast(pl.String), "duration_sec").iter_rows())
    assert seconds == {"trainer_step": 40.0, "trainer_generate": 30.0, "trainer_update_actor": 25.0}
    assert rows["end_us"].max() - rows["start_us"].min() == 40_000_000


def test_lines_of_servers_between_printed_steps_belong_to_the_next_one(tmp_path):
    printed = written(tmp_path, "sync_rollout_weights", "ray").read_text().splitlines()
    lines, now = ["{'actor_rollout_ref': {'a': 1}}"], 0.0
    ray = "(SGLangHttpServer pid=9) "
    for step, line in zip(range(FIRST, LAST + 1), printed, strict=True):
        lines.append(ray + begin(now) + prefill(new=4))
        lines += [ray + begin(now + sec) + decode() for sec in range(1, 20)]
        lines.append(line)
        now += timings(step, "sync_rollout_weights")["step"]
    path = tmp_path / "joined.log"
    path.write_text("\n".join(lines) + "\n")
    run = open_run(path)
    assert run.steps == list(range(FIRST, LAST + 1))
    assert len(run.digest.requests) == 4 * LAST
    assert "sync_rollout_weights" in judge(run).sentence
    assert not any("a step here is" in phrase for phrase in run.health.cannot_show)
    rows = run.executor.log.rows
    starts = rows.filter(event="trainer_generate").sort("step")["start_us"]
    firsts = rows.filter(event="scheduler_batch").group_by("step").agg(pl.col("start_us").min()).sort("step")
    assert (starts - firsts["start_us"]).abs().max() < 1_000_000


def test_timings_that_are_none_of_a_step_are_counted(tmp_path, capsys):
    path = tmp_path / "driver.log"
    path.write_text("# grep timing_s/gen\nmetrics: timing_s/step\n")
    assert main(["summary", str(path)]) == 2
    assert '2 lines with "timing_s/" that are none of a step' in capsys.readouterr().err


def timer_lines(with_servers):
    """Twelve steps of slime's timers: the weight update of step 7 takes 63 s; with servers' lines."""
    lines, now = [], 0.0
    for step in range(LAST):
        odd = 63.0 if step == SLOW else 3.0
        parts = {
            "train_wait": 20.0,
            "log_probs": 5.0,
            "actor_train": 20.0,
            "train": 25.2,
            "update_weights": odd,
        }
        for name, sec in parts.items():
            if name == "train_wait" and with_servers:
                lines += [begin(now + second) + decode() for second in range(1, 19)]
            now += 0.2 if name == "train" else sec
            lines.append(
                f"(Trainer pid=7) {begin(now, '')}timer.py:32 - Timer {name} end (elapsed: {sec:.1f}s)"
            )
        lines.append(f"(Trainer pid=7) {begin(now, '')}metrics.py:44 - perf {step}: {{'perf/x': 4.0}}")
    return lines


@pytest.mark.parametrize("with_servers", [True, False])
def test_slime_s_timers_name_the_part_that_took_long(tmp_path, with_servers):
    path = tmp_path / "driver.log"
    path.write_text("\n".join(timer_lines(with_servers)) + "\n")
    run = open_run(path)
    assert run.steps == list(range(LAST))
    assert "weights_update" in judge(run).sentence
    assert f"step {SLOW}" in judge(run).sentence
    timers = run.executor.log.rows.filter(role="trainer", event="weights_update")
    assert timers["duration_sec"].max() == pytest.approx(63, abs=1)
    spans = run.executor.log.rows.filter(role="trainer").drop_nulls("duration_sec").sort("start_us", "end_us")
    pairs = [(row["start_us"], row["end_us"]) for row in spans.to_dicts()]
    for start, end in pairs:  # no two overlap in part
        assert not [other for other in pairs if start < other[0] < end < other[1]]


def test_timers_without_a_time_are_counted(tmp_path, capsys):
    path = tmp_path / "slime_timer_0.log"
    path.write_text("Timer train end (elapsed: 25200.1ms)\n" * 3)
    assert main(["summary", str(path)]) == 2
    assert "3 lines of timers without a time" in capsys.readouterr().err
