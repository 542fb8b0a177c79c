"""The sums of failovers by week."""

from datetime import UTC, date, datetime

from weir.recovery.failovers import FailoverKind
from weir.recovery.past_failovers import PastFailover
from weir.recovery.rules.plan import Cost, Plan, Step, StepKind, Total
from weir.topology.regions import RegionId
from weir.views.charts import chart_of_weeks
from weir.views.failovers import weeks_of


def failover(number, at, *, incident=None, seconds=10.0, kind=FailoverKind.LOSS, recomputed=1.0, spared=3):
    step = Step(
        kind=StepKind.RERUN,
        region=RegionId("a", 0),
        after_try=1,
        reason="lost",
        cost=Cost(rows=5, bytes=50, seconds=seconds),
    )
    plan = Plan(failed=None, cause="lost", steps=(step,), run="f@1", strategy="region", consumers="if_changed")
    return PastFailover(
        id=number,
        incident=incident or number,
        run="f@1",
        kind=kind,
        failed=None,
        attempt=None,
        decided_at=at,
        cause="lost",
        labels={},
        plan=plan,
        recomputed=Total(1, 5, 50, recomputed, 0),
        taken={},
        spared=spared,
        is_over=True,
        not_deterministic=(),
        usual_causes=None,
    )


SUNDAY = datetime(2013, 1, 6, 23, 59, tzinfo=UTC)
MONDAY = datetime(2013, 1, 7, tzinfo=UTC)
THIRD = datetime(2013, 1, 21, tzinfo=UTC)


def test_no_failover_is_in_no_week():
    assert weeks_of([]) == []


def test_weeks_begin_on_mondays_and_those_without_failovers_are_among_them():
    weeks = weeks_of([failover(1, SUNDAY), failover(2, THIRD)])
    assert [(each.week, each.begins, each.failovers) for each in weeks] == [
        ("2013-W01", date(2012, 12, 31), 1),
        ("2013-W02", date(2013, 1, 7), 0),
        ("2013-W03", date(2013, 1, 14), 0),
        ("2013-W04", date(2013, 1, 21), 1),
    ]


def test_a_full_restart_counts_once_an_incident_as_at_its_largest_and_with_its_first_failover():
    of_one = [
        failover(1, SUNDAY, seconds=10.0, spared=3),
        failover(2, MONDAY, incident=1, seconds=20.0, spared=2),
        failover(3, MONDAY, incident=1, seconds=15.0, spared=9),
    ]
    (week,) = weeks_of(of_one)
    assert (week.incidents, week.failovers) == (1, 3)
    assert week.recomputed.seconds == 3.0
    assert (week.full_restart.seconds, week.spared) == (20.0, 2)


def test_what_was_held_back_is_counted_and_is_in_no_sum():
    (week,) = weeks_of([failover(1, MONDAY, kind=FailoverKind.HELD_BACK), failover(2, MONDAY)])
    assert (week.incidents, week.failovers, week.held_back) == (2, 2, 1)
    assert (week.recomputed.seconds, week.full_restart.seconds, week.spared) == (1.0, 10.0, 3)


def test_a_chart_has_a_column_a_week_and_no_address():
    drawn = str(chart_of_weeks(weeks_of([failover(1, SUNDAY), failover(2, THIRD)])))
    assert drawn.count("<title>") == 4
    assert "href" not in drawn
    assert "style" not in drawn
