"""Nodes with disks of their own, as folders of this machine, for tests of `collect`."""

from collections import Counter

from sglang_instrument.collect.gather import gather


class DiskNode:
    """A node whose calls are made here, in its own folder; it can die before a call."""

    is_far = True

    def __init__(self, name, folder, dies_at=None):
        self.name, self.folder, self.dies_at = name, folder, dies_at
        self.asked = Counter()

    def calls(self, function, arguments):
        for values in arguments:
            self.asked[function.__name__] += 1
            if self.dies_at is not None and self.dies_at(function.__name__, self.asked[function.__name__]):
                raise ConnectionError(f"{self.name} died")
            yield function(*values)


class Disks:
    """A cluster: nodes by id, of which some may be added or lost."""

    def __init__(self, *nodes):
        self.alive = {node.name: node for node in nodes}
        self.dead = {}

    def nodes(self):
        return dict(self.alive)

    def lost(self):
        return dict(self.dead)


def collect(folder, *nodes, disks=None):
    """Collect once from these nodes; returns the outcome."""
    with folder.locked():
        return gather(lambda node: str(node.folder), disks or Disks(*nodes), folder, lambda done, total: None)
