"""`weir compare`: how the results of two runs, or two published versions, differ.

Invariants: nothing is changed, and the ledger gets a read lease only. Spark is started only for results whose digests
do not say whether they are equal, or in what they differ.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console

from weir.cli.documents import AsJson, print_document, shown
from weir.cli.progress import Progress
from weir.cli.tables import key, number, print_cells, print_line, print_rows, text, value
from weir.environment import opened_services
from weir.errors import Misconfigured

if TYPE_CHECKING:
    from weir.formats.programs import ComparisonToMake
    from weir.reading.comparison_rules import ColumnDifference
    from weir.views.comparison import Answer, Comparison, DifferingRow, ResultComparison, RowDifference

SHOWN = 10
"""The default number of differing rows."""

EXIT_DIFFER = 1
EXIT_NOT_COMPARED = 2

_NAME = "A run, DATAFLOW@EPOCH or Airflow's run id, or a published version, DATAFLOW.SINK@EPOCH#VERSION."


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=_NAME, show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.", show_default=False)],
    stage: Annotated[str | None, typer.Option(help="Only the result of this stage, sink or state.")] = None,
    key_columns: Annotated[
        str | None,
        typer.Option(
            "--key", help="The columns that tell a row from others, like zone,day.  [default: a declared key]"
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="How many differing rows of a result to show.")] = SHOWN,
    remote: Annotated[
        str | None,
        typer.Option(help="A Spark Connect server, sc://host:port; default: that of the local stack, or local Spark."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two runs, of one dataflow or of two, or two published versions: columns, rows, and which rows differ.

    Results of the same name are compared; of two dataflows those of all epochs that both have closed, as recorded of
    them. Exit code 0: all that both have are equal. 1: some differ. 2: some could not be compared.
    """
    from weir.cli.programs import own_server  # noqa: PLC0415  pyarrow is slow to import
    from weir.reading.pairs import WantedComparison, opened_pairs  # noqa: PLC0415  likewise
    from weir.views.comparison import comparison, epochs_compared  # noqa: PLC0415  likewise

    wanted = WantedComparison(a=a, b=b, stage=stage, key=columns_of(key_columns), shown=limit)
    with opened_services() as services:
        epochs = epochs_compared(services, a, b)
        if epochs is not None:
            options = {"--stage": stage, "--key": key_columns, "--limit": limit != SHOWN, "--remote": remote}
            if named := [name for name, given in options.items() if given]:
                raise Misconfigured.of("cli.not_of_epochs", a=a, b=b, named=named)
            if not any(each.results for each in epochs):
                raise Misconfigured.of("reading.no_epoch_in_common", a=a, b=b)
            _print_epochs(epochs, as_json=as_json)
        with opened_pairs(services, wanted) as pairs:
            asked = [each.asked for each in pairs.pairs if each.asked is not None]
            found = comparison(pairs, answers(asked, remote or own_server(os.environ)))
    if as_json:
        print_document(comparison=found)
    else:
        _print(found)
    raise typer.Exit(_exit_code(found))


def columns_of(key: str | None) -> tuple[str, ...]:
    """Return the columns that an option has, with commas between them."""
    return () if key is None else tuple(name.strip() for name in key.split(","))


def answers(asked: Sequence[ComparisonToMake], url: str | None) -> Sequence[Answer]:
    """Compare rows on the Spark Connect server at `url`, or on a local Spark; nothing is started for none."""
    from weir.cli.programs import compared  # noqa: PLC0415  pyarrow is slow to import

    if not asked:
        return ()
    with Progress(Console(stderr=True)).phase(f"comparing the rows of {len(asked)} result(s)"):
        return compared(asked, url, os.environ)


def _print_epochs(found: Sequence[Comparison], *, as_json: bool) -> NoReturn:
    """Print how the results of the epochs of two dataflows compare, by their digests, and exit."""
    unequal = [each for each in found if _exit_code(each)]
    if as_json:
        print_document(epochs=found)
    else:
        print_rows(_EPOCHS, found)
    opened = [each for each in unequal if each.results]
    if opened and not as_json:
        print_line(f"`weir compare {opened[-1].a} {opened[-1].b}` shows in which rows and columns.")
    raise typer.Exit(min(map(_exit_code, unequal), default=0))  # that some differ counts more than what is not known


def _results(outcome: str) -> Any:
    return lambda each: ", ".join(of.a for of in each.results if of.outcome.value == outcome) or None


def _not_known(found: Comparison) -> str | None:
    return _results("not compared")(found) if found.results else "no result of the same name"


_EPOCHS = (
    *(key("A", "a"), key("B", "b"), number("equal", lambda each: sum(of.by_digest for of in each.results))),
    *(value("differ", _results("differ")), value("not known", _not_known)),
)


