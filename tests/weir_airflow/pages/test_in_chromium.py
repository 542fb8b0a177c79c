"""Pages in a real browser, of a world with hostile names: what a person sees, presses and prints."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlencode

import pytest
from tests.weir_airflow.conftest import served
from tests.weir_airflow.pages import screenshots
from tests.weir_airflow.pages.flights import HEALED, HOSTILE, STOPPED


def of_dag(name, **asked):
    return f"/weir/dags/{quote(HOSTILE.dag, safe='')}/{name}" + (f"?{urlencode(asked)}" if asked else "")


PAGES = {
    "dataflows": "/weir/dataflows",
    "dataflow": of_dag("dataflow"),
    "run that a person has to see": of_dag("run", run_id=STOPPED),
    "healed run": of_dag("run", run_id=HEALED),
    "looked in the store": of_dag("run", run_id=HEALED, look="true", fail="joined[1]"),
    "results": of_dag("results", run_id=HEALED, dataflow="flight_delays"),
    "kept": of_dag("dataflow", kept="true"),
    "task": of_dag("task", run_id=HEALED, task_id="joined", map_index=1),
    "failed task": of_dag("task", run_id=STOPPED, task_id="routes"),
    "recovery": of_dag("recovery"),
    "state": of_dag("state"),
    "sinks": of_dag("sinks"),
    "quality": of_dag("quality"),
}

LOOKS = [{"width": width, "is_dark": is_dark} for width in (1280, 1920) for is_dark in (False, True)]
PAPER = 960
"""The pixels of CSS across paper as it is laid by the pages' style, without margins."""

WIDER = """[...document.querySelectorAll("body, .wide")].filter(each => each.scrollWidth > each.clientWidth + 1)
    .map(each => `${each.className} ${each.scrollWidth} > ${each.clientWidth}: ${each.innerText.slice(0, 200)}`)"""
"""What does not fit beside each other."""

REACHED = "a, button:enabled, summary, input:not([type=hidden]), select"

PALE = """(() => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => numbers(colour).slice(0, 3).map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const painted = colour => colour.startsWith("rgb") && numbers(colour)[3] !== 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), pale = [];
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement, of = getComputedStyle(element), range = document.createRange();
    range.selectNodeContents(walk.currentNode);
    const [box] = range.getClientRects();
    if (!walk.currentNode.data.trim() || !box || !element.checkVisibility()) continue;
    const isDrawn = element.closest("svg");
    const under = document.elementsFromPoint(box.x + 1, box.y + box.height / 2)
      .map(each => each instanceof SVGElement && each.tagName !== "svg"
        ? (each.tagName === "rect" ? getComputedStyle(each).fill : "none") : getComputedStyle(each).backgroundColor)
      .find(painted) || "rgb(255, 255, 255)";
    const [ink, ground] = [light(isDrawn ? of.fill : of.color), light(under)];
    const contrast = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
    if (contrast < 4.5) pale.push(`${contrast.toFixed(2)}: ${walk.currentNode.data.trim().slice(0, 60)}`);
  }
  return [...new Set(pale)];
})()"""
"""Texts that stand out less from what is below them than WCAG's level AA asks for."""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_can_be_read_on_each_screen_and_asks_nobody_else(browsing, api_url, flights, name):
    with browsing() as page:
        page.open(api_url + PAGES[name])
        high = page.tell("document.documentElement.scrollHeight")
        for look in LOOKS:
            page.looks(**look, height=high + 400)
            assert (look, page.tell(WIDER)) == (look, [])
            assert (look, page.tell(PALE)) == (look, [])
        assert page.problems == []
        assert [each for each in page.requested if not each.startswith(f"{api_url}/weir/")] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_and_dark_on_white_on_paper_also_where_screens_are_dark(browsing, api_url, flights, name):
    with browsing() as page:
        page.looks(width=PAPER, height=20_000, is_dark=True, is_printed=True)
        page.open(api_url + PAGES[name])
        assert page.tell("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.tell(WIDER) == []
        assert page.tell(PALE) == []


@pytest.mark.parametrize("name", PAGES)
def test_the_keyboard_reaches_each_link_and_shows_where_it_is(browsing, api_url, flights, name):
    with browsing() as page:
        page.looks()
        page.open(api_url + PAGES[name])
        wanted = page.tell(f"(window.links = [...document.querySelectorAll('{REACHED}')]).length")
        for number in range(wanted):
            page.press("Tab")
            assert page.tell(f"document.activeElement === links[{number}]"), number
        assert page.tell("getComputedStyle(document.activeElement).outlineStyle") == "solid"


TABS = {
    "dag": "plugin/weir-dataflow",
    "run": f"runs/{HEALED}/plugin/weir-run",
    "task": f"runs/{HEALED}/tasks/joined/mapped/1/plugin/weir-task",
}

FRAME = "document.querySelector('iframe')?.contentDocument"


@pytest.mark.parametrize("tab", TABS)
def test_a_tab_shows_the_page_in_airflow_and_its_links_to_airflow_leave_the_frame(browsing, api_url, flights, tab):
    of_airflow = f"{api_url}/dags/{quote(HOSTILE.dag)}"
    with browsing() as page:
        page.looks()
        page.open(f"{of_airflow}/{TABS[tab]}", f"{FRAME}?.querySelector('.said')")
        page.click(f"{FRAME}.querySelector('dl a[data-airflow], header a[data-airflow]')")
        page.wait_for("!location.pathname.includes('plugin')")
        assert unquote(page.tell("location.href")).startswith(unquote(of_airflow))
        assert page.tell("document.querySelector('iframe')") is None
        assert page.problems == []


def test_below_a_path_of_a_proxy_the_pages_lead_to_each_other(chromium, tokens, flights, monkeypatch):
    from airflow.api_fastapi import app

    monkeypatch.setattr(app, "API_ROOT_PATH", "/airflow/")
    monkeypatch.setattr(app, "AUTH_MANAGER_FASTAPI_APP_PREFIX", "/airflow/auth")
    with served(app.create_app()) as url, chromium.page(cookies={"_token": tokens["reader"]}, of=url) as page:
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", f"{url}/airflow")
        page.open(f"{url}/airflow/plugin/weir", f"{FRAME}?.querySelector('tbody a')")
        page.click(f"{FRAME}.querySelector('tbody a')")
        page.click(f"{FRAME}.querySelector('.dataflow') && [...{FRAME}.links].find(link => link.text === 'Sinks')")
        page.click(
            f"{FRAME}.querySelector('[aria-current]')?.text === 'Sinks' && {FRAME}.querySelector('a[data-airflow]')"
        )
        page.wait_for(f"decodeURI(location.pathname) === '/airflow/dags/{HOSTILE.dag}'")
        assert page.problems == []


def test_the_documentation_shows_each_page_by_a_small_picture():
    text = (screenshots.FOLDER.parents[1] / "pages.md").read_text()
    kept = {file.stem: file.stat().st_size for file in screenshots.FOLDER.glob("*.png")}
    assert {*screenshots.SHOWN, "in-airflow"} <= set(kept)
    assert [name for name in kept if f"](figures/pages/{name}.png)" not in text] == []
    assert max(kept.values()) < 120_000
