"""Help with tests: `records()` captures records, `synthetic_run(folder)` writes runs with known causes."""

from sglang_instrument.testing.capture import Records as Records
from sglang_instrument.testing.capture import records as records
from sglang_instrument.testing.causes import BlockedLoop as BlockedLoop
from sglang_instrument.testing.causes import Cause as Cause
from sglang_instrument.testing.causes import ColdStart as ColdStart
from sglang_instrument.testing.causes import Death as Death
from sglang_instrument.testing.causes import FallingAcceptance as FallingAcceptance
from sglang_instrument.testing.causes import Gap as Gap
from sglang_instrument.testing.causes import Growth as Growth
from sglang_instrument.testing.causes import Hang as Hang
from sglang_instrument.testing.causes import LongReplies as LongReplies
from sglang_instrument.testing.causes import LongReply as LongReply
from sglang_instrument.testing.causes import MissingFile as MissingFile
from sglang_instrument.testing.causes import Plateau as Plateau
from sglang_instrument.testing.causes import SlowCall as SlowCall
from sglang_instrument.testing.causes import SlowCalls as SlowCalls
from sglang_instrument.testing.causes import SlowEngine as SlowEngine
from sglang_instrument.testing.causes import SlowInteractions as SlowInteractions
from sglang_instrument.testing.causes import SlowPart as SlowPart
from sglang_instrument.testing.causes import SlowReward as SlowReward
from sglang_instrument.testing.causes import SlowTools as SlowTools
from sglang_instrument.testing.causes import StandStill as StandStill
from sglang_instrument.testing.causes import TornFile as TornFile
from sglang_instrument.testing.run_shape import RunShape as RunShape
from sglang_instrument.testing.simulation.queueing import Engine as Engine
from sglang_instrument.testing.simulation.trainer import Trainer as Trainer
from sglang_instrument.testing.simulation.workload import Workload as Workload
from sglang_instrument.testing.synthetic import synthetic_run as synthetic_run

__all__ = [
    "BlockedLoop",
    "Cause",
    "ColdStart",
    "Death",
    "Engine",
    "FallingAcceptance",
    "Gap",
    "Growth",
    "Hang",
    "LongReplies",
    "LongReply",
    "MissingFile",
    "Plateau",
    "Records",
    "RunShape",
    "SlowCall",
    "SlowCalls",
    "SlowEngine",
    "SlowInteractions",
    "SlowPart",
    "SlowReward",
    "SlowTools",
    "StandStill",
    "TornFile",
    "Trainer",
    "Workload",
    "records",
    "synthetic_run",
]
