"""Whatever way a program starts work, its records arrive once, under the ids that were bound at its start."""

import pytest
from recorded_ways import assert_recorded
from ways_to_start import RAY, WAYS


@pytest.mark.parametrize("way", [way for way in WAYS if way not in RAY])
def test_work_is_recorded_once_under_the_ids_of_its_start(run_script, way):
    package = way.partition(",")[0].partition(".")[0]
    if package in ("multiprocess", "billiard", "loky", "joblib", "dask"):
        pytest.importorskip(package)
    assert_recorded(run_script, way)
