"""Makes a page of a document: its template, its headers, and the links out of Airflow's frame.

Invariant: a template gets plain values of a document, and Jinja escapes each. A page loads nothing but its own style
and script, and can be shown in Airflow's own frames only.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from fastapi.responses import HTMLResponse
from markupsafe import Markup, escape

from weir.units import format_duration, format_size
from weir.views.drawings import templates_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    # With "no-referrer" browsers send a form with `Origin: null`.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_templates: Final = templates_of("weir_airflow.pages")


def page(request: Request, template: str, *, status: int = 200, **of: Any) -> HTMLResponse:
    """Return a page; `of` are its document and drawings."""
    text = _templates.get_template(template).render(**of, to=Addresses.of(request))
    return HTMLResponse(text, status_code=status, headers=HEADERS)


class Addresses:
    """Addresses of Weir's pages, which obey Airflow's base path, and of Airflow's own ones, which leave the frame."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._airflow = root.removesuffix("/weir")

    @classmethod
    def of(cls, request: Request) -> Addresses:
        """Return the addresses as they are below the base path of this request."""
        return cls(str(request.scope.get("root_path", "")))

    def page(self, dag_id: str, name: str, **asked: Any) -> str:
        """Return the address of a page about a DAG."""
        query = urlencode({key: value for key, value in asked.items() if value is not None})
        return f"{self._root}/dags/{quote(dag_id, safe='')}/{name}" + (f"?{query}" if query else "")

    def all(self) -> str:
        """Return the address of the page about all dataflows."""
        return f"{self._root}/dataflows"

    def own(self, name: str) -> str:
        """Return the address of a file of the pages."""
        return f"{self._root}/static/{name}"

    def airflow(self, dag_id: str, run_id: str = "", task_id: str = "", map_index: int = -1) -> str:
        """Return the address of Airflow's page about a DAG, a run or a task instance."""
        parts = {"dags": dag_id, "runs": run_id, "tasks": task_id, "mapped": str(map_index) if map_index >= 0 else ""}
        return self._airflow + "".join(f"/{kind}/{quote(name, safe='')}" for kind, name in parts.items() if name)


def _ago(at: str | None) -> str:
    """Return a time of a document as people read it: to the second, in UTC."""
    return "" if at is None else f"{at[:10]} {at[11:19]} UTC"


def _amount(total: Mapping[str, Any]) -> str:
    return (
        f"{total['rows']:,} rows, {format_size(total['bytes'])}, {total['seconds']:,.1f} s" if total["regions"] else "-"
    )


def _age(seconds: float) -> str:
    """Return an age as people tell it: in minutes, from two hours on in hours, from two days on in days."""
    minutes = max(int(seconds // 60), 1)
    unit = 1 if minutes < 2 * 60 else 60 if minutes < 2 * 24 * 60 else 24 * 60
    return format_duration(timedelta(minutes=minutes // unit * unit))


def _commands(text: str) -> Markup:
    """Return a text with its commands, which stand between backticks, as a page shows commands."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one of them is something else
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


_templates.filters |= {
    "age": _age,
    "amount": _amount,
    "commands": _commands,
    "json": json.dumps,
    "size": format_size,
    "time": _ago,
}
