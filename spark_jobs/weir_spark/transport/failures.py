"""Translate an error of Spark into the kind that says what the caller must do. Invariant: it needs only pyspark.

A driver on a cluster often lacks what only clients of a Connect server need, such as grpc. Only what a person must
change becomes Misconfigured. A read that fails passes through: the store decides whether an input is lost.

Java's message of a full disk is "No space left on device", or "Disk quota exceeded", and mostly several causes deep: a
write fails as TASK_WRITE_FAILED, and only the server's stack trace has the reason.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.errors import AnalysisException, PySparkException, PythonException

from weir.errors import DiskFull, EngineLost, Misconfigured, StoreFull, WeirError
from weir_spark.region.sql import READ_FAILED

if TYPE_CHECKING:
    from pyspark.sql import Column

_LOST = (
    "stopped SparkContext",
    "SparkContext was shut down",
    "SparkContext has been shutdown",
    "All masters are unresponsive",
    "Master removed our application",
    "Application has been killed",
)

_LOST_GATEWAY = frozenset({"Py4JNetworkError", "ConnectionRefusedError"})

_NO_SESSION = ("SESSION_OR_CONTEXT_NOT_EXISTS", "NO_ACTIVE_OR_DEFAULT_SESSION")
"""Messages of a Python worker; the latter where its server was started with the environment of a Connect client."""

_CHECKPOINT_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"

_DISK_FULL = ("No space left on device", "Disk quota exceeded", "There is not enough space on the disk")
_CAUSE = "Caused by: "

_UNKNOWN_TYPE = "CANNOT_PARSE_DATATYPE"
_MALFORMED = "MALFORMED_RECORD_IN_PARSING"
_OTHER_SCHEMAS = "CANNOT_MERGE_SCHEMAS"
_SHOWN = 500
_READING = re.compile(r"while reading file (\S+?)\.?\s")
_OTHER_HEADER = re.compile(r"CSV header does not conform to the schema\.\s+Header: (.*)\s+Schema: (.*)")

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
    r"NegativeArraySize|Arithmetic)"
)
"""Classes of causes that come again with each try: the bytes are what they are."""

_OF_CONTENT_TOO = re.compile(
    r"end of (?:input )?stream|end of file|not (?:a|in) gzip|(?:header|data) check|invalid (?:block|code|stored)"
    r"|bad block|\bcrc\b|magic|corrupt|malformed|truncated|frame|not a parquet file",
    re.IGNORECASE,
)
"""What Java and Hadoop say in an exception of no such class."""

_QUOTE = "Unescaped quote"
_ON_QUOTES = (
    'A quote within quotes is doubled; reader={"escape": "\\\\"} reads files that put a backslash before it, and '
    'reader={"unescapedQuoteHandling": "STOP_AT_DELIMITER"} takes others as they are'
)
_ON_FILE = (
    "Compare the file with format=, schema= and its name: compressed files are known by their ending, such as .gz"
)

_FILE_SYSTEMS = "org.apache.hadoop.fs."
"""The classes that write to a store; Spark writes its own files without Hadoop."""


def translate_of_own_session(error: Exception, region: str) -> Exception:
    """Return the error to raise in the place of `error`, of a session of its own; itself if no kind of Weir fits."""
    if isinstance(error, WeirError):
        return error
    full = disk_full(error, region)
    if full is not None:
        return full
    if is_checkpoint_lost(error):
        return EngineLost(f"region {region}: an executor was lost, with rows that it held for others")
    names = {base.__name__ for base in type(error).__mro__}
    if any(text in str(error) for text in _LOST) or names & _LOST_GATEWAY:
        line = next((line for line in str(error).splitlines() if any(text in line for text in _LOST)), str(error))
        return EngineLost(
            f"region {region}: its Spark application lost its cluster or its JVM: {line.strip(': ')[:300]}"
        )
    return of_code_or_rows(error, region) or error


def of_code_or_rows(error: Exception, region: str) -> Exception | None:
    """Return the error to raise in the place of one of user code, or of the rows that it reads; None if none fits."""
    trace, file = _trace(error), _file_of(error)
    if refused := _REFUSED.search(trace):
        return Misconfigured(f"region {region}: {refused[1]}")
    if header := _OTHER_HEADER.search(trace):
        return Misconfigured(
            f"region {region}: {file} has the header {header[1]!r}, and is read as {header[2]!r}: write schema= in the "
            'order of the header. reader={"enforceSchema": "true"} takes columns by their places, whatever their names'
        )
    if _MALFORMED in trace:
        return Misconfigured(
            f"region {region}: {file} has a line that does not fit the schema that it is read by: compare its first "
            f"lines with schema=, and with options of the reader such as header and sep ({_deepest(trace)})"
        )
    if _OTHER_SCHEMAS in trace:
        return Misconfigured(f"region {region}: files that are read together have other types: {_deepest(trace)}")
    advice = _advice_on(error)
    return None if advice is None else Misconfigured(f"region {region}: {advice}: {error}")


def unreadable_file(error: Exception, region: str, store: str) -> Misconfigured | None:
    """Return the error to raise in the place of `error` if the bytes of a source's file are the reason, else None.

    A file of the store is not meant: whether that is lost is asked of the store. Where the cause is not known to be of
    the bytes, as where a file system does not answer, another try may help; the error then gets a note that shows it.
    """
    trace, file = _trace(error), _file_of(error)
    found = _UNREADABLE.search(trace)
    if found is None or file.startswith(_path_of(store)):
        return None
    cause = found[2].partition("  SQLSTATE")[0] if found[1] in _TOLD_BY_SPARK else _deepest(trace)
    if found[1] not in _TOLD_BY_SPARK and not _is_of_content(trace):
        error.add_note(f"{file} could not be read: {cause}")
        return None
    return Misconfigured(
        f"region {region}: {file} cannot be read: {cause}. {_ON_QUOTES if _QUOTE in cause else _ON_FILE}"
    )


def raising(message: Column) -> Column:
    """Return an expression of any type that has the region fail, without another try, with a message about its rows."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  Spark's own convention

    return F.raise_error(F.concat(F.lit("[weir: "), message, F.lit(" :weir]")))


