"""Pages about checks are written to the store once, fail nothing, and are deleted with the records of their run."""

from datetime import timedelta

import pytest
from tests.weir.checking import NOT_NULL, checks, gated, use, violate
from tests.weir.small_dataflow import Saved, World

from weir.coordination.services import Services
from weir.dataflow import expectations
from weir.dataflow.retention_settings import RetentionSettings
from weir.ledger.database.tables import QualityCheckRow
from weir.quality.pages import PagesReport, list_pages, make_all_pages, make_pages, make_pages_everywhere
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

    def __init__(self, error="", broken=None):
        self.asked, self.error, self.broken = [], error, broken

    def __call__(self, documents):
        self.asked.append([each.check for each in documents])
        for each in documents:
            error = self.error if self.broken is None or each.check in self.broken else ""
            yield each.check, error or f"<html>{each.suite} {each.outcome} {dict(each.facts)['epoch']}".encode()


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
    assert (made.pages, made.problems, made.before) == (2, (), None)
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


def test_a_batch_is_limited_begins_with_the_newest_and_says_that_there_are_more(world):
    render = Renderer()
    first, second = (row.id for row in checks(world))
    assert [make_pages(world.services, render, most=1).before for _ in range(3)] == [second, first, None]
    assert render.asked == [[second], [first]]


def test_a_page_that_cannot_be_made_fails_nothing_and_is_tried_again(world):
    broken = Renderer("ValueError: no")
    first, second = (row.id for row in checks(world))
    expected = f"0 page(s) about checks made; check {second}: ValueError: no; check {first}: ValueError: no"
    assert make_pages_everywhere(world.services, broken) == expected
    assert pages(world) == []
    assert make_pages(world.services, Renderer()).pages == 2


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_upkeep_renders_what_it_could_not_render_after_a_day_or_with_a_newer_check(world):
    expire(world, 0)
    render = Renderer("ValueError: no")
    first, second = (row.id for row in checks(world))
    make_pages_everywhere(world.services, render)
    said = make_pages_everywhere(world.services, render)
    assert said.startswith(f"the pages about check {second} and older ones cannot be rendered")
    assert render.asked == [[second, first]]
    with world.ledger.transaction("gated") as session:
        newer = session.get_one(QualityCheckRow, second)
        columns = {column.name: getattr(newer, column.name) for column in QualityCheckRow.__table__.columns}
        session.add(QualityCheckRow(**columns | {"id": second + 1}))
    make_pages_everywhere(world.services, render)
    make_pages_everywhere(world.services, render)
    assert render.asked[1:] == [[second + 1, second, first]]
    world.airflow.time += timedelta(days=1)
    assert make_pages_everywhere(world.services, Renderer()).startswith("3 page(s) about checks made")


@pytest.mark.parametrize("make", [make_pages_everywhere, make_all_pages])
def test_pages_that_cannot_be_made_keep_no_older_one_from_being_made(world, make):
    first, second = checks(world)
    made = str(make(world.services, Renderer("ValueError: no", {second.id}), most=1))
    assert made.startswith("1 page(s) about checks made")
    assert f"check {second.id}: ValueError: no" in made
    assert [row.page is None for row in checks(world)] == [False, True]


def test_a_line_for_the_log_shows_the_first_errors_and_the_number_of_others():
    said = str(PagesReport(problems=tuple(f"check {number}: no" for number in range(9))))
    assert said.endswith("check 4: no; and 4 more that cannot be rendered")


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
