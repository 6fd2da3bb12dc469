"""Parquet whose log is gone is read as a stranger's file is: within memory that its bytes account for."""

import os
import shutil
from pathlib import Path

import polars as pl
import pytest
from hostile_logs import run_limited, sound_logs
from parquet_bombs import BOMBS

from sglang_instrument.analysis.digests import parquet_bounds
from sglang_instrument.analysis.digests.parquet import damage_named, read_table, scan_table
from sglang_instrument.analysis.digests.thrift import CompactReader
from sglang_instrument.analysis.store import homes
from sglang_instrument.cli.main import main

SAID = {
    "rows": "claim to be",
    "texts": "repeat texts to 200,",
    "packed": "claim to be",
    "columns": "columns, more than 1,000",
    "lists": "columns in columns",
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return sound_logs(tmp_path_factory.mktemp("sound"))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "table.parquet"
    words = {f"text {number}": [f"word {row}" for row in range(500)] for number in range(20)}
    pl.DataFrame({"a": range(500), **words, "c": [None] * 500}).write_parquet(path)
    return path


@pytest.mark.parametrize("kind", BOMBS)
def test_a_small_file_that_stands_for_much_memory_is_refused(table: Path, tmp_path: Path, kind: str) -> None:
    bomb = Path(shutil.copy(table, tmp_path))
    BOMBS[kind](bomb)
    assert bomb.stat().st_size < 1_000_000
    for read in (read_table, scan_table):
        with pytest.raises(ValueError, match=SAID[kind]):
            read(bomb)


def test_sound_files_pass(logs: dict[str, Path], table: Path) -> None:
    files = [*logs["dataset"].rglob("*.parquet"), *logs["pruned"].rglob(".pruned/**/*.parquet"), table]
    files += Path(__file__).parents[1].rglob("*before*/**/*.parquet")
    assert len(files) > 30
    for path in files:
        frame = pl.read_parquet(path, glob=False, hive_partitioning=False)
        assert scan_table(path, hive_partitioning=False).collect().equals(frame)


COMPRESSIONS = ("uncompressed", "snappy", "gzip", "brotli", "lz4", "zstd")


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_files_of_other_writers_pass(tmp_path: Path, compression: str) -> None:
    frame = pl.DataFrame({"a": range(20_000), "b": [f"{number % 7}" for number in range(20_000)]})
    for number, options in enumerate(({}, {"row_group_size": 999}, {"data_page_size": 512})):
        path = tmp_path / f"{number}.parquet"
        frame.write_parquet(path, compression=compression, **options)
        assert read_table(path).equals(frame)


def written(fields: dict[int, object]) -> bytes:
    """Return a struct in the compact protocol: of numbers, texts, lists of structs, and structs."""
    out, last = b"", 0
    for number, value in fields.items():
        kind, body = value_of(value)
        out += bytes([(number - last) << 4 | kind]) + body
        last = number
    return out + b"\0"


def value_of(value: object) -> tuple[int, bytes]:
    if isinstance(value, int):
        return 6, varint(value << 1 if value >= 0 else (-value << 1) - 1)
    if isinstance(value, bytes):
        return 8, varint(len(value)) + value
    if isinstance(value, list):
        return 9, bytes([len(value) << 4 | 12]) + b"".join(map(written, value))
    assert isinstance(value, dict)
    return 12, written(value)


def varint(number: int) -> bytes:
    out = b""
    while number >= 128:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def file_of(
    path: Path, page: dict[int, object], chunk: dict[int, object], rows: int, body: bytes = b"x"
) -> Path:
    """Write a file of one column with one page: its claims need not be true."""
    data = b"PAR1" + written(page) + body
    column = {1: 6, 5: rows, 7: len(data) - 4, 9: 4, **chunk}
    schema = [{4: b"table", 5: 1}, {1: 6, 3: 0, 4: b"a"}]
    footer = written({1: 2, 2: schema, 3: rows, 4: [{1: [{3: column}], 2: 1, 3: rows}]})
    path.write_bytes(data + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return path


PAGE = {1: 0, 2: 1, 3: 1, 5: {1: 5, 2: 0}}
CLAIMS: dict[str, tuple[dict[int, object], dict[int, object], int, str]] = {
    "rows": (PAGE, {}, 10**12, "claim to be"),
    "rows below zero": (PAGE, {5: -1}, -(10**12), ""),
    "unpacked": ({**PAGE, 2: 2**31 - 1}, {}, 5, "claim to be"),
    "values": ({**PAGE, 5: {1: 2**31 - 1, 2: 0}}, {}, 5, "claim to be"),
    "below zero": ({**PAGE, 2: -5}, {}, 5, "negative size"),
    "prefixes": ({**PAGE, 5: {1: 5, 2: 7}}, {}, 5, "repeat the text before"),
    "prefixes of the second kind": ({1: 3, 2: 1, 3: 1, 8: {1: 5, 4: 7}}, {}, 5, "repeat the text before"),
    "outside": (PAGE, {9: 1_000}, 5, "outside of its file"),
    "over the end of its column": ({**PAGE, 3: 4}, {}, 5, "outside of its column"),
    "no size": ({1: 0, 5: {1: 5, 2: 0}}, {}, 5, "cannot be read"),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_false_claims_are_refused_before_the_file_is_read(tmp_path: Path, claim: str) -> None:
    page, chunk, rows, said = CLAIMS[claim]
    path = file_of(tmp_path / "a.parquet", page, chunk, rows)
    if said:
        with pytest.raises(ValueError, match=said):
            parquet_bounds.demand_bounded(path)
    with pytest.raises((ValueError, pl.exceptions.PolarsError)):
        read_table(path)


def test_columns_that_share_one_page_count_each(tmp_path: Path) -> None:
    """The same few bytes may stand in any number of columns and groups of rows."""
    data = b"PAR1" + written({**PAGE, 2: 60_000_000}) + b"x"
    column = {3: {1: 6, 5: 5, 7: len(data) - 4, 9: 4}}
    schema = [{4: b"table", 5: 2}, {1: 6, 3: 0, 4: b"a"}, {1: 6, 3: 0, 4: b"b"}]
    footer = written({1: 2, 2: schema, 3: 5, 4: [{1: [column, column], 2: 1, 3: 5}]})
    path = tmp_path / "a.parquet"
    path.write_bytes(data + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ValueError, match="claim to be 120,000,"):
        read_table(path)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"PAR1",
        b"PAR1PAR1",
        b"PAR1" + b"\0" * 8 + b"PAR1",
        b"PAR1" + b"\x1c" * 90 + (90).to_bytes(4, "little") + b"PAR1",  # structs in structs
        b"PAR1" + b"\x19" * 9_000 + (9_000).to_bytes(4, "little") + b"PAR1",  # lists in lists
        b"PAR1" + b"\x19\xfc\xff\xff\xff\x7f" + (6).to_bytes(4, "little") + b"PAR1",  # a list without end
        b"PAR1" + b"\x16" + b"\xff" * 89 + (90).to_bytes(4, "little") + b"PAR1",
        b"PAR1" + bytes(5_000_000) + (5_000_000).to_bytes(4, "little") + b"PAR1",
    ],
    ids=[
        *("empty", "begin", "no length", "of zeros", "structs in structs", "lists in lists"),
        *("a list without end", "a long number", "of 5 MB"),
    ],
)
def test_what_is_no_footer_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="parquet"):
        parquet_bounds.demand_bounded(path)


