import pytest

from weir.doctor.examination import Secrecy
from weir.doctor.table import Item


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
def test_what_looks_like_a_secret_is_hidden_unnamed(text):
    shown = Secrecy().clean(text)
    assert "hush-hush" not in shown
    assert "***" in shown


def test_a_secret_that_is_known_is_hidden_wherever_it_stands():
    secrecy = Secrecy(["hush-hush"])
    finding = Item("store", "marker", "hush-hush", "type hush-hush").problem("x hush-hush y")
    shown = secrecy.cleaned(finding)
    assert (shown.found, shown.expected, shown.mend) == ("x *** y", "***", "type ***")


def test_secrets_among_options_are_known_however_deep_and_places_stay_readable():
    secrecy = Secrecy()
    options = {"key": "AKIA1234", "endpoint_url": "http://minio:9000", "config": {"session": "hush-hush"}}
    secrecy.learn_all(options)
    assert secrecy.clean("AKIA1234 at http://minio:9000 with hush-hush") == "*** at http://minio:9000 with ***"


def test_the_password_of_a_url_is_known_quoted_and_unquoted():
    secrecy = Secrecy()
    secrecy.learn_url("postgresql://weir:hush%40hush@db/weir")
    assert secrecy.clean("hush@hush, hush%40hush") == "***, ***"


def test_ordinary_words_stay():
    text = "the store file:///data/weir: expected id 12, found 13; see http://127.0.0.1:8080/x"
    assert Secrecy(["abc", None, ""]).clean(text) == text
