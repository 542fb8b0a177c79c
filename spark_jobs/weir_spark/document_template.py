"""The page around what Great Expectations renders. Invariant: it has no script, and loads nothing from anywhere.

GX's own page takes its look from half a dozen hosts, and shows almost nothing without them.
"""

from __future__ import annotations

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
"""A template of Jinja's; GX's `section.j2` shows what its renderers have made."""
