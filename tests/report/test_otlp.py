"""Lines of OTLP JSON, parsed with OpenTelemetry's own classes, hold a log's requests, turns and tools."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import foreign_runs
import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from sglang_instrument.analysis import open_run
from sglang_instrument.cli.main import main
from sglang_instrument.report.otlp import export as otlp_export
from sglang_instrument.report.otlp.ids import parent_of
from sglang_instrument.testing import Hang, RunShape, synthetic_run

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"
IDS = ("traceId", "spanId", "parentSpanId")


def spans_in(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the spans of a file, checked by the classes of opentelemetry-proto, with their resource."""
    for line in path.read_bytes().splitlines():
        request = json.loads(line)
        for group in request["resourceSpans"]:
            resource = attributes(group["resource"])
            for scope in group["scopeSpans"]:
                for span in scope["spans"]:
                    yield span | {"resource": resource, "values": attributes(span)}
        as_protobuf(request)


def as_protobuf(request: dict[str, Any]) -> ExportTraceServiceRequest:
    """Parse a line as a receiver does: its ids are hexadecimal, those of protobuf's own JSON base64."""
    for group in request["resourceSpans"]:
        for scope in group["scopeSpans"]:
            for span in scope["spans"]:
                for name in set(IDS) & set(span):
                    span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    return ParseDict(request, ExportTraceServiceRequest())


def attributes(holder: dict[str, Any]) -> dict[str, Any]:
    return {attribute["key"]: plain(attribute["value"]) for attribute in holder.get("attributes", ())}


def plain(value: dict[str, Any]) -> Any:
    ((kind, content),) = value.items()
    if kind == "arrayValue":
        return [plain(each) for each in content["values"]]
    return int(content) if kind == "intValue" else content


def named(spans: list[dict[str, Any]], operation: str) -> list[dict[str, Any]]:
    return [span for span in spans if span["values"]["gen_ai.operation.name"] == operation]


def exported(logs: Path, target: Path, *more: str) -> list[dict[str, Any]]:
    assert main(["export", str(logs), "--otlp", str(target), *more]) == 0
    return list(spans_in(target))


def rewritten(logs: Path, change: Any) -> None:
    """Pass each record of a log through a function."""
    for path in logs.glob("*/*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            change(line)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs") / "exp"
    return synthetic_run(folder, steps=3, workers=2, requests=6, validate_every=2, clock_skew={1: 100.0})


@pytest.fixture(scope="module")
def spans(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return exported(logs, tmp_path_factory.mktemp("out") / "run.jsonl")


def test_every_request_is_an_agent_with_its_numbers(logs: Path, spans: list[dict[str, Any]]) -> None:
    agents = {
        (agent["values"]["sglang_instrument.validate"], agent["values"]["gen_ai.conversation.id"]): agent
        for agent in named(spans, "invoke_agent")
    }
    requests = list(open_run(logs).digest.requests.iter_rows(named=True))
    assert len(agents) == len(requests) == 36
    for row in requests:
        span = agents[row["validate"], row["request_id"]]
        values = span["values"]
        assert values["sglang_instrument.step"] == row["step"]
        assert values["sglang_instrument.worker"] == row["worker"]
        assert values["sglang_instrument.turns"] == row["turns"]
        assert values["gen_ai.usage.output_tokens"] == row["response_tokens"]
        assert values["gen_ai.response.finish_reasons"] == [row["finish_reason"]]
        assert span["resource"]["service.instance.id"] == f"worker_{row['worker']}"
        assert span["resource"]["service.name"] == "exp"
        lasted = int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])
        assert lasted == (row["end_us"] - row["start_us"]) * 1000
        (event,) = span["events"]
        assert event["name"] == "gen_ai.evaluation.result"
        assert attributes(event) == {
            "gen_ai.evaluation.name": "reward",
            "gen_ai.evaluation.score.value": row["reward"],
        }
        assert int(span["startTimeUnixNano"]) <= int(event["timeUnixNano"]) <= int(span["endTimeUnixNano"])


def test_turns_and_tools_lie_below_their_request(logs: Path, spans: list[dict[str, Any]]) -> None:
    agents = {agent["spanId"]: agent for agent in named(spans, "invoke_agent")}
    calls, tools = named(spans, "chat"), named(spans, "execute_tool")
    digest = open_run(logs).digest
    assert len(calls) == digest.requests["turns"].sum()
    assert sum(call["values"]["gen_ai.usage.output_tokens"] for call in calls) == int(
        digest.requests["response_tokens"].sum()
    )
    assert len(tools) > 10
    for span in (*calls, *tools):
        agent = agents[span["parentSpanId"]]
        assert span["traceId"] == agent["traceId"]
        assert span["values"]["gen_ai.conversation.id"] == agent["values"]["gen_ai.conversation.id"]
        assert int(agent["startTimeUnixNano"]) <= int(span["startTimeUnixNano"])
        assert int(span["endTimeUnixNano"]) <= int(agent["endTimeUnixNano"])
    assert {tool["values"]["gen_ai.tool.name"] for tool in tools} == {
        tool["name"].split()[-1] for tool in tools
    }
    assert {call["kind"] for call in calls} == {3}  # CLIENT
    assert {tool["kind"] for tool in tools} == {1}  # INTERNAL


