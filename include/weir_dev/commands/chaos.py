"""`./weir chaos`: random faults in a running dataflow. What it does is in the tests of a checkout (`tests/chaos`)."""

from __future__ import annotations

import secrets
import sys
from typing import Annotated

import typer

from weir_dev.commands.stack import EXIT_WRONG
from weir_dev.project import checkout


def chaos(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long faults are injected.")] = 3.0,
    seed: Annotated[int | None, typer.Option(help="Gives the same sequence of faults again.")] = None,
    spark_workers: Annotated[int, typer.Option(min=0, help="Compute on a standalone cluster of so many.")] = 0,
    postgres: Annotated[bool, typer.Option("--postgres", help="Airflow and ledger on PostgreSQL.")] = False,
    ha: Annotated[bool, typer.Option("--ha", help="Two of each server, of which one is lost each minute.")] = False,
    faults: Annotated[str, typer.Option(help="Only these kinds, separated by commas.")] = "",
) -> None:
    """Inject faults into a running dataflow at random times, and compare what it publishes with a run without them."""
    sys.path.append(str(checkout()))
    from tests.chaos.command import Shape, run  # noqa: PLC0415  it is found now, where there is a checkout

    shape = Shape(minutes, secrets.randbelow(1_000_000) if seed is None else seed, spark_workers, faults)
    raise typer.Exit(0 if run(shape, postgres=postgres, ha=ha) else EXIT_WRONG)
