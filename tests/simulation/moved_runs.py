"""Days of a dataflow whose declaration changes: runs are moved, deleted, made again, and interrupted by one another.

The simulator pins a run once. Here a person moves runs to the dataflow of today with another number of subtasks, other
layouts and sinks, clears all, some or none of their tasks, and does so in the middle of tasks, too.
"""

import random
from contextlib import suppress
from datetime import timedelta

from sqlalchemy import select
from tests.weir.small_dataflow import World

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, list_state, previous, sink, source
from weir.errors import Misconfigured, WeirError
from weir.execution.run_state import CLOSE
from weir.ledger.database.tables import ResultRow, RunRow
from weir.ledger.runs import run_by_id, topology_of
from weir.ledger.snapshot import run_state
from weir.rebuild.rebuild import rebuild
from weir.recovery.adopt import adopt
from weir.store.catalogue import published
from weir.testing.fakes.airflow import Killed
from weir.upkeep import RESULTS, settle_everywhere, sweep_everywhere

MOST_DAYS = 4
ROUNDS = 12
"""How often a person looks at what is left, at the end."""

SIZES = {"day": (1, 2, 3), "changes": (1, 2, 3), "totals": (1, 2)}
KEY_GROUPS = (None, 64)
VERBS = {
    "day": 3,
    "declare": 2,
    "correct": 2,
    "clear": 3,
    "clear_run": 1,
    "move": 3,
    "delete": 1,
    "create_again": 2,
    "lose": 2,
    "lose_ledger": 0.7,
    "take_steps": 6,
    "run": 3,
    "upkeep": 1.5,
    "sweep": 1,
    "wait": 0.6,
}


def flow_of(shape):
    """The dataflow of a shape: days that may read the day before, a state that may be kept, totals, and sinks."""
    weather = blocking("weather", broadcast=True)
    inputs = {"day": blocking("day", by="k"), "weather": weather if shape["changes"] > 1 else blocking("weather")}
    if shape["reads_day"]:
        inputs["before"] = previous("day", by="k", schema="k bigint")
    kept = [keyed_state("history", key="k", schema="k BIGINT"), list_state("offsets")][: shape["states"]]
    sizes = {"parallelism": shape["changes"], "max_parallelism": None if kept else shape["key_groups"]}
    last = {"changes": blocking("changes", by="k")}
    if shape["reads_totals"]:
        last["yesterday"] = previous("totals", by="k", schema="k bigint")
    stages = [
        source("day", "pipelines.ladder:day", parallelism=shape["day"]),
        source("weather", "pipelines.ladder:weather"),
        Stage("changes", "pipelines.ladder:changes", inputs, state=tuple(kept), **sizes),
        Stage("totals", "pipelines.ladder:totals", last, parallelism=shape["totals"]),
        sink("totals", "known", by=shape["known_by"]),
        *([sink("changes", "others")] if shape["publishes_changes"] else []),
    ]
    return Dataflow("ladder", stages, keep=shape["keep"], retained_checkpoints=9 if kept else None)


