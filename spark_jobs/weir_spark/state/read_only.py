"""The handle of a state that another stage of the task keeps. Invariant: it is only read, as its keeper reads it."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from weir.errors import Misconfigured
from weir_spark.state.keyed_state import KeyedState
from weir_spark.state.operator_state import BroadcastState, ListState


class StateOfOther:
    """A state that another stage of the same task keeps: `previous("name")` reads it as the epoch before has left it.

    What its own stage changes of it in this epoch is not seen here, whichever of the two is computed first.
    """

    def __init__(self, handle: KeyedState | ListState | BroadcastState, name: str, stage: str) -> None:
        self._handle, self._name, self._stage = handle, name, stage

    def read(self, keys: DataFrame | None = None) -> DataFrame:
        """The rows of keyed state, with `keys` only those of these keys, or of broadcast state."""
        if isinstance(self._handle, KeyedState):
            return self._handle.read(keys)
        if isinstance(self._handle, BroadcastState) and keys is None:
            return self._handle.read()
        raise self._refused("read()" if keys is None else "read(keys)")

    def get(self) -> list[Any]:
        """The elements of a list, as the subtask of its own stage gets them."""
        if isinstance(self._handle, ListState):
            return self._handle.get()
        raise self._refused("get()")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise self._refused(name)

    def _refused(self, call: str) -> Misconfigured:
        return Misconfigured.of("state.only_read", state=self._name, stage=self._stage, call=call)
