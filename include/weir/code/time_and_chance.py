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
        *("current_time", "time_ns", "perf_counter", "monotonic", "monotonic_ns", "localtime", "gmtime", "ctime"),
        *("rand", "randn", "randstr", "uniform", "random", "shuffle", "randomSplit", "sample", "sampleBy"),
        *("randint", "randrange", "choice", "choices", "default_rng", "Faker"),
        *("uuid", "uuid1", "uuid4", "urandom", "token_hex", "token_bytes", "secrets"),
        *("monotonically_increasing_id", "spark_partition_id", "input_file_name", "input_file_block_start"),
        *("current_user", "session_user", "current_catalog", "current_database", "current_schema"),
        *("java_method", "try_reflect", "reflect", "sql_ctx", "SQLContext", "_metadata"),
        *("getenv", "environ", "gethostname", "getpid", "urlopen", "requests", "httpx", "urllib3", "socket"),
        *("sparkSession", "SparkSession", "getActiveSession", "call_function", "call_udf"),
        *("fsspec", "s3fs", "gcsfs", "adlfs", "boto3", "psycopg2", "psycopg", "sqlalchemy", "duckdb", "sqlite3"),
        *("subprocess", "Popen", "read_table", "ParquetFile", "read_text", "read_bytes"),
        *("listdir", "scandir", "iterdir", "loadtxt", "genfromtxt", "fromfile"),
        *("loadtxt", "genfromtxt", "fromfile"),
        *("read_csv", "read_json", "read_excel", "read_parquet", "read_sql", "read_html", "read_pickle"),
    }
)
_BUILTINS: Final = frozenset({"open", "input", "id", "hash"})
_BY_MODULE: Final = {
    "time": ("time", "strftime"),
    "os": ("getcwd", "stat"),
    "numpy": ("load",),
    "np": ("load",),
    "models": ("Variable", "Connection"),
    "sdk": ("Variable", "Connection"),
}
"""Functions whose names are usual ones, by their modules."""
_OF_AIRFLOW: Final = frozenset({"Variable", "Connection", "BaseHook"})

_BARE: Final = ("current_date", "current_timestamp", "localtimestamp", "current_time", "current_user", "session_user")
"""What SQL calls without parentheses."""

_DAYS: Final = r"(?:date|timestamp(?:_ltz|_ntz)?)\s*'\s*(now|today|tomorrow|yesterday)"
_CALLED: Final = re.compile(rf"(?i)\b({'|'.join(sorted(_NAMES))})\s*\(|\b({'|'.join(_BARE)})\b|{_DAYS}|(_metadata)\.")
_IN_QUERY: Final = re.compile(rf"(?i)\b({'|'.join(sorted(_NAMES))}|tablesample)\b|{_DAYS}")


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
        found += [(path, each) for each in _found(_IN_QUERY, files[path].decode(errors="replace"))]
    return "{} names {}, by which rows may depend on more than their inputs".format(*found[0]) if found else ""


def _named_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "open":
            yield "open"  # of a path; where it is not called it may be a column
        elif isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in _NAMES or node.attr in _BY_MODULE.get(of, ()):
                yield node.attr
        elif isinstance(node, ast.Name) and node.id in _NAMES | _BUILTINS:
            yield node.id
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = {each.name for each in node.names}
            of_module = _OF_AIRFLOW if module.partition(".")[0] == "airflow" else set(_BY_MODULE.get(module, ()))
            yield from names & (_NAMES | of_module)
            yield from _NAMES & set(module.split("."))
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if _NAMES & set(each.name.split(".")))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _found(_CALLED, node.value)


def _found(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    for found in pattern.finditer(text):
        yield next(each for each in found.groups() if each)
