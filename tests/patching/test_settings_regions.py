"""A region with `settings` keeps what objects hold where it begins, records no event and changes nothing."""

import pytest
from planted import plant, snapshot, table

from sglang_instrument.errors import TableError
from sglang_instrument.patching.probes.probe import probes_for
from sglang_instrument.patching.rewriting.patcher import Patcher
from sglang_instrument.recording.settings.configuration import described_configuration, forget_settings
from sglang_instrument.testing import records

SOURCE = """
class Trainer:
    def __init__(self, config, steps=3):
        self.config = config
        self.steps = steps

    def fit(self):
        return self.steps


async def train(args):
    return args["steps"]
"""
CONFIG = {"lr": 1e-6, "rollout": {"n": 8, "prompt": "never log this"}}


@pytest.fixture
def patched(tmp_path, monkeypatch):
    """Plant the source, patch its functions, and undo both: `patched({name: settings})`."""
    patchers = []

    def patch(targets):
        monkeypatch.syspath_prepend(tmp_path)
        module = plant(tmp_path, SOURCE)
        entries = [
            {
                "target": name,
                "region": [{"event": "trainer_settings", "phase": "other", "settings": settings}],
            }
            for name, settings in targets.items()
        ]
        read = table(*entries)
        patcher = Patcher(
            [read], make_probe=probes_for(p for patch in read.patches for p in patch.regions), wrap=None
        )
        before = snapshot(module)
        patcher.install()
        patchers.append((patcher, module, before))
        return module, [(site.state, site.note) for site in patcher.results()]

    yield patch
    forget_settings()
    for patcher, module, before in patchers:
        patcher.uninstall()
        assert snapshot(module) == before


def test_attributes_of_a_local_are_read_where_the_function_begins(patched):
    module, states = patched({"Trainer.fit": {"config": "self.config"}})
    assert states == [("found", "")]
    trainer = module.Trainer(CONFIG)
    with records() as recorded:
        assert [trainer.fit(), trainer.fit()] == [3, 3]
    assert list(recorded) == []
    assert described_configuration() == {"configuration": {"config": {"lr": 1e-6, "rollout.n": 8}}}


async def _run(coroutine):
    return await coroutine


def test_arguments_of_a_coroutine_and_of_a_constructor_are_read(patched):
    import asyncio

    module, _ = patched({"train": {"args": "args"}, "Trainer.__init__": {"config": "config"}})
    assert asyncio.run(_run(module.train({"steps": 2}))) == 2
    assert module.Trainer({"lr": 0.1}).config == {"lr": 0.1}
    assert described_configuration()["configuration"] == {"args": {"steps": 2}, "config": {"lr": 0.1}}


def test_an_object_without_the_attribute_gives_no_settings_and_no_error(patched):
    module, _ = patched({"Trainer.fit": {"config": "self.config.actor.rollout"}})
    assert module.Trainer(None).fit() == 3
    assert described_configuration() == {}


@pytest.mark.parametrize(
    ("region", "words"),
    [
        ({"settings": {"config": "self.get()"}}, "settings.config must be a local, or its attributes"),
        ({"settings": {"config": "self.config"}, "enter": {"n": "n"}}, "enter has no meaning with settings"),
    ],
)
def test_a_mistake_in_a_table_is_named(region, words):
    with pytest.raises(TableError, match=words):
        table({"target": "f", "region": [{"event": "trainer_settings", "phase": "other", **region}]})
