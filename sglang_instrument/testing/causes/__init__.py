"""Causes that can be planted in a synthetic run: frozen, each with the word that a finding has for it."""

from sglang_instrument.testing.causes.base import Cause as Cause
from sglang_instrument.testing.causes.between_steps import Gap as Gap
from sglang_instrument.testing.causes.blocked_loop import BlockedLoop as BlockedLoop
from sglang_instrument.testing.causes.cold_start import ColdStart as ColdStart
from sglang_instrument.testing.causes.endings import Death as Death
from sglang_instrument.testing.causes.endings import Hang as Hang
from sglang_instrument.testing.causes.endings import TornFile as TornFile
from sglang_instrument.testing.causes.long_replies import LongReplies as LongReplies
from sglang_instrument.testing.causes.long_replies import LongReply as LongReply
from sglang_instrument.testing.causes.missing_file import MissingFile as MissingFile
from sglang_instrument.testing.causes.plateau import Plateau as Plateau
from sglang_instrument.testing.causes.slow_calls import SlowCall as SlowCall
from sglang_instrument.testing.causes.slow_calls import SlowCalls as SlowCalls
from sglang_instrument.testing.causes.slow_parts import SlowPart as SlowPart
from sglang_instrument.testing.causes.slow_work import SlowEngine as SlowEngine
from sglang_instrument.testing.causes.slow_work import SlowInteractions as SlowInteractions
from sglang_instrument.testing.causes.slow_work import SlowReward as SlowReward
from sglang_instrument.testing.causes.slow_work import SlowTools as SlowTools
from sglang_instrument.testing.causes.speculation import FallingAcceptance as FallingAcceptance
from sglang_instrument.testing.causes.standstill import StandStill as StandStill
from sglang_instrument.testing.causes.trend import Growth as Growth
