"""`weir doctor`: which deployment it examines, the process that needs Airflow, and the report."""

import io
import json
import os
import sys

import pytest
import typer
from rich.console import Console

from weir.cli.commands import doctor as command
from weir.cli.commands.doctor import print_report
from weir.doctor import deployment
from weir.doctor.deployment import AirflowProcess, Subject, in_order
from weir.doctor.examination import Check, Item, Status, examine

FINDINGS = [
    Item("store", "place").ok("file:///data"),
    Item("airflow", "plugin", "it is there", "load it").problem("not there"),
    Item("versions", "Python").ok("3.11.7"),
    Item("spark: other", "Java", "17", "JAVA_HOME").warning("25"),
    Item("store", "marker").unknown("not asked"),
]


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Write a module that runs instead of the one that imports Airflow."""

    def write(text):
        (tmp_path / "part_of_test.py").write_text(text)
        return AirflowProcess({**os.environ, "PYTHONPATH": str(tmp_path)}, module="part_of_test")

    return write


def statuses(findings):
    return [each.status for each in findings]


def test_the_report_has_a_line_a_finding_and_the_advice_under_what_is_not_ok():
    console = Console(record=True, width=300, file=io.StringIO())
    print_report(console, "this environment", in_order(FINDINGS))
    lines = [line.rstrip() for line in console.export_text().splitlines() if line.strip()]
    assert lines == [
        "About this environment",
        "versions",
        "  ok       Python                   3.11.7",
        "store",
        "  ok       place                    file:///data",
        "  unknown  marker                   not asked",
        "airflow",
        "  problem  plugin                   not there",
        "           expected: it is there",
        "           mend: load it",
        "spark: other",
        "  warning  Java                     25",
        "           expected: 17",
        "           mend: JAVA_HOME",
        "1 problem(s), 1 warning(s), 1 unknown; 2 of 5 ok",
    ]


def test_findings_of_the_airflow_process_are_read_line_by_line(script):
    findings = [json.dumps(each.to_json()) for each in FINDINGS]
    part = script(f"print({findings[0]!r})\nprint({findings[1]!r})\n")
    assert list(part.findings()) == FINDINGS[:2]


def test_an_airflow_process_that_fails_is_a_finding_after_those_it_had_printed(script):
    line = json.dumps(FINDINGS[0].to_json())
    part = script(
        f"print({line!r}, flush=True)\nraise SystemExit('cannot reach postgresql://weir:known-to-nobody-else@db/x')\n"
    )
    first, last = part.findings()
    assert first == FINDINGS[0]
    assert last.status is Status.PROBLEM
    assert "cannot reach postgresql://weir:***@db/x" in last.found
    assert sys.executable in last.mend


def test_an_airflow_process_without_output_is_a_finding(script):
    [found] = script("").findings()
    assert found.status is Status.PROBLEM


def test_an_airflow_process_that_hangs_is_ended(script):
    line = json.dumps(FINDINGS[0].to_json())
    part = script(f"import time\nprint({line!r}, flush=True)\ntime.sleep(600)\n")
    found = list(examine([[Check(Item("part", "process", seconds=5.0), part.findings)]]))
    part.end()
    assert found[0] == FINDINGS[0]
    assert found[1].status is Status.PROBLEM
    assert part._process.poll() is not None


def test_the_java_of_an_environment_is_judged(tmp_path):
    assert deployment.check_java(os.environ).status is Status.OK
    wrong = deployment.check_java({**os.environ, "WEIR_JAVA": str(tmp_path)})
    assert wrong.status is Status.PROBLEM
    assert "WEIR_JAVA" in wrong.found


@pytest.mark.parametrize(("finding", "code"), [(FINDINGS[0], 0), (FINDINGS[3], 0), (FINDINGS[4], 0), (FINDINGS[1], 1)])
def test_the_exit_code_says_whether_there_is_a_problem(capsys, finding, code):
    subject = Subject(about="a test", environment=None, is_served=False, findings=(finding,))
    with pytest.raises(typer.Exit) as ended:
        command.report(lambda: subject, (), as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert ended.value.exit_code == code
    assert report["status"] == finding.status.value
    assert finding.to_json() in report["findings"]
