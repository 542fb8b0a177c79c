"""The page about types and values says what the corpus says."""

from tests.corpus.page import PAGE, text


def test_the_page_is_written_from_the_corpus():
    assert PAGE.read_text() == text(), "write it anew: .venv/bin/python -m tests.corpus.page"
