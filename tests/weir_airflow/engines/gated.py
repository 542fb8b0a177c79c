"""Source text of a pipeline whose rows wait at a gate until a test opens it."""

GATED = """
import time, uuid
from pathlib import Path

from pyspark.sql import functions as F
from pyspark.sql.types import LongType


def through_a_gate(folder):
    @F.udf(LongType())
    def through(number):
        if not Path(folder, "open").exists():
            Path(folder, f"at the gate {uuid.uuid4()}").touch()
            while not Path(folder, "open").exists():
                time.sleep(0.05)
        return 3 * number

    return through
"""
