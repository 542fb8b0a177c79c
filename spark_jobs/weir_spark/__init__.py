"""Where Weir meets Spark: reads results, runs stages, writes and digests what they return."""
