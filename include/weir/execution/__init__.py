"""What is known of a run while it executes: states of regions, attempts and partitions; no I/O."""
