"""Epochs of a dataflow with a keyed state, and what each of them has written, read and waited for.

Invariant: there is no scheduler: a fake Airflow runs the tasks one after the other, so that seconds are those of Spark
and of Weir, without the starts of tasks.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from sqlalchemy import select
from tests.builders.ledgers import new_ledger
from tests.weir_spark.on_spark import AirflowWithCode

from weir.coordination.services import Services
from weir.dataflow import Dataflow
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest
from weir.formats.region_job import RegionJob, RegionReport
from weir.ledger.database.tables import AttemptRow, CompactionRow, ResultRow
from weir.state.file_rules import sorted_runs
from weir.state.files_in_use import live_state_files
from weir.store.store import Store
from weir.units import format_size
from weir_spark.transport.connect import ConnectEngine

FIRST = date(2013, 1, 1)


def day_of(number: int) -> date:
    """The day of an epoch, of which the first is number 1."""
    return FIRST + timedelta(days=number - 1)


def run_of(number: int) -> str:
    """The run of an epoch, as the ledger names it."""
    return f"changing@{day_of(number):%Y%m%d}T000000Z"


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What an epoch has written, and what its state is made of; sizes in bytes."""

    number: int
    changed: int
    compacted: int
    state: int
    live: int
    runs: int
    seconds: float

    @property
    def written(self) -> float:
        """Bytes written for each byte that changed."""
        return (self.changed + self.compacted) / max(1, self.changed)

    def __str__(self) -> str:
        sizes = " | ".join(format_size(size) for size in (self.changed, self.compacted, self.state, self.live))
        return f"| {self.number} | {sizes} | {self.runs} | {self.written:.2f} | {self.seconds:.1f} |"


@dataclass(frozen=True, kw_only=True)
class Waited:
    """Seconds of an attempt: from its registration until its inputs were there, and from then to its commit.

    `steps` are those of the region that are in it: plan, write, seal; the rest is the session and the commit.
    """

    waited: float
    took: float
    steps: dict[str, float]


class Changing:
    """The dataflow `changing`, on a real Spark Connect server; `now` is the clock of the ledger, if not Airflow's."""

    def __init__(self, url: str, folder: Path, flow: Dataflow, now: Callable[[], datetime] | None = None) -> None:
        self.folder = folder / "store"
        self.store = Store.open(str(self.folder))
        self.store.initialise()
        self.spark = ConnectEngine(url)
        services = Services(
            ledger=new_ledger(folder / "ledger.db"), store=self.store, now=now or (lambda: self.airflow.time)
        )
        self.airflow = AirflowWithCode(services, self, flow)  # type: ignore[arg-type]
        self.airflow.time = datetime.now(UTC)

    def run(self, job: RegionJob, during: Callable[[], None] = lambda: None) -> RegionReport:
        """Take the fake engine's place."""
        self.spark.run(job, str(uuid.uuid4()), lambda _line: None)
        during()
        return from_json(RegionReport, self.store.read(job.report))

    def epoch(self, number: int) -> Epoch:
        """Run a day."""
        run_id = f"scheduled__{day_of(number)}"
        self.airflow._verify_integrity(run_id)
        self.airflow.run_until_quiet(5000)
        assert set(self.airflow.states().values()) == {"success"}, self.errors()
        return self._measured(number, run_of(number))

    def errors(self) -> list[str]:
        """What attempts have failed of."""
        with self.airflow.services.ledger.transaction() as session:
            return [str(row.error) for row in session.scalars(select(AttemptRow)) if row.error]

    def manifests(self, run: str) -> list[Manifest]:
        """Those of the state, by subtask."""
        with self.airflow.services.ledger.transaction() as session:
            query = select(ResultRow).where(ResultRow.run == run, ResultRow.stage == "state", ResultRow.is_current)
            folders = [row.folder for row in session.scalars(query.order_by(ResultRow.subtask))]
        return [from_json(Manifest, self.store.read(f"{folder}/manifest.json")) for folder in folders]

    def _measured(self, number: int, run: str) -> Epoch:
        with self.airflow.services.ledger.transaction() as session:
            compacted = sum(session.scalars(select(CompactionRow.written_bytes).where(CompactionRow.run == run)))
            query = select(AttemptRow).where(AttemptRow.run == run, AttemptRow.region == "update-done")
            spent = [sum((row.metrics or {}).values()) for row in session.scalars(query)]
        manifests = self.manifests(run)
        files = [file for each in manifests if each.state is not None for file in each.state.files]
        live = live_state_files(self.airflow.services, "changing")
        return Epoch(
            number=number,
            changed=sum(each.bytes for each in manifests),
            compacted=compacted,
            state=sum({file.path: file.file.bytes for file in files}.values()),
            live=sum(self.store.size(path) for path in live if path.endswith(".parquet")),
            runs=max(sorted_runs(each.state.files) for each in manifests if each.state is not None),
            seconds=sum(spent),
        )

    def attempts(self, number: int) -> list[Waited]:
        """How long each attempt of the state's region has waited in an epoch, and then computed; by subtask.

        The ledger's clock must be the machine's (`now`), as it is that of the files.
        """
        with self.airflow.services.ledger.transaction() as session:
            query = select(AttemptRow).where(AttemptRow.run == run_of(number), AttemptRow.region == "update-done")
            rows = session.scalars(query.order_by(AttemptRow.subtask)).all()
        return [_waited(self.folder, row) for row in rows]


def _waited(store: Path, row: AttemptRow) -> Waited:
    """An attempt's job is written as soon as its inputs are found, examined and leased; nothing is computed before."""
    (job,) = store.glob(f"*/*/_regions/{row.region}/{row.subtask}/{row.id}/job.json")
    assert row.ended_at is not None
    began, ended, computed = row.began_at.timestamp(), row.ended_at.timestamp(), job.stat().st_mtime
    steps: Counter[str] = Counter()
    for step, seconds in (row.metrics or {}).items():
        steps[step.partition(" ")[0]] += seconds
    return Waited(waited=computed - began, took=ended - computed, steps=dict(steps))
