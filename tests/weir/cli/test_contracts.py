"""The JSON of commands has the fields, and the types, of the tables in docs/reference/contracts.md."""

import json
import os
import re
import shutil
from datetime import datetime
from pathlib import Path

import pytest
from tests.builders.ledgers import fast_folder
from tests.weir.command_line import invoked, use
from tests.weir.notifications import receiving
from tests.weir.restoring import aircraft, run_days, second_airflow
from tests.weir.small_dataflow import Saved, World

from weir.dataflow import Dataflow, Stage, callback, dataset, keyed_state, list_state, sink, source, target
from weir.doctor import deployment
from weir.doctor.examination import Item
from weir.ledger.housekeeping import ALL, CAUGHT_UP, UPKEEP, note_done

PAGE = (Path(__file__).parents[3] / "docs/reference/contracts.md").read_text()
SECTIONS = dict(re.findall(r"(?ms)^### `weir ([a-z]+) .*?--json`\n(.*?)(?=^##|\Z)", PAGE))
DOCUMENTED = {
    command: dict(re.findall(r"(?m)^\| `([^`]+)` \| (.+?) \|", section)) for command, section in SECTIONS.items()
}
TYPES = {
    "text": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "bytes": lambda value: isinstance(value, int) and value >= 0,
    "seconds": lambda value: isinstance(value, float),
    "number": lambda value: isinstance(value, float),
    "time": lambda value: datetime.fromisoformat(value).utcoffset().total_seconds() == 0,
    "epoch": lambda value: bool(re.fullmatch(r"\d{8}T\d{6}Z", value)),
    "list": lambda value: isinstance(value, list),
    "list of text": lambda value: all(isinstance(each, str) for each in value),
    "list of integer": lambda value: all(isinstance(each, int) for each in value),
    "object": lambda value: isinstance(value, dict),
    "map": lambda value: all(isinstance(key, str) and isinstance(each, list) for key, each in value.items()),
    "map of integer": lambda value: all(isinstance(each, int) for each in value.values()),
    "map of late files": lambda value: all("vanished" in each for each in value.values()),
    "plan": lambda value: isinstance(value, dict) and "steps" in value,
    "failover": lambda value: isinstance(value, dict) and "incident" in value,
    "standing": lambda value: isinstance(value, dict) and "standing" in value,
    "overview": lambda value: isinstance(value, dict) and "bytes_at_rest" in value,
    "run": lambda value: isinstance(value, dict) and "pin" in value,
    "graph": lambda value: isinstance(value, dict) and "exchanges" in value,
    "subtask": lambda value: isinstance(value, dict) and "try_number" in value,
    "dataset": lambda value: isinstance(value, dict) and "is_declared" in value,
    "version": lambda value: isinstance(value, dict) and "published_at" in value,
    "waiting": lambda value: isinstance(value, dict) and "reason" in value,
    "null": lambda value: value is None,
}
WHOLE = {
    "map",
    "map of integer",
    "map of late files",
    "plan",
    "failover",
    "standing",
    "overview",
    "run",
    "graph",
    "subtask",
    "dataset",
    "version",
    "waiting",
}
"""The types whose fields are described elsewhere, or are names of the user's."""
YEAR_2020 = 1_577_836_800
TELL = callback("tests.weir.notifications.receiving:tell")


@pytest.fixture(scope="module")
def lived():
    """Days of a dataflow with state, a target and a receiver, to whom nothing can be delivered any more; long ago."""
    with fast_folder() as folder:
        receiving.reset()
        (folder / "lake").mkdir()
        history = keyed_state("history", key="k", schema="k BIGINT, n BIGINT", incremental="auto")
        flow = aircraft(states=(history, list_state("offsets")))
        to = [target("tests.weir.sinks.file_target:FileTarget", folder=str(folder / "lake"))]
        stages = [*flow.stages[:-1], sink("aircraft", "known", to=to)]
        world = World(folder / "world", Dataflow(flow.name, stages, keep="60 days", notify=[TELL]))
        world.airflow.time = world.airflow.time.replace(year=2020)
        run_days(world.airflow, 1)
        receiving.away.add("tell")
        run_days(world.airflow, 2)
        receiving.reset()
        yield Saved(world, folder / "saved")


