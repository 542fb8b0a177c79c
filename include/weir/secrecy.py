"""What looks like a secret: in settings and parameters, which are recorded, and in texts, which people read.

Invariants: there is one list of names, for what is recorded and for what is shown. A value that was handed to a
function of the user as a secret is one wherever it stands, and however it is written (`weir.secret_forms`). A key is
judged by its last words: `db_password` names a secret, `password_file` and `tokenizer` do not. A value that is a
reference, such as `${DB_PASSWORD}`, is none. No message has the value of a secret in it.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import unquote

from weir.errors import reached

HIDDEN: Final = "***"

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_TRAILING: Final = frozenset({"value", "text", "plain", "plaintext", "base", "b", "string", "pem"})
"""Last words that change nothing: `password_value`, `secret_base64`, `private_key_pem`."""

_ENDINGS: Final = frozenset(
    {
        *(("password",), ("passwords",), ("passwd",), ("pwd",), ("passphrase",), ("secret",), ("secrets",)),
        *(("credential",), ("credentials",), ("apikey",), ("accesskey",), ("secretkey",), ("privatekey",)),
        *(("token",), ("authtoken",), ("accesstoken",)),
        *(("access", "tokens"), ("api", "tokens"), ("auth", "tokens"), ("bearer", "tokens"), ("refresh", "tokens")),
        *(("access", "key"), ("access", "key", "id"), ("secret", "key"), ("private", "key"), ("api", "key")),
        *(("fernet", "key"), ("auth", "pass"), ("user", "pass"), ("db", "pass"), ("redis", "auth")),
        *(("authorization",), ("auth", "header"), ("basic", "auth"), ("http", "auth"), ("bearer",), ("jwt",)),
        *(("cookie",), ("cookies",), ("passcode",), ("client", "assertion"), ("keyfile", "dict"), ("service", "key")),
        *(("subscription", "key"), ("function", "key"), ("functions", "key"), ("master", "key"), ("hmac", "key")),
        *(("storage", "key"), ("bot", "key"), ("sas",), ("dsn",), ("connection", "string"), ("proxy",), ("proxies",)),
        *(("webhook",), ("webhooks",), ("webhook", "url"), ("webhook", "urls"), ("webhook", "uri")),
        *(("smtp", "pass"), ("mail", "pass"), ("ftp", "pass"), ("ssh", "pass"), ("key", "pass"), ("store", "pass")),
        *(("admin", "pass"), ("root", "pass"), ("login", "pass"), ("db", "pw"), ("user", "pw"), ("login", "pw")),
        ("client", "key", "data"),
    }
)
_ENDS_OF_WORDS: Final = (
    *("password", "passwd", "passphrase", "apikey", "accesskey", "secretkey", "privatekey", "secret", "credentials"),
    *("authtoken", "accesstoken", "sessiontoken", "refreshtoken", "bearertoken", "apitoken"),
)
"""Of a last word that is written together: `sfpassword`, `clientsecret`."""

_ENDINGS_OF_LONG_VALUES: Final = frozenset(
    {
        *(("pat",), ("account", "key"), ("shared", "key"), ("encryption", "key"), ("signing", "key")),
        *(("integration", "key"), ("license", "key")),
    }
)
"""`account_key` may name a column: its value is a secret only where it looks like one."""

_HARMLESS_TOKENS: Final = frozenset(
    {
        *("pad", "sep", "unk", "bos", "eos", "mask", "cls", "start", "stop", "end", "begin", "special"),
        *("next", "page", "continuation", "sync", "delimiter", "separator", "split"),
    }
)
"""Words before `token` in the settings of tokenizers, parsers and paged interfaces."""

_SECRET_KEYS: Final = re.compile(
    r"fs\.azure\.(?:account\.(?:key|oauth2\.client\.secret)|sas)\.|parquet\.encryption\.key\.list$", re.IGNORECASE
)
"""Keys that end with the name of an account, or with another word."""

_KEYS_OF_REFERENCES: Final = re.compile(r"secretKeyRef\.|kubernetes\.(?:driver|executor)\.secrets\.")
"""Kubernetes: the value names a secret and a key in it, or where it is mounted."""

_PLACES: Final = frozenset({"pwd", "credential", "credentials", "sas"})
"""Keys whose value may be a path: of the working directory, or of a file with credentials (or of the program SAS)."""

_COUNTED: Final = frozenset({"token", "cookie", "cookies"})
"""Keys whose value may be a number: of them, or how long they are good for."""

_ADDRESSES: Final = frozenset({"dsn", "proxy", "proxies", "connection string"})
"""Keys whose value is an address, which has a secret in it or has none."""

_WEBHOOKS: Final = frozenset({"webhook", "webhooks", "webhook url", "webhook urls", "webhook uri"})
"""Keys whose value is a secret where it is a URL: whoever has it may call it. It may name a connection instead."""

_NAMES: Final = frozenset(
    {
        *("name", "path", "file", "id", "conn", "connection", "variable", "env", "provider", "scope", "arn", "url"),
        *("uri", "user", "username", "login", "host", "port", "type"),
    }
)
"""In an object such as {"credentials": {"conn_id": ...}}: last words of keys whose values are no secrets."""

_REFERENCE: Final = re.compile(r"\$\{[^{}]*\}|\{\{.*\}\}|\*+", re.DOTALL)
_SPECIAL_TOKEN: Final = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")
_PATH: Final = re.compile(r"(?:[a-z][a-z0-9+.-]*+://|\.{0,2}/|~/)[\w./ -]*", re.IGNORECASE)
_ARN: Final = "arn:"
_LONG: Final = 16

_IN_URL: Final = re.compile(
    r"(?P<before>(?<![a-z0-9+.-])[a-z0-9+.-]++://[^\s/:@'\"]*:|jdbc:oracle:\w+:[^\s/@'\"]+/)(?P<value>[^\s/@'\"]+)(?P<after>@)",
    re.IGNORECASE,
)
"""scheme://user:password@host, and Oracle's form of it."""

