"""Finds names in code by which its rows may depend on time, chance, the machine or what is outside.

Invariant: what is not found here is not proven: a stage that is declared deterministic is held to be so. What is found
only keeps others from taking a result that was made of the same.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from weir.code.version import code_reached

_NAMES: Final = frozenset(
    {
        *("current_date", "current_timestamp", "localtimestamp", "curdate", "now", "utcnow", "today", "unix_timestamp"),
        *("time_ns", "perf_counter", "monotonic", "monotonic_ns", "localtime", "gmtime"),
        *("rand", "randn", "randstr", "uniform", "random", "shuffle", "randomSplit", "sample", "sampleBy"),
        *("uuid", "uuid1", "uuid4", "urandom", "token_hex", "token_bytes", "secrets"),
        *("monotonically_increasing_id", "spark_partition_id", "input_file_name", "input_file_block_start"),
        *("current_user", "session_user", "current_catalog", "current_database"),
        *("getenv", "environ", "gethostname", "getpid", "urlopen", "requests", "httpx", "urllib3", "socket"),
        *("sparkSession", "SparkSession", "getActiveSession", "call_function", "call_udf"),
        *("fsspec", "s3fs", "gcsfs", "adlfs", "boto3", "psycopg2", "psycopg", "sqlalchemy", "duckdb", "sqlite3"),
        *("subprocess", "Popen", "read_table", "ParquetFile", "read_text", "read_bytes"),
        *("read_csv", "read_json", "read_excel", "read_parquet", "read_sql", "read_html", "read_pickle"),
    }
)
_BUILTINS: Final = frozenset({"open", "input", "id", "hash"})
_CALLED: Final = re.compile(rf"(?i)\b({'|'.join(sorted(_NAMES))})\s*\(")
_IN_QUERY: Final = re.compile(rf"(?i)\b({'|'.join(sorted(_NAMES))})\b")
"""Some of SQL's functions are called without parentheses."""


def told_by_time_or_chance(files: Mapping[str, bytes], functions: Iterable[str]) -> str:
    """Return a sentence about the first name found in what functions reach, each "module:function" or a file's path.

    `files` are those of their archive. Empty where none is found.
    """
    named = list(functions)
    reached = code_reached(files, named)
    if reached is None:
        return "what their code imports cannot be followed"
    found = [(module, name) for module, tree in sorted(reached.items()) for name in _named_in(tree)]
    for path in (each for each in named if each in files):
        found += [(path, each) for each in _IN_QUERY.findall(files[path].decode(errors="replace"))]
    return "{} names {}, by which rows may depend on more than their inputs".format(*found[0]) if found else ""


def _named_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _NAMES:
            yield node.attr
        elif isinstance(node, ast.Name) and node.id in _NAMES | _BUILTINS:
            yield node.id
        elif isinstance(node, ast.alias) and node.name.rpartition(".")[2] in _NAMES:
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _CALLED.findall(node.value)
