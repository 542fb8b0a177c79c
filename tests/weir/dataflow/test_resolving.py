"""What a source's resolver may answer."""

import pytest
from tests.messages.kinds import of_kind

from weir.dataflow.resolving import checked_splits
from weir.errors import Misconfigured


def test_an_answer_is_recorded_as_json_keeps_it():
    assert checked_splits(({"day": 1, "of": ("EWR", "JFK")}, 2.5), "x", 2) == [{"day": 1, "of": ["EWR", "JFK"]}, 2.5]


@pytest.mark.parametrize(
    ("answer", "found"),
    [([1, 2], "2 values"), (None, "NoneType"), ("abc", "str: abc"), ([1, None, 3], "3 values"), ({1: 2}, "dict")],
)
def test_there_is_one_value_a_subtask(answer, found):
    with pytest.raises(Misconfigured, check=of_kind("dataflow.splits_malformed", owner="x", parallelism="3")):
        checked_splits(answer, "x", 3)


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}])
def test_a_value_is_json(value):
    with pytest.raises(Misconfigured, check=of_kind("dataflow.splits_not_json", owner="x")):
        checked_splits([value], "x", 1)
