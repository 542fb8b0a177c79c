"""The Spark side of Weir: reads results, runs stages, writes and digests their rows."""
