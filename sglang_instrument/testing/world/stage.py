"""Put a world on its stage: clock, servers, router, workers, pools; and turn the knobs at each step."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.testing.world.rollout.knobs import Knobs
from sglang_instrument.testing.world.rollout.plans import RequestPlan, TurnPlan, draw_group
from sglang_instrument.testing.world.rollout.workers import PlayedWorker
from sglang_instrument.testing.world.serving.clock import FOREVER, Places, Process, Signal, SimulatedClock
from sglang_instrument.testing.world.serving.pace import Pace
from sglang_instrument.testing.world.serving.records import RecordFiles
from sglang_instrument.testing.world.serving.router import Router
from sglang_instrument.testing.world.serving.server import Server

if TYPE_CHECKING:
    from sglang_instrument.testing.world.faults.fault import WorldFault
    from sglang_instrument.testing.world.rollout.shape import WorldShape

UNLIMITED: Final = 1_000_000  # places of a tool without a limit
REWARD_PLACES: Final = 8  # rewards that a reward worker computes at once


class Stage:
    """A world that runs.

    Attributes:
        steps: When each step of the trainer began and ended.
        knobs: What faults turn, as it stands in this step.
        seen_version: The version of the weights that each worker saw last.
    """

    def __init__(self, shape: "WorldShape", faults: Sequence["WorldFault"] = ()) -> None:
        self.shape, self.faults = shape, faults
        self.clock, self.records, self.knobs = SimulatedClock(), RecordFiles(), Knobs()
        self.steps: dict[int, tuple[float, float]] = {}
        self.seen_version: dict[int, int] = {}
        self.router = Router(shape.router, shape.servers, shape.seed)
        self.servers = [self._server(number) for number in range(shape.servers)]
        self.workers = [PlayedWorker(self, rank) for rank in range(shape.workers)]
        self.tool_pools = {name: Places(places) for name, places in shape.tool_places.items()}
        self.reward_pools = [Places(REWARD_PLACES) for _ in range(shape.reward_workers)]
        self._waiting: list[Signal] = []
        self._stuck_tool = False
        self._begun: int | None = None
        self._prompts = 0

    def _server(self, number: int) -> Server:
        shape, seed = self.shape.server, f"{self.shape.seed}/server/{number}"
        slowness = self.shape.machine_speed[number]
        for fault in self.faults:
            shape = fault.server_shape(number, shape)
        paces = [Pace(slowness, self.shape.jitter, f"{seed}/{part}") for part in ("decode", "prefill")]
        return Server(
            self.clock,
            number,
            shape,
            self.records,
            pace=paces[0],
            prefill_pace=paces[1],
            wraps=self.shape.waits_for_servers,
        )

    def begin_step(self, step: int) -> None:
        """Turn the knobs for a step of the trainer: end what faults did in the last one."""
        now = self.clock.now
        self._begun = step
        self.steps[step] = (now, FOREVER)
        self.knobs, self._stuck_tool = Knobs(), False
        for server in self.servers:
            server.network_sec = server.shape.network_sec
            server.tokenize_sec = server.shape.tokenize_sec
            server.pace.cut(now)
            server.prefill_pace.cut(now)
        self.router.stuck = [
            (begin, min(end, now), server, share) for begin, end, server, share in self.router.stuck
        ]
        self.router.unsticky = [(begin, min(end, now)) for begin, end in self.router.unsticky]
        for name, pool in self.tool_pools.items():
            pool.resize(self.shape.tool_places.get(name, UNLIMITED))
        for fault in self.faults:
            fault.begin_step(self, step)
        for name, places in self.knobs.tool_places.items():
            self.tool_pools.setdefault(name, Places(places)).resize(places)

    def end_step(self, step: int) -> None:
        """Note the end of a step of the trainer."""
        self.steps[step] = (self.steps[step][0], self.clock.now)

    def draw(self, groups: int, step: int) -> list[list[RequestPlan]]:
        """Return the next prompts of the run, as their requests."""
        work, members = self.shape.work, self.shape.members
        drawn = []
        for place in range(groups):
            number, self._prompts = self._prompts, self._prompts + 1
            grown = (1 + work.growth) ** step
            group = draw_group(self.shape.seed, number, members, work, place * members, grown)
            drawn.append(group)
        return drawn

    def change(self, plans: list[RequestPlan], rank: int) -> None:
        """Change requests as the knobs say; `rank` is the worker that plays them."""
        knobs, work = self.knobs, self.shape.work
        factor = knobs.reply_factor.get(rank, 1.0) * knobs.reply_factor.get(None, 1.0)
        for plan in plans:
            if knobs.turns_factor != 1.0 and len(plan.turns) > 1:
                plan.turns = _with_turns(plan.turns, round(len(plan.turns) * knobs.turns_factor))
            plan.question_tokens = round(plan.question_tokens * knobs.prompt_factor)
            for turn in plan.turns:
                turn.tokens = max(4, min(work.max_new_tokens, round(turn.tokens * factor)))

    def choose(self, rank: int, conversation: str, group: str, tokens: int, known_tokens: int) -> Server:
        """Return the server of a call: the worker's own, or the one that the router chooses."""
        if self.shape.has_own_engines:
            return self.servers[rank]
        return self.servers[self.router.choose(self.clock.now, conversation, group, tokens, known_tokens)]

    def router_done(self, server: Server) -> None:
        """Tell the router that a call has ended."""
        if not self.shape.has_own_engines:
            self.router.done(server.number)

    def tool_seconds(self, rank: int, name: str, sec: float, random: Random) -> float:
        """Return how long a tool takes now."""
        knobs = self.knobs
        if knobs.stuck_tool_sec and not self._stuck_tool:
            self._stuck_tool = True
            return knobs.stuck_tool_sec
        if knobs.timeout_share and random.random() < knobs.timeout_share:
            return knobs.timeout_sec
        return sec * knobs.tool_times(rank, name)

    def score(self, rank: int, sec: float, reward: float, random: Random) -> Process:
        """Compute a reward on one of the reward workers."""
        number = random.randrange(len(self.reward_pools))
        pool = self.reward_pools[number]
        factor = self.knobs.reward_factor.get(rank, 1.0) * self.knobs.reward_factor.get(None, 1.0)
        factor *= self.knobs.reward_factor.get(-1 - number, 1.0)
        yield from pool.take()
        begin = self.clock.now
        yield begin + sec * factor
        pool.give_back()
        self.records.add(f"engine/reward_{number}", "reward_score", begin, self.clock.now, {"reward": reward})

    def meet(self) -> Process:
        """Wait for all workers, at a barrier."""
        here = Signal()
        self._waiting.append(here)
        if len(self._waiting) == self.shape.workers:
            waiting, self._waiting = self._waiting, []
            for other in waiting:
                other.fire()
        yield here

    def log_trainer(self, step: int, event: str, begin: float, **extra: Any) -> None:
        """WorldRecord what the trainer did."""
        instant = event in ("samples_consumed", "samples_dropped")
        self.records.add(f"step_{step}/trainer_0", event, begin, self.clock.now, extra, instant=instant)

    def play(self, trainer: Callable[["Stage"], Process]) -> None:
        """Run a trainer to its end."""
        self.clock.run(self.clock.start(trainer(self)))


def _with_turns(turns: list[TurnPlan], wanted: int) -> list[TurnPlan]:
    """Return so many turns, of which the last is the last; the others come again and again."""
    others = [replace(turns[place % (len(turns) - 1)]) for place in range(wanted - 1)]
    return [*others, turns[-1]]
