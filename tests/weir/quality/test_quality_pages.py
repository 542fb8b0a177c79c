"""Pages about checks are written to the store once, fail nothing, and are deleted with the records of their run."""

from datetime import timedelta

import pytest
from tests.weir.checking import NOT_NULL, checks, gated, use, violate
from tests.weir.small_dataflow import Saved, World

from weir.coordination.services import Services
from weir.dataflow import expectations
from weir.dataflow.retention_settings import RetentionSettings
from weir.errors import Retryable
from weir.ledger.database.tables import QualityCheckRow
from weir.quality.pages import list_pages, make_pages, make_pages_everywhere
from weir.retention.sweep import sweep
from weir.retention.sweep_report import Garbage
from weir.store.walk import files_below
from weir.testing.fakes.ledgers import fast_folder

EPOCHS = ["20130101T000000Z", "20130102T000000Z"]


@pytest.fixture(scope="module")
def two_days():
    """Rows that pass on the first day, and that are refused on the second."""
    with fast_folder() as folder:
        (folder / "world/store").mkdir(parents=True)
        world = World(folder / "world", gated(expectations("clean_rows")))
        violate(world, set(), {NOT_NULL})
        yield Saved(world, folder / "saved")


@pytest.fixture
def world(two_days, tmp_path, copied):
    return two_days.go_on(tmp_path, copied)


class Renderer:
    """Makes pages as the program does, and remembers what it was asked."""

    def __init__(self, error=""):
        self.asked, self.error = [], error

    def __call__(self, documents):
        self.asked.append([each.check for each in documents])
        for each in documents:
            yield each.check, self.error or f"<html>{each.suite} {each.outcome} {dict(each.facts)['epoch']}".encode()


def pages(world):
    return sorted(each.path for each in files_below(world.store, ["_quality"]) if "index" not in each.path)


def expire(world, days):
    use(
        world,
        Services(ledger=world.ledger, store=world.store, now=lambda: world.airflow.time, retention=RetentionSettings()),
    )
    world.airflow.time += timedelta(days=days)


def test_each_check_gets_its_page_once_and_the_ledger_names_it_then(world):
    render = Renderer()
    made = make_pages(world.services, render)
    assert (made.pages, made.problems, made.is_all) == (2, (), True)
    assert pages(world) == sorted(row.page for row in checks(world))
    read = {row.epoch: world.store.read(row.page).decode() for row in checks(world)}
    assert read == {
        EPOCHS[0]: f"<html>clean_rows passed {EPOCHS[0]}",
        EPOCHS[1]: f"<html>clean_rows failed {EPOCHS[1]}",
    }
    assert make_pages_everywhere(world.services, render) == "every check has its page"
    assert len(render.asked) == 1


def test_of_an_attempt_only_what_is_not_right_gets_a_page_at_once(world):
    passed, failed = checks(world)
    render = Renderer()
    assert make_pages(world.services, render, by_attempt=passed.by_attempt).pages == 0
    assert make_pages(world.services, render, by_attempt=failed.by_attempt).pages == 1
    assert render.asked == [[failed.id]]


def test_of_what_was_not_looked_at_there_is_no_page(world):
    with world.ledger.transaction("gated") as session:
        same, rebuilt = (session.get_one(QualityCheckRow, row.id) for row in checks(world))
        same.outcome, rebuilt.why = "same", "rebuilt"
    assert make_pages(world.services, Renderer()).pages == 0


def test_a_batch_is_limited_and_says_that_there_are_more(world):
    render = Renderer()
    assert [make_pages(world.services, render, most=1).is_all for _ in range(3)] == [False, False, True]
    assert render.asked == [[row.id] for row in checks(world)]


def test_a_page_that_cannot_be_made_is_reported_and_tried_again(world):
    made = make_pages(world.services, Renderer("ValueError: no"))
    assert (made.pages, len(made.problems)) == (0, 2)
    with pytest.raises(Retryable, match="ValueError: no"):
        make_pages_everywhere(world.services, Renderer("ValueError: no"))
    assert pages(world) == []
    assert make_pages(world.services, Renderer()).pages == 2


def test_the_list_names_the_newest_first_and_escapes_what_it_names(world):
    with world.ledger.transaction("gated") as session:
        session.get_one(QualityCheckRow, checks(world)[1].id).suite = "<b>"
    make_pages(world.services, Renderer())
    list_pages(world.services, "gated")
    listed = world.store.read("_quality/gated/index.html").decode()
    assert listed.index(EPOCHS[1]) < listed.index(EPOCHS[0])
    assert "<b>" not in listed
    assert "&lt;b&gt;" in listed


def test_pages_stay_through_a_full_sweep_and_go_when_their_run_expires(world):
    make_pages(world.services, Renderer())
    report = sweep(world.services, is_full=True)
    assert {each.path for each in report.kept if "pages about checks" in each.reason} == {
        f"_quality/gated/{epoch}" for epoch in EPOCHS
    }
    assert not [each for each in report.unknown if each.path.startswith("_quality")]
    assert len(pages(world)) == 2
    expire(world, 91)
    dry = sweep(world.services, is_full=True, is_dry=True)
    assert len(dry.expired) == 2
    assert len(pages(world)) == 2
    report = sweep(world.services, is_full=True)
    assert {each.path for each in report.deleted if each.kind is Garbage.PAGE} == {
        f"_quality/gated/{epoch}" for epoch in EPOCHS
    }
    assert checks(world) == []
    assert pages(world) == []
    assert b"<a " not in world.store.read("_quality/gated/index.html")


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_pages_that_a_dead_process_left_of_an_expired_run_are_deleted_and_unknown_ones_reported(world):
    make_pages(world.services, Renderer())
    expire(world, 91)
    sweep(world.services, is_full=True)
    world.store.create(f"_quality/gated/{EPOCHS[0]}/clean/0/t0001-x/clean_rows-1.html", b"left")
    world.store.create("_quality/gated/20990101T000000Z/clean/0/t0001-x/clean_rows-1.html", b"whose?")
    world.store.create("_quality/other/20130101T000000Z/clean/0/t0001-x/clean_rows-1.html", b"whose?")
    report = sweep(world.services, is_full=True)
    assert [each.path for each in report.deleted if each.kind is Garbage.PAGE] == [f"_quality/gated/{EPOCHS[0]}"]
    assert {each.path for each in report.unknown if each.path.startswith("_quality")} == {
        "_quality/gated/20990101T000000Z",
        "_quality/other",
    }
    assert {path.split("/")[2] for path in pages(world)} == {"20990101T000000Z", "20130101T000000Z"}


def test_a_check_that_was_forgotten_meanwhile_leaves_no_page(world):
    class Slow(Renderer):
        def __call__(self, documents):
            found = list(super().__call__(documents))
            with world.ledger.transaction("gated") as session:
                for row in checks(world):
                    session.delete(session.get_one(QualityCheckRow, row.id))
            yield from found

    assert make_pages(world.services, Slow()).pages == 0
    assert pages(world) == []
