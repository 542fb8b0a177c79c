"""A plan as a person reads it."""

from weir.cli.plan_report import print_plan
from weir.recovery.rules.plan import Plan, Step, StepKind
from weir.topology.regions import RegionId


def test_a_plan_that_nobody_can_carry_out_says_so_and_offers_no_command_that_would(capsys):
    step = Step(kind=StepKind.RERUN, region=RegionId("aircraft", 0), after_try=1, reason="history[0] is gone")
    plan = Plan(
        failed=None,
        cause="asked",
        steps=(step,),
        run="delays@1",
        held_back="too much",
        impossible="history[0] of delays@0 was released",
    )
    print_plan(plan)
    told = " ".join(capsys.readouterr().out.split())
    assert "This cannot be applied: history[0] of delays@0 was released." in told
    assert told.index("This cannot be applied") < told.index("would re-run")
    assert "will re-run" not in told
    assert "--apply" not in told
    assert plan.summary() == "nothing can be re-run: history[0] of delays@0 was released"


def test_a_plan_that_is_held_back_says_how_it_is_carried_out(capsys):
    print_plan(Plan(failed=None, cause="asked", steps=(), run="delays@1", held_back="too much"))
    told = " ".join(capsys.readouterr().out.split())
    assert "Weir does not apply this automatically: too much. `weir plan delays@1 --apply` does." in told
