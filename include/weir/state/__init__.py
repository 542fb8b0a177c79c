"""Keyed and operator state from epoch to epoch, its checkpoints and its compaction."""
