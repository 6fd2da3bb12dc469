"""`patches check` and `patches list`: sources of every form, each region with its state, short errors."""

import io
import json
import sys
import tarfile
import zipfile
from importlib.util import find_spec

import pytest

from sglang_instrument.cli.main import main
from sglang_instrument.errors import TableError, TargetError
from sglang_instrument.patching.places.source_archives import open_tree
from sglang_instrument.patching.rewriting.check import check
from sglang_instrument.patching.tables.reading import parse_table
from sglang_instrument.startup.coverage import coverage_of

FILES = {
    "trainer/__init__.py": "from .core import Loop as Loop\n",
    "trainer/core.py": (
        "from trainer.base import Base\n\n\n"
        "class Loop(Base):\n"
        "    def step(self, n):\n"
        "        self.prepare(n)\n"
        "        if n:\n"
        "            self.run(n)\n"
        "        else:\n"
        "            self.run(0)\n"
        "        return n\n"
        "    alias = step\n"
    ),
    "trainer/base.py": "class Base:\n    async def inherited(self):\n        return 1\n",
}
TABLE = """
trainer = "planted"
package = "trainer"
module = "trainer.core"

[[patch]]
target = "Loop.step"
region = [
  { event = "step", enter = { n = "n", gone = "gone", either = "gone | n" } },
  { event = "prepare", at = "prepare" },
  { event = "run", at = "run" },
  { event = "none", at = "nowhere" },
  { event = "later", at = "later", requires = ">=2" },
]

[[patch]]
target = ["Loop.gone", "Loop.inherited"]
region = [{ event = "inherited" }]

[[patch]]
target = ["trainer:Loop.alias"]
region = [{ event = "alias" }]

[[patch]]
target = "trainer.gone:f"
region = [{ event = "gone" }]
"""
EXPECTED = {
    "step": "found",
    "prepare": "found",
    "run": "ambiguous",
    "none": "missing",
    "later": "missing",
    "inherited": "found",
    "alias": "found",
    "gone": "missing",
}


@pytest.fixture
def tables(tmp_path):
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "planted.toml").write_text(TABLE)
    return folder


def as_folder(path, prefix=""):
    root = path / "unpacked"
    for name, content in FILES.items():
        file = root / prefix / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    (root / "trainer-1.4.dist-info").mkdir()
    return root


def as_layout(path):
    return as_folder(path, "python")


def as_wheel(path):
    wheel = path / "trainer-1.4-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    return wheel


