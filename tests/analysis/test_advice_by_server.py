"""`advise` says a setting of the server that has another one, and never of the run where servers differ."""

from dataclasses import replace

import pytest

from sglang_instrument.analysis import advise, open_run
from sglang_instrument.analysis.advice.findings import findings_with_changes
from sglang_instrument.testing.world.faults import FAULTS
from sglang_instrument.testing.world.faults.fault import WorldFault
from sglang_instrument.testing.world.play import play, walls, write_world
from sglang_instrument.testing.world.rollout.shape import OWN, ROUTED, draw_shape


@pytest.mark.parametrize(("family", "name"), [(OWN, "engine: small limit"), (ROUTED, "server: small limit")])
def test_a_limit_of_one_server_is_answered_by_the_limit_of_the_other(tmp_path, family, name):
    shape = replace(draw_shape(family, 1), steps=5)
    fault = WorldFault(name, FAULTS[name], FAULTS[name].sizes[2], shape, walls(play(shape)))
    run = open_run(write_world(tmp_path, play(shape, [fault])), cached=False)
    levers = {advised.lever.name: advised.proposal for advised in advise(run).levers}
    assert levers.keys().isdisjoint({"running limit", "key-value cache", "router policy"})
    proposal = levers["unequal servers"]
    assert proposal.setting == f"max_running_requests of server_{fault.server}"
    assert (proposal.now, proposal.proposed) == (2, shape.server.max_running)
    finding = findings_with_changes(run)[0]
    assert (finding.cause, finding.evidence["server"]) == ("queue", f"server_{fault.server}")
    assert finding.change is not None
    assert (finding.change["setting"], finding.change["to"]) == (proposal.setting, shape.server.max_running)


def test_servers_with_equal_settings_have_no_setting_of_their_own(tmp_path):
    shape = replace(draw_shape(ROUTED, 1), steps=4)
    run = open_run(write_world(tmp_path, play(shape)), cached=False)
    assert all(advised.lever.name != "unequal servers" for advised in advise(run).levers)
