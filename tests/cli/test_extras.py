"""What a missing extra needs is named by its packages: our own name may be in no package index."""

import shlex
import subprocess
import sys
from importlib import metadata

import pytest
from documented import ROOT
from packaging.requirements import Requirement

from sglang_instrument import extras
from sglang_instrument.extras import install_extra

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
READING = sorted(DECLARED.keys() - {"docs", "lint", "sglang", "test"})


def declared(extra):
    """Return the names of the packages of an extra and of the extras in it, by pyproject.toml."""
    names = set()
    for requirement in map(Requirement, DECLARED[extra]):
        if requirement.name == "sglang-instrument":
            names |= {name for other in requirement.extras for name in declared(other)}
        else:
            names.add(requirement.name.replace("-", "_"))
    return names


@pytest.mark.parametrize("extra", READING)
def test_the_command_names_every_package_of_an_extra_that_is_missing(monkeypatch, extra):
    monkeypatch.setattr(extras, "_is_installed", lambda requirement: False)
    python, *words = shlex.split(install_extra(extra))
    assert python == sys.executable
    assert words[:3] == ["-m", "pip", "install"]
    asked = [Requirement(word) for word in words[3:]]
    assert {requirement.name.replace("-", "_") for requirement in asked} == declared(extra)
    assert all(requirement.specifier for requirement in asked)


def test_packages_that_are_installed_are_left_out(monkeypatch):
    real = metadata.version

    def version(name):
        if name == "duckdb":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    assert [Requirement(word).name for word in shlex.split(install_extra("sql"))[4:]] == ["duckdb"]


def test_a_checkout_that_is_only_on_the_path_is_told_to_install_itself(monkeypatch):
    monkeypatch.setattr(extras, "_NAME", "a-distribution-that-is-not-installed")
    assert install_extra("sql").endswith("-m pip install '.[sql]' in a checkout of " + extras._NAME)


def test_without_pip_the_command_is_that_of_uv(monkeypatch):
    monkeypatch.setattr(extras.PathFinder, "find_spec", lambda name: None)
    assert install_extra("sql").startswith(f"uv pip install --python {sys.executable} ")


def test_no_text_of_the_package_tells_pip_to_fetch_our_name_from_an_index():
    pattern = "pip install.*[^/a-z]sglang[-_]instrument"
    search = ["git", "grep", "-nE", pattern, "--", "sglang_instrument", "patches"]
    searched = subprocess.run(search, cwd=ROOT, capture_output=True, text=True)
    assert (searched.returncode, searched.stdout) == (1, "")
