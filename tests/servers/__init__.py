"""Servers for tests: PostgreSQL, S3, Spark, and what breaks them."""
