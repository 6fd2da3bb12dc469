"""JSON that is printed piece by piece is the same text as JSON of the whole answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_instrument.analysis.answers import json_pieces
from sglang_instrument.analysis.answers.json_pieces import JsonRows, pieces_of_json

values = st.one_of(
    st.none(), st.integers(-3, 2**70), st.text(max_size=3), st.just("\udcff"), st.floats(-1, 1)
)
rows = st.lists(
    st.one_of(values, st.dictionaries(st.text(max_size=2), st.lists(values, max_size=2))), max_size=7
)
answers = st.recursive(
    st.one_of(values, rows),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.fixture(autouse=True, scope="module")
def few_at_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_pieces, "_AT_ONCE", 3)
        yield


@given(st.dictionaries(st.text(max_size=3), answers, max_size=4))
def test_the_text_is_that_of_the_whole_answer(answer):
    made = {key: JsonRows(iter(value)) if isinstance(value, list) else value for key, value in answer.items()}
    assert "".join(pieces_of_json(made)) == "".join(pieces_of_json(answer))


@given(
    st.dictionaries(st.text(max_size=3), st.dictionaries(st.text(max_size=3), rows, max_size=3), max_size=3)
)
def test_so_it_is_where_lists_lie_deeper(answer):
    made = {
        key: {name: JsonRows(iter(value)) for name, value in inner.items()} for key, inner in answer.items()
    }
    assert "".join(pieces_of_json(made)) == "".join(pieces_of_json(answer))


def test_rows_are_encoded_some_at_a_time():
    begun = []
    pieces = pieces_of_json({"rows": JsonRows(begun.append(n) or n for n in range(100))})
    assert next(pieces) == '{\n  "rows": '
    assert begun == []
    assert next(pieces) == "["
    assert next(pieces).endswith("    2")
    assert begun == [0, 1, 2]
    assert "".join(pieces).endswith("    99\n  ]\n}\n")


def test_an_object_without_json_is_an_error():
    with pytest.raises(TypeError, match="not JSON serializable: object"):
        list(pieces_of_json({"object": object()}))
