"""The handles of list state and of broadcast state. Invariant: state that a stage does not update is kept as it was.

Both are plain results of the state's own stage: a small file a subtask, written whole in each epoch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

from weir.dataflow.state import LIST_SCHEMA, State
from weir.errors import Misconfigured
from weir.formats.region_job import InputToRead, OutputReport, OutputToWrite
from weir.state.operator_state import assigned_elements, own_elements
from weir.store.store import Store
from weir_spark.results import writer
from weir_spark.results.digest import quoted
from weir_spark.results.reader import read_input
from weir_spark.state.reader import require_type

_OF = "_weir_of"


@dataclass(slots=True, kw_only=True)
class ListState:
    """A list of JSON values that a stage keeps from epoch to epoch, as Flink's operator state.

    A split list gives each subtask its own elements, also after a change of parallelism, when they are divided anew. A
    union list gives each all elements; those that it adds or leaves are its own.
    """

    state: State
    session: SparkSession
    given_as: InputToRead
    subtask: int
    parallelism: int
    _lists: list[list[str]] | None = None
    _own: list[str] | None = None

    def get(self) -> list[Any]:
        """The elements that the epoch before has left to this subtask: JSON's values, tuples come back as lists."""
        elements = assigned_elements(self.state.kind, self._read(), self.parallelism, self.subtask)
        return [json.loads(element) for element in elements]

    def update(self, elements: Iterable[Any]) -> None:
        """Make these the elements of this subtask, instead of those that it had."""
        self._own = [_json(element, self.state.name) for element in elements]

    def add(self, *elements: Any) -> None:
        """Add elements to those of this subtask."""
        self._own = [*self.kept(), *(_json(element, self.state.name) for element in elements)]

    def clear(self) -> None:
        """Let this subtask have no elements."""
        self._own = []

    def kept(self) -> list[str]:
        """The JSON of the elements that this subtask leaves to the next epoch."""
        if self._own is None:
            self._own = list(own_elements(self._read(), self.parallelism, self.subtask))
        return self._own

    def rows(self) -> DataFrame:
        """Return the rows to write."""
        rows = [(position, element) for position, element in enumerate(self.kept())]
        return self.session.createDataFrame(rows, LIST_SCHEMA)

    def _read(self) -> Sequence[Sequence[str]]:
        """Return the lists of all subtasks of the epoch before, read in one query."""
        if self._lists is None:
            numbers = _numbers(self.given_as)
            parts = [
                read_input(self.session, _only(self.given_as, each)).withColumn(_OF, F.lit(each)) for each in numbers
            ]
            rows = (
                sorted(reduce(DataFrame.unionByName, parts).collect(), key=lambda row: row["position"]) if parts else []
            )
            self._lists = [[row["element"] for row in rows if row[_OF] == each] for each in numbers]
        return self._lists


@dataclass(slots=True)
class BroadcastState:
    """Rows that are the same in every subtask of a stage, from epoch to epoch."""

    state: State
    session: SparkSession
    given_as: InputToRead
    _rows: list[DataFrame] = field(default_factory=list)

    def read(self) -> DataFrame:
        """The rows that the epoch before has left; the columns of the schema."""
        numbers = _numbers(self.given_as)
        return read_input(self.session, _only(self.given_as, numbers[0]) if numbers else self.given_as)

    def update(self, rows: DataFrame) -> None:
        """Make these the rows, in all subtasks: each must come to the same ones, or the run is not closed.

        So they must come from what all subtasks read alike. `rows` has the columns of the schema.
        """
        declared = self.session.createDataFrame([], self.state.schema).schema
        types = {field.name: field.dataType for field in rows.schema.fields}
        for column in declared.fields:
            if column.name not in types:
                raise Misconfigured.of(
                    "state.list_column_missing",
                    state=self.state.name,
                    columns=declared.fieldNames(),
                    column=column.name,
                    types=types,
                )
            require_type(self.state.name, column, types[column.name])
        self._rows = [rows.select(*[F.col(quoted(name)) for name in declared.fieldNames()])]

    def fix(self, plan: Callable[[DataFrame], DataFrame]) -> None:
        """Plan the rows to write once and for all, before the names are dropped that the function has made."""
        self._rows = [plan(rows) for rows in self._rows]

    def rows(self) -> DataFrame:
        """Return the rows to write."""
        return self._rows[0] if self._rows else self.read()


def write_operator_state(
    handle: ListState | BroadcastState, name: str, output: OutputToWrite, store: Store
) -> OutputReport:
    """Write what a subtask leaves to the next epoch into the output's folder, which must not exist."""
    rows = handle.rows().coalesce(1)
    writer.check_rows(rows, name, [output.layout])
    return writer.report(writer.write(rows, name, output), name, output, store)


def _numbers(read: InputToRead) -> list[int]:
    return sorted(each.subtask for each in read.partitions)


def _only(read: InputToRead, subtask: int) -> InputToRead:
    return replace(read, partitions=tuple(each for each in read.partitions if each.subtask == subtask))


def _json(element: Any, name: str) -> str:
    """Return the canonical JSON of a value. Raises Misconfigured for a value that JSON does not preserve."""
    try:
        text = json.dumps(element, sort_keys=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise Misconfigured.of("state.element_not_json", name=name, element=element, error=error) from (error)
    if json.loads(text) != _with_lists(element):
        raise Misconfigured.of("state.element_changes", name=name, element=element, text=text)
    return text


def _with_lists(element: Any) -> Any:
    if isinstance(element, list | tuple):
        return [_with_lists(each) for each in element]
    if isinstance(element, dict):
        return {key: _with_lists(value) for key, value in element.items()}
    return element
