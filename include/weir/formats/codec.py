"""Encodes and decodes the documents of this package as versioned JSON.

Invariants: equal values give equal bytes, and those bytes decode to equal values. Another version is refused, and so
are documents with more or fewer fields.
"""

from __future__ import annotations

import hashlib
import json
import re
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from weir.errors import Misconfigured
from weir.formats.checkpoint import Checkpoint
from weir.formats.manifest import Manifest, StageCopy
from weir.formats.region_failure import RegionFailure
from weir.formats.region_job import CheckJob, CompactionJob, RegionJob, RegionReport, SparkJob
from weir.formats.run_record import RunRecord
from weir.typed_json import typed

_JOBS: Mapping[str, type[SparkJob]] = types.MappingProxyType(
    {"region job": RegionJob, "compaction job": CompactionJob, "check job": CheckJob}
)

_KINDS: Mapping[type, str] = types.MappingProxyType(
    {
        Manifest: "manifest",
        StageCopy: "stage copy",
        **{job: kind for kind, job in _JOBS.items()},
        RegionReport: "region report",
        RegionFailure: "region failure",
        RunRecord: "run record",
        Checkpoint: "checkpoint",
    }
)

VERSIONS: Mapping[str, int] = types.MappingProxyType(dict.fromkeys(_KINDS.values(), 1))
"""The version of each kind of document that is written and read."""

_SEALED: Mapping[type, str] = types.MappingProxyType(
    {StageCopy: "the description of a copy", Checkpoint: "a checkpoint"}
)
"""Documents with their own SHA-256, since the ledger does not have it, as errors name them."""

_CHECKSUM = "sha256"
_CHECKSUM_LINE = re.compile(rb'^ "sha256": "([0-9a-f]{64})",\n', re.MULTILINE)
"""Only the fields of the document itself, not those of its values, begin a line that is indented by one space."""

T = TypeVar("T")


def to_json(value: object) -> bytes:
    """Encode a document as canonical JSON, with its own SHA-256 where the ledger does not have it."""
    kind = _KINDS[type(value)]
    data = _encode(kind, value)
    return _encode(kind, value, {_CHECKSUM: _checksum(data)}) if type(value) in _SEALED else data


def from_json(target: type[T], data: bytes) -> T:
    """Decode a document.

    Raises Misconfigured on an unknown version, another kind of document, or a SHA-256 of its own that does not match.
    """
    kind, what = _KINDS[target], _SEALED.get(target)
    value = from_plain(kind, target, _body(kind, _document(kind, data), *([] if what is None else [_CHECKSUM])))
    if what is not None:
        _require_as_written(what, data)
    return value


def region_job_from_json(data: bytes) -> SparkJob:
    """Decode a Spark job of any kind. Raises Misconfigured on an unknown version or another kind of document."""
    kind, body = _job(data)
    return from_plain(kind, _JOBS[kind], body)


def own_job_from_json(data: bytes) -> SparkJob:
    """Decode the job of this process, a driver of spark-submit, which may lack msgspec.

    Its fields are not looked at, since the same build has written it. Raises Misconfigured on an unknown version or
    another kind of document.
    """
    kind, body = _job(data)
    return cast("SparkJob", _built(_JOBS[kind], body))


def _job(data: bytes) -> tuple[str, dict[str, Any]]:
    """Return the kind of a job and its fields."""
    document = _document("region job", data)
    kind = next((kind for kind in _JOBS if document.get("weir") == kind), "region job")
    return kind, _body(kind, document)


def from_plain(what: str, target: type[T], found: Any) -> T:
    """Decode plain JSON, as a column of JSON has it. Raises Misconfigured, which names the place in `what`."""
    try:
        return typed(what, target, found)
    except ValueError as error:
        raise Misconfigured.of("formats.not_typed", error=error) from error


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _require_as_written(what: str, data: bytes) -> None:
    """Compare a document, without the line of its own SHA-256, with that: no byte of it has changed."""
    found = _CHECKSUM_LINE.search(data)
    if found is None or _checksum(data[: found.start()] + data[found.end() :]) != found[1].decode():
        raise Misconfigured.of("formats.not_as_written", what=what)


def _canonical(document: Mapping[str, Any]) -> bytes:
    """Encode a document with one line a field."""
    lines = (f" {_JSON.encode(name)}: {_JSON.encode(document[name])}" for name in sorted(document))
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _encode(kind: str, value: object, more: Mapping[str, str] = types.MappingProxyType({})) -> bytes:
    try:
        return _canonical({"weir": kind, "version": VERSIONS[kind], **_one_level(value), **more})
    except (TypeError, ValueError) as error:
        raise Misconfigured.of("formats.value_not_json", kind=kind, error=error) from error


def _one_level(value: Any) -> Any:
    """Return what the encoder knows in place of a value that it does not know; it asks again for what is in it."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, name) for name in _names(type(value))}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"found a {type(value).__name__}")


_JSON = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False, default=_one_level)


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _document(kind: str, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise Misconfigured.of("formats.not_json", kind=kind, error=error) from error
    if not isinstance(document, dict):
        raise Misconfigured.of("formats.another_document", kind=kind)
    return document


def _body(kind: str, document: Mapping[str, Any], *besides: str) -> dict[str, Any]:
    """Return the fields of a document, without its kind, its version and those named besides."""
    if document.get("weir") != kind:
        raise Misconfigured.of("formats.another_document", kind=kind)
    found = document.get("version")
    if found != VERSIONS[kind] or isinstance(found, bool):
        raise Misconfigured.of("formats.another_version", kind=kind, found=found, versions=VERSIONS[kind])
    return {key: value for key, value in document.items() if key not in ("weir", "version", *besides)}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _built(hint: Any, found: Any) -> Any:
    """Return plain JSON as a value of a type, which it is taken to be of."""
    origin, inner = get_origin(hint), get_args(hint)
    if found is None:
        return None
    if origin in (Union, types.UnionType):
        return _built(next(each for each in inner if each is not types.NoneType), found)
    if origin is tuple:
        hints = inner[:1] * len(found) if inner[-1] is Ellipsis else inner
        return tuple(_built(*both) for both in zip(hints, found, strict=True))
    if origin in (dict, Mapping):
        return {key: _built(inner[1], value) for key, value in found.items()}
    if is_dataclass(hint):
        kind: Any = hint
        return kind(**{name: _built(of, found[name]) for name, of in _hints(kind).items()})
    return hint(found) if isinstance(hint, type) and issubclass(hint, Enum) else found
