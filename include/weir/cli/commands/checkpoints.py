"""`weir checkpoints`: lists checkpoints and savepoints. Invariant: it changes nothing."""

from __future__ import annotations

from weir.cli.documents import Listing
from weir.cli.options import AsJson, OnlyDataflow
from weir.cli.tables import key, number, size, text, value
from weir.code.generation_rules import short
from weir.environment import opened_services
from weir.views.checkpoints import CheckpointView, checkpoint_views


def checkpoints(dataflow: OnlyDataflow = None, as_json: AsJson = False) -> None:
    """List checkpoints and savepoints: epoch, status, sizes, new and shared files, and which checkpoint subsumed each.

    The incremental size is that of files that no earlier checkpoint has; runs to merge is the number of sorted runs
    that a read merges; code is the versions that have made the state of the one of the epoch before.
    """
    with opened_services() as services:
        found = checkpoint_views(services, dataflow)
    _CHECKPOINTS.show(found, as_json=as_json)


def _code(checkpoint: CheckpointView) -> str:
    return ", ".join(dict.fromkeys(short(version) for versions in checkpoint.code.values() for version in versions))


_CHECKPOINTS = Listing(
    "checkpoints",
    (
        *(key("epoch"), key("dataflow"), key("id", "number"), value("kind"), value("status")),
        *(value("triggered", "triggered_at"), number("seconds", form=".1f")),
        *(size("incremental", "incremental_bytes"), size("full", "full_bytes")),
        *(number("files"), number("new", "new_files"), number("shared", "shared_files")),
        number("runs to merge", lambda row: row.amplification and row.amplification.reading),
        *(value("subsumed by", "subsumed_by"), text("code", _code)),
    ),
    "No dataflow has a checkpoint: none keeps state, or none of its runs is closed.",
)
