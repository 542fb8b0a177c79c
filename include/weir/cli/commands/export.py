"""`weir export`: what is published, as Parquet files in a folder.

Invariant: it reads the store only, and nothing there but pointers and the files that they name. So it also exports from
a store that another build has made, which every other command refuses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weir.cli.tables import print_line
from weir.environment import settings
from weir.units import format_size


def export(
    folder: Annotated[Path, typer.Argument(help="An empty folder, which is made.", show_default=False)],
    dataflow: Annotated[str | None, typer.Option(help="Only this dataflow.", show_default=False)] = None,
) -> None:
    """Copy the newest published version of each epoch into FOLDER/DATAFLOW/SINK/EPOCH, as Parquet files.

    The store may be of another build of Weir. Targets have what was published into them anyway.
    """
    from weir.store.export import export as exported  # noqa: PLC0415  fsspec is slow to import
    from weir.store.store import Store  # noqa: PLC0415

    own = settings()
    found = list(exported(Store.open(own.store, own.store_options), folder, dataflow))
    for each in found:
        print_line(f"{each.folder}: {format_size(each.bytes)}")
    if not found:
        print_line("Nothing is published in this store.")
