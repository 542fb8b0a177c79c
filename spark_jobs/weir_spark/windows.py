"""Windows over event time, from epoch to epoch: rows come late and in any order, and windows close by a watermark.

One stage makes the watermark of what has arrived; stages that keep open windows in keyed state read it.
Names mean what they do in Spark's `withWatermark`, `window` and `session_window`; allowed lateness is Flink's.

Invariants: an epoch's answer follows from its rows, its watermark and the state before, and from nothing else. A row is
late by the watermark that the epoch before has ended with; a window fires by that of its own epoch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.window import Window as Over

from weir.errors import Misconfigured
from weir_spark.region.context import StageContext
from weir_spark.results.digest import computed_once, quoted
from weir_spark.state.keyed_state import KeyedState
from weir_spark.state.operator_state import ListState

__all__ = ["Window", "late_rows", "session_window", "watermark", "window", "windowed"]

_DURATION = re.compile(r"(\d{1,6}) ?(second|minute|hour|day|week)s?")
_CALL = re.compile(r"\s*([a-z_]+)\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_OPEN = "open"
_ROWS = "rows"
_OWN = ("window", "firing")
_START, _END, _NEW, _PART = ("_weir_start", "_weir_end", "_weir_new", "_weir_part")
_SPAN, _FIRING = ("_weir_window", "_weir_firing")  # beside rows that may have columns named as the result's


@dataclass(frozen=True, slots=True)
class Window:
    """The windows that a row is in, by the time in its column `time`; sizes are in microseconds.

    A session has a gap (`size`) and no `slide`: it ends when no row has come for so long.
    """

    time: str
    size: int
    slide: int = 0
    start: int = 0

    @property
    def is_session(self) -> bool:
        """Whether it is a session window."""
        return not self.slide

    def last_end(self) -> Column:
        """The end of the last window that a row is in, of a session that of a session of its own."""
        at = F.unix_micros(F.col(quoted(self.time)))
        if self.is_session:
            return at + F.lit(self.size)
        return at - F.pmod(at - F.lit(self.start), F.lit(self.slide)) + F.lit(self.size)

    def starts(self) -> Column:
        """The starts of the windows that a row is in, or of its own session, as an array."""
        if self.is_session:
            return F.array(F.unix_micros(F.col(quoted(self.time))))
        at, last = F.unix_micros(F.col(quoted(self.time))), self.last_end() - F.lit(self.size)
        first = last - F.lit((self.size - 1) // self.slide * self.slide)
        return F.filter(F.sequence(first, last, F.lit(self.slide)), lambda start: start + F.lit(self.size) > at)


def window(
    timeColumn: str,  # noqa: N803  Spark's names
    windowDuration: str,  # noqa: N803
    slideDuration: str | None = None,  # noqa: N803
    startTime: str | None = None,  # noqa: N803
) -> Window:
    """Return tumbling windows, or sliding ones, as Spark's function of this name makes them: aligned to 1970 in UTC.

    Durations are texts such as "1 hour", "90 seconds", "1 day". Raises Misconfigured for any other, and for a slide
    that is longer than the window.
    """
    size = _micros("windowDuration", windowDuration)
    slide = size if slideDuration is None else _micros("slideDuration", slideDuration)
    if slide > size:
        raise Misconfigured.of("windows.slide_too_long", slide=slideDuration, size=windowDuration)
    return Window(timeColumn, size, slide, 0 if startTime is None else _micros("startTime", startTime, least=0) % slide)


def session_window(timeColumn: str, gapDuration: str) -> Window:  # noqa: N803  as above
    """Return session windows, as Spark's function of this name: rows of a key that are at most the gap apart."""
    return Window(timeColumn, _micros("gapDuration", gapDuration))


