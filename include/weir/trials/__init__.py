"""Trying one stage on real inputs or samples, without a task: `weir try`, and `weir.run_stage` in a notebook."""
