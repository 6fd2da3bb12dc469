"""Each way of starting ranks: which worker, run and launch their records name."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from logged import read_records
from ways_to_launch import LAUNCHERS, TORCHRUN

from sglang_instrument.analysis import open_run, read_processes
from sglang_instrument.launchers import key_of, rank_of

#: Ranks of one launch are there together: no step ends before all have begun it.
RANKS = """
import os, pathlib, sys, time
import sglang_instrument as si

si.install()
meeting, ranks, backend = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
for number in (1, 2):
    with si.step(number), si.span("total_step_duration"):
        if backend == "gloo":
            import torch.distributed as dist
            number == 1 and dist.init_process_group("gloo")
            dist.barrier()
        else:  # importing torch takes each process seconds
            (meeting / f"{number}-{os.getpid()}").touch()
            while len(list(meeting.glob(f"{number}-*"))) < ranks:
                time.sleep(0.02)
    si.flush()  # each has a log before the next step, and ends after it: they write at the same time
"""


@pytest.mark.parametrize(
    ("environment", "rank", "key"),
    [
        ({}, None, None),
        ({"RANK": "3", "MASTER_ADDR": "a", "MASTER_PORT": "5"}, 3, "master a:5"),
        ({"RANK": "3", "MASTER_ADDR": "user:pass@a", "MASTER_PORT": "5"}, 3, "master a:5"),
        ({"RANK": "3", "MASTER_ADDR": "a", "TORCHELASTIC_RUN_ID": "none"}, 3, "master a:"),
        ({"RANK": "3", "MASTER_ADDR": "a", "TORCHELASTIC_RUN_ID": "7"}, 3, "torchelastic 7"),
        (
            {"SLURM_JOB_ID": "9", "SLURM_STEP_ID": "1", "SLURM_PROCID": "2", "SLURM_NTASKS": "4"},
            2,
            "slurm 9.1",
        ),
        ({"SLURM_JOB_ID": "9", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None, "slurm 9."),  # a batch script
        ({"OMPI_COMM_WORLD_RANK": "2", "PMIX_NAMESPACE": "prterun-h-1@1"}, 2, "mpi prterun-h-1@1"),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_MCA_ess_base_jobid": "77"}, 2, "mpi 77"),
        ({"PMI_RANK": "1", "PMI_JOBID": "j"}, 1, "mpi j"),
        ({"RANK": "x"}, None, None),
    ],
)
def test_rank_and_launch_come_from_the_launchers_variables(environment, rank, key):
    assert (rank_of(environment), key_of(environment)) == (rank, key)


@pytest.fixture
def started(tmp_path):
    """Start ranks: `started(command, environment...)`, one process for each environment; returns the run.

    `command` returns the command of a process, by its number and the program of a rank with its arguments;
    a process starts `each` ranks.
    """
    program = tmp_path / "ranks.py"
    program.write_text(RANKS)

    def start(command, *environments, each=1, backend=""):
        of_launchers = (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "MASTER_",
            "SLURM_",
            "OMPI_",
            "PMI",
            "TORCHELASTIC",
        )
        clean = {name: text for name, text in os.environ.items() if not name.startswith(of_launchers)}
        clean |= {"EXPERIMENT_NAME": "run", "SGLANG_INSTRUMENT_LOG_DIR": str(tmp_path / "logs")}
        clean |= {"OMP_NUM_THREADS": "1"}
        meeting = Path(tempfile.mkdtemp(dir=tmp_path))
        rank = [str(program), str(meeting), str(each * len(environments)), backend]
        processes = [
            subprocess.Popen([sys.executable, *command(number, rank)], env=clean | environment)
            for number, environment in enumerate(environments)
        ]
        assert [process.wait(600) for process in processes] == [0] * len(processes)
        return open_run(tmp_path / "logs" / "run")

    return start


def described(run):
    """Return the workers of the newest run, and how many of its records were left out."""
    workers = sorted(set(run.digest.steps["worker"].to_list()))
    return workers, run.health.records, len(run.health.runs), run.health.older, run.health.at_once


def torchrun(*options):
    return lambda number, rank: [
        *("-m", "torch.distributed.run", "--nproc-per-node", "2", *options),
        *(("--node-rank", str(number)) if "--nnodes" in options else ()),
        *rank,
    ]


SWITCHED = {"SGLANG_INSTRUMENT": "1"}
FIXED = "torchrun, with a fixed master"


def assert_one_run(run, ranks):
    assert described(run) == (ranks, 2 * len(ranks), 1, {}, [])
    processes = read_processes(run.folder)
    assert sorted(facts["rank"] for facts in processes.processes.values()) == ranks
    assert processes.older == []


@pytest.mark.parametrize(
    ("way", "switch"),
    [
        *((way, {}) for way in TORCHRUN if way != FIXED),  # which the next test starts, twice
        ("torchrun on two nodes, with a fixed master", SWITCHED),
    ],
)
def test_ranks_of_torchrun_are_one_run(started, way, switch):
    pytest.importorskip("torch")
    options, nodes = TORCHRUN[way]
    run = started(torchrun(*options), *[switch] * nodes, each=2)
    assert_one_run(run, list(range(2 * nodes)))


def test_a_second_launch_with_the_same_master_is_another_run(started):
    pytest.importorskip("torch")
    first = started(torchrun(*TORCHRUN[FIXED].options), {}, each=2, backend="gloo")
    assert_one_run(first, [0, 1])
    run = started(torchrun(*TORCHRUN[FIXED].options), {}, each=2)
    assert (run.health.records, run.health.at_once) == (4, [])
    assert run.health.older == {first.health.runs[0]: 4}
    assert "the newest of 2" in run.name


@pytest.mark.parametrize("variables", LAUNCHERS.values(), ids=LAUNCHERS)
def test_ranks_of_slurm_of_mpi_and_of_a_script_are_one_run(started, variables):
    run = started(lambda _, rank: rank, variables("0"), variables("1"))
    assert described(run) == ([0, 1], 4, 1, {}, [])


def test_two_scripts_that_share_an_experiment_at_the_same_time_are_named(started, tmp_path):
    run = started(lambda _, rank: rank, {}, {})
    assert len(run.health.at_once) == 2
    assert "2 launches wrote here at the same time" in run.health.sentence()
    files = read_records(Path(tmp_path) / "logs" / "run")
    assert len(files) == 4  # none was lost: the second process has a file of its own
