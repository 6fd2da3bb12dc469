"""The package's Python knows no trainer by name: a new trainer is a folder of tables."""

import ast
import re

from documented import ROOT

PACKAGE = ROOT / "sglang_instrument"
#: SGLang is the engine, not a trainer.
TRAINERS = sorted({path.name for path in (ROOT / "patches").iterdir() if path.is_dir()} - {"sglang", "demo"})
NAMED = re.compile(rf"(?i)\b({'|'.join(TRAINERS)})\b|\b({'|'.join(TRAINERS)})[.:/]")
#: The demo is our own; a reader of another project's log is made for that project.
EXCEPT = {"demo", "foreign"}
#: Texts for people, which give an example.
HELPS = {"HELP", "EPILOG"}


def sentences_of(tree):
    """Return the constants of docstrings and help texts."""
    docstrings = [
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    ]
    helps = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        and node.value is not None
        and any(
            isinstance(target, ast.Name) and target.id in HELPS
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        )
    ]
    return {id(inner) for sentence in docstrings + helps for inner in ast.walk(sentence)}


def words(tree):
    """Yield each name and each string of the code that is no sentence for people, with its line."""
    spoken = sentences_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in spoken:
            if " " in node.value:
                continue  # a sentence, which may give an example
            yield node.lineno, node.value
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr


def test_no_trainer_is_named_in_the_code():
    assert len(TRAINERS) >= 4
    named = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not EXCEPT & set(path.relative_to(PACKAGE).parts)
        for text in [path.read_text()]
        if NAMED.search(text)
        for line, word in words(ast.parse(text))
        if NAMED.search(word)
    ]
    assert named == []


def test_each_trainer_says_what_it_is_as_a_whole():
    assert [name for name in TRAINERS if not (ROOT / "patches" / name / "about.toml").is_file()] == []
