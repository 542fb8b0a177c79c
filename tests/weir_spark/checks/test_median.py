"""The median of whole numbers and decimals is compared with a bound exactly, by counts and its neighbours."""

from __future__ import annotations

from fractions import Fraction
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from weir_spark.checks.plain_aggregates import side_of_median

numbers = st.integers(2**53 - 2, 2**53 + 3)


@given(st.lists(numbers, min_size=1, max_size=7), numbers)
def test_the_side_of_a_bound_on_which_a_median_is(values, bound) -> None:
    less, more = [each for each in values if each < bound], [each for each in values if each > bound]
    at_most = len(values) - len(more)
    found = side_of_median(len(values), bound, len(less), at_most, max(less, default=None), min(more, default=None))
    right = median(map(Fraction, values))
    assert found == (right > bound) - (right < bound)