class MovedRuns:
    """One scenario: what happens is drawn by a seed."""

    def __init__(self, folder, seed):
        self.random, self.folder = random.Random(seed), folder
        self.shape = self._drawn_shape()
        self.world = World(folder / "world", flow_of(self.shape))
        self.days, self.deleted, self.moved, self.to_close = 0, set(), set(), set()
        self._is_calm = self._is_inside = False
        self.airflow.during = self._during

    @property
    def airflow(self):
        return self.world.airflow

    def happen(self):
        """Have a drawn number of things happen."""
        self.day()
        for _ in range(self.random.randint(8, 30)):
            self._act()

    def heal(self):
        """Have a person do what errors and rebuilds ask for, and clear what was moved and is not whole, undisturbed."""
        self._is_calm = True
        for run_id in sorted(self.deleted):
            self.airflow.dag_run(int(run_id[-2:]))
        self.run()
        for run in sorted(self.moved & self.open_runs().keys()):
            self.airflow.clear_run_by_hand(run_id_of(run))
        for run_id in sorted(self.to_close & {*self._run_ids()}):
            self.airflow.clear_by_hand(run_id, CLOSE.name)
        for _ in range(ROUNDS):
            self.run()
            settle_everywhere(self.world.services, RESULTS)
            self.airflow.deliver_clears()
            self.run()
            failed = [task for task in self._tasks() if task.state in {"failed", "upstream_failed"}]
            if not failed:
                return
            self._follow(failed)
        raise AssertionError(f"not healed: {self.open_runs()}, {[task.failed_because for task in failed]}")

    def open_runs(self):
        """The runs that are not whole, or not called closed, with what is missing."""
        found = {}
        with self.world.ledger.transaction() as session:
            for row in session.scalars(select(RunRow).order_by(RunRow.epoch)):
                if row.pinned is None:
                    found[row.id] = "not pinned"
                    continue
                state = run_state(session, run_by_id(session, row.id))
                outputs = [each for region in state.region_ids() for each in state.outputs(region)]
                missing = [(str(each), *state.obstacles(each)) for each in outputs if not state.is_done(each)]
                if missing or row.closed_at is None:
                    found[row.id] = missing
        return found

    def published(self):
        """The digests of what is published, by epoch and sink."""
        return self._published(self.world)

    def expected(self):
        """What a computation anew publishes: each day once, in order, by the dataflow to which it is pinned now."""
        anew = World(self.folder / "anew", flow_of(self.shape))
        anew.content.update(self.world.content)
        for epoch, topology in self._in_order():
            anew.airflow.flow = topology.dataflow
            anew.run_days(int(epoch[6:8]))
        found = self._published(anew)
        anew.ledger.close()
        return found

    def _published(self, world):
        return {
            (epoch, name): [part.digest for part in pointer.partitions]
            for epoch, topology in self._in_order()
            for name in topology.sinks
            if (pointer := published(world.store, "ladder", name, epoch)) is not None
        }

    def _in_order(self):
        """The epochs that go on from each other: from a late one, which was given up once, none goes on."""
        found = []
        with self.world.ledger.transaction() as session:
            for row in session.scalars(select(RunRow).order_by(RunRow.epoch)):
                topology = topology_of(row.pinned)
                if topology.follows_previous and row.predecessor != (found[-1][0] if found else None):
                    return found
                found.append((row.epoch, topology))
        return found

    # What happens

    def day(self):
        if self.days < MOST_DAYS:
            self.days += 1
            self.airflow.dag_run(self.days)

    def declare(self):
        drawn = self._drawn_shape()
        for name in self.random.sample(["day", "changes", "totals", "key_groups", "publishes_changes", "known_by"], 2):
            self.shape[name] = drawn[name]
        self.airflow.deploy(flow_of(self.shape))

    def correct(self):
        stage = self.random.choice(["day", "weather"])
        self.world.content[stage] = self.world.content.get(stage, 0) + 1
        for task in self._tasks():
            if task.key.task_id.split("-")[0] == stage and task.state != "removed":
                self.airflow.clear_by_hand(task.key.run_id, task.key.task_id, task.key.map_index)

    def clear(self):
        self._clear_some(self._begun(), [1])

    def clear_run(self):
        if self._run_ids():
            self.airflow.clear_run_by_hand(self.random.choice(self._run_ids()))

    def move(self):
        with self.world.ledger.transaction() as session:
            runs = list(session.scalars(select(RunRow.id).order_by(RunRow.epoch)))
        if not runs:
            return
        run, how = self.random.choice(runs), self.random.choice(["all", "all", "some", "none"])
        try:
            adopt(self.world.services, run)
        except Misconfigured:
            return  # it would discard what cannot be computed again
        run_id = run_id_of(run)
        if how == "all" and run_id in self._run_ids():
            self.airflow.clear_run_by_hand(run_id)
            return
        self.moved.add(run)
        if how == "some":
            self._clear_some([task for task in self._begun() if task.key.run_id == run_id], [1, 2, 3])

    def delete(self):
        if self._run_ids():
            run_id = self.random.choice(self._run_ids())
            self.airflow.delete(run_id)
            self.deleted.add(run_id)

    def create_again(self):
        if self.deleted:
            run_id = self.random.choice(sorted(self.deleted))
            self.deleted.discard(run_id)
            self.airflow.dag_run(int(run_id[-2:]))

    def lose(self):
        with self.world.ledger.transaction() as session:
            query = select(ResultRow.folder).where(ResultRow.is_current, ResultRow.state == "finished")
            folders = list(session.scalars(query.where(ResultRow.stage.in_(SIZES)).order_by(ResultRow.id)))
        if folders:
            self.world.store.delete_folder(self.random.choice(folders))

    def lose_ledger(self):
        if not self._is_inside:
            self.world.lose_ledger()
            if self.random.random() < 0.6 and self._begun():
                built = [run for each in rebuild(self.world.services) for run in each.runs]
                self.to_close |= {run.run_id for run in built if run.is_outdated}

    def take_steps(self):
        for _ in range(self.random.choice([1, 3, 8, 15])):
            ready = sorted(self.airflow._runnable(), key=lambda task: str(task.key))
            if ready:
                self._step(self.random.choice(ready))

    def run(self):
        """Run what can run, until all that is left waits for long."""
        turns = 0
        while not self._is_inside and turns < 40 and (task := self.airflow._ready()) is not None:
            self._step(task)
            turns = turns + 1 if task.state == "up_for_reschedule" else 0

    def upkeep(self):
        settle_everywhere(self.world.services, RESULTS)
        with suppress(WeirError):  # upkeep comes again
            self.airflow.deliver_clears()

    def sweep(self):
        sweep_everywhere(self.world.services, self.airflow)

    def wait(self):
        self.airflow.time += timedelta(hours=self.random.choice([2, 30]))

    # Helpers

    def _act(self):
        getattr(self, self.random.choices(list(VERBS), list(VERBS.values()))[0])()

    def _during(self, _key):
        chance = 1.0 if self._is_calm or self._is_inside else self.random.random()
        if chance < 0.06:
            raise Killed
        if chance < 0.16:
            self._is_inside = True
            try:
                self._act()
            finally:
                self._is_inside = False

    def _drawn_shape(self):
        drawn = self.random
        return {
            **{stage: drawn.choice(sizes) for stage, sizes in SIZES.items()},
            "key_groups": drawn.choice(KEY_GROUPS),
            "reads_day": drawn.random() < 0.5,
            "reads_totals": drawn.random() < 0.5,
            "states": drawn.choice([0, 1, 1, 2]),
            "publishes_changes": drawn.random() < 0.6,
            "known_by": drawn.choice([(), "k"]),
            "keep": drawn.choice(["60 days", "on_consumed", "end_of_run"]),
        }

    def _step(self, task):
        self.airflow.time = max(self.airflow.time, task.not_before or self.airflow.time)
        self.airflow.step(task)

    def _follow(self, failed):
        """Move the first run that an error names, clear it, and clear what has failed."""
        for task in failed:
            _, is_asked, run = task.failed_because.partition("`weir run adopt ")
            if is_asked:
                run = run.partition("`")[0]
                with suppress(Misconfigured):  # the ledger was lost since, and does not know it
                    adopt(self.world.services, run, discards=True)
                self.airflow.clear_run_by_hand(run_id_of(run))
                break
        self._clear_some(failed, [len(failed)])

    def _clear_some(self, tasks, counts):
        for task in self.random.sample(tasks, min(len(tasks), self.random.choice(counts))):
            self.airflow.clear_by_hand(task.key.run_id, task.key.task_id, task.key.map_index)

    def _tasks(self):
        return [self.airflow.tasks[key] for key in sorted(self.airflow.tasks, key=str)]

    def _begun(self):
        return [task for task in self._tasks() if task.try_number and task.state != "removed"]

    def _run_ids(self):
        return sorted({key.run_id for key in self.airflow.tasks})


def run_id_of(run):
    """The DagRun of a run: those of the fake Airflow are named by their days."""
    day = run.partition("@")[2]
    return f"scheduled__{day[:4]}-{day[4:6]}-{day[6:8]}"
