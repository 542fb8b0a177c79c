"""Runs Great Expectations for what is no plain aggregate. Invariant: it opens no connection and leaves no state.

It is imported here, when it is needed, since the import takes seconds, as long as many a region.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from pyspark.sql import DataFrame

from weir.errors import Misconfigured, reached
from weir.formats.checks import ExpectationResult
from weir.formats.expectation_types import registry_problems
from weir.formats.suite import Expectation, Suite
from weir.wording import shortened
from weir_spark.checks.one_aggregation import EXAMPLES, in_one_line, require_fault_of_expectation, result_of
from weir_spark.checks.plain_aggregates import Found
from weir_spark.checks.typed_numbers import in_python
from weir_spark.session import SPARK_ERRORS

_BATCH = "weir"
_FORMAT = {"result_format": "BASIC", "partial_unexpected_count": EXAMPLES}
_RUNTIME = {"result_format": _FORMAT, "catch_exceptions": False}


def require_known(suites: Iterable[Suite]) -> None:
    """Find the mistakes in types and arguments that only Great Expectations knows, before anything is computed.

    Raises Misconfigured, also where Great Expectations is needed and not installed.
    """
    for suite in suites:
        if suite.of_gx:
            registry = _registry(list(suite.of_gx.values()))
            try:
                suite.require_known(registry)
            except Misconfigured as error:
                raise Misconfigured.of("checks.suite_unusable", error=error) from error


def validate(rows: DataFrame, expectations: Sequence[Expectation]) -> list[ExpectationResult]:
    """Return the result of each expectation.

    Raises Misconfigured for types and arguments that Great Expectations does not know, and where it is not installed,
    and errors that are no fault of an expectation.
    """
    if not expectations:
        return []
    _require_known(expectations, _registry(expectations))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            answers = _answers(rows, expectations)
        except Exception as error:  # noqa: BLE001  # GX raises whatever its metrics do
            _require_fault_of_expectation(error)
            return [_alone(rows, each) for each in expectations]
    return [_result(each, answer) for each, answer in zip(expectations, answers, strict=True)]


def chosen(rows: DataFrame, expectation: Expectation) -> DataFrame:
    """Return the rows that an expectation is of, by a condition in GX's own language. Raises Misconfigured."""
    registry = _registry([expectation])
    _require_known([expectation], registry)
    from great_expectations.execution_engine import SparkDFExecutionEngine  # noqa: PLC0415  # as above

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        condition = registry.get_expectation_impl(expectation.type)(**expectation.kwargs).row_condition
        engine = SparkDFExecutionEngine(persist=False, spark=rows.sparkSession)
        found: DataFrame = engine._apply_row_condition_filter(rows, condition, {})  # noqa: SLF001  # GX has no other way
    return found


def _require_known(expectations: Iterable[Expectation], registry: Any) -> None:
    for each in expectations:  # plain ones, too, that are not of the column's type
        for problem in registry_problems(each.type, each.kwargs, registry):
            raise Misconfigured.of("checks.expectation_unusable", problem=problem)


@dataclass(frozen=True, slots=True)
class _NoBars:
    """The part of a data context that a validator uses."""

    progress_bars: dict[str, bool] = field(default_factory=lambda: {"globally": False, "metric_calculations": False})


def _registry(expectations: Sequence[Expectation]) -> Any:
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    try:
        from great_expectations.expectations import registry  # noqa: PLC0415  # it takes seconds
    except ImportError as error:
        types = ", ".join(sorted({each.type for each in expectations}))
        raise Misconfigured.of("checks.gx_missing", types=types, error=error) from error
    return registry


