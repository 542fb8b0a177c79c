"""What an error of Spark says to whoever wrote the stages. Invariant: it needs nothing but pyspark itself.

Drivers on a cluster often lack what only clients of a Connect server need.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException, PythonException

_READ_FAILED = frozenset({"PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"})
_NO_SESSION = ("SESSION_OR_CONTEXT_NOT_EXISTS", "NO_ACTIVE_OR_DEFAULT_SESSION")
"""What a Python worker says, the latter where its server was started with the environment of a Connect client."""

_CHECKPOINT_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"


def advice_on(error: Exception) -> str | None:
    """What a person has to change; None if trying again may help, or nobody knows."""
    if isinstance(error, AnalysisException) and error.getCondition() not in _READ_FAILED:
        return "Spark refuses the plan of its stages"
    if isinstance(error, PythonException) and any(name in str(error) for name in _NO_SESSION):
        return (
            "a module of the pipeline needs a Spark session when Python workers import it. Where it makes a UDF at its "
            "top level, write the type as an object, @udf(LongType()), not as text"
        )
    return "a module is missing where the task runs" if isinstance(error, ImportError) else None


def is_checkpoint_lost(error: Exception) -> bool:
    """Tell whether an executor was lost with rows of a stage that is used more than once; another try has others."""
    return _CHECKPOINT_LOST in str(error)
