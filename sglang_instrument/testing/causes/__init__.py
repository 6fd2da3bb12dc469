"""Causes that can be planted in a synthetic run: frozen, each with the word that a finding has for it."""

from sglang_instrument.testing.causes.base import Cause as Cause
from sglang_instrument.testing.causes.blocked_loop import BlockedLoop as BlockedLoop
from sglang_instrument.testing.causes.endings import Death as Death
from sglang_instrument.testing.causes.endings import Hang as Hang
from sglang_instrument.testing.causes.endings import MissingFile as MissingFile
from sglang_instrument.testing.causes.endings import TornFile as TornFile
from sglang_instrument.testing.causes.engine import SlowCalls as SlowCalls
from sglang_instrument.testing.causes.engine import SlowEngine as SlowEngine
from sglang_instrument.testing.causes.engine import StandStill as StandStill
from sglang_instrument.testing.causes.lengths import LongReplies as LongReplies
from sglang_instrument.testing.causes.lengths import LongReply as LongReply
from sglang_instrument.testing.causes.outside import Gap as Gap
from sglang_instrument.testing.causes.outside import SlowPart as SlowPart
from sglang_instrument.testing.causes.over_steps import ColdStart as ColdStart
from sglang_instrument.testing.causes.over_steps import FallingAcceptance as FallingAcceptance
from sglang_instrument.testing.causes.over_steps import Growth as Growth
from sglang_instrument.testing.causes.plateau import Plateau as Plateau
from sglang_instrument.testing.causes.work import SlowCall as SlowCall
from sglang_instrument.testing.causes.work import SlowInteractions as SlowInteractions
from sglang_instrument.testing.causes.work import SlowReward as SlowReward
from sglang_instrument.testing.causes.work import SlowTools as SlowTools
