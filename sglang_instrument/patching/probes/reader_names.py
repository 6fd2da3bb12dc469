"""Give generated readers the names that they use, besides the locals of their target."""

import sys
from operator import itemgetter
from typing import Final

from sglang_instrument.patching.probes import bound_ids, finished_regions
from sglang_instrument.patching.tables import field_functions
from sglang_instrument.recording.measure.values import SCALARS, reduce_value
from sglang_instrument.recording.safety.guard import reraise_if_programs_own

NAMESPACE: Final = {
    "__sglang_plain": frozenset({dict, list, tuple}),
    "__sglang_type": type,
    "__sglang_dict": dict,
    "__sglang_error": BaseException,
    "__sglang_reraise": reraise_if_programs_own,
    "__sglang_unbound": field_functions.UNBOUND,
    "__sglang_unreadable": field_functions.Unreadable,
    "__sglang_attribute": field_functions.attribute,
    "__sglang_chosen": field_functions.chosen,
    "__sglang_elements": field_functions.elements,
    "__sglang_key": field_functions.key,
    "__sglang_known": field_functions.known,
    "__sglang_percent": field_functions.percent,
    "__sglang_pick": field_functions.pick,
    "__sglang_some": field_functions.some,
    "__sglang_truth": field_functions.truth,
    "__sglang_reduce": reduce_value,
    "__sglang_scalars": SCALARS,
    "__sglang_sum": sum,
    "__sglang_map": map,
    "__sglang_duration": itemgetter("duration_sec"),
    "__sglang_len": len,
    "__sglang_size": field_functions.size,
    "__sglang_sized": field_functions.SIZED,
    "__sglang_bound": bound_ids.bound,
    "__sglang_latest": bound_ids.latest,
    "__sglang_before": finished_regions.before,
    "__sglang_last": finished_regions.last,
    "__sglang_modules": sys.modules,
}
