"""`weir verify`, as a person types it."""

import json
import re
import shutil

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.command_line import invoked, use
from tests.weir.small_dataflow import World, ladder

from weir.errors import Misconfigured, Retryable
from weir.ledger.database.tables import PendingClearRow, PublicationRow, ResultRow

RUN = "ladder@20130101T000000Z"


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A run that has gone through, in the environment's ledger and store."""
    world = World(tmp_path, ladder())
    world.run = world.run_first(1)
    use(monkeypatch, tmp_path)
    return world


def typed(*words):
    """What was printed, and the exit code."""
    done = invoked("verify", *words)
    return done.stdout, done.exit_code


def answered(*words):
    told, code = typed(*words, "--json")
    return json.loads(told), code


def row(world, stage, subtask=0):
    with world.ledger.transaction() as session:
        query = select(ResultRow).where(ResultRow.stage == stage, ResultRow.subtask == subtask)
        return session.scalar(query.order_by(ResultRow.id))


def break_body(world, result):
    path = world.folder / "store" / result.folder / "part-0.bin"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(bytes(data))


def test_a_whole_run_is_whole(world):
    told, code = typed(RUN)
    assert (code, told.strip()) == (0, "9 result(s) of 1 run(s): 9 whole (720 bytes).")
    assert row(world, "joined").verified_at is not None


@pytest.mark.parametrize("words", [(), ("ladder",), ("scheduled__2013-01-01",)])
def test_all_a_dataflow_or_a_run_by_either_name(world, words):
    found, code = answered(*words)
    assert (code, found["runs"], found["results"]) == (0, [RUN], {"whole": {"results": 9, "bytes": 720}})


def test_what_is_damaged_is_lost_and_nothing_is_made_again(world):
    break_body(world, row(world, "joined", 1))
    found, code = answered(RUN)
    assert code == 1
    assert [(each["stage"], each["subtask"], each["fault"]) for each in found["bad"]] == [("joined", 1, "damaged")]
    bad = row(world, "joined", 1)
    assert (bad.state, bad.fault, bad.verified_at) == ("lost", "damaged", None)
    with world.ledger.transaction() as session:
        assert list(session.scalars(select(PendingClearRow))) == []


def test_a_line_has_the_name_of_the_file_and_the_beginning_of_digests_and_the_json_has_all_of_them(world, monkeypatch):
    bad = row(world, "joined", 1)
    break_body(world, bad)
    monkeypatch.delenv("COLUMNS")
    lines = typed(RUN)[0].splitlines()
    [line] = [each for each in lines if "damaged" in each]
    assert re.search(r" damaged, part-0.bin, .*: expected SHA-256 [0-9a-f]{12}\.\.\., found [0-9a-f]{12}\.\.\. ", line)
    assert max(map(len, lines)) < 250
    [found] = answered(RUN)[0]["bad"]
    assert re.search(rf"{bad.folder}/part-0.bin, .* found [0-9a-f]{{64}}", found["detail"])


def test_with_repair_it_is_made_again(world):
    break_body(world, row(world, "joined", 1))
    told, code = typed(RUN, "--repair")
    assert code == 1
    assert "re-running joined[1]" in told
    assert "1 clear(s) are pending" in told
    world.airflow.run_until_quiet()
    assert typed(RUN)[1] == 1  # still owed: nobody has carried it out
    world.airflow.deliver_clears()
    world.airflow.run_until_quiet()
    assert typed(RUN)[1] == 0


def test_bytes_that_are_back_are_found(world):
    bad = row(world, "joined", 1)
    break_body(world, bad)
    assert typed(RUN)[1] == 1
    break_body(world, bad)  # the same bit again
    found, code = answered(RUN)
    assert (code, found["results"]["back"]) == (0, {"results": 1, "bytes": 80})
    again = row(world, "joined", 1)
    assert (again.state, again.fault) == ("finished", None)


def test_a_pointer_that_is_gone_is_told_and_published_again(world):
    with world.ledger.transaction() as session:
        pointer = session.scalar(select(PublicationRow.pointer))
    (world.folder / "store" / pointer).unlink()
    found, code = answered(RUN, "--repair")
    assert code == 1
    assert found["bad"] == []
    assert [each["path"] for each in found["misfits"]] == [pointer]
    world.airflow.deliver_clears()
    world.airflow.run_until_quiet()
    found, _ = answered(RUN)
    assert [each["is_published"] for each in found["misfits"]] == [False]
    assert world.store.list("_sinks/ladder/delays/20130101T000000Z")[-1][0] == "000002.json"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda _text: "{", "cannot be read as the pointer"),
        (lambda text: text.replace('"version": 1', '"version": 7'), "version 1 and 7"),
        (lambda text: text.replace('"subtask": 0', '"subtask": 0').replace("/t0001", "/t0009"), "folders"),
    ],
)
def test_a_pointer_that_says_something_else_is_told(world, damage, said):
    with world.ledger.transaction() as session:
        path = world.folder / "store" / session.scalar(select(PublicationRow.pointer))
    path.write_text(damage(path.read_text()))
    found, code = answered(RUN)
    assert code == 1
    assert said in found["misfits"][0]["detail"]


def test_a_manifest_that_is_gone_loses_the_result(world):
    folder = world.folder / "store" / row(world, "routes").folder
    (folder / "manifest.json").unlink()
    found, _ = answered(RUN)
    assert [(each["stage"], each["fault"]) for each in found["bad"]] == [("routes", "missing")]


def test_a_ledger_that_says_something_else_than_the_manifest_is_told(world):
    with world.ledger.transaction("ladder") as session:
        session.get_one(ResultRow, row(world, "routes").id).rows = 17
    found, code = answered(RUN)
    assert code == 1
    assert [(each["outcome"], each["detail"]) for each in found["bad"]] == [
        ("otherwise", "ledger and manifest differ: rows 17 and 1")
    ]


def test_a_store_that_is_not_there_loses_nothing(world):
    shutil.move(world.folder / "store", world.folder / "elsewhere")
    (world.folder / "store").mkdir()
    with pytest.raises(Retryable, check=of_kind("store.marker_missing")):
        typed(RUN)
    assert row(world, "joined").state == "finished"


def test_an_unknown_name_is_refused_with_what_is_known(world):
    with pytest.raises(
        Misconfigured,
        match=f"{RUN}",
        check=of_kind("ledger.run_unknown", name="river", where="the ledger knows no run or dataflow"),
    ):
        typed("river")
