"""Settings come from keywords or variables; a wrong keyword raises, a wrong variable never stops a job."""

import inspect
import json
import re
import typing
from collections.abc import Iterable
from os import PathLike
from pathlib import Path

import pytest
from msgspec import structs

import sglang_instrument
from sglang_instrument import config
from sglang_instrument.config import Config
from sglang_instrument.errors import ConfigError


def load(given=None, environment=None):
    complaints = []
    return config.load(given or {}, environment or {}, complaints.append), complaints


def test_a_keyword_wins_over_its_variable_and_a_variable_over_the_default():
    environment = {"SGLANG_INSTRUMENT_EXPERIMENT": "mine", "EXPERIMENT_NAME": "theirs"}
    assert load({"experiment": "given"}, environment)[0].experiment == "given"
    assert load({}, environment)[0].experiment == "mine"
    assert load({}, {"EXPERIMENT_NAME": "theirs"})[0].experiment == "theirs"
    assert load()[0].experiment == "multiturn_log_dir"


def test_what_a_process_hands_on_is_read_back_as_the_same_settings():
    given = {
        "experiment": "e",
        "log_dir": "/somewhere",
        "sync": "off",
        "nvtx": True,
        "sample_requests": 0.25,
        "hang_after_sec": 1.5,
        "open_now_sec": 0.5,
        "memory_limit_mb": 3,
        "patches": ("/a", "/b"),
        "trainers": ("verl",),
    }
    settings, _ = load(given)
    inherited, complaints = load({}, settings.environment())
    assert (inherited, complaints) == (settings, [])


def test_paths_are_handed_on_absolute_for_children_may_work_elsewhere():
    settings, _ = load({"log_dir": "runs", "patches": ["tables"]})
    assert settings.log_dir == str(Path.cwd() / "runs")
    assert settings.patches == (str(Path.cwd() / "tables"),)


def test_the_role_of_a_process_is_not_its_childrens():
    assert load({"role": "trainer"})[0].environment().keys().isdisjoint({"SGLANG_INSTRUMENT_ROLE"})


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("", "multiturn_log_dir"),
        ("   ", "multiturn_log_dir"),
        (".", "multiturn_log_dir"),
        ("..", "multiturn_log_dir"),
        ("../../x", "_.._x-"),
        ("/etc", "_etc-"),
        ("a/b", "a_b-"),
        ("a\\b", "a_b-"),
        ("a b", "a_b-"),
        ("x" * 300, "x" * 221 + "-"),
        ("a\0b", "a_b-"),
        ("a\nb", "a_b-"),
        ("gsm8k é\ud800", "gsm8k_é_-"),
        ("!?", "multiturn_log_dir-"),
        (".hidden", "hidden-"),
    ],
)
def test_a_name_that_is_no_folder_name_is_replaced_and_reported_once(name, folder):
    settings, complaints = load({}, {"EXPERIMENT_NAME": name})
    assert re.fullmatch(
        re.escape(folder) + ("[0-9a-f]{8}" if folder.endswith("-") else ""), settings.experiment
    )
    assert settings.folder.parent == config.load({}, {}, print).folder.parent
    assert len(complaints) == 1
    assert complaints[0].endswith(f"; {settings.experiment!r} is used")


@pytest.mark.parametrize(
    "name", ["gsm8k_600", "a.b-c=1+2@3,4", "x" * 230, "数学_grpo", "实验一", "गणित", "é🎲"]
)
def test_a_good_name_stays_as_it_is(name):
    settings, complaints = load({}, {"EXPERIMENT_NAME": name})
    assert (settings.experiment, complaints) == (name, [])


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("数学_grpo", "代码_grpo"),
        ("实验一", "实验二"),
        ("a b", "a_b"),
        ("a b", "a/b"),
        ("qwen2.5-7b_fn_rm_" * 15 + "lr1e-6", "qwen2.5-7b_fn_rm_" * 15 + "lr5e-7"),
        ("数学" * 100 + "一", "数学" * 100 + "二"),
        ("!", "?"),
    ],
)
def test_experiments_of_different_names_have_different_folders_that_can_be_made(tmp_path, name, other):
    folders = {load({"experiment": experiment})[0].experiment for experiment in (name, other)}
    assert len(folders) == 2
    for folder in folders:
        (tmp_path / folder).mkdir()
        (tmp_path / f"{folder}.html").touch()
        assert load({"experiment": folder}) == load({}, {"SGLANG_INSTRUMENT_EXPERIMENT": folder})  # a child's
        assert load({"experiment": folder})[1] == []


