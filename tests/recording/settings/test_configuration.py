"""Settings are kept as numbers, flags and known words; secrets and paths never, whatever their names."""

import argparse
import enum
import gc
import json
import types
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from sglang_instrument.recording.settings.configuration import (
    described_configuration,
    forget_settings,
    keep_settings,
    settings_in,
)

#: Tokens of the usual forms; none is real.
SECRETS = (
    "sk-abcdefghijklmnop1234567890",
    "sk-proj-Zx81mP0qLk29dJ4",
    "hf_AbCdEfGhIjKlMnOpQrStUvWx12",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "github_pat_11ABCDEFG0abcdefghij",
    "glpat-AbCd1234EfGh5678IjKl",
    "xoxb-1234567890-abcdef",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
    "0123456789abcdef0123456789abcdef",
    "wandb_v1_0a1b2c3d4e5f6a7b",
    "npm_0123456789abcdefABCDEF",
    "correct horse battery staple",
    "/home/someone/.netrc",
    "https://user:password@example.com/x",
)


class Mode(enum.Enum):
    FAST = "fast"


@dataclass
class Inner:
    n: int = 8
    dtype: str = "bfloat16"
    path: str = "/data/model"


@dataclass
class Outer:
    temperature: float = 0.7
    inner: Inner = field(default_factory=Inner)
    names: list[str] = field(default_factory=lambda: ["a", "b"])
    betas: tuple[float, float] = (0.9, 0.95)
    mode: Mode = Mode.FAST
    unset: Any = None


class Arguments(msgspec.Struct):
    tp_size: int = 2
    schedule_policy: str = "fcfs"
    nested: dict[str, int] = msgspec.field(default_factory=lambda: {"depth": 3})


@pytest.fixture(autouse=True)
def forgotten():
    yield
    forget_settings()


def values_of(settings):
    return settings_in(settings).values


def test_a_dataclass_gives_numbers_words_and_what_lies_in_it_under_dotted_names():
    assert values_of(Outer()) == {
        "temperature": 0.7,
        "unset": None,
        "mode": "fast",
        "inner.n": 8,
        "inner.dtype": "bfloat16",
        "betas.0": 0.9,
        "betas.1": 0.95,
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"a": {"b": 1}},
        OrderedDict(a={"b": 1}),
        argparse.Namespace(a=argparse.Namespace(b=1)),
        types.SimpleNamespace(a={"b": 1}),
    ],
)
def test_dicts_and_namespaces_are_read_alike(settings):
    assert values_of(settings) == {"a.b": 1}


def test_a_struct_of_msgspec_is_read_by_its_fields_as_newer_server_args_are():
    assert values_of(Arguments()) == {"tp_size": 2, "schedule_policy": "fcfs", "nested.depth": 3}


def test_a_configuration_of_omegaconf_is_read_without_resolving_what_it_refers_to():
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create(
        {
            "data": {"batch": 64, "missing": "???"},
            "rollout": {"n": "${data.batch}", "mode": "async", "sizes": [1, 2]},
        }
    )
    assert values_of(config) == {
        "data.batch": 64,
        "rollout.mode": "async",
        "rollout.sizes.0": 1,
        "rollout.sizes.1": 2,
    }


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_and_paths_are_in_no_setting_under_innocent_names_either(secret):
    holders: list[Any] = [
        dict.fromkeys(("dtype", "mode", "policy", "model_path", "note", "api_key", "backend"), secret),
        {secret: 1, "inner": {secret: True}},
        {"list": [secret, secret], "dtype": [secret]},
        argparse.Namespace(quantization=secret, wandb_key=secret),
        Outer(inner=Inner(dtype=secret, path=secret)),
    ]
    for holder in holders:
        keep_settings("args", holder)
    assert secret not in json.dumps(described_configuration())


def test_numbers_under_the_name_of_a_secret_are_left_out():
    secrets = {"password": 1234, "pin": 99, "hf_token": 5, "aws_secret_access_key": 7, "auth": {"code": 1}}
    assert values_of({**secrets, "max_tokens": 600, "num_key_value_heads": 8}) == {
        "max_tokens": 600,
        "num_key_value_heads": 8,
    }


def test_no_property_and_no_method_of_a_configuration_runs():
    class TrainConfig:
        def __init__(self):
            self.steps = 3

        @property
        def costly(self):
            raise AssertionError("it was asked")

        def __getattr__(self, name):
            raise AssertionError(f"it was asked for {name}")

        def __iter__(self):
            raise AssertionError("it was iterated over")

    class Sly(dict):
        def items(self):
            raise AssertionError("its own method ran")

    assert values_of(TrainConfig()) == {"steps": 3}
    assert values_of({"inner": Sly(n=1)}) == {"inner.n": 1}


def test_circles_objects_and_ten_thousand_keys_end_within_the_limit():
    circle: dict[str, Any] = {"n": 1}
    circle["again"] = circle
    assert values_of(circle) == {"n": 1}
    assert values_of({"thing": object(), "function": print, "kind": int, "module": json}) == {}
    many = settings_in({f"setting_{number}": number for number in range(10_000)})
    assert many.left_out == 10_000 - len(many.values)
    assert len(json.dumps(many.values, indent=2)) < 64_000 * 0.75
    for name in ("server_args", "config", "args"):  # the limit is one of all objects together
        keep_settings(name, {f"{name}_{number}": number for number in range(10_000)})
    described = described_configuration()
    assert len(json.dumps(described, indent=2)) < 64_000 * 0.75
    assert described["configuration_left_out"]["args"]["count"] == 10_000
    deep: Any = {"n": 1}
    for _ in range(1000):
        deep = {"deeper": deep}
    assert values_of(deep) == {}


@pytest.mark.parametrize("nothing", [None, 3, "text", [], object(), {}, float("nan")])
def test_what_holds_no_settings_is_no_error(nothing):
    keep_settings("args", nothing)
    assert described_configuration() == {}


def test_no_number_is_kept_that_json_or_a_column_cannot_hold():
    assert values_of({"nan": float("nan"), "big": 2**70, "infinite": float("inf"), "n": 1}) == {"n": 1}


def test_an_object_is_kept_once_and_another_of_its_name_beside_it():
    first = {"n": 1}
    for settings in (first, first, {"n": 1}, {"n": 2}):
        keep_settings("args", settings)
    assert described_configuration() == {"configuration": {"args": {"n": 1}, "args_2": {"n": 2}}}


def test_objects_are_not_kept_alive():
    class Config:
        def __init__(self):
            self.n = 1

    config = Config()
    keep_settings("config", config)
    assert [holder for holder in gc.get_referrers(config) if holder is not globals()] == []


def test_what_is_over_a_limit_is_counted_and_the_first_of_it_named():
    deep: Any = {"n": 1}
    for _ in range(20):
        deep = {"deeper": deep}
    keep_settings("args", {"n": 1, "sizes": list(range(100)), "deep": deep, "few": [1, 2]})
    described = described_configuration()
    assert described["configuration"]["args"] == {"n": 1, "few.0": 1, "few.1": 2}
    assert described["configuration_left_out"] == {"args": {"count": 2, "first": "sizes"}}


def test_a_trainer_that_makes_a_new_object_for_each_step_is_read_a_bounded_number_of_times():
    holders = [{"n": 1, "step": step} for step in range(200)]
    for holder in holders:
        keep_settings("args", holder)
    assert len(described_configuration()["configuration"]) == 8


def test_a_mock_is_not_asked_for_its_class():
    class Sly:
        @property
        def __class__(self):
            raise AssertionError("it was asked")

    assert values_of({"sly": Sly(), "n": 1}) == {"n": 1}
