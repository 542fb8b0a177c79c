"""Reads csv and JSON. Invariant: a line is a row of the schema, or reading fails, whichever columns are used later.

Spark parses only the columns that a plan needs, so that a line that does not fit is an error of some plans and a row of
nulls in others, or is counted. Here the line itself is asked for, with all columns that may not fit, by a condition
that no plan can leave out. What Spark does not tell of a line is looked for in its text: bytes that are no UTF-8, a
quote that a line leaves open, a field of JSON that is there twice, or that no line has. Values that it would change are
read as text, see `exact`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import ArrayType, MapType, StructType

from weir.dataflow.state_schema import Kind, fields_of_ddl, fields_of_json
from weir.errors import Misconfigured
from weir_spark.files.exact import ExactReading, has_floats, loses_digits
from weir_spark.files.failures import raising
from weir_spark.files.names import Names, Unmatched, names_of_kind, unmatched
from weir_spark.files.paths import WHOLE, spark_path
from weir_spark.results.digest import quoted

CORRUPT_RECORD: Final = "_corrupt_record"
CORRUPT_FILE: Final = "_corrupt_file"
"""The columns with which lines that do not fit are kept: the text, as Spark calls it, and the file."""

_LINE: Final = "_weir_line"
_FILE: Final = "_weir_file"
_SHOWN: Final = 300
_GZIP: Final = b"\x1f\x8b"
_COMPRESSED: Final = re.compile(r"\.(?:gz|bz2|zst|zstd|lz4|snappy|deflate)$")

_SAMPLE: Final = 1000
"""The first lines, whose names are looked at as a whole: in all lines, the names of a map might be a million."""

_NOT_IN_A_PATH: Final = frozenset("\"\\'")
"""What a path into JSON cannot have in a name; such columns are looked for in the first lines only."""

READER: Final[Mapping[str, Mapping[str, str]]] = {
    # A quote in a quoted value is doubled, as in RFC 4180; a value with another one is refused rather than guessed.
    "csv": {"enforceSchema": "false", "escape": '"', "unescapedQuoteHandling": "RAISE_ERROR"},
    "json": {},
}
"""Options unless a source gives others: nor are columns taken by their places where a header has other names."""

_FOLLOWS: Final = r"[}\]]\s*+[^\s,}\]/]"
"""What comes after the end of an object or array: nothing but a comma, another end or a comment may."""

_INFINITIES: Final[Mapping[str, frozenset[str]]] = {
    "csv": frozenset({"Inf", "-Inf", "Infinity", "+Infinity", "-Infinity", "NaN"}),
    "json": frozenset({"INF", "+INF", "-INF", "Infinity", "+Infinity", "-Infinity", "NaN"}),
}

_PARTS_OF_WORDS: Final[Mapping[str, tuple[str, ...]]] = {"csv": ("Inf", "NaN"), "json": ("Inf", "INF", "NaN")}
"""What such a word has in it: looked for in all lines."""

_WORD_OF_JAVA: Final = r"[dDfFxX](?<=[0-9.][dDfFxX])(?:(?<=[xX])|(?![0-9A-Za-z]))"
"""What may be a number to Java only, see `exact`; it begins with a letter, of which lines of numbers have few."""

_SURROGATE: Final = r"\\u[dD](?:[89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u[dD])[c-fC-F])"
"""Half of a character that JSON writes as two."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Files of csv or JSON, and how they are read."""

    format: str
    reader: Mapping[str, str]
    """The options that the source gives; Spark ignores the case of their names."""
    paths: Sequence[str]
    keeps_malformed: bool = False
    requires_fields: bool = True
    """False where a field of JSON that no line has is null."""
    is_whole: bool = True
    """True if these are all files of the source: other subtasks have none."""
    of_folders: frozenset[str] = frozenset()
    """Columns that are read from the names of folders, because the first line does not have them."""

    def option(self, name: str, otherwise: str = "") -> str:
        """Return an option that the source gives, or else Weir's."""
        given = {key.lower(): value for key, value in {**READER[self.format], **self.reader}.items()}
        return str(given.get(name.lower(), otherwise))

    @property
    def mode(self) -> str:
        """Return what becomes of a line that does not fit: FAILFAST, PERMISSIVE or DROPMALFORMED, Spark's words."""
        return self.option("mode", "FAILFAST").upper()

    @property
    def malformed(self) -> str:
        """Return the column in which Spark puts a line that does not fit, where the source asks for that."""
        return self.option("columnNameOfCorruptRecord", CORRUPT_RECORD) if self.mode == "PERMISSIVE" else ""

    @property
    def has_several_lines(self) -> bool:
        """Report whether a record may have several lines."""
        return self.option("multiLine").lower() == "true"

    @property
    def quote(self) -> str:
        """Return the quote of csv; empty where quotes are text."""
        return self.option("quote", '"')

    @property
    def sep(self) -> str:
        """Return what separates the values of csv."""
        sep = self.option("sep", self.option("delimiter", ","))
        return {"\\t": "\t", "": ","}.get(sep, sep)

    @property
    def given(self) -> frozenset[str]:
        """Return the options that the source gives, in lower case."""
        return frozenset(each.lower() for each in self.reader)

    @property
    def infinities(self) -> frozenset[str]:
        """Return Spark's words for infinite numbers, and for none."""
        return _INFINITIES[self.format]

    @property
    def encoding(self) -> str:
        """Return the encoding of the files."""
        return self.option("encoding", self.option("charset", "utf-8"))

    @property
    def is_utf8(self) -> bool:
        """Report whether the files are to be UTF-8."""
        return self.encoding.lower().replace("-", "") == "utf8"

    @property
    def has_bytes(self) -> bool:
        """Report whether Spark has the bytes of a number of JSON when it makes a text of it."""
        is_plain = not any(_COMPRESSED.search(each) for each in self.paths)
        return self.is_utf8 and (is_plain or not self.has_several_lines)


