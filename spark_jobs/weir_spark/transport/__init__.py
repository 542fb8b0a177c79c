"""How a region reaches Spark: Connect, spark-submit, archives, errors."""
