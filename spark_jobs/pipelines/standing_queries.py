"""The stage functions of `dags/standing_queries.py`: queries over flights that are added and removed while it runs.

It is the pipeline of "State Management in Apache Flink" (Carbone et al., VLDB 2017), section 5.1: queries are a source,
too, and kept as broadcast state; all of them are computed by one plan.

Invariant: a query's results follow from its definition and from the flights since the epoch that brought it, and from
no other query. A query that is wrong, or fails on a row, changes nothing but its own results.

A query's id is its name and the epoch since which it is as it is: a changed query has windows of its own.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it
from pyspark.sql import types as T  # noqa: N812

from weir_spark.session import SPARK_ERRORS
from weir_spark.windows import Window, watermark, window, windowed

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from pyspark.sql import Column, DataFrame

    from weir_spark.region.context import StageContext
    from weir_spark.state.keyed_state import KeyedState
    from weir_spark.state.operator_state import BroadcastState, ListState

EVENTS = (
    "carrier STRING, flight BIGINT, tailnum STRING, origin STRING, dest STRING, time_hour TIMESTAMP, distance BIGINT, "
    "status STRING, departure_delay BIGINT, arrival_delay BIGINT"
)
TIME = "time_hour"
DELAY = "6 hours"
"""Flights are expected in the order of their hours, but for so much."""
LATENESS = "2 days"
SUMS, MAXES = 6, 4
"""How many sums and maxima a query may be made of: the columns of the state, in the DAG file."""
STANDING = "id STRING, name STRING, since STRING, definition STRING, reason STRING"

_SLOTS = (*(f"sum_{each}" for each in range(SUMS)), *(f"max_{each}" for each in range(MAXES)))
_PIECES = f"query STRING, key STRING, pane BIGINT, reason STRING, {', '.join(f'{each} DOUBLE' for each in _SLOTS)}"
_NUMBER = "_weir_number"  # beside the columns of the flights
_CALL = re.compile(r"\s*(count|sum|min|max|avg|count_if)\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_TEXTS = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_LENGTH = re.compile(r"(?!0)\d{1,6} ?(second|minute|hour|day|week)s?", re.IGNORECASE)
_NO_TIME = re.compile(r"0 ?(second|minute|hour|day|week)s?", re.IGNORECASE)
_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|\w+|--|/\*|\S", re.DOTALL)
_OF_TEXTS = re.compile(r"(\w+) (?:= '[^'\\]*'|IN \( '[^'\\]*'(?: , '[^'\\]*')* \))", re.IGNORECASE)
_OF_NUMBERS = re.compile(
    r"(\w+) (?:(=|[<>](?: =)?) (-? ?\d{1,15})|BETWEEN (-? ?\d{1,15}) AND (-? ?\d{1,15}))", re.IGNORECASE
)
_TEXT_COLUMNS, _NUMBER_COLUMNS = (
    {each.split()[0] for each in EVENTS.split(", ") if each.endswith(of)} for of in (" STRING", " BIGINT")
)
_FAR = 10**16
_UNFIT = re.compile(r"\b(select|current_\w+|now|localtimestamp|curdate|unix_timestamp|session_user)\b", re.IGNORECASE)
"""Subqueries, and what is another value at each computation although Spark calls it deterministic."""
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]")


class Refused(Exception):
    """Says why a query cannot join the plan."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A result of a query: how it is made of its partial results, the first of which is in slot `place`."""

    name: str
    function: str
    argument: str
    place: int


