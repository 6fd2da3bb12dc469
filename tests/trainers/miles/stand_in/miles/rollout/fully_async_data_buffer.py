"""Stand in for what lies between Miles' fully asynchronous rollout and its training."""

from types import SimpleNamespace


class DefaultDataBuffer:
    """Keeps finished groups, without those that training must not see."""

    def __init__(self, max_weight_staleness):
        self.max_weight_staleness, self._buffer = max_weight_staleness, []
        self._metric_aborted_groups = self._metric_stale_groups = 0
        self._metric_gatherer = SimpleNamespace(on_dynamic_filter_drop=lambda reason: None)

    async def put(self, input):
        """Take a finished group."""
        if any(sample.status.value == "aborted" for sample in input.group):
            self._metric_aborted_groups += 1
            return
        if not input.keep:
            self._metric_gatherer.on_dynamic_filter_drop(reason="dull")
            return
        self._buffer.append(input)

    async def get(self, current_version=None, **_):
        """Give a group that is new enough."""
        while True:
            entry = self._buffer.pop(0)
            staleness = current_version - min(int(sample.weight_versions[0]) for sample in entry.group)
            if staleness <= self.max_weight_staleness:
                return entry
            self._metric_stale_groups += 1
