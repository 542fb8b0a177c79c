"""A DAG file with its stages in the Airflow of tests, with a store, a ledger and connections of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def deployed(
    airflow_home: Path, folder: Path, server, module: str, stages: str, flows: str, *dag_ids: str, **environ: str
) -> Iterator[None]:
    """Write the module of stages and the DAG file; all of it goes at the end: other tests look at all DAGs.

    Without a server, none is known. `environ` are variables besides those that every such test needs.
    """
    (folder / f"{module}.py").write_text(stages)
    file = airflow_home / "dags" / f"{module}_flows.py"
    file.write_text(flows)
    given = {
        "WEIR_STORE": str(folder / "store"),
        "WEIR_LEDGER": f"sqlite:///{folder}/ledger.db",
        "AIRFLOW_CONN_WEIR_API": json.dumps({"conn_type": "weir-db"}),
        **({"AIRFLOW_CONN_SPARK_CONNECT_WEIR": json.dumps(server.connection)} if server else {}),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (given | environ).items():
            patch.setenv(name, value)
        patch.syspath_prepend(str(folder))
        yield
    file.unlink()
    sys.modules.pop(module, None)
    from airflow.api.common.delete_dag import delete_dag

    for dag_id in dag_ids:
        delete_dag(dag_id)
