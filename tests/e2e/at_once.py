"""Tests of several DAGs of the shared stack at once: what one waits for leaves the machine to the others.

Invariant: the tests of one DAG run in their order, each in the state that the one before has left; each fails by its
own error. Of a DAG that pytest was asked for one test, those before it run, too.

    AT_ONCE = AtOnce({"marks": {}, "clears": {"max_active_runs": 1}})   # arguments of flows/dags/ladder.py

    @AT_ONCE.on("marks")
    def test_that(driver): ...
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future

import pytest
from ladder import expected_running_totals
from ladder_stack import LadderStack, declare
from person import Person

from weir.ledger.database.tables import RunRow


class Driver(LadderStack):
    """One DAG of the stack, with a control file of its own, and the person who works with it."""

    LOOK_SECONDS = 4.0  # many look at the same API, and each look takes its time

    def __init__(self, stack, shared, dag):
        own = _own(shared, dag)
        super().__init__(stack, own, dag)
        self.shared = shared
        self.person = Person(self.api, dag)

    def beside(self, dag, **shape):
        """One more DAG, for this DAG's tests alone."""
        own = _own(self.shared, dag)
        with _DEPLOYING:
            settings = json.loads(self.shared.read_text())
            settings["dags"][dag] = {**shape, "control": str(own)}
            declare(self.shared, settings)
        driver = Driver(self.stack, self.shared, dag)
        driver.wait(lambda: driver.api.has_dag(dag), f"the DAG {dag}")
        return driver

    def deploy(self, **shape):
        """Change what the DAG file says of this DAG."""
        with _DEPLOYING:
            settings = json.loads(self.shared.read_text())
            settings["dags"][self.dag].update(shape)
            declare(self.shared, settings)

    def start(self, day="2024-01-01"):
        """Unpause the DAG; the run id of a day."""
        self.api.unpause(self.dag)
        return self.run(day)

    def green(self, *run_ids):
        """Wait until the runs (all that there are) are green and right; the tries of their task instances by day."""
        run_ids = run_ids or tuple(run.run_id for run in self.api.runs(self.dag))
        for run_id in run_ids:
            self.await_green(run_id)
        self.require_right()
        return {run.start[:10]: self.tries(run.run_id) for run in self.api.runs(self.dag) if run.run_id in run_ids}

    def require_right(self):
        """What must be so at the end of all faults: every result is done, and what is published is what Python says."""
        for view in self.runs():
            state = view.state
            wanted = {each for region in state.region_ids() for each in state.outputs(region)}
            assert {each for each in wanted if not state.is_done(each)} == set(), view.id
            assert self.totals(view.epoch) == self.expected(view.epoch), view.id
        assert self.owed() == []

    def expected(self, epoch):
        """What plain Python computes of an epoch, in a dataflow that reads the one before of all that it has read."""
        with self.shared.open() as file:
            shape = json.load(file)["dags"][self.dag]
        is_running = shape.get("running", False) or shape.get("kept", False)
        return expected_running_totals(self.settings(), self.chain(epoch) if is_running else [epoch])

    def chain(self, epoch):
        """The epochs that one was made from, as the ledger has them, oldest first, and itself."""
        with self.ledger.transaction() as session:
            before = {row.epoch: row.predecessor for row in session.query(RunRow).filter_by(dataflow=self.dag)}
        chain = []
        while epoch is not None:
            chain.insert(0, epoch)
            epoch = before[epoch]
        return chain

    def healed(self, before):
        """Wait until all is green and right; what has run again since `before`, as `again_by_day` tells it."""
        self.green()
        return self.again_by_day(before)

    def again_by_day(self, before):
        """How many tries each task instance has had since `before` (of `green`), by day; days without any left out."""
        days = {run.start[:10]: self.again(run.run_id, before.get(run.start[:10], {})) for run in self.dag_runs()}
        return {day: again for day, again in days.items() if again}


class AtOnce:
    """The tests of one module, by DAG; those of `soaks` are run as soaks only, all tests of a DAG together."""

    def __init__(self, shapes, soaks=frozenset()):
        self.shapes, self._soaks = shapes, soaks
        self._steps = {dag: {} for dag in shapes}

    def on(self, dag, *, soak=False):
        """Let a function be a test on this DAG: it gets the DAG's driver. Soaks come last."""

        def decorate(step):
            self._steps[dag][step.__name__] = step

            def test(outcomes):
                outcomes[step.__name__].result()

            test.__name__, test.__doc__, test.__module__ = step.__name__, step.__doc__, step.__module__
            return pytest.mark.soak(test) if soak or dag in self._soaks else test

        return decorate

    def chosen(self, items):
        """Return the DAGs that pytest's items are about, each with its tests in their order, to the last item's."""
        names = {item.originalname for item in items}
        found = {}
        for dag, steps in self._steps.items():
            last = max((at for at, name in enumerate(steps, 1) if name in names), default=0)
            if last:
                found[dag] = list(steps.values())[:last]
        return found


def next_modules(items, first):
    """Return the items by module of those modules that begin with `first`: as many as have LEAST_AT_ONCE DAGs."""
    modules = [getattr(item, "module", None) for item in items]
    found = {}
    for at, module in list(enumerate(modules))[modules.index(first) :]:
        if module not in found and (_dags_of(found) >= LEAST_AT_ONCE or not hasattr(module, "AT_ONCE")):
            break
        found.setdefault(module, []).append(items[at])
    return found


def _dags_of(modules):
    return sum(len(module.AT_ONCE.chosen(items)) for module, items in modules.items())


def start(stack, control, modules):
    """Run the tests of all modules, all DAGs at once; answers the futures by module and by name of the test."""
    steps = {module: module.AT_ONCE.chosen(items) for module, items in modules.items()}
    shapes = {dag: module.AT_ONCE.shapes[dag] for module, dags in steps.items() for dag in dags}
    declare(control, {"dags": {dag: {**shape, "control": str(_own(control, dag))} for dag, shape in shapes.items()}})
    futures = {}
    for module, dags in steps.items():
        futures[module] = {step.__name__: Future() for steps_of_one in dags.values() for step in steps_of_one}
        for dag, steps_of_one in dags.items():
            work = (Driver(stack, control, dag), steps_of_one, futures[module])
            # A daemon: what still waits when the tests are interrupted must not hold up their end.
            threading.Thread(target=_run_in_order, args=work, name=dag, daemon=True).start()
    return futures


LEAST_AT_ONCE = 10
"""So many DAGs at least are at work at once, if there are: with fewer, the machine waits."""

_DEPLOYING = threading.Lock()


def _own(shared, dag):
    own = shared.parent / dag / "control.json"
    if not own.exists():
        own.parent.mkdir()
        own.write_text("{}")
    return own


def _run_in_order(driver, steps, futures):
    for step in steps:
        try:
            driver.wait(lambda: driver.api.has_dag(driver.dag), f"the DAG {driver.dag}")
            futures[step.__name__].set_result(step(driver))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is that test's outcome
            futures[step.__name__].set_exception(error)
    driver.close()
