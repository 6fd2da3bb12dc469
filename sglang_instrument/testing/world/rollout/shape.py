"""Draw the shape of a world from its seed: how many servers, how fast, which router, which trainer."""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from sglang_instrument.testing.world.rollout.plans import ToolShape, WorkShape
from sglang_instrument.testing.world.serving.calls import ServerShape


@dataclass(frozen=True)
class WorldShape:
    """What a world is.

    Attributes:
        seed: All that is drawn follows from it.
        family: Which kind of training it is, one of FAMILIES.
        router: The router's policy.
        servers, workers, steps: How many there are.
        groups, members: Prompts of a step, and requests of a prompt.
        machine_speed: How many times the usual seconds each server takes.
        jitter: Deviation of the logarithm of a machine's speed, by windows of 4 s.
        skew_sec: By how much the clocks of the servers, the workers and the trainer are ahead.
        has_own_engines: Whether each worker calls an engine of its own, and not the router.
        has_barrier: Whether workers wait for each other at the end.
        waits_for_servers: Whether callers record which server the router chose, as verl does.
        scores_alone: Whether each request has its reward alone; else the trainer computes those of the batch.
        tool_places: Places of the tools that have a limit.
        resumes: Whether requests that new weights cut off go on under them; else updates wait for them.
        ahead_groups, active_groups: Groups that may be ahead of the trainer, and in flight.
        staleness: What the trainer says of its bound.
        oversampling, calls_at_once, filtered_share: Of the trainer that samples too many groups.
    """

    seed: str
    family: str
    server: ServerShape
    work: WorkShape
    router: str = "sticky"
    servers: int = 3
    workers: int = 4
    steps: int = 7
    groups: int = 8
    members: int = 8
    machine_speed: tuple[float, ...] = ()
    jitter: float = 0.03
    skew_sec: tuple[float, ...] = ()
    has_own_engines: bool = False
    has_barrier: bool = False
    waits_for_servers: bool = True
    scores_alone: bool = True
    reward_workers: int = 4
    reward_batch_sec: float = 1.5
    tool_places: dict[str, int] = field(default_factory=dict)
    train_sec: float = 15.0
    train_jitter: float = 0.05
    transfer_sec: float = 1.5
    checkpoint_every: int = 0
    checkpoint_sec: float = 4.0
    validate_every: int = 0
    validation_groups: int = 24
    resumes: bool = False
    ahead_groups: int = 8
    active_groups: int = 8
    staleness: dict[str, Any] = field(default_factory=dict)
    oversampling: float = 1.5
    calls_at_once: int = 512
    filtered_share: float = 0.0


ROUTED: Final = "servers behind a router"
OWN: Final = "own engines"
OVERSAMPLED: Final = "over-sampling"
ONE_OFF: Final = "one step off"
ASYNCHRONOUS: Final = "fully asynchronous"
DRAINED: Final = "asynchronous with drains"
FAMILIES: Final = (ROUTED, OWN, OVERSAMPLED, ONE_OFF, ASYNCHRONOUS, DRAINED)
#: Families in which the trainer trains while requests run.
OVERLAPPED: Final = (ONE_OFF, ASYNCHRONOUS, DRAINED)


def draw_shape(family: str, seed: int, *, hidden: bool = False) -> WorldShape:
    """Return the shape of a world.

    Args:
        family: One of FAMILIES.
        seed: Its number.
        hidden: Whether it is of the set on which nothing is tuned: other seeds, other sizes.
    """
    name = f"{'hidden' if hidden else 'open'}/{family}/{seed}"
    random = Random(name)
    servers, workers = (
        random.choice((3, 5, 6) if hidden else (2, 3, 4)),
        random.choice((3, 5, 6) if hidden else (2, 4)),
    )
    shape = WorldShape(
        seed=name,
        family=family,
        server=ServerShape(),
        work=_work(random, hidden),
        router=random.choice(("sticky", "sticky", "cache_aware", "round_robin", "least_load")),
        servers=servers,
        workers=workers,
        steps=random.choice((6, 7, 8)),
        members=random.choice((6, 12) if hidden else (4, 8)),
        jitter=random.uniform(0.01, 0.05),
        scores_alone=random.random() < 0.7,
        train_sec=random.uniform(8.0, 25.0),
        transfer_sec=random.uniform(0.5, 2.5),
        checkpoint_every=random.choice((0, 0, 3)),
        reward_workers=random.choice((2, 4)),
        tool_places=random.choice(({}, {}, {"search": 32})),
    )
    shape = _of_family(shape, random)
    shape = replace(shape, groups=max(2, round(random.uniform(14, 22) * shape.servers / shape.members)))
    if family in (ASYNCHRONOUS, DRAINED):
        shape = _streamed(shape, random)
    hosts = shape.servers + shape.workers + 1
    spread = random.choice((0.0, 0.02, 0.05))
    skewed = random.random() < 0.3
    return replace(
        shape,
        server=_server(random, shape, hidden),
        machine_speed=tuple(random.lognormvariate(0.0, spread) for _ in range(shape.servers)),
        skew_sec=tuple(random.uniform(-2.0, 2.0) * skewed for _ in range(hosts)),
    )


