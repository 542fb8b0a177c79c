"""The settings of restart strategies, under Flink 2.3's keys, and the limits of failures under FLIP-1's.

The type may also be FLINK_1_18, a preset: it chooses a strategy by whether the dataflow keeps state, with all numbers.

Invariant: a setting of these keys that cannot be understood is refused, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from weir.errors import Misconfigured
from weir.wording import did_you_mean

PREFIX = "restart-strategy."
TYPE = "restart-strategy.type"
OLD_TYPE = "restart-strategy"
FLINK_1_18 = "flink-1.18"
"""The type that names no strategy but the numbers of Flink 1.18's manual, which `weir.restarts.strategy` has."""

PER_TASK = "maximum-per-task-failures"
PER_RUN = "maximum-total-task-failures"
_UNITS_MS = {
    unit: factor
    for units, factor in (
        *(("ns", 1e-6), ("us", 1e-3), ("ms", 1), ("s sec second", 1_000)),
        *(("m min minute", 60_000), ("h hour", 3_600_000), ("d day", 86_400_000)),
    )
    for unit in units.split()
}

Parsed = tuple[str | None, dict[str, Any], dict[str, int]]
"""The strategy's name (None: no type is given), its fields (times in ms), and the limits under their names."""


def parse_options(options: Mapping[str, Any]) -> Parsed:
    """Parse options under Flink's keys, or under the same keys with underscores, as environment variables have them.

    If both spellings are given, that with underscores wins, since it may come from the environment. Options that are
    not about restarts are ignored. Raises Misconfigured.
    """
    given = _canonical(options)
    kind = _kind(given)
    if kind is None:
        _refuse_without_type(given)
    if kind == FLINK_1_18:
        _refuse_beside_preset(given)
    prefix = f"{PREFIX}{kind or 'exponential-delay'}."
    settings = {
        field: read(prefix + key, given[prefix + key])
        for key, (field, read) in _OPTIONS.get(kind or "exponential-delay", {}).items()
        if prefix + key in given
    }
    limits = {name: whole_number(name, given[PREFIX + name]) for name in (PER_TASK, PER_RUN) if PREFIX + name in given}
    return kind, settings, limits


def _kind(given: Mapping[str, Any]) -> str | None:
    written = given.get(TYPE, given.get(OLD_TYPE))
    if written is None:
        return None
    kind = _SPELLINGS.get(str(written).strip().lower())
    if kind is None:
        hint = suggestion(written, _SPELLINGS)
        raise Misconfigured.of("restarts.strategy_unknown", option=TYPE, written=written, hint=hint)
    return kind


def _refuse_without_type(given: Mapping[str, Any]) -> None:
    for key in given:
        kind = key.removeprefix(PREFIX).partition(".")[0]
        if kind in _OPTIONS and kind != "exponential-delay":
            raise Misconfigured.of("restarts.strategy_missing", key=key, option=TYPE, kind=kind)


def _refuse_beside_preset(given: Mapping[str, Any]) -> None:
    for key in given:
        if key.removeprefix(PREFIX).partition(".")[0] in _OPTIONS:
            raise Misconfigured.of("restarts.preset_with_options", key=key, option=TYPE, kind=FLINK_1_18)


def _canonical(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are about restarts, under Flink's own names."""
    known = [TYPE, OLD_TYPE, PREFIX + PER_TASK, PREFIX + PER_RUN]
    known += [f"{PREFIX}{kind}.{key}" for kind, keys in _OPTIONS.items() for key in keys]
    by_spelling = {normalised_key(name): name for name in known}
    by_spelling |= {normalised_key(name): PREFIX + name for name in (PER_TASK, PER_RUN)}
    found: dict[str, Any] = {}
    for key in sorted(options, key=lambda key: key == normalised_key(key)):
        name = by_spelling.get(normalised_key(key))
        if name is not None:
            found[name] = options[key]
        elif normalised_key(key).startswith(normalised_key(OLD_TYPE)):
            raise Misconfigured.of("restarts.option_unknown", key=key, suggestion=suggestion(key, known))
    return found


def normalised_key(key: str) -> str:
    """Return a key as an environment variable has it: in lower case, with underscores for dots and dashes."""
    return re.sub("[.-]", "_", key.strip().lower())


def _milliseconds(option: str, value: Any) -> int:
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", str(value))
    unit = match[2].lower() if match else ""
    factor = _UNITS_MS.get(unit or "ms", _UNITS_MS.get(unit.removesuffix("s"))) if match else None
    if match is None or factor is None:
        raise Misconfigured.of("restarts.option_not_a_time", option=option, value=value)
    return int(int(match[1]) * factor)


def whole_number(option: str, value: Any) -> int:
    """Read a whole number. Raises Misconfigured."""
    try:
        return int(str(value))
    except ValueError:
        raise Misconfigured.of("restarts.option_not_whole", option=option, value=value) from None


def _number(option: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise Misconfigured.of("restarts.option_not_a_number", option=option, value=value) from None


def suggestion(written: object, known: Any) -> str:
    """Return a hint at the closest known name, for the end of a message; empty if none is close."""
    return did_you_mean(str(written), known, lead="; ")


_OPTIONS: dict[str, dict[str, tuple[str, Callable[[str, Any], Any]]]] = {
    "fixed-delay": {"attempts": ("attempts", whole_number), "delay": ("delay_ms", _milliseconds)},
    "failure-rate": {
        "max-failures-per-interval": ("max_failures", whole_number),
        "failure-rate-interval": ("interval_ms", _milliseconds),
        "delay": ("delay_ms", _milliseconds),
    },
    "exponential-delay": {
        "initial-backoff": ("initial_backoff_ms", _milliseconds),
        "max-backoff": ("max_backoff_ms", _milliseconds),
        "backoff-multiplier": ("multiplier", _number),
        "reset-backoff-threshold": ("reset_threshold_ms", _milliseconds),
        "jitter-factor": ("jitter_factor", _number),
        "attempts-before-reset-backoff": ("attempts_before_reset", whole_number),
    },
}

_SPELLINGS = {"none": "none", "off": "none", "disable": "none", FLINK_1_18: FLINK_1_18} | {
    spelling: kind for kind in _OPTIONS for spelling in (kind, kind.replace("-", ""))
}
