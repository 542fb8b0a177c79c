"""The handle of keyed state that a stage's function is given. Invariant: nothing is written before the stage returns.

What the function does to it is a list of changes, the later ones winning; `state_writer` writes what they come to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from weir.errors import Misconfigured
from weir.results.layout import KEY_GROUP_COLUMN
from weir_spark.state_reader import UPDATED, StoredState


@dataclass(frozen=True, slots=True)
class Change:
    """Rows to be set, or keys to be deleted; of two rows of a key the one wins that is highest in `order_by`."""

    rows: DataFrame
    is_deletion: bool = False
    only_changed: bool = False
    order_by: tuple[str, ...] = ()


@dataclass(slots=True)
class KeyedState:
    """Rows by key that are kept from epoch to epoch; what is read is what the epoch before has left."""

    stored: StoredState
    changes: list[Change] = field(default_factory=list)

    def read(self) -> DataFrame:
        """The rows that the epoch before has left, without those that have expired; the columns of the schema."""
        return self.stored.rows().drop(KEY_GROUP_COLUMN, UPDATED)

    def upsert(
        self, rows: DataFrame, *, only_changed: bool = False, order_by: str | Sequence[str] | None = None
    ) -> None:
        """Set the rows of these keys; `rows` has the columns of the schema.

        Two rows of one key are an error, unless `order_by` names columns: the row that is highest in them wins. With
        `only_changed` rows that are as they were are not written (and their time to live goes on).
        """
        self._require_columns(rows, self.stored.schema.fieldNames(), "upsert")
        names = (order_by,) if isinstance(order_by, str) else tuple(order_by or ())
        self.changes.append(Change(rows, only_changed=only_changed, order_by=names))

    def delete(self, keys: DataFrame) -> None:
        """Delete the rows of these keys; `keys` has the key columns, and may have others. Unknown keys do no harm."""
        self._require_columns(keys, self.stored.read.state.keys, "delete")
        self.changes.append(Change(keys.select(*self.stored.read.state.keys), is_deletion=True))

    def _require_columns(self, rows: DataFrame, wanted: Sequence[str], what: str) -> None:
        missing = [name for name in wanted if name not in rows.columns]
        if missing:
            raise Misconfigured(
                f"state {self.stored.read.state.name!r}: {what} needs the columns {', '.join(wanted)}, but there is no "
                f"{', '.join(missing)}; there are {', '.join(rows.columns)}"
            )
