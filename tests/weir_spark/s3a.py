"""What Spark needs to read and write an S3 of the tests: the connector's jars, and an account by its environment.

Invariant: the version of the connector is that of Spark's Hadoop client.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.java import installed_jars
from tests.servers.spark import TestServer, running_server

BUCKET = "lake"

SECRET = "hush-hush-of-spark"
"""The secret key of Spark's account, which has to be nowhere else."""


def settings() -> dict[str, str]:
    """Return the settings with which Spark has the S3A connector. Raises JarsMissing."""
    jars = sorted(installed_jars("hadoop-aws").iterdir())
    return {"spark.jars": ",".join(map(str, jars)), "spark.hadoop.fs.s3a.path.style.access": "true"}


def variables(endpoint: str) -> dict[str, str]:
    """Return the environment by which Amazon's libraries, Weir and Spark's driver reach an S3."""
    return {
        "AWS_ACCESS_KEY_ID": "weir-of-spark",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
    }


@contextmanager
def server_on_s3(folder: Path, endpoint: str) -> Iterator[TestServer]:
    """Start a Connect server that reaches an S3. Raises JarsMissing."""
    with running_server(folder, more_settings=settings(), variables=variables(endpoint)) as started:
        yield started
