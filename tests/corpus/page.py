"""The page about types and values, from the lines of the corpus: `python -m tests.corpus.page` writes it anew."""

from __future__ import annotations

from pathlib import Path

from tests.corpus.files import FILES
from tests.corpus.regions import QUERIES, REGIONS
from tests.corpus.tables import PARTITIONS, SELECTED
from tests.corpus.values import REGION, STATE, TARGETS, by_type

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "values.md"
PLACES = (REGION, STATE, *TARGETS)

HEAD = """# Types and awkward values

What becomes of each Spark type, and of what strangers' files, tables and functions have: it comes out as it went in,
or is refused before anything is committed or published, in one try. `tests/corpus` runs every line of this page on
Spark Connect and in a session of its own, and this page is written from it: `python -m tests.corpus.page`.

## Types

"Yes" is for every value of the type that was tried but those that are named.

"""


def row(*cells):
    return f"| {' | '.join(str(each).replace('|', '&#124;') for each in cells)} |\n"


def table(*head, rows):
    return row(*head) + row(*["---"] * len(head)) + "".join(row(*each) for each in rows)


def outcome(values, place):
    """What becomes of the values of a type in a place."""
    refused = [value for value in values if place in value.refused]
    if not refused:
        return "yes"
    if len(refused) == len(values):
        return f"refused: {refused[0].refused[place]}"
    return f"yes; refused: {', '.join(f'{value.what} ({value.refused[place]})' for value in refused)}"


def outcomes(values):
    """What becomes of them in each place; what is in no result gets nowhere."""
    if REGION in values[0].refused:
        return [outcome(values, REGION), *["no"] * (len(PLACES) - 1)]
    return [outcome(values, place) for place in PLACES]


def verdict(rows):
    return "refused" if rows is None else "read"


def text():
    kinds = by_type()
    types = [(f"`{type_}`", ", ".join(value.what for value in values)) for type_, values in kinds.items()]
    rows = [(*named, *outcomes(values)) for named, values in zip(types, kinds.values(), strict=True)]
    parts = [
        HEAD + table("Type", "Values tried", "Result", "State", *TARGETS, rows=rows),
        "## Files\n\n`files_source`; a refusal names the file, the column or the link.\n\n"
        + table("Content", "Outcome", rows=[(case.what, verdict(case.rows)) for case in FILES]),
        "## Rows of PostgreSQL\n\n`postgres_source`.\n\n"
        + table("Query", "Outcome", rows=[(f"`{case.query}`", verdict(case.rows)) for case in SELECTED]),
        "## Partitions of Delta and Iceberg tables\n\n`partition=` on 2013-01-01.\n\n"
        + table(
            "Column",
            "Values",
            "Declared",
            "Outcome",
            rows=[
                (f"`{case.type}`", ", ".join(map(str, case.values)), f"`{case.declared}`", partition_outcome(case))
                for case in PARTITIONS
            ],
        ),
        "## Stages of one region\n\nTwo functions in one plan.\n\n"
        + table("Functions with", "Outcome", rows=[(case.what, of_region(case.rows)) for case in REGIONS]),
        "## Queries\n\nStages in SQL files.\n\n"
        + table("Query with", "Outcome", rows=[(case.what, of_region(case.rows)) for case in QUERIES]),
    ]
    return "\n".join(parts)


def partition_outcome(case):
    return "refused" if case.found is None else f"reads {', '.join(map(str, case.found))}"


def of_region(rows):
    return "refused" if rows is None else "rows of their own"


if __name__ == "__main__":
    PAGE.write_text(text())
