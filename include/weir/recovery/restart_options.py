"""The settings of restart strategies, under Flink 2.3's keys.

Invariant: a setting of these keys that cannot be understood is refused, never ignored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from weir.errors import Misconfigured

PREFIX = "restart-strategy."
TYPE = "restart-strategy.type"
OLD_TYPE = "restart-strategy"

_SPELLINGS = {
    "none": "none",
    "off": "none",
    "disable": "none",
    "fixed-delay": "fixed-delay",
    "fixeddelay": "fixed-delay",
    "failure-rate": "failure-rate",
    "failurerate": "failure-rate",
    "exponential-delay": "exponential-delay",
    "exponentialdelay": "exponential-delay",
}
_UNITS_MS = {
    "ns": 1e-6,
    "us": 1e-3,
    "ms": 1,
    "s": 1_000,
    "sec": 1_000,
    "second": 1_000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
}


def parse_options(options: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the strategy's name (None where no type is given) and its fields, times in ms.

    Options that are not about restarts are passed over. Raises Misconfigured.
    """
    given = {key: value for key, value in options.items() if key.startswith(OLD_TYPE)}
    _check_keys(given)
    kind = _kind(given)
    read_as = kind or "exponential-delay"
    settings = {
        field: read(f"{PREFIX}{read_as}.{key}", given[f"{PREFIX}{read_as}.{key}"])
        for key, (field, read) in _OPTIONS.get(read_as, {}).items()
        if f"{PREFIX}{read_as}.{key}" in given
    }
    return kind, settings


def _kind(given: Mapping[str, Any]) -> str | None:
    written = given.get(TYPE, given.get(OLD_TYPE))
    if written is None:
        return None
    kind = _SPELLINGS.get(str(written).strip().lower())
    if kind is None:
        hint = _close(written, _SPELLINGS)
        raise Misconfigured(f"{TYPE} is {written!r}: write none, fixed-delay, failure-rate or exponential-delay{hint}")
    return kind


def _check_keys(given: Mapping[str, Any]) -> None:
    known = [TYPE, OLD_TYPE, *(f"{PREFIX}{kind}.{key}" for kind, keys in _OPTIONS.items() for key in keys)]
    for key in given:
        if key not in known:
            raise Misconfigured(f"there is no option {key!r}{_close(key, known)}")


def _milliseconds(option: str, value: Any) -> int:
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", str(value))
    unit = match[2].lower() if match else ""
    factor = _UNITS_MS.get(unit or "ms", _UNITS_MS.get(unit.removesuffix("s"))) if match else None
    if match is None or factor is None:
        raise Misconfigured(f'{option} must be a time like "10 s" or "1 min", not {value!r}')
    return int(int(match[1]) * factor)


def _whole(option: str, value: Any) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise Misconfigured(f"{option} must be a whole number, not {value!r}") from None


def _number(option: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise Misconfigured(f"{option} must be a number, not {value!r}") from None


def _close(written: object, known: Any) -> str:
    close = difflib.get_close_matches(str(written), list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


_OPTIONS: dict[str, dict[str, tuple[str, Callable[[str, Any], Any]]]] = {
    "fixed-delay": {"attempts": ("attempts", _whole), "delay": ("delay_ms", _milliseconds)},
    "failure-rate": {
        "max-failures-per-interval": ("max_failures", _whole),
        "failure-rate-interval": ("interval_ms", _milliseconds),
        "delay": ("delay_ms", _milliseconds),
    },
    "exponential-delay": {
        "initial-backoff": ("initial_backoff_ms", _milliseconds),
        "max-backoff": ("max_backoff_ms", _milliseconds),
        "backoff-multiplier": ("multiplier", _number),
        "reset-backoff-threshold": ("reset_threshold_ms", _milliseconds),
        "jitter-factor": ("jitter_factor", _number),
        "attempts-before-reset-backoff": ("attempts_before_reset", _whole),
    },
}
