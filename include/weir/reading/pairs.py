"""What is compared: the results of two runs by name, or published versions of two sinks, and the rows to read of them.

Invariants: results with equal digests are equal, whether their rows are stored or not; none of them is opened. What is
opened is leased until the end. A result that cannot be read says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.dataflow.digest_rule import DigestRule
from weir.dataflow.stage import StageKind
from weir.dataflow.state import StateKind
from weir.errors import Misconfigured
from weir.execution.run_state import Obstacle, RunState
from weir.formats.manifest import ContentDigest, parsed_digest
from weir.formats.programs import ComparisonToMake, RowsToCompare
from weir.ledger.database.tables import DataflowRow, RunRow
from weir.ledger.results import results_in
from weir.ledger.runs import Run, named_run, run_by_id, run_if_known, run_key, runs_of
from weir.ledger.snapshot import run_state
from weir.reading.availability import Unreadable, published_version
from weir.reading.choosing import require_written, written_stages
from weir.reading.comparison_rules import (
    ColumnDifference,
    Key,
    are_equal,
    column_difference,
    columns_in_common,
    declared_keys,
    named_key,
    rows_of_digests,
    rule_of_both,
    usable_keys,
)
from weir.reading.opened import OpenedResults
from weir.reading.opened_state import OpenedState
from weir.reading.opening import WantedStage, open_stage
from weir.reading.state_opening import StateReader, WantedState, open_wanted_state
from weir.state.spark_schema import column_types

BY = "weir compare"

_DATASET = re.compile(
    r"(?P<dataflow>[a-z][a-z0-9_]*)\.(?P<sink>[a-z][a-z0-9_]*)@(?P<epoch>[^#]+)(?:#(?P<version>\d+))?"
)

_ONLY_GONE = {Obstacle.DAMAGED, Obstacle.LOST, Obstacle.RELEASED}
"""What keeps rows from being read, though what is known of them is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedComparison:
    """What a person compares, each a run or DATAFLOW.SINK@EPOCH#VERSION; by which key, and how many rows to show.

    `stage` is the only result of two runs to compare (None: all).
    """

    a: str
    b: str
    stage: str | None = None
    key: Key = ()
    shown: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedResult:
    """A result of a run; `version` is the published one, for a sink. `rows` are known where the ledger has digests."""

    run: str
    stage: str
    version: int | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two results: what the ledger says of them, and what is to be compared of their rows.

    `is_equal` is what the digests say (None: nothing). Unless that is true, they were opened, and `columns` is how
    their columns differ; or there is a `problem`, which says why not. `asked` is None also where they have no column in
    common.
    """

    a: ComparedResult
    b: ComparedResult
    rule: DigestRule
    is_equal: bool | None = None
    columns: ColumnDifference | None = None
    asked: ComparisonToMake | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The results of two runs that have the same name, and the names of those that only one of them has."""

    run_a: str
    run_b: str
    pairs: tuple[Pair, ...]
    only_in_a: tuple[str, ...] = ()
    only_in_b: tuple[str, ...] = ()


@contextmanager
def opened_pairs(services: Services, wanted: WantedComparison) -> Iterator[Pairs]:
    """Pair the results, and keep those whose rows have to be compared open.

    Raises Misconfigured for what is not known, for runs that have no result in common, and for a key that they lack.
    If only one pair is wanted, it raises what keeps that from being read: Misconfigured, Unreadable. Raises Retryable.
    """
    with services.ledger.transaction() as session:
        a, b = (_side(session, name) for name in (wanted.a, wanted.b))
        known = _paired(session, a, b, *_names(a, b, wanted))
    with ExitStack() as closing:
        opener = _Opener(services, wanted, closing, is_only=len(known.pairs) == 1)
        opened = tuple(each if each.is_equal else opener.opened(each, a, b) for each in known.pairs)
        yield replace(known, pairs=opened)