def _answers(rows: DataFrame, expectations: Sequence[Expectation]) -> list[Any]:
    """GX's own answers, in the order of the expectations."""
    from great_expectations.execution_engine import SparkDFExecutionEngine  # noqa: PLC0415  # as above
    from great_expectations.expectations.expectation_configuration import (  # noqa: PLC0415
        ExpectationConfiguration,
    )
    from great_expectations.validator.validator import Validator  # noqa: PLC0415

    # Without a session given it would look for one, and without `persist=False` keep rows for all sessions of a server.
    engine = SparkDFExecutionEngine(persist=False, spark=rows.sparkSession)
    engine.load_batch_data(_BATCH, rows)
    validator = Validator(execution_engine=engine, data_context=_NoBars())
    configurations = [ExpectationConfiguration(type=each.type, kwargs=_given(each, rows)) for each in expectations]
    answers: list[Any] = validator.graph_validate(configurations=configurations, runtime_configuration=_RUNTIME)
    return answers


def _given(expectation: Expectation, rows: DataFrame) -> dict[str, Any]:
    """The arguments, in the type of the column: GX looks for values of Spark in a set of Python's."""
    given = dict(expectation.kwargs)
    members, name = given.get("value_set"), given.get("column")
    kinds = [each.dataType for each in rows.schema.fields if each.name == name]
    if isinstance(members, list) and expectation.type.endswith("_in_set"):
        # With a null in a set any value is in it, for Spark; only other values count.
        given["value_set"] = members = [each for each in members if each is not None]
    if isinstance(members, list) and kinds:
        given["value_set"] = in_python(members, kinds[0])
    return given


def _alone(rows: DataFrame, expectation: Expectation) -> ExpectationResult:
    try:
        (answer,) = _answers(rows, [expectation])
    except Exception as error:  # noqa: BLE001  # as above
        _require_fault_of_expectation(error)
        return result_of(expectation, in_one_line(error))
    return _result(expectation, answer)


def _result(expectation: Expectation, answer: Any) -> ExpectationResult:
    raised = "; ".join(_raised(answer.exception_info or {}))
    if raised:
        return result_of(expectation, shortened(raised, 300))
    values = [] if answer.success else (answer.result or {}).get("partial_unexpected_list") or []
    return result_of(expectation, _found(answer), tuple(_plain(each) for each in values))


def _found(answer: Any) -> Found:
    success, result = bool(answer.success), answer.result or {}
    if "element_count" not in result:
        return Found(success, _observed(result))
    rows = int(result["element_count"] or 0) - int(result.get("missing_count") or 0)
    return Found(success, None, rows, int(result["unexpected_count"] or 0))


def _raised(exceptions: dict[str, Any]) -> Iterator[str]:
    """Yield the messages of failed metrics; GX has one for all, or one by metric."""
    for each in (exceptions, *exceptions.values()):
        if isinstance(each, dict) and each.get("raised_exception"):
            yield str(each.get("exception_message"))


def _observed(result: dict[str, Any]) -> Any:
    """Return the value that GX has observed; of distinct values the unexpected and the missing ones."""
    if result.get("observed_value") is not None:
        return _plain(result["observed_value"])
    lists = {name: _plain(result.get(f"partial_{name}_list") or []) for name in ("unexpected", "missing")}
    return {name: values for name, values in lists.items() if values} or None


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, dict):
        return [_plain(each) for each in value.values()]
    if isinstance(value, list | tuple | set):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return value.item() if hasattr(value, "item") else str(value)


def _require_fault_of_expectation(error: BaseException) -> None:
    """Raise the cause unless it is an expression or its values: the first of Spark; its own context is that of grpc."""
    for cause in reached(error, lambda found: (found.__cause__ or found.__context__,)):
        if isinstance(cause, SPARK_ERRORS):
            require_fault_of_expectation(cause)
            return
        if _is_of_grpc(cause):
            raise cause


def _is_of_grpc(error: BaseException) -> bool:
    """Report whether an error is of grpc, without importing it: a driver on a cluster often has none."""
    grpc = sys.modules.get("grpc")
    return grpc is not None and isinstance(error, grpc.RpcError)
