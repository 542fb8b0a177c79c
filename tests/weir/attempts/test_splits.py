"""Asking a source's resolver what each subtask reads, and the record of a table's version that was resolved so."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.command_line import typed, use
from tests.weir.keeping import epoch

from weir.dataflow import Dataflow, Stage, blocking, delta_source, keyed_state, sink, source
from weir.dataflow.resolving import ResolveContext
from weir.errors import Misconfigured
from weir.execution.run_state import AttemptState
from weir.formats.checkpoint import Checkpoint
from weir.formats.codec import from_json
from weir.formats.paths import checkpoint_path
from weir.ledger.database.tables import AttemptRow
from weir.ledger.sources import splits_of
from weir.rebuild.rebuild import rebuild
from weir.recovery.adopt import adopt
from weir.recovery.questions import Question, apply_answer, ask
from weir.recovery.resolving import resolve

CONTEXT = ResolveContext(
    "flow", "20130101T000000Z", (datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC)), 3, {"of": "all"}
)


@pytest.fixture
def resolved(tmp_path, monkeypatch):
    """Resolve a source by the text of a module with the function `flights_of`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def ask(text, name="flights_of"):
        module = f"resolving_{abs(hash(text))}"
        (tmp_path / f"{module}.py").write_text(text)
        return resolve(source("flights", "m:flights", parallelism=3, resolve=f"{module}:{name}"), CONTEXT)

    return ask


def test_a_resolver_says_what_each_subtask_reads(resolved):
    text = (
        "def flights_of(ctx):\n"
        "    return [{'day': ctx.interval[0].day, 'subtask': i, **ctx.parameters} for i in range(ctx.parallelism)]\n"
    )
    assert resolved(text) == [{"day": 1, "subtask": subtask, "of": "all"} for subtask in range(3)]


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("def flights_of(ctx): return [1, 2]", "flights_of", of_kind("dataflow.splits_malformed")),
        ("def flights_of(ctx): return []", "flights_at", of_kind("code.name_not_in_module")),
        ("def flights_of(): return []", "flights_of", of_kind("code.signature_does_not_fit")),
        ("import nowhere_to_be_found", "flights_of", of_kind("code.import_failed")),
    ],
)
def test_what_is_wrong_with_a_resolver_is_said(resolved, text, name, said):
    with pytest.raises(Misconfigured, check=said):
        resolved(text, name)


def test_an_error_of_the_resolvers_own_passes_through(resolved):
    with pytest.raises(ZeroDivisionError):
        resolved("def flights_of(ctx): return 1 / 0")


@pytest.fixture
def lake(tmp_path):
    return str(tmp_path / "lake")


@pytest.fixture
def world(world, lake, monkeypatch):
    """A world with a day in which version 0 of a table was read, whose table has moved on."""
    use(monkeypatch, world.folder)
    world.airflow.deploy(flow(delta_source("orders", lake)))
    world.deploy()
    write_deltalake(lake, pa.table({"v": [1]}))
    world.run = day(world, 1)
    write_deltalake(lake, pa.table({"v": [2]}), mode="append")
    return world


def flow(orders):
    history = keyed_state("history", key="k", schema="k BIGINT, n BIGINT")
    known = Stage("known", "pipelines.ladder:known", [blocking(orders)], state=history)
    return Dataflow("ladder", [orders, known, sink(known, "copy")])


def day(world, number):
    run = world.airflow.dag_run(number)
    world.airflow.run_until_quiet()
    assert world.airflow.state_of(run) == "success"
    return run


def versions(world, number=1):
    with world.ledger.transaction() as session:
        return [each["version"] for each in splits_of(session, f"ladder@{epoch(number)}", "orders")]


def codes(world):
    told = json.loads(typed("code", "ladder", "--json"))["versions"]
    return [each["version"] for each in told if each["region"] == "orders"]


def test_a_later_attempt_is_given_the_version_of_its_run_and_a_later_run_the_newest(world):
    world.airflow.clear_by_hand(world.run, "orders")
    world.airflow.run_until_quiet()
    day(world, 2)
    assert (versions(world), versions(world, 2)) == ([0], [1])


def test_an_edit_of_the_pipeline_is_no_edit_of_weirs_own_function(world):
    world.deploy(known=1)
    world.airflow.clear_by_hand(world.run, "orders")
    world.airflow.run_until_quiet()
    assert len(set(codes(world))) == 1


