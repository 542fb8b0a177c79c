"""Faults that a careful programmer could make, each of them in one shipped module.

A forgotten condition, a comparison the wrong way, two steps swapped, a check that is missing in a transaction. Defects
that once were there are among them: `of` says which. None of them makes the code raise where nothing is wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.mutations.fault import Fault

ATTEMPTS: Final = "include/weir/attempts/"
RECOVERY: Final = "include/weir/recovery/"
LEDGER: Final = "include/weir/ledger/"
RETENTION: Final = "include/weir/retention/"
STATE: Final = "include/weir/state/"
SNAPSHOTS: Final = "include/weir/snapshots/"
REBUILD: Final = "include/weir/rebuild/"
STORE: Final = "include/weir/store/"
PLUGIN: Final = "plugins/weir_airflow/"


def _fault(name: str, module: str, old: str, new: str, breaks: str, of: str = "") -> Fault:
    return Fault(name=name, module=f"{module}.py", edits=((old, new),), breaks=breaks, of=of)


COORDINATOR: Final = (
    _fault(
        "a-fenced-attempt-commits",
        "include/weir/coordination/registered",
        "if newest.id != attempt or newest.state != AttemptState.RUNNING.value:",
        "if newest.state != AttemptState.RUNNING.value:",
        "A commit asks whether an attempt of its region is running, and not whether it is itself.",
    ),
    _fault(
        "a-commit-ignores-quarantine",
        f"{ATTEMPTS}commit_check",
        "if is_other or current.state is PartitionState.QUARANTINED:",
        "if is_other:",
        "A commit whose input was quarantined meanwhile is accepted.",
    ),
    _fault(
        "a-commit-forgets-what-it-read",
        f"{ATTEMPTS}commit_check",
        "is_other = current.digest != read.digest or (must_be_same and current.attempt != read.attempt)",
        "is_other = must_be_same and current.attempt != read.attempt",
        "A commit compares no digest of an input with the one that was read.",
    ),
    _fault(
        "a-damaged-result-condemns-its-attempt",
        f"{ATTEMPTS}commit_check",
        "is_damaged = (read.attempt, read.stage, read.subtask, read.layout) in damaged",
        "is_damaged = read.attempt in {attempt for attempt, *_ in damaged}",
        "Readers of the whole results of an attempt get Conflict, as another of its results was damaged.",
        of="e11b",
    ),
    _fault(
        "an-older-generation-commits",
        f"{ATTEMPTS}commit_check",
        "if newest > begun.attempt.generation:",
        "if newest > begun.attempt.generation + 1:",
        "A subtask commits with older code after another one has committed with newer.",
    ),
    _fault(
        "leases-after-the-transaction",
        f"{ATTEMPTS}gathering",
        """\
        take_leases(session, [present.results[each].result for each in probed.manifests], registered.attempt.id, now)
        return Gathered(present, probed.manifests)
""",
        """\
    with services.ledger.transaction(registered.run.dataflow.name) as session:
        take_leases(session, [present.results[each].result for each in probed.manifests], registered.attempt.id, now)
    return Gathered(present, probed.manifests)
