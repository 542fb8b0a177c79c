import json

import pytest

from weir.doctor.examination import Finding, Status, ok, problem, unknown, warning, worst

FINE = ok("store", "marker", "there")
SLOW = warning("store", "clock", "late", expected="in time", mend="NTP")
BAD = problem("store", "marker", "gone", expected="there", mend="mount it")
DARK = unknown("store", "marker", "not asked")


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
