"""Reading, writing and digesting result partitions."""
