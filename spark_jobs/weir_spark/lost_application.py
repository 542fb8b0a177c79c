"""What an error says where a region has a Spark application of its own. Invariant: a lost cluster is nobody's fault."""

from __future__ import annotations

from weir.errors import EngineLost, Misconfigured, WeirError
from weir_spark.advice import advice_on, is_checkpoint_lost
from weir_spark.full_disk import disk_full

_LOST = (
    "stopped SparkContext",
    "SparkContext was shut down",
    "SparkContext has been shutdown",
    "All masters are unresponsive",
    "Master removed our application",
    "Application has been killed",
)
_LOST_GATEWAY = frozenset({"Py4JNetworkError", "ConnectionRefusedError"})


def translate_of_own_session(error: Exception, region: str) -> Exception:
    """The error to raise in the place of `error`; itself if the kinds of Weir say no more than it does."""
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
    advice = advice_on(error)
    return error if advice is None else Misconfigured(f"region {region}: {advice}: {error}")
