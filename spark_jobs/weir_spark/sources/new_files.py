"""The files of a folder that no epoch has read yet.

Invariant: a file is read by the first epoch that lists it, whatever its name and its time are, and never again. The
position is the set of the names that were read, each with a mark: a name is never forgotten, also if its file goes, or
a folder that is not mounted for a moment would be read twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from weir.dataflow.stage import ResolveContext
from weir.errors import Message, Misconfigured
from weir_spark.sources.listing import is_local
from weir_spark.sources.marks import HASHED_BYTES, file_mark

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
        raise Misconfigured(Message("sources.read_file_rewritten", path=first, pattern=pattern, count=len(rewritten)))
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
