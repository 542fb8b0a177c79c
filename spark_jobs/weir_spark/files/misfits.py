"""Finds a line that does not fit in its file: its number, the column and the value. Invariant: it guesses nothing.

`lines` refuses such a line by its text, since Spark knows no numbers of lines. Here the text is looked for, once it has
failed a region.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

from weir.dataflow.state_schema import fields_of_ddl
from weir.errors import Message, Misconfigured
from weir_spark.files.paths import spark_path

PLACE: Final = "weir_place_in_file"
"""The attribute of an error with the place of the line that it refuses."""

_TOLD: Final = re.compile(
    r"a line does not fit the schema struct<(?P<schema>.*?)>: in (?P<file>\S+?), (?P<line>.*), of which Spark reads "
    r"(?P<read>\{.*)\. Correct schema=",
    re.DOTALL,
)
_CHANGED: Final = re.compile(r"a value that would be another one as (?P<columns>.+)", re.DOTALL)
_READ: Final = re.compile(r'"((?:[^"\\]|\\.)*)":("(?:[^"\\]|\\.)*"|[^,{}\[\]]+)')
_SEPARATORS: Final = ",;\t|"
_SHOWN: Final = 100
_TOLD_OF_ROW: Final = 300
"""The characters of a line and of a row that are told."""

_PLACES: Final = 33
"""The bits of Spark's increasing numbers that count within a partition."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """A line that does not fit, as the error tells of it: its text, unless only a value would be another one."""

    file: str
    columns: tuple[tuple[str, str], ...]
    line: str
    read: Mapping[str, str]
    """The values that Spark has read, as texts, by column."""
    texts: tuple[str, ...] = ()
    """Those of them that Spark has read as texts, so that the line has them as they are."""
    changed: str = ""
    """The columns with such a value, with their types."""
    is_cut: bool = False
    """True if what Spark has read is told in part only."""

    @classmethod
    def of(cls, message: str) -> Misfit | None:
        """Read the message of `lines`; None if it is another one."""
        found = _TOLD.search(message)
        if found is None:
            return None
        try:
            fields = fields_of_ddl(re.sub(r"(^|,)([^,:<>()]+):", r"\1\2 ", found["schema"]))
        except Misconfigured:
            fields = {}
        columns = tuple((name, str(each.kind)) for name, each in fields.items())
        values = _READ.findall(found["read"])
        read = {name: _as_text(value) for name, value in values}
        changed = _CHANGED.fullmatch(found["line"])
        return cls(
            file=found["file"],
            columns=columns,
            line="" if changed else found["line"],
            read=read,
            texts=tuple(_as_text(value) for _, value in values if value.startswith('"')),
            changed=changed["columns"] if changed else "",
            is_cut=len(found["read"]) >= _TOLD_OF_ROW,
        )

    @property
    def parts(self) -> tuple[str, ...]:
        """Texts that the line has, by which it is found."""
        if self.line:
            return tuple(self.line.splitlines()[:1])
        texts = [part for each in self.texts for part in each.split('"') if part]
        return tuple(dict.fromkeys(texts))

    def values(self) -> Iterator[str]:
        """Yield what is wrong with columns, with their values as they are written."""
        if self.changed:
            for each in self.changed.split(", "):
                name = each.rpartition(" ")[0]
                yield f"column {each} has {_short(self.read.get(name, ''))}"
            return
        if len(self.line) >= _TOLD_OF_ROW or self.is_cut:
            return
        written = _written(self.line, [name for name, _ in self.columns])
        if not written and self.columns and not self.line.lstrip().startswith("{"):
            found = max(len(_divided(self.line, each)) for each in _SEPARATORS)
            yield Message("files.values_and_columns", found=found, columns=len(self.columns))
        for name, kind in self.columns:
            if written.get(name, "") and name not in self.read:
                yield f"column {name} {kind} has {_short(written[name])}"


def place_of(session: SparkSession, message: str) -> str:
    """Return where the line is that a message tells of, and what is wrong there; empty where it tells of none."""
    misfit = Misfit.of(message)
    if misfit is None:
        return ""
    number = _number_of(session, misfit)
    line = "" if number is None else f"line {number} of {unquote(misfit.file).rpartition('/')[2]}"
    return ": ".join(each for each in (line, "; ".join(misfit.values())) if each)


def _number_of(session: SparkSession, misfit: Misfit) -> int | None:
    """Return the number of the first line that has all of some texts; None where there is none."""
    if not misfit.parts:
        return None
    file = unquote(misfit.file).removeprefix("file://") if misfit.file.startswith("file:/") else misfit.file
    text = session.read.text(spark_path(file))
    is_it = reduce(Column.__and__, (F.col("value").contains(each) for each in misfit.parts))
    # A column of its own: within a condition it would count the rows that meet that.
    numbered = text.withColumn("number", F.monotonically_increasing_id())
    by_part = (
        numbered.select(F.shiftright("number", _PLACES).alias("part"), F.when(is_it, F.col("number")).alias("at"))
        .groupBy("part")
        .agg(F.count(F.lit(1)).alias("rows"), F.min("at").alias("at"))
        .orderBy("part")
        .collect()
    )
    before = 0
    for each in by_part:
        if each["at"] is not None:
            return before + (int(each["at"]) & ((1 << _PLACES) - 1)) + 1
        before += int(each["rows"])
    return None


def _written(line: str, names: Sequence[str]) -> dict[str, str]:
    """Return the values of a line by column, as they are written; nothing where that is not clear."""
    if line.lstrip().startswith("{"):
        try:
            found: Any = json.loads(line)
        except ValueError:
            return {}
        return {name: json.dumps(value) for name, value in found.items() if value is not None}
    divided = [values for each in _SEPARATORS if len(values := _divided(line, each)) == len(names)]
    return dict(zip(names, divided[0], strict=True)) if divided else {}


def _divided(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []


def _as_text(value: str) -> str:
    try:
        found = json.loads(value)
    except ValueError:
        return value.strip()
    return found if isinstance(found, str) else value.strip()


def _short(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}...")
