"""The one entry point of a Spark job: runs the region that a JSON file describes. Invariant: JSON in, JSON out.

    python run_region.py JOB.json --remote sc://host:port --session-id UUID
    spark-submit run_region.py JOB.json

JOB.json is a path or a URL of a store; the environment variable WEIR_STORE_OPTIONS may hold the options of the store
for it. The exit code says what the caller must do: 0 the report is written, 75 try again later, 78 a person has to
change something, 77 a newer attempt is running, 1 anything else.
"""

import sys

from weir_spark.transport.driver import main

if __name__ == "__main__":
    sys.exit(main())
