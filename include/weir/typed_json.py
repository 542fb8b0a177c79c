"""Values as plain JSON, and plain JSON as typed values, by msgspec.

Invariant: what is read has the fields of its type, all of them and no others, each of its own type.
msgspec is imported where it is used: a driver of spark-submit may lack it, and needs neither.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self, TypeVar, cast

from weir.errors import Misconfigured

T = TypeVar("T")

_examining = threading.Lock()
"""Held by the thread in which msgspec examines a type, which it does once: another that uses the type meanwhile crashes
the process."""

_MESSAGES: Final = 1
"""The version of what programs are asked and answer."""

_EXAMINED: Final = set[Any]()
"""The types that msgspec has examined, with all that are in them."""


def plain(value: object) -> Any:
    """Return a value as plain JSON. Raises TypeError or ValueError for one that is not JSON."""
    import msgspec  # noqa: PLC0415

    return json.loads(json.dumps(msgspec.to_builtins(value, enc_hook=_as_dict), allow_nan=False))


def typed(what: str, target: type[T], found: Any) -> T:
    """Return plain JSON as a value of a type. Raises ValueError, which names the place in `what`."""
    import msgspec  # noqa: PLC0415

    if target not in _EXAMINED:
        with _examining:
            msgspec.json.Decoder(target)
            _EXAMINED.add(target)
    try:
        value = msgspec.convert(found, target)
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at `$")
        raise ValueError(f"{what}{place.rstrip('`')}: {said}") from error
    # It passes over fields that it does not know, and takes defaults for those that are not there.
    written = plain(value)
    if written != found:
        raise ValueError(_difference(what, written, found))
    return value


class AsJson:
    """A dataclass that is written as plain JSON values, and read from them."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return cast("dict[str, Any]", plain(self))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned. Raises ValueError for anything else."""
        return typed(cls.__name__.lower(), cls, document)


def message_to_json(message: object) -> str:
    """Encode what a program of Weir is asked, or answers."""
    return json.dumps({"version": _MESSAGES, "message": plain(message)}, sort_keys=True)


def message_from_json(target: type[T], text: str | bytes) -> T:
    """Decode what a program of Weir is asked, or answers. Raises Misconfigured for another version."""
    found = json.loads(text)
    if found.get("version") != _MESSAGES:
        raise Misconfigured.of("typed_json.version_differs", found=found.get("version"), version=_MESSAGES)
    return typed(target.__name__, target, found["message"])


def _as_dict(value: Any) -> dict[Any, Any]:
    """Return any mapping as a dict."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not JSON")


def _difference(where: str, written: Any, found: Any) -> str:
    """Return the place where plain JSON has other fields than is written, and which."""
    inside: Iterable[tuple[str, Any, Any]] = ()
    if isinstance(written, dict):
        if written.keys() != found.keys():
            unknown, missing = sorted(found.keys() - written.keys()), sorted(written.keys() - found.keys())
            return f"{where}: unknown fields {unknown}, missing fields {missing}"
        inside = ((f".{name}", written[name], found[name]) for name in written)
    elif isinstance(written, list):
        inside = ((f"[{i}]", *both) for i, both in enumerate(zip(written, found, strict=True)))
    return next((_difference(f"{where}{name}", one, other) for name, one, other in inside if one != other), where)
