"""What programs with Spark are asked, and what they answer: digests and comparisons of rows, queries, trials.

Invariant: requests and answers are JSON (`weir.typed_json`); equal values give equal bytes, and another version is
refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from weir.dataflow.digest_rule import PLAIN_RULE, DigestRule
from weir.formats.region_job import RegionJob, RegionReport, StateToRead
from weir.typed_json import typed

PROBLEM: Final = "query_state: "
"""The prefix of the own error of the program that queries states, among the output of Spark."""

FORMATS: Final = {"parquet": "parquet", "csv": "csv", "json": "json", "jsonl": "json", "ndjson": "json"}
"""Spark's name of the format of a sample, by the end of its files' names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultToCheck:
    """A result, identified by `number`: its files as Spark URLs, its columns, and its digest rule.

    `is_keyed` means that the files have Weir's key-group column after those of `spark_schema`. `expected` is the
    recorded digest. Of a partition of keyed state it is that of all visible rows, of all attempts: `state` has the
    files, and `files` is empty.
    """

    number: int
    name: str
    files: tuple[str, ...]
    spark_schema: str
    is_keyed: bool
    expected: str
    rule: DigestRule = PLAIN_RULE
    state: StateToRead | None = None


@dataclass(frozen=True, slots=True)
class ContentAnswer:
    """The digest of the rows of a result, or the error."""

    number: int
    digest: str | None = None
    error: str = ""

    def to_json(self) -> str:
        """Encode the answer as one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)


def answer_from_json(line: str) -> ContentAnswer | None:
    """Parse a line of the program's output; None for a line that is not an answer."""
    try:
        return typed("answer", ContentAnswer, json.loads(line))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsToCompare:
    """The rows of a result, of all its subtasks: their files as Spark URLs, and their columns; of keyed state `state`.

    `columns` are those to compare, in the order of those of the other result that they are compared with.
    """

    files: tuple[str, ...]
    spark_schema: str
    columns: tuple[str, ...]
    state: StateToRead | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonToMake:
    """Compare the rows of two results, by a key: some of the columns, as `a` spells them.

    The first of `keys` that no two rows of a result have in common is the key; none is, if there is no such one. With
    `is_key_named` the only one is the key in any case. A column counts as `rule` says. `shown` is how many differing
    rows are answered, at most.
    """

    a: RowsToCompare
    b: RowsToCompare
    keys: tuple[tuple[str, ...], ...]
    is_key_named: bool
    rule: DigestRule
    shown: int


@dataclass(frozen=True, slots=True)
class RepeatedKey:
    """A key that is not unique: how many of its values several rows of `a` have in common, and how many of `b`."""

    key: tuple[str, ...]
    a: int
    b: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsCompared:
    """How many rows are compared, in one result only, or changed: the two of a key differ; `columns` says in what.

    `columns` has how many changed rows differ in a column that is not of the key. Without a `key`, and for a value of
    it that several rows of a result have in common, rows are equal or not, and none is changed.
    """

    key: tuple[str, ...] | None
    repeated: tuple[RepeatedKey, ...]
    rows_a: int
    rows_b: int
    only_a: int
    only_b: int
    changed: int
    columns: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ComparisonAnswer:
    """What a comparison has found, or the error. The differing rows are in a file beside it."""

    compared: RowsCompared | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class StateQuery:
    """A query in Spark SQL, the states that it reads as views of their names, and the maximal number of rows."""

    query: str
    states: Mapping[str, StateToRead]
    limit: int | None


@dataclass(frozen=True, slots=True)
class Sample:
    """The rows of an input, by its argument: a file or folder, as an absolute path, in one of Spark's formats."""

    argument: str
    path: str
    format: str


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """Compute a stage: a job for each subtask, the samples of its inputs, and how many rows to show."""

    stage: str
    jobs: tuple[RegionJob, ...]
    samples: tuple[Sample, ...]
    shown: int


@dataclass(frozen=True, slots=True)
class TrialAnswer:
    """The reports of the jobs, in their order; or the error of one, with the traceback of the stage's own code.

    The rows of the stage lie where the reports name them, in the store that the jobs name.
    """

    reports: tuple[RegionReport, ...] = ()
    error: str = ""
    traceback: str = ""
