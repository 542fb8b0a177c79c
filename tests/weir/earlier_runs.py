"""Enters earlier runs into a ledger by copying a real one: results of years, in seconds."""

import hashlib
from datetime import timedelta

from sqlalchemy import func, insert, select, text

from weir.ledger.database.tables import (
    AttemptRow,
    CheckpointRow,
    ConsumptionRow,
    DataflowRow,
    PublicationRow,
    ReadSetRow,
    ResultEventRow,
    ResultRow,
    RunRow,
)
from weir.ledger.runs import epoch_of, run_key

GONE = {"state": "released", "state_reason": "its run is over"}
RELEASED, STORED = "released", "stored"
_DAY = timedelta(days=1)


def rows_of(session, table, *conditions):
    return [dict(row) for row in session.execute(select(table.__table__).where(*conditions)).mappings()]


class Copies:
    """Copies of the runs of `dataflow` that a template is; the newest copy is of the day before `before`."""

    def __init__(self, session, template):
        self.run = rows_of(session, RunRow, RunRow.id == template)[0]
        self.attempts = rows_of(session, AttemptRow, AttemptRow.run == template)
        self.results = rows_of(session, ResultRow, ResultRow.run == template)
        ids = [row["id"] for row in self.attempts]
        self.reads = rows_of(session, ConsumptionRow, ConsumptionRow.attempt.in_(ids))
        sets = {row["read_set"] for row in self.reads}
        self.sets = {row["id"]: row["members"] for row in rows_of(session, ReadSetRow, ReadSetRow.id.in_(sets))}
        self.published = rows_of(session, PublicationRow, PublicationRow.run == template)
        self.checkpoints = rows_of(session, CheckpointRow, CheckpointRow.run == template)
        self.place = {
            (row["stage"], row["subtask"], row["layout"]): (row["attempt"], row["digest"])
            for row in self.results
            if row["is_current"]
        }


def enter_earlier(ledger, template, count, kind=RELEASED, dataflow=None):
    """Enter `count` runs before the first, each a copy of `template`, `released` or `stored`; return their ids.

    With `dataflow`, they are of another one, of this name.
    """
    own = template.partition("@")[0]
    name = dataflow or own
    with ledger.transaction() as session:
        copies = Copies(session, template)
        first, start = session.execute(
            select(RunRow.id, RunRow.interval_start).where(RunRow.dataflow == own).order_by(RunRow.epoch).limit(1)
        ).one()
        first_result = (session.scalar(select(func.max(ResultRow.id))) or 0) + 1
        first_number = (session.scalar(select(func.max(CheckpointRow.number))) or 0) + 1
    days = [start - (count - at) * _DAY for at in range(count)]
    rows = {table: [] for table in (RunRow, AttemptRow, ResultRow, ResultEventRow, ReadSetRow, ConsumptionRow)}
    rows |= {PublicationRow: [], CheckpointRow: []}
    before = None
    for at, day in enumerate(days):
        _copy(copies, rows, name, day, before, first_result + at * len(copies.results), kind)
        for row in rows[CheckpointRow][-len(copies.checkpoints) :] if copies.checkpoints else ():
            row["number"], first_number = first_number, first_number + 1
        before = epoch_of(day)
    with ledger.transaction(own) as session:
        if dataflow is not None:
            session.add(DataflowRow(name=name, lineage=1, store_id=_store_id(session, own)))
            session.flush()
        elif before is not None:
            session.get_one(RunRow, first).predecessor = before
            session.get_one(DataflowRow, own).first_epoch = epoch_of(days[0])
        for table, new in rows.items():
            if new:
                unique = {row["id"]: row for row in new} if table is ReadSetRow else None
                session.execute(insert(table.__table__), list(unique.values()) if unique else new)
        if session.get_bind().dialect.name == "postgresql":
            for table in (ResultRow, ResultEventRow, CheckpointRow, PublicationRow):
                numbers = func.pg_get_serial_sequence(table.__tablename__, "id")
                session.execute(select(func.setval(numbers, func.max(table.id))).select_from(table))
            session.execute(text("ANALYZE"))
    return [row["id"] for row in rows[RunRow]]


