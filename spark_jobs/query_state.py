"""Answers a query about keyed states, for `weir state sql`. Invariant: it only reads.

    python query_state.py QUERY.json ANSWER.arrow --remote sc://host:port
    spark-submit query_state.py QUERY.json ANSWER.arrow

QUERY.json is as weir.results.state_query writes it; the rows are written to ANSWER.arrow, a stream in Arrow's IPC form.
"""

import sys

from weir_spark.state_query import main

if __name__ == "__main__":
    sys.exit(main())
