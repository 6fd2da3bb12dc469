"""The wheels that `make wheels` made are whole and small, and work where nothing else is installed."""

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from wheel_name import python_of

import sglang_instrument
from sglang_instrument.native.stamps import PARTS

ROOT = Path(__file__).parents[2]
DIST = os.environ.get("WHEELS")
WHEELS = sorted(Path(DIST).glob("*.whl")) if DIST else []
MOST_BYTES = 3e6
#: What a new user does first: spans of a step, and the commands that read them need polars, so not these.
FIRST_USE = """
import json, sys
from pathlib import Path
import sglang_instrument
from sglang_instrument import bind, native, span

sglang_instrument.install(log_dir=sys.argv[1], experiment="first")
with bind(step=1, worker=0, request_id="r0"), span("tool", k=1):
    pass
sglang_instrument.uninstall()
[path] = Path(sys.argv[1]).glob("first/step_1/*.jsonl")
events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
print(sglang_instrument.__version__, native.ON, events)
"""
pytestmark = pytest.mark.skipif(not WHEELS, reason="`make wheels` makes them, and runs this")


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda path: python_of(path))
class TestAWheel:
    def test_holds_the_package_its_tables_and_what_was_compiled_and_nothing_else(self, wheel):
        held = {
            name
            for name in zipfile.ZipFile(wheel).namelist()
            if ".dist-info/" not in name and not name.endswith("/")
        }
        compiled = {name for name in held if name.endswith(".so")}
        package = {
            str(path.relative_to(ROOT))
            for path in (ROOT / "sglang_instrument").rglob("*")
            if path.is_file() and not {"__pycache__", "patches"} & set(path.parts)
        }
        package = {name for name in package if not name.endswith((".so", ".c", ".lock"))}
        tables = {
            f"sglang_instrument/{path.relative_to(ROOT)}"
            for path in (ROOT / "patches").rglob("*")
            if path.is_file()
        }
        assert held - compiled == package | tables | {"sglang_instrument.pth"}
        assert {name.partition(".")[0] for name in compiled} == {
            module.replace(".", "/") for module in PARTS.values()
        }

    def test_is_small_has_this_version_and_fits_old_systems(self, wheel):
        assert wheel.stat().st_size < MOST_BYTES
        assert f"-{sglang_instrument.__version__}-" in wheel.name
        assert "manylinux" in wheel.name

    def test_records_with_its_compiled_parts_in_an_empty_environment(self, wheel, tmp_path):
        python = shutil.which(f"python{python_of(wheel)}")
        if python is None:
            pytest.skip(f"no Python {python_of(wheel)} here")
        subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
        installed = tmp_path / "venv/bin/python"
        command = [installed, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel]
        subprocess.run(command, check=True, cwd=tmp_path)
        assert first_use([installed], tmp_path) == said()
        checked = subprocess.run([installed, "-m", "pip", "check"], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout


@pytest.fixture(scope="module")
def debian(tmp_path_factory):
    """A root file system with Debian's Python and nothing else, as a container image has it."""
    if shutil.which("debootstrap") is None or os.geteuid():
        pytest.skip("needs debootstrap, and root")
    root = tmp_path_factory.mktemp("debian")
    done = subprocess.run(
        ["debootstrap", "--variant=minbase", "--include=python3-venv", "bookworm", root],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"debootstrap: {done.stdout[-300:]}")
    yield root
    shutil.rmtree(root)


def test_the_wheel_works_in_a_bare_system(debian, tmp_path):
    shipped = debian / "wheels"
    shipped.mkdir()
    wheel = next((candidate for candidate in WHEELS if python_of(candidate) == "3.11"), None)
    if wheel is None:
        pytest.skip("no wheel for bookworm's Python 3.11")
    python = shutil.which("python3.11")
    download = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", shipped]
    subprocess.run([*download, wheel], check=True)
    inside = ["chroot", debian]
    subprocess.run([*inside, "python3", "-m", "venv", "/venv"], check=True)
    install = ["/venv/bin/pip", "install", "--quiet", "--no-index", "--find-links", "/wheels"]
    subprocess.run([*inside, *install, "sglang-instrument"], check=True)
    assert first_use([*inside, "/venv/bin/python"], Path("/")) == said()
    doctor = subprocess.run(
        [*inside, "/venv/bin/sglang-instrument", "doctor"], capture_output=True, text=True
    )
    assert "the compiled modules are used" in doctor.stdout, doctor.stderr


def first_use(python, folder):
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [*python, "-c", FIRST_USE, str(folder / "logs")],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def said():
    events = ["log_opened", "tool", "step_closed", "log_closed"]
    return f"{sglang_instrument.__version__} True {events}\n"
