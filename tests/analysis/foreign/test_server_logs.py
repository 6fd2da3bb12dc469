"""What a server prints is read however its launcher and its settings make the lines look."""

import gzip
import json
import os

import polars as pl
import pytest
from server_lines import begin, clock, decode, prefill, simulated, steady

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict.verdict import judge
from sglang_instrument.cli.main import main

NOON = 1767614400.0  # 2026-01-05 12:00 UTC


def opened(folder, lines, name="server.log"):
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    os.utime(path, (NOON, NOON))
    return open_run(path)


def shape(run):
    """Steps, workers, slots, tokens, and the seconds of the longest slot."""
    requests = run.digest.requests
    longest = requests["duration_sec"].max()
    tokens = requests["response_tokens"].sum()
    return len(run.steps), len(run.worker_ranks), len(requests), tokens, round(longest)


@pytest.mark.parametrize(
    "prefix",
    [
        "[2026-01-05 {clock}] ",
        "[2026-01-05 {clock} ATTN_CP0 TP0] ",
        "[2026-01-05 {clock} DP0 PP0 ATTN_CP0 MOE_DP0 TP0 EP0] ",
        "[2026-01-05 {clock} SOME_NEW_RANK12 TP0] ",
        "[2026-01-05 {clock}.250 TP0] ",
        "2026-01-05 {clock},123 - sglang.srt.managers.scheduler - INFO - ",
        "2026-01-05T{clock}.339496Z INFO scheduler_metrics_mixin.log_decode_stats: ",
        "\x1b[2m2026-01-05T{clock}.339496Z\x1b[0m \x1b[32m INFO\x1b[0m \x1b[2mscheduler\x1b[0m: ",
        "2026-01-05T{clock}+09:00 worker: ",
        "2026/01/05 {clock} INFO ",
        "Jan 05 {clock} node-17.example sglang[12345]: [2026-01-05 {clock} TP0] ",
        "Jan  5 {clock} node-17.example sglang[12345]: ",
        "I0105 {clock}.123456 812 scheduler.cpp:12] ",
        "[pod/rollout-0-7d9f8c6b5-abcde/sglang] [2026-01-05 {clock} TP0] ",
        "2026-01-05T{clock}.123456789Z [2026-01-05 {clock} TP0] ",
        "sglang-1  | [2026-01-05 {clock} TP0] ",
        "3: [2026-01-05 {clock} TP0] ",
        '{{"log":"[2026-01-05 {clock} TP0] ',
        '{{"asctime": "2026-01-05 {clock},123", "levelname": "INFO", "message": "',
        "\\u001b[36m(SGLangEngine pid=9, ip=10.0.0.2)\\u001b[0m [2026-01-05 {clock} TP0] ",
        "[{clock} TP0] ",
    ],
)
def test_a_line_is_read_behind_the_words_of_any_launcher(tmp_path, prefix):
    run = opened(tmp_path, ["INFO: Started", *steady(prefix=prefix)])
    assert shape(run) == (1, 1, 4, 1760, 11)
    assert run.health.foreign == 0


def test_a_stamp_behind_the_message_counts_too(tmp_path):
    lines = [json.dumps({"message": decode(), "time": f"2026-01-05T{clock(sec)}Z"}) for sec in range(12)]
    assert shape(opened(tmp_path, lines)) == (1, 1, 4, 1760, 11)
    lines = [json.dumps({"message": decode(), "ts": NOON + sec}) for sec in range(12)]
    assert shape(opened(tmp_path, lines, "epoch.log")) == (1, 1, 4, 1760, 11)


def test_times_without_a_date_go_on_over_midnight_and_this_is_said(tmp_path):
    times = [f"23:59:{second:02d}" for second in range(55, 60)] + [
        f"00:00:{second:02d}" for second in range(7)
    ]
    run = opened(tmp_path, [f"[{time} TP0] {decode()}" for time in times])
    assert shape(run) == (1, 1, 4, 1760, 11)
    assert any("12 lines without a date" in phrase for phrase in run.health.cannot_show)


def test_offsets_and_days_of_months_are_understood(tmp_path):
    for prefix, hour in (("2026-01-05T{clock}+09:00 ", 23), ("Jan  5 {clock} host sglang[1]: ", 8)):
        run = opened(tmp_path, steady(prefix=prefix))
        first = run.digest.requests["start_us"].min() / 1e6
        assert int(first) % 86400 // 3600 == hour


@pytest.mark.parametrize("interval", [40, 100, 400, 1000])
@pytest.mark.parametrize("with_prefill", [True, False])
def test_steps_tokens_and_times_are_right_at_any_interval(tmp_path, interval, with_prefill):
    lines, works = simulated(interval, with_prefill)
    run = opened(tmp_path, lines)
    assert run.steps == [0, 1, 2]
    steps = run.digest.requests.group_by("step").agg(
        tokens=pl.col("response_tokens").sum(),
        start=pl.col("start_us").min(),
        end=pl.col("end_us").max(),
    )
    # Lines of a stretch lack at most what one line covers: without lines of prefill at both ends.
    line_sec = interval * 0.02
    for row, work in zip(steps.sort("step").to_dicts(), works, strict=True):
        assert (row["end"] - row["start"]) / 1e6 == pytest.approx(
            work.sec, abs=2 + line_sec * (2 - with_prefill)
        )
        untold = 0.02 * work.tokens + (0 if with_prefill else 64 * interval * 1.1)
        assert row["tokens"] == pytest.approx(work.tokens, abs=untold)


