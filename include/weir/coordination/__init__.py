"""Defines the services of all steps, and the values that tasks and the coordinator exchange."""
