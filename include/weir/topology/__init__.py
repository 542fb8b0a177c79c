"""Where recovery stops: key groups, wiring, regions and result partitions, derived from a dataflow."""
