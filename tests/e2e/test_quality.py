"""Bad rows on a running stack: each is caught at its gate, the right tasks run again, and nothing bad is published.

They come with the input, with a copy that is recomputed, with data that is bad however often it is made, and in a file
of state that was restored. The tests of one DAG run in order, those of different DAGs at once (`at_once`).
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from at_once import AtOnce
from ladder import expected_running_totals

from weir.coordination.services import Services
from weir.execution.partition_state import PartitionState
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest
from weir.formats.paths import MANIFEST
from weir.ledger.checkpoints import retained_checkpoints
from weir.ledger.database.tables import AttemptRow, QualityCheckRow, ResultRow
from weir.snapshots.restore import RestoreRequest, restore
from weir.snapshots.savepoint import SavepointRequest, create
from weir.store.catalogue import published

pytestmark = pytest.mark.e2e

SMALL = {"numbers": 1, "doubled": 1, "totals": 2}
GATES = {
    "numbers": {"suite": "ladder_numbers"},
    "totals": {"suite": "ladder_totals", "policy": "backtrack"},
}
KEPT = {"kept": True, "quality": {"history": {"suite": "ladder_totals", "when": "restored"}}}
DAGS = {
    "gated": {"quality": GATES, "parallelism": SMALL, "last_day": "2024-01-01"},
    "origin": {**KEPT, "parallelism": {**SMALL, "totals": 1}, "last_day": "2024-01-02"},
    "returned": {**KEPT, "parallelism": {**SMALL, "totals": 1}, "last_day": "2024-01-03"},
}
AT_ONCE = AtOnce(DAGS, soaks={"origin", "returned"})
FORK = {**DAGS["origin"], "first_day": "2024-01-03", "last_day": "2024-01-03"}
FIRST, SECOND, THIRD, FOURTH = (f"2024-01-0{day}" for day in range(1, 5))


def epoch(day):
    return f"{day.replace('-', '')}T000000Z"


def checks(driver, day):
    """What was checked of a day's results: stage, suite, outcome and why, once each."""
    with driver.ledger.transaction() as session:
        rows = session.query(QualityCheckRow).filter_by(run=f"{driver.dag}@{epoch(day)}").order_by(QualityCheckRow.id)
        return list(dict.fromkeys((row.stage, row.suite, row.outcome, row.why) for row in rows))


def results(driver, day, stage):
    """The results of a stage: state, and whether it is current."""
    with driver.ledger.transaction() as session:
        rows = session.query(ResultRow).filter_by(run=f"{driver.dag}@{epoch(day)}", stage=stage).order_by(ResultRow.id)
        return [(PartitionState(row.state), row.is_current) for row in rows]


def errors(driver, day, region):
    """The errors of a region's attempts, in their order."""
    with driver.ledger.transaction() as session:
        rows = session.query(AttemptRow).filter_by(run=f"{driver.dag}@{epoch(day)}", region=region, subtask=0)
        return [row.error for row in rows.order_by(AttemptRow.try_number) if row.error]


def await_failed(driver, run_id):
    driver.wait(lambda: driver.person.state_of(run_id) == "failed", f"{run_id} to fail")


@AT_ONCE.on("gated")
def test_good_rows_pass_and_what_only_warns_stops_nobody(driver):
    driver.start()
    driver.green()
    passed, warned = ("numbers", "ladder_numbers", "passed", "fresh"), ("totals", "ladder_totals", "warned", "fresh")
    assert checks(driver, FIRST) == [passed, warned]


@AT_ONCE.on("gated")
def test_bad_rows_of_an_input_end_in_quarantine_at_the_first_gate_and_nothing_is_published(driver):
    driver.change_epoch(epoch(SECOND), add=-1000)
    driver.deploy(last_day=SECOND)
    run_id = driver.run(SECOND)
    await_failed(driver, run_id)
    assert driver.tries(run_id)["numbers"] == 1
    assert driver.states(run_id)["doubled"] == "upstream_failed"
    assert set(results(driver, SECOND, "numbers")) == {(PartitionState.QUARANTINED, False)}
    assert published(driver.store, driver.dag, "sums", epoch(SECOND)) is None
    (error,) = errors(driver, SECOND, "numbers")
    assert "expect_column_values_to_be_between(number): 100 of 100 rows" in error
    driver.change_epoch(epoch(SECOND), add=0)
    driver.person.clear_run(run_id)
    driver.green()


@AT_ONCE.on("gated")
def test_a_bad_copy_is_distrusted_and_made_again_by_its_producer_alone(driver):
    before = driver.green()
    driver.change_epoch(epoch(THIRD), spoil=True)
    driver.hold(f"totals-{epoch(THIRD)}")
    driver.deploy(last_day=THIRD)
    for subtask in (0, 1):
        driver.await_reached(f"totals-{epoch(THIRD)}", subtask)
    driver.change_epoch(epoch(THIRD), spoil=False)
    driver.let_go(f"totals-{epoch(THIRD)}")
    driver.run(THIRD)
    ran = driver.healed(before)
    # Of two subtasks that blame it at once, one may find that the other has done so already.
    totals = {ran[THIRD].pop(f"totals-sums[{subtask}]") for subtask in (0, 1)}
    assert ran == {THIRD: {"numbers": 1, "doubled": 2, "weir_close": 1}}
    assert totals <= {2, 3}
    assert ("totals", "ladder_totals", "failed", "fresh") in checks(driver, THIRD)
    assert checks(driver, THIRD)[-1][2] == "warned"


