"""Outside training, only `safe_files` writes, renames and deletes: it follows no link out of a run."""

import ast
from pathlib import Path

import pytest

import sglang_instrument

ROOT = Path(sglang_instrument.__file__).parent
FOLDERS = ("analysis", "collect", "live", "report", "traces", "cli")

#: Methods of paths and data frames, and functions of `shutil`, that change files; then those of `os`.
CHANGES = {
    *("write_text", "write_bytes", "unlink", "rmdir", "touch", "symlink_to", "hardlink_to", "rmtree", "move"),
    *("copyfile", "copy", "copy2", "copytree", "write_parquet"),
}
OF_OS = {"open", "rename", "replace", "link", "symlink", "mkdir", "makedirs", "remove", "truncate"}
READING = {"collect/on_node.py", "cli/main.py"}  # os.open() of a log, of the null device
ALLOWED = {
    "analysis/executors/worker_processes.py": "in a temporary folder of its own",
    "analysis/executors/earlier_dataset.py": "in a temporary folder of its own",
    "analysis/foreign/executor.py": "in a temporary folder of its own",
    "analysis/foreign/our_lines.py": "in the temporary folder of the executor",
    "analysis/digests/parquet.py": "into a file that safe_files opened",
    "collect/by_bucket.py": "an object in storage",
    "cli/commands/demo.py": "in the folder of the demo",
    "cli/commands/doctor.py": "a file of its own that it tries to lock",
    "cli/commands/patches.py": "a new file, which may not be there yet",
}


def changes_in(tree: ast.AST) -> list[str]:
    """Return the calls in a file that change files, by what they call."""
    changes = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, owner = node.func.attr, node.func.value
        of_module = owner.id if isinstance(owner, ast.Name) else ""
        modes = [argument.value for argument in node.args[:2] if isinstance(argument, ast.Constant)]
        opens = name == "open" and any(isinstance(mode, str) and set(mode) & set("wax+") for mode in modes)
        is_path = name == "replace" and len(node.args) == 1 and not node.keywords and of_module != "pl"
        frames = isinstance(owner, ast.Call) or of_module in {"msgspec", "pl", "left"}
        if opens or (name in CHANGES and of_module not in {"copy"}) or (of_module == "os" and name in OF_OS):
            changes.append(f"{of_module}.{name}")
        elif is_path and not frames and not isinstance(node.args[0], ast.Name | ast.Dict):
            changes.append(f"{of_module}.replace")
    return changes


def test_only_safe_files_changes_files() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    names = {path: path.relative_to(ROOT).as_posix() for path in files}
    wrong = {
        name: changes
        for path, name in names.items()
        if name not in ALLOWED
        and name not in READING
        and (changes := changes_in(ast.parse(path.read_text())))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    "line",
    [
        "path.write_text('x')",
        "path.unlink()",
        "shutil.rmtree(path)",
        "os.rename(a, b)",
        "path.open('wb')",
        "path.open('a+b', buffering=0)",
        "draft.replace(folder / name)",
        "table.write_parquet(path)",
    ],
)
def test_a_line_that_changes_a_file_is_found(line: str) -> None:
    assert changes_in(ast.parse(line))
