"""A table is read into patches and regions; a mistake is named with its place and what would be right."""

import importlib.resources
import re
from pathlib import Path

import pytest

from sglang_instrument import schema
from sglang_instrument.errors import TableError
from sglang_instrument.patching.places.versions import Requirement, numbers_of
from sglang_instrument.patching.tables.about import read_abouts
from sglang_instrument.patching.tables.reading import (
    load_table,
    load_tables,
    parse_table,
)
from sglang_instrument.patching.tables.regions import Origin, Target
from sglang_instrument.patching.tables.shipped import abouts, shipped_tables, trainer_of


def table(region=None, **patch):
    entry = {"target": "C.m", "region": [{"event": "e", **(region or {})}], **patch}
    return parse_table("patches/x/y.toml", {"trainer": "x", "module": "pkg.mod", "patch": [entry]})


def region(**keys):
    return table(keys).patches[0].regions[0]


def test_a_target_takes_its_module_from_the_table_the_patch_or_itself():
    assert table().patches[0].targets == (Target("pkg.mod", "C.m"),)
    assert table(module="other").patches[0].targets == (Target("other", "C.m"),)
    assert table(target=["a.b:f", "C.m"]).patches[0].targets == (Target("a.b", "f"), Target("pkg.mod", "C.m"))


def test_a_region_names_its_place_in_the_table():
    origin = region().origin
    assert origin == Origin("patches/x/y.toml", 0, 0)


def test_what_table_patch_and_region_require_has_to_hold_together():
    entry = [{"event": "a"}, {"event": "b", "requires": "<2"}]
    patch = {"target": "m:f", "requires": ">=0.5", "region": entry}
    content = {"trainer": "x", "requires": "!=1", "patch": [patch]}
    regions = parse_table("t", content).patches[0].regions
    assert [region.requires.text for region in regions] == ["!=1,>=0.5", "!=1,>=0.5,<2"]
    assert [regions[1].requires.admits(version) for version in ("0.4", "1", "1.5", "2")] == [
        *(False, False, True, False)
    ]


def test_a_set_of_fields_can_be_shared_by_name():
    content = {
        "trainer": "x",
        "module": "m",
        "fields": {"reply": {"tokens": "size(result)"}},
        "patch": [{"target": "f", "region": [{"event": "e", "exit": "reply"}]}],
    }
    assert parse_table("t", content).patches[0].regions[0].exit == {"tokens": "size(result)"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"form": "x"}, "patch 1: region 1: unknown key 'form'; did you mean 'from'?"),
        ({"event": 3}, "patch 1: region 1: event must be a non-empty string, got 3"),
        ({"emit": "range"}, "emit must be one of 'span', 'enter', 'exit', got 'range'"),
        ({"phase": "coffee"}, "phase must be one of 'step', 'request'"),
        ({"at": "a b"}, "at must be a name or a quoted string"),
        ({"at": "a", "block": "b"}, "at, block, call and entering allow no other anchor, got at, block"),
        ({"enter": {"n": 3}}, "enter.n must be a string holding an expression, got 3"),
        ({"enter": "reply"}, "enter must be a table of names and expressions; got 'reply'"),
        (
            {"bind": {"rid": "x"}},
            "bind.rid: only step, worker, validate, request_id, turn, role, agent, parent_request "
            "can be bound",
        ),
        ({"root": "yes"}, "root must be true or false, got 'yes'"),
        ({"capture": {"rid": "call"}}, "capture.rid must be 'callee(keyword)', got 'call'"),
        ({"requires": "0.5"}, "requires: expected comparisons like '>=0.5.1,<0.6', got '0.5'"),
        ({"emit": "exit", "bind": {"step": "s"}}, "emit = 'exit' makes an instant event"),
        ({"ends": "item"}, "ends needs generator = true"),
    ],
)
def test_an_invalid_region_is_refused_with_the_correct_form(keys, message):
    with pytest.raises(TableError) as caught:
        region(**keys)
    assert str(caught.value).startswith("patches/x/y.toml: patch 1: region 1: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"module": "m"}, "t: trainer is missing"),
        ({"trainer": "x"}, "t: has no [[patch]]"),
        ({"trainer": "x", "patch": {}}, "t: patch must be a list of tables, got {}"),
        ({"trainer": "x", "patch": [{"target": "f"}]}, "t: patch 1: target 'f' names no module"),
        (
            {"trainer": "x", "module": "m", "patch": [{"target": "generate()"}]},
            "t: patch 1: target must be 'Class.method' or 'module:Class.method', got 'generate()'",
        ),
        ({"trainer": "x", "module": "m", "patch": [{"target": "f"}]}, "t: patch 1: has no region"),
        ({"trainer": "x", "module": "m", "patch": [{}]}, "t: patch 1: target is missing"),
        ({"trainer": "x", "patches": []}, "t: unknown key 'patches'; did you mean 'patch'?"),
    ],
)
def test_an_invalid_table_is_refused_with_the_correct_form(content, message):
    with pytest.raises(TableError) as caught:
        parse_table("t", content)
    assert message in str(caught.value)


