"""A reader that asks before and after each commit, while days are run, corrected, compacted and deleted.

Each day sets all keys to one number, so that an answer of two epochs, or of half a correction, shows.
"""

import json

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient
from tests.weir.command_line import use
from tests.weir.reading.parquet_world import ReaderWorld
from tests.weir.reading.state_world import epoch, history, keeps_state, run_days
from tests.weir.small_dataflow import ladder

from weir.reading.lookups import RowGroupCache
from weir.reading.state_opening import StateReader
from weir.serving.state_service import PATHS, StateService

KEYS = [f"N{number}" for number in range(8)]
DAYS = range(1, 6)
ROWS = "/v1/dataflows/ladder/states/history/rows:get"


class Reader:
    """Asks for all keys at once; `answers` are those that it got, in order."""

    def __init__(self, services, is_leasing, most_bytes):
        self.time = 0.0
        self.service = StateService(
            StateReader(services, is_leasing=is_leasing), lambda *_: None, RowGroupCache(most_bytes), self.clock
        )
        self.client = TestClient(Starlette(routes=[Route(PATHS["POST"], self.service.answer, methods=["POST"])]))
        self.answers = []

    def clock(self):
        self.time += 0.3  # so that some answers are of an epoch that was looked for before
        return self.time

    def ask(self, *_):
        found = self.client.post(ROWS, content=json.dumps({"keys": [[key] for key in KEYS]}))
        if found.status_code == 200:
            told = found.json()
            self.answers.append((told["epoch"], told["stale"], tuple(row and row["n"] for row in told["rows"])))
        else:
            assert found.status_code == 503, found.text


def number(day, version):
    return 10 * day + version


@pytest.mark.parametrize(("is_leasing", "most_bytes", "retained"), [(True, 1 << 20, 1), (False, 0, 2)])
def test_no_answer_is_of_two_epochs_or_of_half_a_correction(tmp_path, monkeypatch, retained, is_leasing, most_bytes):
    use(monkeypatch, tmp_path)
    world = keeps_state(ReaderWorld(tmp_path, ladder()))
    world.airflow.engine.plan = {epoch(day): dict.fromkeys(KEYS, number(day, 0)) for day in DAYS}
    reader = Reader(world.services, is_leasing, most_bytes)
    world.airflow.during = world.airflow.after_commit = reader.ask
    with reader.client:
        for day in DAYS:
            run_days(world, history(retained_checkpoints=retained), day)
            reader.ask()
        first = max(DAYS) - retained + 2
        for day in range(first, max(DAYS) + 1):
            world.airflow.engine.plan[epoch(day)] = dict.fromkeys(KEYS, number(day, 1))
            world.airflow.clear_run_by_hand(f"scheduled__2013-01-{day:02d}")
            world.airflow.run_until_quiet()
            reader.time += 1
            reader.ask()
    reader.service.close()
    days = {epoch(day): day for day in DAYS}
    seen = {}
    for at, stale, numbers in reader.answers:
        (found,) = set(numbers)
        day, version = divmod(found, 10)
        assert day == days[at]
        assert version >= seen.get(day, 0)
        seen[day] = version
        assert stale or day >= max(seen)
    assert reader.answers[-1] == (epoch(max(DAYS)), False, (number(max(DAYS), int(retained > 1)),) * len(KEYS))
    assert set(seen) == set(DAYS)
