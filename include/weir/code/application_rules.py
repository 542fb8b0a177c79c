"""The Spark application of a stage: a jar, or a program in Python, that reads and writes folders of Parquet files.

Invariant: a value becomes part of one argument and never more than that: nothing divides or evaluates an argument.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from weir.code.sql_rules import OF_AIRFLOW, advice_on, is_sql
from weir.errors import Message, Misconfigured, said_by
from weir.secrecy import secrets_in
from weir.wording import did_you_mean

PYTHON: Final = ".py"
SUFFIXES: Final = (".jar", PYTHON)
STORED: Final = ".application"
"""The end of its name in an archive, in which a name that ends with .py would be that of a module."""

_PATH: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")
_CLASS: Final = re.compile(r"[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*", re.ASCII)
_TEMPLATE: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_VALUE: Final = re.compile(
    r"output|inputs\.(?P<input>\w+)"
    r"|ctx\.(epoch|subtask|parallelism|(local_)?interval\[[01]\](\.date)?|parameters\.(?P<parameter>\w+))"
)
_OPTION: Final = re.compile(r"-{1,2}(?P<key>[\w.-]+)")
_KNOWN: Final = (
    "{{ inputs.NAME }}, {{ output }}, {{ ctx.epoch }}, {{ ctx.interval[0] }}, {{ ctx.interval[1] }}, "
    "{{ ctx.interval[0].date }}, {{ ctx.local_interval[0].date }}, "
    "{{ ctx.subtask }}, {{ ctx.parallelism }} and {{ ctx.parameters.NAME }}"
)
_OF_AIRFLOW: Final = {**OF_AIRFLOW, "ds": "{{ ctx.interval[0].date }}"}
"""What stands here for a variable of Airflow's templates."""


class ApplicationFailed(Exception):
    """The application of a stage ended without its whole output; the restart strategy decides on another try."""


@dataclass(frozen=True, slots=True)
class Application:
    """A jar or Python program that spark-submit runs today: what computes a stage in the place of a function.

    `path` is looked for below the folder of the DAG file. In `arguments`, `{{ inputs.NAME }}` is the folder of an
    input, `{{ output }}` the folder to write. `main_class` may be left out where the jar's manifest names one.
    """

    path: str
    arguments: Sequence[str] = ()
    main_class: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.arguments, list):
            object.__setattr__(self, "arguments", tuple(self.arguments))


def is_application(reference: object) -> bool:
    """Report whether what computes a stage is an application, and not a function ("module:function") or a query."""
    return isinstance(reference, str) and reference.endswith(SUFFIXES)


def name_in_archive(reference: str) -> str:
    """Return the name in an archive of what a stage names; empty for a function, which is part of a module."""
    if is_application(reference):
        return f"{reference}{STORED}"
    return reference if is_sql(reference) else ""


def is_stored_application(name: str) -> bool:
    """Report whether a file of an archive is an application, and neither a module nor what one reads."""
    return name.endswith(STORED) and is_application(name.removesuffix(STORED))


def application_problems(application: Application, inputs: Collection[str]) -> Iterator[str]:
    """Yield the problems of an application of a stage that has these inputs."""
    path, arguments, main_class = application.path, application.arguments, application.main_class
    if not is_application(path) or not _PATH.fullmatch(path):
        yield Message("code.application_path_malformed", path=path)
    if not isinstance(main_class, str) or (main_class and not _CLASS.fullmatch(main_class)):
        yield Message("code.main_class_malformed", main_class=main_class)
    elif main_class and str(path).endswith(PYTHON):
        yield Message("code.main_class_of_python", path=path, main_class=main_class)
    if not isinstance(arguments, tuple) or not all(isinstance(each, str) for each in arguments):
        yield Message("code.arguments_malformed", arguments=arguments)
        return
    written = [_written(found) for each in arguments for found in _TEMPLATE.finditer(each)]
    for each in arguments:
        yield from _text_problems(each)
    for each in written:
        yield from _value_problems(each, inputs)
    if "output" not in written:
        yield Message("code.argument_of_output_missing")
    for name in inputs:
        if f"inputs.{name}" not in written:
            yield Message("code.argument_of_input_missing", name=name)


def secrets_of(application: Application) -> Iterator[str]:
    """Yield the arguments that look like secrets: `--password x`, `password=x`, and passwords in URLs."""
    before = ""
    for each in application.arguments:
        key, sign, value = each.partition("=")
        named, value = (key, value) if sign else (before, each)
        option = _OPTION.fullmatch(named)
        yield from secrets_in("arguments", {option["key"] if option else named: value})
        before = each


def parameter_problems(application: Application, parameters: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of an application in a dataflow with these parameters."""
    for written in (_written(found) for each in application.arguments for found in _TEMPLATE.finditer(each)):
        match = _VALUE.fullmatch(written)
        name = match["parameter"] if match else None
        if name is None:
            continue
        if name not in parameters:
            hint = did_you_mean(name, parameters, f'write Dataflow(..., parameters={{"{name}": ...}})')
            yield Message("code.parameter_unknown", name=name, hint=hint)
            continue
        try:
            _text(written, parameters[name])
        except Misconfigured as error:
            yield said_by(error)


def bound(arguments: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Return the arguments with values in the place of {{ ... }}. Raises Misconfigured.

    `values` are by what stands there, such as "ctx.epoch"; each becomes part of its argument as text.
    """

    def text(found: re.Match[str]) -> str:
        written = _written(found)
        if written not in values:
            raise Misconfigured.of("code.value_unknown", written=written, values=sorted(values))
        return _text(written, values[written])

    return [_TEMPLATE.sub(text, each) for each in arguments]


def _written(found: re.Match[str]) -> str:
    return found[1].strip()


def _text_problems(argument: str) -> Iterator[str]:
    rest = _TEMPLATE.sub("", argument)
    if "{%" in rest or "{#" in rest:
        yield Message("code.argument_with_block", argument=argument)
    elif "{{" in rest:
        yield Message("code.argument_not_closed", argument=argument)


def _value_problems(written: str, inputs: Collection[str]) -> Iterator[str]:
    match = _VALUE.fullmatch(written)
    if match is None:
        advice = advice_on(written, _VALUE, _OF_AIRFLOW, _KNOWN)
        yield Message("code.argument_value_unknown", written=written, advice=advice)
    elif match["input"] is not None and match["input"] not in inputs:
        hint = did_you_mean(match["input"], inputs, f"it has {', '.join(map(repr, inputs)) or 'none'}")
        yield Message("code.argument_names_no_input", written=written, hint=hint)


def _text(written: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise Misconfigured.of("code.value_is_no_text", written=written, value=value)
