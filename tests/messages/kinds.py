"""What tests ask of an error: its kind and its names, as messages.toml has them, and not its words."""

from collections.abc import Iterable

from weir.errors import Message


class of_kind:  # noqa: N801  it reads as a condition
    """Report whether an error, or what its message quotes, is of a kind and has these values of its names, as texts."""

    def __init__(self, kind, /, **names):
        self.kind, self.names = kind, names

    def __call__(self, error):
        """Report whether the error is that; `pytest.raises(..., check=)` calls it."""
        return any(
            message.kind == self.kind
            and all(_are_alike(message.names.get(name), value) for name, value in self.names.items())
            for message in messages_in(error)
        )

    def __repr__(self):
        """Show what is expected, in an assertion that fails."""
        return f"of_kind({self.kind!r}, {self.names})"


def messages_in(value):
    """Yield the message of an error, and those that it quotes: errors, messages and lists of them."""
    if isinstance(value, Message):
        yield value
        value = list(value.names.values())
    elif isinstance(value, BaseException):
        value = value.args
    if isinstance(value, list | tuple):
        for part in value:
            yield from messages_in(part)


def _are_alike(found, expected):
    """Compare as texts; what is expected as a list, part by part."""
    if isinstance(expected, list):
        return isinstance(found, Iterable) and [str(part) for part in found] == [str(part) for part in expected]
    return str(found) == str(expected)
