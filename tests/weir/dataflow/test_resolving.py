"""What a source's resolver may answer."""

import pytest

from weir.dataflow.stage import checked_splits
from weir.errors import Misconfigured


def test_an_answer_is_recorded_as_json_keeps_it():
    assert checked_splits(({"day": 1, "of": ("EWR", "JFK")}, 2.5), "x", 2) == [{"day": 1, "of": ["EWR", "JFK"]}, 2.5]


@pytest.mark.parametrize(
    ("answer", "found"),
    [([1, 2], "2 values"), (None, "NoneType"), ("abc", "str: abc"), ([1, None, 3], "3 values"), ({1: 2}, "dict")],
)
def test_there_is_one_value_a_subtask(answer, found):
    with pytest.raises(Misconfigured, match=rf"x must return a list of 3 values.*found {found}"):
        checked_splits(answer, "x", 3)


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}])
def test_a_value_is_json(value):
    with pytest.raises(Misconfigured, match="x must return numbers, strings, lists and dicts only"):
        checked_splits([value], "x", 1)
