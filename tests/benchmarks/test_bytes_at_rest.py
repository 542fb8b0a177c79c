"""Bytes at rest over thirty epochs of the flights example, computed by Spark, under the policies that it has.

    pytest tests/benchmarks/test_bytes_at_rest.py --benchmark-only -s

prints the table of docs/measurements.md. There is no scheduler: a fake Airflow runs the tasks one after the other, and
each epoch is a day, with what upkeep does in it.
"""

from __future__ import annotations

import runpy
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.builders.ledgers import new_ledger
from tests.weir_spark.on_spark import AirflowWithCode

from weir.coordination.services import Services
from weir.formats.codec import from_json
from weir.formats.manifest import RELEASED_NOTE
from weir.formats.paths import MANIFEST
from weir.formats.region_job import RegionJob, RegionReport
from weir.store.store import Store
from weir.store.walk import files_below
from weir.upkeep import RESULTS, scrub_everywhere, settle_everywhere, sweep_everywhere
from weir_spark.transport.connect import ConnectEngine

DAG_FILE = Path(__file__).parents[2] / "dags" / "flight_delays.py"
EPOCHS = 30
DAY = timedelta(days=1)


@dataclass(frozen=True)
class AtRest:
    """Files and bytes in the store after an epoch: data of intermediates, what is published, and all the rest."""

    epoch: int
    intermediate: tuple[int, int]
    published: tuple[int, int]
    records: tuple[int, int]

    def __str__(self) -> str:
        cells = (self.intermediate, self.published, self.records)
        return f"| {self.epoch} | " + " | ".join(f"{size:,} ({count})" for count, size in cells) + " |"


class Flights:
    """The example on a real Spark Connect server."""

    def __init__(self, url: str, folder: Path) -> None:
        self.store = Store.open(str(folder / "store"))
        self.ledger = new_ledger(folder / "ledger.db")
        self.spark = ConnectEngine(url)
        services = Services(ledger=self.ledger, store=self.store, now=lambda: self.airflow.time)
        self.airflow = AirflowWithCode(services, self, runpy.run_path(str(DAG_FILE))["flow"])  # type: ignore[arg-type]
        self.airflow.time = datetime.now(UTC)

    def run(self, job: RegionJob, during: Callable[[], None]) -> RegionReport:
        """Take the fake engine's place."""
        self.spark.run(job, str(uuid.uuid4()), lambda _line: None)
        during()
        return from_json(RegionReport, self.store.read(job.report))

    def epochs(self) -> Iterator[AtRest]:
        """Run a day, then upkeep, again and again."""
        for day in range(1, EPOCHS + 1):
            self.airflow.dag_run(day)
            self.airflow.run_until_quiet()
            assert set(self.airflow.states().values()) == {"success"}, self.airflow.states()
            self.airflow.time += DAY
            services = self.airflow.services
            for kept in (
                scrub_everywhere(services, self.airflow),
                sweep_everywhere(services, self.airflow),
                settle_everywhere(services, RESULTS),
            ):
                kept.require_whole()
            yield self.at_rest(day)

    def at_rest(self, epoch: int) -> AtRest:
        """List the store."""
        found: dict[str, list[int]] = {"intermediate": [], "published": [], "records": []}
        for file in files_below(self.store, [self.airflow.flow.name, "_sinks"]):
            found[_kind(file.path)].append(file.bytes)
        return AtRest(epoch, **{kind: (len(sizes), sum(sizes)) for kind, sizes in found.items()})


def _kind(path: str) -> str:
    parts = path.split("/")
    if parts[0] == "_sinks" or len(parts) < 7 or parts[2].startswith("_") or parts[-1] in {MANIFEST, RELEASED_NOTE}:
        return "records"
    return "published" if parts[2] == "delays" else "intermediate"


def test_bytes_at_rest(benchmark: Any, server: Any, tmp_path: Path) -> None:
    flights = Flights(server.url, tmp_path)
    found: list[AtRest] = benchmark.pedantic(lambda: [told(each) for each in flights.epochs()], rounds=1)
    flat = {each.intermediate[0] for each in found[2:]}
    assert len(flat) == 1, flat
    assert max(each.intermediate[1] for each in found[2:]) < 1.5 * min(each.intermediate[1] for each in found[2:])


def told(each: AtRest) -> AtRest:
    """Print a row of the table at once: an epoch takes a while."""
    print(each, flush=True)
    return each
