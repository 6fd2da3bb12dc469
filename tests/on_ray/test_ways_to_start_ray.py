"""Work that Ray starts is recorded once; its ids are bound again there, because Ray takes nothing along."""

import pytest

pytest.importorskip("ray", reason="Ray is not installed here; tests/environments/ray.sh makes a place for it")

from recorded_ways import assert_recorded
from ways_to_start import RAY


@pytest.mark.parametrize("way", RAY)
def test_work_of_ray_is_recorded_once(run_script, way):
    assert_recorded(run_script, way)
