"""The two documents of a local stack: the request to start it, and the record that its keeper writes.

Invariant: every process that may be running stands in the record before anything else is done with it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Self

from weir.errors import Misconfigured
from weir_dev.files import write_atomically
from weir_dev.stack.processes import ProcessRecord, record

VERSION = 1
FILE_NAME = "stack.json"


class Phase(Enum):
    """Where a stack stands."""

    DOWN = "down"
    STARTING = "starting"
    UP = "up"
    STOPPING = "stopping"
    FAILED = "failed"


class Database(Enum):
    """Where a stack keeps Airflow's database and the ledger, unless its environment names others."""

    POSTGRES = "postgres"
    """A PostgreSQL server of the stack's own."""
    SQLITE = "sqlite"
    """Two files. Of several writers at once, one may be refused: "database is locked"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRequest:
    """A request to start a stack. `parent` is the process without which the stack must not go on, if there is one.

    `dags` are the folders of DAG files; `environment` is added to that of every component. With `spark_workers` Spark
    is a standalone cluster of so many workers; without any, its executors are threads of the Connect server. Without
    `has_triggerer` nothing can be deferred, and Airflow is ready sooner. With a `balancer`, a program that is given its
    port and those of the servers behind it, there are two schedulers, and two api-servers behind it.
    """

    folder: Path
    dags: tuple[Path, ...]
    plugins: Path
    cache: Path
    environment: dict[str, str] = field(default_factory=dict)
    parallelism: int = 4
    spark_cores: int = 2
    spark_workers: int = 0
    has_triggerer: bool = True
    balancer: Path | None = None
    database: Database = Database.POSTGRES
    preferred_ports: dict[str, int] = field(default_factory=dict)
    parent: ProcessRecord | None = None

    @classmethod
    def owned_by_this_process(cls, **values: Any) -> Self:
        """A request for a stack that ends with the process that calls this, however that ends."""
        return cls(**values, parent=record("parent", os.getpid()))

    def to_json(self) -> str:
        """For the keeper's standard input."""
        values = asdict(self)
        texts = {"folder": str(self.folder), "plugins": str(self.plugins), "cache": str(self.cache)}
        texts["database"] = self.database.value
        if self.balancer is not None:
            texts["balancer"] = str(self.balancer)
        return json.dumps({**values, **texts, "dags": [str(path) for path in self.dags]})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        values = json.loads(text)
        parent = values["parent"]
        return cls(
            **{
                **values,
                "folder": Path(values["folder"]),
                "plugins": Path(values["plugins"]),
                "cache": Path(values["cache"]),
                "database": Database(values["database"]),
                "balancer": Path(values["balancer"]) if values["balancer"] else None,
                "dags": tuple(Path(path) for path in values["dags"]),
                "parent": ProcessRecord(**parent) if parent else None,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StackState:
    """A stack's record. `processes` are the keeper, under its own name, and its components; `ready` those that answer.

    `starts` counts how often each component was started.
    """

    phase: Phase = Phase.DOWN
    message: str = ""
    processes: tuple[ProcessRecord, ...] = ()
    ready: tuple[str, ...] = ()
    starts: dict[str, int] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    def process(self, name: str) -> ProcessRecord | None:
        """The process of this name that was started last."""
        return next((one for one in self.processes if one.name == name), None)

    def describe(self) -> str:
        """Return the current action and the ready components, as one line."""
        ready = f"; ready: {', '.join(self.ready)}" if self.ready else ""
        return f"{self.message or self.phase.value}{ready}"

    def without_process(self, name: str) -> StackState:
        """The record after a process has ended for good."""
        return replace(self, processes=tuple(one for one in self.processes if one.name != name))

    def with_process(self, started: ProcessRecord) -> StackState:
        """The record with a process in place of an earlier one of its name."""
        others = tuple(one for one in self.processes if one.name != started.name)
        starts = {**self.starts, started.name: self.starts.get(started.name, 0) + 1}
        ready = tuple(name for name in self.ready if name != started.name)
        return replace(self, processes=(*others, started), starts=starts, ready=ready)


def read_state(folder: Path) -> StackState:
    """The record of a state folder; that of a stack that was never started if there is none."""
    path = folder / FILE_NAME
    try:
        values: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return StackState()
    except ValueError as error:
        raise _unreadable(path, f"it is no JSON ({error})") from error
    if values.pop("version", None) != VERSION:
        raise _unreadable(path, f"it is not of version {VERSION}")
    processes = tuple(ProcessRecord(**one) for one in values["processes"])
    return StackState(
        **{**values, "phase": Phase(values["phase"]), "processes": processes, "ready": tuple(values["ready"])}
    )


def write_state(folder: Path, state: StackState) -> None:
    """Replace the record."""
    values = {"version": VERSION, **asdict(state), "phase": state.phase.value}
    write_atomically(folder / FILE_NAME, json.dumps(values, indent=1) + "\n")


def _unreadable(path: Path, why: str) -> Misconfigured:
    return Misconfigured.of("dev.record_unreadable", path=path, why=why)
