"""Help with tests: `records()` captures records, `synthetic_run(folder)` writes runs with known causes."""

from sglang_instrument.testing.capture import Records as Records
from sglang_instrument.testing.capture import records as records
from sglang_instrument.testing.planted import BlockedLoop as BlockedLoop
from sglang_instrument.testing.planted import Hang as Hang
from sglang_instrument.testing.planted import Plateau as Plateau
from sglang_instrument.testing.planted import SlowReward as SlowReward
from sglang_instrument.testing.planted import Straggler as Straggler
from sglang_instrument.testing.planted import TornFile as TornFile
from sglang_instrument.testing.synthetic import synthetic_run as synthetic_run

__all__ = [
    "BlockedLoop",
    "Hang",
    "Plateau",
    "Records",
    "SlowReward",
    "Straggler",
    "TornFile",
    "records",
    "synthetic_run",
]
