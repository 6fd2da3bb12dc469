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
WEIGHTS: Final = "weights_update"


@dataclass(frozen=True)
class Trainer:
    """What happens between two rollouts.

    Attributes:
        sec: Seconds of training after each rollout.
        jitter: Largest share by which these seconds vary.
        recorded: Whether the trainer's process writes its phases, in `trainer_0.jsonl`.
        overlaps: Whether the next rollout begins while the trainer trains on the last one.
        streams: Whether rollouts also overlap one another: the next one begins when most of the last is done.
        weights_sec: Seconds of sending the weights: after training; before it, between two rollouts, where
            these only overlap with training.
    """

    sec: float = 20.0
    jitter: float = 0.0
    recorded: bool = False
    overlaps: bool = False
    streams: bool = False
    weights_sec: float = 0.0

    @property
    def pauses_sec(self) -> float:
        """Seconds from the end of a rollout until weights are sent, where the next one waits for that."""
        return self.weights_sec if self.overlaps and not self.streams else 0.0

    def draw(self, random: Random) -> dict[str, float]:
        """Return the seconds of each phase after one rollout."""
        sec = self.sec * random.uniform(1 - self.jitter, 1 + self.jitter)
        phases = {event: share * sec for event, share in _PHASES.items()}
        phases[UNRECORDED] = sec - sum(phases.values())
        sent = {WEIGHTS: self.weights_sec} if self.weights_sec else {}
        return {**sent, **phases} if self.pauses_sec else {**phases, **sent}


def trainer_records(begin: float, done: float, start: float, phases: dict[str, float]) -> list[Happened]:
    """Return the trainer's records of one step.

    Args:
        begin: When the trainer began to wait for the rollout.
        done: When it ended.
        start: When training began on it: later, where the trainer was busy with the step before.
        phases: Seconds of each phase.
    """
    happened = [Happened("trainer_generate", begin, max(begin, done), None, MAIN)]
    now = start
    for event, sec in phases.items():
        if event != UNRECORDED:
            happened.append(Happened(event, now, now + sec, None, MAIN))
            now += sec
    happened.append(Happened("trainer_step", begin, now, None, MAIN))
    return happened