""",
        "Inputs are found present in one transaction, and leased in the next.",
    ),
    _fault(
        "probed-inputs-are-not-compared",
        f"{ATTEMPTS}gathering",
        "    if _identities(before, inputs.to_probe) != _identities(now, inputs.to_probe):\n        return True\n",
        "",
        "A result that was replaced while the store was probed is leased, and the old manifest is read.",
    ),
    _fault(
        "a-stale-result-is-adopted",
        f"{ATTEMPTS}begin",
        "    good = all(set(state.obstacles(each)) <= {Obstacle.OLDER_SIBLING} for each in outputs)\n",
        "    good = all(each in state.results and state.results[each].state.value == 'finished' for each in outputs)\n",
        "A try adopts a commit of an earlier one whose inputs have changed since.",
    ),
    _fault(
        "a-result-from-before-a-clear-is-adopted",
        f"{ATTEMPTS}begin",
        "    return committed.max_tries == present.max_tries and since <= {Origin.RETRY.value}",
        "    return True",
        "A retry after a person's clear adopts the result that the person wanted recomputed.",
    ),
    _fault(
        "an-equal-try-is-a-new-one",
        f"{ATTEMPTS}registration",
        "if newest is None or newest.try_number < request.try_number:",
        "if newest is None or newest.try_number <= request.try_number:",
        "A process whose try is registered already registers it once more, beside the first.",
    ),
    _fault(
        "a-pointer-names-what-was-replaced",
        "include/weir/sinks/publishing",
        "            _require_present(state, reads)\n",
        "",
        "The closing task publishes files of a result that was replaced, lost or released since it was probed.",
    ),
    _fault(
        "stale-rows-are-shown-early",
        "include/weir/sinks/provisional",
        "        valid = [each for each in results if each is not None and state.is_valid(each.partition)]\n",
        "        valid = [each for each in results if each is not None]\n",
        "Rows that are shown before their run is closed stay when what they were made of has changed.",
    ),
    _fault(
        "what-is-put-back-fences-nobody",
        "include/weir/sinks/provisional",
        "    fence(services, dataflow, unknown)\n",
        "",
        "A process that comes late puts provisional rows in the place of the version that was put back.",
    ),
    _fault(
        "a-version-is-put-back-with-its-number",
        "include/weir/sinks/provisional",
        '            number = max(version["number"], row.version + 1)\n',
        '            number = version["number"]\n',
        "The last version does not take the place of provisional rows, whose number is higher.",
    ),
    _fault(
        "a-target-keeps-provisional-rows",
        "include/weir/sinks/provisional",
        "        if other is None:\n            take_out(services, dataflow, number)\n",
        "        pass\n",
        "Rows that were shown, and are not valid any more, stay in a target that has no version.",
    ),
    _fault(
        "a-clear-resets-no-budget",
        "include/weir/ledger/attempts",
        "        if row.origin == Origin.CLEARED_BY_PERSON.value:\n            times.clear()\n",
        "",
        "A person's clear does not reset the budgets of backtracks and conflicts.",
    ),
    _fault(
        "a-commit-does-not-reopen-its-run",
        f"{RECOVERY}reconcile",
        "        owed += note_whether_closed(session, services, run, state.topology)\n",
        "        session.flush()\n",
        "A closed run stays closed when a commit makes results of it stale.",
    ),
    _fault(
        "a-failure-leaves-later-runs-green",
        "include/weir/attempts/failure",
        "    note_later(session, services, run_by_id(session, row.run))\n",
        "",
        "A later run that waits for what has failed for good stays a success in Airflow, and open.",
    ),
)

RECOVERING: Final = (
    _fault(
        "an-ending-try-settles-its-clear",
        f"{RECOVERY}pending_clears",
        "    if _is_ending(session, row, answer):\n        return ClearOutcome.ENDING\n",
        "",
        "A clear counts as delivered while Airflow still calls the committed try running.",
    ),
    _fault(
        "siblings-under-repair-are-not-cleared",
        f"{RECOVERY}rules/staleness",
        "newest.result > known.newest_result and not known.is_unended",
        "newest.result > known.newest_result and not known.is_running",
        "A subtask of older code that was cleared, and whose try failed before it was registered, is never cleared.",
        of="4fa5f77",
    ),
    _fault(
        "later-epochs-stay-closed",
        f"{RECOVERY}reconcile",
        "        session.get_one(RunRow, other).closed_at = None\n",
        "",
        "A later epoch stays closed when its input from this one has changed.",
    ),
    _fault(
        "published-damage-is-not-published-again",
        f"{RECOVERY}reconcile",
        "        if state is not None:\n            yield partition,",
        "        if state is None:\n            yield partition,",
        "Published files that were lost, and came out equal, are not published again.",
    ),
    _fault(
        "an-awaited-loss-is-not-joined",
        f"{RECOVERY}rules/backtrack",
        "loss = self._loss(partition, reader) or (None if is_probed else self._awaited_loss(partition, producer))",
        "loss = self._loss(partition, reader)",
        "A plan leaves out the running producer of an input that its reporter waits for.",
        of="b0ebf5a",
    ),
    _fault(
        "a-running-producer-is-a-loss",
        f"{RECOVERY}inputs",
        """\
        elif waits_for:
            awaited[partition] = waits_for
        elif loss is not None:
            losses[partition] = loss
""",
        """\
        elif loss is not None:
            losses[partition] = loss
        elif waits_for:
            awaited[partition] = waits_for
