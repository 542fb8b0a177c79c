"""What `weir check` finds between dataflows."""

import pytest

from weir.doctor.datasets import dataset_problems

DAILY, HOURLY = "0 0 * * * in UTC", "0 * * * * in UTC"


def declared(name, *reads, cadence=DAILY, sinks=("out",)):
    return {
        "file": f"{name}.py",
        "dataflow": name,
        "cadence": cadence,
        "sinks": list(sinks),
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
        (declared("trips", cadence=HOURLY), "same", "doctor.dataset_of_other_cadence"),
        (declared("trips", cadence=None), "last(7)", "recovery.dataset_without_cadence"),
        (declared("trips", sinks=["others"]), "same", "doctor.dataset_not_declared"),
    ],
)
def test_a_data_set_has_to_fit_who_reads_it(producer, epoch, kind):
    found = list(dataset_problems([producer, declared("report", ("trips.out", epoch))]))
    assert [(each.file, each.stage, each.text.kind) for each in found] == (
        [("report.py", "read", kind)] if kind else []
    )


def test_a_cycle_over_three_files_is_named():
    flows = [declared(one, (f"{other}.out", "latest")) for one, other in [("a", "b"), ("b", "c"), ("c", "a")]]
    (found,) = dataset_problems([*flows, declared("d", ("a.out", "same"))])
    assert found.text.kind == "recovery.dataset_cycle"
    assert {found.text.names["cycle"].count(name) for name in "abc"} == {1, 2}
