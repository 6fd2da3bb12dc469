"""Let the trainer train between two rollouts, and write what verl's trainer table would record of it."""

from dataclasses import dataclass
from random import Random
from typing import Final

from sglang_instrument.testing.simulation.timeline import MAIN, Happened

#: Shares of the training time, by the events of patches/verl/trainer.toml.
_PHASES: Final = {
    "trainer_reward": 0.02,
    "trainer_old_log_prob": 0.17,
    "trainer_ref_log_prob": 0.15,
    "trainer_advantage": 0.01,
    "trainer_update_actor": 0.64,
}
UNRECORDED: Final = "unrecorded"  # the rest: what no region of the table covers


@dataclass(frozen=True)
class Trainer:
    """What happens between two rollouts.

    Attributes:
        sec: Seconds of training after each rollout.
        jitter: Largest share by which these seconds vary.
        recorded: Whether the trainer's process writes its phases, in `trainer_0.jsonl`.
        overlaps: Whether the next rollout begins while the trainer trains on the last one.
    """

    sec: float = 20.0
    jitter: float = 0.0
    recorded: bool = False
    overlaps: bool = False

    def draw(self, random: Random) -> dict[str, float]:
        """Return the seconds of each phase after one rollout."""
        sec = self.sec * random.uniform(1 - self.jitter, 1 + self.jitter)
        phases = {event: share * sec for event, share in _PHASES.items()}
        return {**phases, UNRECORDED: sec - sum(phases.values())}


def trainer_records(begin: float, done: float, start: float, phases: dict[str, float]) -> list[Happened]:
    """Return the trainer's records of one step.

    Args:
        begin: When the rollout began.
        done: When it ended.
        start: When training began on it: later, where the trainer was busy with the step before.
        phases: Seconds of each phase.
    """
    happened = [Happened("trainer_generate", begin, done, None, MAIN)]
    now = start
    for event, sec in phases.items():
        if event != UNRECORDED:
            happened.append(Happened(event, now, now + sec, None, MAIN))
            now += sec
    happened.append(Happened("trainer_step", begin, now, None, MAIN))
    return happened