def pairs_of_epochs(services: Services, a: str, b: str, newest: int = 0) -> list[Pairs] | None:
    """Pair the results of each epoch that both dataflows have closed, oldest first, by what the ledger knows of them.

    Of that many of the newest epochs, or of all (0); one may have no result in common. None unless both names are those
    of dataflows.
    """
    with services.ledger.transaction() as session:
        if any(session.get(DataflowRow, each) is None for each in (a, b)):
            return None
        done = [{row.epoch: row for row in runs_of(session, of) if row.pinned and row.closed_at} for of in (a, b)]
        epochs = sorted(done[0].keys() & done[1].keys())[-newest:]
        sides = [[_of_run(session, rows[epoch]) for rows in done] for epoch in epochs]
        return [_paired(session, one, other, *_in_common(one, other)) for one, other in sides]


# What is named


@dataclass(frozen=True)
class _Side:
    """A run, or a version of one of its sinks."""

    row: RunRow
    run: Run
    state: RunState
    sink: str | None = None
    version: int | None = None

    @cached_property
    def written(self) -> list[str]:
        return written_stages(self.run.topology)


def _of_run(session: Session, row: RunRow) -> _Side:
    run = run_by_id(session, row.id)
    return _Side(row, run, run_state(session, run))


def _side(session: Session, name: str) -> _Side:
    """Find what a person names. Raises Misconfigured for what is not known, and for a run that has not begun."""
    found = None if run_if_known(session, name) is not None else _DATASET.fullmatch(name)
    row = named_run(session, name if found is None else run_key(found["dataflow"], found["epoch"]))
    if row.pinned is None:
        raise Misconfigured.of("reading.run_not_begun", row_id=row.id, run_id=row.run_id)
    side = _of_run(session, row)
    if found is None:
        return side
    run = side.run
    require_written(row, run.topology, found["sink"])
    if found["sink"] not in run.topology.sinks:
        raise Misconfigured.of("reading.stage_is_no_sink", stage=found["sink"], run=row.id, sinks=run.topology.sinks)
    return replace(side, sink=found["sink"], version=None if found["version"] is None else int(found["version"]))


_Names = tuple[list[tuple[str, str]], tuple[str, ...], tuple[str, ...]]
"""The names of each pair, and of what only one of both has."""


def _names(a: _Side, b: _Side, wanted: WantedComparison) -> _Names:
    """Return the names of what a person wants. Raises Misconfigured if there is no pair."""
    if a.sink is not None and b.sink is not None and wanted.stage is not None:
        raise Misconfigured.of("reading.stage_beside_sinks", a=wanted.a, b=wanted.b)
    name_a, name_b = (one.sink or wanted.stage or other.sink for one, other in ((a, b), (b, a)))
    if name_a is not None and name_b is not None:
        pair = (name_a, name_b)
        for side, name in zip((a, b), pair, strict=True):
            require_written(side.row, side.run.topology, name)
        return [pair], (), ()
    found = _in_common(a, b)
    if not found[0]:
        raise Misconfigured.of("reading.nothing_in_common", a=a.row.id, b=b.row.id, in_a=a.written, in_b=b.written)
    return found


def _in_common(a: _Side, b: _Side) -> _Names:
    both = [name for name in a.written if name in b.written]
    only_in_a, only_in_b = (tuple(name for name in side.written if name not in both) for side in (a, b))
    return [(name, name) for name in both], only_in_a, only_in_b


# What the ledger knows


def _paired(
    session: Session,
    a: _Side,
    b: _Side,
    names: Sequence[tuple[str, str]],
    only_in_a: tuple[str, ...],
    only_in_b: tuple[str, ...],
) -> Pairs:
    return Pairs(
        run_a=a.row.id,
        run_b=b.row.id,
        pairs=tuple(_recorded(session, a, b, one, other) for one, other in names),
        only_in_a=only_in_a,
        only_in_b=only_in_b,
    )


def _recorded(session: Session, a: _Side, b: _Side, name_a: str, name_b: str) -> Pair:
    rules = [side.run.dataflow.stage(name).digest for side, name in ((a, name_a), (b, name_b))]
    found = [_digests(session, side, name) for side, name in ((a, name_a), (b, name_b))]
    results = [
        ComparedResult(
            run=side.row.id,
            stage=name,
            version=version,
            rows=None if digests is None else rows_of_digests(digests),
        )
        for side, name, (version, digests) in zip((a, b), (name_a, name_b), found, strict=True)
    ]
    one, other = (digests for _, digests in found)
    is_equal = None if one is None or other is None else are_equal(one, other)
    if is_equal is False and any(name in side.run.topology.states for side, name in ((a, name_a), (b, name_b))):
        is_equal = None  # the digest of a state may also be of when its rows were last updated
    return Pair(a=results[0], b=results[1], rule=rule_of_both(*rules), is_equal=is_equal)