def as_sdist(path):
    sdist = path / "trainer-1.4.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name, content in FILES.items():
            member = tarfile.TarInfo(f"trainer-1.4/src/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    return sdist


@pytest.mark.parametrize("form", [as_folder, as_layout, as_wheel, as_sdist])
def test_source_is_checked_in_every_form_without_importing_it(form, tmp_path, tables, capsys):
    source = form(tmp_path)
    code = main(
        [
            "patches",
            "check",
            "--trainer",
            "planted",
            "--patches",
            str(tables),
            "--source",
            str(source),
            "--json",
        ]
    )
    (answer,) = json.loads(capsys.readouterr().out)
    assert {site["event"]: site["state"] for site in answer["sites"]} == EXPECTED
    assert answer["version"] == "1.4"
    assert code == 1
    assert "trainer" not in sys.modules


def test_lines_notes_and_unexpected_regions_are_printed(tmp_path, tables, capsys):
    source = as_folder(tmp_path)
    main(
        [
            "patches",
            "check",
            "--trainer",
            "planted",
            "--patches",
            str(tables),
            "--source",
            str(source),
            "--json",
        ]
    )
    (answer,) = json.loads(capsys.readouterr().out)
    sites = {site["event"]: site for site in answer["sites"]}
    assert sites["prepare"]["lines"] == [6, 6]
    assert "lines 8, 10" in sites["run"]["note"]
    assert sites["step"]["note"] == "no local for gone; write a string as \"'gone'\""
    assert [site["event"] for site in answer["sites"] if not site["expected"]] == ["later"]
    assert sites["inherited"]["target"] == "trainer.core:Loop.inherited"


def test_sites_of_one_source_are_printed_and_of_several_counted(tmp_path, tables, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    main(
        [
            "patches",
            "check",
            "--trainer",
            "planted",
            "--patches",
            str(tables),
            "--source",
            str(as_folder(tmp_path)),
        ]
    )
    shown = " ".join(capsys.readouterr().out.split())
    assert "(trainer 1.4): 4 of 7 found" in shown
    assert "no statement mentions nowhere" in shown
    assert "not here" in shown


def test_a_table_is_ok_if_all_expected_regions_are_found(tmp_path, capsys):
    (tmp_path / "t.toml").write_text(
        'trainer = "planted"\npackage = "trainer"\nmodule = "trainer.core"\n'
        '[[patch]]\ntarget = "Loop.step"\n'
        'region = [{ event = "e" }, { event = "f", at = "x", requires = ">=2" }]\n'
    )
    source = as_folder(tmp_path)
    arguments = [
        "patches",
        "check",
        "--trainer",
        "planted",
        "--patches",
        str(tmp_path),
        "--source",
        str(source),
    ]
    assert main(arguments) == 0
    assert "1 of 1 found" in capsys.readouterr().out


def test_the_shipped_tables_are_listed(capsys):
    assert main(["patches", "list", "--json"]) == 0
    listed = {table["table"]: table for table in json.loads(capsys.readouterr().out)}
    assert "engine_generate" in listed["sglang/engine"]["events"]
    assert main(["patches", "list"]) == 0
    assert "sglang/engine" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trainer", "verk"], "no tables of trainer 'verk'; there are: "),
        (["--source", "nowhere.whl"], "nowhere.whl: "),
        (["--source", "README.md"], "must be a folder, a wheel or a source archive"),
        (["--patches", "nowhere"], "nowhere: not a folder of patch tables"),
    ],
)
def test_errors_are_printed_in_one_line(arguments, message, capsys):
    assert main(["patches", "check", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_source_without_the_trainer_is_an_error(tmp_path, tables, capsys):
    arguments = [
        "patches",
        "check",
        "--trainer",
        "planted",
        "--patches",
        str(tables),
        "--source",
        str(tmp_path),
    ]
    assert main(arguments) == 2
    assert "no trainer in " in capsys.readouterr().err


def test_an_expression_that_is_not_in_the_language_is_an_error_with_its_place(tmp_path, capsys):
    (tmp_path / "t.toml").write_text(
        'trainer = "planted"\n[[patch]]\ntarget = "m:f"\nregion = [{ event = "e", enter = { x = "a.b(" } }]\n'
    )
    assert main(["patches", "list", "--patches", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "t.toml" in error
    assert "a.b(" in error


def test_a_file_that_is_no_archive_is_a_target_error(tmp_path):
    (tmp_path / "broken.whl").write_text("not a zip")
    with pytest.raises(TargetError, match=r"broken\.whl"):
        open_tree(tmp_path / "broken.whl")


def test_installed_packages_are_checked_without_importing_them():
    content = {
        "trainer": "x",
        "module": "json.tool",
        "patch": [{"target": "main", "region": [{"event": "e"}]}],
    }
    sys.modules.pop("json.tool", None)
    (checked,) = check([parse_table("t", content)])
    assert [site.state for site in checked.sites] == ["found"]
    assert "json.tool" not in sys.modules


def test_the_engine_table_fits_the_installed_engine():
    if find_spec("sglang") is None:
        pytest.skip("sglang is not installed")
    assert main(["patches", "check", "--trainer", "sglang"]) == 0


def test_a_mode_marks_what_never_runs_in_it_and_demands_the_rest(capsys):
    assert main(["patches", "check", "--trainer", "sglang", "--mode", "rust", "--json"]) == 0
    sites = [site for table in json.loads(capsys.readouterr().out) for site in table["sites"]]
    runs = {(site["event"], site["target"].rpartition(":")[2]): not site["never_runs"] for site in sites}
    assert not runs["engine_request", "TokenizerManager.generate_request"]
    assert runs["scheduler_finish", "SchedulerOutputStreamer._stream_output_generation"]
    assert not any(
        may for (event, _), may in runs.items() if event in ("engine_tokenize", "engine_detokenize")
    )
    assert main(["patches", "check", "--trainer", "sglang", "--mode", "rust"]) == 0
    assert "found, 7 never run in mode rust" in capsys.readouterr().out


def test_a_mode_that_no_table_knows_is_an_error_with_those_that_there_are(capsys):
    assert main(["patches", "check", "--trainer", "sglang", "--mode", "go"]) == 2
    assert "no table knows a mode 'go'; there are: rust (SGLANG_RUST_SERVER=1)" in capsys.readouterr().err


def test_a_patch_is_only_left_out_of_modes_that_its_table_names():
    patch = {"target": "m:f", "not_in": "rust", "region": [{"event": "e"}]}
    with pytest.raises(TableError, match="not_in: 'rust' is no mode of the table: it has none"):
        parse_table("t", {"trainer": "x", "patch": [patch]})
    table = parse_table("t", {"trainer": "x", "modes": {"rust": "RUST"}, "patch": [patch]})
    assert table.patches[0].regions[0].not_in == {"rust": "RUST"}


@pytest.mark.parametrize(
    ("value", "says"), [("1", "0 of 0 events, without the 1 that RUST leaves out"), ("0", "1 of 1")]
)
def test_what_a_mode_leaves_out_is_not_counted_as_recorded(value, says, monkeypatch):
    monkeypatch.setenv("RUST", value)
    patch = {"target": "json:dumps", "not_in": "rust", "region": [{"event": "e"}]}
    content = {"trainer": "x", "package": "pytest", "modes": {"rust": "RUST"}, "patch": [patch]}
    table = parse_table("t", content)
    [checked] = check([table])
    assert says in coverage_of(table, checked.sites)
