"""Texts that are cut say so, and end with a word."""

import pytest

from weir.wording import shortened


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("one two three", 13, "one two three"),
        ("one two three", 12, "one two..."),
        ("one two three", 10, "one two..."),
        ("one two three", 9, "one..."),
        ("s3://bucket/folder/part-0001.parquet", 20, "s3://bucket/folde..."),
        ("at s3://bucket/folder/part-0001.parquet", 20, "at s3://bucket/fo..."),
        ("", 0, ""),
    ],
)
def test_a_long_text_is_cut_after_a_word_unless_the_word_is_most_of_it(text, most, expected):
    assert shortened(text, most) == expected
    assert len(shortened(text, most)) <= most