def test_ids_are_unique_and_the_same_in_each_export(
    logs: Path, spans: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert len({span["spanId"] for span in spans}) == len(spans)
    assert {len(span["traceId"]) for span in spans} == {32}
    assert {len(span["spanId"]) for span in spans} == {16}
    assert exported(logs, tmp_path / "again.jsonl") == spans
    one_step = exported(logs, tmp_path / "step.jsonl", "--step", "2")
    assert one_step == [
        span
        for span in spans
        if any(
            agent["traceId"] == span["traceId"] and agent["values"]["sglang_instrument.step"] == 2
            for agent in named(spans, "invoke_agent")
        )
    ]


def test_logs_of_other_projects_share_no_ids(tmp_path: Path) -> None:
    run = foreign_runs.planted(shape=RunShape(steps=2, workers=2, requests=6), causes=[])
    first, other = (foreign_runs.slime_traces(tmp_path / name, run) for name in ("first", "other"))
    spans, again, of_other = (
        exported(log, tmp_path / f"{number}.jsonl") for number, log in enumerate((first, first, other))
    )
    assert again == spans
    assert len(of_other) == len(spans)
    assert {span["traceId"] for span in of_other}.isdisjoint({span["traceId"] for span in spans})


def test_validation_can_be_chosen(tmp_path: Path) -> None:
    logs = synthetic_run(tmp_path / "exp", steps=2, workers=1, requests=3)
    (logs / "step_2").rename(logs / "validate_2")
    rewritten(logs, lambda line: line.update(validate=True) if line["step"] == 2 else None)
    both = named(exported(logs, tmp_path / "all.jsonl"), "invoke_agent")
    assert [agent["values"]["sglang_instrument.validate"] for agent in both] == [False] * 3 + [True] * 3
    chosen = exported(logs, tmp_path / "validate.jsonl", "--validate")
    assert named(chosen, "invoke_agent") == both[3:]


def test_clocks_of_workers_are_aligned(spans: list[dict[str, Any]]) -> None:
    begun: dict[int, int] = {}
    for agent in named(spans, "invoke_agent"):
        if agent["values"]["sglang_instrument.step"] == 1:
            worker = agent["values"]["sglang_instrument.worker"]
            begun[worker] = min(begun.get(worker, 2**63), int(agent["startTimeUnixNano"]))
    assert abs(begun[0] - begun[1]) < 5e9  # the clock of worker 1 was 100 s ahead


def test_a_traceparent_puts_a_request_below_the_span_that_it_names(tmp_path: Path, capsys: Any) -> None:
    logs = synthetic_run(tmp_path / "exp", steps=1, workers=1, requests=2)

    def give(line: dict[str, Any]) -> None:
        if line["event"] == "async_rollout_request_complete" and "-0000-" in line["extra"]["request_id"]:
            line["extra"]["traceparent"] = TRACEPARENT

    rewritten(logs, give)
    spans = exported(logs, tmp_path / "run.jsonl")
    assert "1 requests stand below a span of another program" in capsys.readouterr().out
    joined = [span for span in spans if span["traceId"] == TRACE]
    (agent,) = named(joined, "invoke_agent")
    assert agent["parentSpanId"] == SPAN
    assert {span["parentSpanId"] for span in joined if span is not agent} == {agent["spanId"]}
    (other,) = (
        agent_of_other
        for agent_of_other in named(spans, "invoke_agent")
        if agent_of_other["traceId"] != TRACE
    )
    assert "parentSpanId" not in other


def test_a_call_that_came_with_a_traceparent_gives_it_to_its_request(tmp_path: Path) -> None:
    logs = synthetic_run(tmp_path / "exp", steps=1, workers=1, requests=1)

    def give(line: dict[str, Any]) -> None:
        if line["event"] == "turn_engine_call":
            more = {"prompt_tokens": 70, "cached_tokens": 60, "traceparent": TRACEPARENT, "rid": "r1"}
            line["extra"].update(more)

    rewritten(logs, give)
    spans = exported(logs, tmp_path / "run.jsonl")
    (agent,) = named(spans, "invoke_agent")
    assert (agent["traceId"], agent["parentSpanId"]) == (TRACE, SPAN)
    calls = named(spans, "chat")
    for call in calls:
        assert call["values"]["gen_ai.usage.input_tokens"] == 70
        assert call["values"]["gen_ai.usage.cache_read.input_tokens"] == 60
        assert call["values"]["gen_ai.response.id"] == "r1"
    assert agent["values"]["gen_ai.usage.input_tokens"] == 70 * len(calls)


@pytest.mark.parametrize(
    "odd",
    [
        None,
        7,
        "",
        "hello",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        TRACEPARENT.upper(),
    ],
)
def test_what_is_no_traceparent_names_no_parent(odd: Any) -> None:
    assert parent_of(odd) is None


def test_what_a_log_does_not_hold_is_left_out_and_not_zero(spans: list[dict[str, Any]]) -> None:
    for span in spans:
        assert "gen_ai.usage.input_tokens" not in span["values"]
        assert "error.type" not in span["values"]


def test_requests_that_never_ended_are_there_and_marked(tmp_path: Path, capsys: Any) -> None:
    logs = synthetic_run(tmp_path / "exp", steps=2, workers=2, requests=4, causes=[Hang(2, 1)])
    spans = exported(logs, tmp_path / "run.jsonl")
    marked = [span for span in spans if span["values"].get("sglang_instrument.unended")]
    assert marked
    assert "unended" in capsys.readouterr().out
    agents = {agent["spanId"] for agent in named(spans, "invoke_agent")}
    assert all(span["parentSpanId"] in agents for span in spans if "parentSpanId" in span)


def test_a_request_that_failed_has_the_type_of_its_error_and_no_text(tmp_path: Path) -> None:
    logs = synthetic_run(tmp_path / "exp", steps=1, workers=1, requests=2)

    def fail(line: dict[str, Any]) -> None:
        if line["event"] in ("async_rollout_request_complete", "turn_engine_call"):
            line["error"] = "TimeoutError"
            line["extra"].update(prompt="a secret", reply="another secret", error_message="a third secret")

    rewritten(logs, fail)
    target = tmp_path / "run.jsonl"
    for span in exported(logs, target):
        if span["values"]["gen_ai.operation.name"] != "execute_tool":
            assert span["values"]["error.type"] == "TimeoutError"
            assert span["status"] == {"code": 2}
    assert b"secret" not in target.read_bytes()


def test_a_file_is_overwritten_only_with_force(logs: Path, tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "run.jsonl"
    target.write_text("mine")
    assert main(["export", str(logs), "--otlp", str(target)]) == 2
    assert f"{target} exists; --force overwrites it" in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert exported(logs, target, "--force")
    assert [path.name for path in tmp_path.iterdir()] == ["run.jsonl"]


def test_lines_are_short_enough_for_a_collector(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = exported(logs, tmp_path / "whole.jsonl")
    monkeypatch.setattr(otlp_export, "_LINE_BYTES", 3000)
    assert exported(logs, tmp_path / "cut.jsonl") == whole
    lines = (tmp_path / "cut.jsonl").read_bytes().splitlines()
    assert max(map(len, lines)) <= 3000


def test_values_of_any_size_and_type_break_nothing(tmp_path: Path) -> None:
    logs = synthetic_run(tmp_path / "exp", steps=1, workers=1, requests=3)

    def spoil(line: dict[str, Any]) -> None:
        if line.get("extra", {}).get("request_id"):
            line["extra"].update(
                prompt_tokens="many", cached_tokens=-1, rid=[1], traceparent={}, agent=7, tool="\ud800\x1b[2J"
            )
            if "start_us" in line:
                line["start_us"] = -5 if line["event"] == "tool_execution" else 2**61

    rewritten(logs, spoil)
    assert named(exported(logs, tmp_path / "run.jsonl"), "invoke_agent")


def test_calls_of_servers_alone_are_written_without_a_request(tmp_path: Path) -> None:
    logs = synthetic_run(tmp_path / "exp", steps=1, workers=1, requests=3, engine_clocks={0: 0.0})
    for path in logs.glob("step_*/*"):
        path.unlink()
    for path in list(logs.glob("step_*")):
        path.rmdir()

    def give(line: dict[str, Any]) -> None:
        if "rid" in line.get("extra", {}):
            line["extra"]["traceparent"] = TRACEPARENT

    rewritten(logs, give)
    spans = exported(logs, tmp_path / "run.jsonl")
    assert spans
    assert {span["name"] for span in spans} == {"chat"}
    assert {(span["traceId"], span["parentSpanId"]) for span in spans} == {(TRACE, SPAN)}
