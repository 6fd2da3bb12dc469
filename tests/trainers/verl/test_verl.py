"""verl's real rollout on the real engine logs the right records, and its results do not change."""

import json
from statistics import fmean, median

import expected
import polars as pl
import pytest

from sglang_instrument import schema
from sglang_instrument.analysis.ledger.ledger import worker_ledger
from sglang_instrument.analysis.run.opening import Run

TOOLS, RAISES, SINGLE, ABORTS, LOG_PROBS, CANCELLED = 1, 3, 4, 5, 6, 77  # the steps that drive.py runs
ROUNDING_US = 2
CLOCK_SEC = 1e-3  # the clocks of a virtual machine's cores may differ
PROCESSES_US = 1e4  # each process has read the wall clock by itself, once


def of_step(outcome, step, kind="step", worker=0):
    return outcome.logs[f"{kind}_{step}/worker_{worker}.jsonl"]


def named(records, event):
    return [record for record in records if record["event"] == event]


def end_us(record):
    return record["start_us"] + record.get("duration_sec", 0) * 1e6


def around(child, parents):
    """Return the records of `parents` that contain `child`, of the same request."""
    request = child.get("extra", {}).get("request_id")
    return [
        parent
        for parent in parents
        if parent["start_us"] <= child["start_us"] + ROUNDING_US
        and end_us(child) <= end_us(parent) + ROUNDING_US
        and parent.get("extra", {}).get("request_id") in (None, request)
    ]


def test_the_vocabulary_names_what_the_reference_logs():
    assert expected.REFERENCE.keys() | {"engine_async_generate", "barrier"} == schema.REFERENCE_EVENTS


def test_every_event_of_the_reference_is_logged_and_no_other(outcome):
    logged = {record["event"] for record in of_step(outcome, TOOLS)}
    assert logged - expected.LOOP_EVENTS == expected.events(outcome.version) | expected.ENGINE_EVENTS


def test_events_have_the_fields_of_the_reference_and_the_listed_others(outcome):
    for record in of_step(outcome, TOOLS):
        if record["event"] in expected.REFERENCE:
            wanted = expected.fields(record["event"], outcome.version)
            assert (record["event"], set(record.get("extra", ()))) == (record["event"], wanted)


def test_instant_events_have_no_duration_and_all_others_have_one(outcome):
    for record in of_step(outcome, TOOLS):
        assert ("duration_sec" in record) is not schema.kind_of(record["event"]).instant, record


def test_turn_timings_are_the_reference_s(outcome):
    for request in named(of_step(outcome, TOOLS), "async_rollout_request_complete"):
        extra = request["extra"]
        assert [list(turn) for turn in extra["turn_timings"]] == [expected.TURN_TIMING] * extra["turns"]
        assert [turn["turn"] for turn in extra["turn_timings"]] == list(range(extra["turns"]))
        for turn in extra["turn_timings"]:
            parts = ("pre_process_duration", "engine_call_duration", "post_process_duration")
            assert sum(turn[part] for part in parts) <= turn["total_duration"] + CLOCK_SEC


def test_a_request_s_averages_and_shares_are_those_of_its_turns(outcome):
    for request in named(of_step(outcome, TOOLS), "async_rollout_request_complete"):
        extra, turns = request["extra"], request["extra"]["turn_timings"]
        engine = [turn["engine_call_duration"] for turn in turns]
        post = [turn["post_process_duration"] for turn in turns]
        shares = {
            "engine_time_pct": sum(engine) / request["duration_sec"] * 100,
            "post_process_time_pct": sum(post) / request["duration_sec"] * 100,
        }
        seconds = {
            "avg_turn_duration": fmean(turn["total_duration"] for turn in turns),
            "avg_engine_call_duration": fmean(engine),
            "avg_post_process_duration": fmean(post),
            "total_engine_time": sum(engine),
            "total_post_process_time": sum(post),
        }
        assert {name: extra[name] for name in seconds} == pytest.approx(seconds, abs=1e-6)
        assert {name: extra[name] for name in shares} == pytest.approx(shares, abs=0.01)
        assert extra["turns_with_tools"] == sum(turn["has_tool_calls"] for turn in turns)
        assert extra["finish_reason"] == turns[-1]["finish_reason"]


