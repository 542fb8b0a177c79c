"""Looks at the rows of stored results, for `weir verify --expectations`. Invariant: it only reads.

    python check_results.py JOB.json --remote sc://host:port
    spark-submit check_results.py JOB.json

JOB.json is a region's job that only has results to check. For each of them a line of JSON is printed: a region's report
that has what was found.
"""

import sys

from weir_spark.checking import main

if __name__ == "__main__":
    sys.exit(main())
