"""The services that every step works with, and the values that a task and the coordinator exchange."""
