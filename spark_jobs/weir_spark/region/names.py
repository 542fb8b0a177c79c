"""The names and settings that a stage's function makes in the session.

Invariant: no other stage of its region sees them.

Spark Connect looks up views, functions, variables and the current schema whenever it plans, and a region is planned
when it is written: two stages that make a view of one name would both read the second one's rows. So the plan of a
function is fixed as soon as it has returned, under a name that nobody else has, and what the function has made is
dropped. A session of Spark's classic kind plans at each call.

Within a function, too, a DataFrame that reads a name would read what the name means later. Where a function gives a
name another meaning, what it has read by it before is not used afterwards, or the function is refused.

No setting may be changed. Analysis fixes none of those that were tried: readers of files and functions of pandas read
even the time zone again, when rows are computed, and a restored setting would give them another one.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from weir.code.sql_relation_rules import UnclosedError, tokens, unknown_relations
from weir.errors import Misconfigured
from weir_spark.results.digest import quoted
from weir_spark.results.writer import RESERVED_PREFIX
from weir_spark.session import FORCED, is_remote

_HARMLESS: Final = frozenset({"", "select", "with", "from", "values", "table", "show", "describe", "desc", "explain"})
"""The words that SQL begins with which makes no name; empty: a parenthesis."""

_COMMENTS: Final = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_MADE: Final = re.compile(
    r"\b(?P<kind>view|function|table|variable)\s+(?:if\s+(?:not\s+)?exists\s+)?(?P<name>`[^`]+`|\w+)", re.IGNORECASE
)
_DECLARED: Final = re.compile(
    r"\bdeclare\s+(?:or\s+replace\s+)?(?:var(?:iable)?\s+)?(?P<names>(?:`[^`]+`|[\w.]+)(?:\s*,\s*(?:`[^`]+`|[\w.]+))*)",
    re.IGNORECASE,
)
_GLOBAL: Final = re.compile(r"\bglobal\s+temp(?:orary)?\s+view\b", re.IGNORECASE)
_SET: Final = re.compile(r"^\W*set\s+var(?:iable)?\s+(?:\(\s*)?(?:\w+\.)*(`[^`]+`|\w+)", re.IGNORECASE)
_DROP: Final = re.compile(r"^\W*drop\b", re.IGNORECASE)
_USE: Final = re.compile(
    r"^\W*use\b(?:\s+(?:schema|database|namespace|catalog)\b)?(?P<place>.*)", re.IGNORECASE | re.DOTALL
)

_LOOKED_UP: Final = {"TABLE_OR_VIEW_NOT_FOUND": "relationName", "UNRESOLVED_ROUTINE": "routineName"}
"""Spark's conditions about a name that it does not find, and the parameter that has the name."""

_MOVES: Final = frozenset({"set_current_database", "set_current_catalog"})

_LOOKS_UP: Final = frozenset(
    {
        *("SQL.query", "Read.NamedTable.unparsed_identifier", "UnresolvedTableValuedFunction.function_name"),
        *("Expression.ExpressionString.expression", "Expression.UnresolvedFunction.function_name"),
        "CallFunction.function_name",
    }
)
"""The fields of Spark Connect's messages with names that are looked up when a plan runs."""

_OF_A_START: Final = (
    *("spark.app.", "spark.master", "spark.remote", "spark.submit.", "spark.driver.", "spark.executor."),
    *("spark.cores.", "spark.jars", "spark.memory.", "spark.dynamicAllocation.", "spark.serializer", "spark.ui."),
    "spark.eventLog.",
)
"""How settings begin that change nothing in a session, though `SparkSession.builder...getOrCreate()` sets them."""


class NotItsOwn(Misconfigured):
    """A function has changed what its stage shares with others: a setting, a view of all sessions."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a session has at one moment: settings, temporary views, functions, and its current catalog and schema."""

    settings: Mapping[str, str]
    views: frozenset[tuple[str, str]]
    functions: frozenset[str]
    place: tuple[str, str]


def _snapshot(session: SparkSession, *, has_global: bool = True) -> Snapshot:
    place = (session.catalog.currentCatalog(), session.catalog.currentDatabase())
    if is_remote(session):
        functions = frozenset(row[0] for row in session.sql("SHOW USER FUNCTIONS IN spark_catalog.default").collect())
        return Snapshot(session.conf.getAll, _listed_views(session), functions, place)
    # Without SQL, for which Spark would make its warehouse in the working directory, or ask Hive.
    catalog = session._jsparkSession.sessionState().catalog()  # noqa: SLF001  # there is no public way
    local, made = catalog.listLocalTempViews("*"), catalog.listTemporaryFunctions()
    views = frozenset(("", local.apply(at).table()) for at in range(local.size()))
    if has_global:
        views |= _listed_views(session)
    functions = frozenset(made.apply(at).funcName() for at in range(made.size()))
    return Snapshot(session.conf.getAll, views, functions, place)