def read_lines(spark: SparkSession, lines: Lines, schema: StructType) -> DataFrame:
    """Return the rows; their first scan stands below all that is done with them. Raises Misconfigured for the text."""
    has_words = _require_text(spark, lines, schema)
    reader = spark.read.format(lines.format).options(**READER[lines.format], **WHOLE).options(**lines.reader)
    has_digits = lines.format == "csv" or (lines.is_utf8 and not lines.has_several_lines)
    exact = ExactReading(lines.format, lines.given, lines.infinities if has_words else None, has_digits)
    as_read = exact.schema(schema)
    if lines.mode != "PERMISSIVE":
        reader = reader.options(mode="PERMISSIVE", columnNameOfCorruptRecord=_LINE)
        as_read = StructType([*as_read.fields]).add(_LINE, "string")
    rows = reader.schema(as_read).load([spark_path(each) for each in lines.paths])
    return _Read(lines, schema, exact).of(rows)


@dataclass(frozen=True, slots=True)
class _Read:
    """Rows as Spark reads them, of which the values are to be made."""

    lines: Lines
    schema: StructType
    exact: ExactReading

    def of(self, rows: DataFrame) -> DataFrame:
        """Return the rows with their values, and with what becomes of the lines that do not fit.

        Values stand in a projection with the file's name, which is of no row: Spark does not push a condition below
        that, so that each value is made once, and not for the condition again.
        """
        names = [each.name for each in self.schema.fields if not self.exact.is_plain(each.dataType)]
        if names:
            rows = rows.withColumns({**{_value(name): self._made(name) for name in names}, _FILE: F.input_file_name()})
        lost = {name: self._is_lost(name) for name in names}
        if self.lines.keeps_malformed:
            checked = self._kept(rows, lost)
        elif self.lines.mode == "FAILFAST":
            checked = self._fitting(rows, lost)
        elif self.lines.mode == "DROPMALFORMED":
            checked = self._dropped(rows, lost)
        else:
            checked = self._noted(rows, lost)
        found = checked.withColumns({name: self._whole(name, lost[name]) for name in names}) if names else checked
        return found.drop(_LINE, _FILE, *map(_value, names))

    def _made(self, name: str) -> Column:
        return self.exact.value(F.col(quoted(name)), self.schema[name].dataType)

    def _is_lost(self, name: str) -> Column:
        column, kind = F.col(quoted(name)), self.schema[name].dataType
        if isinstance(kind, (ArrayType, MapType, StructType)):
            return self.exact.lost(column, kind)
        return column.isNotNull() & F.col(quoted(_value(name))).isNull()

    def _whole(self, name: str, is_lost: Column) -> Column:
        """Return a value, of which nothing is kept where a part is lost."""
        value = F.col(quoted(_value(name)))
        return value if self.lines.mode == "FAILFAST" and not self.lines.keeps_malformed else F.when(~is_lost, value)

    def _kept(self, rows: DataFrame, lost: Mapping[str, Column]) -> DataFrame:
        """Return the rows with the text of lines that do not fit; of those with a lost value, the row as read."""
        line, found = F.col(_LINE), _row_as_json(self.exact.schema(self.schema))
        # The length is that of all columns: each is parsed, and a line that fits none is found whatever is used.
        kept = rows.where(F.when(line.isNotNull(), F.length(found) >= 0).otherwise(F.lit(True)))  # noqa: FBT003
        text = self._with_rows(line, lost)
        return kept.withColumns({CORRUPT_RECORD: text, CORRUPT_FILE: F.when(text.isNotNull(), F.input_file_name())})

    def _noted(self, rows: DataFrame, lost: Mapping[str, Column]) -> DataFrame:
        """Return the rows; where the source has a column for lines that do not fit, it has those with a lost value."""
        name = self.lines.malformed
        if name not in self.schema.names:
            return rows
        return rows.withColumn(name, self._with_rows(F.col(quoted(name)), lost))

    def _with_rows(self, line: Column, lost: Mapping[str, Column]) -> Column:
        """Return a line that does not fit; where a value is lost, the row as it was read."""
        if not lost:
            return line
        given = ((each, self.lines.option(each)) for each in ("sep", "delimiter", "quote", "escape"))
        options = {name: value for name, value in given if value}
        row = F.struct(*(quoted(name) for name in self.schema.names if name != self.lines.malformed))
        as_text = F.to_csv(row, options) if self.lines.format == "csv" else F.to_json(row)
        return F.coalesce(line, F.when(_any(lost), as_text))

    def _dropped(self, rows: DataFrame, lost: Mapping[str, Column]) -> DataFrame:
        line, found = F.col(_LINE), _row_as_json(self.exact.schema(self.schema))
        # No length is less than 0, but it is that of all columns: each is parsed, whatever is used.
        rows = rows.where(F.when(line.isNotNull(), F.length(found) < 0).otherwise(F.lit(True)))  # noqa: FBT003
        return rows.where(~_any(lost)) if lost else rows

    def _fitting(self, rows: DataFrame, lost: Mapping[str, Column]) -> DataFrame:
        schema, line, found = self.schema, F.col(_LINE), _row_as_json(self.schema)
        kinds = {name: schema[name].dataType.simpleString() for name in lost}
        changed = F.concat_ws(", ", *(F.when(lost[name], F.lit(f"{name} {kinds[name]}")) for name in lost))
        # Spark neither merges nor pushes conditions through one with the file's name, which is of no row. Merged, a
        # later condition that a lost value does not meet would leave the line out before this one is asked. Of a column
        # that is never null Spark would take the name alone, and merge.
        file = F.coalesce(F.nullif(F.col(_FILE), F.lit("")), F.input_file_name()) if lost else F.input_file_name()
        told = F.concat(
            F.lit(f"a line does not fit the schema {schema.simpleString()}: in "),
            file,
            F.lit(", "),
            F.coalesce(F.substring(line, 1, _SHOWN), F.concat(F.lit("a value that would be another one as "), changed)),
            F.lit(", of which Spark reads "),
            F.substring(found, 1, _SHOWN),
            F.lit(
                ". Correct schema=, or options of the reader such as header and sep; or the file (then `weir run adopt "
                'RUN`, and clear the run in Airflow). on_malformed="keep" reads such lines into the column '
                f"{CORRUPT_RECORD}"
            ),
        )
        is_wrong = line.isNotNull() | _any(lost) if lost else line.isNotNull()
        return rows.where(F.when(is_wrong, raising(told)).otherwise(F.lit(True)))  # noqa: FBT003


