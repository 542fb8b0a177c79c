"""Files of a folder as a source. Invariant: all attempts of a run read the listed files, as they were, or fail.

With read="new", a file is read by the first epoch that lists it, whatever its name and its time are, and never again.
The position is the set of the names that were read, each with a mark: a name is never forgotten, also if its file goes,
or a folder that is not mounted for a moment would be read twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from weir.dataflow.resolving import ResolveContext, Resolved
from weir.dataflow.sources import filled
from weir.errors import Misconfigured, Retryable
from weir_spark.sources.contents import Contents
from weir_spark.sources.listing import is_local, listed, marks_by_path, reaching
from weir_spark.sources.marks import HASHED_BYTES, WHERE_CHANGED, file_mark, unchanged
from weir_spark.sources.splits import shares

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir.connections import Connections
    from weir.dataflow.resolving import ResolveContext
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
        raise Misconfigured.of("sources.no_file_matches", pattern=pattern, epoch=ctx.epoch)
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


def read(ctx: StageContext, split: dict[str, Any]) -> DataFrame:
    """Read the files of a split, each of which is as it was when the run listed it."""
    from weir_spark.sources.reading import rows_of  # noqa: PLC0415  resolvers of this package need no Spark

    return rows_of(ctx.spark, {**_UNSAID, **split}, as_listed(split, ctx.connection))


def _require_bytes(marks: Sequence[Mapping[str, Any]]) -> None:
    empty = next((each["path"] for each in marks if not each["size"]), None)
    if empty is not None:
        raise Misconfigured.of("sources.parquet_empty", empty=empty)


def _require_whole(marks: Sequence[Mapping[str, Any]], reader: Mapping[str, str]) -> None:
    """Refuse files that are too large to be looked through as one text, as those of records of several lines are."""
    if {key.lower(): str(value).lower() for key, value in reader.items()}.get("multiline") != "true":
        return
    large = next((each for each in marks if each["size"] > _WHOLE_BYTES), None)
    if large is not None:
        raise Misconfigured.of("sources.file_too_large", large=large["path"], bytes=large["size"], most=_WHOLE_BYTES)


def as_listed(split: Mapping[str, Any], connections: Connections) -> list[str]:
    """Return the paths of a split's files, which are as they were when the run listed them.

    Raises Misconfigured if one has another content, Retryable if it is not there.
    """
    files: Sequence[Mapping[str, Any]] = split["files"]
    if is_local(split["pattern"]):
        return [unchanged(each) for each in files]
    present = marks_by_path(split["pattern"], split.get("conn_id"), connections) if files else {}
    for each in files:
        found = present.get(each["path"])
        if found is None:
            raise Retryable.of("sources.file_gone", each=each["path"])
        if found != each:
            raise Misconfigured.of(
                "sources.file_changed",
                each=each["path"],
                expected=_told(each),
                found=_told(found),
                where_changed=WHERE_CHANGED,
            )
    return [each["path"] for each in files]


def _told(mark: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in mark.items() if key != "path")


READ: Final = "read"
"""The field of the position with the marks of the files that were read, by path."""

_SHOWN: Final = 3
_SHA256_DIGITS: Final = 64


@dataclass(frozen=True, slots=True)
class NewFiles:
    """The marks of the files that an epoch reads, the position after it, and the files that were rewritten since."""

    marks: list[dict[str, Any]]
    position: dict[str, Any]
    rewritten: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """Say which files were rewritten after they had been read, which the rows read do not show."""
        more = f" and {len(self.rewritten) - _SHOWN} more" if len(self.rewritten) > _SHOWN else ""
        named = ", ".join(self.rewritten[:_SHOWN])
        return f"; rewritten after they were read, and not read again: {named}{more}" if named else ""


def new_files(ctx: ResolveContext, pattern: str, found: Sequence[Mapping[str, Any]]) -> NewFiles:
    """Return what of the files found is new; of an epoch that is recorded, what it is recorded to read.

    Raises Misconfigured for a file that was read and has another mark since, if the source is to fail then.
    """
    if ctx.recorded is not None:
        marks = [dict(each) for split in ctx.recorded.splits for each in split["files"]]
        return NewFiles(marks, ctx.recorded.position)
    before: Mapping[str, str] = {} if ctx.previous is None else ctx.previous.position[READ]
    new = [dict(each) for each in found if each["path"] not in before]
    listed = {str(each["path"]): each for each in found if each["path"] in before}
    rewritten = {path: each for path, each in listed.items() if not _is_same(before[path], each)}
    if rewritten and ctx.options.get("on_rewritten") != "report":
        first = min(rewritten)
        raise Misconfigured.of("sources.read_file_rewritten", path=first, pattern=pattern, count=len(rewritten))
    if is_local(pattern):
        new = _hashed(new)
    after = {**before, **{path: _mark(each) for path, each in rewritten.items()}}
    after |= {str(each["path"]): _mark(each) for each in new}
    return NewFiles([_plain(each) for each in new], {READ: after}, tuple(sorted(rewritten)))


def _hashed(new: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Know few and small files by their content, too, which outlives a copy."""
    if sum(each["size"] for each in new) > HASHED_BYTES:
        return [dict(each) for each in new]
    return [{**each, **file_mark(each["path"])} for each in new]


def _plain(mark: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mark by which an attempt knows the file: by its content, or by size and time."""
    return {key: value for key, value in mark.items() if key != "modified_ns" or "sha256" not in mark}


def _mark(mark: Mapping[str, Any]) -> str:
    """Return a mark as the position has it: the size, the time or what the object store tells, and the SHA-256."""
    told = [str(value) for key, value in mark.items() if key not in ("path", "size", "sha256")]
    return " ".join([str(mark["size"]), *told, *([mark["sha256"]] if "sha256" in mark else [])])


def _is_same(before: str, found: Mapping[str, Any]) -> bool:
    """Report whether a file that was read is as it was; where only its time differs, by its content."""
    now = _mark(found)
    if before == now or before.startswith(f"{now} "):
        return True
    size, *_, last = before.split(" ")
    is_known = "modified_ns" in found and len(last) == _SHA256_DIGITS and size == str(found["size"])
    return is_known and file_mark(found["path"])["sha256"] == last
