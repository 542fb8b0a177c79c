"""The figure of Flink's "An Intro to Incremental Checkpointing": four checkpoints of which two are retained.

The dataflow, the ledger, the store, compactions and retention are those of production; only Spark is a fake, which
writes the files that the figure has. In Weir a subtask writes one sorted run an epoch, and a merge takes whole runs: so
files 1 to 3 are of one subtask, whose third file overwrites the rows of the first two, and files 4 to 6 of the other.
"""

from dataclasses import replace

from tests.weir.keeping import epoch
from tests.weir.small_dataflow import World

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir.ledger.checkpoints import retained_checkpoints
from weir.state.checkpoint_content import read_checkpoint
from weir.testing.fakes.engine import FakeEngine
from weir.views.checkpoints import checkpoint_details

FLOW = Dataflow(
    "flights",
    [
        source("arrivals", "pipelines.flights:arrivals", parallelism=2),
        Stage(
            "aircraft",
            "pipelines.flights:aircraft",
            [blocking("arrivals", by="k")],
            parallelism=2,
            state=keyed_state("history", key="k", schema="k BIGINT, n BIGINT", runs=2),
        ),
        sink("aircraft", "fleet"),
    ],
    retained_checkpoints=2,
    keep="on_consumed",
)

WRITTEN = {
    (epoch(1), 0): ("part-1", "part-2"),
    (epoch(2), 0): ("part-3",),
    (epoch(2), 1): ("part-4",),
    (epoch(3), 1): ("part-5",),
    (epoch(4), 1): ("part-6",),
}
"""The files that a subtask writes in an epoch; in the others its state does not change."""

LIVE = {"part-2": 2, "part-3": 1, "part-4": 1, "part-5": 2, "part-6": 3}
"""How many of its rows are visible once it has written this file; each file has one row."""

BYTES = 500_000
"""More than a file has; of a state below 1 MiB the rows that were overwritten are not removed."""

COMPACTION = "weir_compact-aircraft-fleet"


class EngineOfTheFigure(FakeEngine):
    """Writes the files of the figure, each with one row."""

    def __init__(self, store, world):
        super().__init__(store, world)
        self.padding["history"] = BYTES

    def _state(self, job, stage, output, contents):
        names = WRITTEN.get((job.epoch, stage.subtask), ())
        report = self._renamed(super()._state(job, stage, output, contents), names)
        (tally,) = report.state.tallies
        tally = replace(tally, rows=LIVE[names[-1]] if names else 1)
        return replace(report, state=replace(report.state, tallies=(tally,), changed=len(names)))

    def _merged(self, job, during):
        """Name the file of a merge after those that it is made of."""
        report = super()._merged(job, during)
        names = [
            "part-" + "-".join(file.path.rpartition("part-")[2] for file in merge.state.files) for merge in job.merges
        ]
        outputs = tuple(
            self._renamed(each, [name], rows=LIVE[f"part-{name[-1]}"])
            for each, name in zip(report.outputs, names, strict=True)
        )
        return replace(report, outputs=outputs)

    def _renamed(self, report, names, rows=1):
        (file,) = report.files
        data = self._store.read(f"{report.folder}/{file.name}")
        for name in names:
            self._store.create(f"{report.folder}/{name}", data)
        self._store.delete(f"{report.folder}/{file.name}")
        return replace(report, files=tuple(replace(file, name=name, rows=rows) for name in names))


class Figure:
    """The four epochs. The compaction of the second comes after its checkpoint, and that of the third is never run."""

    def __init__(self, folder):
        self.world = World(folder, FLOW)
        self.airflow = self.world.airflow
        self.airflow.engine = EngineOfTheFigure(self.world.store, self.world.content)

    def checkpoint(self, number):
        """Run an epoch, up to its checkpoint and what that has deleted."""
        if number == 3:
            self._compact(2)
        run = self.airflow.dag_run(number)
        if number < 4:
            self.airflow.task(run, COMPACTION).state = "running"
        else:
            self._close_last(run)
        self.airflow.run_until_quiet()

    def _compact(self, day):
        task = self.airflow.task(f"scheduled__2013-01-{day:02d}", COMPACTION)
        task.state = None
        self.airflow.step(task)

    def _close_last(self, run):
        close = self.airflow.task(run, "weir_close")
        close.state = "running"
        self.airflow.run_until_quiet()
        close.state = None

    def named(self):
        """The names of the files of each retained checkpoint, by its number."""
        with self.world.ledger.transaction() as session:
            numbers = [row.number for row in retained_checkpoints(session, FLOW.name)]
        found = {number: read_checkpoint(self.world.store, FLOW.name, number) for number in numbers}
        return {number: {_name(path) for path in each.files} for number, each in found.items()}

    def counts(self, number):
        """How many retained checkpoints name each file, as `weir checkpoints` says."""
        details = checkpoint_details(self.world.services, FLOW.name, number)
        return {_name(each.path): len(each.checkpoints) for each in details.files}

    def stored(self):
        """The names of all files of the state that are in the store."""
        root = self.world.folder / "store"
        return {path.name for path in root.glob("flights/*/history/**/part-*")}


def _name(path):
    return path.rpartition("/")[2]
