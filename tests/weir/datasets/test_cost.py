"""What reading data sets costs: as many statements behind many versions and readers as behind one."""

from tests.weir.counting import counting
from tests.weir.datasets.neighbours import Neighbours, reader, trips

from weir.dataflow import dataset, last


def asked(folder, days, readers):
    """The statements of one more day of the producer, of a reader, and of the producer's day computed anew, equal."""
    folder.mkdir()
    town = Neighbours(folder)
    flow = town.add(trips())
    names = [f"report{each}" for each in range(readers)]
    for name in names:
        town.add(reader(name, zones=dataset("trips.zones", epoch=last(2))))
    for day in range(1, days + 1):
        town.run("trips", day)
        for name in names:
            town.run(name, day)
    found = []
    with counting() as counted:
        town.run("trips", days + 1)
    found.append(counted.total()[0])
    with counting() as counted:
        town.run(names[0], days + 1)
    found.append(counted.total()[0])
    flow.clear_run_by_hand(f"scheduled__2013-01-{days:02d}")
    with counting() as counted:
        flow.run_until_quiet()
    found.append(counted.total()[0])
    return found


def test_statements_do_not_grow_with_versions_and_readers(tmp_path):
    few, many = asked(tmp_path / "few", 3, 1), asked(tmp_path / "many", 6, 3)
    assert many == few