@dataclass(frozen=True, slots=True)
class Query:
    """A query that runs."""

    id: str
    where: str
    key: str
    over: Window
    aggregates: tuple[Aggregate, ...]

    @classmethod
    def of(cls, id_: str, definition: str) -> Query:
        """Read a definition. Raises Refused."""
        told = json.loads(definition)
        size, slide, start = ([*(told["window"] or ()), None, None, None])[:3]
        if not (_LENGTH.fullmatch(size or "") and _LENGTH.fullmatch(slide or size)):
            raise Refused("window: it needs a size, such as 1 day, and the slide is such a time, too")
        if not _LENGTH.fullmatch(start or size) and not _NO_TIME.fullmatch(start):
            raise Refused("window: its start is no time, such as 5 hours")
        if window(TIME, size).size % window(TIME, slide or size).size:
            raise Refused("window: the slide does not divide the size")
        over = window(TIME, size, slide, start)
        used: Counter[bool] = Counter()
        aggregates = []
        for name, text in sorted((told["aggregates"] or {}).items()):
            call = _CALL.fullmatch(text or "")
            if call is None:
                raise Refused(f"{name}: {text!r} is none of count, sum, min, max, avg and count_if of one argument")
            function = call[1].lower()
            if call[2].strip() == "*" and function != "count":
                raise Refused(f"{name}: * is for count alone")
            is_max = function in {"min", "max"}
            aggregates.append(Aggregate(name, function, call[2].strip(), used[is_max]))
            used[is_max] += 2 if function == "avg" else 1
        if not aggregates:
            raise Refused("it has no aggregates")
        if used[False] > SUMS or used[True] > MAXES:
            raise Refused(f"it needs more than {SUMS} sums (an avg is two) or {MAXES} minima and maxima: make it two")
        return cls(id_, told["filter"] or "true", told["key"] or "''", over, tuple(aggregates))

    def slots(self) -> dict[str, Column]:
        """The values of a row of which the slots are the sums and the maxima: a minimum is that of the negatives."""
        found = {}
        for each in self.aggregates:
            of = F.lit(1) if each.argument == "*" else F.expr(each.argument)
            if each.function in {"min", "max"}:
                found[f"max_{each.place}"] = -of.cast("double") if each.function == "min" else of.cast("double")
            elif each.function in {"sum", "avg"}:
                found[f"sum_{each.place}"] = of.cast("double")
            if each.function == "count_if":
                found[f"sum_{each.place}"] = F.when(of, 1.0).otherwise(0.0)
            elif each.function in {"count", "avg"}:
                place = each.place + (each.function == "avg")
                found[f"sum_{place}"] = F.when(of.isNotNull(), 1.0).otherwise(0.0)
        return found


# The queries


def standing(ctx: StageContext, changes: DataFrame, queries: BroadcastState) -> DataFrame:
    """Apply an epoch's changes to the queries.

    Input: name, remove (boolean), filter, key (SQL expressions), window (array of the arguments of Spark's `window`),
    aggregates (map of SQL by name), _corrupt_record, _corrupt_file. A line of a name that is known changes the query;
    one that is refused leaves it as it was. State and output: the columns of `STANDING`: the queries that run, and in
    the output also those that this epoch has refused, with the reason.
    """
    empty = changes.sparkSession.createDataFrame([], EVENTS)
    known = {row["name"]: tuple(row) for row in queries.read().collect()}
    lines = [row.asDict() for row in changes.collect()]
    times = Counter(line["name"] for line in lines)
    refused = []
    for line in sorted(lines, key=str):
        name = line["name"] or ""
        told = {each: line[each] for each in ("filter", "key", "window", "aggregates")}
        definition = json.dumps(told, sort_keys=True, default=dict)
        reason = problem_of(line, times[name], definition, empty)
        if reason is not None:
            named = name or str(line["_corrupt_file"] or "").rpartition("/")[2]
            refused.append((None, named, ctx.epoch, line["_corrupt_record"] or definition, reason))
        elif line["remove"]:
            known.pop(name, None)
        elif name not in known or known[name][3] != definition:
            known[name] = (f"{name}@{ctx.epoch}", name, ctx.epoch, definition, None)
    running = [known[name] for name in sorted(known)]
    queries.update(changes.sparkSession.createDataFrame(running, STANDING))
    return changes.sparkSession.createDataFrame([*running, *refused], STANDING)


