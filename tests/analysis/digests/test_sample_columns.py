"""The digest keeps versions of weights, groups, and which samples a trainer took or threw away."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hand_written import record, step_of, write_file
from hand_written import request as request_record

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.digests.digest import SCHEMAS, Digest
from sglang_instrument.analysis.digests.earlier_digest import load_digest

TASK = {"task": 1, "spawned_by": 0}


def call(name: str, turn: int, start: float, end: float, **extra: Any) -> dict[str, Any]:
    fields = {"request_id": name, "turn": turn, **extra}
    return record("turn_engine_call", start, end, extra=fields, task=1 + sum(map(ord, name)))


def instant(event: str, second: float, **extra: Any) -> dict[str, Any]:
    line = record(event, second, second, extra=extra, task=0)
    del line["duration_sec"], line["start_us"]
    return line


def digest_of(folder: Path, *records: dict[str, Any]) -> Digest:
    write_file(folder, 1, 0, step_of(*records))
    return open_run(folder).digest


def versions(digest: Digest) -> list[tuple[Any, ...]]:
    return digest.requests.select("request_id", "first_weight_version", "weight_version").rows()


def test_a_request_has_the_versions_that_it_logs(tmp_path: Path) -> None:
    digest = digest_of(tmp_path, request_record("a", 0, 4, first_weight_version=3, weight_version="5"))
    assert versions(digest) == [("a", 3, 5)]


def test_a_request_that_logs_none_has_those_of_its_calls(tmp_path: Path) -> None:
    calls = [call("a", 0, 0, 1, weight_version="3"), call("a", 1, 2, 3, weight_version="4")]
    digest = digest_of(tmp_path, request_record("a", 0, 4), *calls)
    assert versions(digest) == [("a", 3, 4)]
    assert digest.turns["weight_version"].to_list() == [3, 4]


def test_a_call_that_logs_its_begin_wins_over_its_end(tmp_path: Path) -> None:
    digest = digest_of(
        tmp_path,
        request_record("a", 0, 4),
        call("a", 0, 0, 3, first_weight_version=1, weight_version=4),
    )
    assert versions(digest) == [("a", 1, 4)]


@pytest.mark.parametrize("label", ["default", "v3", "", 1.5, True, [3], None, "9" * 40, "٣"])
def test_a_label_that_is_no_number_is_null(tmp_path: Path, label: Any) -> None:
    digest = digest_of(tmp_path, request_record("a", 0, 4, weight_version=label, response_length=7))
    assert versions(digest) == [("a", None, None)]
    assert digest.requests["response_tokens"].to_list() == [7]


@pytest.mark.parametrize("fields", [{"group": "g1"}, {"group_index": 7}, {"group": 7, "group_index": 8}])
def test_a_group_is_text(tmp_path: Path, fields: dict[str, Any]) -> None:
    digest = digest_of(tmp_path, request_record("a", 0, 4, **fields))
    assert digest.requests["group"].to_list() == [str(fields.get("group", fields.get("group_index")))]


def test_a_request_without_a_group_has_that_of_the_span_around_it(tmp_path: Path) -> None:
    around = record("request_group", 0, 5, extra={"group": "g1"}, task=5)
    inner = record("async_rollout_request_complete", 1, 4, extra={"request_id": "a"}, task=5)
    assert digest_of(tmp_path, around, inner).requests["group"].to_list() == ["g1"]


def test_samples_that_are_taken_and_dropped_are_rows(tmp_path: Path) -> None:
    digest = digest_of(
        tmp_path,
        request_record("a", 0, 4),
        instant("samples_consumed", 5, samples=["a", 2], weight_version="7", max_staleness=2),
        instant("samples_dropped", 6, groups=["g1"], count=8, tokens=900, reason="stale"),
    )
    rows = digest.samples.drop("source", "role", "worker", "validate", "at_us").rows()
    assert rows == [
        (1, "samples_consumed", "a", None, 7, 2, None, None, None),
        (1, "samples_consumed", "2", None, 7, 2, None, None, None),
        (1, "samples_dropped", None, "g1", None, None, "stale", 900, 8),
    ]


def test_filtered_groups_and_collected_ones_are_rows_too(tmp_path: Path) -> None:
    digest = digest_of(
        tmp_path,
        record("group_filter", 1, 2, extra={"group_index": 4, "kept": False, "reason": "zero_std_1"}, task=0),
        record("group_filter", 2, 3, extra={"group_index": 5, "kept": True}, task=0),
        record("groups_collect", 3, 4, extra={"groups": 2, "group_index": [5, 6]}, task=0),
    )
    assert digest.samples.select("event", "group", "reason").rows() == [
        ("samples_dropped", "4", "filtered"),
        ("samples_consumed", "5", None),
        ("samples_consumed", "6", None),
    ]


@pytest.mark.parametrize(
    "fields", [{}, {"samples": 3}, {"samples": [None, {}, ["x"], "\ud800"]}, {"groups": "g"}]
)
def test_odd_lists_of_samples_never_raise(tmp_path: Path, fields: dict[str, Any]) -> None:
    digest = digest_of(tmp_path, instant("samples_consumed", 5, **fields), request_record("a", 0, 4))
    assert digest.samples["event"].to_list() == ["samples_consumed"]
    assert digest.requests["request_id"].to_list() == ["a"]


def test_records_in_memory_have_the_same_columns(tmp_path: Path) -> None:
    write_file(tmp_path, 1, 0, step_of(request_record("a", 0, 4, weight_version=3, group="g")))
    records = open_run(tmp_path).records
    assert records.filter(pl.col("group") == "g")["weight_version"].to_list() == [3]


def test_a_kept_digest_of_the_layout_before_has_null_and_empty_for_what_it_lacks(tmp_path: Path) -> None:
    digest = digest_of(tmp_path / "run", request_record("a", 0, 4, weight_version=3))
    home = tmp_path / "kept"
    home.mkdir()
    manifest = {"version": "log 1, layout 11", "token": "0", "files": []}
    (home / "digest.json").write_text(json.dumps(manifest))
    for name, table in digest.tables().items():
        if name != "samples":
            table.drop("weight_version", "sample", strict=False).write_parquet(home / f"{name}-0.parquet")

    _, loaded = load_digest(home)
    assert {name: dict(table.schema) for name, table in loaded.tables().items()} == SCHEMAS
    assert versions(loaded) == [("a", None, None)]
    assert loaded.steps.equals(digest.steps)
