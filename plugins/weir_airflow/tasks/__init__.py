"""The operators, and what their tasks run."""
