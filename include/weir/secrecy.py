"""What looks like a secret: in settings and parameters, which are recorded, and in texts, which people read.

Invariants: nothing here returns the value that it takes for a secret. A value that was handed to a function of the user
as a secret is one wherever it stands. A key is judged by its last words: `db_password`
names a secret, `password_file` and `tokenizer` do not. A value that is a reference, such as `${DB_PASSWORD}`, is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

HIDDEN: Final = "***"

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_TRAILING: Final = frozenset({"value", "text", "plain", "plaintext", "base", "b", "string"})
"""Last words that change nothing: `password_value`, `secret_base64`."""

_ENDINGS: Final = frozenset(
    {
        *(("password",), ("passwords",), ("passwd",), ("pwd",), ("passphrase",), ("secret",), ("secrets",)),
        *(("credential",), ("credentials",), ("apikey",), ("accesskey",), ("secretkey",), ("privatekey",)),
        *(("token",), ("authtoken",), ("accesstoken",)),
        *(("access", "tokens"), ("api", "tokens"), ("auth", "tokens"), ("bearer", "tokens"), ("refresh", "tokens")),
        *(("access", "key"), ("access", "key", "id"), ("secret", "key"), ("private", "key"), ("api", "key")),
        *(("fernet", "key"), ("auth", "pass"), ("user", "pass"), ("db", "pass"), ("redis", "auth")),
    }
)
_ENDINGS_OF_LONG_VALUES: Final = frozenset(
    {("account", "key"), ("shared", "key"), ("encryption", "key"), ("signing", "key")}
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

_PLACES: Final = frozenset({"pwd", "credential", "credentials"})
"""Keys whose value may be a path: of the working directory, or of a file with credentials."""

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
    r"(?<![\w.-])(?P<key>[\w.-]++)['\"]?\s*[=:]\s*(?:(?:bearer|basic)\s+)?['\"]?", re.IGNORECASE
)
_BEFORE_TOKEN_OF_PARSER: Final = re.compile(
    r"\b(?:unexpected|extraneous|mismatched|missing|unknown|illegal|invalid)\s+\Z", re.IGNORECASE
)
"""An error of a parser: "unexpected token: FROM"."""

_VALUE_IN_TEXT: Final = re.compile(r"[^\s'\",;&]+")
_WELL_KNOWN: Final = re.compile(
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.*?-----END [A-Z ]*PRIVATE KEY-----)?",
    re.DOTALL,
)
"""Ids of Amazon's access keys, and private keys."""


_LEAST: Final = 5
"""The length of the shortest value that is hidden, as in Airflow: a shorter one is part of many words."""

_handed_out: Final[set[str]] = set()


def hide(value: str) -> None:
    """Have `without_secrets` hide a value from here on, in this process."""
    if len(value) >= _LEAST:
        _handed_out.add(value)


def names_secret(key: str) -> bool:
    """Report whether a setting or parameter of this name has a secret as its value."""
    if _KEYS_OF_REFERENCES.search(key):
        return False
    words = _words(key)
    if words[-1] == "token" and words[-2:-1] and words[-2] in _HARMLESS_TOKENS:
        return False
    return bool(_SECRET_KEYS.search(key)) or _ends_with(words, _ENDINGS)


def secrets_in(what: str, value: Any) -> Iterator[str]:
    """Yield the places of secrets in nested JSON values, as `what["key"][0]`, each with the reason."""
    return _below(what, "", value)


def without_secrets(text: str) -> str:
    """Return a text with *** for what looks like a secret: passwords of URLs, and values of names such as `token=`.

    Secrets that a function was handed are hidden, too.
    """
    for secret in sorted(_handed_out, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _IN_URL.sub(rf"\g<before>{HIDDEN}\g<after>", _WELL_KNOWN.sub(HIDDEN, text))
    parts, done = [], 0
    for found in _KEY_IN_TEXT.finditer(text):
        is_secret = found.end() >= done and _hides(found)
        value = _VALUE_IN_TEXT.match(text, found.end()) if is_secret else None
        if value is not None:
            parts += [text[done : found.end()], HIDDEN]
            done = value.end()
    return "".join([*parts, text[done:]])


def _words(key: str) -> list[str]:
    words = [word.lower() for word in _WORD.findall(key)]
    while len(words) > 1 and words[-1] in _TRAILING:
        words.pop()
    return words or [""]


def _ends_with(words: list[str], endings: frozenset[tuple[str, ...]]) -> bool:
    return any(tuple(words[-length:]) in endings for length in (1, 2, 3))


def _below(where: str, key: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            is_inside = names_secret(key) and _words(name)[-1] not in _NAMES
            yield from _below(f'{where}["{name}"]', key if is_inside else name, each)
    elif isinstance(value, list | tuple):
        for position, each in enumerate(value):
            yield from _below(f"{where}[{position}]", key, each)
    else:
        reason = _reason(key, value)
        if reason is not None:
            yield f"{where} {reason}"


def _reason(key: str, value: Any) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if not isinstance(value, str):
        is_count = _words(key)[-1] == "token"
        return "has the name of a secret" if names_secret(key) and not is_count else None
    if not value.strip() or _REFERENCE.fullmatch(value.strip()):
        return None
    if names_secret(key):
        return None if _is_harmless(_words(key)[-1], value) else "has the name of a secret"
    if _ends_with(_words(key), _ENDINGS_OF_LONG_VALUES) and _is_long(value):
        return "looks like a key"
    return _reason_of_text(value)


def _is_harmless(word: str, value: str) -> bool:
    if word == "token":
        return _SPECIAL_TOKEN.fullmatch(value) is not None
    return word in _PLACES and _PATH.fullmatch(value) is not None


def _is_long(value: str) -> bool:
    return len(value) >= _LONG and not value.startswith(_ARN) and not re.search(r"\s", value)


def _reason_of_text(value: str) -> str | None:
    if _WELL_KNOWN.search(value):
        return "is a key"
    if any(not _REFERENCE.fullmatch(found["value"]) for found in _IN_URL.finditer(value)):
        return "is a URL with a password"
    is_url = "://" in value or value.startswith("jdbc:")
    for found in _PAIR.finditer(value):
        if _is_secret_pair(found["key"], found["value"], is_url=is_url) and not _REFERENCE.fullmatch(found["value"]):
            return f"has a value for {found['key']} in it"
    return None


def _is_secret_pair(key: str, value: str, *, is_url: bool) -> bool:
    """Report whether `key=value` in a text is a secret; outside a URL, `token=...` may be a condition on a column."""
    if key.lower() in {"token", *_SIGNATURES}:
        return is_url
    return names_secret(key) or (_ends_with(_words(key), _ENDINGS_OF_LONG_VALUES) and _is_long(value))


def _hides(found: re.Match[str]) -> bool:
    key = found["key"].lower()
    is_of_parser = key == "token" and _BEFORE_TOKEN_OF_PARSER.search(found.string[: found.start()])
    return not is_of_parser and (key.endswith("authorization") or key in _SIGNATURES or names_secret(found["key"]))
