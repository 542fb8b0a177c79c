"""Why a try runs: its first, a retry, a clear by Weir or by a person; drawn histories of a task instance.

Airflow raises `max_tries` at the clear of a task instance that is not running; of a running one it counts the run's
clears only. Whoever has cleared before Weir's own clear was sent is a person.
"""

from datetime import UTC, datetime
from random import Random

import pytest

from weir.execution.failure_class import FailureClass
from weir.execution.run_state import AttemptState
from weir.ledger.attempts import Origin, attempts_of, origin_of
from weir.ledger.database.tables import FailedBeginRow, PendingClearRow, RunRow
from weir.topology.regions import RegionId

RUN = "ladder@20130101T000000Z"
WEATHER = RegionId("weather", 0)
CASES = 200
AT = datetime(2026, 1, 1, tzinfo=UTC)
OPEN = (AttemptState.RUNNING.value, AttemptState.COMMITTED.value, AttemptState.ADOPTED.value)
"""The states of a try whose process Airflow may call running."""
ENDED = [each.value for each in AttemptState if each is not AttemptState.WAITING]


@pytest.fixture
def begun(world):
    """A run of which one task has run."""
    run = world.airflow.dag_run()
    world.airflow.step(world.airflow.task(run, "weather"))
    return world


def clear_of(expected_try, sends):
    names = {
        "dataflow": "ladder",
        "run": RUN,
        "region": "weather",
        "dag_id": "dag",
        "run_id": "r",
        "task_id": "weather",
    }
    return PendingClearRow(
        **names, subtask=0, map_index=-1, expected_try=expected_try, reason="changed", created_at=AT, sends=sends
    )


def failed_begin(row, try_number, failure):
    names = {"dataflow": "ladder", "epoch": "20130101T000000Z", "dag_id": "dag", "task_id": "weather", "error": "no"}
    return FailedBeginRow(**names, run_id=row, map_index=-1, try_number=try_number, failed_at=AT, failure=failure.value)


@pytest.mark.parametrize("seed", range(2))
def test_a_try_is_weirs_only_if_weir_had_cleared_the_last_try_that_is_known(begun, seed):
    random = Random(seed)
    for _ in range(CASES):
        state, max_tries, clear_number = random.choice(ENDED), random.choice([7, 7, 9]), random.choice([0, 0, 1])
        newest = random.choice([1, 2, 3])
        sent = [(random.randrange(1, 6), random.choice([0, 1])) for _ in range(random.choice([0, 1, 1, 2]))]
        failed = random.choice([None, None, newest + 1, newest + 2])
        failure = random.choice([FailureClass.FATAL, FailureClass.ENVIRONMENT])
        has_failed = random.choice([False, True])
        with begun.ledger.transaction("ladder") as session:
            (row,) = attempts_of(session, RUN, WEATHER)
            row.state, row.try_number, row.max_tries, row.clear_number = state, newest, 7, 0
            row.failure = FailureClass.KILLED.value if has_failed else None
            session.add_all(clear_of(*each) for each in sent)
            if failed is not None:
                session.add(failed_begin(run_id_of(session), failed, failure))
            session.flush()
            found = origin_of(session, RUN, WEATHER, [row], (max_tries, clear_number))
            session.rollback()
        was_ended = state in (AttemptState.FENCED.value, AttemptState.RETRYING.value) and not has_failed
        is_open = state in OPEN or was_ended
        last = failed if failed is not None and failure is FailureClass.FATAL else newest
        if max_tries == 7:
            wanted = Origin.CLEARED_BY_PERSON if is_open and clear_number else Origin.RETRY
        else:
            is_weirs = any(expected >= last and sends for expected, sends in sent)
            wanted = Origin.CLEARED_BY_WEIR if is_weirs else Origin.CLEARED_BY_PERSON
        assert found is wanted, (state, newest, max_tries, clear_number, sent, failed, failure)


def test_a_task_instance_without_tries_is_at_its_first(begun):
    with begun.ledger.transaction() as session:
        assert origin_of(session, RUN, RegionId("joined", 0), [], (0, 0)) is Origin.FIRST


def run_id_of(session):
    return session.get_one(RunRow, RUN).run_id
