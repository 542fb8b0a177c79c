"""Who runs again, or may, because of what runs again."""

from hypothesis import given
from hypothesis import strategies as st

from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.execution.run_state import AttemptState, EarlierRun, RegionState, RunState
from weir.recovery.rules.consumers import Readers, affected
from weir.topology.regions import RegionId, Topology

WIDTH = 20


def comb(**options):
    """Many pairs of a producer and its reader, which have nothing to do with each other."""
    tines = [
        each
        for i in range(WIDTH)
        for each in (
            source(f"from{i}", "m:f"),
            Stage(f"to{i}", "m:t", [blocking(f"from{i}")]),
            sink(f"to{i}", f"out{i}"),
        )
    ]
    return Topology(Dataflow("comb", tines, **options))


def ended(topology, run=""):
    return {
        RegionId(each.name, each.subtask, run): RegionState(
            region=RegionId(each.name, each.subtask, run),
            newest_try=1,
            newest_state=AttemptState.COMMITTED,
            ended_try=1,
        )
        for each in topology.region_ids()
    }


def two_epochs(topology, begun):
    """The run before has begun but for those readers that are not among `begun`."""
    before = {
        region: each for region, each in ended(topology, "before").items() if not is_reader(region) or region in begun
    }
    return RunState(
        run="now",
        topology=topology,
        results={},
        regions=ended(topology) | before,
        predecessor="before",
        earlier={"before": EarlierRun("before", topology, None)},
    )


def is_reader(region):
    return region.name.startswith("to")


READERS = [RegionId(f"to{i}-out{i}", 0, "before") for i in range(WIDTH)]
PRODUCERS = {RegionId(f"from{i}", 0, "before") for i in range(WIDTH)}


@given(st.sets(st.sampled_from(READERS)))
def test_every_consumer_in_an_earlier_run_that_has_begun_is_found(begun):
    state = two_epochs(comb(), begun)
    found = affected(state, PRODUCERS, Readers(state, {}))
    assert found.maybe.keys() == begun
    for reader in begun:
        assert found.depends_on(reader) == (RegionId(reader.name.replace("to", "from").partition("-")[0], 0, "before"),)


@given(st.sets(st.sampled_from(READERS)))
def test_every_consumer_in_an_earlier_run_restarts_where_consumers_always_do(begun):
    state = two_epochs(comb(consumers="always"), begun)
    assert affected(state, PRODUCERS, Readers(state, {})).always.keys() == begun
