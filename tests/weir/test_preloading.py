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
"""


@pytest.mark.parametrize(("component", "imports"), [("scheduler", True), ("dag-processor", True), ("dags", False)])
def test_what_tasks_import_is_imported_where_they_are_forked(component, imports):
    run = subprocess.run([sys.executable, "-c", SAYS, component], check=True, capture_output=True, text=True)
    there, wanted, has_airflow = run.stdout.split()
    assert (int(there) == int(wanted)) is imports
    assert has_airflow == "False"