def _value(name: str) -> str:
    """Return the column of a value that is made."""
    return f"{_LINE}_{name}"


def _row_as_json(schema: StructType) -> Column:
    return F.to_json(F.struct(*map(quoted, schema.fieldNames())))


def _any(conditions: Mapping[str, Column]) -> Column:
    return reduce(Column.__or__, conditions.values())


def _require_text(spark: SparkSession, lines: Lines, schema: StructType) -> bool:
    """Look through the text of all lines, by one job. Raises Misconfigured, with file and line.

    Returns whether lines may have a word for infinity.
    """
    text = _text(spark, lines)
    words = F.lit(False)  # noqa: FBT003
    if has_floats(schema):
        words = reduce(Column.__or__, (F.contains("value", F.lit(each)) for each in _PARTS_OF_WORDS[lines.format]))
        if lines.format == "csv":
            words |= F.col("value").rlike(_WORD_OF_JAVA)
    if lines.format == "csv":
        return _require_csv(text, lines, schema, words)
    return _require_json(text, lines, schema, words)


def _text(spark: SparkSession, lines: Lines) -> DataFrame:
    """Return the lines, or where a record may have several, the files: `value` and `file`."""
    reader = spark.read.options(**WHOLE)
    if lines.option("lineSep") and not lines.has_several_lines:
        reader = reader.option("lineSep", lines.option("lineSep"))
    if lines.is_utf8:
        # `reader.text` has an argument of its own for `wholetext`, which wins over the option.
        reader = reader.format("text").option("wholetext", str(lines.has_several_lines).lower())
    else:
        # One column: neither separator nor end of a line nor quote is in any text.
        reader = reader.format("csv").schema("value STRING").options(encoding=lines.encoding, sep="\uffff", quote="")
        if lines.has_several_lines:
            reader = reader.options(multiLine="true", lineSep="\ufffe")
    paths = [spark_path(each) for each in lines.paths]
    return reader.load(paths).select("value", F.input_file_name().alias("file"))


