"""Flink's job graph, regions, restarts and releases: a reference for conformance.

Nothing that production decides with imports it. Only `weir plan --topology` does, to read a job graph and to answer for
one that Weir cannot run. tests/conformance holds it against Flink's own classes, and production against it.
"""
