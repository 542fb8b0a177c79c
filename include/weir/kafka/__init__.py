"""Kafka: how its clusters are reached, for targets and sources."""
