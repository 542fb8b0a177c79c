"""What touches Airflow's database does on PostgreSQL what it does on SQLite.

Airflow takes its database when it is imported, so these tests are run by a process of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
DATABASE_FREE = {"AIRFLOW_HOME", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"}


def test_comparing_clearing_and_looking_pass_their_tests_on_postgresql(postgres):
    """With real row locks: of several that clear the same at once one clears."""
    environment = {key: value for key, value in os.environ.items() if key not in DATABASE_FREE}
    environment["WEIR_TESTS_AIRFLOW_DATABASE"] = postgres.url("airflow_of_tests")
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(HERE / "test_compare_and_clear.py"), str(HERE / "test_clearing.py")],
        env=environment,
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-5000:] + found.stderr[-2000:]
    with postgres.connect("airflow_of_tests") as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM log WHERE event = 'weir_clear'").scalar() > 10
    postgres.drop_database("airflow_of_tests")
