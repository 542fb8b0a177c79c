"""Files of a folder as a source. Invariant: all attempts of a run read the listed files, as they were, or fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from weir.dataflow.sources import filled
from weir.errors import Misconfigured, Retryable
from weir_spark.sources.listing import is_local, listed, marks_by_path
from weir_spark.sources.marks import WHERE_CHANGED, unchanged
from weir_spark.sources.parquet import WHOLE, spark_path
from weir_spark.sources.splits import shares

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir.connections import Connections
    from weir.dataflow.stage import ResolveContext
    from weir_spark.region.context import StageContext


_READER: Final[Mapping[str, Mapping[str, str]]] = {
    "parquet": {},
    "csv": {"mode": "FAILFAST", "enforceSchema": "false"},
    "json": {"mode": "FAILFAST"},
}
"""Options unless a source gives others: a line that does not fit the schema is an error, not a row of nulls; nor are
columns taken by their places where a header has other names.
"""


def resolve(ctx: ResolveContext) -> list[dict[str, Any]]:
    """List the files and return each subtask's. Raises Misconfigured where there are none, and Retryable."""
    given = ctx.options
    pattern = filled("files_source", str(given["path"]), *ctx.interval)
    marks = listed(pattern, given.get("conn_id"), ctx.connection)
    if not marks and given["if_empty"] == "fail":
        raise Misconfigured(
            f"no file matches {pattern} ({ctx.epoch}): is the path right, and are the files there when the epoch "
            'begins? A pattern names files, as "/data/*.csv" does. if_empty="empty" reads no rows instead'
        )
    split = {
        "reads": f"{len(marks)} file(s), {sum(each['size'] for each in marks)} bytes, that matched {pattern}",
        "pattern": pattern,
        **{key: given[key] for key in ("format", "schema", "reader", "conn_id") if key in given},
        # A subtask without files has the columns of this one.
        **({"like": marks[0]["path"]} if marks and "schema" not in given else {}),
    }
    divided = shares([(each, each["size"]) for each in marks], ctx.parallelism)
    return [{**split, "files": each} for each in divided]


def read(ctx: StageContext, slice: dict[str, Any]) -> DataFrame:  # noqa: A002  Weir's name of the argument
    """Read the files of a split, each of which is as it was when the run listed it."""
    paths = _unchanged(slice, ctx.connection)
    schema = slice.get("schema")
    if not paths and schema:
        return ctx.spark.createDataFrame([], schema)
    reader = ctx.spark.read.format(slice["format"])
    if schema:
        reader = reader.schema(schema)
    reader = reader.options(**_READER[slice["format"]], **WHOLE).options(**slice.get("reader", {}))
    rows = reader.load([spark_path(each) for each in paths or [slice["like"]]])
    return rows if paths else rows.limit(0)


def _unchanged(split: Mapping[str, Any], connections: Connections) -> list[str]:
    files: Sequence[Mapping[str, Any]] = split["files"]
    if is_local(split["pattern"]):
        return [unchanged(each) for each in files]
    present = marks_by_path(split["pattern"], split.get("conn_id"), connections) if files else {}
    for each in files:
        found = present.get(each["path"])
        if found is None:
            raise Retryable(f"the source file {each['path']} is not there. This run reads no other: bring it back")
        if found != each:
            raise Misconfigured(
                f"the source file {each['path']} has changed since this run listed it: expected {_told(each)}, found "
                f"{_told(found)}. {WHERE_CHANGED}"
            )
    return [each["path"] for each in files]


def _told(mark: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in mark.items() if key != "path")
