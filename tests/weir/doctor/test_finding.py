import json

import pytest

from weir.doctor.examination import Finding, Item, Status, worst

FINE = Item("store", "marker").ok("there")
SLOW = Item("store", "clock", "in time", "NTP").warning("late")
BAD = Item("store", "marker", "there", "mount it").problem("gone")
DARK = Item("store", "marker").unknown("not asked")


@pytest.mark.parametrize("finding", [FINE, SLOW, BAD, DARK])
def test_a_finding_survives_as_json(finding):
    assert Finding.from_json(json.loads(json.dumps(finding.to_json()))) == finding


@pytest.mark.parametrize(
    ("findings", "status"),
    [
        ([], Status.OK),
        ([FINE], Status.OK),
        ([FINE, DARK], Status.UNKNOWN),
        ([FINE, DARK, SLOW], Status.WARNING),
        ([SLOW, BAD, FINE], Status.PROBLEM),
    ],
)
def test_the_status_of_all_findings_is_the_worst(findings, status):
    assert worst(findings) is status
