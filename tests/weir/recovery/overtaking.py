"""What other processes do to a result while one is about to read it, in a world with the small dataflow."""

from sqlalchemy import select

from weir.coordination.airflow import ClearItem
from weir.coordination.values import Begun
from weir.errors import Fault, Loss
from weir.execution.partition_state import PartitionState
from weir.ledger.database.tables import ResultRow
from weir.ledger.results import record_losses, transition
from weir.store.files import ForwardedFiles

TASKS = {
    ("clean", 0): ("raw-clean", 0),
    ("clean", 1): ("raw-clean", 1),
    ("weather", 0): ("weather", -1),
    ("joined", 0): ("joined", 0),
    ("joined", 1): ("joined", 1),
    ("totals", 0): ("totals", 0),
    ("totals", 1): ("totals", 1),
    ("routes", 0): ("routes", -1),
    ("delays", 0): ("report-delays", -1),
}
"""The task that computes each result, in the order of a run."""

INPUTS = (("clean", 0), ("clean", 1), ("weather", 0))
"""What each subtask of `joined` reads."""

RECORDED = {"away": Fault.MISSING, "lost": Fault.MISSING, "damaged": Fault.DAMAGED, "suspected": Fault.SUSPECTED}
"""What a process records of a result that it has probed; one that was away is there again."""

HAPPENINGS = ("other rows", "equal rows", *RECORDED, "released")


def result(session, stage, subtask=0):
    """The current result of a subtask."""
    query = select(ResultRow).where(ResultRow.stage == stage, ResultRow.subtask == subtask, ResultRow.is_current)
    return session.scalars(query).one()


def next_try(world, task_id, map_index=-1):
    """The request of the next try of a task, which the scheduler has started."""
    task = world.airflow.task(world.run, task_id, map_index)
    task.try_number, task.state = task.try_number + 1, "running"
    return world.airflow.request(task)


def compute(world, *results):
    """Compute results in new tries, of which none settles what follows from its commit."""
    for place in results:
        begun = world.airflow.coordinator.begin(next_try(world, *TASKS[place]), world.airflow)
        assert isinstance(begun, Begun)
        world.airflow.coordinator.commit(begun, world.airflow.engine.run(begun.job), world.airflow)
        world.airflow.task(world.run, *TASKS[place]).state = "success"


def happen(world, what, place):
    """Let something happen to the current result of a subtask."""
    with world.ledger.transaction() as session:
        row = result(session, *place)
    if what in ("other rows", "equal rows"):
        if what == "other rows":
            world.content[row.stage] = "other rows"
        world.airflow.clear([ClearItem(world.airflow.dag_id, world.run, *TASKS[place], None)])
        compute(world, place)
        return
    with world.ledger.transaction("ladder") as session:
        if what == "released":
            transition(session, session.get_one(ResultRow, row.id), PartitionState.RELEASED, "", world.airflow.time)
        else:
            loss = Loss(row.run, row.stage, row.subtask, row.layout, row.attempt, RECORDED[what], "found by another")
            record_losses(session, [loss], world.airflow.time)
    if what in ("lost", "released"):
        world.store.delete_folder(row.folder)


class Overtaken(ForwardedFiles):
    """Files of which `then` is called after a number of reads, once."""

    workers = 1

    def __init__(self, files, reads, then):
        super().__init__(files)
        self.reads, self.then = reads, then

    def read(self, path, offset, length):
        found = super().read(path, offset, length)
        self.reads -= 1
        if self.reads == 0:
            self.then()
        return found


def overtake(world, reads, then):
    """Call `then` after so many reads of the store from now on."""
    world.store.files = Overtaken(world.store.files, reads, then)
