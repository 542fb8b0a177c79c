"""`weir verify --expectations`, as far as it comes to no rows: what is asked wrongly, and what cannot be restored."""

import json

import pytest
from tests.messages.kinds import of_kind
from tests.weir.command_line import invoked, use
from tests.weir.restoring import HISTORY_FLOW
from tests.weir.small_dataflow import World

from weir.cli.commands.verify import print_checks
from weir.dataflow.quality import Policy
from weir.errors import Misconfigured
from weir.formats.checks import CheckReason, CheckReport, ExpectationResult
from weir.formats.suite import Severity
from weir.integrity.expectation_checks import ChecksReport


@pytest.fixture
def world(tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    return World(tmp_path, HISTORY_FLOW)


def typed(*words):
    """What was printed, and the exit code."""
    done = invoked("verify", *words)
    return done.stdout, done.exit_code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--checkpoint", "3"], of_kind("cli.verify_options_clash")),
        (["--expectations", "--repair"], of_kind("cli.verify_options_clash")),
        (["--expectations", "--content"], of_kind("cli.verify_options_clash")),
        (["--expectations", "--checkpoint", "3", "--savepoint", "x"], of_kind("cli.nothing_to_restore")),
        (["ladder", "--expectations", "--checkpoint", "three"], of_kind("cli.checkpoint_malformed")),
        (["--expectations", "--checkpoint", "3"], of_kind("cli.dataflow_not_named")),
        (["--remote", "sc://nowhere"], of_kind("cli.remote_in_vain")),
        (["nobody", "--expectations", "--checkpoint", "newest"], of_kind("ledger.dataflow_unknown", name="nobody")),
    ],
)
def test_what_is_asked_wrongly_is_said_before_anything_is_read(world, words, said):
    with pytest.raises(Misconfigured, check=said):
        typed(*words)


def test_where_nothing_keeps_state_and_no_stage_has_a_suite_all_is_right(world):
    assert typed("--expectations", "--checkpoint", "newest") == (
        "No dataflow has a retained checkpoint: there is nothing to restore\n",
        0,
    )
    world.airflow.dag_run()
    world.airflow.run_until_quiet()
    told, code = typed("--expectations")
    assert (code, told) == (0, "current results of 1 run(s) whose stages have suites. 0 check(s), none failed\n")


def test_a_checkpoint_that_cannot_be_restored_is_told_with_the_file_and_exits_with_1(world):
    world.run_first(1)
    lost = next((world.folder / "store" / "ladder").glob("*/history/*/*/*/part-0.bin"))
    lost.unlink()
    told, code = typed("--expectations", "--checkpoint", "newest", "--json")
    (looked,) = json.loads(told)["looked_at"]
    assert (code, looked["is_right"], looked["checks"]) == (1, False, [])
    assert lost.name in looked["problem"]
    told, code = typed("ladder", "--expectations", "--checkpoint", "1")
    assert "checkpoint 1 of ladder" in told
    assert "it cannot be restored. Nothing could be checked" in told
    assert "the checks are not recorded" not in told


def test_a_report_has_a_line_a_check_with_what_is_violated(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    wrong = ExpectationResult("weir_rows_as_recorded", {}, Severity.FAIL, success=False, observed=19)
    checks = tuple(
        CheckReport(
            "history",
            0,
            suite,
            "",
            Policy.FAIL,
            CheckReason.RESTORE_TEST,
            "d",
            20,
            found,
            0.0,
            run="ladder@1",
            attempt="t1",
        )
        for suite, found in (("weir", (wrong,)), ("small", (ExpectationResult("x", {}, Severity.FAIL, success=True),)))
    )
    looked = ChecksReport(what="checkpoint 3 of ladder: restored to a scratch place", checks=checks, is_recorded=False)
    assert not looked.is_right
    print_checks([looked], as_json=False)
    said = capsys.readouterr().out
    assert "2 check(s), 1 failed" in said
    (line,) = [each for each in said.splitlines() if "failed" in each and "history[0]" in each]
    assert "weir_rows_as_recorded(): found 19" in line
    assert "1 expectation(s) met" in said
    assert "the checks are not recorded" in said