def test_a_struct_is_read_as_it_was_written() -> None:
    fields: dict[int, object] = {1: -1, 3: 2**40, 4: [{2: 7}, {2: 8}], 9: {1: {1: 5}}, 24: b"x"}
    reader = CompactReader(written(fields) + b"rest")
    assert reader.struct({1: None, 3: None, 4: {2: None}, 9: {1: {1: None}}}) == {
        name: value for name, value in fields.items() if name != 24
    }
    assert reader.position == len(written(fields))


def test_a_panic_of_polars_is_an_error_like_any_other(tmp_path: Path) -> None:
    def panic(column: pl.Series) -> pl.Series:
        raise pl.exceptions.PanicException("damaged")

    with pytest.raises(ValueError, match="is damaged"), damage_named(tmp_path):
        panic(pl.Series())


def tables(folder: Path, *names: str) -> list[Path]:
    return [path for path in folder.rglob("*.parquet") if path.stem.split("-")[0] in names]


PLANTED = [
    ("dataset", "rows", ("records",)),
    ("pruned", "texts", ("records",)),
    ("pruned", "packed", ("lines",)),
    ("pruned", "rows", ("path", "steps")),
]


def test_every_command_says_so_or_answers_without_within_its_limits(
    logs: dict[str, Path], tmp_path: Path
) -> None:
    planted = []
    for number, (log, kind, names) in enumerate(PLANTED):
        folder = shutil.copytree(logs[log], tmp_path / f"{log}-{number}")
        bombed = tables(folder, *names)
        assert bombed
        for path in bombed:
            BOMBS[kind](path)
        planted.append(folder)
    count, faults = run_limited(planted, tmp_path / "scratch")
    assert faults == []
    assert count > 30 * len(PLANTED)


def test_a_bomb_in_a_store_is_made_again_from_the_log(
    tmp_path: Path, logs: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "_WORTHWHILE_BYTES", 1)
    folder = shutil.copytree(logs["run"], tmp_path / "run")
    for path in folder.rglob("*.jsonl"):
        os.utime(path, (0, 0))
    assert main(["runs", str(tmp_path), "--json"]) == 0
    first = capsys.readouterr().out
    bombed = tables(folder / ".store", "requests", "steps")
    assert bombed
    for path in bombed:
        BOMBS["rows"](path)
    assert main(["runs", str(tmp_path), "--json"]) == 0
    assert capsys.readouterr().out == first
    for path in tables(folder / ".store", "requests", "steps"):
        parquet_bounds.demand_bounded(path)
