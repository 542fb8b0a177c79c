"""The documentation is a site: every page and every link is there, and the reference pages are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from tests.reference_pages import PAGES, current

import weir.dataflow
import weir.sinks
import weir_airflow
from weir.cli.main import OF_ANOTHER_PROGRAM
from weir_airflow.provider import OPTIONS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as strictly as MkDocs can: a missing page or anchor, or a page outside the navigation, fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_of_the_reference_is_as_docstrings_and_help_texts_are(page):
    assert current(page.read_text()) == page.read_text(), "write it anew: .venv/bin/python tests/reference_pages.py"


def test_each_public_name_has_its_place_in_the_reference():
    found = {name for page in PAGES for name in re.findall(r"(?m)^#+ `([\w.]+)`$", page.read_text())}
    public = {f"weir.{name}" for name in weir.__all__} | {*weir.dataflow.__all__, *weir_airflow.__all__}
    assert public | {*weir.sinks.__all__, "StageContext", "SinkContract"} <= found


def test_no_list_becomes_a_paragraph(site):
    # Markdown as MkDocs reads it wants a blank line before a list, where a forge wants none.
    pages = {page: re.findall(r"(?s)<p>(.*?)</p>", page.read_text()) for page in site.rglob("*.html")}
    assert len(pages) > 80
    found = [(page, text) for page, texts in pages.items() for text in texts if re.search(r"\n(- |\d+\. )", text)]
    assert found == []


def test_each_cell_has_the_name_of_its_column_which_a_phone_shows_before_it(site):
    tables = [
        table for page in site.rglob("*.html") for table in re.findall(r"(?s)<table>.*?</table>", page.read_text())
    ]
    assert len(tables) > 80
    for table in tables:
        names = [unescape(re.sub("<.*?>", "", name)) for name in re.findall(r"(?s)<th\b[^>]*>(.*?)</th>", table)]
        marked = [name and unescape(name) for name in re.findall(r'<td(?: data-column="(.*?)")?[ >]', table)]
        assert marked == names * (len(marked) // len(names))


EXAMPLES = [
    (page, language, line)
    for page in DOCS.rglob("*.md")
    for language, block in re.findall(r"(?ms)^ *```(\w*)\n(.*?)^ *```", page.read_text())
    for line in block.splitlines()
]


def test_no_example_is_wider_than_the_page_at_1280_pixels_and_no_line_is_wider_than_a_phone(site):
    # A sentence that a command prints may be broken; code, and lines that are read by column, are not.
    found = [
        (page.name, line)
        for page, language, line in EXAMPLES
        if len(line) > 120 and (language in ("python", "sh", "json", "yaml", "sql") or re.search(r"\S  +\S|│", line))
    ]
    assert found == []
    code = re.findall(r"(?s)<pre>.*?</pre>", (site / "tutorial/index.html").read_text())
    assert code
    assert all('<span id="__span' in block for block in code)  # what site.css breaks and indents
    assert 'href="../site.css"' in (site / "tutorial/index.html").read_text()


def options_by_command():
    """The options of each command by its words, as its page in the reference has them."""
    _, *sections = re.split(r"(?m)^#+ `(?:\./)?weir (.+)`$", (DOCS / "reference/command_line.md").read_text())
    found = {
        tuple(sections[i].split()): set(re.findall(r"(?m)^\* `(--[a-z-]+)", sections[i + 1]))
        for i in range(0, len(sections), 2)
    }
    return {
        words: options.union(*(found[more] for more in found if more[: len(words)] == words))
        for words, options in found.items()
    }


def shown_commands(page):
    """The words of each command that a page shows, in its text or on a line of an example."""
    examples = "\n".join(re.findall(r"(?s)```\w*\n(.*?)```", page))
    shown = re.findall(r"`weir ([^`]+)`", page) + re.findall(r"(?m)^(?:\$ )?(?:\./)?weir ([a-z].*)$", examples)
    return [re.split(r"\s{2,}|\s#", " ".join(each.splitlines()))[0].split() for each in shown]


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_each_command_that_a_page_shows_exists_with_its_options(page):
    known = options_by_command()
    for words in shown_commands(page.read_text()):
        command = tuple(words[:2]) if tuple(words[:2]) in known else (words[0],)
        assert command in known, words
        if words[0] in OF_ANOTHER_PROGRAM:
            continue
        assert {word for word in words if word.startswith("--")} <= known[command], words


def test_the_page_about_options_has_each_as_airflow_lists_it():
    page = (DOCS / "reference/options.md").read_text()
    rows = re.findall(r"(?m)^\| `([a-z_]+)` \| (.*?) \| `([^`]*)` \|$", page)
    assert {name: (meaning, example) for name, meaning, example in rows} == OPTIONS


def test_the_home_page_has_the_picture_of_the_readme():
    (picture,) = re.findall(r"!\[.*?\]\(docs/(.*?)\)", (ROOT / "README.md").read_text())
    assert f"]({picture})" in (DOCS / "index.md").read_text()
