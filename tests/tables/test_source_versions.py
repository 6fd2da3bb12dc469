"""`patches check` of checkouts: the version in the source, or the inferred version; newer syntax."""

import json
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from wheels import wheel_of

from sglang_instrument.cli.main import main
from sglang_instrument.patching.places.source_archives import SourceTree, open_tree
from sglang_instrument.patching.rewriting.check import check
from sglang_instrument.patching.tables.reading import load_tables

STAND_IN = Path(__file__).parents[1] / "trainers/slime/stand_in/slime"
PROJECT = '[project]\nname = "my-trainer"\n'
TABLE = """
trainer = "mine"
package = "my-trainer"
module = "my_trainer.core"

[[patch]]
target = "f"
region = [{ event = "always" }]

[[patch]]
target = "old"
requires = "<2"
region = [{ event = "old" }]

[[patch]]
target = "new"
requires = ">=2"
region = [{ event = "new" }]

[[patch]]
target = "newer"
requires = ">=2.4"
region = [{ event = "newer" }]
"""


@pytest.fixture
def checked(tmp_path, capsys):
    """Write a checkout of `files`, check the table against it; return (exit code, JSON, printed text)."""

    def check_files(*functions, **files):
        root = tmp_path / "checkout"
        lines = "\n".join(f"def {name}():\n    return 1\n" for name in functions)
        every = {"my_trainer/__init__.py": "", "my_trainer/core.py": lines, **files}
        for name, content in every.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
        (tmp_path / "tables").mkdir()
        (tmp_path / "tables/mine.toml").write_text(TABLE)
        ours = ["--trainer", "mine", "--patches", str(tmp_path / "tables"), "--source", str(root)]
        code = main(["patches", "check", *ours])
        printed = capsys.readouterr().out
        assert main(["patches", "check", *ours, "--json"]) == code
        return code, json.loads(capsys.readouterr().out)[0], " ".join(printed.split())

    return check_files


@pytest.mark.parametrize(
    "files",
    [
        {"my_trainer/version/version": "2.1.0\n"},
        {"my_trainer/__init__.py": '__version__ = "2.1.0"\n'},
        {"my_trainer/version.py": '__version__ = "2.1.0"\n'},
        {"my_trainer/_version.py": "__version__ = version = '2.1.0'\n__version_tuple__ = (2, 1, 0)\n"},
        {"pyproject.toml": f'{PROJECT}version = "2.1.0"\n'},
        {"setup.py": 'from setuptools import setup\nsetup(name="my_trainer", version="2.1.0")\n'},
        {
            "pyproject.toml": f'{PROJECT}dynamic = ["version"]\n',
            "my_trainer/__init__.py": '__version__ = "2.1.0"\n',
        },
    ],
    ids=lambda files: " and ".join(files),
)
def test_the_version_of_a_checkout_without_metadata_is_found(checked, files):
    code, answer, printed = checked("f", "new", **files)
    assert (code, answer["version"]) == (0, "2.1.0")
    assert "(my-trainer 2.1.0): 2 of 2 found" in printed


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"pyproject.toml": f'{PROJECT}dynamic = ["version"]\n'},  # setuptools_scm: from the git tags
        {"pyproject.toml": '[project]\nname = "other"\nversion = "1.0"\n'},
        {"pyproject.toml": "[project\n"},
        {"setup.py": 'setup(name="my-trainer", version=read("version"))\n'},
        {
            "my_trainer/__init__.py": "try:\n    from ._v import __version__\nexcept ImportError:\n"
            "    __version__ = '1.0'\n"
        },
        {"my_trainer/version.py": "__version__ = '0.0.0.dev0'\n"},  # made up by setuptools_scm, without tags
    ],
    ids=["nothing", "dynamic", "another project", "broken", "computed", "imported", "made up"],
)
@pytest.mark.parametrize(
    ("functions", "due"),
    [
        (["f", "old"], {"always", "old"}),
        (["f", "new"], {"always", "new"}),
        (["f", "new", "newer"], {"always", "new", "newer"}),
    ],
    ids=["old", "new", "newer"],
)
def test_a_checkout_without_version_is_ok_if_all_regions_of_one_version_are_found(
    checked, files, functions, due
):
    code, answer, printed = checked(*functions, **files)
    assert code == 0
    assert {site["event"] for site in answer["sites"] if site["expected"]} == due
    assert f"version inferred): {len(due)} of {len(due)} found" in printed


