"""Dataflows that read each other's data sets: tasks of all of them in any order, and what happens meanwhile.

The simulator has one dataflow. Here two or three share a ledger and a store; processes of any of them are killed
between any two transactions, files that are read or published are lost, rows change, and versions are released.
"""

import hashlib
import json
import random
import re
from collections import Counter
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache, partial
from uuid import UUID

from sqlalchemy import select
from tests.builders.ledgers import StoppingLedger, new_ledger
from tests.weir.datasets.neighbours import DAILY, HALF_DAILY, EngineOfEpochs, Neighbours, WorldOfEpochs

from weir.assembly import coordinator_of
from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, dataset, last, previous, sink, source
from weir.errors import WeirError
from weir.execution.run_state import AttemptState
from weir.formats.manifest import parsed_digest
from weir.ledger.database.dataset_tables import UntoldVersionRow
from weir.ledger.database.tables import AttemptRow, PublicationRow, ResultRow, RunRow
from weir.ledger.leases import LEASE
from weir.ledger.reads import resolved_inputs
from weir.ledger.runs import run_by_id
from weir.ledger.snapshot import run_state
from weir.rebuild.rebuild import rebuild
from weir.store.catalogue import published
from weir.store.errors import NotFound
from weir.testing.fakes.airflow import Killed
from weir.testing.fakes.code import archive_of_edits
from weir.upkeep import RESULTS, settle_everywhere, sweep_everywhere

ROUNDS = 12
"""How often upkeep and a person look at what is left, at the end."""

MOST_STEPS = 400
"""Of one round: what needs more goes round in circles."""

STOP_WITHIN = 40
"""A process is killed or interrupted at one of so many next points: before or after the end of a transaction."""

FOREIGN_KILLS, FOREIGN_INTERRUPTIONS = 0.08, 0.2
"""How often, where it is a transaction of another dataflow than that of the task: most faults are there."""

VERBS = {
    "start": 4,
    "take_steps": 12,
    "upkeep": 2,
    "sweep": 0.5,
    "kill_soon": 3,
    "interrupt_soon": 3,
    "lose": 2.5,
    "clear": 2,
    "clear_run": 1,
    "correct": 2,
    "edit": 0.4,
    "delete": 0.5,
    "forbid": 0.6,
    "wait": 0.7,
    "lose_ledger": 0.3,
}

STAGES = {"trips": ["raw", "by_zone"], "report": ["read", "made"], "summary": ["read", "made"]}
SINKS = {"trips": "zones", "report": "out", "summary": "out"}
CHAINS = (
    {"report": ["trips"]},
    {"report": ["trips"], "summary": ["report"]},
    {"report": ["trips"], "summary": ["trips", "report"]},
    {"report": ["trips"], "summary": ["trips"]},
)


def require_right(folder, seed):
    """Have what a seed draws happen, and all heal. Raises AssertionError where something is not as it should be."""
    flows = Dataflows(folder, seed)
    try:
        flows.happen()
        flows.heal()
        assert flows.published() == flows.expected(), seed
        assert flows.broken == [], seed
        assert flows.town.ledger.crossed == [], seed
        for changes in (False, True) if flows.is_whole else ():
            run, tries = flows.run_again(changes=changes)
            assert tries.keys() == {run, *(flows.readers_of(*run) if changes else ())}, (seed, changes)
            assert flows.published() == flows.expected(), seed
    finally:
        flows.town.ledger.close()


