"""The script of the docs profiles a job from start to answer, and ends the job; the servers are stand-ins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from documented import ROOT
from profile_stand_ins import StandIn, served

SCRIPT = ROOT / "docs/how-to/profile-slime.sh"
#: The job: slime's command as far as it chooses and calls its rollout function.
JOB = """
import importlib, sys
path = sys.argv[sys.argv.index("--rollout-function-path") + 1]
module, _, name = path.rpartition(".")
class Arguments:
    sglang_router_ip, sglang_router_port = "127.0.0.1", int(sys.argv[1])
getattr(importlib.import_module(module), name)(Arguments, 0, None, evaluation=False)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    command = tmp_path / "bin/sglang-instrument"
    command.parent.mkdir()
    run = "import sys; from sglang_instrument.cli.main import main; sys.exit(main())"
    command.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{run}' \"$@\"\n")
    command.chmod(0o755)
    path = {"PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **path, "TMPDIR": str(tmp_path), "REQUESTS": "2", "STEPS": "3"}


def test_the_script_profiles_the_waiting_job_and_ends_it(tmp_path: Path, environment: dict[str, str]) -> None:
    with served(StandIn(), StandIn()) as servers:
        urls = [server.url for server in servers]
        with served(StandIn(kind="router", workers=urls)) as (router,):
            port = router.url.rpartition(":")[2]
            job = [sys.executable, "-c", JOB, port]
            ended = subprocess.run(
                [SCRIPT, tmp_path / "out", *job], env=environment, capture_output=True, text=True, timeout=600
            )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 of 2 workers" in ended.stdout
    assert "4 of 4 probe requests were answered" in ended.stdout
    assert "aten::mm" in ended.stdout.rpartition("probe requests")[2]
    assert len(list((tmp_path / "out/traces").rglob("*.trace.json.gz"))) == 2
    assert "ended by" in (tmp_path / "out/train.log").read_text(), "the rollout was woken, not killed"


def test_a_job_that_ends_before_its_engines_are_up_ends_the_script_with_its_last_lines(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    job = [sys.executable, "-c", "raise SystemExit('no GPU')"]
    ended = subprocess.run(
        [SCRIPT, tmp_path / "out", *job], env=environment, capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 1
    assert "no GPU" in ended.stderr
    assert "the job ended before its engines were up" in ended.stderr


def test_without_a_command_the_script_says_how_it_is_called() -> None:
    ended = subprocess.run([SCRIPT], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("Profile the engines of a slime job")
