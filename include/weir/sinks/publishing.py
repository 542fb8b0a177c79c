"""Publishes the sinks of a run: gives content a version and a pointer, and commits it into the targets of its sink.

Invariant 1: a version is of results that are valid as a whole, and is never made twice of equal content. All that can
fail in a target has failed before anything of a run is complete; from then on there is no way back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from weir.attempts.commit_check import require_unchanged
from weir.attempts.rooms import Publication, SinkResult
from weir.coordination.evidence import require_known_versions
from weir.coordination.registered import Registered, require_newest
from weir.coordination.services import Services
from weir.coordination.values import Awaiting
from weir.errors import Conflict, Misconfigured
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, RunState
from weir.formats.manifest import InputRead, Manifest
from weir.formats.paths import pointer_path
from weir.formats.pointer import Pointer, PublishedPartition, pointer_from_json
from weir.ledger.deliveries import deliver_again, deliveries_of, enter_deliveries
from weir.ledger.leases import drop_leases
from weir.ledger.publications import (
    begin_publication,
    is_expiring,
    last_publication,
    next_version,
    provisional_rows,
)
from weir.ledger.results import reference, results_in
from weir.ledger.runs import dataflow_of, epoch_of_run
from weir.ledger.snapshot import run_state
from weir.recovery.awaiting import wait_for
from weir.restarts.delays import FIRST_WAIT, LONGEST_WAIT
from weir.sinks.delivery import DOUBTFUL, UNKNOWN_FOR, Undelivered, deliver, note_unprepared, prepare
from weir.sinks.protocol import Delivery, Outcome, TargetAway, TargetUnknown, Version, VersionFile
from weir.store.catalogue import highest_version
from weir.store.errors import AlreadyExists, NotFound
from weir.store.probe import probe, verify_segments
from weir.topology.ids import Digest, RunId
from weir.topology.regions import PartitionId

_MADE_ANEW = (PartitionState.QUARANTINED.value, PartitionState.SUPERSEDED.value)
"""The states of results that are wrong, or were when they were recomputed."""


_NOT_THERE = (Outcome.ROLLED_BACK.value, Outcome.SUPERSEDED.value)


@dataclass(frozen=True, slots=True)
class SinkPublishing:
    """Publishes the sinks of runs, by one ledger and store."""

    services: Services

    def prepare(
        self,
        registered: Registered,
        state: RunState,
        sinks: Sequence[SinkResult],
        intact: Mapping[str, Manifest],
    ) -> Publication | Awaiting:
        """Decide which sinks have new content and the numbers of their versions, and plan their deliveries.

        Raises Misconfigured, Retryable, LedgerBehind or TargetFailed; see `weir.attempts.rooms.Publishing`.
        """
        highest = _highest_versions(self.services, registered)
        new = tuple(each for each in sinks if not _is_in_place(self.services, registered.run.id, each, intact))
        publication = _Publication(self.services, self.services.ledger.id(), registered, tuple(sinks), new, highest, {})
        try:
            return replace(publication, prepared=publication.planned(state))
        except TargetAway as away:
            return publication.wait_for_target(away)


def _highest_versions(services: Services, registered: Registered) -> Mapping[str, int]:
    """Return the highest visible version of each sink. Raises LedgerBehind for one that the ledger does not know."""
    run = registered.run
    name = run.dataflow.name
    highest = {sink: highest_version(services.store, name, sink, run.epoch) for sink in registered.topology.sinks}
    with services.ledger.transaction() as session:
        unknown = [sink for sink, version in highest.items() if version >= next_version(session, run.id, sink)]
    paths = [pointer_path(name, sink, run.epoch, highest[sink]) for sink in unknown]
    require_known_versions(services, name, paths)
    return highest


@dataclass(frozen=True, slots=True)
class _Publication:
    """What one close publishes: the sinks with new content, and their deliveries as they were prepared, by sink.

    `highest` is the newest version of each sink that was visible then: another one that became visible since has taken
    the number, and the pointer is not written.
    """

    services: Services
    ledger: str
    registered: Registered
    sinks: tuple[SinkResult, ...]
    new: tuple[SinkResult, ...]
    highest: Mapping[str, int]
    prepared: Mapping[str, Sequence[Delivery]]

    def planned(self, state: RunState) -> dict[str, list[Delivery]]:
        """Plan the deliveries of new versions into targets, with the numbers that they will probably get.

        Raises TargetAway, Misconfigured, Retryable or TargetFailed.
        """
        run, having = self.registered.run.id, [each for each in self.new if each.targets]
        if not having:
            return {}
        with self.services.ledger.transaction() as session:
            numbers = {each.sink: self._next_version(session, each.sink) for each in having}
        return {
            each.sink: prepare(self.services, run, each.targets, self._version(state, each, numbers[each.sink]))
            for each in having
        }

    def wait_for_target(self, away: TargetAway) -> Awaiting:
        """Wait, longer each time, until a target answers; nothing of the run is complete.

        Raises Misconfigured for one whose name is unknown for long.
        """
        services, run, attempt = self.services, self.registered.run, self.registered.attempt.id
        with services.ledger.transaction(run.dataflow.name) as session:
            row = require_newest(session, run, CLOSE, attempt)
            if isinstance(away, TargetUnknown) and row.began_at + UNKNOWN_FOR <= services.now():
                raise Misconfigured.of("sinks.target_awaited", away=away) from away
            waiting = wait_for(
                row, f"nothing is published until its target answers: {away}", self.registered, services.now()
            )
            note_unprepared(session, row, away, services.now())
            drop_leases(session, row.id)  # the next turn finds the results, and takes its own
            return replace(waiting, attempt="", is_for_target=True)  # the ledger cannot tell when the target answers

    def write(self, reads: Sequence[InputRead]) -> None:
        """Give each sink whose content is new its version, recorded as about to be published, and write the pointer."""
        run, attempt = self.registered.run, self.registered.attempt.id
        with self.services.ledger.transaction(run.dataflow.name) as session:
            require_newest(session, run, CLOSE, attempt)
            state = run_state(session, run, self.registered.topology)
            require_unchanged(session, state, reads, CLOSE)
            _require_present(state, reads)
            pointers = [self._begun(session, state, sink) for sink in self.new]
        for pointer in pointers:
            _create(self.services, pointer)
        self.services.store_id()  # or the pointers were written under a mount point whose disk is gone

    def deliver(self) -> Awaiting | None:
        """Commit what is published into the targets, in the order in which the sinks are declared.

        Returns Awaiting where a target does not answer, or where one refuses a version of an earlier run, whose own
        task has failed. Raises Misconfigured where a person has to act for this run.
        """
        services, run = self.services, self.registered.run
        targets = {sink.sink: sink.targets for sink in self.sinks if sink.targets}
        if not targets:
            return None
        with services.ledger.transaction(run.dataflow.name) as session:
            for sink in targets:
                last = last_publication(session, run.id, sink)
                if last is not None:
                    deliver_again(session, run.id, sink, last.version)
        problems: list[Undelivered] = []
        for sink, declared in targets.items():
            # One that the sink no longer has holds up the runs that published into it only.
            problems += [each for each in deliver(services, run.dataflow.name, [sink]) if each.target in declared]
        for problem in problems:
            if problem.run == run.id and problem.fails_close(services.now()):
                kind = Misconfigured if isinstance(problem.error, DOUBTFUL) else type(problem.error)
                raise kind(str(problem)) from problem.error
        if not problems:
            return None
        waited = max((services.now() - problem.since).total_seconds() for problem in problems)
        seconds = min(max(waited, FIRST_WAIT), LONGEST_WAIT)
        return Awaiting(seconds, "; ".join(map(str, problems)), self.registered.interrupt, is_for_target=True)

    def outcomes(self, versions: Mapping[str, int]) -> dict[str, dict[str, str]]:
        """Return what the targets of each sink hold of these versions."""
        having, run = [each.sink for each in self.sinks if each.targets], self.registered.run.id
        if not having:
            return {}
        with self.services.ledger.transaction() as session:
            return {
                sink: {
                    str(Delivery.from_json(row.delivery).target): row.outcome or "pending"
                    for row in deliveries_of(session, run, sink, versions[sink])
                }
                for sink in having
            }

    def _next_version(self, session: Session, sink: str) -> int:
        return max(next_version(session, self.registered.run.id, sink), self.highest[sink] + 1)

    def _begun(self, session: Session, state: RunState, sink: SinkResult) -> Pointer:
        """Assign a version to a sink, and record that it is about to be published."""
        deliveries, run = self.prepared.get(sink.sink, ()), self.registered.run.id
        numbers = [each.version.number for each in deliveries]
        version = max([self._next_version(session, sink.sink), *numbers])
        if len(deliveries) != len(sink.targets) or any(each != version for each in numbers):
            raise Conflict.of("sinks.version_not_next", version=version, sink=sink.sink)
        pointer = self._pointer(state, sink, version, deliveries)
        begin_publication(session, run, sink.sink, version, pointer.attempt, sink.digest, pointer)
        enter_deliveries(session, run, sink.sink, version, pointer.deliveries)
        return pointer

    def _version(self, state: RunState, sink: SinkResult, number: int) -> Version:
        return version_of(self._pointer(state, sink, number, ()), sink.manifests, sink.fingerprint)

    def _pointer(self, state: RunState, sink: SinkResult, version: int, deliveries: Sequence[Delivery]) -> Pointer:
        run, attempt = self.registered.run, self.registered.attempt.id
        folders = [state.results[each].folder for each in sink.partitions]
        pointer = pointer_of(self.services, self.ledger, run.id, sink, folders)
        return replace(
            pointer, version=version, attempt=attempt, deliveries=tuple(each.to_json() for each in deliveries)
        )


def pointer_of(services: Services, ledger: str, run: RunId, sink: SinkResult, folders: Sequence[str]) -> Pointer:
    """Return a pointer to the partitions of a sink, numbered 0 and without deliveries, of the attempt of the first."""
    first, dataflow = sink.manifests[0], dataflow_of(run)
    return Pointer(
        dataflow=dataflow,
        sink=sink.sink,
        epoch=epoch_of_run(run),
        version=0,
        attempt=first.attempt,
        spark_schema=first.spark_schema,
        partitions=tuple(
            PublishedPartition(
                partition.subtask,
                folder,
                tuple(file.name for file in manifest.files),
                manifest.rows,
                Digest(str(manifest.digest)),
            )
            for partition, folder, manifest in zip(sink.partitions, folders, sink.manifests, strict=True)
        ),
        published_at=services.now().isoformat(),
        ledger=ledger,
        revision=services.ledger.seen(dataflow),
    )


def version_of(pointer: Pointer, manifests: Sequence[Manifest], digest: str) -> Version:
    """Return what a pointer names as targets get it; `manifests` are those of its partitions."""
    return Version(
        dataflow=pointer.dataflow,
        sink=pointer.sink,
        epoch=pointer.epoch,
        number=pointer.version,
        attempt=pointer.attempt,
        digest=digest,
        spark_schema=pointer.spark_schema,
        files=tuple(
            VersionFile(f"{part.folder}/{file.name}", file.bytes, file.rows, file.sha256)
            for part, manifest in zip(pointer.partitions, manifests, strict=True)
            for file in manifest.files
        ),
    )


def _require_present(state: RunState, reads: Sequence[InputRead]) -> None:
    """Refuse results that were replaced, also by equal content, lost or released: a pointer names their files.

    The lease of a process that was suspended may have run out.
    """
    for read in reads:
        current = state.results[PartitionId(read.stage, read.subtask, read.layout)]
        if current.attempt != read.attempt:
            raise Conflict.of("sinks.recomputed_meanwhile", partition=current.partition, attempt=current.attempt)
        if current.state is not PartitionState.FINISHED:
            raise Conflict.of(
                "sinks.not_current", partition=current.partition, attempt=current.attempt, state=current.state.value
            )


def _is_in_place(services: Services, run: str, sink: SinkResult, intact: Mapping[str, Manifest]) -> bool:
    """Report whether equal content is published already, with its pointer present and its files intact.

    False while a later version may still become visible: only a version above that one supersedes it. The files may be
    those of an attempt whose result is no longer current; those in the folders `intact` have just been compared.
    """
    with services.ledger.transaction() as session:
        last = last_publication(session, run, sink.sink)
        has_provisional = bool(provisional_rows(session, run, sink.sink))
    if last is None or last.published_at is None or is_expiring(last) or last.digest != sink.digest:
        return False
    if has_provisional:  # a new version takes their place in the targets
        return False
    if not _is_of(services, last.pointer, last.attempt) or not _has_targets(services, run, sink, last.version):
        return False
    partitions = pointer_from_json(services.store.read(last.pointer)).partitions
    known = {**intact, **_intact(services, run, {each.folder for each in partitions} - intact.keys())}
    return all(
        each.folder in known and {file.name for file in known[each.folder].files} == set(each.files)
        for each in partitions
    )


def _has_targets(services: Services, run: str, sink: SinkResult, version: int) -> bool:
    """Report whether a version is committed, or will be, into the targets that the sink has now.

    One that a person has taken out again is not, nor one instead of which they hold what the ledger does not know.
    """
    with services.ledger.transaction() as session:
        rows = deliveries_of(session, run, sink.sink, version)
        found = [Delivery.from_json(row.delivery).target for row in rows if row.outcome not in _NOT_THERE]
    return all(each in found for each in sink.targets)


def _intact(services: Services, run: str, folders: Set[str]) -> dict[str, Manifest]:
    """Return the manifests of the results in these folders that are as they were committed, byte for byte.

    Results that are or were in quarantine are left out: the latter are superseded.
    """
    with services.ledger.transaction() as session:
        rows = [row for row in results_in(session, run, folders) if row.state not in _MADE_ANEW]
    answers = probe(services.store, services.store_id(), [reference(row) for row in rows])
    parts = [(found, ref.folder, None) for ref, found in answers.items() if isinstance(found, Manifest)]
    losses = verify_segments(services.store, services.store_id(), parts)
    broken = {(loss.attempt, loss.stage, loss.subtask, loss.layout) for loss in losses}
    return {
        folder: each for each, folder, _ in parts if (each.attempt, each.stage, each.subtask, each.layout) not in broken
    }


def _is_of(services: Services, path: str, attempt: str) -> bool:
    """Report whether the pointer at `path` exists, can be read and is that of `attempt`."""
    try:
        return pointer_from_json(services.store.read(path)).attempt == attempt
    except (NotFound, ValueError, KeyError, TypeError):
        return False


def _create(services: Services, pointer: Pointer) -> None:
    path = pointer_path(pointer.dataflow, pointer.sink, pointer.epoch, pointer.version)
    try:
        services.store.create(path, pointer.to_json())
    except AlreadyExists as error:
        if not _is_of(services, path, pointer.attempt):
            raise Conflict.of(
                "sinks.published_by_another", version=pointer.version, sink=pointer.sink, path=path
            ) from error
