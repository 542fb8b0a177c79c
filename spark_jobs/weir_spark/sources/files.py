"""Files of a folder as a source. Invariant: all attempts of a run read the listed files, as they were, or fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from weir.dataflow.sources import filled
from weir.dataflow.stage import Resolved
from weir.errors import Message, Misconfigured, Retryable
from weir_spark.sources.contents import Contents
from weir_spark.sources.listing import is_local, listed, marks_by_path, reaching
from weir_spark.sources.marks import WHERE_CHANGED, file_mark, unchanged
from weir_spark.sources.new_files import new_files
from weir_spark.sources.splits import shares

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir.connections import Connections
    from weir.dataflow.stage import ResolveContext
    from weir_spark.region.context import StageContext


_WHOLE_BYTES: Final = 64 * 2**20
"""How many bytes a file has at most whose records may have several lines; Spark has it as one text then."""

_OF_SOURCE: Final = ("format", "schema", "reader", "conn_id", "on_malformed")
_UNSAID: Final[Mapping[str, Any]] = {
    "reader": {},
    "folders": [],
    "on_malformed": "fail",
    "is_whole": False,
}
"""What a split leaves out, which says no more than it has to."""


def resolve(ctx: ResolveContext) -> list[dict[str, Any]] | Resolved:
    """List the files and return each subtask's. Raises Misconfigured where there are none, and Retryable."""
    given = ctx.options
    pattern = _pattern(ctx)
    if given.get("read") != "new":
        return _splits(ctx, pattern, listed(pattern, given.get("conn_id"), ctx.connection), "")
    found = [] if ctx.recorded else listed(pattern, given.get("conn_id"), ctx.connection, is_read=False)
    with reaching(pattern):
        new = new_files(ctx, pattern, found)
    return Resolved(_splits(ctx, pattern, new.marks, new.told), new.position)


def listed_again(ctx: ResolveContext) -> list[Mapping[str, Any]]:
    """Return the marks of the files that match now; those of `ctx.recorded` that are as they were have that mark.

    No file is looked into but for its mark. Raises as `resolve`, but not where no file matches any more.
    """
    pattern = _pattern(ctx)
    found = listed(pattern, ctx.options.get("conn_id"), ctx.connection)
    splits: Sequence[Mapping[str, Any]] = () if ctx.recorded is None else ctx.recorded.splits
    before = {each["path"]: each for split in splits for each in split["files"]}
    with reaching(pattern):
        return [_mark_as(before.get(each["path"]), each) for each in found]


def _pattern(ctx: ResolveContext) -> str:
    return filled("files_source", str(ctx.options["path"]), ctx.interval, ctx.zone)


def _mark_as(before: Mapping[str, Any] | None, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a mark of the kind by which the file was read: whether by content depends on how large all are together.

    Of a file that was marked by its time, the time counts.
    """
    if before is None or before.keys() == found.keys() or not is_local(found["path"]):
        return found
    return file_mark(found["path"], found["size"] if "sha256" in before else -1)


def _splits(ctx: ResolveContext, pattern: str, marks: Sequence[Mapping[str, Any]], told: str) -> list[dict[str, Any]]:
    given = ctx.options
    if not marks and given["if_empty"] == "fail":
        raise Misconfigured(Message("sources.no_file_matches", pattern=pattern, epoch=ctx.epoch))
    if given["format"] == "parquet":
        _require_bytes(marks)
    else:
        _require_whole(marks, given.get("reader", {}))
    with reaching(pattern):
        seen = Contents([each["path"] for each in marks], given, ctx.connection).described() if marks else {}
    split = {
        "reads": f"{len(marks)} {'new ' if given.get('read') else ''}file(s), "
        f"{sum(each['size'] for each in marks)} bytes, that matched {pattern}{told}",
        "pattern": pattern,
        "if_missing": given.get("if_missing", "fail"),
        **{key: given[key] for key in _OF_SOURCE if key in given},
        # All subtasks have the columns of these.
        **seen,
    }
    divided = shares([(each, each["size"]) for each in marks], ctx.parallelism)
    return [{**split, "files": each, "is_whole": len(each) == len(marks)} for each in divided]


def read(ctx: StageContext, slice: dict[str, Any]) -> DataFrame:  # noqa: A002  Weir's name of the argument
    """Read the files of a split, each of which is as it was when the run listed it."""
    from weir_spark.sources.reading import rows_of  # noqa: PLC0415  resolvers of this package need no Spark

    return rows_of(ctx.spark, {**_UNSAID, **slice}, _unchanged(slice, ctx.connection))


def _require_bytes(marks: Sequence[Mapping[str, Any]]) -> None:
    empty = next((each["path"] for each in marks if not each["size"]), None)
    if empty is not None:
        raise Misconfigured(Message("sources.parquet_empty", empty=empty))


def _require_whole(marks: Sequence[Mapping[str, Any]], reader: Mapping[str, str]) -> None:
    """Refuse files that are too large to be looked through as one text, as those of records of several lines are."""
    if {key.lower(): str(value).lower() for key, value in reader.items()}.get("multiline") != "true":
        return
    large = next((each for each in marks if each["size"] > _WHOLE_BYTES), None)
    if large is not None:
        raise Misconfigured(
            Message("sources.file_too_large", large=large["path"], bytes=large["size"], most=_WHOLE_BYTES)
        )


def _unchanged(split: Mapping[str, Any], connections: Connections) -> list[str]:
    files: Sequence[Mapping[str, Any]] = split["files"]
    if is_local(split["pattern"]):
        return [unchanged(each) for each in files]
    present = marks_by_path(split["pattern"], split.get("conn_id"), connections) if files else {}
    for each in files:
        found = present.get(each["path"])
        if found is None:
            raise Retryable(Message("sources.file_gone", each=each["path"]))
        if found != each:
            raise Misconfigured(
                Message(
                    "sources.file_changed",
                    each=each["path"],
                    expected=_told(each),
                    found=_told(found),
                    where_changed=WHERE_CHANGED,
                )
            )
    return [each["path"] for each in files]


def _told(mark: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in mark.items() if key != "path")
