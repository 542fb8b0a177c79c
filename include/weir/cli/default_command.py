"""Groups of commands with a default one: `weir quality flights` is `weir quality history flights`.

It is a module of its own, since several groups use it.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


def with_default(verb: str) -> type[TyperGroup]:
    """Return the class of a group in which `verb` is run where no verb is typed."""

    class WithDefault(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            is_named = bool(args) and (args[0] in self.commands or args[0] == "--help")
            return super().parse_args(ctx, args if is_named else [verb, *args])

    return WithDefault
