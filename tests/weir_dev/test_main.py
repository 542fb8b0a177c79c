import subprocess
import sys

PROGRAM = """
import sys
from weir_dev.main import app
try:
    app(["--help"])
except SystemExit:
    pass
assert not {"airflow", "pyspark", "grpc"} & set(sys.modules)
"""


def test_help_names_the_verbs_of_a_checkout_beside_those_of_the_product_and_imports_no_engine():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert all(verb in done.stdout for verb in ("demo", "up", "down", "status", "chaos", "test", "plan", "verify"))
