"""`python -m tests.mutations [NAME ...]`: applies each fault by itself, and prints the table of what finds them."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.mutations.faults import FAULTS
from tests.mutations.trial import KINDS, SECONDS, try_fault

HEAD = """\
| fault | module | what breaks | found by | core-seconds |
|---|---|---|---|---|"""


def main(arguments: list[str]) -> int:
    """Run the command, and return the number of faults that nothing finds."""
    asked = _parser().parse_args(arguments)
    rows = known_rows(asked.table)
    print(HEAD, flush=True)
    for fault in FAULTS:
        if not asked.names or fault.name in asked.names:
            outcome = try_fault(fault, asked.seconds)
            rows[fault.name] = outcome.row
            print(outcome.row, outcome.said, sep="\n", flush=True)
            if asked.table is not None:
                write_table(asked.table, rows)
    print(f"\n{summary(list(rows.values()))}")
    return sum("**nothing**" in row for row in rows.values())


def known_rows(table: Path | None) -> dict[str, str]:
    """Return the rows of a table by fault, without those of faults that there are no more."""
    lines = table.read_text().splitlines() if table is not None and table.exists() else []
    rows = {line.split("|")[1].strip(): line for line in lines if line.startswith("| ")}
    return {fault.name: rows[fault.name] for fault in FAULTS if fault.name in rows}


def write_table(table: Path, rows: dict[str, str]) -> None:
    """Replace the rows of a table in a document, and its summary in the paragraph after it."""
    ordered = [rows[fault.name] for fault in FAULTS if fault.name in rows]
    before = table.read_text().partition(HEAD)[0] if table.exists() else ""
    table.write_text("\n".join([f"{before}{HEAD}", *ordered, "", summary(ordered), ""]))


def summary(rows: list[str]) -> str:
    """Return how many faults are found, by what, and which have not been tried to the end."""
    kinds = Counter(kind for row in rows for kind in KINDS if f"| {kind}: `" in row)
    drawn, tried = kinds["seed"] + kinds["property"], {row.split("|")[1].strip() for row in rows}
    left = ", ".join(fault.name for fault in FAULTS if fault.name not in tried)
    found = drawn + kinds["test"]
    return (
        f"{found} of {len(FAULTS)} faults are found: {drawn} by the simulator ({kinds['seed']}) or by a property "
        f"test ({kinds['property']}), {kinds['test']} by other tests; {kinds['crash']} end in a crash. "
        f"Not tried to the end yet: {left or 'none'}."
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of faults (default: all)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of processor time for each detector")
    parser.add_argument("--table", type=Path, help="replace the rows of these faults in the table of this document")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