def problem_of(line: dict[str, Any], times: int, definition: str, empty: DataFrame) -> str | None:
    """Say why a line is refused, or nothing: each query is analysed by itself, over no rows."""
    if line["_corrupt_record"] is not None:
        return "it is no line of JSON with the fields of a query"
    if not line["name"]:
        return "it has no name"
    if times > 1:
        return "its name is there more than once in this epoch"
    if line["remove"]:
        return None
    try:
        query = Query.of("", definition)
        _require(empty, "filter", query.where, (T.BooleanType,))
        _require(empty, "key", query.key, (T.AtomicType,))
        for each in query.aggregates:
            if each.argument != "*":
                _require(empty, each.name, each.argument, _ARGUMENTS.get(each.function, (T.NumericType,)))
    except Refused as error:
        return str(error)
    return None


_ARGUMENTS = {"count": (T.DataType,), "count_if": (T.BooleanType,)}


def _require(empty: DataFrame, what: str, text: str, types: tuple[type, ...]) -> None:
    """Require one deterministic expression of a row: Spark analyses it as the argument of an aggregate."""
    unfit = _UNFIT.search(_TEXTS.sub("", text))
    if unfit:
        raise Refused(f"{what}: {unfit[0]} is not allowed")
    try:
        found = empty.select(F.expr(text)).schema.fields
        empty.groupBy().agg(F.count(F.expr(text))).schema  # noqa: B018  # a request: Spark analyses it
    except SPARK_ERRORS as error:
        raise Refused(f"{what}: {_condition(error)}") from error
    if len(found) != 1 or not isinstance(found[0].dataType, types):
        wanted = " or ".join(each.__name__.removesuffix("Type").lower() for each in types)
        raise Refused(f"{what}: {text!r} is {', '.join(each.dataType.simpleString() for each in found)}, not {wanted}")


def _condition(error: Exception) -> str:
    """Name Spark's condition alone: the rest of a message may name another row at each try."""
    found = _CONDITION.search(str(error))
    return found[1] if found else type(error).__name__


def _running(standing: DataFrame) -> list[Query]:
    rows = standing.where("reason IS NULL").select("id", "definition").collect()
    return [Query.of(*row) for row in sorted(rows)]


# One plan


def marks(ctx: StageContext, flights: DataFrame, arrived: ListState) -> DataFrame:
    """Make the watermark of all flights. Input: the columns of `EVENTS`."""
    return watermark(ctx, flights, arrived, TIME, DELAY)


def pieces(ctx: StageContext, flights: DataFrame, standing: DataFrame) -> DataFrame:  # noqa: ARG001
    """Aggregate the flights of an epoch for all queries in one pass, by query, key and pane (a slide of its windows).

    Inputs: the columns of `EVENTS` and of `STANDING`. Output: query (its id), key, pane (bigint, seconds, where it
    begins), the slots; and a row with a reason for each query that fails on a row: it is found by halving.
    """
    queries, failed = _running(standing), {}
    try:
        found = _in_one_pass(flights, queries).localCheckpoint(eager=True)
    except SPARK_ERRORS:
        flights = flights.localCheckpoint(eager=True)  # raises if it is the flights themselves that cannot be read
        failed = dict(_failing(flights, queries))
        found = _in_one_pass(flights, [each for each in queries if each.id not in failed])
        found = found.localCheckpoint(eager=True)
    rows = [(id_, None, None, reason, *[None] * len(_SLOTS)) for id_, reason in sorted(failed.items())]
    return found.unionByName(flights.sparkSession.createDataFrame(rows, _PIECES))


def _failing(flights: DataFrame, queries: Sequence[Query]) -> Iterator[tuple[str, str]]:
    """Yield the queries that fail, each with its reason."""
    try:
        _in_one_pass(flights, queries).localCheckpoint(eager=True)
    except SPARK_ERRORS as error:
        if len(queries) == 1:
            yield queries[0].id, _condition(error)
            return
        middle = len(queries) // 2
        yield from _failing(flights, queries[:middle])
        yield from _failing(flights, queries[middle:])


