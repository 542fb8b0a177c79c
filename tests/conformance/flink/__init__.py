"""Flink's job graph, regions, restarts, releases and registry: a reference that production is held against.

test_conformance holds it against Flink's own classes.
"""
