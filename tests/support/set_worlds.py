"""Worlds with settings: one of them wrong, all of them right, or as a lever proposes."""

from dataclasses import dataclass, replace
from random import Random
from statistics import mean

from sglang_instrument.gc_pause import uncollected
from sglang_instrument.testing.world.play import TRAINERS, walls
from sglang_instrument.testing.world.rollout.plans import ToolShape
from sglang_instrument.testing.world.rollout.shape import ONE_OFF, OWN, ROUTED, WorldShape, draw_shape
from sglang_instrument.testing.world.stage import REWARD_PLACES, Stage


@dataclass(frozen=True)
class SetWorld:
    """A world and the settings that its shape has not.

    Attributes:
        shape: The world.
        most_tokens, most_turns: Caps of a response and of its turns; a cut response ends.
        timeout_share, timeout_sec: Tool calls that never answer, and when they are given up.
        before_sec: Seconds of preprocessing in each step.
    """

    shape: WorldShape
    most_tokens: int = 1_000_000
    most_turns: int = 1_000
    timeout_share: float = 0.0
    timeout_sec: float = 0.0
    before_sec: float = 0.0

    def continued(self) -> "SetWorld":
        """Return the same world with other prompts: the steps that come."""
        return replace(self, shape=replace(self.shape, seed=f"{self.shape.seed}/next"))


class _SetStage(Stage):
    def __init__(self, world: SetWorld) -> None:
        super().__init__(world.shape)
        self._world = world

    def begin_step(self, step):
        super().begin_step(step)
        world, knobs = self._world, self.knobs
        knobs.timeout_share, knobs.timeout_sec = world.timeout_share, world.timeout_sec
        knobs.before_sec = dict.fromkeys(range(world.shape.workers), world.before_sec)

    def change(self, plans, rank):
        super().change(plans, rank)
        for plan in plans:
            left, turns = self._world.most_tokens, []
            for turn in plan.turns[: self._world.most_turns]:
                is_cut = turn.tokens > left
                turns.append(replace(turn, tokens=min(turn.tokens, left), tools=[] if is_cut else turn.tools))
                left -= turn.tokens
                if left <= 0:
                    break
            if len(turns) < len(plan.turns):
                turns[-1] = replace(turns[-1], tools=[])
            plan.turns = turns


def play_set(world: SetWorld) -> Stage:
    """Play a world; return it as it stands at its end."""
    stage = _SetStage(world)
    with uncollected():
        stage.play(TRAINERS[world.shape.family])
    return stage


def step_sec(stage: Stage) -> float:
    """Return the mean seconds of a step; where rollouts run ahead, without the first and the last one."""
    seconds = list(walls(stage).values())
    return mean(seconds[1:-1] if stage.shape.family == ONE_OFF else seconds)


#: What may be set wrong.
WRONG = (
    "running limit",
    "key-value cache",
    "pool of tools or rewards",
    "rewards off the critical path",
    "response cap",
    "turn cap",
    "time-out of a tool",
    "constant cost out of the loop",
    "servers",
)


