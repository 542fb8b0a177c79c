"""The demo: a result is lost, and heals."""