""",
        "An input whose producer is running is reported lost, not awaited.",
    ),
    _fault(
        "an-outdated-answer-voids-a-try",
        f"{RECOVERY}awaiting",
        "if has_begun or not run_state(session, run).region(local).is_running:",
        "if not run_state(session, run).region(local).is_running:",
        "An answer of Airflow from before a new try fails that try.",
    ),
    _fault(
        "a-deleted-predecessor-is-awaited",
        f"{ATTEMPTS}registration",
        "give_up_deleted_predecessors("
        "services, request, lambda: _new_run(services, request, services.store_id()), clearer)",
        "services.store_id()",
        "An epoch whose DagRun was deleted before it began is awaited for ever by the next.",
        of="e9",
    ),
)

LEDGERS: Final = (
    _fault(
        "a-clear-never-sent-explains-a-try",
        f"{LEDGER}attempts",
        "            PendingClearRow.sends > 0,\n",
        "",
        "A person's clear that came before Weir's own counts as Weir's.",
        of="0da6d11",
    ),
    _fault(
        "a-failed-begin-is-forgotten",
        f"{LEDGER}attempts",
        "PendingClearRow.expected_try >= max(newest.try_number, failed_for_good(session, newest)),",
        "PendingClearRow.expected_try >= newest.try_number,",
        "A person's clear of a task whose begin had failed for good counts as Weir's.",
        of="ee3e371",
    ),
    _fault(
        "splits-that-were-read-are-forgotten",
        f"{LEDGER}sources",
        "    ~select(ResultRow.id).where(ResultRow.attempt.in_(_TRIES)).exists(),\n",
        "",
        "A source is resolved anew though another subtask has committed what it read.",
    ),
    _fault(
        "a-range-is-forgotten-that-another-went-on-from",
        f"{LEDGER}sources",
        "    _MAY_BE_FORGOTTEN,\n",
        "",
        "A source that goes on is resolved anew though the next epoch has begun where it ended: rows are read twice.",
    ),
    _fault(
        "a-range-begins-where-none-ends",
        f"{LEDGER}sources",
        "    if present != wanted:\n",
        "    if present is None and wanted is not None:\n",
        "A source goes on from an epoch before that was given up, or was resolved anew, since its resolver was asked.",
    ),
    _fault(
        "a-delivered-clear-stands-for-a-new-one",
        f"{LEDGER}clears",
        ').where(PendingClearRow.run == bindparam("run"), PendingClearRow.settled_at.is_(None))\n',
        ').where(PendingClearRow.run == bindparam("run"))\n',
        "A clear is not recorded where one of the same try was settled before.",
    ),
    _fault(
        "an-expired-lease-is-held",
        f"{LEDGER}leases",
        '    LeaseRow.holder == bindparam("of"), LeaseRow.expires_at > bindparam("at")\n',
        '    LeaseRow.holder == bindparam("of")\n',
        "A process that was suspended for hours renews leases on results that were released meanwhile.",
    ),
    _fault(
        "a-failed-checkpoint-is-completed",
        f"{LEDGER}checkpoints",
        "if row is None or not is_own or row.status == CheckpointStatus.FAILED.value:\n        raise ",
        "if row is None or not is_own:\n        raise ",
        "A checkpoint that another upkeep has abandoned is completed, though its files are deleted.",
        of="e4b",
    ),
    _fault(
        "a-pending-checkpoint-needs-nothing",
        f"{LEDGER}checkpoints",
        "return is_checkpoint & (is_retained() | (CheckpointRow.status == CheckpointStatus.PENDING.value))",
        "return is_checkpoint & is_retained()",
        "Results that a checkpoint names are released while it is being completed.",
        of="e4b",
    ),
    _fault(
        "a-dataflow-is-not-locked",
        f"{LEDGER}ledger",
        "found = raise_revision(session, dataflow, reads_timeline=self._reads_timeline)\n        if found is None and",
        "found = read_revision(session, dataflow, reads_timeline=self._reads_timeline)\n        if found is None and",
        "On PostgreSQL two transactions of one dataflow overlap, and no revision is raised.",
    ),
)

REBUILDING: Final = (
    _fault(
        "a-rebuilt-ledger-counts-code-of-before-a-restore",
        "include/weir/coordination/importing",
        "    if run.restored_in:\n        forget_generations(session, run.id, before=run.restored_in)\n",
        "",
        "A restored run computes with the code of before the restore, once the ledger has lost it or was rebuilt.",
        of="seed 3140",
    ),
    _fault(
        "an-older-record-pins-a-restored-run",
        "include/weir/coordination/importing",
        "    if is_pinned_anew or record.restored_in >= (row.restored_in or 0):\n",
        "    if True:\n",
        "A restore whose record is not written yet gets its pin to code back from the record of before it.",
    ),
    _fault(
        "other-splits-are-taken",
        f"{REBUILD}rebuild",
        "    refused |= other_splits(readers, splits)\n",
        "",
        "A ledger that catches up takes results of splits that it has lost beside those of newer ones.",
        of="f827bc5",
    ),
)

RETAINING: Final = (
    _fault(
        "released-under-a-running-consumer",
        f"{RETENTION}deletion_rules",
        "            not known.is_running\n            and known.newest_state in FINISHED",
        "            known.newest_state in FINISHED",
        "A result is released although a consumer of it is to run again.",
    ),
    _fault(
        "released-by-another-attempt",
        f"{RETENTION}deletion_rules",
        "return (stored.partition, stored.attempt) in self._made_from[consumer]",
        "return stored.partition in {partition for partition, _ in self._made_from[consumer]}",
        "A result is released once its consumers have read an earlier result of the same partition.",
    ),
    _fault(
        "released-before-the-next-epoch",
        f"{RETENTION}deletion_rules",
        "needed = self._run.needed_later.get(stored.partition.stage)",
        "needed = None if self._over else self._run.needed_later.get(stored.partition.stage)",
        "A result that the next epoch reads is released when its own run is over.",
    ),
    _fault(
        "one-run-too-few-is-kept",
        f"{RETENTION}deletion_rules",
        "return closed_after < keep.runs",
        "return closed_after < keep.runs - 1",
        "The policy `2 runs` keeps one.",
    ),
    _fault(
        "a-close-by-the-workers-clocks",
        f"{RETENTION}deletion_queries",
        """\
    newest = session.scalar(_NEWEST_CURRENT, {"run": row.id})
    return newest is None or newest <= row.closed_result