def test_why_tells_the_version_and_the_checkpoint_names_it(world, lake):
    told = typed("why", "orders", "--run", f"ladder@{epoch(1)}")
    assert f"orders reads version 0 of the Delta table {lake}: 1 file(s), " in told
    [task] = json.loads(typed("why", "orders", "--run", f"ladder@{epoch(1)}", "--json"))["tasks"]
    [read] = task["sources"]
    assert (read["stage"], read["split"]["version"]) == ("orders", 0)
    checkpoint = from_json(Checkpoint, world.store.read(checkpoint_path("ladder", 1)))
    assert checkpoint.sources == {"orders": [read["split"]]}


def test_a_rebuilt_ledger_knows_the_version_and_an_adopted_run_reads_the_newest(world):
    world.lose_ledger()
    rebuild(world.services)
    assert versions(world) == [0]
    adopt(world.services, f"ladder@{epoch(1)}")
    world.airflow.clear_run_by_hand(world.run)
    world.airflow.run_until_quiet()
    assert versions(world) == [1]


# A source that has failed, and what it reads was corrected


def fails(world, *subtasks):
    """Begin the second day, whose source fails for good in these subtasks, after it has resolved what it reads."""

    def bad_line(key):
        if key.task_id == "orders" and max(key.map_index, 0) in subtasks:
            raise Misconfigured("a line does not fit")

    run, world.airflow.during = world.airflow.dag_run(2), bad_line
    world.airflow.run_until_quiet()
    world.airflow.during = lambda _key: None
    return run


def applied(world, _run):
    apply_answer(world.services, ask(world.services, Question(f"ladder@{epoch(2)}")))
    world.airflow.deliver_clears()


def cleared(world, run):
    world.airflow.clear_run_by_hand(run)


again = pytest.mark.parametrize("again", [applied, cleared])


def corrected(lake):
    write_deltalake(lake, pa.table({"v": [3]}), mode="append")


@again
def test_a_source_that_nobody_has_read_with_success_reads_what_was_corrected(world, lake, again):
    run = fails(world, 0)
    assert versions(world, 2) == [1]
    corrected(lake)
    again(world, run)
    world.airflow.run_until_quiet()
    assert world.airflow.state_of(run) == "success"
    assert versions(world, 2) == [2]


@again
def test_a_source_reads_what_a_task_of_it_has_read_with_success(world, lake, again):
    world.airflow.deploy(flow(delta_source("orders", lake, parallelism=2)))
    run = fails(world, 1)
    corrected(lake)
    again(world, run)
    world.airflow.run_until_quiet()
    assert world.airflow.state_of(run) == "success"
    assert versions(world, 2) == [1, 1]


@again
def test_the_subtasks_of_a_source_that_has_failed_agree_on_what_they_read_then(world, lake, again):
    world.airflow.deploy(flow(delta_source("orders", lake, parallelism=2)))
    run = fails(world, 0, 1)
    corrected(lake)
    again(world, run)
    world.airflow.step(world.airflow.task(run, "orders", 0))
    corrected(lake)
    world.airflow.run_until_quiet()
    assert world.airflow.state_of(run) == "success"
    assert versions(world, 2) == [2, 2]


def test_no_splits_are_forgotten_while_another_task_of_the_source_runs(world, lake):
    world.airflow.deploy(flow(delta_source("orders", lake, parallelism=2)))
    run = fails(world, 0, 1)
    corrected(lake)
    with world.ledger.transaction("ladder") as session:
        rows = session.scalars(
            select(AttemptRow).where(AttemptRow.run == f"ladder@{epoch(2)}", AttemptRow.subtask == 1)
        )
        rows.all()[-1].state = AttemptState.RUNNING.value
    world.airflow.clear_by_hand(run, "orders", 0)
    world.airflow.step(world.airflow.task(run, "orders", 0))
    assert versions(world, 2) == [1, 1]


def test_a_rebuilt_ledger_takes_what_was_corrected(world, lake):
    run = fails(world, 0)
    corrected(lake)
    cleared(world, run)
    world.airflow.run_until_quiet()
    world.lose_ledger()
    rebuild(world.services)
    assert versions(world, 2) == [2]
