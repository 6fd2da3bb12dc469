"""The detectors, one file each, in the order in which they look.

A detector takes `Evidence` and yields findings. What one explains, those after it do not see: so the special
causes come before the general ones.
"""

from collections.abc import Callable, Iterator
from typing import Final

from sglang_instrument.analysis.verdict.detectors.between_steps import find_gaps_between_steps
from sglang_instrument.analysis.verdict.detectors.blocked_loop import find_blocked_loops
from sglang_instrument.analysis.verdict.detectors.endings import find_endings
from sglang_instrument.analysis.verdict.detectors.long_replies import find_long_replies
from sglang_instrument.analysis.verdict.detectors.loop_waits import find_loop_waits
from sglang_instrument.analysis.verdict.detectors.missing_files import find_missing_files
from sglang_instrument.analysis.verdict.detectors.outside_requests import find_slow_parts
from sglang_instrument.analysis.verdict.detectors.routing import (
    find_lost_caches,
    find_moved_conversations,
    find_uneven_servers,
)
from sglang_instrument.analysis.verdict.detectors.slow_calls import find_slow_calls
from sglang_instrument.analysis.verdict.detectors.slow_work import find_slow_work
from sglang_instrument.analysis.verdict.detectors.speculation import find_falling_speculation
from sglang_instrument.analysis.verdict.detectors.stale_samples import find_stale_samples
from sglang_instrument.analysis.verdict.detectors.standstill import find_standstills
from sglang_instrument.analysis.verdict.detectors.thrown_away import find_thrown_away
from sglang_instrument.analysis.verdict.detectors.weights import find_weights_trouble
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

DETECTORS: Final[tuple[Callable[[Evidence], Iterator[Finding]], ...]] = (
    find_endings,
    find_missing_files,
    find_stale_samples,
    find_thrown_away,
    find_blocked_loops,
    find_standstills,
    find_lost_caches,
    find_moved_conversations,
    find_uneven_servers,
    find_falling_speculation,
    find_slow_work,
    find_slow_calls,
    find_slow_parts,
    find_gaps_between_steps,
    find_long_replies,
    find_weights_trouble,
    find_loop_waits,
)