def test_a_checkout_without_version_is_not_ok_if_every_version_lacks_a_region(checked):
    code, answer, _ = checked("newer")
    assert code == 1
    missing = {site["event"] for site in answer["sites"] if site["state"] != "found" and site["expected"]}
    assert missing == {"always", "new"}


def test_the_version_of_a_development_checkout_is_inferred(checked):
    # verl's main branch had the version 0.8.0.dev long before it had the code of 0.8.0.
    code, answer, printed = checked("f", "new", **{"my_trainer/version/version": "2.4.0.dev\n"})
    assert (code, answer["version"]) == (0, "2.4.0.dev")
    assert "(my-trainer 2.4.0.dev, version inferred): 2 of 2 found" in printed


def test_a_commit_in_the_name_of_an_archive_is_no_version(tmp_path):
    with zipfile.ZipFile(tmp_path / "verl-1dda039b.zip", "w") as archive:
        archive.writestr("verl-1dda039b/verl/__init__.py", "")
        archive.writestr("verl-1dda039b/verl/version/version", "0.7.1\n")
    assert open_tree(tmp_path / "verl-1dda039b.zip").version("verl") == "0.7.1"


@pytest.mark.parametrize(
    ("package", "version"),
    [
        ("verl", "0.6.1"),
        ("verl", "0.9.1"),
        ("sglang", "0.4.6.post5"),
        ("sglang", "0.5.5"),
        ("sglang", "0.5.23"),
    ],
)
def test_the_version_of_a_trainers_source_without_version_is_inferred(package, version):
    tree = open_tree(wheel_of(package, version))

    def read(path):
        return None if path.endswith(("version/version", "/version.py", "/_version.py")) else tree.read(path)

    tables = load_tables([package])
    checked, untold = check(tables, tree), check(tables, SourceTree("a checkout", read, {}))
    assert {table.version for table in checked} == {version}
    assert {table.version for table in untold} == {None}
    assert [table.sites for table in untold] == [table.sites for table in checked]


def test_slime_0_3_0_is_not_expected_to_have_what_came_with_0_3_1(tmp_path, capsys):
    # slime is in no registry: the stand-in, without the code that 0.3.0 lacks.
    shutil.copytree(STAND_IN, tmp_path / "slime")
    for path in (tmp_path / "slime").rglob("*.py"):
        path.write_text(
            re.sub(
                "abort_servers_until_idle|apply_rollout_sample_hooks|pull_weights", "gone", path.read_text()
            )
        )

    def lost(version):
        (tmp_path / "setup.py").write_text(f'setup(name="slime", version="{version}")\n')
        main(["patches", "check", "--trainer", "slime", "--source", str(tmp_path), "--json"])
        sites = [site for table in json.loads(capsys.readouterr().out) for site in table["sites"] or ()]
        return {site["event"] for site in sites if site["state"] != "found" and site["expected"]}

    assert lost("0.3.1") - lost("0.3.0") == {"abort_wait", "sample_hooks", "weights_pull"}


# A syntax error for every Python, as newer syntax is for an older one.
NEWER = "class A:\n    def f(self):\n        return 1\n\n\ndef g(:\n"


@pytest.mark.parametrize("core", [NEWER, "from my_trainer.other import *\nfrom my_trainer.other import f\n"])
def test_a_file_that_this_python_cannot_parse_is_named_with_its_line(checked, core):
    files = {"my_trainer/core.py": core, "my_trainer/other.py": NEWER}
    code, answer, _ = checked(**files)
    assert code == 1
    name = "core" if core is NEWER else "other"
    python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    note = next(site["note"] for site in answer["sites"] if site["event"] == "always")
    assert note.startswith(f"my_trainer.{name}: syntax error at line 6 for {python}: ")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this Python has the syntax")
def test_newer_syntax_is_no_missing_module(checked):
    _, answer, _ = checked(**{"my_trainer/core.py": "def f():\n    pass\ntype Pair[T] = tuple[T, T]\n"})
    assert "my_trainer.core: syntax error at line 3" in answer["sites"][0]["note"]
