"""What other systems are told of dataflows: gauges for their metrics, and lineage."""
