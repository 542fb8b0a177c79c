"""Makes pages of HTML about checks, as Great Expectations' Data Docs show them. Invariant: it reads and asks nothing.

    python document_checks.py REQUEST.json FOLDER

REQUEST.json is as weir.quality.page writes it. Each page becomes a file in FOLDER, and for each check a line of JSON is
printed: its number in the ledger, and the file or an error. There is no Spark in it.
"""

import sys

from weir_spark.documents import main

if __name__ == "__main__":
    sys.exit(main())
