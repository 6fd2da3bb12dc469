"""Check the Ray node that runs this, for `doctor --ray`; pickled by value: the node may lack this package."""

from __future__ import annotations

from typing import Any


def look(mark: str, trainers: list[str], pythons: list[str]) -> dict[str, Any]:
    """Return the versions, the hook, the folder and the other Pythons of this node.

    Args:
        mark: A file that the driver made in the folder of the logs and keeps open.
        trainers: The distributions that the shipped tables patch.
        pythons: Paths of the Pythons in which actors run here.
    """
    import importlib.metadata
    import platform
    import sys
    from pathlib import Path

    def version(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    error, locks = write(Path(mark).parent)
    packages = {name: version(name) for name in trainers}
    return {
        "host": platform.node(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "pythons": {python: ask(python) for python in pythons if python != sys.executable},
        "version": version("sglang-instrument"),
        "hook": "sglang_instrument.startup.python_startup" in sys.modules,
        "folder": str(Path(mark).parent),
        "shared": Path(mark).exists(),
        "error": error,
        "locks": locks,
        "packages": {name: installed for name, installed in packages.items() if installed is not None},
    }


def ask(python: str) -> dict[str, Any] | None:
    """Start a Python; return its version of this package, if it has the hook, and pip; None if it fails."""
    import json
    import subprocess

    code = """if True:
        import importlib.util as util, json, os, sys
        version = None
        if util.find_spec("sglang_instrument"):
            import sglang_instrument
            version = sglang_instrument.__version__
        hook = "sglang_instrument.startup.python_startup" in sys.modules
        facts = {"version": version, "hook": hook, "pip": util.find_spec("pip") is not None}
        os.write(1, json.dumps(facts).encode())
    """
    try:
        done = subprocess.run([python, "-c", code], check=True, capture_output=True, timeout=60)  # noqa: S603 - an actor's
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None
    return answer


def write(folder: Any) -> tuple[str, bool]:
    """Return why a file cannot be written into `folder`, "" if it can, and whether file locks work there."""
    import fcntl
    import tempfile

    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".sglang_instrument-") as first:
            first.write(b"\n")
            first.flush()
            try:
                fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with open(first.name, "rb+") as second:  # noqa: PTH123 - a module imported here must be on the node
                    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return "", True
            except OSError:
                return "", False
            return "", False
    except OSError as error:
        return str(error.strerror), False