def _first(where: Column, text: Column | None = None) -> Column:
    # As bytes: what is no UTF-8 is no text for pyspark either.
    shown = F.col("value") if text is None else text
    found = F.struct("file", F.substring(shown.cast("binary"), 1, _SHOWN).alias("line"))
    return F.first(F.when(where, found), ignorenulls=True)


def _require_csv(text: DataFrame, lines: Lines, schema: StructType, words: Column) -> bool:
    rest = _never_closed(lines) if lines.has_several_lines else F.when(_is_open(lines), F.col("value"))
    strange = _is_no_text(lines)
    blank = _is_left_out(lines, schema)
    # A condition is compiled, which aggregates of texts are not: these see the few lines that there is a word about.
    strange_line, left_open, blank_line, has_words = (
        text.where(strange | rest.isNotNull() | blank | words)
        .agg(_first(strange), _first(rest.isNotNull(), rest), _first(blank), F.max(words))
        .collect()[0]
    )
    _require_encoding(strange_line, lines)
    if blank_line is not None:
        raise Misconfigured.of("files.line_blank", blank_line=blank_line["file"], shown=_shown(blank_line["line"]))
    if left_open is not None:
        raise Misconfigured.of(
            "files.quote_not_closed",
            problem="a quote is never closed" if lines.has_several_lines else "a line ends within quotes",
            left_open=left_open["file"],
            shown=_shown(left_open["line"]),
        )
    return bool(has_words)


