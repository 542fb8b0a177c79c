"""Encodes and decodes the documents of this package as versioned JSON.

Invariants: equal values give equal bytes, and those bytes decode to equal values. Another version is refused, and so
are documents with more or fewer fields.
"""

from __future__ import annotations

import hashlib
import json
import re
import types
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Any, NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from weir.errors import Misconfigured
from weir.formats.checkpoint import Checkpoint
from weir.formats.checks import ExpectationResult
from weir.formats.manifest import Manifest, StageCopy, StateFile
from weir.formats.region_failure import RegionFailure
from weir.formats.region_job import CheckJob, CompactionJob, RegionJob, RegionReport, SparkJob
from weir.formats.run_record import RunRecord

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
_Where = str | tuple[Any, str | int]
"""The place of a value in a document: its name, or that of what it is in, and its field or its number there."""
_Decoder = Callable[[Any, _Where], Any]
"""Decodes a value of one type at a place. Raises Misconfigured."""


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
    document = _document("region job", data)
    kind = next((kind for kind in _JOBS if document.get("weir") == kind), "region job")
    return cast("SparkJob", _value(_JOBS[kind], _body(kind, document), kind))


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
    return cast("list[Any]", json.loads(_JSON.encode(list(files))))


def state_files_from_plain(value: Any) -> tuple[StateFile, ...]:
    """Decode files of keyed state. Raises Misconfigured on any other JSON."""
    return cast("tuple[StateFile, ...]", _value(tuple[StateFile, ...], value, "state files"))


def expectation_results_to_plain(results: Iterable[ExpectationResult]) -> list[Any]:
    """Encode results of expectations for a column of JSON."""
    return cast("list[Any]", json.loads(_JSON.encode(list(results))))


def expectation_results_from_plain(value: Any) -> tuple[ExpectationResult, ...]:
    """Decode results of expectations. Raises Misconfigured on any other JSON."""
    return cast("tuple[ExpectationResult, ...]", _value(tuple[ExpectationResult, ...], value, "expectation results"))


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
        raise Misconfigured(f"{what} is not as it was written: its SHA-256 does not match")


def _canonical(document: Mapping[str, Any]) -> bytes:
    """Encode a document with one line a field."""
    lines = (f" {_JSON.encode(name)}: {_JSON.encode(document[name])}" for name in sorted(document))
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _encode(kind: str, value: object, more: Mapping[str, str] = types.MappingProxyType({})) -> bytes:
    try:
        return _canonical({"weir": kind, "version": VERSIONS[kind], **_one_level(value), **more})
    except (TypeError, ValueError) as error:
        raise Misconfigured(
            f"a {kind} holds a value that is not JSON ({error}): parameters and splits of sources must consist of "
            "dicts with string keys, lists, strings, finite numbers, booleans and None"
        ) from error


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
    return cast(T, _value(target, _body(kind, _document(kind, data), *besides), kind))


def _document(kind: str, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise Misconfigured(f"expected a {kind} of Weir, found something that is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise Misconfigured(f"expected a {kind} of Weir, found another document")
    return document


def _body(kind: str, document: Mapping[str, Any], *besides: str) -> dict[str, Any]:
    """Return the fields of a document, without its kind, its version and those named besides."""
    if document.get("weir") != kind:
        raise Misconfigured(f"expected a {kind} of Weir, found another document")
    found = document.get("version")
    if found != VERSIONS[kind] or isinstance(found, bool):
        raise Misconfigured(
            f"a {kind} has version {found}, this Weir reads {VERSIONS[kind]}: use the Weir that wrote it"
        )
    return {key: value for key, value in document.items() if key not in ("weir", "version", *besides)}


def _value(hint: Any, value: Any, where: str) -> Any:
    return _decoder(hint)(value, where)


@cache
def _decoder(hint: Any) -> _Decoder:
    """Return what decodes a type; it is made once, from the type's annotations."""
    if hint in (Any, object):
        return _as_it_is
    if is_dataclass(hint):
        return _dataclass(cast("type[Any]", hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return partial(_member, hint)
    if isinstance(hint, NewType):
        return _decoder(hint.__supertype__)
    origin = get_origin(hint)
    if origin is not None:
        return _CONTAINERS[origin](get_args(hint))
    return partial(_plain, (int, float) if hint is float else (hint,))


def _as_it_is(value: Any, _where: _Where) -> Any:
    return value


def _plain(accepted: tuple[type, ...], value: Any, where: _Where) -> Any:
    if type(value) not in accepted:  # True is an int, too
        raise _unexpected(where, accepted[-1].__name__, value)
    return value


def _dataclass(kind: type[Any]) -> _Decoder:
    decoders = {name: _decoder(hint) for name, hint in get_type_hints(kind).items()}

    def decode(value: Any, where: _Where) -> Any:
        if not isinstance(value, dict):
            raise _unexpected(where, "an object", value)
        if value.keys() != decoders.keys():
            raise _other_fields(value.keys(), decoders.keys(), where)
        return kind(**{name: decoders[name](item, (where, name)) for name, item in value.items()})

    return decode


def _other_fields(found: Set[str], known: Set[str], where: _Where) -> Misconfigured:
    unknown, absent = sorted(found - known), sorted(known - found)
    return Misconfigured(
        f"{_place(where)}: unknown fields {unknown}, missing fields {absent}: use the Weir that wrote it"
    )


def _member(hint: type[Enum], value: Any, where: _Where) -> Enum:
    try:
        return hint(value)
    except ValueError:
        raise _unexpected(where, f"one of {', '.join(str(each.value) for each in hint)}", value) from None


def _tuple(args: tuple[Any, ...]) -> _Decoder:
    is_of_any_length = args[-1] is Ellipsis
    decoders = tuple(_decoder(each) for each in args if each is not Ellipsis)

    def decode(value: Any, where: _Where) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _unexpected(where, "a list", value)
        own = decoders * len(value) if is_of_any_length else decoders
        if len(own) != len(value):
            raise _unexpected(where, f"a list of {len(own)}", value)
        return tuple([one(item, (where, i)) for i, (one, item) in enumerate(zip(own, value, strict=True))])

    return decode


def _dict(args: tuple[Any, ...]) -> _Decoder:
    of_values = _decoder(args[1])

    def decode(value: Any, where: _Where) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _unexpected(where, "an object", value)
        return {key: of_values(item, (where, key)) for key, item in value.items()}

    return decode


def _optional(args: tuple[Any, ...]) -> _Decoder:
    if_there = _decoder(next(hint for hint in args if hint is not types.NoneType))

    def decode(value: Any, where: _Where) -> Any:
        return None if value is None else if_there(value, where)

    return decode


_CONTAINERS: dict[Any, Callable[[tuple[Any, ...]], _Decoder]] = {
    tuple: _tuple,
    dict: _dict,
    Mapping: _dict,
    Union: _optional,
    types.UnionType: _optional,
}


def _unexpected(where: _Where, expected: str, found: Any) -> Misconfigured:
    return Misconfigured(f"{_place(where)}: expected {expected}, found {str(found)[:80]!r}")


def _place(where: _Where) -> str:
    """Return the name of a value's place, such as `manifest.files[0].rows`: it is put together for an error only."""
    if isinstance(where, str):
        return where
    inside, name = where
    return f"{_place(inside)}[{name}]" if isinstance(name, int) else f"{_place(inside)}.{name}"
