"""The table of the doctor's checks."""

import string

import pytest

from weir.doctor import table
from weir.doctor.examination import Item, Status

ITEMS = {name: item for name, item in vars(table).items() if isinstance(item, Item)}


@pytest.mark.parametrize("name", ITEMS)
def test_what_can_be_wrong_says_what_is_expected_and_what_mends_it(name):
    item = ITEMS[name]
    assert bool(item.expected) is bool(item.mend)
    values = [each for text in (item.expected, item.mend) for _, each, _, _ in string.Formatter().parse(text) if each]
    found = item.problem("it is not", **{each: f"<{each}>" for each in values})
    assert (found.area, found.name, found.status) == (item.area, item.name, Status.PROBLEM)
    assert all(f"<{each}>" in found.expected + found.mend for each in values)


def test_a_check_has_the_limit_and_the_gate_of_its_item():
    item = table.LOG_IN.check(list).item
    assert (item.area, item.name, item.seconds, item.is_gate) == ("airflow", "log in", 40.0, True)
    assert table.READS_STORE.of("spark: mine").check(list).item.area == "spark: mine"
