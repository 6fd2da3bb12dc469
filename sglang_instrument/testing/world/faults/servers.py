"""What may go wrong with servers and the router before them."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sglang_instrument.testing.world.faults.fault import AtStep, FaultKind, Sizes, Span, WorldFault, parts
from sglang_instrument.testing.world.rollout.shape import (
    ASYNCHRONOUS,
    DRAINED,
    ONE_OFF,
    OVERSAMPLED,
    OWN,
    ROUTED,
    WorldShape,
)
from sglang_instrument.testing.world.serving.calls import ServerShape
from sglang_instrument.testing.world.serving.clock import FOREVER

if TYPE_CHECKING:
    from sglang_instrument.testing.world.serving.server import Server
    from sglang_instrument.testing.world.stage import Stage

_NOISE_SEC: Final = 2.0
_BEHIND: Final = (ROUTED, ROUTED, OVERSAMPLED, ONE_OFF, ASYNCHRONOUS, DRAINED)
_ROLLED: Final = (ROUTED, ONE_OFF, OVERSAMPLED)


def _of(fault: WorldFault, stage: "Stage") -> "list[Server]":
    return stage.servers if fault.server is None else [stage.servers[fault.server]]


def _slow_decode(fault: WorldFault, stage: "Stage") -> None:
    for server in _of(fault, stage):
        server.pace.add_spell(stage.clock.now, FOREVER, fault.size)


def _slow_prefill(fault: WorldFault, stage: "Stage") -> None:
    for server in _of(fault, stage):
        server.prefill_pace.add_spell(stage.clock.now, FOREVER, fault.size)


def _stand(fault: WorldFault, stage: "Stage") -> None:
    """Stand still from a tenth of the step on."""
    begin = stage.clock.now + 0.1 * fault.wall_sec
    for server in _of(fault, stage):
        for pace in (server.pace, server.prefill_pace):
            pace.add_spell(begin, begin + fault.size * fault.wall_sec, FOREVER)


def _throttle(fault: WorldFault, stage: "Stage") -> None:
    """Be slow from the midst of the first of the steps on."""
    is_first = len(stage.steps) == 1 or max(stage.steps) == fault.steps[0]
    begin = stage.clock.now + (0.2 * fault.wall_sec if is_first else 0.0)
    for server in _of(fault, stage):
        server.pace.add_spell(begin, FOREVER, fault.size)


def _noise(fault: WorldFault, stage: "Stage") -> None:
    """Be slow every other two seconds, for three minutes or as long as the step takes."""
    begin = stage.clock.now
    for server in _of(fault, stage):
        for turn in range(45):
            noisy = begin + 2 * turn * _NOISE_SEC
            server.pace.add_spell(noisy, noisy + _NOISE_SEC, fault.size)


def _warm_up(fault: WorldFault, stage: "Stage") -> None:
    """Stand still at the begin of the step: what is first used is compiled."""
    for server in _of(fault, stage):
        for pace in (server.pace, server.prefill_pace):
            pace.add_spell(stage.clock.now, stage.clock.now + fault.size * fault.wall_sec, FOREVER)


def _slow_way(fault: WorldFault, stage: "Stage") -> None:
    for server in _of(fault, stage):
        server.network_sec = fault.size


def _slow_tokenizer(fault: WorldFault, stage: "Stage") -> None:
    for server in _of(fault, stage):
        server.tokenize_sec = fault.size


def _stick(fault: WorldFault, stage: "Stage") -> None:
    if fault.server is not None:
        stage.router.stuck.append((stage.clock.now, FOREVER, fault.server, fault.size))


def _unstick(fault: WorldFault, stage: "Stage") -> None:
    stage.router.unsticky.append((stage.clock.now, FOREVER))


def _late_weights(fault: WorldFault, stage: "Stage") -> None:
    stage.knobs.transfer_sec[fault.server] = fault.size * fault.wall_sec


def _small_limit(fault: WorldFault, shape: ServerShape) -> ServerShape:
    return replace(shape, max_running=max(1, round(fault.size)))


def _small_cache(fault: WorldFault, shape: ServerShape) -> ServerShape:
    return replace(shape, kv_tokens=round(fault.size))


def _no_cache(fault: WorldFault, shape: ServerShape) -> ServerShape:
    return replace(shape, caches=False)


def long_prompts(shape: WorldShape) -> WorldShape:
    """Return a world whose prompts are long enough for prefills to matter."""
    work = replace(
        shape.work, system_tokens=400, question_tokens=(3000, 6000), go_on_share=0.75, most_turns=6
    )
    server = replace(shape.server, prefill_token_sec=1.2e-4, kv_tokens=1_500_000)
    return replace(shape, work=work, server=server)


def _short_replies(shape: WorldShape) -> WorldShape:
    """Return a world with a limit on replies that lets a small cache hold some of them."""
    work = replace(shape.work, system_tokens=60, question_tokens=(100, 500), max_new_tokens=768, most_turns=3)
    return replace(shape, work=work, server=replace(shape.server, kv_tokens=200_000))


def _busy(shape: WorldShape) -> WorldShape:
    """Return a world whose servers have few places more than they need."""
    calls = shape.groups * shape.members / shape.servers
    return replace(shape, server=replace(shape.server, max_running=max(4, round(0.8 * calls))))


def _server(
    part: frozenset[str],
    span: Span,
    sizes: Sizes,
    at_step: AtStep | None = None,
    families: tuple[str, ...] = _BEHIND,
    at_start: Callable[[WorldFault, ServerShape], ServerShape] | None = None,
    needs: Callable[[WorldShape], WorldShape] = lambda shape: shape,
) -> FaultKind:
    return FaultKind(part, "server", span, families, sizes, at_step, at_start, needs)


def _all(part: frozenset[str], span: Span, sizes: Sizes, at_step: AtStep) -> FaultKind:
    return FaultKind(part, "all", span, _ROLLED, sizes, at_step)


_DECODE: Final = parts("decode")
_STAND: Final = parts("standstill", "decode")
_KINDS: Final[dict[str, FaultKind]] = {
    "slow decode": _server(_DECODE, "all", (1.25, 1.7, 3.0), _slow_decode),
    "slow decode in a step": _server(_DECODE, "one", (1.4, 2.0, 4.0), _slow_decode),
    "slow decode from a step on": _server(_DECODE, "from", (1.3, 1.8, 3.0), _slow_decode),
    "slow prefill": _server(parts("prefill"), "all", (4.0, 10.0, 25.0), _slow_prefill, needs=long_prompts),
    "small limit": _server(parts("queue"), "all", (8, 4, 2), at_start=_small_limit),
    "small cache": _server(
        parts("kv", "queue", "retraction"),
        "all",
        (10000, 7500, 5600),
        at_start=_small_cache,
        needs=_short_replies,
    ),
    "stands for a time": _server(_STAND, "one", (0.15, 0.4, 1.2), _stand),
    "throttled": _server(_DECODE, "from", (1.5, 2.2, 4.0), _throttle),
    "noisy": _server(_DECODE, "one", (2.0, 4.0, 10.0), _noise),
}
#: The same of the only server of a worker: right is the worker, or its server.
_OWN_KINDS: Final = {
    f"engine: {name}": replace(kind, families=(OWN,))
    for name, kind in _KINDS.items()
    if name != "slow prefill"
}
SERVERS: Final[dict[str, FaultKind]] = {
    **{f"server: {name}": kind for name, kind in _KINDS.items()},
    **_OWN_KINDS,
    "server: no prefix cache": _server(
        parts("prefix", "prefill"), "all", (1, 1, 1), at_start=_no_cache, needs=long_prompts
    ),
    "server: slow network": _server(parts("network"), "all", (0.4, 1.2, 3.0), _slow_way),
    "server: slow tokenizer": _server(parts("tokenizer"), "all", (0.08, 0.2, 0.6), _slow_tokenizer),
    "server: cold in the first step": _server(
        parts("standstill", "decode", "cold"), "first", (0.2, 0.5, 1.2), _warm_up
    ),
    "server: weights late in a step": _server(parts("weights"), "one", (0.15, 0.4, 1.0), _late_weights),
    "router: stuck to a server in a step": _server(
        parts("routing", "queue", "decode"), "one", (0.5, 0.75, 1.0), _stick, _ROLLED, needs=_busy
    ),
    "router: stuck to a server from a step on": _server(
        parts("routing", "queue", "decode"), "from", (0.5, 0.75, 1.0), _stick, needs=_busy
    ),
    "router: forgets conversations": FaultKind(
        parts("routing", "prefix", "prefill"),
        "all",
        "from",
        (ROUTED, ONE_OFF),
        (1, 1, 1),
        _unstick,
        needs=long_prompts,
    ),
    "servers: slow decode in a step": _all(_DECODE, "one", (1.2, 1.5, 2.5), _slow_decode),
    "servers: slow decode from a step on": _all(_DECODE, "from", (1.2, 1.5, 2.5), _slow_decode),
    "servers: stand for a time": _all(_STAND, "one", (0.15, 0.4, 1.2), _stand),
    "servers: cold in the first step": _all(
        parts("cold", "decode", "standstill"), "first", (0.2, 0.5, 1.2), _warm_up
    ),
}
