"""Runs by events that come out of order, late and twice: each epoch is computed once, and has the right rows."""

import random

import pytest
from tests.weir.datasets.neighbours import Neighbours, reader, trips

from weir.dataflow import dataset, last
from weir.store.catalogue import published


def new_town(folder):
    folder.mkdir()
    town = Neighbours(folder)
    town.add(trips())
    town.add(reader(zones=dataset("trips.zones", epoch=last(3))))
    return town


def digests(town, days):
    """What is published of each day of the report."""
    found = {day: published(town.store, "report", "out", f"201301{day:02d}T000000Z") for day in days}
    return {day: [each.digest for each in pointer.partitions] for day, pointer in found.items()}


@pytest.mark.parametrize("seed", [1, *(pytest.param(each, marks=pytest.mark.soak) for each in range(2, 20))])
def test_each_epoch_is_computed_once_whatever_the_order_of_events(tmp_path, seed):
    chance, days = random.Random(seed), list(range(2, 8))
    in_order = new_town(tmp_path / "in order")
    in_order.run("trips", 1, *days)
    in_order.run("report", 1, *days)

    town = new_town(tmp_path / "out of order")
    town.run("trips", 1)
    town.run("report", 1)
    flow, report = town.airflows["trips"], town.airflows["report"]
    events = [(day, kind) for day in days for kind in ("asset_triggered", "once_more")]
    chance.shuffle(events)
    for day, kind in events:
        if kind == "asset_triggered":
            flow.dag_run(day)
        report.dag_run(day, kind=kind)
        if chance.random() < 0.5:
            town.go_on()
    for _ in range(3):
        town.go_on()
    assert digests(town, days) == digests(in_order, days)
    for day in days:
        found = {kind: report.task(f"{kind}__2013-01-{day:02d}", "read") for kind in ("asset_triggered", "once_more")}
        assert sorted(task.state for task in found.values()) == ["skipped", "success"]
        assert report.engine.computed.count("read") == len(days) + 1
