"""Settings to try, and the GPUs that servers get, are read strictly."""

import pytest

from sglang_instrument.errors import InstrumentError
from sglang_instrument.twin.servers.gpus import GpuMemory, demand_free, parsed, shares
from sglang_instrument.twin.trials.settings import TwinSetting, settings_of, with_options

#: As `nvidia-smi` prints it for an H100 beside one that is in use, and one that is divided (MIG).
PRINTED = """\
0, GPU-11111111-aaaa, 4, 81559
1, GPU-22222222-bbbb, 70312, 81559
2, GPU-33333333-cccc, [N/A], [N/A]
"""


def test_each_value_is_a_setting_of_its_own() -> None:
    settings = settings_of(["max_running_requests=32,64", "servers=2", "router=cache_aware,none"])
    assert settings == [
        TwinSetting("max_running_requests=32", ("--max-running-requests", "32")),
        TwinSetting("max_running_requests=64", ("--max-running-requests", "64")),
        TwinSetting("servers=2", servers=2),
        TwinSetting("router=cache_aware", router="cache_aware"),
        TwinSetting("router=none", router="none"),
    ]
    assert [setting.router_before("random") for setting in settings[2:]] == ["random", "cache_aware", None]
    assert settings_of(["--disable-radix-cache=true"])[0].options == ("--disable-radix-cache",)
    assert settings_of(["schedule_policy=a/b c"])[0].folder == "schedule_policy=a_b_c"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("max_running_requests", "must be NAME=VALUE"),
        ("=3", "must be NAME=VALUE"),
        ("servers=0", "a number of servers from 1 to 64"),
        ("servers=two", "a number of servers from 1 to 64"),
        ("a=1,1", "a=1: asked for twice"),
    ],
)
def test_what_is_no_setting_is_refused(asked: str, words: str) -> None:
    with pytest.raises(InstrumentError, match=words):
        settings_of([asked])


@pytest.mark.parametrize(
    ("command", "options", "full"),
    [
        ("serve --a 1 --b 2", ("--a", "5"), "serve --b 2 --a 5"),
        ("serve --a=1 --b 2", ("--a", "5"), "serve --b 2 --a 5"),
        ("serve --flag --b 2", ("--flag",), "serve --b 2 --flag"),
        ("serve --aa 1", ("--a", "5"), "serve --aa 1 --a 5"),
        ("serve --a 1", (), "serve --a 1"),
    ],
)
def test_an_option_takes_the_place_of_its_former_value(
    command: str, options: tuple[str, ...], full: str
) -> None:
    assert with_options(command.split(), options) == full.split()


def test_a_gpu_whose_memory_is_in_use_is_refused() -> None:
    gpus = parsed(PRINTED)
    assert gpus == [
        GpuMemory("0", "GPU-11111111-aaaa", 4, 81559),
        GpuMemory("1", "GPU-22222222-bbbb", 70312, 81559),
    ]
    demand_free(gpus[:1])
    with pytest.raises(InstrumentError, match=r"GPU 1: 70,312 of 81,559 MiB are in use"):
        demand_free(gpus)


def test_servers_share_the_gpus() -> None:
    gpus = [GpuMemory(str(number), f"GPU-{number}", 0, 1000) for number in range(4)]
    assert shares(gpus, 2, 2) == ["GPU-0,GPU-1", "GPU-2,GPU-3"]
    assert shares(gpus, 1, 2) == [None]
    assert shares([], 3, 1) == [None] * 3
    with pytest.raises(InstrumentError, match="3 servers of 2 GPUs each need 6 GPUs; 4 are visible"):
        shares(gpus, 3, 2)
