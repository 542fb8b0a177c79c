"""Data quality: suites, the gates of an attempt, and pages about checks."""