def _file_of(error: Exception) -> str:
    found = _READING.search(str(error))
    return _path_of(unquote(found[1])) if found else "a file"


def _path_of(url: str) -> str:
    return re.sub("^file:/+", "/", url)


def _deepest(trace: str) -> str:
    """Return class and message of the innermost cause."""
    causes = _CAUSED.findall(trace)
    if not causes:
        return trace.partition("\n")[0][:_SHOWN]
    kind, message = causes[-1]
    return f"{kind.rpartition('.')[2]}: {message}"[:_SHOWN]


def _is_of_content(trace: str) -> bool:
    causes = _CAUSED.findall(trace)
    kind, message = causes[-1] if causes else ("", "")
    return bool(_OF_CONTENT.match(kind) or _OF_CONTENT_TOO.search(message))


def _advice_on(error: Exception) -> str | None:
    """Return what a person has to change; None if another try may help, or the error is of no known kind."""
    if isinstance(error, PySparkException) and error.getCondition() == _UNKNOWN_TYPE:
        return "a schema has a type that Spark does not have"
    if isinstance(error, AnalysisException) and error.getCondition() not in READ_FAILED:
        return "Spark refuses the plan of its stages"
    if isinstance(error, PythonException) and any(name in str(error) for name in _NO_SESSION):
        return (
            "a module of the pipeline needs a Spark session when Python workers import it. Where it makes a UDF at its "
            "top level, write the type as an object, @udf(LongType()), not as text"
        )
    return "a module is missing where the task runs" if isinstance(error, ImportError) else None


def is_checkpoint_lost(error: Exception) -> bool:
    """Report whether an executor was lost with the checkpointed rows of a stage; another try computes them again."""
    return _CHECKPOINT_LOST in str(error)


def disk_full(error: Exception, region: str) -> DiskFull | None:
    """Return the error to raise in the place of `error` if a disk was full, with advice for that disk; else None."""
    trace = _trace(error)
    message = next((text for text in _DISK_FULL if text in trace), None)
    if message is None:
        return None
    cause = next(part for part in reversed(trace.split(_CAUSE)) if message in part)
    if _FILE_SYSTEMS in cause:
        return StoreFull(
            f"region {region}: the store's disk is full ({message}). Make room there, and the task goes on by itself; "
            "nothing is marked lost"
        )
    return DiskFull(
        f"region {region}: a disk of Spark's is full ({message}), most likely that of its local folder, where it "
        "shuffles and spills. Make room there, or let spark.local.dir of the server and its workers name a larger "
        "disk: the task goes on by itself"
    )


def _trace(error: Exception) -> str:
    """Return message and stack trace: pyspark keeps Java's stack trace apart from the message."""
    of_server = getattr(error, "getStackTrace", None)
    trace = of_server() if callable(of_server) else getattr(error, "_stackTrace", None)  # that of a classic session
    return f"{error}\n{trace or ''}"