_PAIR: Final = re.compile(r"(?<![\w.-])(?P<key>[\w.-]++)=(?P<value>[^&;,\s]+)")
_SIGNATURES: Final = frozenset({"sig", "signature", "x-amz-signature", "x-goog-signature"})
"""Parameters of a signed URL, which gives access to whoever has it."""

_KEY_IN_TEXT: Final = re.compile(
    r"(?<![\w.-])(?P<key>[\w.-]++)\\*['\"]?\s*[=:]\s*(?P<quote>\\*['\"])?"
    r"(?:(?:bearer|basic|token|digest|negotiate|apikey|aws4-hmac-sha256)\s+)?",
    re.IGNORECASE,
)
_BEFORE_TOKEN_OF_PARSER: Final = re.compile(
    r"\b(?:unexpected|extraneous|mismatched|missing|unknown|illegal|invalid)\s+\Z", re.IGNORECASE
)
"""An error of a parser: "unexpected token: FROM"."""

_VALUE_IN_TEXT: Final = re.compile(r"[^\s'\",;&]+")
_WELL_KNOWN: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.*?-----END [A-Z ]*PRIVATE KEY-----)?"
    r"|\b(?:A(?:KIA|SIA)[0-9A-Z]{16}\b|AIza[\w-]{35}\b|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+|dapi[0-9a-f]{32}\b"
    r"|g(?:h[pousr]_|ithub_pat_|lpat-)[\w-]{16,}|[sr]k_live_[\w-]{16,}|xox[abeprs]-[\w-]{16,}"
    r"|sk-(?:[a-z]+-|[A-Za-z0-9])[\w-]{24,}|hf_[A-Za-z0-9]{30,}|npm_[A-Za-z0-9]{36}\b|pypi-[\w-]{24,}"
    r"|whsec_[\w+/]{16,}|hvs\.[\w-]{16,}|SG\.[\w-]{16,}\.[\w-]{32,})",
    re.DOTALL,
)
"""Private keys, ids of Amazon's access keys, JSON web tokens, and tokens of well-known services."""

