"""Wheels and sdists contain the whole tree; their start-up hook does nothing without the variable."""

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from setuptools._distutils.errors import CompileError

from sglang_instrument.native.stamps import PARTS
from sglang_instrument.patching.tables.reading import load_tables
from sglang_instrument.startup.python_startup import shipped_packages

ROOT = Path(__file__).parents[2]


def build(what, source, folder, **environment):
    """Build a wheel or an sdist of `source` into `folder`; return its path and the output of the build."""
    command = [sys.executable, "-m", "build", f"--{what}", "--no-isolation", "--outdir", str(folder)]
    done = subprocess.run(
        [*command, str(source)],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "SGLANG_INSTRUMENT_NATIVE": "", **environment},
    )
    (built,) = folder.iterdir()
    return built, done.stdout + done.stderr


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))[0]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this machine, with compiled parts if it has a compiler."""
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))[0]


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """A folder with the installed files of the wheel."""
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
        timeout=600,
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


def compiled_in(built):
    return {name for name in zipfile.ZipFile(built).namelist() if name.endswith(".so")}


@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler here")
def test_a_wheel_ships_what_was_compiled_for_this_python_and_says_so(wheel, site):
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert compiled_in(wheel) == {module.replace(".", "/") + suffix for module in PARTS.values()}
    assert f"-cp{sys.version_info[0]}{sys.version_info[1]}-" in wheel.name
    asked = "from sglang_instrument import native; print(native.__file__, native.ON, native.REASON)"
    done = run(site, asked, PYTHONPATH=str(site))
    assert done.stdout.split() == [str(site / "sglang_instrument/native/__init__.py"), "True", "None"]


def test_a_pure_wheel_fits_every_python(tmp_path):
    built, _ = build("wheel", ROOT, tmp_path, SGLANG_INSTRUMENT_NATIVE="0")
    assert compiled_in(built) == set()
    assert built.name.endswith("-py3-none-any.whl")


def test_without_a_compiler_the_wheel_of_an_sdist_is_pure_and_says_why(sdist, tmp_path):
    with tarfile.open(sdist) as archive:
        assert not [name for name in archive.getnames() if name.endswith((".so", ".c"))]
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    built, said = build("wheel", source, tmp_path / "dist", CC="false", CXX="false")
    assert built.name.endswith("-py3-none-any.whl")
    assert "sglang-instrument stays pure Python: " in said


def test_a_compiler_that_fails_is_noticed_before_cython_works_for_seconds(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "false")
    monkeypatch.setattr("Cython.Build.cythonize", lambda *_, **__: pytest.fail("Cython has begun"))
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))
    with pytest.raises(CompileError, match="false"):
        hook["compile_into"](tmp_path, list(PARTS.values()))


def test_tables_are_found_in_an_installed_wheel(site):
    done = run(
        site,
        "import sglang_instrument.patching.tables.reading as t; print(t.__file__, len(t.load_tables()))",
        PYTHONPATH=str(site),
    )
    assert done.stdout.split() == [
        str(site / "sglang_instrument/patching/tables/reading.py"),
        str(len(load_tables())),
    ]


def test_a_folder_of_tables_is_called_as_the_package_that_they_patch():
    patched = {module.partition(".")[0] for table in load_tables() for module in table.modules}
    beside_a_trainer = {"examples"}  # of slime and Miles, whose own packages are imported before them
    assert shipped_packages() == patched - {"sglang_instrument"} - beside_a_trainer


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
    light = ["startup", "launchers", "startup.run_ids", "startup.python_startup"]
    light = [f"sglang_instrument.{name}" for name in light]
    assert done.stdout.strip() == f"{light} 1", done.stderr


def test_the_first_target_that_is_imported_installs(site, tmp_path):
    stand_in = tmp_path / "sglang"  # an empty package of this name: the test is about the time of the install
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


def test_a_hook_without_its_package_does_nothing(site, tmp_path):
    (tmp_path / "sglang_instrument.pth").write_text((site / "sglang_instrument.pth").read_text())
    gone = "import sys; sys.modules['sglang_instrument'] = None"
    code = f"{gone}; import site; site.addsitedir(sys.argv[1]); print('up')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "SGLANG_INSTRUMENT": "1"},
        timeout=600,
    )
    assert (done.stdout, done.stderr) == ("up\n", "")
