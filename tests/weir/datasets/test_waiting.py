"""Tasks that wait for another dataflow go on when it has published, and ask little until then."""

from sqlalchemy import event, select
from tests.weir.datasets.neighbours import reader, trips

from weir.attempts.waiting import WaitingAttempts
from weir.dataflow import dataset
from weir.execution.run_state import AttemptState
from weir.ledger.database.tables import AttemptRow


def waiting_in(town):
    with town.ledger.transaction() as session:
        return set(session.scalars(select(AttemptRow.id).where(AttemptRow.state == AttemptState.WAITING.value)))


def test_a_wait_is_over_when_the_other_dataflow_has_published_and_not_before(town):
    flow = town.add(trips())
    report = town.add(reader(zones=dataset("trips.zones")))
    report.dag_run(1)
    report.step(report.task("scheduled__2013-01-01", "read"))
    waiting, asked = waiting_in(town), WaitingAttempts(town.ledger)
    assert asked.over(waiting) == frozenset()
    flow.dag_run(1)
    while flow.state_of("scheduled__2013-01-01") == "running":
        assert asked.over(waiting) == frozenset()
        flow.step(flow._ready())
    assert asked.over(waiting) == waiting


def test_it_costs_two_statements_for_all_that_wait_while_nothing_changes(town):
    town.add(trips())
    for name in ("one", "two"):
        airflow = town.add(reader(name, zones=dataset("trips.zones")))
        airflow.dag_run(1)
        airflow.step(airflow.task("scheduled__2013-01-01", "read"))
    waiting, asked, statements = waiting_in(town), WaitingAttempts(town.ledger), []
    assert len(waiting) == 2
    assert asked.over(waiting) == frozenset()
    event.listen(town.ledger._engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    assert asked.over(waiting) == frozenset()
    assert len([each for each in statements if each.startswith("SELECT")]) == 2