def test_a_line_covers_its_interval_at_its_throughput_in_a_log_of_slow_lines(tmp_path):
    lines = [
        begin(25 * line + 720 * stretch) + decode(16, 640.0) for stretch in range(3) for line in range(1, 25)
    ]
    run = opened(tmp_path, lines)
    sizes = run.digest.requests.group_by("step").len().sort("step")["len"].to_list()
    assert sizes == [16, 16, 16]
    assert run.digest.requests["response_tokens"].sum() == 16 * 1000 * (23 + 24 + 24)
    assert run.digest.requests["duration_sec"].max() == pytest.approx(600, abs=1)


def test_the_interval_of_the_settings_counts_where_lines_are_too_few_to_tell(tmp_path):
    lines = [
        begin(0) + "server_args=ServerArgs(model_path='m', decode_log_interval=200, tp_size=1)",
        begin(1) + prefill(new=2),
        begin(11) + decode(2, 3.5),
    ]
    run = opened(tmp_path, lines)
    assert run.digest.requests["response_tokens"].to_list() == [200, 200]
    assert run.digest.requests["duration_sec"].to_list() == pytest.approx([10, 10], abs=0.6)


def test_prefill_alone_has_steps_and_times(tmp_path):
    lines = [begin(2 * number + pause) + prefill() for pause in (0, 200) for number in range(40)]
    run = opened(tmp_path, lines)
    assert run.steps == [0, 1]
    spans = (
        run.executor.log.rows.drop_nulls("duration_sec").group_by("step").agg(pl.col("duration_sec").sum())
    )
    assert spans["duration_sec"].to_list() == [78, 78]
    assert len(run.digest.requests) == 0


def test_servers_are_told_apart_by_what_the_launcher_says_of_them(tmp_path):
    for number, (prefix, other) in enumerate(
        [
            ("(SGLangEngine pid=1234, ip=10.0.0.1) ", "(SGLangEngine pid=1234, ip=10.0.0.2) "),
            ("(SGLangEngine pid=1234) ", "(SGLangEngine pid=1235) "),
            ("[pod/rollout-0/sglang] ", "[pod/rollout-1/sglang] "),
            ("sglang-1  | ", "sglang-2  | "),
            ("0: ", "1: "),
        ]
    ):
        pairs = zip(
            steady(prefix=prefix + "[2026-01-05 {clock} TP0] "),
            steady(prefix=other + "[2026-01-05 {clock} TP0] ", running=8, rate=320.0),
            strict=True,
        )
        run = opened(tmp_path, [line for pair in pairs for line in pair], f"driver_{number}.log")
        assert shape(run) == (1, 2, 12, 1760 + 3520, 11)


def test_numbers_of_lines_are_no_servers(tmp_path):
    lines = [f"{number:06d}: {line}" for number, line in enumerate(steady())]
    assert shape(opened(tmp_path, lines)) == (1, 1, 4, 1760, 11)


def test_ranks_of_data_parallelism_are_workers_and_stages_of_a_pipeline_are_not(tmp_path):
    lines = [begin(sec, f" DP{rank} TP{rank} EP{rank}") + decode() for sec in range(12) for rank in range(11)]
    run = opened(tmp_path, lines)
    assert shape(run) == (1, 11, 44, 1760 * 11, 11)
    lines = [begin(sec, f" PP{stage} TP0") + decode() for sec in range(12) for stage in range(2)]
    run = opened(tmp_path, lines, "stages.log")
    assert shape(run) == (1, 1, 4, 1760, 11)
    assert len(run.executor.log.rows.filter(event="scheduler_batch")) == 24


def test_speculation_counts_its_tokens(tmp_path):
    lines = [begin(sec) + decode(4, 400.0, "accept len: 2.50, accept rate: 0.40, ") for sec in range(12)]
    run = opened(tmp_path, lines)
    assert run.digest.requests["response_tokens"].sum() == pytest.approx(4400, rel=0.01)


def test_every_pair_of_a_line_is_a_field_known_or_not(tmp_path):
    line = "Decode batch, #running-req: 2, swa usage: 0.06, #brand-new thing: 17, gen throughput (token/s): 9"
    run = opened(tmp_path, [begin(sec) + line for sec in range(5)])
    rows = run.executor.log.rows
    assert rows["brand_new_thing"].drop_nulls().to_list() == [17.0] * 5
    assert rows["swa_usage"].drop_nulls().to_list() == [0.06] * 5