_CALLABLE_URL: Final = re.compile(
    r"(?P<before>://hooks\.slack\.com/(?:services|workflows|triggers)/|://hooks\.zapier\.com/hooks/|/api/webhooks/"
    r"|\.webhook\.office\.com/webhookb2/|://api\.telegram\.org/bot)(?P<value>[^\s'\"]+)"
)
"""URLs of well-known services that whoever has them may call."""

_ACCOUNT_IN_URL: Final = re.compile(r"https?://(?P<value>[^\s/:@'\"]+)@", re.IGNORECASE)
"""A URL with a token in the place of the user, as Sentry's and GitHub's are."""

_SCHEME: Final = re.compile(r"\b(?:bearer\s+(?=\S*\d)|basic\s+)(?P<value>[\w+/.~-]{8,}=*)", re.IGNORECASE)
"""The value of an Authorization header; after "basic" it is base64 of an account, or a word."""

_HEADER: Final = re.compile(r"\b(?:authorization|cookie)['\"]?\s*:\s*['\"]?[^\s'\":]", re.IGNORECASE)

_QUERY_STRING: Final = re.compile(r"[\w-]=[^\s&]*&[\w-]+=")


_LEAST: Final = 5
"""The length of the shortest value that is hidden, as in Airflow: a shorter one is part of many words."""

_TOO_COMMON: Final = frozenset({"airflow"})
"""Airflow's own list of words that it never hides, as values of secrets."""

_handed_out: Final[set[str]] = set()
_others: Final[list[Callable[[str], str]]] = []


def hide(*values: str) -> None:
    """Have `without_secrets` hide values from here on, in this process, in every form in which programs write them."""
    _handed_out.update(each for each in values if len(each) >= _LEAST and each.lower() not in _TOO_COMMON)


@contextmanager
def hiding_with(other: Callable[[str], str]) -> Iterator[None]:
    """Have `without_secrets` also hide what another masker knows, meanwhile."""
    _others.append(other)
    try:
        yield
    finally:
        _others.remove(other)


def secrets_of_account(login: str, password: str, *more: Any) -> Iterator[str]:
    """Yield what is secret of an account: its password, also with its login as programs send it, and what is in `more`.

    `more` are JSON values whose names say what is secret, and texts, such as a URL with a password.
    """
    if password:
        yield password
        if login:
            yield f"{login}:{password}"
    for each in more:
        yield from _values_in("", each)


def _values_in(key: str, given: Any) -> Iterator[str]:
    """Yield the values that are secrets in nested JSON values, and in texts that are JSON."""
    for _, name, value in _leaves("", key, given):
        if not isinstance(value, str):
            continue
        if value.lstrip().startswith(("{", "[")):
            with suppress(ValueError):
                yield from _values_in(name, json.loads(value))
        if names_secret(name) and not _is_harmless(_words(name), value):
            yield value
        for each in (*(found["value"] for found in _IN_URL.finditer(value)), *_account_of_scheme(value)):
            yield from {each, unquote(each)}
        yield from (each["value"] for each in _PAIR.finditer(value) if names_secret(each["key"]))


@contextmanager
def without_secrets_in_errors() -> Iterator[None]:
    """Raise errors without the secrets that functions were handed, and so all errors that led to them."""
    try:
        yield
    except Exception as error:
        _clean(error)
        raise


