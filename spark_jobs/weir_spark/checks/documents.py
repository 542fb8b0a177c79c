"""Renders pages about checks, by Great Expectations' own renderers of its Data Docs.

Invariant: neither this process nor a browser with a page opens a connection: a page has no script and names no other
host. So the template of the page is Weir's: that of GX loads style and scripts from half a dozen hosts, and shows
almost nothing without them. Values of data are escaped here: GX (1.24) leaves examples, observed values and names of
columns as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from weir.errors import Message, Misconfigured
from weir.formats.checks import ExpectationResult
from weir.formats.quality_page import CheckToDocument, PageAnswer, request_from_json

_DESCRIPTIONS = {
    "weir_digest_as_recorded": "The digest of the rows is the one that their manifest says.",
    "weir_rows_as_recorded": "There are as many rows as their manifest says.",
    "weir_files_as_recorded": "All files are there, byte for byte as they were recorded.",
    "weir_keys_unique": "No key occurs twice.",
    "weir_keys_in_key_groups": "Each key is in a key group of this subtask.",
    "weir_rows_never_fewer": "There are no fewer rows than before.",
    "weir_schema_as_recorded": "The columns are those that the manifest says.",
}
"""Descriptions of Weir's own checks, which GX does not know."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the pages that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description="Makes pages about checks.")
    parser.add_argument("request", help="what to make, as weir.formats.quality_page writes it")
    parser.add_argument("folder", help="where the pages go")
    given = parser.parse_args(arguments)
    try:
        checks = request_from_json(Path(given.request).read_text())
        _import()
        for check in checks:
            print(_answer(check, Path(given.folder)).to_json(), flush=True)
    except (Misconfigured, OSError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def page_of(check: CheckToDocument) -> str:
    """Return the page about a check, as HTML."""
    from great_expectations.render.renderer import ValidationResultsPageRenderer  # noqa: PLC0415  it takes seconds

    document = ValidationResultsPageRenderer().render(_validation(check))
    overview = document.sections[0]
    # Its header links to a page about the suite, and the rest of it to the internet.
    overview.content_blocks = [each for each in overview.content_blocks if each.content_block_type == "table"]
    for block in (block for section in document.sections for block in section.content_blocks):
        if block.content_block_type == "header":  # the name of a column
            block.header.string_template["template"] = escape(block.header.string_template["template"])
    violated = [(str(each), _weight(each)) for each in check.results if not each.success]
    return str(_view().render(document, check=check, violated=violated))


def _import() -> None:
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    try:
        import great_expectations  # noqa: F401, PLC0415  it takes seconds
    except ImportError as error:
        raise Misconfigured(Message("checks.pages_without_gx", error=error)) from error


def _answer(check: CheckToDocument, folder: Path) -> PageAnswer:
    file = f"{check.check}.html"
    try:
        (folder / file).write_text(page_of(check), encoding="utf-8")
    except Exception as error:  # noqa: BLE001  GX raises whatever its renderers do; the other pages have their turn
        return PageAnswer(check.check, error=f"{type(error).__name__}: {error}")
    return PageAnswer(check.check, file)


def _view() -> Any:
    from great_expectations.render.view import DefaultJinjaPageView  # noqa: PLC0415  it takes seconds
    from jinja2 import ChoiceLoader, DictLoader  # noqa: PLC0415  GX brings it

    view = DefaultJinjaPageView()
    view.env.loader = ChoiceLoader([DictLoader({"page.j2": PAGE}), view.env.loader])
    return view


def _validation(check: CheckToDocument) -> Any:
    from great_expectations.core import ExpectationSuiteValidationResult, RunIdentifier  # noqa: PLC0415  seconds

    right = sum(each.success for each in check.results)
    at = datetime.fromisoformat(check.checked_at)
    return ExpectationSuiteValidationResult(
        success=right == len(check.results),
        results=[_validated(each) for each in check.results],
        suite_name=check.suite,
        statistics={
            "evaluated_expectations": len(check.results),
            "successful_expectations": right,
            "unsuccessful_expectations": len(check.results) - right,
            "success_percent": 100.0 * right / len(check.results) if check.results else None,
        },
        meta={"run_id": RunIdentifier(run_name=check.suite, run_time=at)},
    )


def _validated(result: ExpectationResult) -> Any:
    from great_expectations.core import ExpectationValidationResult  # noqa: PLC0415  it takes seconds

    raised = {"raised_exception": bool(result.error), "exception_message": result.error, "exception_traceback": ""}
    return ExpectationValidationResult(
        success=result.success,
        expectation_config=_configuration(result),
        result=_found(result),
        exception_info=raised,
    )


def _configuration(result: ExpectationResult) -> Any:
    """Return GX's own if it knows the type and takes the arguments, else one with a description."""
    from great_expectations.expectations.expectation_configuration import (  # noqa: PLC0415  it takes seconds
        ExpectationConfiguration,
    )

    configuration = ExpectationConfiguration(type=result.type, kwargs=dict(result.kwargs))
    try:
        configuration.to_domain_obj()
    except Exception:  # noqa: BLE001  GX has many reasons not to
        described = _DESCRIPTIONS.get(result.type) or f"{result.type} {json.dumps(result.kwargs, default=str)}"
        return ExpectationConfiguration(type=_registered(result.type), kwargs={}, description=_escaped(described))
    return configuration


def _registered(type_: str) -> str:
    """Make an expectation known to GX that only has a description; GX calls it by the name of its class."""
    from great_expectations.expectations.expectation import BatchExpectation  # noqa: PLC0415  it takes seconds

    name = "Described" + "".join(part.capitalize() for part in type_.split("_") if part.isidentifier())
    class_: Any = type(BatchExpectation)(name, (BatchExpectation,), {"__module__": __name__, "_validate": _validate})
    return str(class_.expectation_type)


def _validate(*_: Any, **__: Any) -> None:
    """Do nothing: results are not validated again, but without this method GX takes the class for an abstract one."""


def _found(result: ExpectationResult) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if result.observed is not None:
        found["observed_value"] = _plain(result.observed)
    if result.unexpected is not None:
        share = 100.0 * result.unexpected / result.rows if result.rows else 0.0
        found |= {
            "element_count": result.rows or 0,
            "unexpected_count": result.unexpected,
            "unexpected_percent": share,
            "partial_unexpected_list": [_plain(each) for each in result.examples],
        }
    return found


def _plain(value: Any) -> Any:
    """A value as GX may show it: texts are escaped, however deep."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, dict):
        return {escape(str(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _escaped(text: str) -> str:
    """A text as a template of GX's: a dollar sign begins a parameter there."""
    return escape(text).replace("$", "$$")


def _weight(result: ExpectationResult) -> str:
    blamed = f", blames {', '.join(result.blames)}" if result.blames else ""
    return f"{result.severity.value}{blamed}"


_STYLE = """
body { font-family: system-ui, sans-serif; margin: 2rem; color: #212529; }
h1 { font-size: 1.4rem; } h5 { font-size: 1.1rem; margin: 0; } h6 { margin: .3rem 0; }
table { border-collapse: collapse; margin: .5rem 0 1rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem; border-bottom: 1px solid #dee2e6; }
.alert { background: #f1f3f5; padding: .5rem .8rem; border-radius: .3rem; }
.badge { background: #e9ecef; border-radius: .3rem; padding: 0 .4rem; font-family: ui-monospace, monospace; }
.text-danger, .failed { color: #b02a37; } .text-success, .passed { color: #146c43; }
.text-warning, .warned { color: #997404; }
.fa-check-circle::before { content: "\\2713"; } .fa-times::before { content: "\\2717"; }
.fa-exclamation-triangle::before { content: "!"; }
td td { border: 1px solid #dee2e6; }
""".strip()

PAGE = (
    """<!DOCTYPE html>
<html>
<head>
<meta charset="UTF-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ check.suite | e }}: {{ check.outcome | e }}</title>
<style>
"""
    + _STYLE
    + """
</style>
</head>
<body>
<h1>Suite {{ check.suite | e }}: <span class="{{ check.outcome | e }}">{{ check.outcome | e }}</span></h1>
<table>
{% for name, value in check.facts %}<tr><th>{{ name | e }}</th><td>{{ value | e }}</td></tr>
{% endfor %}<tr><th>checked at</th><td>{{ check.checked_at | e }}</td></tr>
</table>
{% if violated %}<h5>Violated</h5>
<ul>
{% for what, weight in violated %}<li>{{ what | e }} ({{ weight | e }})</li>
{% endfor %}</ul>
{% endif %}
{% for section in sections %}{% set section_loop = loop -%}{% include 'section.j2' %}{% endfor %}
</body>
</html>
"""
)
"""A template of Jinja's; GX's `section.j2` shows the output of its renderers."""


if __name__ == "__main__":
    sys.exit(main())
