import pytest

from weir.doctor.examination import Item, cleaned


@pytest.mark.parametrize(
    "text",
    [
        "could not connect to postgresql+psycopg2://weir:hush-hush@db/weir",
        "redis://:hush-hush@cache:6379",
        "token=hush-hush;user=weir",
        "{'password': 'hush-hush', 'login': 'weir'}",
        '{"secret": "hush-hush"}',
        "Authorization: Bearer hush-hush",
        "aws_secret_access_key=hush-hush",
    ],
)
def test_what_looks_like_a_secret_is_hidden_wherever_it_stands_in_a_finding(text):
    shown = cleaned(Item("store", "marker", "{x}", "{x}").problem(text, x=text))
    assert "hush-hush" not in f"{shown.found} {shown.expected} {shown.mend}"
    assert "***" in shown.found


def test_ordinary_words_stay():
    text = "the store file:///data/weir: expected id 12, found 13; see http://127.0.0.1:8080/x; a cluster"
    assert cleaned(Item("store", "marker").unknown(text)).found == text
