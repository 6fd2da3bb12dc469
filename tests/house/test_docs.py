"""The pages agree with the code: settings, commands, events, public names; all links have a target."""

import ast
import importlib
import importlib.util
import re

import pytest
from documented import PAGES, ROOT, blocks
from msgspec import structs

import sglang_instrument
from sglang_instrument import analysis, config, schema
from sglang_instrument.analysis.verdict.detectors import CAUSES
from sglang_instrument.cli.main import COMMANDS, tables_of
from sglang_instrument.config import PREFIX, Config

SETTINGS = (ROOT / "docs/reference/settings.md").read_text()
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
#: Pages outside of docs/, whose links the strict build of the site does not check.
OUTSIDE = [
    "README.md",
    "SECURITY.md",
    "patches/README.md",
    "benchmarks/README.md",
    "benchmarks/results.md",
    "tests/logs/README.md",
    "CONTRIBUTING.md",
]


@pytest.fixture(scope="module")
def hooks():
    """The module that fills the placeholders of pages when the site is built."""
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs/hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(heading):
    """Return the cells of the table below a heading of the settings page."""
    table = SETTINGS.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def shown(default):
    """Return a default as the page shows it."""
    return "none" if default in ("", ()) else f"`{int(default) if isinstance(default, bool) else default}`"


#: Defaults that the page describes in words.
IN_WORDS = {
    "run_id": "made by the driver",
    "trainers": "all",
    "profile_options": "`num_steps=20` where nothing is set",
    "profile_router": "found from the trainer's objects",
}


def test_every_setting_stands_in_the_table_in_order_with_its_default():
    fields = structs.fields(Config)
    expected = [(field.name, IN_WORDS.get(field.name, shown(field.default))) for field in fields]
    assert [(cells[0].strip("`"), cells[2]) for cells in rows("All settings")] == expected


@pytest.mark.parametrize("name", ["sync", "durability", "detail", "engine_detail", "follower_priority"])
def test_the_values_of_a_setting_are_those_that_it_takes(name):
    [values] = [cells[1] for cells in rows("All settings") if cells[0] == f"`{name}`"]
    allowed, _ = config._RULES[name]
    named = re.findall(r"`(\w+)`", values)
    assert all(map(allowed, named))
    assert f"one of {', '.join(map(repr, named))}" == config._RULES[name][1]


def test_every_variable_of_the_code_is_on_the_page():
    sources = [*(ROOT / "sglang_instrument").rglob("*.py"), ROOT / "hatch_build.py"]
    named = {name for path in sources for name in re.findall(rf"{PREFIX}[A-Z_]*[A-Z]", path.read_text())}
    settings = {PREFIX + field.name.upper() for field in structs.fields(Config)}
    inside_the_build = {f"{PREFIX}STAMP"}
    assert {name for name in named - settings - inside_the_build if f"`{name}`" not in SETTINGS} == set()


def test_the_site_fills_in_every_command_event_and_table(hooks):
    filled = hooks.on_page_markdown("{{ commands }}\n\n{{ events }}\n\n{{ tables }}\n\n{{ columns }}")
    assert all(f"\n## {name}\n" in f"\n{filled}" for name in COMMANDS)
    assert all(f"| `{name}` | {kind.phase} |" in filled for name, kind in schema.EVENTS.items())
    for path in (ROOT / "patches").rglob("*.toml"):
        assert path.read_text().splitlines()[0] in filled
    causes = hooks.on_page_markdown("{{ causes }}")
    for cause in CAUSES.values():
        assert f"`{cause.name}`" in causes
        assert f"| {cause.scopes} | {cause.named_if} |" in causes
    pages = "\n".join(page.read_text() for page in PAGES)
    started = hooks.on_page_markdown("{{ ways }}\n\n{{ launches }}")
    assert len(re.findall(r"^\| .* \| all \|", started, re.MULTILINE)) >= 30
    for way in (
        "`os.fork` |",
        "`multiprocessing.Process` | fork, spawn, forkserver |",
        "ray | a task, an actor |",
    ):
        assert f"| {way}" in started
    assert "| `srun` | all | one | `SLURM_PROCID` |" in started
    assert set(re.findall(r"^\{\{ (\w+) \}\}$", pages, re.MULTILINE)) == set(hooks._PARTS)


def test_every_public_name_is_on_the_page_of_the_api():
    page = (ROOT / "docs/reference/api.md").read_text()
    public = [f"sglang_instrument.{name}" for name in sglang_instrument.__all__]
    public += [f"sglang_instrument.analysis.{name}" for name in analysis.__all__]
    assert [name for name in public if f"::: {name}\n" not in page] == []


def anchors(page):
    """Return the ids of a page's headings."""
    words = (
        re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in HEADING.findall(page.read_text())
    )
    return {re.sub(r"[-\s]+", "-", heading) for heading in words}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_link_outside_of_the_site_leads_somewhere(name):
    page = ROOT / name
    for link in LINK.findall(page.read_text()):
        path, _, anchor = link.partition("#")
        if not path.startswith("http"):
            target = (page.parent / path) if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("name", OUTSIDE[1:4])
