"""Check each node of a Ray cluster: the package, its start-up hook, access to the driver's folder."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sglang_instrument import __version__
from sglang_instrument.cli import ray_node
from sglang_instrument.collect.by_ray import connect
from sglang_instrument.config import Config
from sglang_instrument.startup import run_ids

_ANSWER_SEC: Final = 180  # a node may have to start a worker first


def examine_nodes(address: str, config: Config, folder: Path) -> Iterator[tuple[str, bool, str, str]]:
    """Yield (node, ok, what was found, what to do) for each node that is alive.

    Args:
        address: Address of the cluster, as `ray.init` takes it; "auto" finds the one of this machine.
        config: The settings that the workers would get.
        folder: An existing folder on the file system of the run's folder.

    Raises:
        InstrumentError: Ray is not installed, or there is no such cluster.
    """
    variables = {name: value for name, value in config.environment().items() if value}
    ray = connect(address, {**variables, run_ids.SWITCH: "1"})
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".sglang_instrument-") as mark:
            ray.cloudpickle.register_pickle_by_value(ray_node)  # for a node that lacks this package
            for node in sorted(ray.nodes(), key=lambda node: str(node["NodeManagerAddress"])):
                if node["Alive"]:
                    name = f"{node['NodeManagerAddress']} {node['NodeID'][:6]}"
                    yield (name, *_answer(ray, node["NodeID"], mark.name))
    finally:
        ray.shutdown()


def _answer(ray: Any, node_id: str, mark: str) -> tuple[bool, str, str]:
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
    look = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(ray_node.look)
    try:
        return judge(ray.get(look.remote(mark, _patched_packages()), timeout=_ANSWER_SEC))
    except Exception as error:  # whatever Ray raises for a node
        return (
            False,
            f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            "read Ray's own logs",
        )


def _patched_packages() -> list[str]:
    from sglang_instrument.patching.tables.reading import load_tables

    return sorted({table.package for table in load_tables()} - {"sglang-instrument"})


def judge(seen: dict[str, Any]) -> tuple[bool, str, str]:
    """Return whether a node is ok, what was found there, and what to do."""
    python = f"Python {seen['python']} on {seen['host']}"
    if seen["version"] is None:
        return (
            False,
            f"{python} has no sglang_instrument",
            "run `python -m pip install .` there in a checkout",
        )
    results = [f"sglang_instrument {seen['version']}, {python}"]
    todo = ""
    if not seen["hook"]:
        results.append("no start-up hook")
        todo = "install the package into this Python: PYTHONPATH alone does not load the hook"
    if seen["version"] != __version__:
        results.append(f"the driver has {__version__}")
        todo = todo or "install the same version on all nodes"
    if not seen["shared"]:
        results.append(f"{seen['folder']} is not the driver's folder")
        todo = todo or "set SGLANG_INSTRUMENT_LOG_DIR to a folder that all nodes share"
    elif seen["error"]:
        results.append(f"{seen['folder']}: {seen['error']}")
        todo = todo or "make it writable for the user that runs Ray"
    else:
        locks = "with locks" if seen["locks"] else "without locks"
        results.append(f"{seen['folder']} is shared and writable, {locks}")
    results += [f"{package} {version}" for package, version in seen["packages"].items()]
    return not todo, ", ".join(results), todo
