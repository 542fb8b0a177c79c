"""A dataflow reads what another one has published: which epochs, when, and what is refused."""

import pytest
from sqlalchemy import select
from tests.weir.datasets.neighbours import HOURLY, reader, trips

from weir.dataflow import Dataflow, Stage, blocking, dataset, last, sink
from weir.ledger.database.tables import RunRow
from weir.ledger.reads import resolved_inputs


def read_by(town, run):
    """The epochs that the only input of a run reads, and those that it leaves out."""
    with town.ledger.transaction() as session:
        (found,) = resolved_inputs(session, run)
    return [each.partition("@")[2] for each in found.runs], list(found.left_out)


def day(number):
    return f"201301{number:02d}T000000Z"


def waits_on(airflow, run, task="read"):
    return airflow.task(run, task).waits_on.kind


def failed_because(airflow, run, task="read"):
    return airflow.task(run, task).failed_because


def test_what_is_not_published_is_waited_for_without_a_try(town):
    town.add(trips())
    report = town.add(reader(zones=dataset("trips.zones")))
    run = report.dag_run(1)
    town.go_on()
    assert report.task(run, "read").state == "up_for_reschedule"
    assert waits_on(report, run) == "recovery.dataset_not_begun"
    town.airflows["trips"].dag_run(1)
    town.go_on()
    assert report.state_of(run) == "success"
    assert report.task(run, "read").try_number == 1
    assert read_by(town, f"report@{day(1)}") == ([day(1)], [])


def test_an_epoch_in_between_is_waited_for_and_a_later_one_is_not_read(town):
    flow = town.add(trips())
    report = town.add(reader(zones=dataset("trips.zones", epoch=last(3))))
    town.run("trips", 1, 2, 3, 5, 6)
    run = report.dag_run(5)
    town.go_on()
    assert waits_on(report, run) == "recovery.dataset_awaited"
    flow.dag_run(4)
    town.go_on()
    assert report.state_of(run) == "success"
    assert read_by(town, f"report@{day(5)}") == ([day(3), day(4), day(5)], [])


def test_fewer_epochs_are_read_where_the_data_set_begins_later(town):
    town.add(trips())
    report = town.add(reader(zones=dataset("trips.zones", epoch=last(7))))
    town.run("trips", 1, 2)
    (run,) = town.run("report", 2)
    assert report.state_of(run) == "success"
    assert read_by(town, f"report@{day(2)}") == ([day(1), day(2)], [])


def test_all_hours_of_a_day_are_read_and_no_others(town):
    hourly = town.add(trips(), HOURLY)
    report = town.add(reader(zones=dataset("trips.zones", epoch="within")))
    run = report.dag_run(2)
    for number, hour in [(1, 23), *((2, hour) for hour in range(24) if hour != 5), (3, 0)]:
        hourly.hour_run(number, hour)
        town.go_on()
        assert report.state_of(run) == "running"
    hourly.hour_run(2, 5)
    town.go_on()
    assert report.state_of(run) == "success"
    found, left_out = read_by(town, f"report@{day(2)}")
    assert found == [f"20130102T{hour:02d}0000Z" for hour in range(24)]
    assert left_out == []


def test_what_is_missing_may_be_left_out_and_that_is_recorded(town):
    hourly = town.add(trips(), HOURLY)
    town.add(reader(zones=dataset("trips.zones", epoch="within", missing="skip", schema="k BIGINT")))
    for hour in (0, 1, 3):
        hourly.hour_run(1, hour)
        hourly.run_until_quiet()
    (run,) = town.run("report", 1)
    assert town.airflows["report"].state_of(run) == "success"
    found, left_out = read_by(town, f"report@{day(1)}")
    assert [each[9:11] for each in found] == ["00", "01", "03"]
    assert [each[9:11] for each in left_out] == [f"{hour:02d}" for hour in range(24) if hour not in (0, 1, 3)]
    # An epoch that comes later changes nothing.
    hourly.hour_run(1, 2)
    town.go_on()
    assert read_by(town, f"report@{day(1)}")[0] == found
    assert town.airflows["report"].task(run, "read").try_number == 1


@pytest.mark.parametrize("epoch", ["within", last(2), "latest"])
def test_without_a_cadence_only_the_same_epoch_is_read(town, epoch):
    flow = town.add(trips())
    flow.every = None
    report = town.add(reader(zones=dataset("trips.zones", epoch=epoch)))
    town.run("trips", 1)
    (run,) = town.run("report", 1)
    assert "has no cadence" in failed_because(report, run)


