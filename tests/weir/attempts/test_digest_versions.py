"""A Weir with another version of digests: recomputed results count as changed, with the reason."""

from dataclasses import replace

import pytest


@pytest.fixture
def green(world):
    world.run = world.airflow.dag_run()
    world.airflow.run_until_quiet()
    return world


def test_consumers_run_again_and_are_told_that_nobody_knows_whether_their_input_has_changed(green):
    write = green.airflow.engine._write

    def digested_anew(*given):
        report = write(*given)
        return replace(report, digest=replace(report.digest, version=2))

    green.airflow.engine._write = digested_anew
    green.airflow.clear_by_hand(green.run, "weather")
    green.airflow.run_until_quiet()
    again = {task for task, tries in green.airflow.executed(green.run).items() if tries > 1}
    downstream = {"joined[0]", "joined[1]", "totals[0]", "totals[1]", "routes[0]", "report-delays[0]", "weir_close[0]"}
    assert again == {"weather[0]", *downstream}
    said = green.airflow.task(green.run, "joined", 0).notes[-1]
    assert "another version of Weir has digested weather[0]" in said
    assert set(green.airflow.states().values()) == {"success"}
