"""Every import of this package names something that exists, also in scripts that tests write and in docs.

No linter reads a program in a string, and some scripts run only on a machine with a trainer or a cluster.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMPORT = re.compile(r"from (sglang_instrument[\w.]*) import (\([^)]*\)|[^\n;#]+)")
FOLDERS = ("tests", "benchmarks", "docs", "sglang_instrument")


def names_of(module):
    """Return the names that a module may define, or None if no file is that module's."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if file.with_suffix(".pyi").exists():  # names that a package loads when they are asked for
        file = file.with_suffix(".pyi")
    compiled = path.with_suffix(".pyx")
    if not file.exists():
        return set(re.findall(r"\w+", compiled.read_text())) if compiled.exists() else None
    source = file.read_text()
    names = (
        set(re.findall(r'"(\w+)"', source)) if file.name == "__init__.py" else set()
    )  # names made when asked for
    code = compile(source, str(file), "exec", dont_inherit=True)
    names.update(code.co_names)  # of the file itself: what it defines, assigns and imports
    names.update(text for text in code.co_consts if isinstance(text, str))  # annotated, without a value
    if path.is_dir():
        names |= {inner.stem for inner in path.iterdir()}
    return names


def imports_in(text):
    """Yield each pair of module and name that a text imports from this package."""
    for module, imported in IMPORT.findall(text):
        for clause in imported.strip("()").split(","):
            words = re.sub(r"#.*", "", clause).split()
            if words and words[0].isidentifier():
                yield module, words[0]


def test_each_import_names_something_that_exists():
    files = [
        path
        for folder in FOLDERS
        for ending in ("py", "md", "sh")
        for path in (ROOT / folder).rglob(f"*.{ending}")
    ]
    known: dict[str, set[str] | None] = {}
    missing = []
    imports = 0
    for path in [*files, ROOT / "README.md"]:
        for module, name in imports_in(path.read_text()):
            imports += 1
            if module not in known:
                known[module] = names_of(module)
            names = known[module]
            if names is None or name not in names:
                missing.append(f"{path.relative_to(ROOT)}: from {module} import {name}")
    assert imports > 1000
    assert not missing