@pytest.mark.parametrize(
    ("name", "every", "epoch", "said"),
    [
        ("trips.zone", "0 0 * * *", "same", "there is no data set trips.zone"),
        ("trips.zones", HOURLY, "same", "no epoch of the same interval"),
        ("trips.zones", "0 0 * * 2", "within", "longer epochs"),
    ],
)
def test_what_cannot_come_is_refused_at_the_first_begin(town, name, every, epoch, said):
    flow = town.add(trips(), every)
    report = town.add(reader(zones=dataset(name, epoch=epoch)))
    flow.hour_run(1, 0) if every == HOURLY else flow.dag_run(1)
    flow.run_until_quiet()
    if epoch == "within":
        with town.ledger.transaction("trips") as session:
            row = session.scalar(select(RunRow).where(RunRow.dataflow == "trips"))
            row.interval_start, row.interval_end = row.interval_start.replace(year=2012), row.interval_start
    (run,) = town.run("report", 1)
    assert said in failed_because(report, run)
    assert report.task(run, "read").state == "failed"


def test_a_data_set_begins_with_the_first_epoch_that_has_its_sink(town):
    flow = town.add(trips())
    with_others = Dataflow("trips", [*flow.flow.stages, sink("raw", "others")])
    report = town.add(reader(others=dataset("trips.others", epoch=last(3))))
    town.run("trips", 1, 2)
    flow.flow = with_others
    town.run("trips", 3, 4)
    (run,) = town.run("report", 4)
    assert report.state_of(run) == "success"
    assert read_by(town, f"report@{day(4)}") == ([day(3), day(4)], [])


def test_what_was_published_by_a_sink_that_is_gone_can_be_read(town):
    flow = town.add(trips())
    report = town.add(reader(zones=dataset("trips.zones")))
    town.run("trips", 1)
    flow.flow = Dataflow("trips", [*flow.flow.stages[:2], sink("by_zone", "places")])
    town.run("trips", 2)
    (one,), (two,) = town.run("report", 1), town.run("report", 2)
    assert report.state_of(one) == "success"
    assert "there is no data set trips.zones" in failed_because(report, two)


def test_dataflows_that_read_each_other_are_refused(town):
    one = town.add(
        Dataflow(
            "one",
            [Stage("a", "pipelines.one:a", {"x": dataset("three.out", epoch="latest")}), sink("a", "out")],
        )
    )
    town.add(reader("two", x=dataset("one.out")))
    three = town.add(reader("three", x=dataset("two.out")))
    for name in ("one", "two"):
        town.airflows[name].dag_run(1)
    town.go_on()
    run = three.dag_run(1)
    town.go_on()
    assert "three -> " in failed_because(three, run)
    assert one.state_of("scheduled__2013-01-01") in ("running", "failed")


def test_subtasks_read_their_key_groups(town):
    town.add(trips())
    flow = Dataflow(
        "report",
        [
            Stage("read", "pipelines.report:read", {"zones": dataset("trips.zones", by="k")}, parallelism=3),
            Stage("made", "pipelines.report:made", [blocking("read")]),
            sink("made", "out"),
        ],
    )
    report = town.add(flow)
    town.run("trips", 1)
    (run,) = town.run("report", 1)
    assert report.state_of(run) == "success"
    assert [report.task(run, "read", each).state for each in range(3)] == ["success"] * 3


def test_a_stage_reads_two_data_sets(town):
    town.add(trips())
    town.add(reader("weather", zones=dataset("trips.zones")))
    report = town.add(reader(zones=dataset("trips.zones"), rain=dataset("weather.out", epoch="latest")))
    town.run("trips", 1)
    town.run("weather", 1)
    (run,) = town.run("report", 1)
    assert report.state_of(run) == "success"


@pytest.mark.parametrize(
    ("schema", "said"),
    [("k BIGINT", None), ("k INT", "not those as declared"), ("k BIGINT, day DATE", "not those as declared")],
)
def test_declared_columns_have_to_be_there(town, schema, said):
    town.add(trips())
    report = town.add(reader(zones=dataset("trips.zones", schema=schema)))
    town.run("trips", 1)
    (run,) = town.run("report", 1)
    if said is None:
        assert report.state_of(run) == "success"
    else:
        assert said in failed_because(report, run)