""",
        """\
    made = select(func.max(ResultRow.state_at)).where(_OF_RUN, ResultRow.is_current)
    newest = session.scalar(made, {"run": row.id})
    closed = select(func.max(AttemptRow.ended_at)).where(AttemptRow.run == row.id, AttemptRow.region == "weir_close")
    return newest is None or newest <= session.scalar(closed)
""",
        "Whether the closing task has read the newest results is told by the clocks of two workers.",
        of="e6",
    ),
    _fault(
        "files-before-their-checkpoint",
        f"{RETENTION}checkpoints",
        "    deleted = [path for path in unused if is_below_dataflow(path, dataflow) and path not in in_use]\n",
        "    deleted = [path for path in unused if is_below_dataflow(path, dataflow)]\n",
        "Upkeep deletes the files of a subsumed checkpoint that a result or a reader still uses.",
    ),
    _fault(
        "a-pending-checkpoint-is-abandoned-at-once",
        f"{RETENTION}checkpoints",
        "return row.triggered_at + LEASE > now or _is_closing(session, row.run)",
        "return _is_closing(session, row.run)",
        "Upkeep abandons the checkpoint that another upkeep is completing.",
        of="e4b",
    ),
    _fault(
        "released-state-is-deleted",
        f"{RETENTION}release",
        "        pending = [each for each in pending if each.folder not in in_use]\n",
        "",
        "The files of a released state are deleted although later epochs name them.",
    ),
    _fault(
        "a-sweep-of-running-attempts",
        f"{RETENTION}deletion_rules",
        "    if attempt is not None and attempt.is_running:\n",
        "    if attempt is not None and attempt.is_running and folder.place is not Place.COPY:\n",
        "A sweep deletes the copy that a running attempt writes.",
    ),
    _fault(
        "an-ended-attempt-is-garbage-at-once",
        f"{RETENTION}sweep_run",
        "        if decision.since is not None and decision.since > before:\n            return False\n",
        "",
        "What an attempt left is deleted by the age of its files alone, though it ended just now.",
    ),
)

STATES: Final = (
    Fault(
        name="half-a-correction-is-answered",
        module="include/weir/ledger/checkpoints.py",
        edits=(("seen = min(", "seen = max("),),
        breaks="A look-up gives rows of some subtasks as they are corrected, and of others as they were.",
        tests="tests/weir/reading",
    ),
    _fault(
        "one-checkpoint-too-few-is-retained",
        f"{STATE}retention_rules",
        "max(0, len(in_order) - retained)",
        "max(0, len(in_order) - retained + 1)",
        "A checkpoint more is subsumed than are too many.",
    ),
    _fault(
        "a-damaged-checkpoint-subsumes-a-whole-one",
        f"{STATE}retention_rules",
        "whole = [snapshot for snapshot in completed if snapshot.is_whole]",
        "whole = list(completed)",
        "A checkpoint with damaged files pushes out one that is whole.",
        of="e4b",
    ),
    _fault(
        "unused-by-its-maker",
        f"{RETENTION}checkpoints",
        "for path in checkpoint.files}",
        "for path in checkpoint.files if described[path][0] == checkpoint.number}",
        "A file counts as unused when the checkpoint that wrote it is gone.",
    ),
    _fault(
        "checkpoints-in-any-order",
        f"{STATE}checkpoint",
        "        _require_order(session, run)\n",
        "",
        "A checkpoint is completed although the run of the epoch before was opened again.",
    ),
    _fault(
        "a-compaction-of-released-state",
        f"{STATE}compaction",
        "if not part.used <= set(session.scalars(query.where(ResultRow.attempt.in_(part.used)))):",
        "if not part.used & set(session.scalars(query.where(ResultRow.attempt.in_(part.used)))):",
        "A compaction takes over files of a state that was released meanwhile.",
    ),
    _fault(
        "compacted-files-are-not-in-use",
        f"{STATE}files_in_use",
        "        compacted = [path for user in users for path in _compacted(session, user)]\n",
        "        compacted = list[str]()\n",
        "Files of a compaction count as unused until a checkpoint names them.",
    ),
    _fault(
        "a-merge-forgets-deletions",
        f"{STATE}compaction_rules",
        "return Merge(files, slice_.key_groups, files[-1].epoch, first == 0)",
        "return Merge(files, slice_.key_groups, files[-1].epoch, first <= 1)",
        "A merge that leaves out the oldest run drops deletions, and its rows come back.",
    ),
    _fault(
        "an-ambiguous-restore-is-undone",
        f"{SNAPSHOTS}restore",
        "            return session.get(AttemptRow, partitions[0].manifest.attempt) is not None\n",
        "            return False\n",
        "A restore whose commit got no answer deletes the files that it has committed.",
        of="e10",
    ),
    _fault(
        "a-savepoint-without-leases",
        f"{SNAPSHOTS}savepoint",
        "        take_leases(session, named, savepoint.attempt, now)\n",
        "",
        "Files are deleted while a savepoint of them is copied.",
        of="592fe7f",
    ),
)

STORES: Final = (
    _fault(
        "an-unmounted-store-has-lost-all",
        f"{STORE}probe",
        "        again = ask_all([questions[number] for number in doubtful])\n        store.check_marker(store_id)\n",
        "        again = ask_all([questions[number] for number in doubtful])\n",
        "A store that is unmounted while it is probed counts as one that has lost its files.",
    ),
    _fault(
        "two-creators-win",
        f"{STORE}local",
        "            _link(temporary, target)\n",
        '            if target.exists():\n                raise FileExistsError(errno.EEXIST, "exists", str(target))\n'
        "            temporary.replace(target)\n",
        "Of two processes that create one file both win.",
    ),
    _fault(
        "a-longer-file-is-whole",
        f"{STORE}probe",
        "segment.length + segment.is_tail)",
        "segment.length)",
        "Bytes behind the recorded end of a file are not noticed.",
    ),
    _fault(
        "no-answer-is-not-found",
        f"{STORE}store",
        "        except FileNotFoundError as error:\n            raise NotFound.of(",
        "        except (FileNotFoundError, TimeoutError) as error:\n            raise NotFound.of(",
        "A store that does not answer in time is taken for one without the file.",
    ),
)

CODES: Final = (
    _fault(
        "a-retry-runs-what-is-deployed",
        "include/weir/code/generation_rules",
        "        Cause.OWN_FAILURE: task.done == 0,\n",
        "        Cause.OWN_FAILURE: task.done < task.subtasks,\n",
        "A failed function is retried with newer code although its siblings have results.",
    ),
    _fault(
        "a-repeated-try-goes-back",
        "include/weir/code/generation_rules",
        "return max(known, key=lambda each: each.number)",
        "return known[0]",
        "A retry runs its own code although a sibling has committed with newer code.",
    ),
    _fault(
        "results-of-two-codes-are-valid",
        "include/weir/execution/run_state",
        "self._valid[partition] = self._is_made_of_valid(partition) and not self._older_siblings(partition)",
        "self._valid[partition] = self._is_made_of_valid(partition)",
        "Results of a stage count as valid although no one code has made them.",
    ),
    _fault(
        "a-changed-input-keeps-its-readers-valid",
        "include/weir/execution/run_state",
        "return current is not None and current.digest == read.digest and self._valid.get(read.partition, False)",
        "return current is not None and current.digest == read.digest",
        "A result counts as valid although an input of its input has changed.",
    ),
)

_OF_DATASETS: Final = (
    _fault(
        "what-others-publish-is-read-without-a-lease",
        f"{RECOVERY}datasets",
        "        take_leases(session, finished, registered.attempt.id, services.now())\n    return found\n",
        "    return found\n",
        "Nothing keeps a published file that a task of another dataflow reads.",
    ),
    _fault(
        "told-before-compared",
        f"{RECOVERY}datasets",
        """\
    for reader, group in readers.items():
        with services.ledger.transaction(reader) as session:
            for run in group:
                compare(session, services, run)
    if untold:
        with services.ledger.transaction(dataflow) as session:
            note_told(session, untold)
