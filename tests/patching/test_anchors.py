"""Anchors of a table find the statements that they name, exactly one place each, and refuse others."""

import ast

import pytest

from sglang_instrument.patching.places.anchors import (
    AnchorsAmbiguous,
    AnchorsMissing,
    FunctionOutline,
    Unresolved,
    parse_anchors,
)

SOURCE = '''def f(self):
    """doc about prepare"""
    prepare()
    if ready:
        x = fetch(1)
        y(label="gen")
    else:
        x = fetch(2)
    for item in x:
        check(item)
        work(item)
        def nested():
            hidden()
        clean(item)
    with timer("save"):
        save(path=x)
    finish()
    return x
'''


@pytest.fixture(scope="module")
def shape():
    return FunctionOutline(ast.parse(SOURCE).body[0])


def lines(shape, **anchors):
    texts = {("from" if key == "start" else key): text for key, text in anchors.items()}
    return shape.resolve(parse_anchors(texts)).lines


@pytest.mark.parametrize(
    ("anchors", "expected"),
    [
        ({}, (3, 18)),
        ({"at": "prepare"}, (3, 3)),
        ({"at": "work"}, (11, 11)),
        ({"block": "work"}, (10, 14)),
        ({"start": "check", "through": "work"}, (10, 11)),
        ({"start": "check", "before": "clean"}, (10, 13)),
        ({"after": "check", "before": "clean"}, (11, 13)),
        ({"after": "work"}, (12, 14)),
        ({"before": "work"}, (10, 10)),
        ({"through": "work"}, (10, 11)),
        ({"start": "work"}, (11, 14)),
        ({"start": "prepare", "before": "finish"}, (3, 16)),
    ],
)
def test_anchors_name_statements_of_the_innermost_block_that_has_them_all(shape, anchors, expected):
    assert lines(shape, **anchors) == expected


def test_an_anchor_in_quotes_is_a_string_constant(shape):
    assert lines(shape, at="'save'") == (15, 16)
    assert lines(shape, at='"gen"') == (6, 6)


def test_alternatives_are_names_of_which_any_will_do(shape):
    assert lines(shape, at="renamed_check | check") == (10, 10)


def test_a_keyword_of_a_call_is_a_mention(shape):
    assert lines(shape, at="path") == (16, 16)


def test_a_nested_function_is_known_by_its_name_and_its_body_is_opaque(shape):
    assert lines(shape, at="nested") == (12, 13)
    with pytest.raises(AnchorsMissing, match="no statement mentions hidden"):
        lines(shape, at="hidden")


def test_the_docstring_mentions_nothing_and_belongs_to_no_region(shape):
    assert lines(shape, through="prepare") == (3, 3)


def test_a_region_between_two_neighbours_is_empty_and_has_its_place(shape):
    region = shape.resolve(parse_anchors({"after": "check", "before": "work"}))
    assert region.nodes == []
    assert region.lines == (11, 11)


def test_two_blocks_beside_each_other_are_ambiguous_and_both_lines_are_named(shape):
    with pytest.raises(AnchorsAmbiguous, match="lines 5, 8 match"):
        lines(shape, at="fetch")


def test_a_second_anchor_makes_an_ambiguous_one_clear(shape):
    assert lines(shape, start="fetch", through="y") == (5, 6)


def test_names_in_the_wrong_order_are_missing(shape):
    with pytest.raises(AnchorsMissing, match="in this order"):
        lines(shape, start="finish", through="prepare")


def test_a_loop_that_mentions_a_name_twice_is_not_ambiguous():
    source = "def f():\n    a()\n    while b():\n        a()\n        c()\n"
    shape = FunctionOutline(ast.parse(source).body[0])
    assert lines(shape, at="a") == (4, 4)
    assert lines(shape, start="a", before="b") == (2, 2)


def test_statements_of_handlers_finally_and_match_are_blocks_too():
    source = (
        "def f():\n    try:\n        a()\n    except E:\n        b()\n"
        "    else:\n        c()\n    finally:\n        d()\n"
        "    match x:\n        case 1:\n            g()\n"
    )
    shape = FunctionOutline(ast.parse(source).body[0])
    assert [lines(shape, block=name) for name in "abcdg"] == [(3, 3), (5, 5), (7, 7), (9, 9), (12, 12)]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"at": "a.b"}, "at must be a name or a quoted string, or several with ' | ', got 'a.b'"),
        ({"at": "a", "from": "b"}, "at, block, call and entering allow no other anchor, got at, from"),
        ({"from": "a", "after": "b"}, "give from or after, not both"),
        ({"through": "a", "before": "b"}, "give through or before, not both"),
        ({"block": "a |b"}, "block must be a name"),
    ],
)
def test_invalid_anchors_are_explained(texts, message):
    with pytest.raises(ValueError, match=message.replace("|", r"\|")):
        parse_anchors(texts)


def test_a_text_that_is_written_as_a_name_is_shown_with_the_quotes_that_it_needs(shape):
    with pytest.raises(AnchorsMissing) as missing:
        shape.resolve(parse_anchors({"from": "prepare", "through": "gen"}))
    assert str(missing.value) == "no statement mentions gen; it occurs as a string: write \"'gen'\""
    with pytest.raises(AnchorsMissing) as missing:
        shape.resolve(parse_anchors({"from": "'gen'", "through": "gone"}))
    assert str(missing.value) == "no statement mentions gone"


def test_every_way_of_not_resolving_is_one_kind():
    assert issubclass(AnchorsMissing, Unresolved)
    assert issubclass(AnchorsAmbiguous, Unresolved)
