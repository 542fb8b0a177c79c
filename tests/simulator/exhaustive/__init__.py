"""All schedules of a few processes over a small dataflow, as far as they come to different states."""
