"""The decision which regions run again, and why; no I/O."""
