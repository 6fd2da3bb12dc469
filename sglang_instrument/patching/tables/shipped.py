"""Find the tables that come with the package, in a wheel or in a checkout, and read them."""

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_instrument.regular_files import read_regular

if TYPE_CHECKING:
    from importlib.abc import Traversable


def shipped_tables() -> list[str]:
    """Return the names of the tables that come with the package, sorted."""
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


def _shipped_root() -> "Traversable":
    """Return `patches/`: inside the package in a wheel, beside it in a checkout."""
    inside = resources.files("sglang_instrument") / "patches"
    if inside.is_dir():
        return inside
    return Path(__file__).resolve().parents[3] / "patches"
