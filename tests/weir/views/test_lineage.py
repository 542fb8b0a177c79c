"""Lineage of data sets: what they are made of and what is made of them, over any number of dataflows."""

import xml.etree.ElementTree as ET

import pytest
from tests.messages.kinds import of_kind
from tests.weir.command_line import typed, use
from tests.weir.counting import counting
from tests.weir.datasets.neighbours import Neighbours, reader, trips

from weir.dataflow import Dataflow, Stage, blocking, dataset, keyed_state, sink, source
from weir.errors import Misconfigured
from weir.views.drawings import drawing_of_lineage, svg_file
from weir.views.lineage import lineage_of


@pytest.fixture
def town(tmp_path):
    """Trips into a report, that into a summary and into a copy; the weather is read by the summary, too."""
    town = Neighbours(tmp_path)
    town.add(trips())
    town.add(reader(zones=dataset("trips.zones")))
    town.add(Dataflow("weather", [source("sky", "pipelines.weather:sky"), sink("sky", "rain")]))
    town.add(reader("summary", report=dataset("report.out"), rain=dataset("weather.rain")))
    town.add(reader("copy", report=dataset("report.out")))
    for name in town.airflows:
        town.run(name, 1)
    return town


def found(town, name=None):
    with town.ledger.transaction() as session:
        return {each.name: (each.distance, each.made_of) for each in lineage_of(session, name).nodes}


def test_it_goes_to_any_depth_in_both_directions(town):
    assert found(town, "report.out") == {
        "trips.zones": (-1, ()),
        "report.out": (0, ("trips.zones",)),
        "copy.out": (1, ("report.out",)),
        "summary.out": (1, ("report.out",)),
    }
    assert {name: distance for name, (distance, _) in found(town, "trips.zones").items()} == {
        "trips.zones": 0,
        "report.out": 1,
        "copy.out": 2,
        "summary.out": 2,
    }
    assert {name: distance for name, (distance, _) in found(town, "summary").items()} == {
        "trips.zones": -2,
        "report.out": -1,
        "weather.rain": -1,
        "summary.out": 0,
    }


def test_all_data_sets_are_in_the_order_of_the_data(town):
    assert list(found(town)) == ["trips.zones", "weather.rain", "report.out", "copy.out", "summary.out"]
    assert found(town)["summary.out"] == (2, ("report.out", "weather.rain"))


def test_a_data_set_is_made_of_what_the_stages_before_its_sink_read(town):
    halves = Dataflow(
        "halves",
        [
            Stage("left", "pipelines.halves:left", {"x": dataset("trips.zones")}),
            Stage("right", "pipelines.halves:right", {"x": dataset("weather.rain")}),
            Stage(
                "kept", "pipelines.halves:kept", [blocking("right")], state=[keyed_state("h", key="k", schema="k INT")]
            ),
            sink("left", "one"),
            sink("kept", "other"),
        ],
    )
    town.add(halves)
    town.run("halves", 1)
    assert found(town, "halves.one") == {"trips.zones": (-1, ()), "halves.one": (0, ("trips.zones",))}
    assert found(town, "halves.other") == {"weather.rain": (-1, ()), "halves.other": (0, ("weather.rain",))}


@pytest.fixture
def phones(town):
    """Two sinks of one dataflow, one of which is made of an asset of Airflow, and a dataflow without a sink of it."""
    calls = source("calls", "pipelines.phones:calls", asset="s3://lake/a.calls")
    town.add(
        Dataflow("phones", [calls, sink("calls", "out"), source("log", "pipelines.phones:log"), sink("log", "trips")])
    )
    kept = keyed_state("h", key="k", schema="k INT")
    town.add(Dataflow("fares", [source("rides", "pipelines.fares:rides", state=kept, asset="trips")]))
    for name in ("phones", "fares"):
        town.run(name, 1)
    return town


def test_an_asset_that_a_source_names_is_an_input_and_no_data_set(phones):
    calls = "asset:s3://lake/a.calls"
    assert found(phones, "phones.out") == {calls: (-1, ()), "phones.out": (0, (calls,))}
    assert found(phones, "phones.trips") == {"phones.trips": (0, ())}
    assert found(phones, calls) == {calls: (0, ()), "phones.out": (1, (calls,))}
    assert found(phones, "fares") == {"asset:trips": (-1, ()), "fares": (0, ("asset:trips",))}
    assert "asset:trips" not in found(phones, "trips")


def test_an_asset_has_a_box_of_its_own(phones):
    drawing = drawn(phones)
    boxes = {box.name: box for box in drawing.boxes}
    assert {"phones", "fares", "asset:trips", "asset:s3://lake/a.calls"} < boxes.keys()
    assert boxes["asset:trips"].stages == ()
    assert boxes["asset:trips"].title.title == "asset:trips, of Airflow"
    told = {line.label.title: line.label.text for line in drawing.lines}
    assert told["phones.out is made of asset:s3://lake/a.calls"] == ""
    assert told["report.out is made of trips.zones"] == "zones"


def test_the_newest_runs_tell(town):
    town.add(reader("copy", rain=dataset("weather.rain")))
    town.airflows["copy"].dag_run(2)
    town.go_on()
    assert "copy.out" not in found(town, "trips.zones")
    assert found(town, "weather.rain")["copy.out"] == (1, ("weather.rain",))


def test_what_there_is_not_is_refused(town):
    with pytest.raises(Misconfigured, check=of_kind("views.dataset_unknown", name="trips.zone")):
        found(town, "trips.zone")


def test_it_is_one_statement(town):
    with counting() as asked:
        found(town)
    assert [number for statement, number in asked.statements.items() if "SELECT" in statement] == [1]


def drawn(town, name=None):
    with town.ledger.transaction() as session:
        return drawing_of_lineage(lineage_of(session, name))


def test_a_drawing_has_a_box_for_each_dataflow_and_a_line_for_what_is_read(town):
    drawing = drawn(town, "report.out")
    boxes = {box.name: box for box in drawing.boxes}
    assert {name: [label.title for label in box.stages] for name, box in boxes.items()} == {
        "trips": ["trips.zones"],
        "report": ["report.out"],
        "copy": ["copy.out"],
        "summary": ["summary.out"],
    }
    assert boxes["trips"].x < boxes["report"].x < boxes["summary"].x
    assert sorted(line.label.text for line in drawing.lines) == ["out", "out", "zones"]
    assert [name for name, box in boxes.items() if box.status == "asked"] == ["report"]
    ET.fromstring(svg_file(drawing))  # noqa: S314  it is ours


def test_all_dataflows_are_drawn_also_those_that_read_nothing(town):
    assert {box.name for box in drawn(town).boxes} == {"trips", "report", "weather", "summary", "copy"}


def test_nothing_is_drawn_of_nothing(tmp_path):
    (tmp_path / "empty").mkdir()
    town = Neighbours(tmp_path / "empty")
    assert drawn(town).boxes == ()


def test_the_command_writes_the_drawing(town, tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    said = typed("datasets", "trips.zones", "--lineage", "--svg", str(tmp_path / "lineage.svg"))
    assert said.index("trips.zones") < said.index("report.out") < said.index("summary.out")
    assert "<svg" in (tmp_path / "lineage.svg").read_text()
