"""Finds columns whose values are in the names of folders, as `day=2013-01-01/`. Invariant: no value is guessed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any, Final
from urllib.parse import unquote

from weir.dataflow.state_schema import Fields
from weir.errors import Misconfigured

_FOLDER: Final = re.compile(r"([^=]+)=(.*)", re.DOTALL)
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""What folders of tables have for null."""

_WHOLE_NUMBER: Final = re.compile(r"0|-?[1-9]\d{0,17}")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_INT: Final = range(-(2**31), 2**31)


def columns_of(paths: Iterable[str], declared: Fields | None) -> list[dict[str, Any]]:
    """Return the columns in the names of the files' folders: each with its `name`, `folder` and Spark's `type`.

    Those that the schema names, by its types; without one, all: whole numbers, days, and else text, as it stands.
    Raises Misconfigured for a column in two spellings.
    """
    values: dict[str, set[str]] = {}
    for path in paths:
        for name, value in values_of(path).items():
            values.setdefault(name, set()).add(value)
    if declared is None:
        return [{"name": name, "folder": name, "type": _kind(found)} for name, found in values.items()]
    by_name = {name.casefold(): each for name, each in declared.items()}
    _require_one_spelling(values, by_name)
    return [
        {"name": by_name[name.casefold()].name, "folder": name, "type": str(by_name[name.casefold()].kind)}
        for name in values
        if name.casefold() in by_name
    ]


def _require_one_spelling(folders: Iterable[str], declared: Mapping[str, object]) -> None:
    seen: dict[str, str] = {}
    for name in folders:
        other = seen.setdefault(name.casefold(), name)
        if other != name and name.casefold() in declared:
            raise Misconfigured.of("sources.folders_spell_twice", other=other, name=name)


def values_of(path: str) -> dict[str, str]:
    """Return the values in the names of the folders next to each other, of which the lowest is nearest to the file."""
    found: dict[str, str] = {}
    for folder in reversed(path.split("/")[:-1]):
        named = _FOLDER.fullmatch(folder)
        if named is None and found:
            break
        if named is not None:
            found.setdefault(named[1], named[2])
    return dict(reversed(found.items()))


def _kind(values: Iterable[str]) -> str:
    known = [unquote(each) for each in values if each != NULL]
    if known and all(map(_WHOLE_NUMBER.fullmatch, known)):
        return "INT" if all(int(each) in _INT for each in known) else "BIGINT"
    return "DATE" if known and all(map(_is_day, known)) else "STRING"


def _is_day(text: str) -> bool:
    try:
        return bool(_DAY.fullmatch(text) and date.fromisoformat(text))
    except ValueError:
        return False
