"""A plugin of pytest: of the tests that are given, only those run that draw what they test."""

import inspect
import re

import pytest

_DRAWS = re.compile(r"\b(random|Random|chance|seeds?)\b")
_ALL = ("tests/conformance/", "tests/simulation/")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Deselect the tests whose cases are written down."""
    drawn = [item for item in items if _is_drawn(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(drawn)])
    items[:] = drawn


def _is_drawn(item):
    is_hypothesis = getattr(item.obj, "is_hypothesis_test", False)
    return is_hypothesis or item.nodeid.startswith(_ALL) or bool(_DRAWS.search(inspect.getsource(item.obj)))