@pytest.fixture
def world(lived, tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    return lived.go_on(tmp_path)


def checkpoints(world, monkeypatch):
    yield "checkpoints"
    yield "checkpoints ladder --id 2"


def savepoint(world, monkeypatch):
    yield "savepoint create ladder --name mine"
    yield "savepoint list"
    yield "savepoint show ladder mine"


def restore(world, monkeypatch):
    world.content["aircraft"] = "wrong"
    invoked("savepoint", "create", "ladder", "--checkpoint", "1", "--name", "mine")
    world.airflow.clear_run_by_hand("scheduled__2013-01-01")
    world.airflow.run_until_quiet()
    yield "restore ladder mine --dry-run"
    yield "restore ladder mine"


def datasets(world, monkeypatch):
    """Readers of a day that is published and of one that is not: one waits for it, one leaves it out."""
    for name, missing in (("eager", "skip"), ("reader", "wait")):
        read = {"known": dataset("ladder.known", missing=missing, schema="k BIGINT")}
        flow = Dataflow(name, [Stage("read", "pipelines.ladder:read", read), sink("read", "out")])
        airflow = second_airflow(world, flow)
        run_days(airflow, 2)
        airflow.dag_run(4)
        airflow.step(airflow._ready())
    yield "datasets"
    yield "datasets ladder.known"
    yield "datasets --run reader@20130102T000000Z"
    yield "datasets --run reader@20130104T000000Z"
    yield "datasets --run eager@20130104T000000Z"
    yield "datasets --lineage"
    yield "datasets ladder.known --lineage"


def sinks(world, monkeypatch):
    yield "sinks"


def notifications(world, monkeypatch):
    yield "notifications"


def gc(world, monkeypatch):
    """A file that the ledger does not know, a result that has lost its files, and a run that expires."""
    plain = Dataflow("plain", [source("flights", "pipelines.ladder:flights"), sink("flights", "known")])
    run_days(second_airflow(world, plain), 1)
    monkeypatch.setenv("WEIR_EXPIRE_RUNS", "1 day")
    (published, *_) = world.folder.glob("store/ladder/*/known/plain/0/*")
    for file in published.glob("*.bin"):
        file.unlink()
    (published.parent / "mine.txt").write_text("not Weir's")
    for path in world.folder.glob("store/**/*"):
        os.utime(path, (YEAR_2020, YEAR_2020))
    yield "gc --full --dry-run"
    yield "gc --full"
    yield "gc --full"


def doctor_(world, monkeypatch):
    findings = (Item("store", "place").ok("file:///data"), Item("airflow", "plugin", "it is", "load").problem("-"))
    subject = deployment.Subject(about="a test", environment=None, is_served=False, findings=findings)
    monkeypatch.setattr(deployment.Subject, "of_this_environment", lambda: subject)
    yield "doctor"


def dataflows(world, monkeypatch):
    begin(world, 3)
    yield "dataflows"
    with world.ledger.transaction(ALL) as session:
        note_done(session, UPKEEP, ALL, world.airflow.time)
    yield "dataflows"
    yield "dataflows ladder"


def runs(world, monkeypatch):
    begin(world, 3)
    with world.ledger.transaction("ladder") as session:
        note_done(session, CAUGHT_UP, "ladder", world.airflow.time)
    yield "runs"


def run(world, monkeypatch):
    (gone, *_) = world.folder.glob("store/ladder/20130102*/known/plain/0/*")
    shutil.rmtree(gone)
    invoked("plan", "ladder@20130102T000000Z", "--apply")
    yield "run show ladder@20130102T000000Z"
    yield "run show ladder@20130102T000000Z --look"


def begin(world, day):
    """Run the first task of a day."""
    world.airflow.dag_run(day)
    world.airflow.step(world.airflow._ready())


COMMANDS = (dataflows, runs, run, checkpoints, savepoint, restore, datasets, sinks, notifications, gc, doctor_)


def test_each_table_has_its_command():
    assert {each.__name__.strip("_") for each in COMMANDS} == DOCUMENTED.keys()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each.__name__.strip("_"))
def test_a_command_prints_the_fields_of_its_table(command, world, monkeypatch):
    documented = DOCUMENTED[command.__name__.strip("_")]
    found = {}
    for words in command(world, monkeypatch):
        for field, value in fields("", json.loads(invoked(*words.split(), "--json").stdout), documented):
            found.setdefault(field.replace("savepoints[].", "savepoint."), []).append(value)
    assert sorted(found) == sorted(documented)
    wrong = {
        (field, documented[field], value)
        for field, values in found.items()
        for value in map(json.dumps, values)
        if not any(TYPES[each](json.loads(value)) for each in documented[field].split(" or ")[::-1])
    }
    assert wrong == set()


def fields(name, value, documented):
    """Each field of a document with its value, `a[].b` for those of the elements of a list."""
    if isinstance(value, list):
        yield f"{name}[]", value
        for each in value:
            if documented.get(f"{name}[].") in WHOLE:
                yield f"{name}[].", each
                continue
            yield from (pair for pair in fields(f"{name}[]", each, documented) if pair[0] != f"{name}[]")
    elif isinstance(value, dict) and documented.get(name, "").split(" or ")[0] not in WHOLE:
        if name and not name.endswith("[]"):
            yield name, value
        for key, each in value.items():
            yield from fields(f"{name}.{key}".removeprefix("."), each, documented)
    else:
        yield name, value
