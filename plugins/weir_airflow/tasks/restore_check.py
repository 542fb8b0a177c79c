"""The fire drill as a task does it: checkpoints are restored to a scratch place, and looked at.

Invariant: a task that succeeds has restored what it names; where a check fails, its error is the whole report.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from weir.attempts.steps import read_report, write_job
from weir.errors import Misconfigured
from weir.integrity.restore_test import dataflows_with_checkpoints, run_restore_test
from weir.store.store import Store
from weir_airflow.engines.engines import engine_for
from weir_airflow.tasks.context import Office

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weir.formats.region_job import CheckJob, RegionReport


def dataflows_to_check(params: Mapping[str, Any], tell: Callable[[str], None]) -> list[str]:
    """The dataflows that keep checkpoints, or the one that was asked for."""
    name = params.get("dataflow") or None
    if params.get("checkpoint") and name is None:
        raise Misconfigured(f"whose is {params['checkpoint']}? Name its `dataflow`, too")
    with Office.open() as office:
        found = list(dataflows_with_checkpoints(office.services, name))
    tell(f"Checkpoints are kept by {', '.join(found)}" if found else "No dataflow keeps a checkpoint: nothing is to do")
    return found


def check_restore(dataflow: str, params: Mapping[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    """Restore the newest checkpoint of a dataflow, or the one that was asked for, and check what comes out.

    Raises AirflowFailException with the report if a check fails: another try would find the same.
    """
    wanted = params.get("checkpoint") or None
    with Office.open() as office:
        engine = engine_for(office.spark(params.get("spark_conn_id") or None), office.store, office.store_options)

        def check(job: CheckJob) -> RegionReport:
            write_job(office.store, job)
            try:
                engine.run(job, str(uuid.uuid4()), tell)
            except BaseException:
                engine.stop()  # the task was killed, perhaps
                raise
            return read_report(office.store, job)

        report = run_restore_test(
            office.services, dataflow, None if wanted is None else str(wanted), _opener(office), check
        )
    for line in report.lines():
        tell(line)
    if not report.is_right:
        raise AirflowFailException("\n".join(report.lines()))
    return {"restored": report.source, "checks": len(report.checks), "copied_bytes": report.copied_bytes}


def _opener(office: Office) -> Callable[[str], Store]:
    """Opens another store; of the kind of the usual one it is given the same options."""
    own = office.store.url.partition("://")[0]

    def open_store(url: str) -> Store:
        return Store.open(url, office.store_options if url.partition("://")[0] == own else None)

    return open_store
