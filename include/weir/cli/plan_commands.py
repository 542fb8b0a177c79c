"""`weir plan`: what would run again. Invariant: it changes nothing, and what decides for real answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from weir.dataflow.failover import Consumers, FailoverStrategy
from weir.errors import Misconfigured
from weir.recovery.what_if import Failure, read_topology, what_if


def plan(
    topology: Annotated[Path, typer.Option(help="A job graph, as JSON; - for standard input.", allow_dash=True)],
    fail: Annotated[str | None, typer.Option(help="The task that fails, like join#1.")] = None,
    lost: Annotated[str | None, typer.Option(help="The partition that it does not find, like a->b:0#2.")] = None,
    consumers: Annotated[Consumers, typer.Option(help="What becomes of the consumers.")] = Consumers.IF_CHANGED,
    strategy: Annotated[FailoverStrategy, typer.Option(help="Which tasks restart.")] = FailoverStrategy.REGION,
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,  # noqa: FBT002  Typer's
) -> None:
    """Tell what a failure would restart in a job graph: by --fail, or for the failures that the file names."""
    asked = read_topology(_text(topology))
    if lost and not fail:
        raise Misconfigured("say which task does not find the partition: --fail TASK --lost PARTITION")
    failures = (Failure(fail, lost),) if fail else asked.failures
    if not failures:
        raise Misconfigured(f"{topology} names no `failures`: say which task fails, --fail TASK")
    answer = what_if(asked, failures, consumers, strategy)
    if as_json:
        print(json.dumps(answer))
        return
    for restart in answer["restarts"]:
        _tell(restart)


def _text(path: Path) -> str:
    if str(path) == "-":
        return sys.stdin.read()
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"the topology {path} cannot be read: {error}") from error


def _tell(restart: dict[str, Any]) -> None:
    lost = f", which does not find {restart['lost']}" if restart["lost"] else ""
    lines = [
        f"{restart['task']} fails{lost}",
        f"  will re-run: {_regions(restart['regions'])}",
        f"  will re-run if what they read changes: {_regions(restart['if_changed']['regions'])}",
        f"  spared: {restart['spared']} task(s)",
    ]
    if restart["by_hand"]["regions"]:
        lines.insert(2, f"  to be cleared by hand first: {_regions(restart['by_hand']['regions'])}")
    Console().print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _regions(regions: list[list[str]]) -> str:
    return ", ".join("+".join(members) for members in regions) or "none"
