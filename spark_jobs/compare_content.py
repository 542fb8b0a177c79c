"""Computes the digests of stored results again, for `weir verify --content`. Invariant: it only reads.

    python compare_content.py REQUEST.json --remote sc://host:port
    spark-submit compare_content.py REQUEST.json

REQUEST.json is a message with a list of weir.formats.programs.ResultToCheck. For each result a line of JSON is printed:
its number in the ledger, and its digest or an error.
"""

import sys

from weir_spark.checks.content import main

if __name__ == "__main__":
    sys.exit(main())
