"""Running jobs on Spark: through Connect, by spark-submit, and translating their errors."""
