"""Operators for DAGs of one's own, in Airflow's `dag.test()`, on a real ledger and store of days with state."""

from __future__ import annotations

import json

import pytest
from tests.messages.kinds import of_kind
from tests.weir.restoring import EPOCHS, lineage_of, rows_of, spoil, states_of, two_saved_days

from weir.errors import Misconfigured
from weir.ledger.database.tables import PendingClearRow
from weir.snapshots.savepoint import savepoints

DAGS = """
from datetime import UTC, datetime
from airflow.sdk import DAG
from weir_airflow import WeirRestoreOperator, WeirSavepointOperator, WeirVerifyOperator

with DAG("nightly", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), params={"name": "mine"}):
    save = WeirSavepointOperator(
        task_id="save", dataflow="ladder", checkpoint="{{ params.checkpoint }}", name="{{ params.name }}"
    )
    restore = WeirRestoreOperator(
        task_id="restore", dataflow="ladder", snapshot="{{ ti.xcom_pull(task_ids='save')['number'] }}"
    )
    save >> restore >> WeirVerifyOperator(task_id="verify", dataflow="{{ params.verified }}", repair=True)
"""


@pytest.fixture(scope="module")
def two_days():
    with two_saved_days() as saved:
        yield saved


@pytest.fixture
def days(two_days, tmp_path, airflow_home, monkeypatch):
    monkeypatch.setenv("WEIR_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.setenv("AIRFLOW_CONN_WEIR_API", json.dumps({"conn_type": "weir-db"}))
    return two_days.go_on(tmp_path)


@pytest.fixture(scope="module")
def nightly(enter_dags):
    file, bag = enter_dags("nightly.py", DAGS)
    yield bag.dags["nightly"]
    file.unlink()
    from airflow.api.common.delete_dag import delete_dag

    delete_dag("nightly")  # other tests look at all DAGs


def executed(dag, **conf):
    """The states of the tasks of a run, and what they have returned."""
    run = dag.test(run_conf={"checkpoint": "", "verified": "", **conf})
    tis = {ti.task_id: ti for ti in run.get_task_instances()}
    found = {name: ti.xcom_pull(task_ids=name) for name, ti in tis.items() if ti.state == "success"}
    return {name: str(ti.state) for name, ti in tis.items()}, found


def test_a_schedule_saves_restores_and_verifies(nightly, days):
    spoil(days, 1)
    right, lineage = states_of(days, 1), lineage_of(days)
    states, found = executed(nightly, checkpoint="3", verified="ladder")
    assert states == {"save": "success", "restore": "success", "verify": "success"}
    (made,) = savepoints(days.services, "ladder")
    assert (made.name, found["save"]["number"], found["save"]["folder"]) == ("mine", made.number, made.folder)
    assert (found["restore"]["epoch"], found["restore"]["lineage"]) == (made.epoch, lineage + 1)
    assert found["verify"]["runs"] == 2
    assert set(found["verify"]["results"]) == {"whole"}
    assert states_of(days, 1) == right


@pytest.mark.parametrize(
    ("conf", "failed"),
    [({"checkpoint": "9"}, "save"), ({"checkpoint": "x"}, "save"), ({"verified": "laddr"}, "verify")],
)
def test_what_is_asked_in_vain_fails_its_task_and_changes_nothing(nightly, days, conf, failed):
    before = states_of(days, 2)
    states, _ = executed(nightly, **conf)
    assert states[failed] == "failed"
    assert states_of(days, 2) == before


def test_bad_results_fail_the_task_for_good_and_are_recomputed_if_that_is_asked(days):
    from airflow.sdk.exceptions import AirflowFailException

    from weir_airflow.tasks.maintenance import verify

    (row, *_) = rows_of(days, 2)
    file = next((days.folder / "store" / row.folder).glob("*.parquet"), None) or next(
        (days.folder / "store" / row.folder).iterdir()
    )
    file.unlink()
    said = []
    with pytest.raises(AirflowFailException, check=of_kind("tasks.verification_failed")):
        verify("ladder", said.append, repairs=True)
    assert any(row.attempt in line for line in said)
    with days.ledger.transaction() as session:
        assert {clear.run for clear in session.query(PendingClearRow)} == {f"ladder@{EPOCHS[1]}"}


def test_tries_of_a_task_have_a_key_in_common_that_no_other_task_has(days):
    from types import SimpleNamespace

    from weir_airflow.tasks.maintenance import create_savepoint, key_of

    def ti(**more):
        return SimpleNamespace(
            **{"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, "try_number": 1, **more}
        )

    made = create_savepoint("ladder", None, None, None, key_of(ti(), "ladder", None), print)
    assert create_savepoint("ladder", None, None, None, key_of(ti(try_number=2), "ladder", None), print) == made
    others = [ti(run_id="r2"), ti(map_index=0), ti(task_id="t2"), ti(dag_id="d2")]
    assert len({key_of(each, "ladder", None) for each in [ti(), *others]}) == len(others) + 1
    assert key_of(ti(), "ladder", 3) != key_of(ti(), "ladder", None)
    with pytest.raises(Misconfigured, check=of_kind("tasks.checkpoint_malformed", checkpoint="newest")):
        create_savepoint("ladder", "newest", None, None, "key", print)
