"""Each message of the product has its text in messages.toml, each text is said somewhere, and their names agree."""

import ast
import copy
import pickle
import string
from functools import cache
from pathlib import Path

import pytest
from tests.messages.kinds import messages_in, of_kind

from weir.errors import Message, Misconfigured, WeirError, at, said_by, texts

ROOT = Path(__file__).parents[2]
PRODUCT = ("include", "plugins", "spark_jobs")


@cache
def nodes():
    """All nodes of the product, each with its file."""
    files = [file for folder in PRODUCT for file in sorted((ROOT / folder).rglob("*.py"))]
    return [(file, node) for file in files for node in ast.walk(ast.parse(file.read_text()))]


def calls():
    for file, node in nodes():
        if isinstance(node, ast.Call):
            yield f"{file.relative_to(ROOT)}:{node.lineno}", name_of(node.func), node


def name_of(node):
    return getattr(node, "attr", getattr(node, "id", ""))


@cache
def classes_of_errors():
    """The names of all classes of the product that are errors of Weir, wherever they are defined."""
    bases = {node.name: {name_of(base) for base in node.bases} for _, node in nodes() if isinstance(node, ast.ClassDef)}
    found = {WeirError.__name__}
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return found


def names_in(text):
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def is_message(name, node):
    """Report whether a call makes a message, or an error with one."""
    makes_error = name == "of" and name_of(node.func.value) in classes_of_errors()
    return bool(node.args) and (name == Message.__name__ or makes_error)


def test_messages_and_texts_agree():
    said = {}
    for place, name, node in calls():
        if is_message(name, node) and not place.startswith("include/weir/errors.py"):
            said[place] = (node.args[0].value, {keyword.arg for keyword in node.keywords})
    known = texts()
    assert {place for place, (kind, _) in said.items() if kind not in known} == set()
    assert {place for place, (kind, names) in said.items() if names_in(known[kind]) - names} == set()
    assert set(known) - {kind for kind, _ in said.values()} == set()


def test_no_error_is_made_with_a_text_that_has_no_kind():
    ours = classes_of_errors()
    assert len(ours) > 20
    assert [place for place, name, node in calls() if name in ours and any(is_prose(each) for each in node.args)] == []


def is_prose(node):
    """Report whether a value is a text with words: a literal one, or one that is put together."""
    if isinstance(node, ast.BinOp | ast.IfExp):
        return any(is_prose(each) for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and " " in str(node.value))


def test_a_message_is_its_text_and_knows_its_kind_and_names():
    message = Message("store.folder_not_empty", url="/results", marker="here", unexpected=["a", "b"])
    assert message.startswith("the folder /results is not empty")
    assert "found a, b." in message
    assert (message.kind, message.names["unexpected"]) == ("store.folder_not_empty", ["a", "b"])
    assert str(Misconfigured(message)) == message == said_by(Misconfigured(message))
    assert said_by(OSError("away")) == "away"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])  # noqa: S301
def test_an_error_can_be_copied_and_sent_as_its_text(copied):
    error = Misconfigured(Message("store.unusable", url="/results", error=lambda: "values that cannot travel"))
    assert str(copied(error)) == str(error)


def test_a_name_that_the_text_has_and_the_message_has_not_is_a_mistake_of_ours():
    with pytest.raises(KeyError, match="url"):
        Message("store.unusable", error="closed")


def test_a_problem_with_its_place_is_of_its_kind():
    placed = at("stage 'a'", Message("dataflow.no_stages"))
    assert placed.startswith("stage 'a': it has no stages")
    assert of_kind("dataflow.no_stages")(Misconfigured(placed))
    assert at("stage 'a'", "is no stage") == "stage 'a': is no stage"


def test_what_a_message_quotes_is_found():
    outer = Misconfigured(
        Message("dataflow.problems", dataflow="flow", number=2, problems=[Message("dataflow.no_stages")])
    )
    assert [message.kind for message in messages_in(outer)] == ["dataflow.problems", "dataflow.no_stages"]
    assert not of_kind("dataflow.no_stages", dataflow="flow")(outer)