def _is_left_out(lines: Lines, schema: StructType) -> Column:
    """Return the condition that a line is a record, and that Spark takes it for none, as it has blanks only."""
    if lines.has_several_lines or not (len(schema) == 1 or not lines.sep.strip()):
        return F.lit(False)  # noqa: FBT003
    is_blank = F.col("value").rlike(r"^[\x01-\x20]+$")
    return is_blank if len(schema) == 1 else is_blank & F.contains("value", F.lit(lines.sep))


def _never_closed(lines: Lines) -> Column:
    """Return a file's text from a quote that is never closed, or null: its value would have all of it."""
    quote, escape, sep = lines.quote, lines.option("escape", "\\"), lines.sep
    if not quote or quote == "\0" or lines.option("comment"):
        return F.lit(None).cast("string")
    s, q, e = (_in_java(each) for each in (sep, quote, escape or quote))
    breaks = "\\r|\\n" + (f"|{_in_java(lines.option('lineSep'))}" if lines.option("lineSep") else "")
    begins = f"(?<=^|{s}|{breaks}){q}"
    # Without groups in the usual case: Java goes one call deeper for each turn of a group.
    content = f"[^{q}]*+(?:{q}{q}[^{q}]*+)*+" if escape in (quote, "") else f"[^{q}{e}]*+(?:{e}[\\s\\S][^{q}{e}]*+)*+"
    left = F.regexp_replace("value", f"{begins}{content}{q}", "x")
    found = F.regexp_extract(left, f"{begins}[\\s\\S]{{0,{_SHOWN}}}", 0)
    return F.when(F.col("value").contains(quote) & (found != ""), found)


def _is_no_text(lines: Lines) -> Column:
    """Return the condition that bytes are no text of the encoding; where they are decoded, U+FFFD stands for them."""
    if lines.is_utf8:
        return ~F.is_valid_utf8("value")
    return F.contains("value", F.lit("\ufffd")) | F.startswith("value", F.lit(_GZIP.decode("latin-1")))


def _require_encoding(found: Any, lines: Lines) -> None:
    if found is None:
        return
    line = bytes(found["line"])
    if line.startswith((_GZIP, _GZIP.decode("latin-1").encode())):
        raise Misconfigured.of("files.gzip_without_ending", found=found["file"])
    expected = "UTF-8" if lines.is_utf8 else f"text in the encoding {lines.encoding}"
    raise Misconfigured.of("files.bytes_not_of_encoding", expected=expected, found=found["file"], shown=_shown(line))


def _shown(line: Any) -> str:
    return repr(bytes(line).decode("utf-8", "backslashreplace"))


def _is_open(lines: Lines) -> Column:
    """Return the condition that a line ends within a quoted value.

    The expression for all cases takes as long as reading does. So lines without quotes, and those that end behind a
    closing quote, or have no quote behind one, are known by less.
    """
    quote, escape, sep = lines.quote, lines.option("escape", "\\"), lines.sep
    if not quote or quote == "\0":
        return F.lit(False)  # noqa: FBT003
    value = F.col("value")
    after = F.substring_index(value, quote, -1)
    closes = value.endswith(quote) & ~value.endswith(quote + quote) & ~value.endswith(sep + quote) & (value != quote)
    opens_no_other = after.startswith(sep) & ~value.contains(quote + quote) & ~value.contains(sep + quote + sep)
    is_closed = closes | (opens_no_other & ~value.startswith(quote + sep))
    if escape != quote:
        is_closed &= ~value.contains(escape or "\\")
    comment = lines.option("comment")
    is_comment = value.startswith(comment) if comment else F.lit(False)  # noqa: FBT003
    return value.contains(quote) & ~is_closed & value.rlike(_open_line(sep, quote, escape)) & ~is_comment


