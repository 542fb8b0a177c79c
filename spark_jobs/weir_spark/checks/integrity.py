"""Checks a stored partition against its record, without a suite. Invariant: all rows of all its files are checked.

It is only read. A Spark that does not answer is an error. A file that cannot be read is no violation in a region, where
the read fails, as in a stage; in a check of its own it is a finding.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import StructType

from weir.dataflow.quality import Policy
from weir.dataflow.state_evolution import is_readable
from weir.dataflow.state_schema import fields_of_json
from weir.errors import first_line
from weir.formats.checks import BUILT_IN, CheckReason, CheckReport, CheckToRun, ExpectationResult
from weir.formats.manifest import OF_STORED_ROWS, READ_OPTIONS, ContentDigest, digest_rule, digest_version, is_chain
from weir.formats.region_job import CheckJob, RegionReport, RestoredToCheck
from weir.formats.suite import Expectation, Severity, Suite
from weir.topology.partitions import KEY_GROUP_COLUMN
from weir_spark.checks.gate import Checked, check, line_of, report
from weir_spark.checks.one_aggregation import answers, in_one_line, result_of
from weir_spark.checks.plain_aggregates import Found
from weir_spark.checks.plain_expectations import Rows
from weir_spark.results.digest import VERSIONS, digest_of, quoted
from weir_spark.results.reader import read_files, schema_of, shown, types_of, with_key_groups
from weir_spark.results.writer import key_group
from weir_spark.session import SPARK_ERRORS, Log, active, configure, measured
from weir_spark.state.reader import RANK, StoredState
from weir_spark.state.writer import state_digest

SUITE = Suite(BUILT_IN, "built-in 1")

READABLE = "weir_readable"
"""The built-in check that Spark can read all rows; only its failure is reported."""

_UNREADABLE = re.compile(r"\[(FAILED_READ_FILE|PATH_NOT_FOUND|CANNOT_READ_FILE_FOOTER|PARQUET_)[^\]]*\]")


def check_restored(
    session: SparkSession,
    restored: RestoredToCheck,
    argument: str = "",
    why: CheckReason = CheckReason.RESTORED,
    log: Log = print,
) -> tuple[CheckReport, ...]:
    """Run the built-in checks of a restored partition, then its suites.

    Where the schema is not the recorded one, nothing else is checked, since no row could be read.
    """
    partition = _Restored(session, restored)
    start = time.monotonic()
    results, digest = partition.results()
    about = Checked(
        stage=restored.stage,
        subtask=restored.subtask,
        digest="" if digest is None else str(digest),
        rows=restored.rows if digest is None else digest.rows,
        argument=argument,
        run=restored.run,
        layout=restored.layout.id,
        attempt=restored.attempt,
    )
    built_in = CheckToRun(SUITE, Policy.FAIL, why)
    found = [report(built_in, about, results, time.monotonic() - start)]
    log(line_of(found[0], about))
    if digest is not None:
        found += [check(partition.rows(), each, about, log) for each in restored.checks]
    return tuple(found)


def check_all(job: CheckJob, session: SparkSession, log: Log = print) -> RegionReport:
    """Check all partitions of a job, and return the report."""
    seconds: dict[str, float] = {}
    checks: list[CheckReport] = []
    with active(session), measured(seconds, "check"):
        settings = configure(session, job.spark_conf)
        for each in job.to_check:
            checks += check_partition(session, each, job.why, log)
    return RegionReport(
        attempt=job.attempt, outputs=(), code="", session=settings, metrics=seconds, checks=tuple(checks)
    )


def check_partition(
    session: SparkSession, stored: RestoredToCheck, why: CheckReason, log: Log
) -> tuple[CheckReport, ...]:
    """Check the rows of one partition, in an active session."""
    try:
        return check_restored(session, stored, why=why, log=log)
    except SPARK_ERRORS as error:
        if not _UNREADABLE.search(str(error)):
            raise
        return (_unreadable(stored, why, first_line(error)),)


def _unreadable(stored: RestoredToCheck, why: CheckReason, error: str) -> CheckReport:
    result = ExpectationResult(READABLE, {}, Severity.FAIL, success=False, error=error)
    return CheckReport.built_in(
        stored.stage,
        stored.subtask,
        why,
        stored.digest,
        stored.rows,
        result,
        run=stored.run,
        layout=stored.layout.id,
        attempt=stored.attempt,
    )


@dataclass(slots=True)
class _Restored:
    """One restored partition, and how it is read."""

    session: SparkSession
    restored: RestoredToCheck
    schema: StructType = field(init=False)
    """The recorded columns of the user."""
    stored: StoredState | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.schema = schema_of(self.restored.spark_schema)
        if self.restored.state is not None:
            self.stored = StoredState(self.session, self.restored.state, self.restored.key_groups)

    def rows(self) -> DataFrame:
        """Return the rows that a consumer reads."""
        rows = self._read() if self.stored is None else self.stored.rows()
        return rows.select(*map(quoted, self.schema.fieldNames()))

    def results(self) -> tuple[tuple[ExpectationResult, ...], ContentDigest | None]:
        """Run the built-in checks; return their results, and the digest of the rows."""
        schema = self._schema_as_recorded()
        if not schema.success:
            return (schema,), None
        digest = self._digest()
        found = [schema, *self._counted(digest.rows), *self._digest_as_recorded(digest), *self._keys()]
        return tuple(found), digest

    def _schema_as_recorded(self) -> ExpectationResult:
        expectation = Expectation("weir_schema_as_recorded", {"columns": shown(self._stored_schema())})
        try:
            wrong = self._other_schema()
        except SPARK_ERRORS as error:
            if "CANNOT_MERGE" not in str(error):
                raise
            return result_of(expectation, Found(success=False, observed=in_one_line(error)))
        return result_of(expectation, Found(wrong is None, None if wrong is None else shown(wrong)))

    def _other_schema(self) -> StructType | None:
        """Return the schema of files where it is not the recorded one; None if all are right.

        Files of a state may be of older declarations: a column may be narrower there, or absent.
        """
        if self.restored.state is not None:
            paths = sorted({each.path for each in self.restored.state.files})
            found = (self.session.read.options(**READ_OPTIONS).parquet(path).schema for path in paths)
            return next((each for each in found if not self._is_of_state(each)), None)
        if not self.restored.files:
            return None
        options = {**READ_OPTIONS, "mergeSchema": "true"}
        there = self.session.read.options(**options).parquet(*self.restored.files).schema
        return None if types_of(there) == types_of(self._stored_schema()) else there

    def _is_of_state(self, found: StructType) -> bool:
        recorded, there = (fields_of_json(each.json()) for each in (self._stored_schema(), found))
        own = set(recorded) - set(self.schema.fieldNames())
        keys = self.restored.layout.keys if self.stored is None else self.stored.keys
        is_whole = {*keys, *own} <= set(there)
        return is_whole and all(
            name in recorded and is_readable(each.kind, recorded[name].kind) for name, each in there.items()
        )

    def _counted(self, rows: int) -> list[ExpectationResult]:
        recorded, at_least = self.restored.rows, self.restored.at_least
        is_bound = is_chain(self.restored.digest)  # blind upserts have not counted the rows that they replaced
        wanted = {"at_most" if is_bound else "rows": recorded}
        is_so = rows <= recorded if is_bound else rows == recorded
        found = [result_of(Expectation("weir_rows_as_recorded", wanted), Found(is_so, rows))]
        if at_least is not None:
            expectation = Expectation("weir_rows_never_fewer", {"at_least": at_least})
            found.append(result_of(expectation, Found(rows >= at_least, rows)))
        return found

    def _digest_as_recorded(self, digest: ContentDigest) -> list[ExpectationResult]:
        """Compare the digests; those of another version or another rule cannot be compared."""
        recorded = self.restored.digest
        if digest_version(recorded) != digest.version or digest_rule(recorded) != digest.rule:
            return []
        expectation = Expectation("weir_digest_as_recorded", {"digest": recorded})
        if str(digest) != recorded and str(self._digest()) != str(digest):
            return [result_of(expectation, "it is another one each time that it is computed")]
        return [result_of(expectation, Found(str(digest) == recorded, str(digest)))]

    def _keys(self) -> list[ExpectationResult]:
        layout = self.restored.layout
        if not layout.keys:
            return []
        rows = self._read() if self.stored is None else self.stored.versions()
        kwargs: dict[str, Any] = {"column_list": list(layout.keys)}
        groups = self.restored.key_groups or (0, layout.max_parallelism - 1)
        group, own = F.col(KEY_GROUP_COLUMN), key_group(self.schema, self.restored.stage, layout)
        is_foreign = ~(group.eqNullSafe(own) & F.coalesce(group.between(*groups), F.lit(False)))  # noqa: FBT003
        in_groups = Expectation("weir_keys_in_key_groups", {**kwargs, "key_groups": list(groups)})
        expectations = [Rows(expectation=in_groups, counts=None, violates=is_foreign, mostly=1.0, shown=layout.keys)]
        if self.stored is not None:
            keys = self.stored.keys
            unique = Expectation("weir_keys_unique", {"column_list": list(keys)})
            expectations.append(
                Rows(
                    expectation=unique,
                    counts=None,
                    violates=None,
                    mostly=1.0,
                    shown=keys,
                    unique=(RANK, *keys),
                )
            )
        return answers(rows, expectations)

    def _digest(self) -> ContentDigest:
        if self.stored is not None:
            return state_digest(self.stored)
        recorded = digest_version(self.restored.digest)
        version = recorded if recorded in VERSIONS else OF_STORED_ROWS
        return digest_of(self._read(), self.restored.digest_rule, version)

    def _read(self) -> DataFrame:
        return read_files(self.session, self.restored.files, self._stored_schema())

    def _stored_schema(self) -> StructType:
        """The recorded columns, and Weir's own."""
        if self.stored is not None:
            own = self.stored.stored_schema.fields[len(self.stored.schema.fields) :]
            return StructType([*self.schema.fields, *own])
        return with_key_groups(self.schema) if self.restored.layout.keys else self.schema