def watermark(
    ctx: StageContext,
    rows: DataFrame,
    arrived: ListState,
    eventTime: str,  # noqa: N803  Spark's names
    delayThreshold: str,  # noqa: N803
    *,
    split: str | None = None,
    idle: str | None = None,
) -> DataFrame:
    """Return the watermark of an epoch: one row with `before` (of the epoch before) and `watermark`, both TIMESTAMP.

    It is the newest `eventTime` that has come, less `delayThreshold`, and never goes back; null until a row has come.
    With `split`, a column that names where a row comes from (a partition, a file, a site), it is that of the split
    whose newest row is the oldest. A split of which no row has come in the epochs of the last `idle` is forgotten.
    `arrived` is a list state of the stage, which must have one subtask. Rows without a time do not count. Raises
    Misconfigured.
    """
    if ctx.parallelism != 1:
        raise Misconfigured.of("windows.watermark_of_subtasks", parallelism=ctx.parallelism)
    _require_time(rows, eventTime)
    delay, quiet = _micros("delayThreshold", delayThreshold, least=0), None if idle is None else _micros("idle", idle)
    known = dict(next(iter(arrived.get()), {}))
    before, ended = known.get("watermark"), _since_1970(ctx.interval[1])
    # Splits that another column has named do not come again.
    splits = dict(known["splits"]) if known and known["split"] == split else {}
    name = F.lit("") if split is None else F.coalesce(F.col(quoted(split)).cast("string"), F.lit(""))
    at = F.unix_micros(F.col(quoted(eventTime)))
    for row in rows.groupBy(name.alias("split")).agg(F.max(at).alias("at")).where("at IS NOT NULL").collect():
        splits[row["split"]] = [max(row["at"], splits.get(row["split"], [row["at"]])[0]), ended]
    if quiet is not None:
        splits = {name: (newest, seen) for name, (newest, seen) in splits.items() if ended - seen < quiet}
    counted = [newest for newest, _ in splits.values()]
    reached = [each for each in (before, min(counted) - delay if counted else None) if each is not None]
    now = max(reached, default=None)
    arrived.update([{"split": split, "splits": splits, "watermark": now}])
    made = rows.sparkSession.createDataFrame([(before, now)], "before BIGINT, watermark BIGINT")
    return made.select(*(F.timestamp_micros(F.col(each)).alias(each) for each in ("before", "watermark")))


def late_rows(rows: DataFrame, marks: DataFrame, over: Window, lateness: str = "0 seconds") -> DataFrame:
    """Return the rows that `windowed` leaves out, as all their windows had been given up: a side output.

    For a stage of its own, with the same `rows`, `marks`, `over` and `lateness`: its rows are counted as those of any
    result are. A row of a session is judged by a session of its own. Raises Misconfigured.
    """
    _require_over(rows, over)
    before, kept = _bounds(marks)[0], _micros("lateness", lateness, least=0)
    if before is None:
        return rows.limit(0)
    return rows.where(over.last_end() + F.lit(kept) <= F.lit(before))


def windowed(
    rows: DataFrame,
    marks: DataFrame,
    state: KeyedState,
    by: str | Sequence[str],
    over: Window,
    aggregates: Mapping[str, str],
    *,
    lateness: str = "0 seconds",
    early: bool = False,
) -> DataFrame:
    """Aggregate rows by key and window, and return what fires in this epoch.

    `marks` are the rows of `watermark` (of several sources, the least counts). `by` names the key columns, which are
    the keys of `state`. `aggregates` are aggregate expressions of Spark's SQL by the name of their column. Those of the
    forms count, sum, min, max, avg, count_if, bool_and and bool_or of one argument are kept as such; with any other,
    `state` has the rows of the open windows.

    Returns the key columns, `window` (a STRUCT of `start` and `end`, as Spark's), the aggregates, and `firing`: each
    window once as `on_time`, in the epoch whose watermark reaches its end; as `late` in each epoch after that in which
    rows of it have come, until the watermark is `lateness` behind its end; with `early` also as `early` before that, in
    each epoch in which rows of it have come. Then it leaves the state. Rows that come for none of the windows that are
    left are those of `late_rows`; rows without a time are in no window. A session that has fired, and that a late row
    makes longer, is another window.

    Raises Misconfigured, with the schema that `state` has to have, where it has another.
    """
    keys = [by] if isinstance(by, str) else list(by)
    before, now = _bounds(marks)
    kept = _micros("lateness", lateness, least=0)
    _require_over(rows, over)
    _require_names(rows, keys, aggregates)
    partial = _partial(rows, keys, aggregates)
    _require_state(state, keys, partial, rows)
    new = rows.where(F.col(quoted(over.time)).isNotNull()).withColumn(_START, F.explode(over.starts()))
    new = new.withColumn(_END, F.col(_START) + F.lit(over.size))
    if before is not None:
        new = new.where(F.col(_END) + F.lit(kept) > F.lit(before))
    named = [F.col(quoted(each)) for each in keys]
    new = new.groupBy(*named, _START, _END).agg(*(each.made.alias(each.name) for each in partial.kept))
    new = new.withColumn(_NEW, F.expr("true"))
    old = (
        state.read()
        .select(*named, F.explode(_OPEN).alias(_PART))
        .select(
            *named,
            F.unix_micros(f"{_PART}.start").alias(_START),
            F.unix_micros(f"{_PART}.end").alias(_END),
            *(F.col(f"{_PART}.{quoted(each)}").alias(each) for each in partial.types),
            F.expr("false").alias(_NEW),
        )
    )
    both = old.unionByName(new)
    merged = (_sessions if over.is_session else _same_windows)(both, named, partial)
    _, merged = computed_once(merged)  # what fires and what is kept are of the same sums
    _keep(state, merged, named, partial, None if now is None else now - kept)
    return _fired(merged, named, partial, before, now, early=early)