class Dataflows:
    """One scenario: what happens is drawn by a seed."""

    def __init__(self, folder, seed):
        self.random, self.folder = random.Random(seed), folder
        self.reuses = random.Random(f"reuse {seed}").random() < 0.4  # apart: what else a seed draws is as before it was
        self.story, self.broken, self.lost, self.deleted, self.reported = [], [], set(), set(), set()
        self._is_calm, self._is_inside, self._ledgers = False, False, 0
        self._stop_at, self._kills, self._stepping = 0, None, ""
        self.reads = self._drawn_reads()
        self.stages = {name: names if self.random.random() < 0.4 else names[:1] for name, names in STAGES.items()}
        self.sizes = {name: self.random.choice([1, 1, 1, 2]) for name in STAGES}
        self.halves = self.random.random() < 0.3 and all(
            each.epoch != "same" for reads in self.reads.values() for name, each in reads.items() if name == "trips"
        )
        self.days = self.random.choice([2, 2, 2, 3] if self.halves else [2, 2, 3, 3, 4, 5])
        self.keep = self.random.choice(["60 days", "on_consumed", "end_of_run"])
        self.expires = self.random.random() < 0.3
        self.loses = self.random.random() < 0.6
        self.edits = {name: Counter() for name in STAGES}
        self.carries = {name for name in self.reads if self.random.random() < 0.2}
        self.town = Neighbours(folder, self._new_ledger())
        self._serve()
        for name in ("trips", *self.reads):
            airflow = self.town.add(self._flow(name), HALF_DAILY if name == "trips" and self.halves else DAILY)
            world = WorldOfEpochs()
            self.town.content[name], world.is_alike = world, self.reuses
            airflow.engine = EngineOfEpochs(self.town.store, world, self._kept)
            airflow.during = partial(self._during, airflow)
            airflow.deployed = archive_of_edits(airflow.flow, {})
            airflow.collects = self.random.random() < 0.5

    # What is declared

    def _drawn_reads(self):
        found = {}
        for reader, names in self.random.choice(CHAINS).items():
            found[reader] = {}
            for name in names:
                skips = self.random.random() < 0.2
                found[reader][name] = dataset(
                    f"{name}.{SINKS[name]}",
                    by="k",
                    epoch=self.random.choice(["same", "same", "within", last(2), last(3), "latest"]),
                    **({"missing": "skip", "schema": "k BIGINT"} if skips else {}),
                )
        return found

    def _flow(self, name):
        first, *more = self.stages[name]
        inputs = dict(self.reads.get(name, {}))
        if name in self.carries:
            inputs["before"] = previous(more[-1] if more else first, by="k", schema="k BIGINT")
        size = self.sizes[name]
        code = f"pipelines.{name}:"
        begins = (
            Stage(first, code + first, inputs, parallelism=size)
            if inputs
            else source(first, code + first, parallelism=size)
        )
        stages = [begins, *(Stage(each, code + each, [blocking(first, by="k")], parallelism=3 - size) for each in more)]
        published_last = sink(stages[-1].name, SINKS[name])
        return Dataflow(
            name,
            [*stages, published_last],
            keep=self.keep,
            keep_published="7 days" if self.expires else None,
            reuse="equal" if self.reuses else "never",
        )

    # What happens

    def happen(self):
        """Have a drawn number of things happen."""
        for airflow in self.town.airflows.values():  # which epoch is the first is not drawn: readers depend on it
            self._start(airflow.flow.name, self.slots(airflow.flow.name)[0])
            self._step(airflow, min(airflow._runnable(), key=lambda task: str(task.key)))
        if self.random.random() < 0.5:  # what has ended is not looked at by its own tasks any more
            self.heal()
            self._is_calm = False
            self.correct()
            self.take_steps()
        for _ in range(self.random.randint(4, 20)):
            self._act()

    def _act(self):
        verb = self.random.choices(list(VERBS), list(VERBS.values()))[0]
        self.story.append(verb if not self._is_inside else f"  ({verb})")
        try:
            getattr(self, verb)()
        except Killed:
            self.story.append("killed")

    def start(self):
        name = self.random.choice(list(self.town.airflows))
        left = [each for each in self.slots(name) if run_id_of(name, each, self.town) not in self._run_ids(name)]
        left = [each for each in left if (name, each) not in self.deleted]
        if left:
            self._start(name, left[0])

    def take_steps(self):
        airflows = self.random.sample(
            list(self.town.airflows.values()), self.random.choice([1, len(self.town.airflows)])
        )
        for _ in range(self.random.choice([1, 3, 8, 15])):
            ready = [(airflow, task) for airflow in airflows for task in runnable(airflow)]
            if ready:
                self._step(*self.random.choice(ready))

    def upkeep(self):
        settle_everywhere(self.town.services, RESULTS)
        for name, airflow in self.town.airflows.items():
            if self.random.random() < 0.7:
                with suppress(WeirError):  # upkeep comes again
                    airflow.deliver_clears(name)

    def sweep(self):
        sweep_everywhere(self.town.services, self.town.airflows["trips"])

    def kill_soon(self):
        self._stop_at, self._kills = self.random.randint(1, STOP_WITHIN), True

    def interrupt_soon(self):
        """Something else happens between two transactions of a process."""
        self._stop_at, self._kills = self.random.randint(1, STOP_WITHIN), False

    def lose(self):
        if not self.loses:
            return
        with self.town.ledger.transaction() as session:
            if self.random.random() < 0.6:
                query = select(PublicationRow.folders).where(PublicationRow.expired_at.is_(None))
                folders = sorted({folder for found in session.scalars(query) for folder in found})
            else:
                query = select(ResultRow.folder).where(ResultRow.is_current, ResultRow.state == "finished")
                folders = sorted(session.scalars(query))
        if folders:
            folder = self.random.choice(folders)
            self.lost.add(folder)
            if self.random.random() < 0.7:
                self.town.store.delete_folder(folder)
            else:
                with suppress(WeirError):
                    self.town.store.replace(f"{folder}/part-0.bin", b"cut off")

    def clear(self):
        begun = [(each, task) for each in self.town.airflows.values() for task in tasks_of(each) if task.try_number]
        if begun:
            airflow, task = self.random.choice(begun)
            airflow.clear_by_hand(task.key.run_id, task.key.task_id, task.key.map_index)

    def clear_run(self):
        airflow = self.random.choice(list(self.town.airflows.values()))
        airflow.clear_run_by_hand(self.random.choice(sorted(self._run_ids(airflow.flow.name))))

    def correct(self):
        """Other rows of a stage: a person clears its tasks. Who reuses has such rows of sources alone."""
        airflow = self.random.choice(list(self.town.airflows.values()))
        airflow = self.town.airflows["trips"] if self.reuses else airflow
        name = airflow.flow.name
        stages = [each.name for each in airflow.flow.stages if each.function]
        stage = self.random.choice(stages[:1] if self.reuses else stages)
        slot = self.random.choice([each for each in self.slots(name) if (name, each) not in self.deleted])
        self._correct(name, stage, slot)
        for task in tasks_of(airflow):
            if task.key.run_id == run_id_of(name, slot, self.town) and task.key.task_id.split("-")[0] == stage:
                airflow.clear_by_hand(task.key.run_id, task.key.task_id, task.key.map_index)

    def edit(self):
        """Other code, which makes other rows in one stage: a person has all runs computed again, once nothing is to do.

        What runs, or what Weir has cleared, goes on with its code where a person clears it, too; and what a rebuilt
        ledger knows nothing of begins with that of its run.
        """
        name = self.random.choice(list(self.town.airflows))
        if (self.lost and self._ledgers > 1) or any(
            task.try_number and task.state != "success" for task in tasks_of(self.town.airflows[name])
        ):
            return
        airflow = self.town.airflows[name]
        self.edits[name][self.random.choice(self.stages[name])] += 1
        airflow.deployed = archive_of_edits(airflow.flow, self.edits[name])
        for _, slot in sorted(each for each in self.deleted if each[0] == name):
            self._start(name, slot)
        for run_id in sorted(self._run_ids(name)):
            airflow.clear_run_by_hand(run_id)

    def delete(self):
        airflow = self.random.choice(list(self.town.airflows.values()))
        name = airflow.flow.name
        if name not in self.carries:
            slot = self.random.choice(self.slots(name)[1:])
            run_id = run_id_of(name, slot, self.town)
            if run_id in self._run_ids(name):
                airflow.delete(run_id)
                self.deleted.add((name, slot))

    def forbid(self):
        for airflow in self.town.airflows.values():
            airflow.forbidden = set(self.random.sample(list(self.town.airflows), 1)) - {airflow.flow.name}

    def wait(self):
        later = self.town.now() + timedelta(hours=self.random.choice([2, 30, 24 * 10]))
        for airflow in self.town.airflows.values():
            airflow.time = later

    def lose_ledger(self):
        if self._is_inside:
            return
        self.town.ledger.close()
        self.town.ledger = self._new_ledger()
        self._serve()
        for airflow in self.town.airflows.values():
            airflow.services, airflow.coordinator = self.town.services, coordinator_of(self.town.services)
        is_calm, self._is_calm = self._is_calm, True
        self.reported |= {run.run for each in rebuild(self.town.services) for run in each.runs if run.is_outdated}
        self._is_calm = is_calm

    # How all ends

    def heal(self):
        """Have everything run, with upkeep, and a person who does what errors ask for; nothing happens beside."""
        self._is_calm = True
        for name, airflow in self.town.airflows.items():
            airflow.forbidden = set()
            for slot in self.slots(name):
                if run_id_of(name, slot, self.town) not in self._run_ids(name):
                    self._start(name, slot)
        for _ in range(ROUNDS):
            self.run()
            failed, reported = self._failed(), self._reported()
            if not failed and not reported:
                break
            for airflow, task in failed:
                self._follow(airflow, task)
            for airflow, run_id in reported:
                airflow.clear_by_hand(run_id, "weir_close")
        if not self._left():
            return
        raise AssertionError(f"not healed: {self._left()}")

    def run(self):
        """Run all that can run, until all that is left waits, with upkeep in between."""
        for _ in range(ROUNDS):
            self._run()
            if not self._left() or self._failed():
                return
            settle_everywhere(self.town.services, RESULTS).require_whole()
            for name, airflow in self.town.airflows.items():
                airflow.deliver_clears(name)

    def _run(self):
        asked = set()
        for _ in range(MOST_STEPS):
            airflows = self.town.airflows.values()
            ready = [(airflow, task) for airflow in airflows for task in runnable(airflow) if task.key not in asked]
            if not ready:
                return
            airflow, task = self.random.choice(ready)
            self._step(airflow, task)
            asked = asked | {task.key} if task.state == "up_for_reschedule" else set()
        raise AssertionError(f"no end after {MOST_STEPS} tries: {self._left()}")

    def _follow(self, airflow, task):
        """Do what the error of a task asks for, and clear it."""
        gone = re.search(r"what (\S+)@(\d+)T(\d\d)\S* has published as \S+ was deleted", task.failed_because)
        if gone:
            name, day, hour = gone.groups()
            self.town.airflows[name].clear_run_by_hand(run_id_of(name, (int(day[-2:]), int(hour)), self.town))
        airflow.clear_by_hand(task.key.run_id, task.key.task_id, task.key.map_index)

    def _failed(self):
        airflows = self.town.airflows.values()
        return [
            (each, task) for each in airflows for task in tasks_of(each) if task.state in ("failed", "upstream_failed")
        ]

    def _reported(self):
        """The open runs of which a rebuilt ledger has reported that their closing task is to be cleared."""
        if self._failed():
            return []
        with self.town.ledger.transaction() as session:
            rows = list(session.scalars(select(RunRow).where(RunRow.closed_at.is_(None)).order_by(RunRow.id)))
        return [(self.town.airflows[row.dataflow], row.run_id) for row in rows if row.id in self.reported]

    def _left(self):
        """What is not done: tasks, runs, results, versions that readers do not know."""
        found = [
            f"{name} {task.key} {task.state} {task.waits_on} {task.failed_because}"
            for name, airflow in self.town.airflows.items()
            for task in tasks_of(airflow)
            if task.state != "success"
        ]
        with self.town.ledger.transaction() as session:
            for row in session.scalars(select(RunRow).order_by(RunRow.id)):
                if row.pinned is None:
                    found.append(f"{row.id} is not pinned")
                    continue
                state = run_state(session, run_by_id(session, row.id))
                outputs = [each for region in state.region_ids() for each in state.outputs(region)]
                if row.closed_at is None or not (self.lost and self._ledgers > 1):  # else nobody knows what is gone
                    left = [each for each in outputs if not state.is_done(each)]
                    found += [f"{row.id} {each} {list(state.obstacles(each))}" for each in left]
                if row.closed_at is None:
                    found.append(f"{row.id} is not closed")
            found += [f"untold: {each.run} {each.sink}" for each in session.scalars(select(UntoldVersionRow))]
        return found

    # What is right

    def published(self):
        """The contents of what is published now, as their digests have them, by dataflow and epoch."""
        return {
            (name, slot): [f"{parsed_digest(part.digest).xor:015x}" for part in pointer.partitions]
            for name in self.town.airflows
            for slot in self.slots(name)
            if (pointer := published(self.town.store, name, SINKS[name], epoch_of(slot))) is not None
        }

    def expected(self):
        """The same by a computation in Python, from what is declared and the corrections alone.

        Which epochs an input has left out is taken from the ledger.
        """
        return {
            (name, slot): [each[:15] for each in self._rows()(name, SINKS[name], slot)]
            for name, slot in self.published()
        }

    def _rows(self):
        @cache
        def rows(name, stage, slot):
            first, *more = self.stages[name]
            last_stage = more[-1] if more else first
            if stage == SINKS[name]:
                return [hashed("", [each]) for each in rows(name, last_stage, slot)]
            read = []
            if stage in more:
                read = rows(name, first, slot)
            elif name in self.reads:
                read = [each for of, other in self.epochs_read(name, slot) for each in rows(of, SINKS[of], other)]
                if name in self.carries and slot[0] > 1:
                    read = [*read, *rows(name, last_stage, (slot[0] - 1, 0))]
            found, edits = self.town.content[name], self.edits[name][stage]
            natures = [[stage, each, found.of(stage, epoch_of(slot), each)] for each in range(self._size(name, stage))]
            return [hashed(json.dumps([*each, edits] if edits else each), read) for each in natures]

        return rows

    def epochs_read(self, name, slot):
        """The epochs that a run of a reader reads, by the declaration, but for those that were left out."""
        with self.town.ledger.transaction() as session:
            left_out = {
                (each.dataset.partition(".")[0], epoch)
                for each in resolved_inputs(session, f"{name}@{epoch_of(slot)}")
                for epoch in each.left_out
            }
        day = slot[0]
        found = []
        for of, exchange in self.reads.get(name, {}).items():
            if exchange.epoch == "same":
                slots = [slot]
            elif exchange.epoch == "within":
                slots = [each for each in self.slots(of) if each[0] == day]
            else:
                number = 1 if exchange.epoch == "latest" else int(re.search(r"\d+", str(exchange.epoch))[0])
                slots = [each for each in self.slots(of) if each[0] <= day][-number:]
            skips = exchange.missing == "skip"
            found += [(of, each) for each in slots if not (skips and (of, epoch_of(each)) in left_out)]
        return found

    def readers_of(self, name, slot):
        """The runs whose rows are made of those of another one, over any number of dataflows and epochs."""
        found, waiting = set(), [(name, slot)]
        while waiting:
            of = waiting.pop()
            for reader in self.reads:
                for each in self.slots(reader):
                    follows = reader in self.carries and of == (reader, (each[0] - 1, 0))
                    if (reader, each) not in found and (follows or of in self.epochs_read(reader, each)):
                        found.add((reader, each))
                        waiting.append((reader, each))
        return found

    def run_again(self, *, changes):
        """Have a drawn run compute anew, with other rows or the same; answers it, and the tries of all runs since."""
        name = self.random.choice(list(self.town.airflows))
        name = "trips" if self.reuses and changes else name
        slot = self.random.choice(self.slots(name))
        before = self._tries()
        if changes:
            self._correct(name, self.town.airflows[name].flow.stages[0].name, slot)
        self.town.airflows[name].clear_run_by_hand(run_id_of(name, slot, self.town))
        self.run()
        return (name, slot), self._tries() - before

    @property
    def is_whole(self):
        """Whether nothing is gone that a run which begins again would need."""
        return not self.lost and not self.expires and (self.keep == "60 days" or not self.carries)

    def _tries(self):
        return Counter(
            {
                (name, slot_of(task.key.run_id)): sum(
                    len(each.runs) for each in tasks_of(airflow) if each.key.run_id == task.key.run_id
                )
                for name, airflow in self.town.airflows.items()
                for task in tasks_of(airflow)
            }
        )

    # Helpers

    def slots(self, name):
        """The days and hours at which epochs of a dataflow begin."""
        hours = (0, 12) if name == "trips" and self.halves else (0,)
        return [(day, hour) for day in range(1, self.days + 1) for hour in hours]

    def _start(self, name, slot):
        airflow = self.town.airflows[name]
        airflow._verify_integrity(run_id_of(name, slot, self.town))
        self.deleted.discard((name, slot))

    def _run_ids(self, name):
        return {key.run_id for key in self.town.airflows[name].tasks}

    def _size(self, name, stage):
        return self.town.airflows[name].flow.stage(stage).parallelism

    def _correct(self, name, stage, slot):
        subtasks = range(self._size(name, stage))
        for subtask in self.random.choice([subtasks, [self.random.choice(subtasks)]]):
            self.town.content[name].correct(stage, epoch_of(slot), subtask)

    def _step(self, airflow, task):
        airflow.time = max(self.town.now(), task.not_before or self.town.now())
        before, self._stepping = self._stepping, airflow.flow.name
        try:
            airflow.step(task)
        except Killed:  # in the answer to a failure
            airflow._retry(task, 0)
        finally:
            self._stepping = before

    def _during(self, airflow, key):
        chance = 1.0 if self._is_calm or self._is_inside else self.random.random()
        if chance < 0.05:
            raise Killed
        if chance < 0.3:
            self._act_inside()
            if chance < 0.15:
                airflow.heartbeat(key)

    @contextmanager
    def _kept(self, attempt, folders):
        """Note files that were deleted while the attempt that reads them went on, under its leases."""
        there = {each for each in folders if self._is_there(each)}
        began = self.town.now()
        yield
        with self.town.ledger.transaction() as session:
            row = session.get(AttemptRow, attempt)
            runs = row is not None and row.state == AttemptState.RUNNING.value
        if runs and self.town.now() < began + LEASE:
            gone = {each for each in there - self.lost if not self._is_there(each)}
            self.broken += [f"{attempt} was reading {each}, which was deleted" for each in sorted(gone)]

    def _is_there(self, folder):
        with suppress(NotFound):
            return bool(self.town.store.size(f"{folder}/manifest.json"))
        return False

    def _point(self, dataflow, is_open):
        """Be killed or interrupted here: by what was drawn, or where a process does something for another dataflow."""
        if self._is_calm:
            return
        is_foreign = self._stepping not in (dataflow, "")
        chance = self.random.random() if is_foreign else 1.0
        self._stop_at = max(self._stop_at - 1, 0) if not is_open or self._kills else self._stop_at
        is_now = self._stop_at == 0 and self._kills is not None
        if chance < FOREIGN_KILLS or (is_now and self._kills):
            self._kills = None
            raise Killed
        if not is_open and not self._is_inside and (is_now or chance < FOREIGN_INTERRUPTIONS):
            self._kills = None
            self._act_inside()

    def _act_inside(self):
        self._is_inside = True
        try:
            self._act()
        finally:
            self._is_inside = False

    def _serve(self):
        town, ids = self.town, random.Random(self._ledgers)
        self.town.services = Services(
            ledger=town.ledger, store=town.store, now=town.now, new_uuid=lambda: UUID(int=ids.getrandbits(128))
        )

    def _new_ledger(self):
        self._ledgers += 1
        return StoppingLedger(new_ledger(self.folder / f"ledger{self._ledgers}.db")._engine, self._point)


def hashed(own, read):
    return hashlib.sha256(json.dumps([own, sorted(read)]).encode()).hexdigest()


def tasks_of(airflow):
    return [airflow.tasks[key] for key in sorted(airflow.tasks, key=str) if airflow.tasks[key].state != "removed"]


def runnable(airflow):
    return sorted(airflow._runnable(), key=lambda task: str(task.key))


def epoch_of(slot):
    return "201301{:02d}T{:02d}0000Z".format(*slot)


def run_id_of(name, slot, town):
    hour = f"__{slot[1]:02d}" if town.airflows[name].every == HALF_DAILY else ""
    return f"scheduled{hour}__2013-01-{slot[0]:02d}"


def slot_of(run_id):
    parts = run_id.split("__")
    return int(parts[-1][-2:]), int(parts[1]) if len(parts) == 3 else 0
