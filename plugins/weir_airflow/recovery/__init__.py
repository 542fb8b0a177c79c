"""The retry policy of Weir's tasks, and what it does after a failed try."""
