"""A region as one Spark plan: its stages, their code, their cached output, their checks."""