def _open_line(sep: str, quote: str, escape: str) -> str:
    """Return Java's regular expression of a line that ends within quotes; possessive, so that it never tries again."""
    s, q, e = (_in_java(each) for each in (sep, quote, escape))
    plain = f"(?:(?!{s})[\\s\\S])*+"
    content = f"(?:(?!{q})[\\s\\S]|{q}{q})*+" if escape in (quote, "") else f"(?:{e}[\\s\\S]|(?!{q})[\\s\\S])*+"
    return f"^(?:(?:{q}{content}{q}{plain}|(?!{q}){plain}){s})*+{q}{content}$(?![\\s\\S])"


def _in_java(text: str) -> str:
    return "".join(f"\\x{{{ord(each):x}}}" for each in text)


def _require_json(text: DataFrame, lines: Lines, schema: StructType, words: Column) -> bool:
    rows = text.where(F.trim("value") != "").withColumn("parsed", F.try_parse_json("value"))
    keys = F.json_object_keys("value")
    # A field that is there twice is no JSON to a strict parser; nor is what only Spark's reader takes, such as '.
    is_strange = F.col("parsed").isNull()
    has_twice = (is_strange & (F.size(keys) > F.size(F.array_distinct(keys)))) | _has_more()
    may_have_twice = is_strange & ~F.col("value").rlike("'|NaN|Infinity|INF|/")
    kinds = {name: each.kind for name, each in fields_of_json(schema.json()).items()}
    if not lines.has_bytes and "string" in schema.simpleString():
        _require_digits(rows, lines, Kind("struct", tuple(kinds.items())))
    declared = names_of_kind({name: kind for name, kind in kinds.items() if name != lines.malformed})
    seen = _seen(rows.limit(_SAMPLE).agg(F.schema_of_variant_agg("parsed")).collect()[0][0])
    doubtful = [] if seen.is_open else [*_doubtful(declared, seen), *sorted(lines.of_folders)]
    values = [F.try_variant_get("parsed", f'$["{name}"]', "variant") for name in doubtful]
    strange, half = _is_no_text(lines), _has_half_a_character()
    if not doubtful and not lines.has_several_lines:
        # A condition is compiled, which aggregates of texts are not: these see few lines.
        rows = rows.where(strange | is_strange | half | _has_more() | words)
    strange_line, half_line, twice, maybe, is_of_lines, count, has_words, *found = rows.agg(
        _first(strange),
        _first(half),
        _first(has_twice),
        F.first(F.when(may_have_twice, F.struct("file", F.col("value").alias("line"))), ignorenulls=True),
        _are_records_of_a_line() if lines.has_several_lines else F.lit(False),  # noqa: FBT003
        F.count_if(is_strange),
        F.max(words),
        *(F.when(F.count(value) > 0, F.coalesce(F.schema_of_variant_agg(value), F.lit("VOID"))) for value in values),
    ).collect()[0]
    _require_encoding(strange_line, lines)
    if half_line is not None:
        raise Misconfigured.of("files.half_a_character", half_line=half_line["file"], shown=_shown(half_line["line"]))
    if is_of_lines:
        raise Misconfigured.of("files.multiline_in_vain", files=_files(lines))
    doubled = twice or (maybe if maybe is not None and _has_a_field_twice(maybe["line"]) else None)
    if doubled is not None:
        line = doubled["line"]
        shown = _shown(line.encode()[:_SHOWN] if isinstance(line, str) else line)
        raise Misconfigured.of("files.records_in_one_line", doubled=doubled["file"], shown=shown)
    for name, kind in zip(doubtful, found, strict=True):
        if kind is not None:
            seen.inside.setdefault(name, Names()).add(_seen(kind))
    if both := sorted(lines.of_folders & seen.inside.keys()):
        raise Misconfigured.of("files.field_and_folder", files=_files(lines), both=both[0])
    if lines.requires_fields and not lines.option("singleVariantColumn"):
        _require_fields(lines, declared, seen, is_complete=count == 0)
    return bool(has_words)


