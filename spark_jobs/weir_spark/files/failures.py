"""Tells what Spark says of a file that is read, and has rows refused. Invariant: the innermost cause is told.

What Spark says first, FAILED_READ_FILE.NO_HINT, tells neither whether another try may help nor what to change.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

from weir.wording import shortened

_MALFORMED = "MALFORMED_RECORD_IN_PARSING"
_OTHER_SCHEMAS = "CANNOT_MERGE_SCHEMAS"
_SHOWN = 500
_READING = re.compile(r"while reading file (\S+?)\.?\s")
_OTHER_HEADER = re.compile(r"CSV header does not conform to the schema\.\s+Header: (.*)\s+Schema: (.*)")

_OTHER_LENGTH = re.compile(
    r"Number of column in CSV header is not equal to number of fields in the schema:?\s+"
    r"Header length: (\d+), schema size: (\d+)"
)

_REFUSED = re.compile(r"\[weir: (.*?) :weir\]", re.DOTALL)
"""What a plan of Weir's sources says of rows that it refuses: see `raising`."""

_UNREADABLE = re.compile(r"\[FAILED_READ_FILE\.(\w+)\]\s*([^\n]*)")
_TOLD_BY_SPARK = frozenset({"PARQUET_COLUMN_DATA_TYPE_MISMATCH", "UNSUPPORTED_FILE_SYSTEM"})
"""Conditions of an unreadable file that say by themselves why; the others leave that to their cause."""

_CAUSED = re.compile(r"^Caused by: ([\w.$]+)(?:: ([^\n]*))?", re.MULTILINE)

_OF_CONTENT = re.compile(
    r"java\.util\.zip\.|java\.net\.URISyntax|java\.nio\.charset\.|java\.time\.|org\.apache\.parquet\.|org\.apache\.orc\."
    r"|org\.apache\.spark\.(?:sql\.|Spark)|com\.univocity\.|com\.fasterxml\.|com\.github\.luben\.|org\.xerial\.snappy\."
    r"|io\.airlift\.compress\.|net\.jpountz\."
    r"|java\.lang\.(?:IllegalArgument|NumberFormat|ClassCast|UnsupportedOperation|IndexOutOfBounds|ArrayIndexOutOf|"
    r"NegativeArraySize|Arithmetic|ClassNotFound|NoClassDefFound|UnsatisfiedLink)"
)
"""Classes of causes that come again with each try: the bytes are what they are."""

_OF_CONTENT_TOO = re.compile(
    r"end of (?:input )?stream|end of file|not (?:a|in) gzip|(?:header|data) check|invalid (?:block|code|stored)"
    r"|bad block|\bcrc\b|magic|corrupt|malformed|truncated|frame|not a parquet file"
    r"|native \w+ library",
    re.IGNORECASE,
)
"""What Java and Hadoop say in an exception of no such class."""

_QUOTE = "Unescaped quote"
_ON_QUOTES = (
    'A quote within quotes is doubled; reader={"escape": "\\\\"} reads files that put a backslash before it, and '
    'reader={"unescapedQuoteHandling": "STOP_AT_DELIMITER"} takes others as they are'
)
_CODEC = re.compile(r"Codec|native \w+ library")
_ON_CODEC = (
    "This Spark has no library for the file's compression: have the file written with gzip, snappy or zstd, or install "
    "the library where Spark runs"
)
_ON_FILE = (
    "Compare the file with format=, schema= and its name: compressed files are known by their ending, such as .gz"
)


def refused_rows(error: Exception) -> str | None:
    """Return what a person has to change in a file or its schema; None for an error of another kind."""
    trace, file = trace_of(error), file_of(error) or "a file"
    if refused := refusal_in(error):
        return refused
    if header := _OTHER_HEADER.search(trace):
        return (
            f"{file} has the header {header[1]!r}, and is read as {header[2]!r}: write schema= in the "
            'order of the header. reader={"enforceSchema": "true"} takes columns by their places, whatever their names'
        )
    if length := _OTHER_LENGTH.search(trace):
        return (
            f"{file} has a first line of {length[1]} columns, and schema= has {length[2]}: write all columns of the "
            'header there, in its order, and the separator as reader={"sep": ...} if it is no comma'
        )
    if _MALFORMED in trace:
        return (
            f"{file} has a line that does not fit the schema that it is read by: compare its first "
            f"lines with schema=, and with options of the reader such as header and sep ({_deepest(trace)})"
        )
    if _OTHER_SCHEMAS in trace:
        return f"files that are read together have other types: {_deepest(trace)}"
    return None


def refusal_in(error: Exception) -> str:
    """Return what a plan of Weir's sources says of the rows that it refuses; empty for another error."""
    found = _REFUSED.search(trace_of(error))
    return found[1] if found else ""


def unreadable_file(error: Exception, store: str) -> str | None:
    """Return why a file cannot be read if the reason are its bytes, else None.

    A file of the store is not meant: whether that is lost is asked of the store. Where the cause is not known to be of
    the bytes, as where a file system does not answer, another try may help; the error then gets a note that shows it.
    """
    trace, file = trace_of(error), file_of(error) or "a file"
    found = _UNREADABLE.search(trace)
    if found is None or file.startswith(_path_of(store)):
        return None
    cause = found[2].partition("  SQLSTATE")[0] if found[1] in _TOLD_BY_SPARK else _deepest(trace)
    if found[1] not in _TOLD_BY_SPARK and not _is_of_content(trace):
        error.add_note(f"{file} could not be read: {cause}")
        return None
    advice = _ON_QUOTES if _QUOTE in cause else _ON_CODEC if _CODEC.search(cause) else _ON_FILE
    return f"{file} cannot be read: {cause}. {advice}"


def raising(message: Column) -> Column:
    """Return an expression of any type that has the region fail, without another try, with a message about its rows."""
    return F.raise_error(F.concat(F.lit("[weir: "), message, F.lit(" :weir]")))


def file_of(error: Exception) -> str:
    """Return the path of the file that Spark was reading; empty where an error does not tell."""
    found = _READING.search(str(error))
    return _path_of(unquote(found[1])) if found else ""


def _path_of(url: str) -> str:
    return re.sub("^file:/+", "/", url)


def _cause(trace: str) -> tuple[str, str]:
    """Return class and message of the innermost cause; empty where there is none."""
    causes: list[tuple[str, str]] = _CAUSED.findall(trace)
    return causes[-1] if causes else ("", "")


def _deepest(trace: str) -> str:
    kind, message = _cause(trace)
    return shortened(f"{kind.rpartition('.')[2]}: {message}" if kind else trace.partition("\n")[0], _SHOWN)


def _is_of_content(trace: str) -> bool:
    kind, message = _cause(trace)
    return bool(_OF_CONTENT.match(kind) or _OF_CONTENT_TOO.search(message))


def trace_of(error: Exception) -> str:
    """Return message and stack trace: pyspark keeps Java's stack trace apart from the message."""
    of_server = getattr(error, "getStackTrace", None)
    trace = of_server() if callable(of_server) else getattr(error, "_stackTrace", None)  # that of a classic session
    return f"{error}\n{trace or ''}"
