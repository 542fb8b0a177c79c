"""Refuses texts of Parquet files that are none, where they are used: Spark's functions make one text of two.

Bytes that are no UTF-8 are no text for a person either; a file may call them STRING all the same.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import StructField, StructType

from weir_spark.files.exact import is_no_text
from weir_spark.files.failures import raising
from weir_spark.results.digest import quoted


def with_texts(rows: DataFrame, schema: StructType) -> DataFrame:
    """Return rows, straight from their files, that are refused where a text is used that is none.

    It is no condition on the rows, so that no column is read for its texts.
    """
    found = F.lit("has bytes that are no UTF-8: write BINARY")
    texts = {}
    for each in schema.fields:
        value = F.col(quoted(each.name))
        if (wrong := is_no_text(value, each.dataType)) is not None:
            texts[each.name] = F.when(wrong, refusing(rows, each, found)).otherwise(value)
    return rows.withColumns(texts) if texts else rows


def refusing(rows: DataFrame, column: StructField, found: Column) -> Column:
    """Return what refuses a row, straight from its file, for what was found in a column."""
    told = F.lit(f"the column {column.name} is {column.dataType.simpleString().upper()}, and ")
    return raising(F.concat(told, found, F.lit(" in "), file_of_row(rows)))


def file_of_row(rows: DataFrame) -> Column:
    """Return the path of a row's file, as it is on the disk: Spark's is that of a URI."""
    return decoded(rows.metadataColumn("_metadata")["file_path"])


def decoded(text: Column) -> Column:
    """Return a part of a URI as text; null where it is none."""
    return F.try_url_decode(F.replace(text, F.lit("+"), F.lit("%2B")))
