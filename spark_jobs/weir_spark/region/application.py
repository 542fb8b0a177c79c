"""The rows that a stage's application reads and writes, as folders of Parquet files of the attempt.

Invariant: an application finds exactly the rows that a function would be given, and nothing of what it writes is read
unless Spark has marked the folder as whole.
"""

from __future__ import annotations

from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from weir.code.application_rules import ApplicationFailed
from weir.errors import Internal, Message
from weir.formats.manifest import READ_OPTIONS
from weir.formats.region_job import SparkJob, StageToRun, application_of, staged_input, staged_output, staging_of
from weir.store.errors import NotFound
from weir.store.store import Store
from weir.store.walk import folders_in
from weir_spark.files.texts import with_texts
from weir_spark.region.sql import READ_FAILED
from weir_spark.results.reader import read_input
from weir_spark.session import Log, configure

_WHOLE: Final = "_SUCCESS"
"""The file that Spark writes last into a folder of Parquet files."""

_UNFINISHED: Final = "_temporary"
"""The folder in which Spark writes files until all of them are there."""


def write_inputs(job: SparkJob, session: SparkSession, store: Store, log: Log) -> None:
    """Write the inputs of a job's application, where it will read them. Raises Misconfigured, and errors of Spark."""
    stage = application_of(job)
    if stage is None:
        raise Internal.of("region.no_application", region=job.region)
    configure(session, job.spark_conf)
    for read in stage.inputs:
        folder = staged_input(staging_of(job, stage), read.argument)
        log(f"writing the input {read.argument} of {stage.name}")
        read_input(session, read).write.parquet(store.spark_url(folder))


def rows_of_application(owner: str, stage: StageToRun, job: SparkJob, session: SparkSession, store: Store) -> DataFrame:
    """Return the rows that an application has written. Raises ApplicationFailed if they are not there or not whole."""
    folder = staged_output(staging_of(job, stage))
    written = f"{owner}: the application {stage.function} ended well, but"
    try:
        store.size(f"{folder}/{_WHOLE}")
    except NotFound as error:
        raise ApplicationFailed(Message("region.output_unfinished", written=written, whole=_WHOLE)) from error
    if _UNFINISHED in folders_in(store, folder):
        raise ApplicationFailed(Message("region.write_unfinished", written=written))
    try:
        rows = session.read.options(**{**READ_OPTIONS, "mergeSchema": "true"}).parquet(store.spark_url(folder))
        schema = rows.schema  # Spark Connect would look for files later
    except AnalysisException as error:
        if error.getCondition() not in READ_FAILED:
            raise
        raise ApplicationFailed(Message("region.output_empty", written=written)) from error
    return with_texts(rows, schema)
