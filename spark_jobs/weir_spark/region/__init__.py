"""One region as one Spark plan."""
