"""What users' code mostly means where Python has an error: imports that are missing, names that are close.

Invariant: nothing of the user's is imported for a hint; packages are listed by their names.
"""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from weir.wording import closest, did_you_mean

_BOUNDS: Final = ("start", "end", "start_local", "end_local")
"""The placeholders of ready-made sources."""

_DATAFLOW: Final = "weir.dataflow"
"""What DAG files declare with: it is imported where one is."""

_IMPORTS: Final = {
    "F": "from pyspark.sql import functions as F",
    "T": "from pyspark.sql import types as T",
    "W": "from pyspark.sql import Window as W",
    "Window": "from pyspark.sql import Window",
    "SparkSession": "from pyspark.sql import SparkSession",
    "DataFrame": "from pyspark.sql import DataFrame",
    "udf": "from pyspark.sql.functions import udf",
    "col": "from pyspark.sql.functions import col",
    "lit": "from pyspark.sql.functions import lit",
    "when": "from pyspark.sql.functions import when",
    "pd": "import pandas as pd",
    "np": "import numpy as np",
    "pa": "import pyarrow as pa",
    "datetime": "from datetime import datetime",
    "timedelta": "from datetime import timedelta",
    "date": "from datetime import date",
    "UTC": "from datetime import UTC",
    "Decimal": "from decimal import Decimal",
    "dataflow_dag": "from weir_airflow.dag import dataflow_dag",
    "dataflow_group": "from weir_airflow.dag import dataflow_group",
}
"""What brings a name that is used without."""

_SESSION_AT_IMPORT: Final = re.compile(
    r"CONNECT_URL_NOT_SET|CONTEXT_UNAVAILABLE_FOR_REMOTE_CLIENT|MASTER_URL_NOT_SET|A master URL must be set|"
    r"NO_ACTIVE_(?:OR_DEFAULT_)?SESSION|SESSION_OR_CONTEXT_(?:EXISTS|NOT_EXISTS)|JAVA_GATEWAY_EXITED"
)

_NO_SUCH_NAME: Final = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")

_NAME_ERROR: Final = re.compile(r"^NameError: name '(\w+)' is not defined$", re.MULTILINE)
"""As Spark tells of the error of a Python worker."""

_MOST: Final = 2000
"""The files that are looked at for a close name."""


def hint_of(error: BaseException) -> str:
    """Return what to write, as the end of a sentence, for an error of code that is imported or called; else nothing."""
    if isinstance(error, NameError) and not isinstance(error, UnboundLocalError):
        return _of_name(str(error.name or ""))
    if of_worker := _NAME_ERROR.search(str(error)):
        return _of_name(of_worker[1])
    if isinstance(error, ModuleNotFoundError) and error.name:
        return did_you_mean(error.name, modules_beside(error.name), lead=", ")
    if isinstance(error, ImportError) and (found := _NO_SUCH_NAME.match(str(error))):
        known = [each for each in dir(sys.modules.get(found[2])) if not each.startswith("_")]
        return did_you_mean(found[1], known, lead=", ")
    if _SESSION_AT_IMPORT.search(str(error)):
        return (
            ": there is no Spark session to make or to get here, least of all while a module is imported. Take "
            "ctx.spark within the stage's function"
        )
    return ""


def modules_beside(missing: str) -> list[str]:
    """Return the full names of the modules in the package of a missing one; of a top-level one, those on the path."""
    package, _, _ = missing.rpartition(".")
    if not package:
        return [each.name for each in pkgutil.iter_modules()] + list(sys.stdlib_module_names)
    found = sys.modules.get(package)
    paths = [] if found is None else list(getattr(found, "__path__", ()))
    return [f"{package}.{each.name}" for each in pkgutil.iter_modules(paths)] if paths else []


def files_like(wrong: str, folders: Iterable[Path]) -> list[str]:
    """Return the paths, below some folders, of the files with the ending of a wrong path, that may be meant."""
    names: dict[str, None] = {}
    for folder in folders:
        for file in folder.rglob(f"*{Path(wrong).suffix}"):
            path = file.relative_to(folder)
            if not any(part.startswith(".") for part in path.parts):
                names[path.as_posix()] = None
            if len(names) >= _MOST:
                break
    same = [each for each in names if Path(each).name.lower() == Path(wrong).name.lower()]
    return same[:1] or closest(wrong, names)


def _of_name(name: str) -> str:
    if name in _BOUNDS:
        return (
            f": in an f-string Python fills {{{name}}} itself. Leave the f before the quote out, and Weir fills in the "
            f"bounds of each run's interval (in a text that has to be an f-string, write {{{{{name}}}}})"
        )
    if name in _IMPORTS:
        return f": write {_IMPORTS[name]}"
    if name in getattr(sys.modules.get(_DATAFLOW), "__all__", ()):
        return f": write from {_DATAFLOW} import {name}"
    return f": write import {name}" if name in sys.stdlib_module_names else ""
