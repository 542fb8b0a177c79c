"""Applications of stages: what a declaration may say, and how values become parts of arguments."""

from __future__ import annotations

import pytest
from tests.messages.kinds import of_kind

from weir.code.application_rules import (
    Application,
    application_problems,
    bound,
    name_in_archive,
    parameter_problems,
    secrets_of,
)
from weir.code.archive import pack
from weir.code.version import code_version, lacking_functions
from weir.errors import Misconfigured

ARGUMENTS = ["--in", "{{ inputs.read }}", "--out={{output}}"]


def problems(path="jars/routes.jar", arguments=ARGUMENTS, main_class="", inputs=("read",)):
    return list(application_problems(Application(path, arguments, main_class), inputs))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"path": "jobs/routes.py"},
        {"main_class": "com.example.Routes$Main"},
        {"arguments": [*ARGUMENTS, "{{ ctx.epoch }}", "{{ ctx.interval[1].date }}", "{{ ctx.parameters.tariff }}"]},
    ],
)
def test_what_fits_has_no_problems(given):
    assert problems(**given) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"path": "/opt/routes.jar"}, "neither absolute nor with .."),
        ({"path": "../routes.jar"}, "neither absolute nor with .."),
        ({"path": "routes.scala"}, "write that of a .jar or .py file"),
        ({"path": "jobs/routes.py", "main_class": "Routes"}, "which has no main_class: leave main_class='Routes' out"),
        ({"main_class": "com/example"}, "main_class is 'com/example': write the name of a class"),
        ({"arguments": "--in {{ inputs.read }}"}, "arguments are a list of texts"),
        ({"arguments": [*ARGUMENTS, 3]}, "arguments are a list of texts"),
        ({"arguments": ["{{ inputs.read }}"]}, "no argument of its application is {{ output }}"),
        ({"arguments": ["{{ output }}"]}, "no argument of its application is {{ inputs.read }}: add it, or leave"),
        ({"arguments": [*ARGUMENTS, "{{ inputs.reed }}"]}, "names no input of the stage: did you mean 'read'?"),
        ({"arguments": [*ARGUMENTS, "{{ ds }}"]}, "{{ ds }} is unknown: write {{ ctx.interval[0].date }}"),
        ({"arguments": [*ARGUMENTS, "{{ params.x }}"]}, "{{ params.x }} is unknown: write {{ ctx.parameters.x }}"),
        ({"arguments": [*ARGUMENTS, "{{ var.value.x }}"]}, "{{ var.value.x }} is unknown: there are {{ inputs.NAME }}"),
        ({"arguments": [*ARGUMENTS, "{% if x %}"]}, "has a block of Jinja"),
        ({"arguments": [*ARGUMENTS, "{{ output"]}, "opens {{ and does not close it"),
    ],
)
def test_what_does_not_fit_is_answered_with_what_to_write(given, said):
    (problem,) = problems(**given)
    assert said in problem


def test_parameters_are_those_of_the_dataflow_and_fit_into_text():
    application = Application("a.jar", ["{{ ctx.parameters.tarif }}", "{{ ctx.parameters.days }}"])
    assert list(parameter_problems(application, {"tariff": "A", "days": [1, 2]})) == [
        "the dataflow has no parameter 'tarif': did you mean 'tariff'?",
        "{{ ctx.parameters.days }} is [1, 2]: only a text, a number or a truth value fits an argument",
    ]


@pytest.mark.parametrize(
    "arguments",
    [["--password", "hunter2hunter2"], ["--db.password=hunter2hunter2"], ["jdbc:x://me:hunter2hunter2@host/db"]],
)
def test_an_argument_that_looks_like_a_secret_is_found_and_not_shown(arguments):
    (found,) = secrets_of(Application("a.jar", arguments))
    assert "hunter2" not in found


def test_ordinary_arguments_are_no_secrets():
    assert list(secrets_of(Application("a.jar", ["--in", "{{ inputs.read }}", "--date", "2013-01-01", "-v"]))) == []


def test_a_value_stays_within_its_argument_and_is_not_looked_into_again():
    values = {"output": "file:///a b", "ctx.parameters.text": "{{ output }} --x; rm", "ctx.parameters.all": True}
    arguments = ["--out={{ output }}", "{{ctx.parameters.text}}", "{{ ctx.parameters.all }}", "plain"]
    assert bound(arguments, values) == ["--out=file:///a b", "{{ output }} --x; rm", "true", "plain"]


def test_a_value_that_a_run_has_not_is_refused():
    with pytest.raises(
        Misconfigured, check=of_kind("code.value_unknown", values=["output"], written="ctx.parameters.gone")
    ):
        bound(["{{ ctx.parameters.gone }}"], {"output": "x"})


def test_the_bytes_of_an_application_are_the_version_of_its_stage():
    packed = [pack((), applications={"jobs/routes.py": text}) for text in (b"x = 1", b"x = 1  # a comment")]
    assert [list(each.files) for each in packed] == [["jobs/routes.py.application"]] * 2
    versions = {code_version(each.files, ["jobs/routes.py"]) for each in packed}
    assert len(versions) == 2
    assert packed[0].modules.files == {}
    assert packed[0].top_level == frozenset()
    assert lacking_functions(packed[0].files, ["jobs/routes.py", "jobs/other.jar"]) == ("jobs/other.jar",)


def test_a_function_is_no_file_of_an_archive():
    assert [name_in_archive(each) for each in ("a.b:py", "q/a.sql", "a.jar", "")] == [
        "",
        "q/a.sql",
        "a.jar.application",
        "",
    ]