@AT_ONCE.on("gated", soak=True)
def test_data_that_is_bad_however_often_it_is_made_fails_the_region_at_once(driver):
    driver.green()
    driver.change_epoch(epoch(FOURTH), spoil=True)
    driver.deploy(last_day=FOURTH)
    run_id = driver.run(FOURTH)
    await_failed(driver, run_id)
    assert driver.tries(run_id)["doubled"] == 2
    assert driver.tries(run_id)["totals-sums[0]"] in (2, 3)
    assert "the data is bad, not the copy" in errors(driver, FOURTH, "totals-sums")[-1]
    assert published(driver.store, driver.dag, "sums", epoch(FOURTH)) is None
    driver.change_epoch(epoch(FOURTH), spoil=False)
    driver.person.clear_run(run_id)
    driver.green()


@AT_ONCE.on("origin")
def test_a_restored_state_with_a_changed_row_is_read_by_nobody(driver):
    driver.start()
    driver.run(SECOND)
    driver.green()
    services = Services(ledger=driver.ledger, store=driver.store)
    savepoint = create(services, SavepointRequest(driver.dag, None, None, None))
    restore(services, RestoreRequest(driver.dag, savepoint.name, fork="fork"))
    change_a_row(restored_file(driver))
    fork = driver.beside("fork", **FORK)
    run_id = fork.start(THIRD)
    await_failed(fork, run_id)
    (error,) = errors(fork, THIRD, "totals-sums")
    assert "nothing was restarted" in error
    assert "damaged" in error
    assert results(fork, SECOND, "history") == [(PartitionState.LOST, True)]
    assert published(fork.store, "fork", "sums", epoch(THIRD)) is None
    restore(services, RestoreRequest(driver.dag, savepoint.name, fork="again"))
    again = driver.beside("again", **FORK)
    again.await_green(again.start(THIRD))
    assert again.totals(epoch(THIRD)) == expected_running_totals({}, [epoch(day) for day in (FIRST, SECOND, THIRD)])
    history = [each[1:] for each in checks(again, SECOND) if each[0] == "history"]
    assert history == [("weir", "passed", "restored"), ("ladder_totals", "warned", "restored")]


@AT_ONCE.on("returned")
def test_a_savepoint_of_bad_rows_is_quarantined_when_it_is_restored_and_the_task_says_so(driver):
    """Nobody has checked these rows before: the suite is for what was restored."""
    driver.change_epoch(epoch(SECOND), add=7, spoil=True)  # more than the first day can make up for
    driver.start()
    third = driver.run(THIRD)
    for day in (FIRST, SECOND, THIRD):
        driver.await_green(driver.run(day))
    newest = retained(driver)
    driver.weir("savepoint", "create", driver.dag, "--checkpoint", str(newest[SECOND]), "--name", "bad")
    driver.change_epoch(epoch(SECOND), spoil=False)
    driver.person.clear(driver.run(SECOND), "doubled")
    driver.green()
    driver.weir("savepoint", "create", driver.dag, "--checkpoint", str(retained(driver)[SECOND]), "--name", "good")
    before, right = driver.tries(third), driver.totals(epoch(THIRD))
    driver.weir("restore", driver.dag, "bad")
    driver.await_state(third, "totals-sums", "failed")
    assert driver.again(third, before) == {"totals-sums": 1}
    note = driver.note(third, "totals-sums")
    assert "history[0]" in note
    assert "it was restored from the savepoint" in note
    assert "ladder_totals" in note
    assert "expect_column_values_to_be_between(total)" in note
    assert "Nothing was computed from it: restore another one" in note
    assert results(driver, SECOND, "history")[-1] == (PartitionState.QUARANTINED, True)
    assert checks(driver, SECOND)[-1] == ("history", "ladder_totals", "failed", "restored")
    assert driver.totals(epoch(THIRD)) == right


@AT_ONCE.on("returned")
def test_another_savepoint_that_is_restored_heals_it(driver):
    third = driver.run(THIRD)
    before = driver.tries(third)
    driver.weir("restore", driver.dag, "good")
    driver.person.clear(third, "totals-sums", include_downstream=True)
    driver.green()
    assert driver.again(third, before)["totals-sums"] == 1
    assert checks(driver, SECOND)[-1] == ("history", "ladder_totals", "warned", "restored")


def retained(driver):
    """The numbers of the retained checkpoints, without savepoints, by day."""
    with driver.ledger.transaction() as session:
        rows = [row for row in retained_checkpoints(session, driver.dag) if not row.folder]
        return {f"{row.epoch[:4]}-{row.epoch[4:6]}-{row.epoch[6:8]}": row.number for row in rows}


def restored_file(driver):
    """A file that the fork goes on from, which has rows."""
    with driver.ledger.transaction() as session:
        row = session.query(ResultRow).filter_by(run=f"fork@{epoch(SECOND)}", stage="history", is_current=True).one()
    state = from_json(Manifest, driver.store.read(f"{row.folder}/{MANIFEST}")).state
    return Path(driver.stack.store_url.removeprefix("file://")) / state.files[-1].path


def change_a_row(file):
    """Make one row wrong in a file of the same size, which no comparison of names and sizes can find."""
    size, table = file.stat().st_size, pq.read_table(file)
    place = table.schema.get_field_index("total")
    totals = pc.if_else(pa.array([row == 0 for row in range(table.num_rows)]), 1, table.column(place))
    changed = table.set_column(place, table.schema.field(place), totals)
    small = {"compression": "zstd", "use_dictionary": False, "write_statistics": False, "store_schema": False}
    for padding in range(size):
        buffer = pa.BufferOutputStream()
        with pq.ParquetWriter(buffer, changed.schema, **small) as writer:
            writer.write_table(changed)
            writer.add_key_value_metadata({"padding": "x" * padding})
        data = buffer.getvalue().to_pybytes()
        if len(data) == size:
            file.write_bytes(data)
            return
    raise AssertionError(f"no file of {size} bytes was found for {file}")
