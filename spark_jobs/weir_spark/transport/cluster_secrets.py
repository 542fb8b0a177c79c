"""What a driver in a YARN cluster is told in secret: by a file that it deletes at once, or by a credential provider.

Invariant: nothing of it gets into a setting, an argument, an environment or a file.
"""

from __future__ import annotations

import json
from typing import Any

from weir.errors import Message, Misconfigured, Retryable


def read_and_delete(url: str) -> dict[str, str]:
    """Return what the task has written for this driver alone, by variable, and delete the file. Raises Retryable."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415  only where a JVM is

    jvm, settings = _jvm(), _settings()
    try:
        path = jvm.org.apache.hadoop.fs.Path(url)
        files = path.getFileSystem(settings)
        stream = files.open(path)
        try:
            text = str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
        files.delete(path, False)  # noqa: FBT003  Java has no names of arguments: not recursive
    except Py4JJavaError as error:
        raise Retryable(Message("transport.secrets_unreadable", url=url, error=error.java_exception)) from error
    found: dict[str, str] = json.loads(text)
    return found


def of_provider(name: str) -> str | None:
    """Return what the credential providers of Hadoop's settings have under a name in lower case; None if nothing."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415  only where a JVM is

    try:
        found = _settings().getPasswordFromCredentialProviders(name.lower())
    except Py4JJavaError as error:
        raise Misconfigured(Message("transport.provider_unusable", name=name, error=error.java_exception)) from error
    return None if found is None else "".join(found)


def _settings() -> Any:
    """Return Hadoop's settings as Spark sees them."""
    jvm = _jvm()
    return jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(jvm.org.apache.spark.SparkConf())


def _jvm() -> Any:
    """Return the JVM that has started this process: that of spark-submit, or of YARN's ApplicationMaster."""
    from pyspark import SparkContext  # noqa: PLC0415

    SparkContext._ensure_initialized()  # noqa: SLF001  a context would take its settings before the job is known
    return SparkContext._jvm  # noqa: SLF001