def test_a_clock_that_was_set_back_goes_on_and_this_is_said(tmp_path):
    lines = [begin(3600 + sec) + decode() for sec in range(20)] + [
        begin(sec) + decode() for sec in range(21, 40)
    ]
    run = opened(tmp_path, lines)
    assert shape(run)[:3] == (1, 1, 4)
    assert any("clock was set back" in phrase for phrase in run.health.cannot_show)
    late = [*steady(20), begin(3) + decode()]  # one line that was printed late is no clock
    assert not any("clock" in phrase for phrase in opened(tmp_path, late, "late.log").health.cannot_show)


def test_lines_that_ray_left_out_are_counted_and_no_pause(tmp_path):
    more = " [repeated 9x across cluster] (Ray deduplicates logs by default.)"
    lines = [
        f"(SGLangEngine pid=1) {begin(6 * number)}{decode()}{more if number else ''}" for number in range(10)
    ]
    run = opened(tmp_path, lines)
    assert shape(run) == (1, 1, 4, pytest.approx(160 * 54, rel=0.05), 54)
    assert any("81 lines that Ray left out" in phrase for phrase in run.health.cannot_show)


def test_a_driver_s_log_may_begin_with_its_config_and_come_late(tmp_path):
    ray = "(SGLangHttpServer pid=9) [2026-01-05 {clock} TP0] "
    config = ["{'actor_rollout_ref': {'actor': {'strategy': 'fsdp'}},", " 'trainer': {}}"]
    assert shape(opened(tmp_path, config + steady(prefix=ray))) == (1, 1, 4, 1760, 11)
    loading = [f"(TaskRunner pid=1) loading {'x' * 160}" for _ in range(500)]
    assert shape(opened(tmp_path, loading + steady(prefix=ray), "late.log")) == (1, 1, 4, 1760, 11)


def test_lines_that_are_not_understood_are_counted_and_one_is_shown(tmp_path, capsys):
    path = tmp_path / "server.log"
    path.write_text("".join(f"\x1b]52;c;aGk=\x07 odd Decode batch {number}\n" for number in range(12)))
    assert main(["summary", str(path)]) == 2
    said = capsys.readouterr().err
    assert '12 lines "Decode batch" that were not understood' in said
    assert "\\x1b]52" in said
    assert "\x1b" not in said
    path.write_text("\n".join([*steady(), "[yesterday] " + decode()]) + "\n")
    run = open_run(path)
    assert shape(run) == (1, 1, 4, 1760, 11)
    assert run.health.foreign == 1
    assert any("yesterday" in phrase for phrase in run.health.cannot_show)


def fallen(retracted):
    """Lines of a decoder that falls from 429 to 30 tokens a second."""
    now, lines = 0.0, [begin(0) + prefill(new=4)]
    for _ in range(200):
        now += 40 * 4 / 429
        lines.append(begin(now) + decode(4, 429.0))
    if retracted:
        text = "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.5 -> 0.8"
        lines.append(begin(now) + text)
    for _ in range(30):
        now += 40 * 3 / 30
        lines.append(begin(now) + decode(3, 30.0))
    return lines


def test_a_decoder_that_is_slow_after_a_retraction_is_named(tmp_path):
    verdict = judge(opened(tmp_path, fallen(retracted=True)))
    assert [finding.cause for finding in verdict.findings] == ["retraction"]
    assert "429 tokens/s until its cache was full at 08:01:14, and 30 tokens/s after it" in verdict.sentence
    assert "--max-running-requests" in verdict.advice
    assert not judge(opened(tmp_path, fallen(retracted=False), "calm.log")).findings


def test_requests_that_the_server_logs_are_the_requests_and_no_text_is_kept(tmp_path):
    lines = [begin(0) + prefill(), *(begin(sec) + decode() for sec in range(1, 31))]
    for number in range(10):
        meta = (
            f"'meta_info': {{'id': 'r{number}', 'finish_reason': {{'type': 'length', 'length': 300}}, "
            "'prompt_tokens': 64, 'completion_tokens': 300, 'cached_tokens': 12, 'e2e_latency': 7.25}}"
        )
        forged = "\"secret 'meta_info': {'id': 'forged', 'completion_tokens': 9}\""
        lines.append(
            f"{begin(10 + number, '')}Finish: obj=GenerateReqInput(text='x'), out={{'text': {forged}, {meta}"
        )
    run = opened(tmp_path, lines)
    requests = run.digest.requests
    assert requests["request_id"].sort().to_list() == [f"r{number}" for number in range(10)]
    assert set(requests["response_tokens"]) == {300}
    assert set(requests["finish_reason"]) == {"length"}
    assert requests["duration_sec"].to_list() == pytest.approx([7.25] * 10)
    assert "secret" not in str(run.executor.log.rows.to_dicts())
    assert not any("slot" in phrase for phrase in run.health.cannot_show)


def test_a_log_may_be_compressed_with_gzip(tmp_path):
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in steady()).encode()))
    assert shape(open_run(tmp_path)) == (1, 1, 4, 1760, 11)
    path.write_bytes(path.read_bytes()[:-4])
    run = open_run(tmp_path)
    assert shape(run) == (1, 1, 4, 1760, 11)
    assert "server.log.gz" in run.health.unreadable
