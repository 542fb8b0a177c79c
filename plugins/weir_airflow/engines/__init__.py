"""The engines that compute regions: Spark Connect and spark-submit."""
