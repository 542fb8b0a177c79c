"""Files of a folder as a source. Invariant: all attempts of a run read the listed files, as they were, or fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from weir.dataflow.sources import filled
from weir.errors import Misconfigured, Retryable
from weir_spark.sources.accounts import fsspec_options
from weir_spark.sources.marks import HASHED_BYTES, WHERE_CHANGED, file_mark, unchanged
from weir_spark.sources.parquet import WHOLE, is_hidden, spark_path
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

_REMOTE_MARKS: Final = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "updated", "mtime")
"""What object stores tell about a file's content, as their fsspec packages call it: the first that is there counts."""


def resolve(ctx: ResolveContext) -> list[dict[str, Any]]:
    """List the files and return each subtask's. Raises Misconfigured where there are none, and Retryable."""
    given = ctx.options
    pattern = filled("files_source", str(given["path"]), *ctx.interval)
    marks = _listed(pattern, given.get("conn_id"), ctx.connection)
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
    if "://" not in split["pattern"]:
        return [unchanged(each) for each in files]
    present = (
        {each["path"]: each for each in _listed(split["pattern"], split.get("conn_id"), connections)} if files else {}
    )
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


def _listed(pattern: str, conn_id: str | None, connections: Connections) -> list[dict[str, Any]]:
    """Return the mark of each file that matches, by path."""
    try:
        return _marks(pattern, fsspec_options(pattern, conn_id, connections))
    except ImportError as error:
        cure = "pip install 'weir[s3]' there" if pattern.startswith("s3") else "Install the package there"
        raise Misconfigured(f"{pattern} cannot be listed where Airflow's tasks run: {error}. {cure}") from error
    except OSError as error:  # also of a file that has gone since it was found
        raise Retryable(f"{pattern} could not be listed: {type(error).__name__}: {error}") from error


def _marks(pattern: str, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    from fsspec.core import url_to_fs  # noqa: PLC0415  slow to import

    files, place = url_to_fs(pattern, **options)
    files.invalidate_cache()
    fixed = _fixed(place)
    seen = {
        path: info
        for path, info in sorted(files.glob(place, detail=True).items())
        if info["type"] == "file" and not _is_left_out(path, fixed)
    }
    if "://" not in pattern:
        # Small listings are known by their content, which outlives a copy; large ones are not read twice.
        hashed = HASHED_BYTES if sum(info["size"] for info in seen.values()) <= HASHED_BYTES else -1
        return [file_mark(path, hashed) for path in seen]
    return [_remote_mark(files.unstrip_protocol(path), info) for path, info in seen.items()]


def _remote_mark(url: str, info: Mapping[str, Any]) -> dict[str, Any]:
    told = next((each for each in _REMOTE_MARKS if info.get(each) is not None), None)
    mark = {"path": url, "size": int(info["size"] or 0)}
    return mark if told is None else {**mark, told: str(info[told])}


def _fixed(pattern: str) -> str:
    """Return the folder of a pattern before its first wildcard."""
    cut = min((at for at in map(pattern.find, "*?[") if at >= 0), default=len(pattern))
    return pattern[:cut].rpartition("/")[0]


def _is_left_out(path: str, fixed: str) -> bool:
    """Report whether Spark would leave the file out of a listing: hidden, or in a folder of unfinished writes."""
    *folders, name = path.removeprefix(fixed).strip("/").split("/")
    return is_hidden(name) or any(each.startswith((".", "_")) and "=" not in each for each in folders)