def _store_id(session, dataflow):
    return session.get_one(DataflowRow, dataflow).store_id


def _renamed(attempt, run):
    return f"{attempt[:6]}{hashlib.sha256((attempt + run).encode()).hexdigest()[:12]}"


def _copy(copies, rows, name, day, before, first_result, kind):
    template, epoch = copies.run, epoch_of(day)
    run, dag_run = run_key(name, epoch), f"scheduled__{day:%Y-%m-%d}"
    at = template["created_at"] - (template["interval_start"] - day)
    own = (template["dataflow"], template["epoch"])

    def moved(path):
        old = path.replace(f"{own[0]}/{own[1]}/", f"{name}/{epoch}/")
        found = next((each for each in old.split("/") if each in names), None)
        return old if found is None else old.replace(found, names[found])

    names = {row["id"]: _renamed(row["id"], run) for row in copies.attempts}
    numbers = {row["id"]: first_result + index for index, row in enumerate(copies.results)}
    is_gone = kind == RELEASED
    rows[RunRow].append(
        template
        | {"id": run, "dataflow": name, "epoch": epoch, "interval_start": day, "interval_end": day + _DAY}
        | {"run_id": dag_run, "predecessor": before, "created_at": at, "closed_at": at}
        | {"closed_result": max(numbers.values()), "released_at": at if is_gone else None}
    )
    for row in copies.attempts:
        times = {key: at for key in ("began_at", "ended_at", "heard_at") if row[key] is not None}
        rows[AttemptRow].append(row | times | {"id": names[row["id"]], "run": run, "ti_id": f"ti-{dag_run}-0-1"})
    gone = {**GONE, "deleted_at": at} if is_gone else {"verified_at": at}
    for row in copies.results:
        new = {"id": numbers[row["id"]], "run": run, "attempt": names[row["attempt"]], "folder": moved(row["folder"])}
        rows[ResultRow].append(row | {"state_at": at} | gone | new)
        if is_gone:
            event = {"result": new["id"], "state": "released", "at": at, "reason": GONE["state_reason"]}
            rows[ResultEventRow].append(event)
    sets = {}
    for row in copies.reads:
        is_own = row["run"] == template["id"]
        if not is_own and before is None:
            continue
        read = run if is_own else run_key(name, before)
        key = (row["read_set"], read)
        if key not in sets:
            sets[key] = _read_set(copies, row, read, names if is_own else None)
            rows[ReadSetRow].append(sets[key])
        rows[ConsumptionRow].append(row | {"attempt": names[row["attempt"]], "run": read, "read_set": sets[key]["id"]})
    for row in copies.published:
        new = {"run": run, "attempt": names[row["attempt"]], "pointer": moved(row["pointer"])}
        folders = [moved(each) for each in row["folders"] or ()]
        rows[PublicationRow].append({k: v for k, v in row.items() if k != "id"} | new | {"folders": folders})
    for row in copies.checkpoints:
        new = {"dataflow": name, "epoch": epoch, "run": run, "attempt": names[row["attempt"]]}
        gone = {"subsumed_at": at, "subsumed_by": 1, "deleted_at": at} if is_gone else {}
        results = [numbers[each] for each in row["results"] or () if each in numbers]
        rows[CheckpointRow].append({k: v for k, v in row.items() if k != "id"} | new | gone | {"results": results})


def _read_set(copies, row, read, names):
    members = []
    for subtask, attempt, digest in copies.sets[row["read_set"]]:
        if names is not None:
            members.append([subtask, names[attempt], digest])
        else:  # of the epoch before: a copy, too
            found, of = copies.place[row["stage"], subtask, row["layout"]]
            members.append([subtask, _renamed(found, read), of])
    name = hashlib.sha256(repr(members).encode()).hexdigest()
    return {"id": name, "members": members}
