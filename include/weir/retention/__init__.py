"""Retention: rules and queries for what may be deleted, sweeps that delete it, and free space."""
