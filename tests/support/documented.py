"""Read the fenced blocks, commands and links of README.md, docs/, patches/README.md and benchmarks/."""

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Not checked: the changelog describes earlier versions, the support matrix is generated.
PAGES = [
    ROOT / "README.md",
    ROOT / "patches/README.md",
    ROOT / "benchmarks/README.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page.name not in ("changelog.md", "support-matrix.md")
    ),
]
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*")
_OURS = ("sglang-instrument", ".venv/bin/sglang-instrument")


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, the number of its first line, its language and its text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self):
        return f"{self.page}:{self.line}"

    @property
    def lines(self):
        """The lines; a line that ends with a backslash is joined with the next."""
        return self.text.replace("\\\n", " ").splitlines()


def blocks(language=None):
    """Return the blocks of all pages, or those of one language."""
    all_blocks = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            place = text.count("\n", 0, match.start(3)) + 1
            all_blocks.append(Block(str(page.relative_to(ROOT)), place, match[2], textwrap.dedent(match[3])))
    return [block for block in all_blocks if language in (None, block.language)]


def inline(page, start):
    """Return the inline code of a page that begins with `start`."""
    text = re.sub(_FENCE, "", page.read_text(encoding="utf-8"))
    return [code for code in re.findall(r"`([^`\n]+)`", text) if code.startswith(start)]


def own_commands():
    """Return (place, words after `sglang-instrument`) of each of our commands in blocks and inline code."""
    commands = [(str(block), _words(line)) for block in blocks() for line in block.lines]
    for page in PAGES:
        commands += [
            (str(page.relative_to(ROOT)), _words(code)) for code in inline(page, "sglang-instrument ")
        ]
    return [
        (place, command)
        for place, words in commands
        if words and words[0] in _OURS
        for command in _alternatives(words[1:])
    ]


def _alternatives(words):
    """Return the commands of a line: `turns | lengths | gaps` are three."""
    while "|" in words:
        bar = words.index("|")
        yield words[:bar]
        words = words[bar + 1 :]
    yield words


def shell_blocks():
    """Return the blocks for a shell: by their language, or because they begin with the call of a program."""
    plain = [block for block in blocks("") if programs(block, first=True)]
    return [*blocks("bash"), *plain]


def programs(block, first=False):
    """Return the programs that a shell block, or its first line, calls; without shell keywords.

    They are ours, files of the source tree, or in PROGRAMS.
    """
    lines = block.lines[:1] if first else block.lines
    called = [words[0] for line in lines for call in line.split(" && ") if (words := _words(call))]
    known = {*PROGRAMS, "sglang-instrument", "make"}
    return {Path(name).name for name in called if Path(name).name in known or (ROOT / name).is_file()}


#: Other programs that the examples call, and why no test runs them.
PROGRAMS = {
    "python": "a trainer or a server is started: tests/trainers run those that can be had here",
    "ray": "needs a cluster of Ray's, and a trainer",
    "srun": "needs Slurm, and a trainer",
    "docker": "needs Docker, and a trainer's image",
    "nsys": "needs a GPU and Nsight Systems",
    "vllm": "needs vLLM",
    "uv": "needs NeMo-RL's environments",
}


def _words(line):
    try:
        return shlex.split(_PROMPT.sub("", line.strip()), comments=True)
    except ValueError:  # a quoted string that continues on the next line
        return _PROMPT.sub("", line.strip()).split()