def _work(random: Random, hidden: bool) -> WorkShape:
    tools = [
        ToolShape("search", random.uniform(0.5, 2.0), random.uniform(0.3, 0.8)),
        ToolShape("python", random.uniform(0.1, 0.8), random.uniform(0.3, 0.8)),
    ]
    if hidden:
        tools.append(ToolShape("browser", random.uniform(1.0, 3.0), 0.4))
    return WorkShape(
        system_tokens=random.choice((60, 300, 900)),
        question_tokens=random.choice(((60, 300), (200, 900))),
        tokens_log=random.uniform(4.6, 5.6) if hidden else random.uniform(4.9, 5.4),
        tokens_sigma=random.uniform(0.4, 0.8),
        group_sigma=random.uniform(0.1, 0.4),
        max_new_tokens=random.choice((1536, 3072) if hidden else (1024, 2048)),
        most_turns=random.choice((1, 3, 8) if hidden else (3, 5)),
        go_on_share=random.uniform(0.4, 0.7),
        tools=tuple(tools),
        reward_sec=random.uniform(0.02, 0.3),
        reward_sigma=random.uniform(0.3, 0.7),
        environment_sec=random.choice((0.0, 0.0, 0.5)),
        growth=random.choice((0.0, 0.0, 0.02)),
    )


def _server(random: Random, shape: WorldShape, hidden: bool) -> ServerShape:
    """Draw a server that has room for its share of the requests, and sometimes just so."""
    calls = shape.groups * shape.members / shape.servers
    slow = random.uniform(0.6, 2.0) if hidden else random.uniform(0.8, 1.3)
    longest = shape.work.system_tokens + shape.work.question_tokens[1] + 2 * shape.work.max_new_tokens
    return ServerShape(
        max_running=random.choice((48, 128)),
        kv_tokens=max(3 * longest, round(calls * random.uniform(1000, 5000))),
        chunk_tokens=random.choice((2048, 8192)),
        decode_sec=0.018 * slow,
        decode_request_sec=0.00022 * slow * random.uniform(0.5, 2.0),
        decode_token_sec=5e-8 * slow * random.uniform(0.5, 2.0),
        prefill_sec=0.012 * slow,
        prefill_token_sec=6e-5 * slow,
        network_sec=random.choice((0.0005, 0.002, 0.02)),
    )


def _of_family(shape: WorldShape, random: Random) -> WorldShape:
    if shape.family == OWN:
        count = random.choice((2, 2, 4, 6))
        barrier: dict[str, Any] = {"has_own_engines": True, "has_barrier": True, "waits_for_servers": False}
        return replace(shape, servers=count, workers=count, **barrier)
    if shape.family == OVERSAMPLED:
        router = random.choice(("cache_aware", "round_robin"))
        sampled: dict[str, Any] = {
            "oversampling": random.uniform(1.1, 1.6),
            "filtered_share": random.choice((0.0, 0.2, 0.35)),
        }
        places = random.choice((512, 24 * shape.servers))
        return replace(
            shape, workers=1, router=router, waits_for_servers=False, calls_at_once=places, **sampled
        )
    if shape.family == ROUTED:
        return replace(shape, validate_every=random.choice((0, 0, 3)))
    return shape


def _streamed(shape: WorldShape, random: Random) -> WorldShape:
    """Return a world of a trainer that takes groups from a queue: about as fast as its rollout."""
    active = max(2, round(shape.groups * random.uniform(0.8, 1.2)))
    bound = random.uniform(0.5, 1.0)
    if shape.family == DRAINED:
        return replace(
            shape,
            waits_for_servers=False,
            active_groups=active,
            ahead_groups=max(1, round(bound * shape.groups)),
            staleness={"max_staleness": 1},
            steps=8,
        )
    return replace(
        shape,
        resumes=True,
        active_groups=active,
        ahead_groups=max(1, round(bound * shape.groups)),
        staleness={"staleness_threshold": round(bound, 2)},
        steps=8,
    )