def test_a_turn_s_parts_are_the_spans_inside_it(outcome):
    records = of_step(outcome, TOOLS)
    parts = {
        "pre_process_duration": "turn_pre_process",
        "engine_call_duration": "turn_engine_call",
        "post_process_duration": "turn_post_process",
        "tool_parsing_duration": "turn_tool_parsing",
    }
    for turn in named(records, "turn_end"):
        extra = turn["extra"]
        ids = {"request_id": extra["request_id"], "turn": extra["turn"]}
        for field, event in parts.items():
            mine = [part for part in named(records, event) if ids.items() <= part["extra"].items()]
            assert extra[field] == pytest.approx(sum(part["duration_sec"] for part in mine), abs=1e-6)
        for share, field in (("engine_call_pct", "engine_call"), ("post_process_pct", "post_process")):
            of_turn = extra[f"{field}_duration"] / turn["duration_sec"] * 100
            assert extra[share] == pytest.approx(of_turn, abs=0.01)
        assert extra["has_tool_calls"] is (extra["tool_parsing_duration"] > 0)


def test_a_step_s_lengths_are_summed_up_as_the_reference_does(outcome):
    [record] = named(of_step(outcome, TOOLS), "step_response_length_stats")
    extra, lengths = record["extra"], sorted(record["extra"]["response_lengths"])
    assert extra["response_length_mean"] == pytest.approx(fmean(lengths), abs=0.01)
    assert extra["response_length_median"] == median(lengths)
    assert (extra["response_length_min"], extra["response_length_max"]) == (lengths[0], lengths[-1])
    assert lengths[-2] <= extra["response_length_p80"] <= extra["response_length_p95"] <= lengths[-1]
    assert (extra["requests_over_500"], extra["requests_over_1000"], extra["batch_size"]) == (0, 0, 4)


def test_each_request_and_turn_is_there_once(outcome):
    records = of_step(outcome, TOOLS)
    requests = named(records, "async_rollout_request_complete")
    assert len(requests) == len({request["extra"]["request_id"] for request in requests}) == 4
    turns = sorted((request["extra"]["batch_data_id"], request["extra"]["turns"]) for request in requests)
    corrected = 3 if outcome.ranks[0]["interactions"] else 2
    assert turns == [(0, 2), (1, 3), (2, 1), (3, corrected)]
    ends = [(end["extra"]["request_id"], end["extra"]["turn"]) for end in named(records, "turn_end")]
    assert len(ends) == len(set(ends)) == sum(count for _, count in turns)
    called = [tuple(call["extra"]["tools"]) for call in named(records, "tool_execution")]
    assert called == [("calc_gsm8k_reward",)] * 4


def test_a_request_says_its_reward_and_its_lengths(outcome):
    [output] = [outcome.ranks[0]["instrumented"]["steps"][0]]
    for request in named(of_step(outcome, TOOLS), "async_rollout_request_complete"):
        extra = request["extra"]
        assert extra["reward_scores"] == output["rewards"][extra["batch_data_id"]]
        assert extra["reward"] == extra["reward_scores"]["calc_gsm8k_reward"]
    [lengths] = named(of_step(outcome, TOOLS), "step_response_length_stats")
    by_request = {
        request["extra"]["batch_data_id"]: request["extra"]
        for request in named(of_step(outcome, TOOLS), "async_rollout_request_complete")
    }
    assert lengths["extra"]["response_lengths"] == [by_request[n]["response_length"] for n in range(4)]
    assert lengths["extra"]["actual_response_tokens"] == [
        by_request[n]["actual_response_tokens"] for n in range(4)
    ]


def test_tools_and_interactions_of_any_class_are_timed(outcome):
    records = of_step(outcome, TOOLS)
    assert all(record["duration_sec"] > 0.015 for record in named(records, "tool_execution"))
    for record in named(records, "interaction_response"):
        assert record["duration_sec"] > 0.007
        assert record["extra"]["reward"] == float(record["extra"]["terminated"])


