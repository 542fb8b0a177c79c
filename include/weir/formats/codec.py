"""Encodes and decodes the documents of this package as versioned JSON.

Invariants: equal values give equal bytes, and those bytes decode to equal values. Another version is refused, and so
are documents with more or fewer fields.
"""

from __future__ import annotations

import hashlib
import json
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from weir.errors import Message, Misconfigured
from weir.formats.checkpoint import Checkpoint
from weir.formats.checks import ExpectationResult
from weir.formats.manifest import Manifest, StageCopy, StateFile
from weir.formats.region_failure import RegionFailure
from weir.formats.region_job import CheckJob, CompactionJob, RegionJob, RegionReport, SparkJob
from weir.formats.run_record import RunRecord
from weir.typed_json import plain, typed

VERSIONS: Mapping[str, int] = types.MappingProxyType(
    {
        "manifest": 1,
        "stage copy": 1,
        "region job": 1,
        "compaction job": 1,
        "check job": 1,
        "region report": 1,
        "region failure": 1,
        "run record": 1,
        "checkpoint": 1,
    }
)
"""The version of each kind of document that is written and read."""

_JOBS: Mapping[str, type[SparkJob]] = types.MappingProxyType(
    {"region job": RegionJob, "compaction job": CompactionJob, "check job": CheckJob}
)

_CHECKSUM = "sha256"
_CHECKSUM_LINE = re.compile(rb'^ "sha256": "([0-9a-f]{64})",\n', re.MULTILINE)
"""Only the fields of the document itself, not those of its values, begin a line that is indented by one space."""

T = TypeVar("T")


def manifest_to_json(manifest: Manifest) -> bytes:
    """Encode a manifest as canonical JSON."""
    return _encode("manifest", manifest)


def manifest_from_json(data: bytes) -> Manifest:
    """Decode a manifest. Raises Misconfigured on an unknown version or another kind of document."""
    return _decode("manifest", Manifest, data)


def stage_copy_to_json(copy: StageCopy) -> bytes:
    """Encode the description of a stage copy as canonical JSON, with its own SHA-256, since the ledger has none."""
    return _sealed("stage copy", copy)


def stage_copy_from_json(data: bytes) -> StageCopy:
    """Decode the description of a stage copy.

    Raises Misconfigured on an unknown version, another kind of document, or a SHA-256 that does not match.
    """
    return _unsealed("stage copy", StageCopy, data, "the description of a copy")


def region_job_to_json(job: SparkJob) -> bytes:
    """Encode a Spark job of any kind as canonical JSON."""
    return _encode(next(kind for kind, job_type in _JOBS.items() if isinstance(job, job_type)), job)


def region_job_from_json(data: bytes) -> SparkJob:
    """Decode a Spark job of any kind. Raises Misconfigured on an unknown version or another kind of document."""
    kind, body = _job(data)
    return _typed(kind, _JOBS[kind], body)


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


def region_report_to_json(report: RegionReport) -> bytes:
    """Encode a region's report as canonical JSON."""
    return _encode("region report", report)


def region_report_from_json(data: bytes) -> RegionReport:
    """Decode a region's report. Raises Misconfigured on an unknown version or another kind of document."""
    return _decode("region report", RegionReport, data)


def region_failure_to_json(failure: RegionFailure) -> bytes:
    """Encode a region's failure as canonical JSON."""
    return _encode("region failure", failure)


def region_failure_from_json(data: bytes) -> RegionFailure:
    """Decode a region's failure. Raises Misconfigured on an unknown version or another kind of document."""
    return _decode("region failure", RegionFailure, data)


def run_record_to_json(record: RunRecord) -> bytes:
    """Encode the record of a run as canonical JSON."""
    return _encode("run record", record)


def run_record_from_json(data: bytes) -> RunRecord:
    """Decode the record of a run. Raises Misconfigured on an unknown version or another kind of document."""
    return _decode("run record", RunRecord, data)


def checkpoint_to_json(checkpoint: Checkpoint) -> bytes:
    """Encode a checkpoint or savepoint as canonical JSON, with its own SHA-256."""
    return _sealed("checkpoint", checkpoint)


def checkpoint_from_json(data: bytes) -> Checkpoint:
    """Decode a checkpoint.

    Raises Misconfigured on an unknown version, another kind of document, or a SHA-256 that does not match.
    """
    return _unsealed("checkpoint", Checkpoint, data, "a checkpoint")


def state_files_to_plain(files: Iterable[StateFile]) -> list[Any]:
    """Encode files of keyed state for a column of JSON."""
    return cast("list[Any]", plain(list(files)))


def state_files_from_plain(value: Any) -> tuple[StateFile, ...]:
    """Decode files of keyed state. Raises Misconfigured on any other JSON."""
    return _typed("state files", tuple[StateFile, ...], value)


def expectation_results_to_plain(results: Iterable[ExpectationResult]) -> list[Any]:
    """Encode results of expectations for a column of JSON."""
    return cast("list[Any]", plain(list(results)))


def expectation_results_from_plain(value: Any) -> tuple[ExpectationResult, ...]:
    """Decode results of expectations. Raises Misconfigured on any other JSON."""
    return _typed("expectation results", tuple[ExpectationResult, ...], value)


def _sealed(kind: str, value: object) -> bytes:
    """Encode a document with its own SHA-256, since the ledger does not have it."""
    return _encode(kind, value, {_CHECKSUM: _checksum(_encode(kind, value))})


def _unsealed(kind: str, target: type[T], data: bytes, what: str) -> T:
    value = _decode(kind, target, data, _CHECKSUM)
    _require_as_written(what, data)
    return value


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _require_as_written(what: str, data: bytes) -> None:
    """Compare a document, without the line of its own SHA-256, with that: no byte of it has changed."""
    found = _CHECKSUM_LINE.search(data)
    if found is None or _checksum(data[: found.start()] + data[found.end() :]) != found[1].decode():
        raise Misconfigured(Message("formats.not_as_written", what=what))


def _canonical(document: Mapping[str, Any]) -> bytes:
    """Encode a document with one line a field."""
    lines = (f" {_JSON.encode(name)}: {_JSON.encode(document[name])}" for name in sorted(document))
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _encode(kind: str, value: object, more: Mapping[str, str] = types.MappingProxyType({})) -> bytes:
    try:
        return _canonical({"weir": kind, "version": VERSIONS[kind], **_one_level(value), **more})
    except (TypeError, ValueError) as error:
        raise Misconfigured(Message("formats.value_not_json", kind=kind, error=error)) from error


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


def _decode(kind: str, target: type[T], data: bytes, *besides: str) -> T:
    return _typed(kind, target, _body(kind, _document(kind, data), *besides))


def _document(kind: str, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise Misconfigured(Message("formats.not_json", kind=kind, error=error)) from error
    if not isinstance(document, dict):
        raise Misconfigured(Message("formats.another_document", kind=kind))
    return document


def _body(kind: str, document: Mapping[str, Any], *besides: str) -> dict[str, Any]:
    """Return the fields of a document, without its kind, its version and those named besides."""
    if document.get("weir") != kind:
        raise Misconfigured(Message("formats.another_document", kind=kind))
    found = document.get("version")
    if found != VERSIONS[kind] or isinstance(found, bool):
        raise Misconfigured(Message("formats.another_version", kind=kind, found=found, versions=VERSIONS[kind]))
    return {key: value for key, value in document.items() if key not in ("weir", "version", *besides)}


def _typed(kind: str, target: type[T], found: Any) -> T:
    try:
        return typed(kind, target, found)
    except ValueError as error:
        raise Misconfigured(Message("formats.not_typed", error=error)) from error


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
