"""Find the tables that come with the package, in a wheel or in a checkout, and read them."""

from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sglang_instrument.regular_files import read_regular

if TYPE_CHECKING:
    from importlib.abc import Traversable


#: The file of a folder that holds no patches; `about.py` reads it.
ABOUT: Final = "about"


def shipped_tables() -> list[str]:
    """Return the names of the patch tables that come with the package, sorted."""
    return [name for name in _shipped_files() if not _is_about(name)]


def trainer_of(name: str) -> str:
    """Return the trainer of a shipped table, by the table's name: its folder."""
    return name.partition("/")[0]


def abouts() -> list[str]:
    """Return the names of the files about trainers that come with the package, sorted."""
    return [name for name in _shipped_files() if _is_about(name)]


def _is_about(name: str) -> bool:
    return name.rpartition("/")[2] == ABOUT


def _shipped_files() -> list[str]:
    root = _shipped_root()
    return sorted(
        f"{folder.name}/{file.name.removesuffix('.toml')}"
        for folder in root.iterdir()
        if folder.is_dir()
        for file in folder.iterdir()
        if file.name.endswith(".toml")
    )


def read_table(name: str) -> str:
    """Return the text of a table: of a shipped one by its name, of any other by its path."""
    if name.endswith(".toml"):
        return read_regular(name).decode()
    return _shipped_root().joinpath(f"{name}.toml").read_text(encoding="utf-8")


@lru_cache(1)  # it is asked for each table
def _shipped_root() -> "Traversable":
    """Return `patches/`: inside the package in a wheel, beside it in a checkout."""
    inside = resources.files("sglang_instrument") / "patches"
    if inside.is_dir():
        return inside
    return Path(__file__).resolve().parents[3] / "patches"