def _has_more() -> Column:
    """Return the condition that something follows the record of a line.

    Spark leaves it out. Texts are taken away first: without their escapes, since Java goes one call deeper for each.
    """
    value = F.col("value")
    without_escapes = F.replace(F.replace(value, F.lit("\\\\"), F.lit("")), F.lit('\\"'), F.lit(""))
    bare = F.regexp_replace(without_escapes, '"[^"]*+"', '""')
    follows = bare.rlike(r"\}\s*+\{") | (bare.rlike(_FOLLOWS) & ~bare.contains("'"))  # in ' texts may be, too
    return value.rlike(_FOLLOWS) & follows


def _has_half_a_character() -> Column:
    value = F.col("value")
    halves = value.rlike(r"\\u[dD][89a-fA-F]")
    return halves & F.replace(value, F.lit("\\\\"), F.lit("")).rlike(_SURROGATE)


def _are_records_of_a_line() -> Column:
    """Return whether a file has two lines that are a whole record; in an array, all but the last end with a comma.

    A value is a whole file.
    """
    is_record = F.col("value").rlike(r"^\{.*\}\s*$") & F.col("parsed").isNotNull()
    has_two = F.count_if(is_record) > F.count_distinct(F.when(is_record, F.col("file")))
    return has_two | (F.count_if(F.col("value").rlike(r"^\s*\{[^\n]*\}[ \t\r]*\n\s*\{")) > 0)


def _doubtful(declared: Names, seen: Names) -> Iterator[str]:
    """Yield the columns that the first lines do not have, or not as they are declared: all lines are asked for them."""
    for name, more in declared.inside.items():
        is_seen = name in seen.inside and not any(unmatched(more, seen.inside[name], ignoring_case=False))
        if not is_seen and not _NOT_IN_A_PATH & set(name):
            yield name


def _has_a_field_twice(line: str) -> bool:
    is_twice = False

    def noted(pairs: list[tuple[str, Any]]) -> None:
        nonlocal is_twice
        is_twice |= len(pairs) > len({name for name, _ in pairs})

    try:
        json.loads(line, object_pairs_hook=noted)
    except (ValueError, RecursionError):
        return False  # Spark's reader says so
    return is_twice


def _seen(variant_schema: str | None) -> Names:
    """Return the names that lines have, from Spark's schema of variants."""
    kind = _kind(variant_schema)
    return Names(is_open=True) if kind is None else names_of_kind({"line": kind}).inside["line"]


def _kind(variant_schema: str | None) -> Kind | None:
    kind = re.sub(r"\bOBJECT(?=<)", "STRUCT", variant_schema or "VOID")
    try:
        return fields_of_ddl(f"line {kind}")["line"].kind
    except Misconfigured:
        return None


def _require_digits(rows: DataFrame, lines: Lines, declared: Kind) -> None:
    """Refuse numbers in texts of which Spark does not have the bytes: it would make 1.1 of 1.10."""
    found = _kind(rows.agg(F.schema_of_variant_agg("parsed")).collect()[0][0])
    if found is None or loses_digits(declared, found):
        raise Misconfigured.of("files.digits_would_be_lost", files=_files(lines))


def _require_fields(lines: Lines, declared: Names, seen: Names, *, is_complete: bool) -> None:
    """Refuse a schema with a field that no line has: a field is found by its exact name, and would be null."""
    missing = [
        each
        for each in unmatched(declared, seen, ignoring_case=False)
        if each.is_also_there or (is_complete and (lines.is_whole or each.others))
    ]
    if missing:
        raise Misconfigured(_told(missing, lines))


def _told(missing: Sequence[Unmatched], lines: Lines) -> str:
    mixed = [each for each in missing if each.is_also_there]
    if mixed:
        return f"lines of {_files(lines)} spell a field in two ways: {mixed[0].name!r} and {mixed[0].near!r}"
    return (
        f"no line of {_files(lines)} has the field {', '.join(map(str, missing))}: write the names of schema= as the "
        'lines have them. if_missing="null" reads nulls instead'
    )


def _files(lines: Lines) -> str:
    return lines.paths[0] if len(lines.paths) == 1 else f"{len(lines.paths)} files such as {lines.paths[0]}"