""",
        """\
    if untold:
        with services.ledger.transaction(dataflow) as session:
            note_told(session, untold)
    for reader, group in readers.items():
        with services.ledger.transaction(reader) as session:
            for run in group:
                compare(session, services, run)
""",
        "A process that is killed between the two leaves readers with rows of an older version.",
    ),
    _fault(
        "the-oldest-epochs-are-read",
        f"{RECOVERY}datasets",
        "return found if number is None else found[-number:]",
        "return found if number is None else found[:number]",
        "last(2) reads the two oldest epochs.",
    ),
    _fault(
        "what-is-published-is-enough",
        f"{RECOVERY}datasets",
        "if missing and exchange.missing != SKIP:",
        "if missing and not there and exchange.missing != SKIP:",
        "A reader of several epochs waits for one of them only.",
    ),
    _fault(
        "a-closed-run-is-awaited",
        f"{RECOVERY}datasets",
        "if replaced and (row.closed_at is None or state.is_coming(CLOSE)):",
        "if replaced:",
        "A lost file of an equal result that was recomputed since is never published again.",
    ),
    _fault(
        "each-begin-repairs-again",
        f"{RECOVERY}datasets",
        "return any(state.is_coming(state.producer(each.in_run(OWN_RUN))) for each in lost if each not in replaced)",
        "return False",
        "A begin has the run that has published plan a repair although it is about to compute what is lost.",
    ),
    _fault(
        "a-deleted-run-is-awaited",
        f"{RECOVERY}datasets",
        '    if is_there is False:\n        said = f"its DagRun',
        '    if is_there is False and row.closed_at is None:\n        said = f"its DagRun',
        "A reader waits for ever for a file that only a deleted DagRun would compute.",
    ),
    _fault(
        "a-damaged-file-is-back",
        f"{RECOVERY}datasets",
        "return is_known and is_there and result.state is PartitionState.LOST and result.fault != Fault.DAMAGED.value",
        "return is_known and is_there and result.state is PartitionState.LOST",
        "A published result whose bytes were found damaged is read again, since its manifest is there.",
    ),
    _fault(
        "a-newer-version-counts-as-told",
        f"{LEDGER}publications",
        "session.execute(delete(UntoldVersionRow).where(is_it, UntoldVersionRow.version <= each.version))",
        "session.execute(delete(UntoldVersionRow).where(is_it))",
        "Readers are never compared with a version that is published while they are compared with the one before.",
    ),
    _fault(
        "a-version-is-read-before-it-is-complete",
        f"{LEDGER}publications",
        "    PublicationRow.published_at.is_not(None), PublicationRow.expiring_at.is_(None), PublicationRow",
        "    PublicationRow.expiring_at.is_(None), PublicationRow",
        "Readers get a version of which only the number is assigned.",
    ),
    _fault(
        "a-version-is-read-in-part",
        f"{LEDGER}publications",
        "unknown = folders.keys() - {each.folder for each in found.values()}",
        "unknown = folders.keys() & {each.folder for each in found.values()}",
        "Readers get the partitions that a rebuilt ledger has found, and not those whose manifest is gone.",
    ),
    _fault(
        "one-equal-partition-is-enough",
        "include/weir/execution/run_state",
        "return self._has_size(reads) and all(map(self.holds_published, reads.members))",
        "return self._has_size(reads) and any(map(self.holds_published, reads.members))",
        "A new version of which one partition is as it was is no news to what has read the others.",
    ),
    _fault(
        "a-commit-ignores-a-new-version",
        f"{ATTEMPTS}commit_check",
        "is_same = state.holds_published(ReadResult(partition, read.attempt, read.digest))",
        "is_same = partition in state.published",
        "A task commits what it has made of a version that was replaced meanwhile.",
    ),
    _fault(
        "a-wait-for-a-data-set-is-over",
        f"{ATTEMPTS}waiting",
        "if awaits_range(session, run, region) or awaits_dataset(session, run, state, region):",
        "if awaits_range(session, run, region):",
        "A task that waits for another dataflow is started again and again.",
    ),
    _fault(
        "a-version-goes-before-its-reader-comes",
        f"{LEDGER}publications",
        ".having(func.max(RunRow.interval_end) < run.interval_end)",
        ".having(func.max(RunRow.interval_end) > run.interval_end)",
        "A version expires that a reader has yet to come to, and stays where it has.",
    ),
    _fault(
        "a-rebuilt-ledger-compares-no-reader",
        f"{REBUILD}rebuild",
        "        if record.datasets:\n            compare(",
        "        if record.datasets and is_catching_up:\n            compare(",
        "Readers that the lost ledger had yet to compare keep rows of an older version.",
    ),
)
DATASETS: Final = tuple(replace(each, mix="dataflows", tests="tests/weir/datasets") for each in _OF_DATASETS)

REUSING: Final = (
    _fault(
        "a-key-forgets-the-code",
        "include/weir/formats/made_of",
        '        "code": job.code.version,\n',
        "",
        "What an edited function is to compute is taken as it was before the edit.",
    ),
    _fault(
        "a-key-forgets-what-was-read",
        "include/weir/formats/made_of",
        "[part.stage, part.subtask, part.layout, digest]",
        "[part.stage, part.subtask, part.layout]",
        "What other rows are to give is taken as the rows before gave it.",
    ),
    _fault(
        "a-key-forgets-the-key-groups",
        "include/weir/formats/made_of",
        '"rows": [read.layout.id, read.key_groups],',
        '"rows": [read.layout.id],',
        "A subtask takes what another division of the rows has made.",
    ),
    _fault(
        "what-was-looked-at-is-forgotten",
        "include/weir/formats/made_of",
        "{name: job.context[name] for name in sorted(looked_at)}",
        "sorted(looked_at)",
        "A function that looks at the epoch is given the rows of another one.",
    ),
    _fault(
        "chance-is-taken",
        "include/weir/coordination/reuse",
        "        and each.deterministic\n",
        "",
        "What each attempt is to compute anew is taken.",
    ),
    _fault(
        "a-persons-clear-takes",
        "include/weir/coordination/reuse",
        "        if row.origin == Origin.CLEARED_BY_PERSON.value:\n            return True\n",
        "",
        "A task that a person has cleared, so that it computes, takes its result.",
    ),
    _fault(
        "a-file-is-known-by-its-time",
        "include/weir/formats/made_of",
        '_OF_CONTENT: Final = ("sha256",',
        '_OF_CONTENT: Final = ("modified_ns", "sha256",',
        "A file that was rewritten with its name, size and time is not read again.",
    ),
    _fault(
        "a-key-forgets-the-split",
        "include/weir/formats/made_of",
        '        "split": _split(stage),\n',
        "",
        "What other files are to give is taken as the files before gave it.",
    ),
    _fault(
        "a-state-is-taken-in-another-epoch",
        "include/weir/formats/made_of",
        '        "epoch of states": job.epoch if states else "",\n',
        "",
        "An epoch whose state and inputs are those of the epoch before takes what that has kept.",
    ),
    _fault(
        "what-somebody-vouches-for-forgets-the-epoch",
        "spark_jobs/weir_spark/region/region",
        "(self.looked_at | self.vouched_for) & self.job.context.keys()",
        "self.looked_at & self.job.context.keys()",
        "A function that somebody vouches for is given the rows of another epoch.",
    ),
    _fault(
        "what-was-taken-is-not-checked",
        "spark_jobs/weir_spark/region/region",
        ', checks=found + checks.taken(taken["outputs"], self._states_to_check()))',
        ")",
        "Rows that a newer suite refuses are committed where they are taken.",
    ),
    _fault(
        "what-registers-itself-does-not-count",
        "include/weir/code/definitions",
        "        if not all(self._last_name(each) in _PLAIN_BASES for each in bases):\n            return False\n",
        "",
        "An edit of a class that its base has registered is the same code.",
    ),
    _fault(
        "a-module-that-is-handed-on-does-not-count",
        "include/weir/code/definitions",
        '            if not attributes or attributes[0].startswith("__"):\n                self._ask_all(target)\n',
        '            if not attributes or attributes[0].startswith("__"):\n                pass\n',
        "An edit of what a function asks of a module that it is given is the same code.",
    ),
    _fault(
        "a-call-at-import-does-not-count",
        "include/weir/code/definitions",
        "                if not self._is_plain_call(node):\n                    return False\n",
        "",
        "What registers a function when a module is imported is left out of the version.",
    ),
    _fault(
        "a-try-that-resumes-tells-what-it-has-not-seen",
        "spark_jobs/weir_spark/region/region",
        "        if any(stage.function and stage not in computed for stage in self.job.stages):\n",
        "        if False:\n",
        "What a function has made that looks at the epoch, and a retry reads from a copy, is taken in other epochs.",
    ),
    _fault(
        "what-is-doubted-is-taken",
        "include/weir/ledger/results",
        "AttemptRow.made_of.in_(set(keys) - doubted)",
        "AttemptRow.made_of.in_(set(keys))",
        "Rows that were distrusted, or that equal inputs have given otherwise, are taken by other runs.",
    ),
    _fault(
        "what-failed-is-taken-again",
        "include/weir/quality/gates",
        "take=None if found.have_failed else job.take,",
        "take=job.take,",
        "A task whose rows have failed takes the same rows in each try.",
    ),
    _fault(
        "a-copy-is-not-compared",
        f"{STORE}copying",
        "    if found != sha256:\n",
        "    if len(found) != len(sha256):\n",
        "Damaged files are copied, and count as whole from then on.",
    ),
)

PLUGINS: Final = (
    _fault(
        "a-newer-try-is-cleared",
        f"{PLUGIN}api/compare_and_clear",
        "has_expected_try = item.expected_try is None or item.expected_try == found.try_number",
        "has_expected_try = item.expected_try is None or item.expected_try <= found.try_number",
        "The endpoint clears a newer try than the one that is expected.",
    ),
    _fault(
        "a-cleared-run-is-queued",
        f"{PLUGIN}api/compare_and_clear",
        "clear_task_instances(finished, session, dag_run_state=DagRunState.RUNNING)",
        "clear_task_instances(finished, session, dag_run_state=DagRunState.QUEUED)",
        "A finished run of which something is cleared waits behind those that wait for it.",
    ),
    _fault(
        "waiting-runs-take-the-place",
        f"{PLUGIN}api/compare_and_clear",
        "        running = running.where(DagRun.logical_date < dag_run.logical_date)\n",
        "        running = running.where(DagRun.logical_date != dag_run.logical_date)\n",
        "A run that later ones wait for is not started, since these count against max_active_runs.",
    ),
)

FAULTS: Final = (
    *COORDINATOR,
    *RECOVERING,
    *LEDGERS,
    *REBUILDING,
    *RETAINING,
    *STATES,
    *STORES,
    *CODES,
    *DATASETS,
    *REUSING,
    *PLUGINS,
)