# What is kept of a window


@dataclass(frozen=True, slots=True)
class _Kept:
    """A column that is kept of each open window: how it is made of rows, and of what was made of them before."""

    name: str
    made: Column
    merged: Column


@dataclass(frozen=True, slots=True)
class _Partial:
    """Partial aggregates of windows, or their rows where an aggregate has no partial form."""

    kept: tuple[_Kept, ...]
    types: Mapping[str, T.DataType]
    results: Mapping[str, tuple[Column, T.DataType]]
    """By aggregate, how it is made of what is kept (of the rows), and its type."""
    has_rows: bool = False

    def merge(self) -> list[Column]:
        """Return what is kept of pieces of a window together."""
        return [each.merged.cast(self.types[each.name]).alias(each.name) for each in self.kept]


def _partial(rows: DataFrame, keys: Sequence[str], aggregates: Mapping[str, str]) -> _Partial:
    """Return what is kept of open windows. Raises Misconfigured for MAPs."""
    whole = {name: F.expr(text) for name, text in aggregates.items()}
    types = _types(rows, [each.alias(name) for name, each in whole.items()])
    calls = {name: _call(text, types[name]) for name, text in aggregates.items()}
    if all(calls.values()):
        kept = tuple(each for name, call in calls.items() if call for each in _columns(name, *call))
        if len({name.lower() for name in (*keys, *(each.name for each in kept))}) == len(keys) + len(kept):
            of_kept = _types(rows, [each.made.alias(each.name) for each in kept])
            results = {name: (_result(name, call[0]), types[name]) for name, call in calls.items() if call}
            return _Partial(kept, of_kept, results)
    columns = [each for each in rows.schema.fields if each.name not in keys]
    unsorted = [each.name for each in columns if "map<" in each.dataType.simpleString()]
    if unsorted:
        raise Misconfigured.of("windows.map_in_rows", columns=unsorted)
    row = F.struct(*(F.col(quoted(each.name)) for each in columns))
    pieces = F.flatten(F.collect_list(F.col(_ROWS)))
    of_rows = _Kept(_ROWS, F.array_sort(F.collect_list(row)), F.array_sort(pieces))
    return _Partial(
        (of_rows,),
        {_ROWS: T.ArrayType(T.StructType(columns))},
        {name: (each, types[name]) for name, each in whole.items()},
        has_rows=True,
    )


def _types(rows: DataFrame, columns: Sequence[Column]) -> dict[str, T.DataType]:
    return {each.name: each.dataType for each in rows.groupBy().agg(*columns).schema.fields}


def _call(text: str, result: T.DataType) -> tuple[str, str] | None:
    """Return the function and the argument of an aggregate that has a partial form; None for any other."""
    found = _CALL.fullmatch(text)
    if found is None or not _is_one_argument(found[2]):
        return None
    name = {"mean": "avg", "every": "bool_and", "any": "bool_or", "some": "bool_or"}.get(*[found[1].lower()] * 2)
    if name == "avg" and not isinstance(result, T.DoubleType):
        return None  # of decimals
    return (name, found[2]) if name in _MERGED else None


