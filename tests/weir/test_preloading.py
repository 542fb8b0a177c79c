"""The scheduler imports what its tasks will, and Airflow's other processes do not."""

import subprocess
import sys

import pytest

SAYS = """
import sys
sys.argv = ["airflow", sys.argv[1]]
from weir.preloading import MODULES, preload
preload()
print(sum(name in sys.modules for name in MODULES), len(MODULES), "airflow" in sys.modules)
if sys.argv[1] == "scheduler":
    before = set(sys.modules)
    import weir_airflow.tasks.running, weir_airflow.recovery.failing
    print(*(name for name in set(sys.modules) - before if name.split(".")[0] in {"weir", "weir_spark"}))
"""


@pytest.mark.parametrize(("component", "imports"), [("scheduler", True), ("dag-processor", True), ("dags", False)])
def test_what_tasks_import_is_imported_where_they_are_forked(component, imports):
    run = subprocess.run([sys.executable, "-c", SAYS, component], check=True, capture_output=True, text=True)
    there, wanted, has_airflow, *left = run.stdout.split()
    assert (int(there) == int(wanted)) is imports
    assert has_airflow == "False"
    assert left == []  # what a task would import of Weir all the same
