"""Sinks: results that are published once the run they belong to is complete."""
