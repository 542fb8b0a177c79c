"""A redundant stack under faults of every kind, by its real command line, with a fixed seed."""

import re

import pytest
from test_chaos import chaos, left
from tests.chaos.ha_faults import ha_faults

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(3600)]

FAULTS = [fault.name for fault in ha_faults(None)]


def test_each_fault_of_a_redundant_stack_heals_and_changes_nothing_of_what_is_published():
    run = chaos("--ha", "--minutes", str(len(FAULTS)), "--seed", "3")
    said, _ = run.communicate()
    assert run.returncode == 0, said
    assert set(re.findall(r"fault \d+ ([a-z-]+): ", said)) == set(FAULTS), said
    assert said.count("healed after") >= len(FAULTS)
    assert "DIFFERENT" not in said
    assert left() == []
