"""Start the ranks of a launch in every way: tests run them, and a page of the documentation lists them."""

from typing import NamedTuple

STEP = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}
MPI = {"OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-host-77@1"}


class Torchrun(NamedTuple):
    """A way to start torchrun: its options, and on how many nodes."""

    options: tuple[str, ...]
    nodes: int


#: By real torchruns, with two ranks on each node.
TORCHRUN = {
    "torchrun, with a fixed master": Torchrun(("--master-port", "29641"), 1),
    "torchrun `--standalone`": Torchrun(("--standalone",), 1),
    "torchrun on two nodes, with a fixed master": Torchrun(
        ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", "29642"), 2
    ),
}

#: By launchers that start each rank with these variables.
LAUNCHERS = {
    "`srun`": lambda rank: {**STEP, "SLURM_PROCID": rank},
    "`mpirun` of Open MPI": lambda rank: {**MPI, "OMPI_COMM_WORLD_RANK": rank},
    "`mpiexec` of MPICH or Intel MPI": lambda rank: {"PMI_RANK": rank, "PMI_JOBID": "77"},
    "a script that sets `RANK` and the master": lambda rank: {
        "RANK": rank,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29644",
    },
}


def rank_variable(way):
    """Return the variable by which a launcher tells a process its rank."""
    if way in TORCHRUN:
        return "RANK"
    first, second = LAUNCHERS[way]("0"), LAUNCHERS[way]("1")
    (name,) = (name for name in first if first[name] != second[name])
    return name
