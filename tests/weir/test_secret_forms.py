"""A secret is found in a text in whatever form a program has written it."""

import base64
import html
import json
import shlex
import time
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import escape, quoteattr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.secrecy import hide, secrets_of_account, without_secrets, without_secrets_in_errors
from weir.secret_forms import literal_forms, pattern_of

SECRETS = [
    "!Weird!Pass#1",
    "p@ss w/rd%20+&=?",
    "back\\slash\\\\x'quote\"d",
    "pässwörd€𝄞!",
    "<tag attr='x'>&",
    "a$b{c}d`e|f",
    "abc+/==//++9",
    "tab\tnew\nline7",
    "hunter22",
]


def based(data):
    return base64.b64encode(data).decode()


def forms_of(secret):
    data = secret.encode()
    escaped = json.dumps(secret)
    return {
        "plain": secret,
        "url": quote(secret),
        "url, all of it": quote(secret, safe=""),
        "url, as JavaScript": quote(secret, safe="!*'()"),
        "url twice": quote(quote(secret, safe=""), safe=""),
        "form": quote_plus(secret),
        "JSON": escaped,
        "JSON, not only ASCII": json.dumps(secret, ensure_ascii=False),
        "JSON in JSON in JSON": json.dumps(json.dumps(escaped)),
        "JSON, as Go": escaped.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"),
        "repr": repr(secret),
        "ascii": ascii(secret),
        "repr of bytes": repr(data),
        "repr of JSON": repr(escaped),
        "HTML": html.escape(secret),
        "HTML twice": html.escape(html.escape(secret)),
        "XML": escape(secret),
        "XML attribute": quoteattr(secret),
        "XML by numbers": "".join(each if each.isalnum() else f"&#{ord(each)};" for each in secret),
        "shell": shlex.quote(secret),
        "shell, by backslashes": "".join(each if each.isalnum() else f"\\{each}" for each in secret),
        "backslashes doubled": secret.replace("\\", "\\\\"),
        "SQL": secret.replace("'", "''"),
        "csv": secret.replace('"', '""'),
        "percent doubled": secret.replace("%", "%%"),
        "libpq": secret.replace("\\", "\\\\").replace("'", "\\'"),
        "base64": based(data),
        "base64 without padding": based(data).rstrip("="),
        "base64 for URLs": base64.urlsafe_b64encode(data).decode().rstrip("="),
        "base64 in a URL": quote(based(data), safe=""),
        "basic": f"Basic {based(b'me:' + data)}",
        "basic, other lengths": f"{based(b'user:' + data)} {based(b'admins:' + data)} {based(b'a:' + data + b'!')}",
        "base64 with lines": base64.encodebytes(b"x" * 50 + data).decode(),
        "hexadecimal": data.hex().upper(),
    }


def letters(text):
    return "".join(each for each in text if each.isalnum())


@pytest.mark.parametrize("secret", SECRETS)
def test_every_form_that_a_program_writes_is_found(secret):
    pattern = pattern_of(secret)
    plain = {letters(form) for form in forms_of(secret).values()}
    for name, form in forms_of(secret).items():
        shown = pattern.sub("***", f"said {form} and ended")
        assert "***" in shown, name
        assert not any(each in letters(shown) for each in plain if len(each) > 4), (name, shown)


@pytest.mark.parametrize("secret", SECRETS)
def test_a_masker_of_texts_is_told_the_frequent_forms(secret):
    told = literal_forms(secret)
    names = ("plain", "url", "url, all of it", "form", "repr", "JSON", "HTML", "base64 without padding", "SQL", "basic")
    for name in names:
        text = forms_of(secret)[name]
        shown = text
        for each in told:
            shown = shown.replace(each, "***")
        assert "***" in shown, name


@given(st.text(min_size=5, max_size=12), st.binary(max_size=7), st.binary(max_size=7))
def test_base64_is_found_wherever_the_secret_stands_in_it(secret, before, after):
    data = secret.encode(errors="replace")
    assert "***" in pattern_of(secret).sub("***", based(before + data + after))
    assert "***" in pattern_of(secret).sub("***", json.dumps(secret) + quote(secret, errors="replace"))


@pytest.mark.parametrize("secret", ["!!!!!!!!a", "\\\\\\\\'x", "''''!!''''z", "%25%25a", "&amp;&b", "x" * 2000 + "!"])
def test_no_text_takes_long(secret):
    text = ("\\" * 2000 + "!" * 2000 + "'" * 2000 + "%25" * 2000 + "&amp;" * 2000) * 2
    began = time.monotonic()
    pattern_of(secret).sub("***", text)
    assert time.monotonic() - began < 5


def test_ordinary_words_and_short_passwords_stay():
    hide("pw")
    hide("abcd")
    hide("Airflow")
    text = "abcd in airflow: 1,234 rows of pw, sha256:0123456789abcdef, /data/weir/part-00000.parquet"
    assert without_secrets(text) == text


def test_a_short_password_is_hidden_where_its_login_is_sent_with_it():
    for secret in secrets_of_account("shorty", "q9z"):
        hide(secret)
    assert without_secrets(f"Basic {based(b'shorty:q9z')}, q9z") == "Basic ***, q9z"
    assert "q9z" not in without_secrets("http://shorty:q9z@host")


def test_what_is_secret_in_extras_is_told_by_names_at_any_depth_also_in_texts_that_are_json():
    extra = {
        "region_name": "eu-west-1",
        "headers": {"X-Api-Key": "value-1", "Accept": "text/html"},
        "list": [{"session_token": "value-2"}],
        "keyfile_dict": json.dumps({"type": "service_account", "private_key": "value-3"}),
        "proxies": {"https": "http://me:value%2D4@proxy:3128"},
        "url": "jdbc:postgresql://db/x?user=me&password=value-5",
        "webhook_token": "value-6",
        "auth": {"secret": {"part": "value-7", "name": "prod/db"}},
    }
    found = list(secrets_of_account("", "", extra))
    assert {f"value-{number}" for number in (1, 2, 3, 4, 5, 6, 7)} <= set(found)
    assert not {"eu-west-1", "text/html", "prod/db"} & set(found)


class Driver(Exception):
    """An error of a driver, which keeps its message apart from its arguments."""

    def __init__(self, message):
        super().__init__()
        self.message = message

    def __str__(self):
        return self.message


def test_an_error_and_all_that_led_to_it_tell_no_secret_and_keep_their_classes():
    secret = "!Chained#Secret!"
    hide(secret)

    def fail():
        try:
            raise Driver(f"403 for {quote(secret)}")  # noqa: TRY301  its traceback is part of it
        except Driver as error:
            found = RuntimeError(f"login failed: {based(b'me:' + secret.encode())}", 7)
            found.add_note(repr(secret))
            raise found from error

    with pytest.raises(RuntimeError) as raised, without_secrets_in_errors():
        fail()
    error = raised.value
    assert error.args == ("login failed: " + based(b"me:")[:4] + "***", 7)
    assert str(error.__cause__) == "403 for ***"
    assert error.__notes__ == ["'***'"]