def _clean(error: BaseException) -> None:
    """Replace secrets in the texts of an error and of its causes, which keep their classes."""

    def behind(each: BaseException) -> tuple[BaseException | None, ...]:
        grouped = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        return each.__cause__, each.__context__, *grouped

    for each in reached(error, behind):
        if without_secrets(str(each)) == str(each) and not hasattr(each, "__notes__"):
            continue
        with suppress(Exception):  # a class of the user may not let itself be changed
            each.args = tuple(_cleaned(part) for part in each.args)
            for name, value in [*vars(each).items()]:
                setattr(each, name, _cleaned(value))


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, bytes):
        return without_secrets(value.decode(errors="replace")).encode()
    if isinstance(value, dict):
        return {key: _cleaned(each) for key, each in value.items()}
    return type(value)(_cleaned(each) for each in value) if type(value) in (list, tuple) else value


def names_secret(key: str) -> bool:
    """Report whether a setting or parameter of this name has a secret as its value."""
    if _KEYS_OF_REFERENCES.search(key):
        return False
    words = _words(key)
    if words[-1] == "token" and words[-2:-1] and words[-2] in _HARMLESS_TOKENS:
        return False
    return bool(_SECRET_KEYS.search(key)) or _ends_with(words, _ENDINGS) or words[-1].endswith(_ENDS_OF_WORDS)


def secrets_in(what: str, value: Any) -> Iterator[str]:
    """Yield the places of secrets in nested JSON values, as `what["key"][0]`, each with the reason."""
    for where, key, leaf in _leaves(what, "", value):
        reason = _reason(key, leaf)
        if reason is not None:
            yield f"{where} {reason}"


def without_secrets(text: str) -> str:
    """Return a text with *** for what looks like a secret: passwords of URLs, and values of names such as `token=`.

    Secrets that a function was handed are hidden, too.
    """
    if _handed_out:
        from weir.secret_forms import pattern_of  # noqa: PLC0415  a DAG file knows no secret

        for secret in sorted(_handed_out, key=len, reverse=True):
            text = pattern_of(secret).sub(HIDDEN, text)
    for other in _others:
        text = other(text)
    text = _WELL_KNOWN.sub(HIDDEN, text)
    if "://" in text or "jdbc:" in text:
        text = _CALLABLE_URL.sub(rf"\g<before>{HIDDEN}", _IN_URL.sub(rf"\g<before>{HIDDEN}\g<after>", text))
    parts, done = [], 0
    for found in _KEY_IN_TEXT.finditer(text):
        is_secret = found.end() >= done and _hides(found)
        value = _value_at(text, found) if is_secret else None
        if value is not None and not _is_plain(found["key"], value[0]):
            parts += [text[done : found.end()], HIDDEN]
            done = value.end()
    return "".join([*parts, text[done:]])


def _is_plain(key: str, value: str) -> bool:
    """Report whether a value of a key that is mostly an address, as in `invalid dsn: missing`, has no secret in it."""
    words = _words(key)
    return bool(_names_of(words) & (_ADDRESSES | _WEBHOOKS | _PLACES)) and _is_harmless(words, value)


def _value_at(text: str, found: re.Match[str]) -> re.Match[str] | None:
    """Return the value after a key: up to its closing quote, or to the end of the line for a header."""
    if found["quote"]:
        quoted = _QUOTED[found["quote"][-1]].match(text, found.end())
        if quoted is not None:
            return quoted
    form = _REST_OF_LINE if found["key"].lower().endswith(_HEADERS) and not found["quote"] else _VALUE_IN_TEXT
    return form.match(text, found.end())


_HEADERS: Final = ("authorization", "cookie")
_QUOTED: Final = {quote: re.compile(rf"[^{quote}\n]+?(?=\\*{quote})") for quote in "'\""}
_REST_OF_LINE: Final = re.compile(r"[^\n'\"]+")


def _words(key: str) -> list[str]:
    words = [word.lower() for word in _WORD.findall(key)]
    while len(words) > 1 and words[-1] in _TRAILING:
        words.pop()
    return words or [""]


def _ends_with(words: list[str], endings: frozenset[tuple[str, ...]]) -> bool:
    return any(tuple(words[-length:]) in endings for length in (1, 2, 3))