def test_tools_and_interactions_belong_to_the_turn_whose_reply_they_answer(outcome):
    records = of_step(outcome, TOOLS)
    turns = {
        (turn_end["extra"]["request_id"], turn_end["extra"]["turn"]): turn_end
        for turn_end in named(records, "turn_end")
    }
    for record in [*named(records, "tool_execution"), *named(records, "interaction_response")]:
        request, turn = record["extra"]["request_id"], record["extra"]["turn"]
        asked, following = turns[request, turn], turns.get((request, turn + 1))
        assert asked["extra"]["has_tool_calls"] is (record["event"] == "tool_execution")
        assert end_us(asked) <= record["start_us"] + ROUNDING_US
        assert following is None or end_us(record) <= following["start_us"] + ROUNDING_US


def test_children_lie_within_their_parents(outcome):
    for records in outcome.logs.values():
        for child in records:
            parents = named(records, expected.WITHIN.get(child["event"]))
            if parents:
                assert len(around(child, parents)) == 1, child


def test_the_parts_of_a_step_add_up_to_it(outcome):
    run = Run.open(outcome.folder / "run")
    unaccounted = []
    for step, validate in ((1, False), (2, False), (2, True)):
        kind = "validate" if validate else "step"
        [whole] = named(of_step(outcome, step, kind), "total_step_duration")
        rows = worker_ledger(run.digest).filter(step=step, validate=validate, worker=0)
        rows = rows.filter(pl.col("part") != "between steps")
        assert rows["sec"].sum() == pytest.approx(whole["duration_sec"], rel=0.02)
        unaccounted.append(rows.filter(part="unaccounted")["sec"].sum() / whole["duration_sec"])
    # A busy machine may stop a process between two spans of one step.
    assert median(unaccounted) < 0.1


def test_a_module_named_as_external_lib_switches_it_on(outcome):
    sites = [site for site in outcome.ranks[0]["patches"] if site["table"] == "verl/rollout"]
    assert sum(site["state"] == "found" for site in sites) >= 36
    assert f"verl {outcome.ranks[0]['version']}" in (outcome.folder / "output_0.txt").read_text()


def test_steps_and_validations_have_their_folders(outcome):
    steps = {f"step_{step}" for step in (1, 2, RAISES, SINGLE, CANCELLED)}
    if outcome.version >= (0, 6, 0):
        steps |= {f"step_{ABORTS}", f"step_{LOG_PROBS}"}
    assert {path.split("/")[0] for path in outcome.logs} == steps | {"validate_2"}
    assert all(record["validate"] for record in of_step(outcome, 2, "validate"))
    for path in (outcome.folder / "run").rglob("worker_0.jsonl"):
        events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
        assert (events[0], events.count("step_closed")) == ("log_opened", 1)


