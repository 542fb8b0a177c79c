"""Which dataflows' rows a transaction reads and writes, apart from those of its own."""

from sqlalchemy import event, inspect

from weir.ledger.database.tables import DataflowRow


def dataflow_of_row(row):
    """The dataflow that a row is of, if it tells."""
    if isinstance(row, DataflowRow):
        return row.name
    for name in ("dataflow", "run", "scope"):
        value = inspect(row).dict.get(name)
        if isinstance(value, str) and value:
            return value.partition("@")[0]
    return None


def watch_rows(ledger, session_class, found):
    """Append to `found` each kind of row that a writing transaction reads or writes of another dataflow."""
    begun = ledger._begun

    def noting(dataflow):
        session = begun(dataflow)
        session.info["dataflow"] = dataflow
        return session

    def note(session, what, row):
        own, of = session.info.get("dataflow"), dataflow_of_row(row)
        if own is not None and of is not None and of != own:
            found.append(f"{what} {type(row).__name__}")

    def flushed(session, _context):
        for what, rows in (("inserts", session.new), ("updates", session.dirty), ("deletes", session.deleted)):
            for row in rows:
                note(session, what, row)

    ledger._begun = noting
    event.listen(session_class, "after_flush", flushed)
    event.listen(session_class, "loaded_as_persistent", lambda session, row: note(session, "reads", row))