def _in_one_pass(flights: DataFrame, queries: Sequence[Query]) -> DataFrame:
    """Match each flight with all queries, and sum up. Only the values of queries that a flight matches are computed."""
    if not queries:
        return flights.sparkSession.createDataFrame([], _PIECES)
    values = [each.slots() for each in queries]
    used = [slot for slot in _SLOTS if any(slot in each for each in values)]
    matched = _matched(flights.where(F.col(TIME).isNotNull()), [each.where for each in queries])
    at = F.unix_seconds(TIME)
    slide, start = (
        _by_query([F.lit(getattr(each.over, of) // 1_000_000) for each in queries]) for of in ("slide", "start")
    )
    rows = matched.select(
        F.col(_NUMBER).alias("number"),
        _by_query([F.expr(each.key).cast("string") for each in queries]).alias("key"),
        (at - F.pmod(at - start, slide)).cast("bigint").alias("pane"),
        *(_by_query([each.get(slot) for each in values]).cast("double").alias(slot) for slot in used),
    )
    names = F.array(*(F.lit(each.id) for each in queries))
    return (
        rows.groupBy("number", "key", "pane")
        .agg(*((F.sum if slot.startswith("sum") else F.max)(slot).alias(slot) for slot in used))
        .select(
            F.element_at(names, F.col("number") + 1).alias("query"),
            "key",
            "pane",
            F.lit(None).cast("string").alias("reason"),
            *((F.col(slot) if slot in used else F.lit(None).cast("double")).alias(slot) for slot in _SLOTS),
        )
    )


def _matched(flights: DataFrame, conditions: Sequence[str]) -> DataFrame:
    """Return each flight once for each query that it matches, with the number of that query.

    A filter that can only be true of flights with one of some texts in a column, or with a number in a range, is looked
    up by these: only such flights are tested. Of the others each flight is tested.
    """
    by_text: dict[str, dict[str, list[int]]] = {}
    by_range: dict[str, list[tuple[int, range]]] = {}
    tested: list[Column] = []
    rests: list[Column | None] = []
    for number, condition in enumerate(conditions):
        place = place_of(condition)
        if isinstance(place.among, range):
            by_range.setdefault(place.column, []).append((number, place.among))
        for text in place.among if isinstance(place.among, tuple) else ():
            by_text.setdefault(place.column, {}).setdefault(text, []).append(number)
        if place.among is None:
            tested.append(F.when(F.expr(condition), number).otherwise(-1))
        rests.append(F.expr(place.rest))
    none = F.array().cast("ARRAY<INT>")
    found = [F.array_remove(F.array(*tested), -1) if tested else none]
    for column, numbers in by_text.items():
        name = f"{_NUMBER}_{column}"
        rows = flights.sparkSession.createDataFrame([*numbers.items()], f"{name}_text STRING, {name} ARRAY<INT>")
        flights = flights.join(F.broadcast(rows), F.col(column) == F.col(f"{name}_text"), "left")
        found.append(F.coalesce(name, none))
    for column, ranges in by_range.items():
        flights, numbers = _by_range(flights, column, ranges)
        found.append(F.coalesce(numbers, none))
    # Spark compiles what a projection computes, and interprets what is exploded.
    flights = flights.withColumn(f"{_NUMBER}s", F.concat(*found))
    return flights.withColumn(_NUMBER, F.explode(f"{_NUMBER}s")).where(_by_query(rests))


@dataclass(frozen=True, slots=True)
class Place:
    """Where the flights are for which a condition may be true: in `column` they have one of these values; None: all.

    Of them the condition is true if `rest` is.
    """

    column: str
    among: tuple[str, ...] | range | None
    rest: str


def place_of(condition: str) -> Place:
    """Return a place that a condition names: the first column that has one of some texts, else a number in a range."""
    parts = _conjunction(condition)
    ranges: dict[str, dict[int, range]] = {}
    for at, part in enumerate(parts):
        tokens = _TOKEN.findall(part)
        words = " ".join(tokens)
        text, number = _OF_TEXTS.fullmatch(words), _OF_NUMBERS.fullmatch(words)
        if text and text[1].lower() in _TEXT_COLUMNS:
            found = {each[1:-1] for each in tokens if each.startswith("'")}
            return Place(text[1].lower(), tuple(sorted(found)), _without(parts, {at}))
        if number and number[1].lower() in _NUMBER_COLUMNS:
            ranges.setdefault(number[1].lower(), {})[at] = _range(number)
    for column, bounds in ranges.items():
        among = range(max(each.start for each in bounds.values()), min(each.stop for each in bounds.values()))
        if among.start > -_FAR and among.stop < _FAR:
            return Place(column, among, _without(parts, bounds.keys()))
    return Place("", None, condition)


def _without(parts: Sequence[str], some: Container[int]) -> str:
    return " AND ".join(part for at, part in enumerate(parts) if at not in some) or "true"


def _range(found: re.Match[str]) -> range:
    """Return the whole numbers for which a part is true that `_OF_NUMBERS` matches."""
    _, operator, *numbers = (each and each.replace(" ", "") for each in found.groups())
    bound, low, high = (int(each or 0) for each in numbers)
    if operator is None:
        return range(low, high + 1)
    begin = {">": bound + 1, ">=": bound, "=": bound}.get(operator, -_FAR)
    return range(begin, {"<": bound, "<=": bound + 1, "=": bound + 1}.get(operator, _FAR))


def _conjunction(condition: str) -> list[str]:
    """Return the parts of a condition that must all be true; the whole of it where they are not known."""
    parts, begin, depth, is_between = [], 0, 0, False
    for token in _TOKEN.finditer(condition):
        word = token[0].upper()
        depth += (word in ("(", "CASE")) - (word in (")", "END"))
        if depth < 0 or word in ("--", "/*") or (word == "OR" and depth == 0):
            return [condition]
        if depth == 0 and word == "AND" and not is_between:
            parts.append(condition[begin : token.start()].strip())
            begin = token.end()
        is_between = depth == 0 and (word == "BETWEEN" or (is_between and word != "AND"))
    return [*parts, condition[begin:].strip()]


def _by_range(flights: DataFrame, column: str, ranges: Sequence[tuple[int, range]]) -> tuple[DataFrame, Column]:
    """Join flights with the queries whose range has their value in a column; return the numbers of these queries.

    The values are divided into stretches as long as a mean range, by which the ranges are looked up.
    """
    name, value = f"{_NUMBER}_{column}_range", F.col(column)
    length = max(1, sum(max(0, each.stop - each.start) for _, each in ranges) // len(ranges))
    by_stretch: dict[int, list[tuple[int, int, int]]] = {}
    for number, each in ranges:
        for stretch in range(each.start // length, (each.stop - 1) // length + 1):
            by_stretch.setdefault(stretch, []).append((number, each.start, each.stop))
    rows = flights.sparkSession.createDataFrame(
        [*by_stretch.items()],
        f"{name}_stretch BIGINT, {name} ARRAY<STRUCT<number: INT, start: BIGINT, stop: BIGINT>>",
    )
    stretch = F.floor(value / F.lit(length))
    flights = flights.join(F.broadcast(rows), stretch == F.col(f"{name}_stretch"), "left")
    those = F.filter(name, lambda each: (value >= each["start"]) & (value < each["stop"]))
    return flights, F.transform(those, lambda each: each["number"])


def _by_query(values: Sequence[Column | None]) -> Column:
    """Choose the value of the query whose number a row has; equal values are one case."""
    cases: dict[str, Column] = {}
    for value in values:
        cases.setdefault(str(value), F.lit(None) if value is None else value)
    at = [[*cases].index(str(value)) for value in values]
    case = F.element_at(F.array(*map(F.lit, at)), F.col(_NUMBER) + 1)
    return _chosen(case, range(1, len(cases)), [*cases.values()])


def _chosen(value: Column, bounds: Sequence[int], results: Sequence[Column]) -> Column:
    """Return the first result where a value is below all bounds, the next one from the first bound on, and so on.

    By halves: neither Spark Connect nor a JVM has a nested or long case for each of a hundred results.
    """
    if not bounds:
        return results[0]
    middle = len(bounds) // 2
    below = _chosen(value, bounds[:middle], results[: middle + 1])
    return F.when(value < bounds[middle], below).otherwise(_chosen(value, bounds[middle + 1 :], results[middle + 1 :]))


def problems(ctx: StageContext, pieces: DataFrame, standing: DataFrame) -> DataFrame:
    """Gather what is wrong in an epoch: queries that it refused, and those that failed in any subtask.

    Inputs: the columns of `pieces` and of `STANDING`. Output: name, epoch, query (its id; null if it was refused), and
    reason. The first reason of the subtasks stands.
    """
    failed = pieces.where("reason IS NOT NULL").groupBy("query").agg(F.min("reason").alias("reason"))
    names = standing.where("id IS NOT NULL").select(F.col("id").alias("query"), "name")
    both = failed.join(names, "query").unionByName(
        standing.where("reason IS NOT NULL").selectExpr("CAST(NULL AS STRING) AS query", "name", "reason")
    )
    return both.select("name", F.lit(ctx.epoch).alias("epoch"), "query", "reason")


# Windows


def windows(
    ctx: StageContext,  # noqa: ARG001
    pieces: DataFrame,
    standing: DataFrame,
    problems: DataFrame,
    marks: DataFrame,
    open_windows: KeyedState,
) -> DataFrame:
    """Add the pieces to the open windows of all queries, and return what fires.

    Inputs: as above, `pieces` by query and key. Pieces of queries that failed in any subtask are left out. State: by
    query (its id) and key, the open windows; those of a query that is gone or has changed are deleted. Output: a row
    for each aggregate of each window: name, since (the epoch), key, start, end (timestamps), aggregate, value (double),
    and firing, as `windowed` says.
    """
    running = _as_rows(standing)
    rows = pieces.where("reason IS NULL").join(F.broadcast(problems.select("query")), "query", "left_anti")
    rows = rows.join(F.broadcast(running), "query")
    # A window of one second at the end of each window of a query: so windows of any size are closed by one plan.
    ends = F.explode(F.sequence(F.col("pane") + F.col("slide"), F.col("pane") + F.col("size"), F.col("slide")))
    rows = rows.withColumn("end", ends).select(
        "query", "key", F.timestamp_seconds(F.col("end") - 1).alias("last_second"), *_SLOTS
    )
    merged = {slot: f"{slot[:3]}({slot})" for slot in _SLOTS}
    over = window("last_second", "1 second")
    fired = windowed(rows, marks, open_windows, ["query", "key"], over, merged, lateness=LATENESS)
    open_windows.delete(open_windows.read().join(F.broadcast(running), "query", "left_anti"))
    sums, maxes = (F.array(*(slot for slot in _SLOTS if slot.startswith(each))) for each in ("sum", "max"))
    of_sums, of_maxes = (F.element_at(of, F.col("of.place") + 1) for of in (sums, maxes))
    value = (
        F.when(F.col("of.function") == "min", -of_maxes)
        .when(F.col("of.function") == "max", of_maxes)
        .when(F.col("of.function") != "avg", of_sums)
        .otherwise(of_sums / F.nullif(F.element_at(sums, F.col("of.place") + 2), F.lit(0.0)))
    )
    return (
        fired.join(F.broadcast(running), "query")
        .withColumn("of", F.explode("aggregates"))
        .select(
            "name",
            "since",
            "key",
            F.timestamp_seconds(F.unix_seconds("window.end") - F.col("size")).alias("start"),
            F.col("window.end").alias("end"),
            F.col("of.name").alias("aggregate"),
            value.alias("value"),
            "firing",
        )
    )


def _as_rows(standing: DataFrame) -> DataFrame:
    """Return the queries that run, with what the merging of their windows depends on."""
    rows = []
    for row in standing.where("reason IS NULL").collect():
        query = Query.of(row["id"], row["definition"])
        shown = [(each.name, each.function, each.place) for each in query.aggregates]
        size, slide = query.over.size // 1_000_000, query.over.slide // 1_000_000
        rows.append((query.id, row["name"], row["since"], size, slide, shown))
    shown_as = "ARRAY<STRUCT<name: STRING, function: STRING, place: INT>>"
    schema = f"query STRING, name STRING, since STRING, size BIGINT, slide BIGINT, aggregates {shown_as}"
    return standing.sparkSession.createDataFrame(rows, schema)
