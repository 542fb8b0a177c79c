"""Writes digest.json and digest-rules.json: `python tests/golden/make_digest.py sc://host:port`.

Other digests need another version.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from weir.dataflow.digest_rule import DigestRule
from weir.formats.manifest import OF_STORED_ROWS
from weir_spark.results.digest import digest_of
from weir_spark.session import configure

QUERIES = {
    "several rows of several types": (
        "select * from values (1, 'a', true, 1.5D), (2, null, false, null), (null, '', null, -0.0D) t(i, s, b, d)"
    ),
    "integers": "select 1Y a, -2S b, 3 c, 9223372036854775807L d",
    "floating point": "select float('1.5') a, double('NaN') b, -0.0D c, double('-Infinity') d",
    "decimals": "select 1.10BD a, cast('-123456789012345678901234567890.12' as decimal(38, 2)) b",
    "text and bytes": "select 'Zürich' a, '' b, X'00ff' c",
    "dates and times": (
        "select date'2013-01-01' a, timestamp'2013-01-01 05:00:00.123456 UTC' b, timestamp_ntz'1582-10-15 00:00:00' c"
    ),
    "nulls": "select int(null) a, string(null) b, cast(null as array<int>) c, cast(null as map<int, int>) d",
    "arrays": "select array(1, null) a, array(array('x'), array()) b",
    "maps": "select map('b', 2, 'a', null) a, map(1, map(2, 3)) b",
    "structs": "select struct(1 x, struct(int(null) y, 'z' z) n) a",
    "arrays of maps of structs": "select array(map('k', struct(array(1, null) x, -0.0D y))) a",
    "equal rows": "select 1 a union all select 1 union all select 1",
    "no rows": "select 1 a, 'x' b where false",
    "a collation": "select 'Ab' collate utf8_lcase a",
    "key group": "select 17 `_weir_key_group`, 'JFK' origin",
}

RULES = {
    "doubles": (
        "select * from values (1.2349D), (-2.675D), (double('NaN')), (double('Infinity')), (null), (-0.001D) t(a)",
        {"a": 2},
        [],
    ),
    "floats and decimals": ("select float('1.2345') a, cast('1.2345' as decimal(9, 4)) b", {"a": 3, "b": 3}, []),
    "whole numbers": ("select 17 a, 18L b", {"a": 0, "b": 4}, []),
    "a column left out": ("select 1 a, timestamp'2013-01-01 05:00:00 UTC' loaded_at", {}, ["loaded_at"]),
    "both": ("select 1.005D fare, 'x' by, 'JFK' origin", {"fare": 2}, ["by"]),
    "all columns left out": ("select 1 a union all select 2", {}, ["a"]),
}


def main(url: str) -> None:
    session = SparkSession.builder.remote(url).create()
    configure(session, {})
    vectors = [
        {"name": name, "query": query, "digest": str(digest_of(session.sql(query)))} for name, query in QUERIES.items()
    ]
    ruled = [
        {
            "name": name,
            "query": query,
            "round": places,
            "ignore": ignored,
            "digest": str(digest_of(session.sql(query), DigestRule(places, tuple(ignored)))),
        }
        for name, (query, places, ignored) in RULES.items()
    ]
    session.stop()
    for name, found in (("digest.json", vectors), ("digest-rules.json", ruled)):
        document = {"version": OF_STORED_ROWS, "vectors": found}
        Path(__file__).with_name(name).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
