"""Thirty-five days of `dags/flight_history.py` under a real scheduler and faults, against pandas, which keeps nothing.

One stack and one catch-up for all tests: the days run, after every third one fault is injected, and the tests look at
what has come of it. Faults hit the two newest runs: what an older one goes on from has expired.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from ladder_stack import LadderStack
from tests.chaos.data_faults import NOTE
from tests.chaos.faults import Injection
from tests.chaos.field import day_of
from tests.chaos.plan import known_faults, planned_faults
from tests.chaos.verdict import broken_invariants, unsettled
from tests.pipelines.flight_history_reference import expected_history, expected_rolling

import weir
from weir.coordination.services import Services
from weir.errors import WeirError
from weir.formats.codec import from_json
from weir.formats.manifest import RELEASED_NOTE, Manifest
from weir.formats.paths import MANIFEST
from weir.ledger.checkpoints import retained_checkpoints
from weir.ledger.database.tables import AttemptRow, CompactionRow, LeaseRow, ResultRow, RunRow
from weir_dev.stack.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(4500)]

DAG = "flight_history"
FIRST = dt.date(2013, 1, 1)
DAYS = [FIRST + dt.timedelta(days=number) for number in range(35)]
SEED = 35
HEARTBEAT_TIMEOUT = 15
OTHER_COMPONENTS = {"api-server", "dag-processor", "triggerer"}
STATES, SINKS, BETWEEN = {"history", "days"}, {"seen", "rolling_delays"}, {"departures", "route_days"}


class Flights(LadderStack):
    """The DAG on its stack, of which faults see the two newest runs alone."""

    def runs(self):
        return super().runs()[-2:]

    def closed(self):
        """How many runs are closed."""
        with self.ledger.transaction() as session:
            return session.query(RunRow).filter(RunRow.dataflow == DAG, RunRow.closed_at.is_not(None)).count()

    def leased_by_killed(self):
        """The number of runs of whose state a lease is held by an attempt that has ended."""
        with self.ledger.transaction() as session:
            query = session.query(ResultRow.run).join(LeaseRow, LeaseRow.result == ResultRow.id)
            ended = query.join(AttemptRow, AttemptRow.id == LeaseRow.holder).filter(AttemptRow.ended_at.is_not(None))
            return ended.filter(ResultRow.stage.in_(STATES)).distinct().count()

    @property
    def folder_of_store(self):
        return Path(self.stack.store_url.removeprefix("file://"))


class LoseNewState:
    """A file of state that a run has written itself is gone, and the tasks that wrote it are cleared."""

    name = "state"

    def inject(self, field, chance):
        found = [
            (run, result, file)
            for run in field.runs()
            for result in run.results
            if result.partition.stage in STATES
            for file in from_json(Manifest, field.store.read(f"{result.folder}/{MANIFEST}")).state.files
            if file.epoch == run.epoch
        ]
        if not found:
            return None
        run, result, file = chance.choice(found)
        (field.folder_of_store / file.path).unlink(missing_ok=True)
        region = run.state.topology.logical_region_of(result.partition.stage)
        writers = [run.tasks[each] for each in region.ids()]
        what = f"a file of {result.partition} of {day_of(run.epoch)} is lost; its writers are cleared"
        return Injection(what, lambda: field.deliver(writers, NOTE))


def faults():
    """Those of tasks, data, the scheduler and Spark; an input cannot change here, since it is a file of a package."""
    known = {fault.name: fault for fault in known_faults(HEARTBEAT_TIMEOUT, 0, None)} | {"state": LoseNewState()}
    return [fault for name, fault in known.items() if name not in {"input", "zombie", *OTHER_COMPONENTS}]


@dataclass(frozen=True)
class AtRest:
    """What is in the store after so many runs and faults: epochs with data, bytes by stage, and bytes of the rest.

    `leased` are the runs whose state a killed attempt has read: its lease holds that for an hour.
    """

    closed: int
    faults: int
    leased: int
    epochs: dict[str, int]
    size: dict[str, int]
    records: int


def at_rest(flights, faults=0):
    epochs, size, records = {}, Counter(), 0
    for file in flights.folder_of_store.rglob("*"):
        parts = file.relative_to(flights.folder_of_store).parts
        try:
            bytes_of_file = file.stat().st_size if file.is_file() else None
        except FileNotFoundError:
            continue
        if bytes_of_file is None:
            continue
        if parts[0] != DAG or parts[2].startswith("_") or len(parts) < 7 or parts[-1] in {MANIFEST, RELEASED_NOTE}:
            records += bytes_of_file
        else:
            epochs.setdefault(parts[2], set()).add(parts[1])
            size[parts[2]] += bytes_of_file
    counts = {stage: len(found) for stage, found in epochs.items()}
    return AtRest(flights.closed(), faults, flights.leased_by_killed(), counts, dict(size), records)


class CatchUp:
    """All days, with the faults of the seed; what was injected, and what was in the store after each day."""

    def __init__(self, flights):
        self.flights, self.injected, self.samples = flights, [], []
        self._open, self._plan = [], planned_faults(SEED, faults())
        self._next = next(self._plan)

    def run(self, patience):
        began, settled = time.monotonic(), 0
        while settled < 2:
            assert time.monotonic() < began + patience, self._left()
            self._open = [each for each in self._open if not each.is_over()]
            closed = self.flights.closed()
            if not self.samples or closed > self.samples[-1].closed:
                self.samples.append(at_rest(self.flights, len(self.injected)))
                print(f"{time.monotonic() - began:5.0f} s {self.samples[-1]}", flush=True)
            if 3 * len(self.injected) < closed < len(DAYS) - 1:
                self._strike()
            settled = 0 if self._left() else settled + 1
            time.sleep(1)

    def undo(self):
        for each in self._open:
            each.undo()

    def _strike(self):
        try:
            injection = self._next.fault.inject(self.flights, self._next.chance)
        except (WeirError, OSError):
            return  # another fault keeps this one from finding a target
        if injection is not None:
            print(f"fault {len(self.injected) + 1} {self._next.fault.name}: {injection.what}", flush=True)
            self.injected.append(self._next.fault.name)
            self._open.append(injection)
            self._next = next(self._plan)

    def _left(self):
        """Why it is not over yet."""
        try:
            failed = [run for run in self.flights.api.runs(DAG) if run.state == "failed"]
            assert not failed, (failed, self._notes())
            return unsettled(self.flights, DAG, DAYS) or ["a fault is not over"] * len(self._open)
        except WeirError as error:
            return [str(error)]

    def _notes(self):
        return [(str(each), each.note) for each in self.flights.api.task_instances(DAG) if each.state == "failed"]


@pytest.fixture(scope="module")
def catch_up(stack_request, tmp_path_factory):
    """The days when all are green."""
    environment = {
        "WEIR_FLIGHTS_LAST_DAY": DAYS[-1].isoformat(),
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(HEARTBEAT_TIMEOUT),
    }
    with Stack(stack_request(environment=environment)) as stack:
        flights = Flights(stack, tmp_path_factory.mktemp("control") / "control.json", DAG, "rolling_delays")
        flights.wait(lambda: flights.api.has_dag(DAG), "the DAG")
        flights.api.unpause(DAG)
        days = CatchUp(flights)
        try:
            days.run(patience=4200)
        finally:
            days.undo()
        yield days
        flights.close()


@pytest.fixture
def services(catch_up):
    return Services(ledger=catch_up.flights.ledger, store=catch_up.flights.store)


def test_faults_of_many_kinds_were_injected(catch_up):
    assert len(set(catch_up.injected)) >= len(DAYS) // 3


def test_each_day_publishes_what_pandas_computes_of_all_days(services):
    for day in DAYS:
        with weir.open(DAG, day, "rolling_delays", services=services) as rolling:
            assert sorted(rolling.arrow().to_pylist(), key=_route) == expected_rolling(day), day
        known = {row["tailnum"]: row for row in expected_history(day)}
        with weir.open(DAG, day, "seen", services=services) as seen:
            rows = seen.arrow().to_pylist()
        assert len(rows) > 300, day
        assert rows == [known[row["tailnum"]] for row in rows], day


def test_the_states_of_the_last_day_are_those_of_all_days_at_once(services):
    with weir.open(DAG, DAYS[-1], state="history", services=services) as history:
        assert sorted(history.arrow().to_pylist(), key=_tailnum) == expected_history(DAYS[-1])
    with weir.open(DAG, DAYS[-1], state="days", services=services) as days:
        assert {row["day"] for row in days.arrow().to_pylist()} == set(DAYS[-7:])


@pytest.mark.parametrize("sink", sorted(SINKS))
def test_ledger_and_store_are_sound(catch_up, sink):
    field = LadderStack(catch_up.flights.stack, catch_up.flights.control, DAG, sink)
    assert broken_invariants(field) == []
    field.close()


def test_state_was_compacted_and_three_checkpoints_are_kept(catch_up):
    with catch_up.flights.ledger.transaction() as session:
        assert "history" in {row.state for row in session.query(CompactionRow)}
        assert [day_of(row.epoch) for row in retained_checkpoints(session, DAG)] == [str(day) for day in DAYS[-3:]]


def test_what_is_at_rest_is_bounded_while_days_go_by(catch_up):
    """Results between regions: of two closed runs, those at work, and for an hour of each run that a fault has hit.

    Days of routes: those that count in one of the three newest checkpoints, and of the runs at work, and in states
    that a killed attempt has read.
    """
    for sample in catch_up.samples:
        between = {stage: sample.epochs.get(stage, 0) for stage in BETWEEN}
        assert max(between.values()) <= 2 + 4 + sample.faults, sample
        assert sample.epochs.get("days", 0) <= 7 + 2 + 4 + 7 * sample.leased, sample


def test_at_the_end_only_what_the_policies_keep_is_at_rest(catch_up):
    flights = catch_up.flights
    flights.let_pass(dt.timedelta(hours=2))
    flights.wait(lambda: set(at_rest(flights).epochs.items()) >= {(stage, 2) for stage in BETWEEN}, "releases")
    found = at_rest(flights)
    assert {sink: found.epochs[sink] for sink in SINKS} == dict.fromkeys(SINKS, len(DAYS))
    newest = [result for result in flights.runs()[-1].results if result.partition.stage in STATES]
    for state in STATES:
        folders = [result.folder for result in newest if result.partition.stage == state]
        manifests = [from_json(Manifest, flights.store.read(f"{folder}/{MANIFEST}")) for folder in folders]
        assert found.size[state] < 3 * sum(file.file.bytes for each in manifests for file in each.state.files), state


def _route(row):
    return row["origin"], row["dest"]


def _tailnum(row):
    return row["tailnum"]