_MERGED = {
    **dict.fromkeys(("count", "sum", "count_if", "avg"), F.sum),
    "min": F.min,
    "max": F.max,
    "bool_and": F.bool_and,
    "bool_or": F.bool_or,
}


def _is_one_argument(text: str) -> bool:
    """Report whether it is one argument without DISTINCT: no comma and no closing parenthesis of its own."""
    depth = 0
    for character in re.sub(r"'[^']*'|`[^`]*`|\"[^\"]*\"", "", text):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if depth < 0 or (depth == 0 and character == ","):
            return False
    return not re.match(r"\s*(distinct|all)\b", text, re.IGNORECASE)


def _columns(name: str, function: str, argument: str) -> list[_Kept]:
    parts = [(name, f"{function}({argument})")]
    if function == "avg":
        parts = [(f"{name}_sum", f"sum(CAST({argument} AS DOUBLE))"), (f"{name}_count", f"count({argument})")]
    merged = _MERGED[function]
    return [_Kept(each, F.expr(text), merged(F.col(quoted(each)))) for each, text in parts]


def _result(name: str, function: str) -> Column:
    if function != "avg":
        return F.col(quoted(name))
    count = F.col(quoted(f"{name}_count"))
    return F.when(count > 0, F.col(quoted(f"{name}_sum")) / count)


# Pieces of windows, and windows


def _same_windows(pieces: DataFrame, named: Sequence[Column], partial: _Partial) -> DataFrame:
    return pieces.groupBy(*named, _START, _END).agg(*partial.merge(), F.bool_or(_NEW).alias(_NEW))


def _sessions(pieces: DataFrame, named: Sequence[Column], partial: _Partial) -> DataFrame:
    """Merge sessions of a key that overlap, or of which one ends where the other begins."""
    in_order = Over.partitionBy(*named).orderBy(_START, _END)
    reached = F.max(_END).over(in_order.rowsBetween(Over.unboundedPreceding, -1))
    begins = F.when(reached.isNull() | (F.col(_START) > reached), 1).otherwise(0)
    numbered = pieces.withColumn(_PART, begins).withColumn(_PART, F.sum(_PART).over(in_order))
    edges = (F.min(_START).alias(_START), F.max(_END).alias(_END))
    return numbered.groupBy(*named, _PART).agg(*edges, *partial.merge(), F.bool_or(_NEW).alias(_NEW)).drop(_PART)


def _keep(state: KeyedState, merged: DataFrame, named: Sequence[Column], partial: _Partial, until: int | None) -> None:
    """Let the state have the windows that end after `until` (None: all), and no key without any."""
    left = merged if until is None else merged.where(F.col(_END) > F.lit(until))
    piece = F.struct(*_edges(), *(F.col(quoted(each)) for each in partial.types))
    rows = left.groupBy(*named).agg(F.array_sort(F.collect_list(piece)).alias(_OPEN))
    state.delete(merged.select(*named).distinct())
    state.upsert(rows, only_changed=True)  # of several changes of a key, the last one counts


def _edges() -> tuple[Column, Column]:
    return F.timestamp_micros(_START).alias("start"), F.timestamp_micros(_END).alias("end")


def _fired(
    merged: DataFrame, named: Sequence[Column], partial: _Partial, before: int | None, now: int | None, *, early: bool
) -> DataFrame:
    end = F.col(_END)
    is_over = F.expr("false") if now is None else end <= F.lit(now)
    was_over = F.expr("false") if before is None else end <= F.lit(before)
    fires = (is_over & ~was_over) | (F.col(_NEW) & (is_over | F.lit(early)))
    firing = F.when(was_over, "late").when(is_over, "on_time").otherwise("early")
    fired = merged.where(fires).withColumn(_SPAN, F.struct(*_edges())).withColumn(_FIRING, firing)
    results = [each.cast(of).alias(name) for name, (each, of) in partial.results.items()]
    if partial.has_rows:
        of_window = [*named, F.col(_SPAN), F.col(_FIRING)]
        rows = fired.select(*of_window, F.explode(_ROWS).alias(_PART)).select(*of_window, f"{_PART}.*")
        fired = rows.groupBy(*of_window).agg(*results)
        results = [F.col(quoted(name)) for name in partial.results]
    return fired.select(*named, F.col(_SPAN).alias(_OWN[0]), *results, F.col(_FIRING).alias(_OWN[1]))


