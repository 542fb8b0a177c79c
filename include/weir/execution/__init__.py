"""Models the execution of a run: states of regions, attempts and partitions, and classes of failures; no I/O."""
