"""Flink's job graph, regions, restarts and releases: a reference for conformance, which production never asks."""
