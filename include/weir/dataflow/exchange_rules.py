"""What makes one exchange unfit to run. Invariant: every problem names its input and says what to write instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weir.dataflow.exchange import Exchange, ExchangeKind
from weir.dataflow.stage import Stage


def declared_problems(argument: str, exchange: Exchange) -> Iterator[str]:
    """Say what is wrong with an exchange whatever it joins; the caller names the stage."""
    yield from _divided_problems(argument, exchange)
    yield from _schema_problems(argument, exchange)
    if not exchange.durable and exchange.kind is not ExchangeKind.CACHED:
        yield f"input {argument!r}: only a cached exchange can have durable=False: write cached(x, durable=False)"
    keys = exchange.keys
    if any(not isinstance(key, str) or not key for key in keys):
        yield f"input {argument!r}: keys must be names of columns, not {list(keys)!r}"
    elif len(set(keys)) < len(keys):
        yield f"input {argument!r}: a key is named twice in {list(keys)!r}"


def _divided_problems(argument: str, exchange: Exchange) -> Iterator[str]:
    kind = exchange.kind.value
    if exchange.joins_plan and (exchange.keys or exchange.broadcast or exchange.pointwise):
        yield (
            f"input {argument!r}: a {kind} exchange has neither keys nor broadcast nor pointwise, since it joins its "
            "ends index to index: write blocking(...) to divide the rows otherwise"
        )
        return
    if exchange.keys and exchange.broadcast:
        yield f"input {argument!r} has both by= and broadcast=True: keep by= to divide the rows, broadcast to copy them"
    if not exchange.pointwise:
        return
    if exchange.is_previous:
        yield (
            f"input {argument!r}: a previous exchange is not pointwise, since the epoch before may have had another "
            "parallelism: write previous(x, by=[columns], schema=...)"
        )
    elif exchange.keys or exchange.broadcast:
        other = "by=" if exchange.keys else "broadcast=True"
        yield (
            f"input {argument!r} has both pointwise=True and {other}: keep pointwise if subtask i needs only what "
            f"subtask i wrote, {other} if it needs rows of others"
        )


def _schema_problems(argument: str, exchange: Exchange) -> Iterator[str]:
    schema = exchange.schema
    if not exchange.is_previous:
        if schema:
            yield f"input {argument!r}: only a previous exchange has schema=: remove it, or write previous(...)"
    elif not isinstance(schema, str) or not schema.strip():
        yield (
            f"input {argument!r} needs schema=, since the first epoch has none before it: write "
            f'previous("{exchange.stage}", schema="id BIGINT, seen TIMESTAMP") with the columns that it reads'
        )


def meeting_problems(stage: Stage, by_name: Mapping[str, Stage]) -> Iterator[str]:
    """Say where a stage's exchanges do not fit what they read, or each other."""
    for argument, exchange in stage.exchanges.items():
        producer = by_name[exchange.stage]
        unequal = producer.parallelism != stage.parallelism
        if exchange.joins_plan and unequal:
            yield (
                f"stage {stage.name!r} (parallelism {stage.parallelism}) reads {producer.name!r} (parallelism "
                f"{producer.parallelism}) over a {exchange.kind.value} exchange, which joins them index to index: give "
                f'both the same parallelism, or write blocking("{producer.name}", by=...)'
            )
        elif exchange.pointwise and unequal:
            yield (
                f"stage {stage.name!r} (parallelism {stage.parallelism}) reads {producer.name!r} (parallelism "
                f"{producer.parallelism}) over a pointwise exchange, where subtask i reads partition i: give both the "
                f'same parallelism, or write blocking("{producer.name}", by=[columns])'
            )
        yield from _ignored_keys(stage, producer, exchange)
        if exchange.kind is ExchangeKind.CACHED and exchange.durable and producer.states:
            yield (
                f"stage {stage.name!r} reads {producer.name!r} over a cached exchange, but a try that resumes behind "
                f"{producer.name!r} would not know what it changes in its state: write pipelined({producer.name!r}), "
                f"and cache what {producer.name!r} reads"
            )
        divides = exchange.keys or exchange.broadcast or exchange.pointwise or exchange.joins_plan
        if stage.parallelism > 1 and not divides:
            yield _undivided(stage, argument, exchange)
    keyed = {argument: exchange.keys for argument, exchange in stage.exchanges.items() if exchange.keys}
    if len({len(keys) for keys in keyed.values()}) > 1:
        shown = ", ".join(f"{argument} by {list(keys)}" for argument, keys in keyed.items())
        yield (
            f"stage {stage.name!r}: its keyed inputs have different numbers of keys ({shown}), so that equal keys "
            "would meet in different subtasks: give each as many, in the same order, or broadcast the smaller input"
        )


def _ignored_keys(stage: Stage, producer: Stage, exchange: Exchange) -> Iterator[str]:
    for key in exchange.keys:
        if key in producer.digest.ignore:
            yield (
                f"stage {stage.name!r} reads {producer.name!r} by {key!r}, which the digest of {producer.name!r} "
                f"ignores, so that a row could move to another subtask unnoticed: remove {key!r} from "
                "digest(ignore=...), or read by another column"
            )


def _undivided(stage: Stage, argument: str, exchange: Exchange) -> str:
    word, more = ("previous", ", schema=...") if exchange.is_previous else ("blocking", "")
    return (
        f"stage {stage.name!r} has parallelism {stage.parallelism}, but its input {argument!r} does not say which rows "
        f'each subtask reads: write {word}("{exchange.stage}", by=[columns]{more}), or '
        f'{word}("{exchange.stage}", broadcast=True{more}) to give every subtask all rows'
    )
