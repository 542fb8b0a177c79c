"""Checks that manifests tell of, when the ledger is built again.

Invariant: only what has passed is entered, so that equal rows are not checked again; of failures manifests say too
little to be judged by.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.dataflow.quality import Policy
from weir.ledger.models import RunRow
from weir.ledger.quality_models import QualityCheckRow
from weir.quality.check import BUILT_IN, GateResult, Outcome, Why
from weir.recovery.candidates import Candidate
from weir.results.manifest import Manifest

_PASSED = (Outcome.PASSED, Outcome.SAME)


def restore_checks(session: Session, run: RunRow, found: Iterable[Candidate]) -> None:
    """Enter what the manifests of a run say to have passed, unless the ledger still knows of it."""
    query = select(QualityCheckRow.attempt, QualityCheckRow.stage, QualityCheckRow.suite)
    known = {tuple(each) for each in session.execute(query.where(QualityCheckRow.run == run.id))}
    for candidate in found:
        for stored in candidate.results.values():
            manifest = stored.manifest
            for each in manifest.quality:
                key = (manifest.attempt, manifest.stage, each.suite)
                if each.outcome in _PASSED and each.suite != BUILT_IN and key not in known:
                    known.add(key)
                    session.add(_row(run, manifest, each))
    session.flush()


def _row(run: RunRow, manifest: Manifest, result: GateResult) -> QualityCheckRow:
    return QualityCheckRow(
        dataflow=run.dataflow,
        run=run.id,
        epoch=run.epoch,
        stage=manifest.stage,
        subtask=manifest.subtask,
        attempt=manifest.attempt,
        by_attempt=manifest.attempt,
        suite=result.suite,
        fingerprint=result.fingerprint,
        why=Why.REBUILT.value,
        policy=Policy.FAIL.value,
        outcome=result.outcome.value,
        digest=str(manifest.digest),
        rows=manifest.rows,
        results=[],
        blamed=[],
        seconds=0.0,
        checked_at=datetime.fromisoformat(manifest.created_at),
    )
