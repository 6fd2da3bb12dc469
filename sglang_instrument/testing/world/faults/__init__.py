"""The faults of simulated worlds, by name: what each does, where it may be, and which finding is right."""

from typing import Final

from sglang_instrument.testing.world.faults.batches import BATCHES
from sglang_instrument.testing.world.faults.fault import FaultKind
from sglang_instrument.testing.world.faults.servers import SERVERS
from sglang_instrument.testing.world.faults.training import TRAINING
from sglang_instrument.testing.world.faults.workers import WORKERS

FAULTS: Final[dict[str, FaultKind]] = {**SERVERS, **WORKERS, **BATCHES, **TRAINING}