# What is declared


def _bounds(marks: DataFrame) -> tuple[int | None, int | None]:
    """Return the watermarks before and now, in microseconds: the least of all rows, None where one has none yet."""
    if not {"before", "watermark"} <= set(marks.columns):
        raise Misconfigured.of("windows.no_marks", columns=marks.columns)
    found = marks.select(F.unix_micros("before"), F.unix_micros("watermark")).collect()
    least = [None if not of or None in of else min(of) for of in zip(*map(tuple, found), strict=True)]
    before, now = least or (None, None)
    return before, now


def _require_time(rows: DataFrame, name: str) -> None:
    types = {each.name: each.dataType for each in rows.schema.fields}
    if not isinstance(types.get(name), T.TimestampType):
        shown = types[name].simpleString().upper() if name in types else "no column"
        raise Misconfigured.of("windows.time_unfit", name=name, found=shown, columns=list(types))


def _require_over(rows: DataFrame, over: Window) -> None:
    if not isinstance(over, Window):
        raise Misconfigured.of("windows.no_window", found=type(over).__name__)
    _require_time(rows, over.time)


def _require_names(rows: DataFrame, keys: Sequence[str], aggregates: Mapping[str, str]) -> None:
    """Require keys that the rows have, aggregates that are texts, and names that no two columns share for Spark."""
    missing = [each for each in keys if each not in rows.columns]
    if missing:
        raise Misconfigured.of("windows.key_missing", missing=missing, columns=rows.columns)
    if not aggregates or not all(isinstance(text, str) for text in aggregates.values()):
        raise Misconfigured.of("windows.no_texts", found=aggregates)
    for names, others in ((keys, [*_OWN, _OPEN, _ROWS]), (aggregates, [*keys, *_OWN, "start", "end"])):
        taken = list(others)
        for name in names:
            if name.lower() in map(str.lower, taken):
                raise Misconfigured.of("windows.name_taken", name=name, taken=taken)
            taken.append(name)


def _require_state(state: KeyedState, keys: Sequence[str], partial: _Partial, rows: DataFrame) -> None:
    """Require the schema that a state of open windows has: its keys, and an array."""
    edges = [T.StructField("start", T.TimestampType()), T.StructField("end", T.TimestampType())]
    open_ = T.ArrayType(T.StructType([*edges, *(T.StructField(name, of) for name, of in partial.types.items())]))
    wanted = {**{each.name: each.dataType for each in rows.schema.fields if each.name in keys}, _OPEN: open_}
    found = {each.name: each.dataType for each in state.stored.schema.fields}
    declared, shown = state.stored.read.state, {name: _ddl(of) for name, of in wanted.items()}
    if {name: _ddl(of) for name, of in found.items()} != shown or {*state.stored.keys} != {*keys}:
        schema = ", ".join(f"{_spelled(name)} {of}" for name, of in shown.items())
        raise Misconfigured.of("windows.state_unfit", state=declared.name, keys=list(keys), schema=schema)
    if declared.ttl is not None:
        raise Misconfigured.of("windows.state_expires", state=declared.name, ttl=declared.ttl)


def _ddl(of: T.DataType) -> str:
    """Spell a type as in the schema of a state, with the names of its fields."""
    if isinstance(of, T.ArrayType):
        return f"ARRAY<{_ddl(of.elementType)}>"
    if isinstance(of, T.StructType):
        return f"STRUCT<{', '.join(f'{_spelled(each.name)}: {_ddl(each.dataType)}' for each in of.fields)}>"
    return str(of.simpleString()).upper()


def _spelled(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_]+", name) else quoted(name)


def _micros(what: str, text: str, least: int = 1) -> int:
    """Return a duration in microseconds. Raises Misconfigured."""
    found = _DURATION.fullmatch(str(text).strip().lower())
    if found is None or int(found[1]) < least:
        raise Misconfigured.of("windows.duration_malformed", what=what, text=text)
    return timedelta(**{f"{found[2]}s": int(found[1])}) // timedelta(microseconds=1)


def _since_1970(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
