"""What `weir check` and `weir doctor` find between dataflows."""

import pytest
from tests.weir.datasets.neighbours import Neighbours, reader, trips

from weir.dataflow import Dataflow, dataset, sink
from weir.doctor.datasets import dataset_problems, undeclared_publishers
from weir.doctor.examination import Status, examine
from weir.doctor.ledger import LedgerExam

DAILY, HOURLY, WEEKLY, DAY = "0 0 * * *", "0 * * * *", "0 0 * * 1", "PT86400S"


def declared(name, *reads, cadence=DAILY, sinks=("out",), started_by=(), zone="UTC", is_mapped=False):
    return {
        "file": f"{name}.py",
        "dataflow": name,
        "cadence": cadence,
        "zone": zone,
        "sinks": list(sinks),
        "started_by": dict.fromkeys(started_by, not is_mapped),
        "reads": [{"stage": "read", "dataset": dataset, "epoch": epoch} for dataset, epoch in reads],
    }


@pytest.mark.parametrize(
    ("producer", "epoch", "kind"),
    [
        (declared("trips"), "same", None),
        (declared("trips"), "last(7)", None),
        (declared("trips", cadence=HOURLY), "within", None),
        (declared("trips", cadence=None), "same", None),
        (declared("elsewhere", cadence=None), "within", None),
        (declared("trips", cadence=DAY), "same", None),
        (declared("trips", cadence="@daily"), "same", None),
        (declared("trips", cadence="PT3600S"), "same", "doctor.dataset_of_other_cadence"),
        (declared("trips", cadence=HOURLY), "same", "doctor.dataset_of_other_cadence"),
        (declared("trips", zone="Europe/Berlin"), "same", "doctor.dataset_of_other_cadence"),
        (declared("trips"), "within", None),
        (declared("trips", cadence=WEEKLY), "within", "doctor.dataset_longer"),
        (declared("trips", cadence=WEEKLY), "last(3)", None),
        (declared("trips", cadence=None), "last(7)", "recovery.dataset_without_cadence"),
        (declared("trips", sinks=["others"]), "same", "doctor.dataset_not_declared"),
    ],
)
def test_a_data_set_has_to_fit_who_reads_it(producer, epoch, kind):
    found = list(dataset_problems([producer, declared("report", ("trips.out", epoch))]))
    assert [(each.file, each.stage, each.text.kind) for each in found] == (
        [("report.py", "read", kind)] if kind else []
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("trips.out", None),
        ("trips.ouz", "doctor.start_not_declared"),
        ("report.out", "doctor.dataflow_starts_itself"),
        ("elsewhere.out", None),
    ],
)
def test_what_starts_a_dataflow_is_published_by_another_one(name, kind):
    flows = [declared("trips"), declared("report", started_by=[name])]
    assert [(each.file, each.text.kind) for each in dataset_problems(flows)] == ([("report.py", kind)] if kind else [])
    found = [each.text.names["name"] for each in undeclared_publishers(flows)]
    assert found == ([name] if name == "elsewhere.out" else [])


@pytest.mark.parametrize(
    ("cadence", "own", "is_mapped", "is_wrong"),
    [
        (DAILY, DAILY, False, False),
        (DAILY, HOURLY, False, False),
        (DAILY, DAY, False, False),
        (HOURLY, DAILY, False, True),
        (HOURLY, DAILY, True, False),
        (DAILY, WEEKLY, False, True),
        (DAY, DAILY, False, False),
    ],
)
def test_each_epoch_that_starts_a_dataflow_begins_one_of_its_own(cadence, own, is_mapped, is_wrong):
    started = declared("report", started_by=["trips.out"], cadence=own, is_mapped=is_mapped)
    found = [each.text.kind for each in dataset_problems([declared("trips", cadence=cadence), started])]
    assert found == (["doctor.start_of_other_cadence"] if is_wrong else [])


def test_a_data_set_that_no_file_publishes_may_be_a_wrong_name():
    (found,) = undeclared_publishers([declared("trips"), declared("report", ("trip.out", "same"))])
    assert "did you mean trips.out?" in found.text


def test_a_cycle_over_three_files_is_named():
    flows = [declared(one, (f"{other}.out", "latest")) for one, other in [("a", "b"), ("b", "c"), ("c", "a")]]
    (found,) = dataset_problems([*flows, declared("d", ("a.out", "same"))])
    assert found.text.kind == "recovery.dataset_cycle"
    assert {found.text.names["cycle"].count(name) for name in "abc"} == {1, 2}


def test_what_is_read_of_a_dataflow_that_no_file_declares_is_a_problem_of_its_readers():
    flows = [declared(name, ("trips.out", "same"), ("trips.out", "last(2)")) for name in ("report", "summary")]
    found = list(undeclared_publishers(flows))
    assert [(each.file, each.text.names["name"]) for each in found] == [
        ("report.py", "trips.out"),
        ("summary.py", "trips.out"),
    ]
    assert not list(undeclared_publishers([*flows, declared("trips")]))
    assert not list(undeclared_publishers(flows, ["trips"]))


@pytest.fixture
def town(tmp_path):
    town = Neighbours(tmp_path)
    town.add(trips())
    town.add(reader(zones=dataset("trips.zones")))
    town.run("trips", 1)
    town.run("report", 1)
    return town


def exam(tmp_path):
    return LedgerExam(f"sqlite:///{tmp_path}/ledger.db")


def of_data_sets(tmp_path):
    return [each for each in examine([exam(tmp_path).checks()]) if each.name == "data sets"]


def test_a_data_set_that_is_declared_is_ok(town, tmp_path):
    assert [each.status for each in of_data_sets(tmp_path)] == [Status.OK]


def test_a_sink_that_was_renamed_is_named_with_those_who_read_it(town, tmp_path):
    town.add(Dataflow("trips", [*trips().stages[:-1], sink("by_zone", "districts")]))
    town.run("trips", 2)
    (found,) = of_data_sets(tmp_path)
    assert found.status is Status.WARNING
    assert "trips.zones" in found.found
    assert "report" in found.found


def test_readers_of_another_data_set_since_have_nothing_to_say(town, tmp_path):
    town.add(Dataflow("trips", [*trips().stages[:-1], sink("by_zone", "districts")]))
    town.add(reader(zones=dataset("trips.districts")))
    town.run("trips", 2)
    town.run("report", 2)
    assert [each.status for each in of_data_sets(tmp_path)] == [Status.OK]


def test_a_dataflow_that_has_never_begun_is_named_too(town, tmp_path):
    town.add(reader("late", x=dataset("nothing.out"))).dag_run(1)
    town.go_on()
    (found,) = of_data_sets(tmp_path)
    assert "nothing.out" in found.found


def test_the_dags_of_those_who_publish_and_read_are_told(town, tmp_path):
    (found,) = exam(tmp_path).publishers()
    assert (found.dataflow, found.dag_ids, dict(found.readers)) == ("trips", ("trips",), {"report": ("report",)})
