"""A shadow runs beside a dataflow on what that has read, publishes nowhere, and is compared with it epoch by epoch."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.command_line import invoked, typed, use
from tests.weir.datasets.neighbours import HALF_DAILY

from weir.attempts.waiting import WaitingAttempts
from weir.dataflow import Dataflow, Resolved, Stage, blocking, callback, sink, source, target
from weir.errors import Misconfigured
from weir.ledger.database.tables import AttemptRow
from weir.ledger.sources import all_splits_of
from weir.recovery.late_files import look_for_late_files

GUIDE = Path(__file__).parents[3] / "docs" / "compare.md"
HERE = "tests.weir.datasets.test_shadows"
FIRST, NEXT = "trips@20130101T000000Z", "trips_next@20130101T000000Z"

_asked = itertools.count()


def whatever_is_there(ctx):
    """Resolve to something else whenever it is asked, as a folder does into which files come."""
    return [f"listing {next(_asked)}"] * ctx.parallelism


def what_is_new(ctx):
    """Resolve to what has come since the epoch before: how much that is, nobody knows beforehand."""
    since = 0 if ctx.previous is None else ctx.previous.position
    until = since + 1 + next(_asked)
    return Resolved([[since, until]] * ctx.parallelism, until)


def trips(resolver="whatever_is_there", parallelism=1, **settings):
    goes_on = resolver == "what_is_new"
    raw = source("raw", "pipelines.trips:raw", resolve=f"{HERE}:{resolver}", goes_on=goes_on, parallelism=parallelism)
    by_zone = Stage("by_zone", "pipelines.trips:by_zone", [blocking(raw, by="k")], parallelism=2)
    return Dataflow("trips", [raw, by_zone, sink(by_zone, "zones")], **settings)


def shadow(flow, **changes):
    return replace(flow, name="trips_next", shadow_of="trips", **changes)


def splits(town, run):
    with town.ledger.transaction() as session:
        return all_splits_of(session, run)


@pytest.mark.parametrize("resolver", ["whatever_is_there", "what_is_new"])
def test_a_shadow_waits_for_each_epoch_and_reads_what_that_has_read(town, resolver):
    flow, beside = town.add(trips(resolver)), town.add(shadow(trips(resolver)))
    for day in (1, 2, 3):
        beside.dag_run(day)
    town.go_on()
    assert {task.state for task in beside.tasks.values()} <= {None, "up_for_reschedule"}
    with town.ledger.transaction() as session:
        waiting = set(session.scalars(select(AttemptRow.id)))
    asked = WaitingAttempts(town.ledger)
    assert asked.over(waiting) == frozenset()
    town.run("trips", 1)
    assert len(asked.over(waiting)) == 1
    town.run("trips", 2, 3)
    town.go_on()
    assert set(beside.states().values()) == set(flow.states().values()) == {"success"}
    for day in (1, 2, 3):
        own = splits(town, f"trips_next@2013010{day}T000000Z")
        assert own == splits(town, f"trips@2013010{day}T000000Z") != {}


def test_what_is_declared_otherwise_is_resolved_by_the_shadow_itself(town):
    town.add(trips())
    town.add(shadow(trips(parallelism=2)))
    town.run("trips", 1)
    town.run("trips_next", 1)
    (own,), (others,) = splits(town, NEXT).values(), splits(town, FIRST).values()
    assert (len(own), len(others)) == (2, 1)
    assert others[0] not in own


def because(beside):
    return [each.failed_because for each in beside.tasks.values() if each.failed_because]


def test_a_source_that_goes_on_misses_no_epoch_of_its_shadow(town, tmp_path, monkeypatch):
    town.add(trips("what_is_new"))
    beside = town.add(shadow(trips("what_is_new")))
    town.run("trips", 1, 2, 3)
    town.run("trips_next", 1)
    beside.dag_run(3)
    town.go_on()
    (told,) = because(beside)
    assert "goes on from trips@20130102T000000Z, where the epoch of trips_next before did not end" in told
    use(monkeypatch, tmp_path)
    typed("run", "adopt", "trips_next@20130103T000000Z")
    town.run("trips_next", 2)
    beside.clear_run_by_hand("scheduled__2013-01-03")
    town.go_on()
    assert set(beside.states().values()) == {"success"}
    for day in (1, 2, 3):
        assert splits(town, f"trips_next@2013010{day}T000000Z") == splits(town, f"trips@2013010{day}T000000Z")


def test_a_source_that_goes_on_reads_nothing_twice_where_its_shadow_was_declared_otherwise(town):
    town.add(trips("what_is_new"))
    beside = town.add(shadow(trips("what_is_new", parallelism=2)))
    for day in (1, 2):
        town.run("trips", day)
        town.run("trips_next", day)
    (first, *_), (second, *_) = (splits(town, f"trips_next@2013010{day}T000000Z")["raw"] for day in (1, 2))
    assert second[0] == first[1]
    beside.deploy(shadow(trips("what_is_new")))
    town.run("trips", 3)
    beside.dag_run(3)
    town.go_on()
    (told,) = because(beside)
    assert "begin a new shadow by another name" in told


def test_the_first_epoch_of_a_shadow_begins_where_that_of_the_dataflow_begins(town):
    town.add(trips("what_is_new"))
    beside = town.add(shadow(trips("what_is_new")))
    town.run("trips", 1, 2, 3)
    town.run("trips_next", 2, 3)
    beside.deploy(replace(trips("what_is_new"), name="trips_next"))
    town.run("trips_next", 4)
    found = {day: splits(town, f"trips_next@2013010{day}T000000Z")["raw"] for day in (2, 3, 4)}
    assert found[2] == splits(town, "trips@20130102T000000Z")["raw"]
    assert [found[3][0][0], found[4][0][0]] == [found[2][0][1], found[3][0][1]]


@pytest.mark.parametrize("begins_as_shadow", [True, False])
def test_a_run_that_has_begun_becomes_no_shadow_and_none_becomes_a_run(town, tmp_path, monkeypatch, begins_as_shadow):
    town.add(trips())
    kinds = [replace(trips(), name="trips_next"), shadow(trips())]
    begun, declared = reversed(kinds) if begins_as_shadow else kinds
    beside = town.add(begun)
    town.run("trips", 1)
    beside.dag_run(1)
    beside.step(beside._ready())
    beside.deploy(declared)
    town.go_on()
    assert {"`weir run adopt trips_next@20130101T000000Z`" in each for each in because(beside)} == {True}
    assert "success" not in {state for name, state in beside.states().items() if "/raw" not in name}
    use(monkeypatch, tmp_path)
    typed("run", "adopt", NEXT)
    beside.clear_run_by_hand("scheduled__2013-01-01")
    town.go_on()
    assert set(beside.states().values()) == {"success"}


def test_an_epoch_that_the_dataflow_does_not_have_is_awaited_and_that_is_said(town, tmp_path, monkeypatch):
    town.add(trips())
    beside = town.add(shadow(trips()))
    town.run("trips", 2)
    beside.dag_run(1)
    town.go_on()
    use(monkeypatch, tmp_path)
    told = typed("why", "raw", "--run", NEXT)
    assert f"waiting until {FIRST} (no task of it has begun, though some have of 20130102T000000Z) is closed" in told


def test_the_epochs_of_a_shadow_are_compared_without_reading_a_row(town, tmp_path, monkeypatch):
    town.add(trips())
    town.add(shadow(trips()))
    for day in (1, 2):
        town.content["trips_next"] |= {"by_zone": "an edit"} if day == 2 else {}
        town.run("trips", day)
        town.run("trips_next", day)
    use(monkeypatch, tmp_path, columns=110)
    shown = invoked("compare", "trips", "trips_next")
    assert shown.exit_code == 1
    assert f"$ weir compare trips trips_next\n{shown.stdout}```" in GUIDE.read_text()
    done = invoked("compare", "trips", "trips_next", "--json")
    first, second = json.loads(done.stdout)["epochs"]
    assert {each["a"]: each["outcome"] for each in first["results"]} == {"raw": "equal", "zones": "equal"}
    assert {each["a"]: each["outcome"] for each in second["results"]} == {"raw": "equal", "zones": "differ"}
    assert (second["a"], second["b"]) == ("trips@20130102T000000Z", "trips_next@20130102T000000Z")


def test_an_epoch_without_a_result_of_the_same_name_does_not_hide_the_others(town, tmp_path, monkeypatch):
    town.add(trips())
    beside = town.add(shadow(trips()))
    town.run("trips", 1, 2)
    town.run("trips_next", 1)
    other = [source("rows", "pipelines.trips:raw"), Stage("z", "pipelines.trips:z", [blocking("rows")]), sink("z", "o")]
    beside.deploy(shadow(Dataflow("trips", other)))
    town.run("trips_next", 2)
    use(monkeypatch, tmp_path)
    done = invoked("compare", "trips", "trips_next", "--json")
    first, second = json.loads(done.stdout)["epochs"]
    assert (done.exit_code, [each["outcome"] for each in first["results"]]) == (2, ["equal", "equal"])
    assert (second["results"], second["only_in_b"]) == ([], ["rows", "o"])
    shown = typed("compare", "trips", "trips_next")
    assert "no result of the same name" in shown
    assert "`weir compare" not in shown


@pytest.mark.parametrize("option", [("--stage", "zones"), ("--key", "k"), ("--limit", "3"), ("--remote", "sc://x")])
def test_an_option_that_epochs_do_not_have_is_refused(town, tmp_path, monkeypatch, option):
    town.add(trips())
    town.add(shadow(trips()))
    town.run("trips", 1)
    town.run("trips_next", 1)
    use(monkeypatch, tmp_path)
    with pytest.raises(Misconfigured, check=of_kind("cli.not_of_epochs", named=[option[0]])):
        invoked("compare", "trips", "trips_next", *option)


def test_dataflows_without_a_common_epoch_are_not_compared(town, tmp_path, monkeypatch):
    town.add(trips())
    town.add(shadow(trips()))
    town.run("trips", 1)
    use(monkeypatch, tmp_path)
    with pytest.raises(Misconfigured, match="knows no run"):
        invoked("compare", "trips", "trips_nowhere")
    beside = town.airflows["trips_next"]
    town.run("trips", 2)
    beside.dag_run(3)
    beside.step(beside._ready())
    with pytest.raises(Misconfigured, check=of_kind("reading.no_epoch_in_common")):
        invoked("compare", "trips", "trips_next")


def test_a_shadow_publishes_nowhere():
    public = trips(notify=[callback("pipelines.told:told")])
    into = replace(
        public, stages=[*public.stages[:-1], sink("by_zone", "zones", to=target("pipelines.targets:Target"))]
    )
    beside = shadow(into)
    assert into.stages[-1].targets
    assert (beside.stages[-1].targets, tuple(beside.notify), beside.publish_by) == ((), (), None)
    assert Dataflow.from_json(beside.to_json()) == beside
    with pytest.raises(Misconfigured, check=of_kind("dataflow.shadow_of_itself")):
        replace(into, shadow_of="trips")


def test_late_files_are_those_of_the_dataflow_and_not_of_its_shadow(town):
    town.add(trips())
    town.add(shadow(trips()))
    town.run("trips", 1)
    town.run("trips_next", 1)
    assert look_for_late_files(town.services, "trips_next").startswith("0 interval(s)")


def test_a_shadow_of_epochs_of_another_length_is_refused(town):
    town.add(trips())
    beside = town.add(shadow(trips()), every=HALF_DAILY)
    town.run("trips", 1)
    beside.hour_run(1, 0)
    beside.run_until_quiet()
    because = [each.failed_because for each in beside.tasks.values() if each.failed_because]
    assert "give both DAGs the same schedule" in because[0]


def test_an_epoch_of_a_shadow_is_explained(town, tmp_path, monkeypatch):
    town.add(trips())
    beside = town.add(shadow(trips()))
    beside.dag_run(1)
    town.go_on()
    use(monkeypatch, tmp_path)
    told = typed("why", "raw", "--run", NEXT)
    assert "a shadow follows: waiting until trips@20130101T000000Z (no task of it has begun) is closed" in told
    assert [each["name"] for each in json.loads(typed("datasets", "--json"))["datasets"]] == ["trips_next.zones"]
