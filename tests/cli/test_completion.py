"""The scripts of `completion` know every command and option, and bash completes by its script."""

import io
import shutil
import subprocess
from contextlib import redirect_stdout

import pytest

from sglang_instrument.cli.main import COMMANDS, main, parser_of

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder, scripts_by_shell = tmp_path_factory.mktemp("completion"), {}
    for shell in SHELLS:
        with redirect_stdout(io.StringIO()) as printed:
            assert main(["completion", shell]) == 0
        scripts_by_shell[shell] = folder / shell
        scripts_by_shell[shell].write_text(printed.getvalue())
    return scripts_by_shell


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_every_command_and_every_option(scripts, shell):
    script = scripts[shell].read_text()
    for name in COMMANDS:
        assert name in script
        for action in parser_of(name)._actions:
            for option in action.option_strings:
                assert (
                    option if shell != "fish" else f"-l {option[2:]}" if len(option) > 2 else "-s h"
                ) in script


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_valid(scripts, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", str(scripts[shell])], check=True)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["su"], ["summary"]),
        (["co"], ["completion", "compare", "collect"]),
        (["summary", "--st"], ["--step"]),
        (["requests", "logs", "--li"], ["--limit"]),
        (["plot", "logs", "--format", ""], ["png", "svg", "pdf"]),
        (["profile", "sta"], ["start", "status"]),
        (["summary", "pyproj"], ["pyproject.toml"]),
    ],
)
def test_bash_completes_what_is_typed(scripts, typed, offered):
    program = (
        'source "$0"; COMP_WORDS=(sglang-instrument "$@"); COMP_CWORD=$#; COMPREPLY=()\n'
        '_shtab_sglang_instrument sglang-instrument; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    asked = ["bash", "-c", program, str(scripts["bash"]), *typed]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert done.stdout.split() == offered


def test_another_shell_is_refused(capsys):
    assert main(["completion", "csh"]) == 2
    assert "invalid choice: 'csh'" in capsys.readouterr().err