def test_a_page_that_the_site_includes_has_no_link_that_means_something_else_there(name):
    assert [link for link in LINK.findall((ROOT / name).read_text()) if not link.startswith("http")] == []


def test_pages_that_code_and_tables_name_are_there():
    folders = ["sglang_instrument", "patches", "tests", "benchmarks"]
    kinds = {".py", ".pyx", ".pxi", ".toml", ".html", ".js"}
    texts = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    named = {
        name for path in texts for name in re.findall(r"\b(?:docs|benchmarks)/[\w/-]+\.md", path.read_text())
    }
    assert named
    assert {name for name in named if not (ROOT / name).is_file()} == set()


def test_the_output_that_is_shown_has_the_columns_that_are_printed():
    commands = [
        importlib.import_module(COMMANDS[name]) for name in ("summary", "workers", "requests", "servers")
    ]
    columns = [column for command in commands for table in tables_of(command) for column in table.columns]
    known = {word for column in columns for word in column.header.split()} | {"s", "%"}
    screens = "docs/how-to/watch.md"  # tests/live/test_terminal.py draws them
    shown = [block for block in blocks("text") if "──" in block.text and block.page != screens]
    pages = {"README.md", "docs/tutorial/first-run.md", "docs/how-to/engine.md", "docs/how-to/servers.md"}
    assert {block.page for block in shown} == pages
    for block in shown:
        above = block.text.partition("──")[0].splitlines()
        titles = [
            index
            for index, line in enumerate(above)
            if line.startswith(("logs/", "what SGLang's own", "how full the schedulers"))
        ]
        header = above[titles[-1] + 1 :]
        assert " ".join(header).split(), str(block)
        assert set(" ".join(header).split()) <= known, str(block)


def patterns_of(path):
    """Return the strings of a source as regular expressions; what is filled in matches anything."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            words = "".join(part.value for part in node.values if isinstance(part, ast.Constant))
            parts = (
                re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in node.values
            )
            if len(words) > 8:  # else it fits nearly any line, and would prove nothing
                yield "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.escape(node.value)


def test_what_doctor_prints_on_the_page_of_troubleshooting_is_what_it_prints():
    page = (ROOT / "docs/how-to/troubleshooting.md").read_text()
    known = [*patterns_of(ROOT / "sglang_instrument/cli/commands/doctor.py")]
    [shown] = [block for block in blocks("text") if block.page == "docs/how-to/troubleshooting.md"]
    for line in shown.text.splitlines():
        about, finding = line[9:19].strip(), line[19:]
        assert about in known, line
        assert about == "folder" or any(re.fullmatch(pattern, finding) for pattern in known), (
            line
        )  # a path alone
    quoted = re.findall(r'"([^"\n]+)"(?= means| \| `doctor`)', page)
    assert len(quoted) == 2
    for words in quoted:
        assert any(re.escape(words) in pattern for pattern in known), words


@pytest.mark.parametrize(
    ("page", "table"),
    [
        ("README.md", "verl/server"),
        ("README.md", "verl/rollout"),
        ("docs/how-to/verl-server.md", "verl/server"),
        ("docs/how-to/verl.md", "verl/rollout"),
        ("docs/how-to/engine.md", "sglang/requests"),
    ],
)
def test_versions_that_a_page_names_are_those_of_the_support_matrix(page, table):
    matrix = (ROOT / "docs/reference/support-matrix.md").read_text()
    [every] = re.findall(rf"^\| \[{table}\].* ([\d.post]+ to [\d.post]+) \|", matrix, re.MULTILINE)
    section = matrix.partition(f"\n## {table}\n")[2].partition("\n## ")[0]
    first = section.strip().splitlines()[2].split(" | ")[1]
    assert (every if first == "all" else first) in (ROOT / page).read_text()


def test_the_pages_name_no_place_of_the_machine_that_made_them():
    for page in [*PAGES, *(ROOT / name for name in OUTSIDE)]:
        assert not re.search(r"/work/|/root/|/tmp/docs", page.read_text()), page


def test_licence_and_package_agree():
    assert (ROOT / "LICENSE").read_text().split()[:4] == ["Apache", "License", "Version", "2.0,"]
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text()


def test_a_test_of_a_line_is_found_by_its_folder():
    page = (ROOT / "docs/explanation/contributing.md").read_text()
    elsewhere = {"demo": "cli", "traces": "profilers", "native": "recording/measure"}
    for folder in sorted(path.parent.name for path in (ROOT / "sglang_instrument").glob("*/__init__.py")):
        tests = ROOT / "tests" / elsewhere.get(folder, folder)
        assert list(tests.rglob("test_*.py")), folder
        assert folder not in elsewhere or f"`tests/{elsewhere[folder]}`" in page