def _listed_views(session: SparkSession) -> frozenset[tuple[str, str]]:
    # A schema that no catalog keeps: temporary views are listed beside those of any schema.
    views = session.sql("SHOW VIEWS IN spark_catalog.global_temp").collect()
    return frozenset((row[0], row[1]) for row in views if not row[1].startswith(RESERVED_PREFIX))


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What a name stands for, for plans that are made from `since` on."""

    since: int
    made_by: bytes
    """The request that made it."""
    is_variable: bool = False

    def is_in(self, text: str, name: str) -> bool:
        """Report whether a query, an expression or a name looks up the name that has this meaning."""
        if self.is_variable and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text.lower()):
            return True
        return _mentions(text, name)


@dataclass(slots=True)
class _Made:
    """What one function has made so far, as its requests show it; on a classic session there are none."""

    owner: str
    before: Snapshot | None
    """The session before the first statement of which only Spark knows what it makes."""
    views: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    """Also those of which a text tells, in lower case."""
    meanings: dict[str, _Meaning] = field(default_factory=dict)
    """By name in lower case."""
    is_moved: bool = False
    refused: NotItsOwn | None = None

    def view(self, name: str, made_by: bytes, *, is_global: bool) -> None:
        if is_global:
            self.refuse(_of_all_sessions(self.owner))
        if not name.startswith(RESERVED_PREFIX):
            self.views.add(name)
            self.named.add(name.lower())
            self._means(name, made_by)

    def function(self, name: str, made_by: bytes) -> None:
        self.functions.add(name)
        self.named.add(name.lower())
        self._means(name, made_by)

    def moves(self, place: str) -> None:
        """Take that it changes the current schema or catalog, unless it goes where it is."""
        here = () if self.before is None else (*self.before.place, ".".join(self.before.place))
        self.is_moved = self.is_moved or place.strip(" ;\n\t").replace("`", "").lower() not in here

    def statement(self, text: str) -> None:
        if _GLOBAL.search(text):
            self.refuse(_of_all_sessions(self.owner))
        if use := _USE.match(text):
            self.moves(use["place"])
        made = [each["name"] for each in _MADE.finditer(text)]
        declared = [each.strip().rpartition(".")[2] for names in _DECLARED.findall(text) for each in names.split(",")]
        self.named.update(each.strip("`").lower() for each in made)
        self.variables.update(each.strip("`") for each in declared)
        if not _DROP.match(text):
            for name in made[:1]:  # others are of what it is made from
                self._means(name, text.encode())
        for name in (*declared, *_SET.findall(text)):
            self._means(name, text.encode(), is_variable=True)

    def _means(self, name: str, made_by: bytes, *, is_variable: bool = False) -> None:
        """Take that a name has a meaning from here on, which is another one unless it is made in the same way."""
        name = name.strip("`").lower()
        before = self.meanings.get(name)
        if before is None or before.made_by != made_by or is_variable:
            self.meanings[name] = _Meaning(_next_plan(), made_by, is_variable)

    def require_meant(self, plan: Any) -> None:
        """Refuse a plan with a part that has read a name before the name got the meaning that it has now."""
        for name in _read_before(plan, self.meanings):
            self.refuse(NotItsOwn.of("region.name_made_again", owner=self.owner, name=name))

    def refuse(self, error: NotItsOwn) -> None:
        """Raise the error, here and also after a function that catches it."""
        self.refused = error
        raise error


@dataclass(slots=True)
class OwnNames:
    """Keeps the functions of a region apart, in a session that no other region has."""

    session: SparkSession
    has_global: bool
    """False if no code of the pipeline has the word global: it makes no views of all sessions."""
    _dropped: dict[str, str] = field(default_factory=dict)
    """The names that functions had made, and the owner of each."""

    @contextmanager
    def of(self, owner: str) -> Iterator[None]:
        """Call a function inside, and fix its rows; what it has made is dropped at the end.

        Raises NotItsOwn for a changed setting and a global view, if it can in the middle of the function.
        """
        made = _Made(owner, None if is_remote(self.session) else self._snapshot())
        try:
            with _watched(self.session, made):
                yield
        except Exception as error:
            told = made.refused or self._explained(error, made)
            if told is None:
                raise
            raise told from error
        if made.refused is not None:
            raise made.refused
        self._drop(made)

    def _snapshot(self) -> Snapshot:
        return _snapshot(self.session, has_global=self.has_global)

    def _drop(self, made: _Made) -> None:
        if made.before is not None:
            self._compare(made, made.before, self._snapshot())
        for view in made.views:
            self.session.catalog.dropTempView(view)
        for kind, names in (("FUNCTION", made.functions), ("VARIABLE", made.variables)):
            for name in names:
                self.session.sql(f"DROP TEMPORARY {kind} IF EXISTS {quoted(name)}")
        if not is_remote(self.session):
            _drop_variables(self.session)
        self._dropped.update(
            (name.lower(), made.owner) for name in (*made.named, *made.views, *made.functions, *made.variables)
        )

    def _compare(self, made: _Made, before: Snapshot, after: Snapshot) -> None:
        """Take what a function has made besides what its requests show. Raises NotItsOwn."""
        self._require_same_settings(before.settings, after.settings, made.owner)
        views = after.views - before.views
        if any(space for space, _ in views) and not is_remote(self.session):
            raise _of_all_sessions(made.owner)
        made.views.update(name for space, name in views if not space)
        made.functions.update(after.functions - before.functions)
        self._return(before.place, after.place, made)

    def _require_same_settings(self, before: Mapping[str, str], after: Mapping[str, str], owner: str) -> None:
        for key in sorted(before.keys() | after.keys()):
            value = after.get(key)
            if before.get(key) == value or key.startswith(_OF_A_START):
                continue
            if key not in before:
                self.session.conf.unset(key)
                if _value_of(self.session, key) == value:
                    continue  # it was set to its default
            raise _setting_refused(owner, key, value)

    def _return(self, before: tuple[str, str], after: tuple[str, str], made: _Made) -> None:
        if before != after:
            self.session.catalog.setCurrentCatalog(before[0])
            self.session.catalog.setCurrentDatabase(before[1])
        elif made.is_moved:
            raise NotItsOwn.of("region.schema_changed_back", owner=made.owner, before=before)

    def _explained(self, error: Exception, made: _Made) -> NotItsOwn | None:
        """Return the error to raise in the place of one about a name that was there and is dropped."""
        if not isinstance(error, AnalysisException):
            return None
        parameter = _LOOKED_UP.get(error.getCondition() or "")
        found = str((error.getMessageParameters() or {}).get(parameter or "", ""))
        name = found.rsplit(".", maxsplit=1)[-1].strip("`").lower()
        if name and name in made.named:
            return NotItsOwn.of("region.name_dropped", owner=made.owner, found=found)
        if name in self._dropped and self._dropped[name] != made.owner:
            return NotItsOwn.of(
                "region.name_of_another_stage", owner=made.owner, found=found, dropped=self._dropped[name]
            )
        return None


def fixed(rows: DataFrame) -> DataFrame:
    """Return the rows by a plan that is analysed now, and never again. Raises AnalysisException."""
    session = rows.sparkSession
    if not is_remote(session):
        return rows
    view = f"{RESERVED_PREFIX}{uuid.uuid4().hex}"
    rows.createTempView(view)
    return session.table(view)


def _setting_refused(owner: str, key: str, value: str | None) -> NotItsOwn:
    what = f"sets {key} to {value!r}" if value is not None else f"unsets {key}"
    said = f"{owner}: its function {what}, which would hold for all stages of the region: "
    if key in FORCED:
        return NotItsOwn.of("region.setting_forced", said=said, forced=FORCED[key])
    return NotItsOwn.of("region.setting_unsafe", said=said, key=key, wanted=value or "...")


def _of_all_sessions(owner: str) -> NotItsOwn:
    return NotItsOwn.of("region.global_view", owner=owner)


def _drop_variables(session: SparkSession) -> None:
    session._jsparkSession.sessionState().catalogManager().tempVariableManager().clear()  # noqa: SLF001  # SQL lists none


@contextmanager
def _watched(session: SparkSession, made: _Made) -> Iterator[None]:
    """Let `made` see what a remote session sends."""
    if not is_remote(session):
        yield
        return
    client = session.client
    stub = client._stub  # noqa: SLF001  # what a server is asked can be seen nowhere else without asking it again
    client._stub = _Stub(stub, session, made)  # noqa: SLF001
    try:
        yield
    finally:
        client._stub = stub  # noqa: SLF001


class _Stub:
    """Sends requests on, and looks at those that make names or change settings."""

    def __init__(self, stub: Any, session: SparkSession, made: _Made) -> None:
        self._to, self._session, self._made = stub, session, made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._to, name)

    def ExecutePlan(self, request: Any, **more: Any) -> Any:  # noqa: N802  # as gRPC calls it
        plan = request.plan
        if self._made.meanings:
            self._made.require_meant(plan)
        if plan.WhichOneof("op_type") == "command":
            self._command(plan.command)
        elif plan.root.WhichOneof("rel_type") == "catalog" and plan.root.catalog.WhichOneof("cat_type") in _MOVES:
            self._keep_before()
            moved = getattr(plan.root.catalog, plan.root.catalog.WhichOneof("cat_type"))
            self._made.moves(next(str(value) for _, value in moved.ListFields()))
        return self._to.ExecutePlan(request, **more)

    def Config(self, request: Any, **more: Any) -> Any:  # noqa: N802  # as gRPC calls it
        operation = request.operation
        kind = operation.WhichOneof("op_type")
        pairs: list[tuple[str, str | None]] = []
        if kind == "set":
            pairs = [(each.key, each.value) for each in operation.set.pairs]
        elif kind == "unset":
            pairs = [(key, None) for key in operation.unset.keys]
        if pairs:
            self._require_no_change(pairs)
        return self._to.Config(request, **more)

    def _require_no_change(self, pairs: list[tuple[str, str | None]]) -> None:
        there = self._unwatched(lambda: self._session.conf.getAll)
        for key, value in pairs:
            is_default = key not in there and self._unwatched(partial(_value_of, self._session, key)) == value
            if there.get(key) != value and not is_default and not key.startswith(_OF_A_START):
                self._made.refuse(_setting_refused(self._made.owner, key, value))

    def _command(self, command: Any) -> None:
        kind = command.WhichOneof("command_type")
        if kind == "create_dataframe_view":
            view = command.create_dataframe_view
            self._made.view(view.name, view.SerializeToString(deterministic=True), is_global=view.is_global)
        elif kind in ("register_function", "register_table_function"):
            function = getattr(command, kind)
            self._made.function(function.function_name, function.SerializeToString(deterministic=True))
        elif kind == "sql_command":
            text = _COMMENTS.sub(" ", _text_of(command.sql_command))
            word = re.match(r"\s*(\w*)", text)
            if word is None or word[1].lower() not in _HARMLESS:
                self._keep_before()
                self._made.statement(text)

    def _keep_before(self) -> None:
        if self._made.before is None:
            self._made.before = self._unwatched(lambda: _snapshot(self._session))

    def _unwatched(self, ask: Callable[[], Any]) -> Any:
        client = self._session.client
        client._stub = self._to  # noqa: SLF001
        try:
            return ask()
        finally:
            client._stub = self  # noqa: SLF001


def _next_plan() -> int:
    """Return the number that the next plan of this client gets: each has a greater one than those before."""
    from pyspark.sql.connect.plan import LogicalPlan  # noqa: PLC0415  a session of its own may lack what it needs

    return int(LogicalPlan._nextPlanId)  # noqa: SLF001  nothing else tells when a plan was made


def _read_before(message: Any, meanings: Mapping[str, _Meaning], made: int | None = None) -> Iterator[str]:
    """Yield the names that parts of a plan look up and that have got their meaning after these were made."""
    if message.DESCRIPTOR.name == "Relation" and message.common.HasField("plan_id"):
        made = message.common.plan_id
    for description, value in message.ListFields():
        if description.type == description.TYPE_MESSAGE:
            parts = value.values() if hasattr(value, "values") else value if hasattr(value, "append") else [value]
            for part in parts:
                if hasattr(part, "ListFields"):
                    yield from _read_before(part, meanings, made)
        elif made is not None and description.full_name.removeprefix("spark.connect.") in _LOOKS_UP:
            later = (each for each in meanings.items() if made < each[1].since)
            yield from (name for name, meaning in later if meaning.is_in(value, name))


def _mentions(text: str, name: str) -> bool:
    """Report whether a query, an expression or a name looks a name up."""
    lower = text.lower()
    if name not in lower:
        return False
    if lower.rpartition(".")[2].strip("`") == name or re.search(rf"(?<![\w.]){re.escape(name)}`?\s*\(", lower):
        return True
    try:
        found = unknown_relations(list(tokens(text)), ())
    except UnclosedError:
        return True
    return any(each.name.rpartition(".")[2].lower() == name for each in found)


def _value_of(session: SparkSession, key: str) -> str | None:
    """Return what a setting is, or is by default; None for one that Spark does not know."""
    try:
        return str(session.conf.get(key))
    except PySparkException:
        return None


def _text_of(command: Any) -> str:
    """Return the text of a SQL command, wherever a version of the client puts it."""
    inputs = command.input
    kind = inputs.WhichOneof("rel_type")
    found = inputs.with_relations.root.sql.query if kind == "with_relations" else inputs.sql.query
    return str(found or command.sql)