def _exit_code(found: Comparison) -> int:
    return {"differ": EXIT_DIFFER, "not compared": EXIT_NOT_COMPARED}.get(found.outcome.value, 0)


def _print(found: Comparison) -> None:
    print_line(f"A is {found.a}, B is {found.b}")
    print_rows(_RESULTS, found.results)
    for side, names in (("A", found.only_in_a), ("B", found.only_in_b)):
        if names:
            print_line(f"only {side} has {', '.join(names)}")
    for each in found.results:
        print_result(each)


def _named(result: ResultComparison) -> str:
    versions = [f"{name} v{version}" if version else name for name, version in _sides(result)]
    return versions[0] if versions[0] == versions[1] else " and ".join(versions)


def _sides(result: ResultComparison) -> tuple[tuple[str, int | None], tuple[str, int | None]]:
    return (result.a, result.version_a), (result.b, result.version_b)


def _how(result: ResultComparison) -> str:
    return f"{result.outcome.value}, by digest" if result.by_digest else result.outcome.value


def _of_rows(name: str) -> Any:
    return lambda result: None if result.rows is None else getattr(result.rows, name)


_RESULTS = (
    *(key("result", _named), value("is", _how), number("rows A", "rows_a"), number("rows B", "rows_b")),
    *(number("only in A", _of_rows("only_in_a")), number("only in B", _of_rows("only_in_b"))),
    number("changed", _of_rows("changed")),
)


def print_result(result: ResultComparison) -> None:
    """Print in what two results differ, and how they were compared; nothing where their digests are equal."""
    lines = [*_lines(result)]
    if lines:
        print_line(f"{_named(result)}:")
    for line in lines:
        print_line(f"  {line}")
    if result.rows is not None and result.rows.first:
        _print_rows(result.rows)


def _lines(result: ResultComparison) -> Iterator[str]:
    if result.rule:
        yield f"compared as its digest is made: {result.rule}"
    if result.problem:
        yield f"the rows were not compared: {result.problem}"
    if result.columns is not None:
        yield from _of_columns(result.columns)
    if result.rows is not None:
        yield from _of_key(result.rows)
        yield from _of_counts(result.rows)


def _of_columns(columns: ColumnDifference) -> Iterator[str]:
    for side, only in (("A", columns.only_in_a), ("B", columns.only_in_b)):
        if only:
            yield f"columns only in {side}: {', '.join(f'{name} {kind}' for name, kind in only.items())}"
    for each in columns.types:
        yield f"column {each.column} is {each.a} in A and {each.b} in B: its values were not compared"
    for one, other in columns.spelling.items():
        yield f"column {one} of A is spelled {other} in B"


def _of_key(rows: RowDifference) -> Iterator[str]:
    for each in rows.repeated:
        repeated = f"{each.a:,} of its values are repeated in A, {each.b:,} in B"
        said = f"the key ({', '.join(each.key)}) is not unique: {repeated}"
        yield f"{said}. Rows with these are never changed" if each.key == rows.key else said
    yield "compared without a key" if rows.key is None else f"compared by the key ({', '.join(rows.key)})"


def _of_counts(rows: RowDifference) -> Iterator[str]:
    if rows.count:
        yield f"{rows.count:,} of {rows.total:,} rows differ, {rows.share:.2%}"
    if rows.columns:
        yield f"changed: {', '.join(f'{name} in {count:,}' for name, count in rows.columns.items())}"


def _print_rows(rows: RowDifference) -> None:
    names = rows.key or ()
    columns = [*map(key, names), value("in"), text("values")]
    print_cells(columns, [(*_of_keys(each, names), _where(each), _values(each, names)) for each in rows.first])
    if rows.count > sum(each.rows_a + each.rows_b - bool(each.columns) for each in rows.first):
        print_line("These are the first; --limit shows more.")


def _of_keys(row: DifferingRow, names: Sequence[str]) -> list[str]:
    values = row.a or row.b or {}
    return [shown(values[name]) for name in names]


def _where(row: DifferingRow) -> str:
    if row.columns:
        return "both"
    return ", ".join(f"{side} ({count:,} times)" if count > 1 else side for side, count in _more(row))


def _more(row: DifferingRow) -> Iterator[tuple[str, int]]:
    yield from ((side, count) for side, count in (("A", row.rows_a), ("B", row.rows_b)) if count)


def _values(row: DifferingRow, names: Sequence[str]) -> str:
    """Say what a changed row was in A and is in B, or all values of a row that is only in one of them."""
    if row.a is not None and row.b is not None and row.columns:
        return ", ".join(f"{name}: {shown(row.a[name])} -> {shown(row.b[name])}" for name in row.columns)
    sides = [each for each in (row.a, row.b) if each is not None]
    said = (", ".join(f"{name}: {shown(each)}" for name, each in side.items() if name not in names) for side in sides)
    return " -> ".join(said)
