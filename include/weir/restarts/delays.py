"""All delays and limits of tries that no restart strategy and no option sets; in seconds, if nothing else is said."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

AIRFLOW_RETRIES: Final = 999
"""So many retries that Airflow's own count never decides: the restart strategy does, by the retry policy."""

AIRFLOW_RETRY_DELAY: Final = timedelta(seconds=5)
"""The delay after a kill, which no retry policy sees: the next begin books it and applies the restart strategy."""

UNDECIDED_DELAY: Final = 5.0
"""Before the next try if nothing is counted: the failed one was fenced or not registered, or no ledger answers."""

LONG_OUTAGE_DELAY: Final = 60.0
LONG_OUTAGE_BELOW: Final = 900
"""With fewer tries left, an outage has lasted for a while: the longer delay makes them last for half a day more."""

PATIENCE: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
"""Before the next try where a store or a Spark server does not answer, by the number of the failure.

All tries together last for three quarters of an hour: a person may have to free space on a disk."""

JITTER: Final = 0.1
"""The jitter factor of such a delay: tasks that lost the same server do not all return at once."""

FIRST_WAIT: Final = 5.0
LONGEST_WAIT: Final = 60.0
"""Between two looks of a task that waits for others: twice as long each time."""

MOST_KILLS: Final = 2
"""How often the process of a compaction may be killed before its work is left to the next epoch."""
