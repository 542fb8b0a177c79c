"""Of modules counts what functions do: whatever an edit changes of what they return is other code, and little else.

Each case is executed before and after its edit: what the function returns decides, not the opinion of a test.
"""

import importlib
import random
import sys
import tomllib
from pathlib import Path

import pytest

from weir.code.version import code_version

BEFORE, AFTER = "1000", "2000"


@pytest.fixture
def returned(tmp_path, monkeypatch):
    """Answers what `pipe.main:f` returns, imported from files; each time anew."""
    count = iter(range(1_000))

    def run(files):
        folder = tmp_path / str(next(count))
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(folder))
            for name in [each for each in sys.modules if each.partition(".")[0] == "pipe"]:
                patch.delitem(sys.modules, name)
            importlib.invalidate_caches()
            try:
                return importlib.import_module("pipe.main").f()
            finally:
                for name in [each for each in sys.modules if each.partition(".")[0] == "pipe"]:
                    del sys.modules[name]

    return run


def package(files):
    return {"pipe/__init__.py": "", **{f"pipe/{name}": text for name, text in files.items()}}


CASES = tomllib.loads((Path(__file__).parent / "definitions.toml").read_text())
NEEDED, LEFT_OUT = ({name: package(files) for name, files in CASES[kind].items()} for kind in ("needed", "left_out"))


def edited(files):
    return {name: text.replace(BEFORE, AFTER) for name, text in files.items()}


def version(files):
    return code_version({name: text.encode() for name, text in files.items()}, ["pipe.main:f"])


@pytest.mark.parametrize("files", NEEDED.values(), ids=NEEDED)
def test_what_changes_what_a_function_returns_is_other_code(files, returned):
    assert returned(files) != returned(edited(files)), "the case is wrong"
    assert version(files) != version(edited(files))


@pytest.mark.parametrize("files", LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_a_function_neither_runs_nor_reads_is_no_other_code(files, returned):
    assert returned(files) == returned(edited(files))
    assert version(files) == version(edited(files))
    assert version(files).startswith("code:")


def drawn(seed):
    """Modules of functions and constants that use each other in many ways, and the names of what can be edited."""
    choose = random.Random(seed)
    names = [f"n{number}" for number in range(8)]
    modules = {name: choose.choice(["main", "one", "two"]) for name in names}
    texts = {"main": "", "one": "", "two": ""}
    for number, name in enumerate(names):
        used = choose.sample(names[:number], min(number, choose.randint(0, 2)))
        lines = [f"{number + 10}"]
        imports = []
        for each in used:
            value = each
            if modules[each] != modules[name]:
                kind = choose.choice(["from", "module", "inside"])
                if kind == "from":
                    imports.append(f"from pipe.{modules[each]} import {each}\n")
                elif kind == "module":
                    imports.append(f"import pipe.{modules[each]} as m_{modules[each]}\n")
                    value = f"m_{modules[each]}.{each}"
                else:
                    value = f"__import_{each}"
            lines.append(f"call({value})")
        body = " + ".join(lines).replace("__import_", "")
        inside = "".join(
            f"    from pipe.{modules[each]} import {each}\n" for each in used if f"__import_{each}" in " ".join(lines)
        )
        texts[modules[name]] += "".join(imports) + f"\n\ndef {name}():\n{inside}    return {body}\n"
    call = "\n\ndef call(value):\n    return value() if callable(value) else value\n"
    last = f"\n\nfrom pipe.{modules[names[-1]]} import {names[-1]}\n\n\ndef f():\n    return {names[-1]}()\n"
    return {"pipe/__init__.py": "", **{f"pipe/{each}.py": call + text for each, text in texts.items()}}, last, names


@pytest.mark.parametrize("seed", range(40))
def test_of_drawn_modules_exactly_what_changes_the_answer_is_other_code(seed, returned):
    files, last, names = drawn(seed)
    files["pipe/main.py"] += last
    for number in range(len(names)):
        changed = {
            name: text.replace(f"return {number + 10}", f"return {number + 500}") for name, text in files.items()
        }
        try:
            differs = returned(changed) != returned(files)
        except ImportError:  # a circle of imports
            return
        assert (version(changed) != version(files)) == differs, names[number]
