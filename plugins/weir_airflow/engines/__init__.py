"""Where regions are computed: Spark Connect or spark-submit."""
