"""Arguments and options that several commands have: each means the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only report what would be done.")]
DataflowName = Annotated[str, typer.Argument(help="The dataflow.", show_default=False)]
OnlyDataflow = Annotated[str | None, typer.Argument(help="Only this dataflow.", show_default=False)]
RunName = Annotated[str, typer.Argument(help="DATAFLOW@EPOCH, or Airflow's run id.", show_default=False)]
OnlyRunOrDataflow = Annotated[
    str | None, typer.Argument(metavar="[RUN|DATAFLOW]", help="Only this run, or dataflow.", show_default=False)
]