def test_a_table_can_be_read_from_a_users_folder(tmp_path):
    path = tmp_path / "mine" / "rollout.toml"
    path.parent.mkdir()
    path.write_text('trainer = "mine"\nmodule = "m"\n[[patch]]\ntarget = "f"\nregion = [{ event = "e" }]\n')
    (read,) = load_tables(["mine"], [tmp_path])
    assert read.name == str(path)


def test_a_table_that_was_edited_is_read_again(tmp_path):
    table = tmp_path / "mine.toml"
    text = 'trainer = "mine"\nmodule = "m"\npatch = [{ target = "f", region = [{ event = "EVENT" }] }]\n'
    for event in ("first", "second", "first"):
        table.write_text(text.replace("EVENT", event))
        [read] = load_tables(["mine"], [tmp_path])
        assert read.patches[0].regions[0].event == event
    assert load_tables(["mine"], [tmp_path])[0] is read


def test_toml_that_does_not_parse_and_a_table_that_is_not_there_are_table_errors(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("trainer = ")
    with pytest.raises(TableError, match=r"broken\.toml: "):
        load_table(str(path))
    with pytest.raises(TableError, match=r"patches/no/such\.toml"):
        load_table("no/such")
    with pytest.raises(TableError, match="not a folder of patch tables"):
        load_tables(None, [tmp_path / "nowhere"])


def test_every_table_in_the_tree_ships_and_can_be_read():
    beside = Path(str(importlib.resources.files("sglang_instrument"))).parent / "patches"
    in_tree = sorted(f"{path.parent.name}/{path.stem}" for path in beside.glob("*/*.toml"))
    assert sorted(shipped_tables() + abouts()) == in_tree
    assert [load_table(name).name for name in shipped_tables()] == shipped_tables()


@pytest.mark.parametrize(
    ("text", "version", "admitted"),
    [
        (">=0.4.6", "0.4.6.post5", True),
        (">=0.4.6.post5", "0.4.6", False),
        (">=0.5.10,<0.6", "0.5.9", False),
        (">=0.5.10,<0.6", "0.5.10.post1", True),
        ("==0.5", "0.5.0", True),
        ("!=0.5.2", "0.5.2+cu128", False),
        ("<0.5.1", "0.5.1.dev3", False),
        (">=99", None, True),
    ],
)
def test_a_requirement_compares_numbers(text, version, admitted):
    assert Requirement(text).admits(version) is admitted


def test_numbers_of_a_version_leave_out_local_and_development_marks():
    assert numbers_of("0.4.6.post5") == (0, 4, 6, 5, 0)
    assert numbers_of("0.5.1rc2+g1234567") == (0, 5, 1, 0, 0)


def test_what_a_file_about_a_trainer_says_can_be_used():
    for about in read_abouts():
        assert {f"{about.trainer}/{table}" for table in about.tested} <= {*shipped_tables()}
        assert all(pair.count(":") == 1 for pair in (*about.address, *about.router))
        for pattern in (*about.log_router, *about.log_server, *about.log_servers):
            assert re.compile(pattern).groups in (1, 2)


def test_a_shipped_table_lies_in_the_folder_of_its_trainer():
    """So the tables of other trainers need not be parsed."""
    assert {table.name: table.trainer for table in load_tables()} == {
        name: trainer_of(name) for name in shipped_tables()
    }
    assert load_tables(["verl"]) == [table for table in load_tables() if table.trainer == "verl"]


def test_a_file_about_a_trainer_in_a_folder_of_own_tables_is_no_patch_table(tmp_path):
    (tmp_path / "about.toml").write_text('oldest = "1.0"')
    assert load_tables(["mine"], [tmp_path]) == []


def test_an_event_of_a_shipped_table_is_in_the_vocabulary_or_names_its_phase():
    regions = (region for table in load_tables() for patch in table.patches for region in patch.regions)
    assert {r.event for r in regions if r.event not in schema.EVENTS and r.phase is None} == set()
