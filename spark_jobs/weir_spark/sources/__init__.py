"""Resolvers and reading functions of ready-made sources, and marks of files for sources of one's own.

Invariant: what this package and its resolvers import needs no Spark; the reading functions import it.
"""

from weir_spark.sources.marks import file_mark, unchanged

__all__ = ["file_mark", "unchanged"]