def wrong_world(kind: str, seed: int, *, hidden: bool = False) -> SetWorld:
    """Return a world in which one setting is wrong; the others leave little to gain."""
    random = Random(f"{kind}/{seed}/{hidden}")
    family = ONE_OFF if kind == "servers" else random.choice((ROUTED, ROUTED, OWN, ONE_OFF))
    shape = _even(draw_shape(family, seed, hidden=hidden), random)
    calls = shape.groups * shape.members / shape.servers
    server, work = shape.server, shape.work
    if shape.family == ONE_OFF:
        shape = replace(shape, train_sec=random.uniform(2.0, 5.0))
    match kind:
        case "running limit":
            limit = max(2, round(calls * random.uniform(0.2, 0.5)))
            return SetWorld(replace(shape, server=replace(server, max_running=limit)))
        case "key-value cache":
            most = work.system_tokens + work.question_tokens[1] + 2 * work.max_new_tokens
            tokens = max(most, round(calls * random.uniform(150, 400)))
            return SetWorld(replace(shape, server=replace(server, kv_tokens=tokens)))
        case "pool of tools or rewards":
            if random.random() < 0.5:
                tools = (ToolShape("search", random.uniform(2.0, 4.0), 0.3),)
                places = max(2, round(shape.groups * shape.members * random.uniform(0.04, 0.1)))
                work = replace(work, tools=tools, most_turns=3)
                return SetWorld(replace(shape, work=work, tool_places={"search": places}))
            work = replace(work, reward_sec=random.uniform(3.0, 6.0), reward_sigma=0.3)
            return SetWorld(replace(shape, work=work, scores_alone=True, reward_workers=1))
        case "rewards off the critical path":
            shape = replace(shape, family=ROUTED, has_own_engines=False, has_barrier=False)
            return SetWorld(replace(shape, scores_alone=False, reward_batch_sec=random.uniform(6.0, 15.0)))
        case "response cap":
            sigma = random.uniform(0.6, 0.9)
            return SetWorld(replace(shape, work=replace(work, tokens_sigma=sigma, max_new_tokens=4096)))
        case "turn cap":
            return SetWorld(
                replace(shape, work=replace(work, most_turns=12, go_on_share=random.uniform(0.5, 0.65)))
            )
        case "time-out of a tool":
            shape = replace(shape, work=replace(work, most_turns=3))
            return SetWorld(
                shape, timeout_share=random.uniform(0.01, 0.04), timeout_sec=random.uniform(40, 90)
            )
        case "constant cost out of the loop":
            return SetWorld(shape, before_sec=random.uniform(3.0, 8.0))
    return SetWorld(replace(shape, train_sec=random.uniform(1.0, 2.0), groups=shape.groups * 4))


def well_set_world(seed: int, *, hidden: bool = False) -> SetWorld:
    """Return a world in which no setting is wrong: even lengths, room in all pools, short waits."""
    random = Random(f"well/{seed}/{hidden}")
    family = random.choice((ROUTED, OWN, ONE_OFF))
    shape = _even(draw_shape(family, seed, hidden=hidden), random)
    return SetWorld(shape if family != ONE_OFF else replace(shape, train_sec=60.0))


def _even(shape: WorldShape, random: Random) -> WorldShape:
    """Return a world with even lengths and enough of everything."""
    work = replace(
        shape.work,
        tokens_sigma=random.uniform(0.05, 0.12),
        group_sigma=0.03,
        most_turns=random.choice((1, 2)),
        go_on_share=1.0,
        tools=(ToolShape("search", 0.3, 0.2),),
        reward_sec=0.05,
        environment_sec=0.0,
        growth=0.0,
    )
    calls = shape.groups * shape.members / shape.servers
    server = replace(
        shape.server, max_running=round(3 * calls), kv_tokens=round(6 * calls * 3_000), network_sec=0.001
    )
    return replace(
        shape,
        work=work,
        server=server,
        router="least_load",
        tool_places={},
        scores_alone=True,
        reward_workers=4,
        transfer_sec=0.3,
        checkpoint_every=0,
        validate_every=0,
        skew_sec=(),
        machine_speed=tuple(1.0 for _ in range(shape.servers)),
    )


def changed(world: SetWorld, row: dict) -> SetWorld | None:
    """Return a world with a lever pulled; None if worlds have no such setting.

    Args:
        world: The world.
        row: Of the levers.
    """
    shape, value = world.shape, row["proposed"]
    match row["lever"]:
        case "running limit":
            return replace(world, shape=replace(shape, server=replace(shape.server, max_running=value)))
        case "key-value cache":
            return replace(world, shape=replace(shape, server=replace(shape.server, kv_tokens=value)))
        case "pool of tools or rewards":
            if "rewards" in row["setting"]:
                return replace(world, shape=replace(shape, reward_workers=-(-value // REWARD_PLACES)))
            return replace(world, shape=replace(shape, tool_places={"search": value}))
        case "rewards off the critical path":
            work = replace(shape.work, reward_sec=1e-4)
            return replace(world, shape=replace(shape, reward_batch_sec=0.0, work=work))
        case "response cap":
            return replace(world, most_tokens=value)
        case "turn cap":
            return replace(world, most_turns=value)
        case "time-out of a tool":
            return replace(world, timeout_sec=value)
        case "constant cost out of the loop":
            return replace(world, before_sec=0.0)
        case "servers":
            speed = (*shape.machine_speed, *(1.0 for _ in range(value - shape.servers)))
            return replace(world, shape=replace(shape, servers=value, machine_speed=speed))
    return None