def _leaves(where: str, key: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield what nested JSON values end in, with its place, and the key that says whether it is a secret."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            is_inside = names_secret(key) and _words(name)[-1] not in _NAMES
            yield from _leaves(f'{where}["{name}"]', key if is_inside else str(name), each)
    elif isinstance(value, list | tuple):
        for position, each in enumerate(value):
            yield from _leaves(f"{where}[{position}]", key, each)
    else:
        yield where, key, value


def _reason(key: str, value: Any) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if not isinstance(value, str):
        is_count = bool(_names_of(_words(key)) & (_COUNTED | _ADDRESSES | _WEBHOOKS | _PLACES))
        return "has the name of a secret" if names_secret(key) and not is_count else None
    if not value.strip() or _REFERENCE.fullmatch(value.strip()):
        return None
    if names_secret(key):
        return None if _is_harmless(_words(key), value) else "has the name of a secret"
    if _ends_with(_words(key), _ENDINGS_OF_LONG_VALUES) and _is_long(value):
        return "looks like a key"
    return _reason_of_text(value)


def _account_of_scheme(value: str) -> Iterator[str]:
    """Yield the tokens and accounts of Authorization headers in a text."""
    for found in _SCHEME.finditer(value):
        data = found["value"]
        if found[0].lower().startswith("bearer") or ":" in _from_base64(data):
            yield data


def _from_base64(text: str) -> str:
    try:
        return b64decode(text + "=" * (-len(text) % 4), validate=True).decode("latin-1")
    except ValueError:
        return ""


def _names_of(words: list[str]) -> set[str]:
    return {words[-1], " ".join(words[-2:])}


def _is_harmless(words: list[str], value: str) -> bool:
    """Report whether a value is no secret although its key, of these words, names one."""
    names = _names_of(words)
    if "token" in names:
        return _SPECIAL_TOKEN.fullmatch(value) is not None
    if names & _WEBHOOKS:
        return "://" not in value
    if names & _ADDRESSES:
        return _reason_of_text(value) is None and not _ACCOUNT_IN_URL.match(value)
    return bool(names & _PLACES) and _PATH.fullmatch(value) is not None


def _is_long(value: str) -> bool:
    return len(value) >= _LONG and not value.startswith(_ARN) and not re.search(r"\s", value)


def _reason_of_text(value: str) -> str | None:
    if _WELL_KNOWN.search(value):
        return "is a key"
    if any(not _REFERENCE.fullmatch(found["value"]) for found in _IN_URL.finditer(value)):
        return "is a URL with a password"
    if _CALLABLE_URL.search(value) or any(_is_long(found["value"]) for found in _ACCOUNT_IN_URL.finditer(value)):
        return "is a URL with a token"
    if any(_account_of_scheme(value)) or _HEADER.search(value):
        return "is a header that gives access"
    is_url = "://" in value or value.startswith("jdbc:") or _QUERY_STRING.search(value) is not None
    for found in _PAIR.finditer(value):
        if _is_secret_pair(found["key"], found["value"], is_url=is_url) and not _REFERENCE.fullmatch(found["value"]):
            return f"has a value for {found['key']} in it"
    return None


def _is_secret_pair(key: str, value: str, *, is_url: bool) -> bool:
    """Report whether `key=value` in a text is a secret; outside a URL, `token=...` may be a condition on a column."""
    words = _words(key)
    if key.lower() in {*_COUNTED, "sas", *_SIGNATURES}:
        return is_url
    if _names_of(words) & (_ADDRESSES | _WEBHOOKS):
        return not _is_harmless(words, value)
    return names_secret(key) or (_ends_with(words, _ENDINGS_OF_LONG_VALUES) and _is_long(value))


def _hides(found: re.Match[str]) -> bool:
    key = found["key"].lower()
    is_of_parser = key == "token" and _BEFORE_TOKEN_OF_PARSER.search(
        found.string, max(0, found.start() - 20), found.start()
    )
    return not is_of_parser and (key in _SIGNATURES or names_secret(found["key"]))
