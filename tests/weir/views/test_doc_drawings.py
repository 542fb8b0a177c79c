"""Terms are explained by drawings of what is drawn for users."""

import re
from pathlib import Path

import pytest
from tests.weir.views.doc_drawings import DRAWINGS, FIGURES

PAGES = "\n".join(page.read_text() for page in (FIGURES.parent).glob("*.md"))


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_what_is_drawn_now_and_a_page_shows_it(name):
    kept = Path(FIGURES, f"{name}.svg").read_text()
    assert DRAWINGS[name]() == kept, "draw it anew: .venv/bin/python tests/weir/views/doc_drawings.py"
    assert re.search(rf"!\[.{{20,}}\]\(figures/{name}\.svg\)", PAGES)
    assert "prefers-color-scheme: dark" in kept  # no page's style reaches into it