def alike(value):
    """Return what equals a result but for the last bits of log-probabilities, which vary with batches."""
    if isinstance(value, dict):
        return {key: alike(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [alike(inner) for inner in value]
    return pytest.approx(value, abs=1e-5) if isinstance(value, float) and not value.is_integer() else value


def test_results_are_those_without_instrumentation_token_for_token(outcome):
    [rank] = outcome.ranks
    assert rank["instrumented"] == alike(rank["without"])
    assert all(step["rewards"] for step in rank["without"]["steps"])


def test_uninstall_leaves_every_function_and_name_as_it_was(outcome):
    [rank] = outcome.ranks
    assert rank["restored"]
    assert rank["notices"] == []


def test_a_tool_that_raises_ends_its_spans_and_tells_the_trainer_as_before(outcome):
    assert outcome.ranks[0]["instrumented"]["raises"].startswith("ToolError: ")
    failed = {record["event"] for record in of_step(outcome, RAISES) if record.get("error") == "ToolError"}
    assert failed == {
        *("tool_execution", "tool_calling_state", "main_loop", "async_rollout_request_complete"),
        *("async_generate_duration", "total_step_duration"),
    }


def test_no_text_is_logged(outcome):
    for path in (outcome.folder / "run").rglob("*.json*"):
        text = path.read_text()
        for said in ("a text that no log may hold", "Add 2 and 3", "####", "Current parsed", "incorrect"):
            assert said not in text, (path, said)


def test_a_cancelled_request_says_so_in_every_span_that_was_open(outcome):
    assert outcome.ranks[0]["instrumented"]["cancelled"] == "CancelledError"
    records = of_step(outcome, CANCELLED)
    cancelled = {record["event"] for record in records if record.get("error") == "CancelledError"}
    assert cancelled == {
        *("tool_execution", "tool_calling_state", "main_loop", "async_rollout_request_complete")
    }
    [request] = named(records, "async_rollout_request_complete")
    assert len(request["extra"]["turn_timings"]) == 1


def test_a_single_turn_batch_is_one_call_of_the_engine(outcome):
    logged = {record["event"] for record in of_step(outcome, SINGLE)}
    assert logged - expected.LOOP_EVENTS == expected.SINGLE_TURN_EVENTS


def test_requests_aborted_by_over_sampling_are_marked_and_their_padding_is_not_counted(outcome):
    if outcome.version < (0, 6, 0):
        pytest.skip("over-sampling began with verl 0.6.0")
    records = of_step(outcome, ABORTS)
    requests = named(records, "async_rollout_request_complete")
    assert sorted(request.get("error", "") for request in requests) == ["", "", *["CancelledError"] * 2]
    [generated] = named(records, "async_generate_duration")
    assert generated["extra"] == {"aborted_requests": 2}
    [lengths] = named(records, "step_response_length_stats")
    done = sorted(request["extra"]["response_length"] for request in requests if "error" not in request)
    assert sorted(lengths["extra"]["response_lengths"]) == done
    assert lengths["extra"]["batch_size"] == 4


def test_the_pass_that_asks_for_log_probs_is_an_event_of_its_own(outcome):
    if outcome.version < (0, 6, 0):
        pytest.skip("the pass began with verl 0.6.0")
    records = of_step(outcome, LOG_PROBS)
    [asked] = named(records, "log_prob_calculation")
    assert asked["phase"] == "generate"
    [finalized] = named(records, "finalization")
    assert asked["start_us"] >= end_us(finalized) - ROUNDING_US
    assert "error" not in asked


def test_ranks_that_share_the_data_write_a_file_each(data_parallel):
    for worker, rank in enumerate(data_parallel.ranks):
        assert rank["instrumented"] == alike(rank["without"])
        assert rank["restored"]
        requests = named(of_step(data_parallel, 1, worker=worker), "async_rollout_request_complete")
        assert len(requests) == 2
        assert {request["workid"] for request in requests} == {worker}
    waits = [named(of_step(data_parallel, 1, worker=worker), "barrier_wait_duration")[0] for worker in (0, 1)]
    # No rank leaves the barrier before the other has come.
    assert max(wait["start_us"] for wait in waits) <= min(map(end_us, waits)) + PROCESSES_US


def test_of_ranks_that_share_an_engine_the_first_writes(tensor_parallel):
    assert {path.split("/")[1] for path in tensor_parallel.logs} == {"worker_0.jsonl"}
    for rank in tensor_parallel.ranks:
        assert rank["instrumented"] == alike(rank["without"])
        assert rank["restored"]
        assert rank["notices"] == []


def test_the_wait_of_the_other_ranks_is_written_when_it_is_asked_for(tensor_parallel):
    logs = tensor_parallel.records_of("all_ranks")
    first, second = (logs[f"step_1/worker_{worker}.jsonl"] for worker in (0, 1))
    [wait] = named(second, "barrier_wait_duration")
    [generated] = named(first, "async_generate_duration")
    assert end_us(wait) >= end_us(generated) - PROCESSES_US  # however late the second one came
    assert named(second, "async_rollout_request_complete") == []
    assert {record["workid"] for record in second} == {1}
