"""Notifications on their way from the outbox to their receivers."""
