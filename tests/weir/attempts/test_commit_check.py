"""An attempt may commit only if it is its region's newest, of this lineage, and all that it read is as it was read.

What happens to its inputs and to its region is drawn; the answer is compared with the definition.
"""

from dataclasses import dataclass
from random import Random

import pytest
from sqlalchemy import select

from weir.attempts.commit_check import require_committable
from weir.coordination.values import Begun
from weir.dataflow import Dataflow
from weir.errors import Conflict, Fault, Fenced
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import AttemptState
from weir.ledger.attempts import attempts_of
from weir.ledger.database.tables import AttemptRow, DataflowRow, ResultRow

CASES = 150
OF_INPUTS = (None, None, None, "other rows", "equal rows", "lost", "damaged", "beside a damaged one", "quarantined")
OF_REGIONS = (*[None] * 8, "newer try", "ended", "lineage")


@dataclass(frozen=True, slots=True)
class Case:
    """What happens to each input, and to the region, while it computes."""

    inputs: tuple[str | None, ...]
    region: str | None

    def may_commit(self, consumers):
        refused = {"other rows", "damaged", "quarantined"} | ({"equal rows"} if consumers == "always" else set())
        return self.region is None and refused.isdisjoint(self.inputs)


@pytest.fixture(params=["if_changed", "always"])
def consumers(request):
    return request.param


@pytest.fixture
def begun(world, consumers):
    """The attempt of a region with three inputs, two of them of one stage."""
    flow = world.airflow.flow
    world.airflow.flow = Dataflow(flow.name, flow.stages, consumers=consumers)
    run = world.airflow.dag_run()
    for task_id, index in (("raw-clean", 0), ("raw-clean", 1), ("weather", -1)):
        world.airflow.step(world.airflow.task(run, task_id, index))
    task = world.airflow.task(run, "joined", 0)
    task.try_number, task.state = 1, "running"
    found = world.airflow.coordinator.begin(world.airflow.request(task), world.airflow)
    assert isinstance(found, Begun)
    assert len(found.reads) == 3
    return found


def happen(session, begun, case):
    rows = {row.id: row for row in session.scalars(select(ResultRow))}
    read = [rows[each.result] for each in begun.inputs]
    for row, what in zip(read, case.inputs, strict=True):
        if what == "other rows":
            row.digest += "0"
        elif what == "equal rows":
            row.attempt = next(each.attempt for each in read if each.attempt != row.attempt)
        elif what in ("lost", "damaged"):
            row.state = PartitionState.LOST.value
            row.fault = (Fault.DAMAGED if what == "damaged" else Fault.MISSING).value
        elif what == "quarantined":
            row.state = PartitionState.QUARANTINED.value
        elif what == "beside a damaged one":
            columns = {each.name: getattr(row, each.name) for each in ResultRow.__table__.columns if each.name != "id"}
            other = {"layout": "other", "is_current": False, "state": PartitionState.LOST.value}
            session.add(ResultRow(**{**columns, **other, "fault": Fault.DAMAGED.value}))
    own = session.get_one(AttemptRow, begun.attempt.id)
    if case.region == "newer try":
        columns = {each.name: getattr(own, each.name) for each in AttemptRow.__table__.columns}
        session.add(AttemptRow(**{**columns, "id": "newer", "try_number": 2, "ti_id": "newer"}))
    elif case.region == "ended":
        own.state = AttemptState.FENCED.value
    elif case.region == "lineage":
        session.get_one(DataflowRow, begun.run.dataflow.name).lineage += 1
    session.flush()


@pytest.mark.parametrize("seed", range(2))
def test_an_attempt_may_commit_if_and_only_if_it_and_its_inputs_are_as_they_were(world, begun, consumers, seed):
    random = Random(seed)
    for _ in range(CASES):
        case = Case(tuple(random.choices(OF_INPUTS, k=3)), random.choice(OF_REGIONS))
        with world.ledger.transaction(begun.run.dataflow.name) as session:
            happen(session, begun, case)
            tries = attempts_of(session, begun.run.id, begun.attempt.region)
            try:
                require_committable(session, world.services, begun, tries)
                found = True
            except (Conflict, Fenced):
                found = False
            session.rollback()
        assert found is case.may_commit(consumers), case
