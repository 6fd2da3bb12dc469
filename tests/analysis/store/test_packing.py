"""What the store leaves out of records comes back to the last digit and character, in polars and in SQL."""

import duckdb
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from sglang_instrument.analysis.dataset.record_files import RecordFile
from sglang_instrument.analysis.dataset.views import make_views
from sglang_instrument.analysis.store.part_records import stored_rows
from sglang_instrument.analysis.store.records import COLUMNS_OF_RECORDS, save_records
from sglang_instrument.safe_files.folder import SafeFolder

#: `request_id` and `turn` as columns, and `extra` as it stands in a log.
EXTRAS = [
    ("r1", 0, '{"request_id":"r1","turn":0}'),
    ("r1", 1, '{"request_id":"r1","turn":1,"tool_calls":2}'),
    ("r1", None, '{"request_id":"r1"}'),
    ("r1", None, '{"request_id":"r1","turn":null}'),
    ("r1", 1, '{"request_id":"r1","turn":1.0}'),
    ("r1", 1, '{"request_id":"r1","turn":12,"turn":1}'),
    ("r1", 1, '{"request_id":"r1", "turn":1}'),
    ("r1", 1, '{"turn":1,"request_id":"r1"}'),
    ("r1", 1, '{"request_id":"r1","turn":1 ,"x":1}'),
    ("r1", 1, '{"request_id":"r1","turn":1, "x":"é,}"}'),
    ("r1", None, '{"request_id":"r1","request_id":"r1"}'),
    ('a"b\\', 0, '{"request_id":"a\\"b\\\\","turn":0}'),
    ("r", None, '{"request_id":"r\\u0031"}'),
    ("7", 0, '{"request_id":7,"turn":0}'),
    ("", 0, '{"request_id":"","turn":0}'),
    (None, None, '{"turn":0}'),
    (None, None, "{}"),
    (None, None, "[1]"),
    (None, None, None),
]


def rows(durations, end_later_us=0):
    """Return records with these durations, of which each lies in the first."""
    table = pl.DataFrame(
        {
            "file": "step_1/worker_0.jsonl",
            "event": "mine",
            "start_us": [1_767_600_117_010_309 + number for number in range(len(durations))],
            "duration_sec": durations,
            "span": range(len(durations)),
            "parent": [None, *[0] * (len(durations) - 1)],
            "concurrent": False,
            "without_nested_sec": [None if sec is None else sec / 3 for sec in durations],
            "steps_sec": durations,
        },
        schema_overrides={"duration_sec": pl.Float64},
    )
    lasts_us = [int((sec or 0.0) * 1e6) + end_later_us for sec in durations]
    table = table.with_columns(end_us=pl.col("start_us") + pl.Series(lasts_us))
    return whole(table)


def whole(table):
    given = table.columns
    return table.select(
        (pl.col(name) if name in given else pl.lit(None).alias(name)).cast(kind)
        for name, kind in COLUMNS_OF_RECORDS.items()
    )


def by_sql(path):
    with duckdb.connect() as connection:
        make_views(connection, path.parent, [RecordFile(path)])
        names = [name for (name, *_) in connection.execute("DESCRIBE spans").fetchall()]
        names = [name for name in names if name != "timestamp"]
        answer = connection.execute(f"SELECT {', '.join(names)} FROM spans").fetchall()
    schema = {name: COLUMNS_OF_RECORDS[name] for name in names}
    return pl.DataFrame(answer, schema=schema, orient="row")


def assert_kept(records, folder):
    save_records(SafeFolder(folder), records)
    assert_frame_equal(stored_rows(folder), records, check_exact=True)
    again = by_sql(folder / "records.parquet")
    assert_frame_equal(again, records.select(again.columns), check_exact=True)


def test_ids_stay_in_extra_as_they_were_written(tmp_path):
    ids, turns, extras = zip(*EXTRAS, strict=True)
    table = rows([0.5] * len(EXTRAS)).with_columns(
        request_id=pl.Series(ids), turn=pl.Series(turns), extra=pl.Series(extras)
    )
    assert_kept(table, tmp_path)
    stored = pl.read_parquet(tmp_path / "records.parquet")
    assert stored["extra"].head(3).to_list() == ["{}", '{"tool_calls":2}', "{}"]


@pytest.mark.parametrize(
    ("durations", "kind"),
    [
        ([0.070927652, 0.0, 1e-9, 3599.999999999, 12345.678901234, None], pl.Decimal(18, 9)),
        ([0.070927652, 1 / 3], pl.Float64),
        ([1.0, 8e9], pl.Float64),
        ([1.0, 123456789.123456789], pl.Decimal(18, 9)),
    ],
)
def test_durations_keep_all_digits(tmp_path, durations, kind):
    assert_kept(rows(durations), tmp_path)
    assert pl.read_parquet_schema(tmp_path / "records.parquet")["duration_sec"] == kind


def test_an_end_that_another_log_tells_stays(tmp_path):
    assert_kept(rows([0.25, 1.5], end_later_us=3), tmp_path)


def test_parts_of_both_kinds_are_asked_together(tmp_path):
    for number, durations in enumerate([[0.5], [1 / 3]]):
        save_records(SafeFolder(tmp_path) / str(number), rows(durations))
    files = [RecordFile(tmp_path / str(number) / "records.parquet") for number in range(2)]
    with duckdb.connect() as connection:
        make_views(connection, tmp_path, files)
        [(total,)] = connection.execute("SELECT sum(duration_sec) FROM spans").fetchall()
    assert total == 0.5 + 1 / 3
