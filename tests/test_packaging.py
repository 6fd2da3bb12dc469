"""What is shipped is what is in the tree, and the start-up hook in it does nothing unless it is asked."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sglang_instrument.bootstrap import PACKAGES
from sglang_instrument.patching.tables import load_tables

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """A folder that holds what the wheel installs."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def run(site, code, **environment):
    """Run `code` in a process that starts with `site` as one of its site folders."""
    whole = f"import site; site.addsitedir({str(site)!r})\n{code}"
    return subprocess.run(
        [sys.executable, "-c", whole],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=site,
        env={**{key: value for key, value in os.environ.items() if "SGLANG" not in key}, **environment},
    )


def test_the_wheel_ships_every_table_and_every_module_of_the_tree(wheel):
    shipped = set(zipfile.ZipFile(wheel).namelist())
    tables = {
        f"sglang_instrument/patches/{path.relative_to(ROOT / 'patches')}"
        for path in (ROOT / "patches").rglob("*.toml")
    }
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "sglang_instrument").rglob("*.py")}
    assert tables
    assert tables | modules | {"sglang_instrument.pth"} <= shipped


def test_tables_are_found_in_an_installed_wheel(site):
    done = run(
        site,
        "import sglang_instrument.patching.tables as t; print(t.__file__, len(t.load_tables()))",
        PYTHONPATH=str(site),
    )
    assert done.stdout.split() == [
        str(site / "sglang_instrument/patching/tables.py"),
        str(len(load_tables())),
    ]


def test_the_hook_knows_the_packages_of_all_shipped_tables():
    outside = {table.package for table in load_tables()} - {"sglang-instrument"}
    assert outside <= PACKAGES


def test_without_the_variable_the_hook_imports_nothing(site):
    done = run(site, "import sys; print('sglang_instrument' in sys.modules, len(sys.meta_path))")
    plain = run(site.parent, "import sys; print('sglang_instrument' in sys.modules, len(sys.meta_path))")
    assert done.stdout == plain.stdout
    assert done.stdout.startswith("False")


def test_with_the_variable_the_hook_waits_for_a_target(site):
    done = run(
        site,
        "import sys, threading, json\n"
        "print([name for name in sys.modules if name.startswith(('sglang_instrument.', 'msgspec'))],"
        " threading.active_count())",
        SGLANG_INSTRUMENT="1",
        PYTHONPATH=str(site),
    )
    light = "['sglang_instrument.launch', 'sglang_instrument.bootstrap'] 1"
    assert done.stdout.strip() == light, done.stderr


def test_the_first_target_that_is_imported_installs(site, tmp_path):
    stand_in = tmp_path / "sglang"  # an empty package of the name: what is tested is the moment
    stand_in.mkdir()
    (stand_in / "__init__.py").write_text("")
    done = run(
        site,
        "import sglang, sglang_instrument, sys\n"
        "print(sglang_instrument.installed(), [f for f in sys.meta_path if 'bootstrap' in f.__module__])",
        SGLANG_INSTRUMENT="1",
        SGLANG_INSTRUMENT_LOG_DIR=str(tmp_path),
        PYTHONPATH=os.pathsep.join((str(tmp_path), str(site))),
    )
    assert done.stdout.strip() == "True []", done.stderr
    assert "sglang_instrument" in done.stderr


def test_a_hook_whose_package_is_gone_is_silent(site, tmp_path):
    (tmp_path / "sglang_instrument.pth").write_text((site / "sglang_instrument.pth").read_text())
    gone = "import sys; sys.modules['sglang_instrument'] = None"
    code = f"{gone}; import site; site.addsitedir(sys.argv[1]); print('up')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "SGLANG_INSTRUMENT": "1"},
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("up\n", "")
