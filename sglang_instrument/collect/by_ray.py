"""Reach the nodes of a Ray cluster by tasks that take no CPU, each pinned to its node."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from sglang_instrument.collect import on_node
from sglang_instrument.collect.nodes import Function
from sglang_instrument.errors import InstrumentError

_ANSWER_SEC: Final = 600  # a node may have to start a worker first, and to hash a GB of a slow disk
_CONNECT_SEC: Final = 10.0
_AHEAD: Final = 2  # calls under way a node: one is computed while the other travels


def connect(address: str, variables: Mapping[str, str]) -> Any:
    """Return Ray, connected to a cluster.

    Args:
        address: As `ray.init` takes it; "auto" finds the cluster of this machine.
        variables: Environment variables of the tasks.

    Raises:
        InstrumentError: Ray is not installed, or there is no such cluster.
    """
    try:
        import ray
    except ImportError:
        raise InstrumentError("--ray: Ray is not installed here; run this where the driver runs") from None
    if ray.is_initialized():  # a notebook, or the driver of a training
        return ray
    _find(address)
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": dict(variables)},
        )
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise InstrumentError(
            f"--ray: no cluster at {address!r} ({reason}); start one with `ray start --head`, or give "
            "its address"
        ) from None
    return ray


def _find(address: str) -> None:
    """Look whether something answers at `host:port`: Ray itself would try a wrong address for minutes.

    Raises:
        InstrumentError: Nothing answers.
    """
    host, _, port = address.rpartition(":")
    if not host or "://" in address or not port.isdecimal():  # "auto", "local", ray://host:port
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SEC).close()
    except (OSError, OverflowError) as error:
        raise InstrumentError(
            f"--ray: nothing answers at {address!r} ({error}); `ray status` on the head node has its address"
        ) from None


class RayNodes:
    """The nodes of a cluster that `connect` has connected to.

    Args:
        ray: The module.
    """

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._names: dict[str, str] = {}  # by node id
        ray.cloudpickle.register_pickle_by_value(on_node)  # for a node that lacks this package

    def nodes(self) -> dict[str, RayNode]:
        """Return by id the nodes that are alive."""
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        self._name(alive)
        return {node["NodeID"]: self._node(node) for node in alive}

    def _node(self, node: dict[str, Any]) -> RayNode:
        name = self._names[node["NodeID"]]
        return RayNode(self._ray, node["NodeID"], name, node.get("Resources", {}).get("CPU", 0.0))

    def lost(self) -> dict[str, str]:
        """Return by name the nodes that have left or died, unless another runs on the same host now."""
        nodes = self._ray.nodes()
        here = {_host(node) for node in nodes if node["Alive"]}
        dead = [node for node in nodes if not node["Alive"]]
        known = {self._names[node["NodeID"]] for node in dead if node["NodeID"] in self._names}
        hosts = {_host(node) for node in dead if node["NodeID"] not in self._names}
        return dict.fromkeys([*sorted(known), *sorted(hosts - here)], "the node is dead, as Ray says")

    def _name(self, alive: list[dict[str, Any]]) -> None:
        """Name each node by its host, and by its id, too, if several run on that host."""
        hosts = Counter(_host(node) for node in alive)
        for node in alive:
            node_id, host = node["NodeID"], _host(node)
            self._names.setdefault(node_id, host if hosts[host] == 1 else f"{host}-{node_id[:6]}")


def _host(node: Mapping[str, Any]) -> str:
    return str(node.get("NodeManagerHostname") or node["NodeManagerAddress"])


class RayNode:
    """One node.

    Args:
        ray: The module.
        node_id: Ray's id of the node.
        name: Its name for people.
        cpus: How many CPUs Ray may use on it.
    """

    is_far = True

    def __init__(self, ray: Any, node_id: str, name: str, cpus: float) -> None:
        self.name = name
        self.cpus = cpus
        self._ray = ray
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
        #: Of a task that runs there or not at all.
        self.pinned: dict[str, Any] = {"scheduling_strategy": strategy}
        self._remote = ray.remote(num_cpus=0, max_retries=0, **self.pinned)

    def calls(self, function: Function, arguments: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Call a function there; the next call begins before an answer is taken."""
        remote = self._remote(function)
        left = iter(arguments)
        waiting = [remote.remote(*values) for values in islice(left, _AHEAD)]
        while waiting:
            answer = self._ray.get(waiting.pop(0), timeout=_ANSWER_SEC)
            waiting += [remote.remote(*values) for values in islice(left, 1)]
            yield answer
