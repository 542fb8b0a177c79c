"""A file that cannot be read is told with its innermost cause; only its bytes make that a matter for a person."""

import pytest

from weir_spark.files.failures import refused_rows, unreadable_file

FILE = "file:///data/a%20b/c.csv"


class OfJava(Exception):
    """An error of Spark, whose stack trace pyspark keeps apart from the message."""

    def __init__(self, condition, *causes, file=FILE):
        super().__init__(
            f"[FAILED_READ_FILE.{condition}] Encountered error while reading file {file}.  SQLSTATE: KD001"
        )
        self._stackTrace = "".join(f"\tat org.apache.spark.X.y(X.scala:1)\nCaused by: {each}\n" for each in causes)


OF_BYTES = [
    "java.io.EOFException: Unexpected end of input stream",
    "java.io.IOException: not a gzip file",
    "java.util.zip.ZipException: invalid distance too far back",
    "java.lang.RuntimeException: file:/data/a.parquet is not a Parquet file. Expected magic number at tail",
    "org.apache.parquet.io.ParquetDecodingException: could not read page",
    'org.apache.spark.SparkRuntimeException: Found duplicate field(s) "foo": [FOO, foo] in case-insensitive mode.',
    "java.net.URISyntaxException: Relative path in absolute URI: .a:b.csv.crc",
    "java.lang.ClassNotFoundException: org.apache.hadoop.io.compress.BrotliCodec",
    "java.lang.RuntimeException: native zStandard library not available: libhadoop was built without it",
    "com.univocity.parsers.common.TextParsingException: Unescaped quote character",
]
AWAY = [
    "java.net.ConnectException: Connection refused",
    "java.io.IOException: Input/output error",
    "java.nio.file.AccessDeniedException: s3a://b/a.csv: 503 Slow Down",
    "java.io.InterruptedIOException: timeout",
]


@pytest.mark.parametrize("cause", OF_BYTES)
def test_bytes_that_come_again_are_for_a_person(cause):
    error = OfJava("NO_HINT", "org.apache.spark.SparkException: outer", cause)
    told = unreadable_file(error, "/store")
    assert told.startswith("/data/a b/c.csv cannot be read: ")
    assert cause.partition(": ")[2] in told


@pytest.mark.parametrize("cause", AWAY)
def test_what_may_be_there_again_is_tried_again_and_noted(cause):
    error = OfJava("NO_HINT", cause)
    assert unreadable_file(error, "/store") is None
    assert cause.partition(": ")[2] in error.__notes__[0]


def test_a_file_of_the_store_is_asked_of_the_store():
    error = OfJava("NO_HINT", OF_BYTES[4], file="file:///store/a.parquet")
    assert unreadable_file(error, "/store") is unreadable_file(error, "file:///store") is None


def test_what_a_source_refuses_and_lines_that_do_not_fit_are_told():
    assert (
        refused_rows(RuntimeError("[USER_RAISED_EXCEPTION] [weir: two\nlines :weir] SQLSTATE: P0001")) == "two\nlines"
    )
    malformed = OfJava("NO_HINT", "x.Y: [MALFORMED_RECORD_IN_PARSING] [null]", 'java.lang.N: For input string: "x"')
    assert 'N: For input string: "x"' in refused_rows(malformed)
    assert "/data/a b/c.csv has a line" in refused_rows(malformed)
    assert refused_rows(ValueError("of a stage")) is None


def test_a_header_of_another_length_is_told_with_both():
    cause = (
        "org.apache.spark.SparkIllegalArgumentException: Number of column in CSV header is not equal to number of "
        "fields in the schema:\n Header length: 3, schema size: 2\nCSV file: file:///data/a%20b/c.csv"
    )
    told = refused_rows(OfJava("NO_HINT", cause))
    assert "/data/a b/c.csv has a first line of 3 columns, and schema= has 2" in told
