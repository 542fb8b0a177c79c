"""Pages of docs/reference hold docstrings and help texts: `.venv/bin/python tests/reference_pages.py` writes them anew.

What stands in a page between one of these lines and `<!-- end -->` is written here:

    <!-- reference: MODULE.OBJECT [as SHOWN NAME] [with MEMBER ...] [without MEMBER ...] -->
    <!-- commands: MODULE as PROGRAM [without MODULE] -->

Python is read, not imported. Members that are private or have no docstring are left out; `__init__` is the signature.
"""

import html
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from textwrap import indent

import griffe
import typer
from typer.cli import get_docs_for_click
from typer.main import get_command

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
WIDTH = 100

_BLOCK = re.compile(r"(?ms)^<!-- (reference|commands): (\S+)(.*?) -->$.*?^<!-- end -->$")
_CLAUSE = re.compile(r" (as|without|with) (.+?)(?= as | without | with |$)")


@cache
def modules():
    """All modules of the product by name, read when one is asked for: each process of tests imports this module."""
    loader = griffe.GriffeLoader(search_paths=[ROOT / "include", ROOT / "plugins", ROOT / "spark_jobs"])
    for package in ("weir", "weir_airflow", "weir_spark"):
        loader.load(package, try_relative_path=False)
    loader.resolve_aliases(implicit=True, external=False)
    return loader.modules_collection


def current(page):
    """The text of a page, as the sources are now."""

    def block(found):
        clauses = dict(_CLAUSE.findall(found[3]))
        if found[1] == "commands":
            text = commands(found[2], **clauses)
        else:
            (*_, above) = re.findall(r"(?m)^#+(?= )", _BLOCK.sub("", page[: found.start()]))
            text = reference(found[2], clauses, above + "#")
        opening, _, _ = found[0].partition("\n")
        return f"{opening}\n\n{text}\n\n<!-- end -->"

    return _BLOCK.sub(block, page)


def commands(module, **clauses):
    """A list of the commands of a program, except those of another one, and the help of each."""
    other = sections(clauses["without"], clauses["as"]) if "without" in clauses else []
    shown = [each for each in sections(module, clauses["as"]) if each not in other]
    heads = [re.match(r"## `(.+) (\w+)`\n\n(.+)", each).groups() for each in shown]
    return "\n\n".join(["\n".join(f"- [`{verb}`](#weir-{verb}): {text}" for _, verb, text in heads), *shown])


def sections(module, program):
    """The help of each command as Markdown."""
    command = get_command(import_module(module).app)
    text = html.unescape(get_docs_for_click(obj=command, ctx=typer.Context(command), name=program))
    return [each.strip() for each in re.split(r"(?m)^(?=## )", text)[1:]]


def reference(path, clauses, heading):
    """A module, class or function, its name in a heading of this level."""
    found = modules()[path]
    names = found.exports or [*found.members, "__init__"]
    wanted = set(clauses.get("with", " ".join(names)).split()) - set(clauses.get("without", "").split())
    if not found.is_module:
        return entry(found, clauses.get("as", found.name), heading, wanted)
    own = [(name, each) for name, each in found.members.items() if found.exports or not each.is_alias]
    texts = [entry(each, name, heading) for name, each in own if name in wanted and each.docstring]
    return "\n\n".join([found.docstring.value, *texts])


def entry(found, name, heading, wanted=None):
    """A heading, signature and docstring; then the attributes as a list, and the methods."""
    inner = members(found, wanted)
    attributes = [f"- {described(each)}" for each in inner if each.is_attribute]
    methods = [entry(each, f"{name}.{each.name}", heading + "#") for each in inner if each.is_function]
    code = signature(found, name) if wanted is None or found.is_function or "__init__" in wanted else ""
    parts = [f"{heading} `{name}`", code, found.docstring.value, "\n".join(attributes), *methods]
    return "\n\n".join(part for part in parts if part)


def members(found, wanted):
    """The documented members of a class, and all of an enum; those that are named may be inherited."""
    if not found.is_class:
        return []
    every = found.members if wanted is None else {**found.inherited_members, **found.members}
    names = [name for name in every if not name.startswith("_") and (wanted is None or name in wanted)]
    return [every[name] for name in names if every[name].docstring or "Enum" in str(found.bases)]


def described(attribute):
    """A field, property or member of an enum, with its docstring."""
    kind = f": {attribute.annotation}" if attribute.annotation else ""
    value = f" = {attribute.value}" if attribute.value and "property" not in attribute.labels else ""
    text = indent(attribute.docstring.value, "    ").strip() if attribute.docstring else ""
    return f"`{quoted(attribute.name + kind + value)}`" + (f": {text}" if text else "")


def signature(found, name):
    """The bases of a class, and how it or a function is called, as code."""
    if found.is_attribute:
        return f"```python\n{quoted(f'{found.name} = {found.value}')}\n```"
    lines = [f"class {found.name}({', '.join(map(str, found.bases))})"] if found.is_class and found.bases else []
    lines += [f"@{each}" for each in ("abstractmethod", "classmethod") if each in found.labels]
    call = re.sub(r"= _\w+", "= ...", quoted(found.signature(name=name, return_type=found.is_function)))
    lines += [broken(call) if len(call) > WIDTH else call]
    return "```python\n{}\n```".format("\n".join(filter(None, lines))) if any(lines) else ""


def quoted(code):
    """The code with quotation marks as the sources have them."""
    return re.sub(r"'([^'\"]*)'", r'"\1"', code)


def broken(call):
    """The call with one parameter a line."""
    text, depth = "", 0
    for mark in call:
        is_last = depth == 1 and mark == ")"
        depth += (mark in "([{") - (mark in ")]}")
        text += f",\n{mark}" if is_last else mark
        if depth == 1 and mark in "(,":
            text += "\n   " if mark == "," else "\n    "
    return text


def write():
    for page in PAGES:
        page.write_text(current(page.read_text()))


if __name__ == "__main__":
    write()
