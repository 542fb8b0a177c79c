"""Labels of failures."""

import pytest

from weir.errors import Misconfigured
from weir.execution import labels as rules
from weir.execution.failure_class import FailureClass
from weir.execution.labels import LONGEST, MOST_LABELS, Failure, built_in_labels, checked_enrichers, shown

FAILURE = Failure(
    dataflow="delays",
    epoch="20130101T000000Z",
    region="joined",
    subtask=1,
    try_number=3,
    error="ValueError",
    message="bad row",
    failure_class="application",
)


def enriched(failure, enrichers):
    return rules.enriched(failure, enrichers, enrichers.__getitem__)


class PythonException(Exception):
    """As pyspark's."""


def test_each_failure_has_its_type_and_its_exception():
    labels = built_in_labels(FailureClass.APPLICATION, ValueError("bad row"))
    assert labels == {"type": "application", "exception": "ValueError"}
    in_worker = PythonException('Traceback (most recent call last):\n  File "f.py", line 1, in f\nKeyError: 1\n')
    assert built_in_labels(FailureClass.APPLICATION, in_worker)["exception"] == "KeyError"


def test_a_function_is_told_of_the_failure_and_adds_labels():
    found = enriched(FAILURE, {"tickets:owner": lambda failure: {"owner": f"{failure.dataflow}-{failure.region}"}})
    assert (found.labels, found.complaints) == ({"owner": "delays-joined"}, ())
    assert shown(found.labels) == "owner=delays-joined"


def fails(failure):
    raise LookupError(failure.region)


def test_a_function_that_fails_costs_no_other_labels():
    found = enriched(FAILURE, {"a:fails": fails, "b:owner": lambda _: {"owner": "routes"}})
    assert found.labels == {"owner": "routes"}
    assert found.complaints == ("a:fails: LookupError: joined",)


def test_of_two_that_give_one_key_the_first_counts_and_the_other_is_told():
    found = enriched(
        FAILURE, {"a:one": lambda _: {"owner": "a", "page": "1"}, "b:two": lambda _: {"owner": "b", "team": "2"}}
    )
    assert found.labels == {"owner": "a", "page": "1", "team": "2"}
    assert found.complaints == ("b:two: label 'owner' is given by a:one already",)


def test_no_function_can_change_what_weir_says_itself():
    found = enriched(FAILURE, {"a:one": lambda _: {"type": "nothing", "exception": "None"}})
    assert found.labels == {}
    assert [complaint.partition("label ")[2] for complaint in found.complaints] == [
        "'type' is given by Weir itself already",
        "'exception' is given by Weir itself already",
    ]


@pytest.mark.parametrize("answer", [None, 5, {"count": 5}, {5: "count"}, ["owner"], {"": "x"}, {"k" * 201: "x"}])
def test_what_are_no_labels_is_left_out_and_told(answer):
    found = enriched(FAILURE, {"a:wrong": lambda _: answer, "b:owner": lambda _: {"owner": "routes"}})
    assert found.labels == {"owner": "routes"}
    assert len(found.complaints) == 1
    assert found.complaints[0].startswith("a:wrong: ")


def test_labels_are_few_and_short():
    found = enriched(FAILURE, {"a:many": lambda _: {str(number): "x" * 5_000 for number in range(30)}})
    assert len(found.labels) == MOST_LABELS
    assert {len(value) for value in found.labels.values()} == {LONGEST}
    assert len(found.complaints) == 30 - MOST_LABELS


@pytest.mark.parametrize("name", ["tickets", "tickets:", ":owner", "tickets.owner", "tickets:owner()", 5, "a b:c"])
def test_what_names_no_function_is_refused(name):
    with pytest.raises(Misconfigured, match='expected "module:function"'):
        checked_enrichers([name])


def test_each_function_is_asked_once():
    assert checked_enrichers(["a.b:c", "d:e", "a.b:c"]) == ("a.b:c", "d:e")
