"""Worlds whose truth under a rule of `whatif` is known: they are played again, and the rule is in force."""

from dataclasses import dataclass, field, replace
from random import Random

from set_worlds import well_set_world

from sglang_instrument.analysis.changes.replaying.rules import Rules
from sglang_instrument.gc_pause import uncollected
from sglang_instrument.testing.world.play import TRAINERS
from sglang_instrument.testing.world.rollout.plans import ToolShape
from sglang_instrument.testing.world.rollout.shape import OWN, ROUTED, WorldShape
from sglang_instrument.testing.world.stage import Stage

#: What a world is in which a simple model errs; "even" is none of them.
KINDS = ("even", "long replies", "pool of a tool", "pool of rewards", "heavy prefill", "uneven servers")
RULES = {
    "tool x 0.25": Rules(scale={"tool": 0.25}),
    "tool x 3": Rules(scale={"tool": 3.0}),
    "engine x 0.5": Rules(scale={"engine": 0.5}),
    "half of the tokens a turn": None,
    "two turns": Rules(max_turns=2),
}


@dataclass(frozen=True)
class ChangedWorld:
    """A world and the rules in it: factors, and caps after which a request ends."""

    shape: WorldShape
    rules: Rules = field(default_factory=Rules)

    def under(self, rules: Rules) -> "ChangedWorld":
        """Return the same world with rules."""
        return replace(self, rules=rules)

    def play(self) -> Stage:
        """Play it; return it as it stands at its end."""
        shape, engine = self.shape, self.rules.scale.get("engine", 1.0)
        slow = tuple(speed * engine for speed in shape.machine_speed)
        stage = _ChangedStage(replace(shape, machine_speed=slow), self.rules)
        with uncollected():
            stage.play(TRAINERS[shape.family])
        return stage


class _ChangedStage(Stage):
    def __init__(self, shape: WorldShape, rules: Rules) -> None:
        super().__init__(shape)
        self._rules = rules

    def begin_step(self, step):
        super().begin_step(step)
        self.knobs.tool_factor[None, None] = self._rules.scale.get("tool", 1.0)

    def change(self, plans, rank):
        super().change(plans, rank)
        most_tokens = self._rules.max_turn_tokens or 1_000_000
        most_turns = self._rules.max_turns or 1_000
        for plan in plans:
            turns = []
            for turn in plan.turns[:most_turns]:
                turns.append(replace(turn, tokens=min(turn.tokens, most_tokens)))
                if turn.tokens >= most_tokens:
                    break
            if len(turns) < len(plan.turns):
                turns[-1] = replace(turns[-1], tools=[])
            plan.turns = turns


def changed_world(kind: str, seed: int) -> ChangedWorld:
    """Return a world of a kind."""
    random = Random(f"changed/{kind}/{seed}")
    shape = replace(well_set_world(seed).shape, family=random.choice((ROUTED, OWN)), validate_every=0)
    is_own = shape.family == OWN
    count = 4 if is_own else 3
    shape = replace(
        shape,
        has_own_engines=is_own,
        has_barrier=is_own,
        waits_for_servers=not is_own,
        servers=count,
        workers=4,
        steps=4,
        machine_speed=tuple(1.0 for _ in range(count)),
    )
    tools = (ToolShape("search", random.uniform(0.5, 2.0), 0.5), ToolShape("python", 0.4, 0.5))
    work = replace(
        shape.work, tools=tools, most_turns=4, go_on_share=0.7, tokens_sigma=random.uniform(0.3, 0.6)
    )
    match kind:
        case "long replies":
            work = replace(work, tokens_log=6.0)
        case "pool of a tool":
            tools = (ToolShape("search", random.uniform(2.0, 4.0), 0.3), ToolShape("python", 0.4, 0.5))
            places = max(2, round(shape.groups * shape.members * random.uniform(0.04, 0.1)))
            work = replace(work, tools=tools)
            shape = replace(shape, tool_places={"search": places})
        case "pool of rewards":
            work = replace(work, reward_sec=random.uniform(2.0, 4.0), reward_sigma=0.3)
            shape = replace(shape, reward_workers=1)
        case "heavy prefill":
            work = replace(work, question_tokens=(2000, 8000), system_tokens=60, tokens_log=4.6)
            sec = random.uniform(1e-4, 2e-4)
            room = round(shape.server.kv_tokens * 5)
            shape = replace(shape, server=replace(shape.server, prefill_token_sec=sec, kv_tokens=room))
        case "uneven servers":
            slow = (random.uniform(2.0, 3.0), *(1.0 for _ in range(count - 1)))
            shape = replace(shape, machine_speed=slow)
    return ChangedWorld(replace(shape, work=work))


def rules_of(name: str, lengths: list[int]) -> Rules:
    """Return the rule of a name; a cap is half of the usual tokens of a turn."""
    rules = RULES[name]
    return rules or Rules(max_turn_tokens=sorted(lengths)[len(lengths) // 2])
