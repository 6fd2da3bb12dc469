"""Check each node of a Ray cluster: the package, its start-up hook, the folder, and its actors' Pythons."""

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sglang_instrument import __version__
from sglang_instrument.cli import ray_node
from sglang_instrument.collect.by_ray import connect
from sglang_instrument.config import Config
from sglang_instrument.plain_text import listed
from sglang_instrument.startup import run_ids

_ANSWER_SEC: Final = 180  # a node may have to start a worker first


#: What gives an actor a Python of its own, in its runtime environment; the first is a command.
_OTHER_PYTHON: Final = ("py_executable", "conda", "pip", "uv", "image_uri", "container")

#: Whether it is as it should be (None: the reader judges), what was found, and what to do.
Judgement = tuple[bool | None, str, str]
#: By Python of a node's actors, as their runtime environment names it: the classes of the actors.
Classes = dict[str, list[str]]


def examine_nodes(address: str, config: Config, folder: Path) -> Iterator[tuple[str, bool | None, str, str]]:
    """Yield (node, ok, what was found, what to do) for each node that is alive and each Python of its actors.

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
            pythons, complaint = _pythons_of_actors(ray)
            for node in sorted(ray.nodes(), key=lambda node: str(node["NodeManagerAddress"])):
                if node["Alive"]:
                    name = f"{node['NodeManagerAddress']} {node['NodeID'][:6]}"
                    for judgement in _answers(ray, node["NodeID"], mark.name, pythons[node["NodeID"]]):
                        yield (name, *judgement)
            if complaint:
                yield ("actors", None, complaint, "")
    finally:
        ray.shutdown()


def _answers(ray: Any, node_id: str, mark: str, classes: Classes) -> Iterator[Judgement]:
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
    look = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(ray_node.look)
    paths = [python for python in classes if python.startswith("/") and " " not in python]
    try:
        seen = ray.get(look.remote(mark, _patched_packages(), paths), timeout=_ANSWER_SEC)
    except Exception as error:  # whatever Ray raises for a node
        reason = str(error).strip().partition(chr(10))[0]
        yield False, f"{type(error).__name__}: {reason}", "read Ray's own logs"
        return
    yield judge(seen)
    for python, names in sorted(classes.items()):
        if python != seen["executable"]:
            yield judge_python(python, names, python in paths, seen["pythons"].get(python))


def _pythons_of_actors(ray: Any) -> tuple[defaultdict[str, Classes], str]:
    """Return by node the Pythons of its actors that are not the node's own, and why if they are not known."""
    nodes: defaultdict[str, Classes] = defaultdict(dict)
    try:  # Ray has no public way without its dashboard
        table = ray._private.state.state._connect_and_get_accessor().get_actor_table(None, "ALIVE")
        for row in table:
            actor = ray._private.state.gcs_pb2.ActorTableData.FromString(row)
            python = other_python(json.loads(actor.serialized_runtime_env or "{}"))
            if python is not None:
                nodes[actor.address.node_id.hex()].setdefault(python, []).append(actor.class_name)
    except Exception as error:
        return nodes, f"this Ray does not tell the Pythons of its actors: {type(error).__name__}: {error}"
    return nodes, ""


def other_python(runtime_env: dict[str, Any]) -> str | None:
    """Return what gives an actor a Python that may be another one than its node's; None if nothing does."""
    name = next((name for name in _OTHER_PYTHON if runtime_env.get(name)), None)
    if name is None or name == _OTHER_PYTHON[0]:
        return runtime_env.get(_OTHER_PYTHON[0]) or None
    return f"{name} {json.dumps(runtime_env[name], sort_keys=True)}"


def judge_python(python: str, classes: list[str], is_path: bool, seen: dict[str, Any] | None) -> Judgement:
    """Return whether the actors in a Python are recorded, what was found, and what to do."""
    actors = "1 actor" if len(classes) == 1 else f"{len(classes)} actors"
    where = f"{actors} ({listed(sorted(set(classes)), 3)}) in {python}"
    if not is_path:
        return None, f"{where}: not looked at, because that would make an environment", ""
    if seen is None:
        return None, f"{where}: that Python could not be started", ""
    command = f"{python} -m pip install ." if seen["pip"] else f"uv pip install --python {python} ."
    todo = f"if rollouts, rewards or engines run there, run `{command}` in a checkout on that node"
    if seen["version"] is None:
        return False, f"{where}: no sglang_instrument", todo
    if not seen["hook"]:
        return False, f"{where}: sglang_instrument {seen['version']}, no start-up hook", todo
    if seen["version"] != __version__:
        return False, f"{where}: sglang_instrument {seen['version']}, the driver has {__version__}", todo
    return True, f"{where}: sglang_instrument {seen['version']}", ""


def _patched_packages() -> list[str]:
    from sglang_instrument.patching.tables.reading import load_tables

    return sorted({table.package for table in load_tables()} - {"sglang-instrument"})


def judge(seen: dict[str, Any]) -> Judgement:
    """Return whether a node is ok, what was found there, and what to do."""
    python = f"Python {seen['python']} ({seen['executable']}) on {seen['host']}"
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
