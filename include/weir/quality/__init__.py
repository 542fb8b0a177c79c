"""Data quality: suites, the gates of an attempt, and what checks have found."""
