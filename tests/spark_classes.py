"""Spark's classes as a JVM has them once they are loaded, in a file: JVMs that tests start by the dozen read that.

Invariant: a file that is there is whole. A JVM takes none that another Java or other jars have made.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

_SECONDS = 300.0
SILENT = "-Xlog:disable"
"""What a JVM says of a file that it does not take would be on the standard output, where programs read answers."""


def options(file: Path) -> str:
    """What a JVM has to be told to read such a file; one that is not there changes nothing."""
    return f'"-XX:SharedArchiveFile={file}" {SILENT}'


def record_meanwhile(file: Path, java_options: str) -> None:
    """Start a process that makes the file, if it is not there; a JVM that starts before it is whole does without."""
    if not file.exists():
        program = "import sys; from tests import spark_classes; spark_classes.main(*sys.argv[1:])"
        command = [sys.executable, "-c", program, str(file), java_options]
        subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main(file: str, java_options: str) -> None:
    """Make the file in this process."""
    record(Path(file), java_options)


def record(file: Path, java_options: str) -> None:
    """Make the file, if it is not there: by the JVM of a server that is used a little, at its end."""
    if file.exists():
        return
    from tests.servers.spark import running_server

    file.parent.mkdir(parents=True, exist_ok=True)
    begun = file.with_suffix(f".{os.getpid()}")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv("JDK_JAVA_OPTIONS", f'{java_options} "-XX:ArchiveClassesAtExit={begun}" {SILENT}')
        with running_server(Path(folder)) as server:
            _use(server.url, Path(folder))
            begun.unlink(missing_ok=True)  # of the JVM that has made out the command line
            server.send(signal.SIGTERM)
            deadline = time.monotonic() + _SECONDS
            while server.leader.is_alive() and time.monotonic() < deadline:
                time.sleep(0.1)
            is_whole = not server.leader.is_alive()
    if is_whole and begun.exists():
        begun.rename(file)
    begun.unlink(missing_ok=True)


def _use(url: str, folder: Path) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812

    session = SparkSession.builder.remote(url).create()
    session.conf.set("spark.sql.parquet.compression.codec", "zstd")
    numbers = session.range(0, 1000, 1, 2)
    rows = numbers.select("id", (F.col("id") % 7).alias("k"), F.col("id").cast("string").alias("s"))
    rows.select("*", F.udf(lambda x: 2 * x, "long")("id").alias("twice")).write.parquet(f"{folder}/rows")
    read = session.read.schema("id BIGINT, k BIGINT, s STRING, twice BIGINT").parquet(f"{folder}/rows")
    read.repartition(4, "k").sortWithinPartitions("k", "id").write.partitionBy("k").parquet(f"{folder}/keys")
    sums = read.groupBy("k").agg(F.sum("twice").alias("n"), F.max("s"), F.xxhash64(F.min("id")))
    read.join(sums, "k", "left").where("n > 3").orderBy("id").limit(5).toArrow()
    made = session.createDataFrame([("a", 1)], "s STRING, id BIGINT")
    made.join(read, "s", "left_anti").collect()
    session.stop()
