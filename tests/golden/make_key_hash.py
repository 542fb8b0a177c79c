"""Write key_hash.json anew with real Spark: `python tests/golden/make_key_hash.py` (needs Java)."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INTEGERS = [0, 1, -1, 42, 127, -128]


def values_by_type() -> dict[str, list[Any]]:
    texts = [
        "",
        "a",
        "ab",
        "abc",
        "abcd",
        "abcde",
        "JFK",
        "UA1545",
        "ß",
        "Zürich",
        "東京",
        "🛫",
        "é",
        "\x00",
        " x ",
        "€€€",
        "x" * 100,
    ]
    moments = [
        timedelta(0),
        timedelta(microseconds=-1),
        timedelta(days=15706, seconds=3661, microseconds=123456),
        timedelta(days=-30000, seconds=5),
    ]
    return {
        "tinyint": INTEGERS,
        "smallint": [*INTEGERS, 32767, -32768],
        "int": [*INTEGERS, 2**31 - 1, -(2**31)],
        "bigint": [*INTEGERS, 2**31, -(2**31) - 1, 2**32, 2**63 - 1, -(2**63), 1234567890123],
        "boolean": [True, False],
        "date": [date(1970, 1, 1), date(2013, 1, 1), date(1969, 12, 31), date(1900, 2, 28), date(9999, 12, 31)],
        "timestamp": [EPOCH + moment for moment in moments],
        "timestamp_ntz": [(EPOCH + moment).replace(tzinfo=None) for moment in moments],
        "string": texts,
        "binary": [bytes(range(n)) for n in range(9)]
        + [b"\x80", b"\xff\xfe\xfd", b"\x00\x00\x00\x80\xff", bytes(range(250, 256)) * 7],
    }


def rows() -> list[list[tuple[str, Any]]]:
    by_type = values_by_type()
    alone = [[(spark_type, value)] for spark_type, values in by_type.items() for value in [*values, None]]
    draw = random.Random(2013)
    types = list(by_type)
    together = [
        [
            (spark_type, draw.choice([*by_type[spark_type], None]))
            for spark_type in draw.choices(types, k=draw.randint(2, 4))
        ]
        for _ in range(60)
    ]
    return alone + together


def as_json(value: Any) -> Any:
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else value


def main() -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    vectors = []
    for row in rows():
        schema = ", ".join(f"c{i} {spark_type}" for i, (spark_type, _) in enumerate(row))
        frame = spark.createDataFrame([tuple(value for _, value in row)], schema)
        integers = ("tinyint", "smallint", "int")
        columns = [F.col(f"c{i}").cast("bigint" if t in integers else t) for i, (t, _) in enumerate(row)]
        hashed = frame.select(F.hash(*columns)).first()
        vectors.append({"key": [[t, as_json(value)] for t, value in row], "hash": hashed[0]})
    spark.stop()
    lines = ",\n".join("  " + json.dumps(vector, ensure_ascii=True) for vector in vectors)
    text = f'{{"version": 1, "vectors": [\n{lines}\n]}}\n'
    (Path(__file__).parent / "key_hash.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
