"""What a restore has done, or would do: what `weir restore` prints and the page about the state of a DAG shows."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

from weir.coordination.services import Services
from weir.snapshots.restore import RestoreRequest, restore
from weir.snapshots.restore_report import Restored


def dry_run_of(services: Services, dataflow: str, number: int) -> dict[str, Any]:
    """Return the fields of the document of a dry run: the restore of a checkpoint or savepoint by its number.

    Raises as `weir.snapshots.restore.restore`.
    """
    done = restore(services, RestoreRequest(dataflow, str(number), is_dry=True))
    return restore_fields(done, looked_at=services.now())


def restore_fields(done: Restored, *, looked_at: datetime | None) -> dict[str, Any]:
    """Return the fields of the document of a restore; `looked_at` is when the dry run looked into the store."""
    return {
        "is_dry": looked_at is not None,
        "looked_at": looked_at,
        **{each.name: getattr(done, each.name) for each in fields(done)},
    }