WRONG = [
    ("sync", "sometimes"),
    ("durability", "forever"),
    ("detail", "much"),
    ("sample_requests", "1.5"),
    ("sample_requests", "nan"),
    ("sample_requests", "half"),
    ("hang_after_sec", "0"),
    ("hang_after_sec", "inf"),
    ("open_now_sec", "-1"),
    ("open_now_sec", "6"),
    ("memory_limit_mb", "0"),
    ("memory_limit_mb", "1e3"),
    ("nvtx", "perhaps"),
    ("role", "../x"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_the_error_of_a_wrong_keyword_names_it_and_the_correct_form(name, value):
    with pytest.raises(ConfigError, match=rf"install\({name}=...\): '{value}' is"):
        load({name: value})


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_variable_is_reported_and_the_default_is_used(name, value):
    settings, complaints = load({}, {f"SGLANG_INSTRUMENT_{name.upper()}": value})
    assert getattr(settings, name) == getattr(config.Config(), name)
    assert len(complaints) == 1
    assert f"SGLANG_INSTRUMENT_{name.upper()}: {value!r}" in complaints[0]


REFUSED = [
    {"log_dir": "a\0b"},
    {"log_dir": b"logs"},
    {"log_dir": ["logs"]},
    {"log_dir": True},
    {"experiment": b"gsm8k"},
    {"experiment": {"name": "gsm8k"}},
    {"role": object()},
    {"profile_steps": (1, 2)},
    {"memory_limit_mb": float("inf")},
    {"patches": 5},
    {"patches": b"tables"},
    {"patches": [b"tables"]},
    {"trainers": ["verl", None]},
]


@pytest.mark.parametrize("given", REFUSED)
def test_a_keyword_that_no_variable_could_have_is_refused_too(given):
    with pytest.raises(ConfigError):
        load(given)


def test_an_unknown_setting_is_refused_with_the_known_ones_named():
    with pytest.raises(ConfigError, match=r"unknown setting 'expriment'; settings are experiment, log_dir"):
        load({"expriment": "x"})
    with pytest.raises(TypeError, match="expriment"):
        sglang_instrument.install(expriment="x")
    assert not sglang_instrument.installed()


def test_the_keywords_of_install_are_the_fields_of_config():
    given, *keywords = inspect.signature(sglang_instrument.install).parameters.values()
    assert (given.name, given.kind, given.annotation) == ("config", given.POSITIONAL_ONLY, Config | None)
    assert [(keyword.name, keyword.kind) for keyword in keywords] == [
        (field.name, inspect.Parameter.KEYWORD_ONLY) for field in structs.fields(Config)
    ]
    allowed = typing.get_type_hints(Config)
    wider = {"log_dir": str | PathLike[str], "patches": str | PathLike[str] | Iterable[str | PathLike[str]]}
    wider["trainers"] = str | Iterable[str]
    for keyword in keywords:
        assert keyword.default is None  # not given: its variable is used, else the default of Config
        assert keyword.annotation == wider.get(keyword.name, allowed[keyword.name]) | None, keyword.name


def test_the_docstring_of_install_describes_each_keyword_and_names_its_default():
    arguments = sglang_instrument.install.__doc__.partition("Args:")[2].partition("Raises:")[0]
    described = re.findall(r"^        (\w+): (.*(?:\n {9,}.*)*)", arguments, re.MULTILINE)
    assert [name for name, _ in described] == list(inspect.signature(sglang_instrument.install).parameters)
    defaults = {field.name: field.default for field in structs.fields(Config) if field.default}
    for name, words in described:
        if name in defaults:
            assert f"Default {json.dumps(defaults[name])}" in " ".join(words.split()), name


def test_install_takes_a_config(log_dir, monkeypatch):
    monkeypatch.setenv("EXPERIMENT_NAME", "theirs")
    monkeypatch.setenv("SGLANG_INSTRUMENT_DETAIL", "step")
    given = Config(log_dir=str(log_dir), sample_requests=0.5, detail="turn", hang_after_sec=9)
    sglang_instrument.install(given, hang_after_sec=7)
    status = sglang_instrument.status()
    assert status["folder"] == str(log_dir / "theirs")  # a setting at its default counts as not given
    settings = {name.removeprefix("SGLANG_INSTRUMENT_"): text for name, text in status["settings"].items()}
    wanted = ("SAMPLE_REQUESTS", "DETAIL", "HANG_AFTER_SEC")
    assert [settings[name] for name in wanted] == ["0.5", "turn", "7.0"]


@pytest.mark.parametrize("given", ["gsm8k", {"sync": "off"}, Config])
def test_install_says_what_it_takes(given):
    with pytest.raises(ConfigError, match=r"takes keywords or a Config, not a (str|dict|StructMeta)"):
        sglang_instrument.install(given)
    with pytest.raises(ConfigError, match=r"install\(sync=...\): 'x' is not allowed"):
        sglang_instrument.install(Config(sync="x"))
    assert not sglang_instrument.installed()


def test_a_setting_of_none_counts_as_not_given():
    assert load({"sync": None, "experiment": None})[0] == load()[0]


def test_a_number_and_a_path_are_texts(tmp_path):
    settings, complaints = load({"experiment": 600, "log_dir": tmp_path, "patches": [tmp_path, "tables"]})
    assert (settings.experiment, settings.log_dir) == ("600", str(tmp_path))
    assert settings.patches == (str(tmp_path), str(Path("tables").absolute()))
    assert complaints == []


TABLE = """
trainer = "mine"
[[patch]]
target = "textwrap:dedent"
region = [{ event = "dedent" }]
"""


def test_a_trainer_without_tables_is_refused_as_keyword(tmp_path, log_dir):
    (tmp_path / "mine.toml").write_text(TABLE)
    refused = r"install\(trainers=...\): no table has the trainer 'nope'; trainers are areal, .*verl, or none"
    for given in ("nope", ["verl", "nope"]):
        with pytest.raises(ConfigError, match=refused):
            sglang_instrument.install(trainers=given, log_dir=log_dir)
    with pytest.raises(ConfigError, match="no table has the trainer 'mine'"):
        sglang_instrument.install(Config(trainers=("mine",)), log_dir=log_dir)
    assert not sglang_instrument.installed()
    sglang_instrument.install(trainers=["mine", "none"], patches=tmp_path, log_dir=log_dir)
    assert {each["event"] for each in sglang_instrument.status()["patches"]} == {"dedent"}


@pytest.mark.parametrize(
    ("value", "used", "tables"),
    [("nope", "the tables of all trainers are used", ""), ("nope:slime", "the others are used", "slime")],
)
def test_a_trainer_without_tables_is_left_out_as_variable(install, monkeypatch, value, used, tables):
    monkeypatch.setenv("SGLANG_INSTRUMENT_TRAINERS", value)
    install()
    noticed = [notice["notice"] for notice in sglang_instrument.status()["notices"]]
    (said,) = [text for text in noticed if "TRAINERS" in text]
    assert said.startswith("SGLANG_INSTRUMENT_TRAINERS: no table has the trainer 'nope'")
    assert said.endswith(used)
    assert sglang_instrument.status()["settings"]["SGLANG_INSTRUMENT_TRAINERS"] == tables
    trainers = {each["table"].partition("/")[0] for each in sglang_instrument.status()["patches"]}
    assert trainers == {"slime"} if tables else {"verl", "slime", "sglang"} <= trainers
