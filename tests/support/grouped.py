"""Group tests that must run in one process because they share an engine or another expensive fixture."""

from pathlib import Path

HERE = Path(__file__).parents[1]


def group_of_each(items):
    """Return {test: name of its group} of the tests that use one of our fixtures of wider scope than a test.

    Two tests are in one group if they use the same such fixture, or if each shares one with a third test.
    """
    leaders = {}  # union-find: a fixture's parent in its group, or itself

    def leader(name):
        while leaders.setdefault(name, name) != name:
            name = leaders[name]
        return name

    shared = {item: shared_by(item) for item in items}
    for names in filter(None, shared.values()):
        first, *others = sorted(map(leader, names))
        leaders.update(dict.fromkeys(others, first))
    return {item: leader(names[0]) for item, names in shared.items() if names}


def shared_by(item):
    """Return a name for each fixture that a test shares, with its parameter if it has some."""
    callspec = getattr(item, "callspec", None)
    names = []
    for name, definitions in item._fixtureinfo.name2fixturedefs.items():
        definition = definitions[-1]
        made_in = Path(definition.func.__code__.co_filename)
        if definition.scope in ("module", "session") and made_in.is_relative_to(HERE):
            file = made_in if definition.scope == "session" else item.path
            parameter = callspec.indices.get(name, "") if callspec else ""
            names.append(f"{file.relative_to(HERE)}:{name}{parameter}")
    return names