def _digests(session: Session, side: _Side, name: str) -> tuple[int | None, list[ContentDigest] | None]:
    """Return the published version, of a sink, and the digests of all partitions, also of bytes that are gone.

    There are no digests of results that are not valid, and of what was never published.
    """
    if name in side.run.topology.sinks:
        return _published_digests(session, side, name)
    for layout in side.run.topology.layouts_of(name):
        partitions = side.run.topology.partitions_of(name, layout.id)
        if all(_ONLY_GONE.issuperset(side.state.obstacles(each)) for each in partitions):
            return None, [parsed_digest(side.state.results[each].digest) for each in partitions]
    return None, None


def _published_digests(session: Session, side: _Side, name: str) -> tuple[int | None, list[ContentDigest] | None]:
    try:
        found = published_version(session, side.row.id, name, side.version)
    except Misconfigured:
        return side.version, None  # it is told where it is opened
    rows = {row.folder: row for row in results_in(session, side.row.id, found.folders)}
    if rows.keys() != {*found.folders}:
        return found.version, None
    return found.version, [parsed_digest(rows[folder].digest) for folder in found.folders]


# What is read


@dataclass(frozen=True)
class _Opener:
    services: Services
    wanted: WantedComparison
    closing: ExitStack
    is_only: bool

    def opened(self, pair: Pair, a: _Side, b: _Side) -> Pair:
        """Open both results, or say why that is not possible."""
        try:
            one, other = (self._open(side, each) for side, each in ((a, pair.a), (b, pair.b)))
        except (Unreadable, Misconfigured) as error:
            if self.is_only and pair.is_equal is None:
                raise
            return replace(pair, problem=str(error))
        keys = [*declared_keys(a.run.topology, pair.a.stage), *declared_keys(b.run.topology, pair.b.stage)]
        return to_compare(pair, rows_of(one), rows_of(other), keys, self.wanted)

    def _open(self, side: _Side, result: ComparedResult) -> OpenedResults | OpenedState:
        flow, name = side.run.dataflow, result.stage
        if flow.stage(name).kind is StageKind.STATE and flow.state(name).kind is StateKind.KEYED:
            wanted = WantedState(dataflow=flow.name, name=name, run=side.row.id)
            return self.closing.enter_context(open_wanted_state(StateReader(self.services), wanted, ExitStack()))
        stage = WantedStage(flow.name, side.row.id, name, version=result.version, by=BY)
        return self.closing.enter_context(open_stage(self.services, stage, ExitStack()))


def rows_of(opened: OpenedResults | OpenedState) -> RowsToCompare:
    """Return what is to be read of an open result; which columns, is not yet known."""
    if isinstance(opened, OpenedState):
        return RowsToCompare(files=(), spark_schema=opened.spark_schema, columns=(), state=opened.to_read())
    return RowsToCompare(files=opened.files, spark_schema=opened.spark_schema, columns=())


def to_compare(
    pair: Pair, a: RowsToCompare, b: RowsToCompare, declared: Sequence[Key], wanted: WantedComparison
) -> Pair:
    """Return the pair with what is to be compared of its rows. Raises Misconfigured for a key that is not in common."""
    types_a, types_b = column_types(a.spark_schema), column_types(b.spark_schema)
    columns = columns_in_common(types_a, types_b, pair.rule)
    names = list(columns)
    keys = named_key(pair.a.stage, wanted.key, names) if wanted.key else usable_keys(declared, names)
    asked = ComparisonToMake(
        a=replace(a, columns=tuple(columns)),
        b=replace(b, columns=tuple(columns.values())),
        keys=keys,
        is_key_named=bool(wanted.key),
        rule=pair.rule,
        shown=wanted.shown,
    )
    return replace(pair, columns=column_difference(types_a, types_b), asked=asked if columns else None)
