"""Running checks: areas in parallel, each check within its time limit."""

import threading

import pytest

from weir.doctor.examination import Check, Enough, Item, Status, examine
from weir.errors import Misconfigured

HELD = 0.2
"""Seconds for a check that hangs."""


@pytest.fixture
def never():
    """Something to hang at; released at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def check(name, *findings, area="store", raises=None, waits=None, **more):
    def ask():
        yield from findings
        if waits is not None:
            waits.wait()
        if raises is not None:
            raise raises

    return Check(Item(area, name, **more), ask)


def statuses(*areas):
    return [(each.area, each.name, each.status) for each in examine(areas)]


def test_findings_of_an_area_come_in_the_order_of_its_checks():
    first = check("a", Item("store", "a").ok("1"), Item("store", "a", "x", "y").warning("2"))
    assert statuses([first, check("b", Item("store", "b").ok("3"))]) == [
        ("store", "a", Status.OK),
        ("store", "a", Status.WARNING),
        ("store", "b", Status.OK),
    ]


def test_a_check_that_hangs_is_a_problem_and_ends_its_area_only(never):
    hanging = check("mount", Item("store", "place").ok("/mnt"), waits=never, seconds=HELD)
    found = list(
        examine(
            [[hanging, check("b"), check("c")], [check("other", Item("ledger", "other").ok("fine"), area="ledger")]],
        )
    )
    by_name = {(each.area, each.name): each for each in found}
    assert by_name["ledger", "other"].status is Status.OK
    assert by_name["store", "place"].status is Status.OK, "what was found before it hung counts"
    assert by_name["store", "mount"].status is Status.PROBLEM
    assert "no answer within 0.2 seconds" in by_name["store", "mount"].found
    assert by_name["store", "the rest"].found == "not checked, since it needs mount: b, c"


def test_a_check_that_fails_is_a_problem_and_the_next_check_runs():
    found = list(examine([[check("a", raises=KeyError("x")), check("b", Item("store", "b").ok("fine"))]]))
    assert [each.status for each in found] == [Status.PROBLEM, Status.OK]
    assert "KeyError: 'x'" in found[0].found


def test_an_error_of_weir_is_reported_with_its_message():
    [found] = examine([[check("a", raises=Misconfigured("set WEIR_STORE"))]])
    assert found.status is Status.PROBLEM
    assert found.found == "set WEIR_STORE"


@pytest.mark.parametrize("closing", [Item("store", "a", "x", "y").problem("bad"), Item("store", "a").unknown("?")])
def test_after_a_gate_with_a_problem_no_check_of_its_area_runs(closing):
    asked = []
    behind = Check(Item("store", "b"), lambda: asked.append(1) or [])
    found = statuses([check("a", closing, is_gate=True), behind])
    assert found[-1] == ("store", "the rest", Status.UNKNOWN)
    assert asked == []


def test_a_warning_does_not_close_a_gate():
    found = statuses(
        [
            check("a", Item("store", "a", "x", "y").warning("slow"), is_gate=True),
            check("b", Item("store", "b").ok("fine")),
        ]
    )
    assert [status for _, _, status in found] == [Status.WARNING, Status.OK]


def test_a_check_can_end_its_area_without_a_finding():
    found = statuses([check("a", Item("ledger", "a").ok("not there yet"), raises=Enough()), check("b")])
    assert found == [("store", "a", Status.OK)] or found == [("ledger", "a", Status.OK)]


def test_a_process_ends_though_a_check_hangs(tmp_path):
    import subprocess
    import sys

    program = (
        "import threading\n"
        "from weir.doctor.examination import Check, Item, examine\n"
        "found = list(examine([[Check(Item('a', 'b', seconds=0.1), lambda: threading.Event().wait() or [])]]))\n"
        "print(found[0].status.value)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "problem\n"
