"""Each fault still applies; a soak finds out which seed or test detects it."""

import pytest
from tests.mutations.fault import changes_syntax
from tests.mutations.faults import FAULTS
from tests.mutations.trial import try_fault

NEEDED = 40


def test_there_are_enough_faults_of_different_names():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= NEEDED


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_applies_and_changes_what_the_module_does(fault):
    before = fault.source()
    assert changes_syntax(before, fault.applied(before))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found(fault):
    assert try_fault(fault).kind not in (None, "crash")
